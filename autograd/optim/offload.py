"""Offload: parameters on a GPU, and their optimizer with its state on the host.

Adam keeps 8 bytes for each parameter of float32, and 12 with a master weight for parameters of 16 bits. On the host
they take none of the GPU's memory, at the price of copies: the gradients go down, and the new parameters up.

The parameters are divided into chunks. While the host updates one, the gradients of the next are copied to page-locked
memory on a stream of their own, and the parameters of the one before are copied back on another. The program's stream
waits for the last copy, on the device.

Source: Ren et al., ZeRO-Offload (USENIX ATC 2021), section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays.capture import refuse
from ..arrays.device import runtime_of, to_host
from ..arrays.half import is_half, rounded
from ..arrays.runtime import Runtime
from ..arrays.shape_only import is_absent
from ..engine.distribution import ALONE
from ..engine.leaves import Leaf
from ..engine.locks import step_check
from ..engine.state import state
from ..errors import OptionError, typed_errors
from ..whole import part_of, whole_of
from .base import Optimizer, refuse_foreign_gradient
from .copies import OfCopies, copy_of, wide_dtype
from .fused import contiguous
from .groups import ByParameter, matching, names_of
from .hyperparameters import check_count

__all__ = ["Offload"]

_ALIGNMENT_BYTES = 64


@typed_errors
class Offload(OfCopies):
    """An optimizer of parameters on a GPU, which updates copies of them on the host and keeps its state there.

    Parameters
    ----------
    optimizer : callable
        The class of the optimizer, such as `optim.AdamW`; called with the copies, which are float32 for parameters of
        16 bits.
    params : iterable of Parameter, or of dict
        Parameters, or groups of them: see `Optimizer`. Those on the host are updated directly. With ZeRO they are this
        rank's parts: ``Offload(optim.AdamW, model.parameters())`` after ``DataParallel(model, "dp", zero=2)``.
    *args, **kwargs
        Further arguments of the optimizer.
    chunk_bytes : int
        Parameters are copied and updated in chunks of about this size. Two of them have page-locked memory for
        gradients. A larger parameter is a chunk of its own.

    Attributes
    ----------
    optimizer : Optimizer
        The optimizer of the copies.
    parameters : list of Parameter
        The parameters, where they are.

    Raises
    ------
    ArgumentError
        `params` are no Parameters.
    OptionError
        `chunk_bytes` is less than 1, or a parameter is given twice.

    Notes
    -----
    The numbers are those of the optimizer on the host. On a GPU they differ from those without offload by rounding: its
    kernels multiply and add in one instruction.

    In each step every parameter of float32 costs 4 bytes down and 4 up, one of 16 bits 2 and 2. The copies of the
    parameters lie in page-locked memory; the moments, which are never copied, in ordinary memory. A gradient is read
    when `step` is called, so that `clip_grad_norm_` before it clips on the GPU.

    float16 gradients are not unscaled: use bfloat16, or `MasterWeights` without offload.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import optim
    >>> w = ag.Parameter([1.0, 2.0])
    >>> opt = optim.Offload(optim.AdamW, [w], lr=0.5, weight_decay=0.0)
    >>> with ag.Tape() as tape:
    ...     loss = (w * w).sum()
    >>> tape.backward(loss); opt.step(); w.numpy()
    array([0.5, 1.5])
    """

    def __init__(
        self, optimizer: Callable[..., Optimizer], params: Iterable[Leaf] | Iterable[dict[str, Any]], *args: Any,
        chunk_bytes: int = 32 << 20, **kwargs: Any,
    ):  # fmt: skip
        check_count("Offload", 1, chunk_bytes=chunk_bytes)
        super().__init__(optimizer, params, args, kwargs, lambda p: copy_of(p, p.array))
        self.parameters = self.held
        self.digest_every, self.optimizer.digest_every = self.optimizer.digest_every, 0
        self.calls = 0
        away = [i for i, p in enumerate(self.parameters) if runtime_of(type(p.array)) is not None]
        self._pipeline: _Pipeline | None = None
        if away:
            runtime = runtime_of(type(self.parameters[away[0]].array))
            assert runtime is not None
            self._pipeline = _Pipeline(runtime, self.optimizer, self.parameters, self._copies, away, chunk_bytes)

    def numbers(self) -> dict[str, Any]:
        """The hyperparameters and the number of steps; see `Optimizer`."""
        return self.optimizer.numbers()

    def has_new_numbers(self) -> bool:
        """Whether a hyperparameter has changed since the last call."""
        return self.optimizer.has_new_numbers()

    def state_lists(self) -> list[list[Any]]:
        """The lists that hold the state of each parameter, on the host."""
        return self.optimizer.state_lists()

    def step(self, *, keep: bool = False) -> None:
        """Update every parameter that has a gradient. See `Optimizer.step` for what it raises, and for `keep`.

        When it returns, the last parameters may still be on their way to the GPU: the work that the program gives to
        the GPU afterwards waits for them there.
        """
        refuse("Offload.step() was called, which updates parameters on the host", "the optimizer without Offload")
        distribution = state.distribution
        if distribution is not ALONE:
            self.calls += 1
            if self.digest_every and not distribution.is_alone:
                distribution.compare_step(self)
        self._take_assigned()
        gradients: list[Any] = []
        for i, (p, copy) in enumerate(zip(self.parameters, self._copies, strict=True)):
            g = p.grad
            has_gradient = g is not None and not is_absent(p.array)
            if has_gradient:
                refuse_foreign_gradient(p, i)
                step_check(p)
            gradients.append(contiguous(g.array) if g is not None and has_gradient else None)
            copy._grad = gradients[i]
        self._take_names()
        if self._pipeline is None:
            self.optimizer.step(keep=keep)
        else:
            self._pipeline.step(gradients)
        for i, (p, copy) in enumerate(zip(self.parameters, self._copies, strict=True)):
            copy._grad = None
            if copy.array is not p.array and isinstance(p.array, np.generic):  # a number is not updated in place
                p.array = copy.array
            self._known[i] = p.array

    def _take_assigned(self) -> None:
        """Give the copies the values of parameters that were assigned."""
        for i, (p, copy) in enumerate(zip(self.parameters, self._copies, strict=True)):
            if p.array is not self._known[i]:
                self._known[i] = p.array
                if self._pipeline is None or not self._pipeline.take(i):
                    copy.array = p.array

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, and the copies of parameters of 16 bits; see `Optimizer`."""
        self._take_assigned()
        self._take_names()
        whole = ByParameter(
            (None if is_absent(p.array) or copy.array.dtype == p.array.dtype
             else whole_of(copy.array, p.layout, "Offload.state_dict", p.name)
             for p, copy in zip(self.parameters, self._copies, strict=True)),
            names_of(self.optimizer), self.parameters,
        )  # fmt: skip
        return {"optimizer": self.optimizer.state_dict(), "copies": whole}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the state, and the parameters of 16 bits from their copies.

        Raises
        ------
        OptionError, ShapeError
            Entries are missing or unknown, or shapes differ.
        """
        self.prepare_state_dict(state_dict)()

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict`, and return the function that sets it. `nn.load` calls it."""
        if set(state_dict) != {"optimizer", "copies"} or len(state_dict["copies"]) != len(self.parameters):
            raise OptionError(
                f"Offload.load_state_dict: {sorted(state_dict)} was given; needed: ['copies', 'optimizer'], with "
                f"{len(self.parameters)} copies"
            )
        self._take_assigned()
        self._take_names()
        of_optimizer = self.optimizer.prepare_state_dict(state_dict["optimizer"])
        _, places = matching(self.optimizer, state_dict["optimizer"].get("names"))
        parts: dict[int, Any] = {}
        for i, p in enumerate(self.parameters):
            value = state_dict["copies"][places[i]]
            if value is not None and not is_absent(p.array) and self._pipeline is not None:
                step_check(p)
                parts[i] = part_of(value, p.array, p.layout, "Offload.load_state_dict", p.name)

        def commit() -> None:
            self._take_assigned()  # `nn.load` has loaded the module since the state was checked
            of_optimizer()
            for i, part in parts.items():
                assert self._pipeline is not None
                self._pipeline.set(i, part)

        return commit

    def __repr__(self) -> str:
        return f"Offload({self.optimizer!r})"


class _Chunk:
    """Parameters that are copied and updated together, with page-locked memory for their copies."""

    def __init__(self, number: int, indices: list[int], runtime: Runtime):
        self.indices, self.slot = indices, number % 2  # the slot is that of the two buffers for gradients
        self.bits: dict[int, Any] = {}  # of parameters of 16 bits: the memory of their rounded copies
        self.gradients: dict[int, Any] = {}
        self.arrived = runtime.new_event()  # after the copy of its gradients to the host
        self.uploaded = runtime.new_event()  # after that of its parameters to the device


class _Pipeline:
    """The chunks of parameters on a device, and the streams of their copies.

    The host waits for gradients only. When they arrive, the copies of the step before to the device are complete, since
    the program has computed with them, or are followed by those of this step on the same stream.
    """

    def __init__(
        self, runtime: Runtime, optimizer: Optimizer, parameters: Sequence[Leaf], copies: Sequence[Leaf],
        away: Sequence[int], chunk_bytes: int,
    ):  # fmt: skip
        self._runtime, self._optimizer, self._parameters, self._copies = runtime, optimizer, parameters, copies
        self._down, self._up = runtime.new_stream(), runtime.new_stream()
        self._chunks = [
            _Chunk(number, indices, runtime) for number, indices in enumerate(self._divided(away, chunk_bytes))
        ]
        self._at = {i: chunk for chunk in self._chunks for i in chunk.indices}
        sizes = [sum(_aligned(parameters[i].array.nbytes) for i in chunk.indices) for chunk in self._chunks]
        buffers = [runtime.pinned(max([0, *sizes[slot::2]])) for slot in range(2)]
        for chunk in self._chunks:
            arrays = [parameters[i].array for i in chunk.indices]
            chunk.gradients = dict(zip(chunk.indices, _views(buffers[chunk.slot], arrays), strict=True))
            wide = [copies[i].array.size * wide_dtype(copies[i].array.dtype).itemsize for i in chunk.indices]
            memory = runtime.pinned(sum(map(_aligned, wide)))
            for i, view in zip(chunk.indices, _views(memory, arrays, widen=True), strict=True):
                copies[i].array = view
            half = [i for i in chunk.indices if is_half(parameters[i].array.dtype)]
            given = [parameters[i].array for i in half]
            if half:
                memory = runtime.pinned(sum(_aligned(x.nbytes) for x in given))
                chunk.bits = dict(zip(half, _views(memory, given), strict=True))
            for i in chunk.indices:
                self._read(i)
        self._given: list[Any] = []
        optimizer.run_updates = self._update_some

    def _divided(self, away: Sequence[int], chunk_bytes: int) -> list[list[int]]:
        """Indices in order, in chunks of one group of the optimizer."""
        found: list[list[int]] = []
        for group in self._optimizer._groups:
            size = chunk_bytes
            for i in group.indices:
                if i in away:
                    n = self._parameters[i].array.nbytes
                    if size + n > chunk_bytes:
                        found.append([])
                        size = 0
                    found[-1].append(i)
                    size += n
        return found

    def _read(self, i: int) -> None:
        """Set a copy to the value of its parameter."""
        self._copies[i].array[...] = to_host(self._parameters[i].array)

    def take(self, i: int) -> bool:
        """Set a copy to the value of its parameter, if it is in a chunk."""
        if i in self._at:
            self._read(i)
        return i in self._at

    def set(self, i: int, value: Any) -> None:
        """Set a copy and its parameter to a value of the host."""
        chunk = self._at.get(i)
        if chunk is not None:
            self._copies[i].array[...] = value
            self._begin()
            self._upload(chunk, [i])
            self._end(chunk)

    def step(self, gradients: list[Any]) -> None:
        """Run the optimizer's step on the copies."""
        for chunk in self._chunks:
            for i in chunk.indices:
                if gradients[i] is not None:
                    self._copies[i]._grad = chunk.gradients[i]  # where it will be
        self._given = gradients
        self._begin()
        try:
            self._optimizer.step(keep=True)  # its gradients are buffers, which are filled again
        finally:
            self._given = []

    def _begin(self) -> None:
        """Let the copies wait for the work that the program gave to the device so far."""
        ready = self._runtime.new_event()
        ready.record(self._runtime.current_stream())
        self._down.wait_event(ready)
        self._up.wait_event(ready)

    def _end(self, last: _Chunk) -> None:
        """Let the work that the program gives to the device from now on wait for the copies."""
        self._runtime.current_stream().wait_event(last.uploaded)

    def _update_some(self, indices: Iterable[int], gradients: list[Any]) -> None:
        """`Optimizer.update_some`, where the gradients of the device are on their way to the host."""
        wanted = {i for i in indices if gradients[i] is not None}
        update_some = self._optimizer.update_some
        update_some(sorted(wanted - self._at.keys()), gradients)
        work = [(chunk, [i for i in chunk.indices if i in wanted]) for chunk in self._chunks]
        work = [(chunk, members) for chunk, members in work if members]
        is_started = False
        for k, (chunk, members) in enumerate(work):
            if not is_started:
                self._download(chunk, members)
            is_started = k + 1 < len(work) and work[k + 1][0].slot != chunk.slot
            if is_started:  # into the other buffer, which the chunk before has left
                self._download(*work[k + 1])
            chunk.arrived.synchronize()
            arrived = list(gradients)
            for i in members:
                if is_half(arrived[i].dtype):
                    arrived[i] = arrived[i].astype(np.float32)
            update_some(members, arrived)
            self._upload(chunk, members)
        if work:
            self._end(work[-1][0])

    def _download(self, chunk: _Chunk, members: list[int]) -> None:
        for i in members:
            self._runtime.copy(chunk.gradients[i], self._given[i], self._down)
        chunk.arrived.record(self._down)

    def _upload(self, chunk: _Chunk, members: list[int]) -> None:
        for i in members:
            p, value = self._parameters[i], self._copies[i].array
            if i in chunk.bits:
                bits = chunk.bits[i]
                bits[...] = rounded(value, bits.dtype)
                value = bits
            if p.array.flags.c_contiguous:
                self._runtime.copy(p.array, value, self._up)
            else:
                with self._up:
                    whole = np.empty_like(p.array, shape=p.array.shape, order="C")
                    self._runtime.copy(whole, value, self._up)
                    p.array[...] = whole
        chunk.uploaded.record(self._up)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _views(memory: np.ndarray, like: Sequence[Any], widen: bool = False) -> list[Any]:
    """Arrays one after another in a buffer, of the shapes and dtypes of others, or of float32 in place of 16 bits."""
    found, start = [], 0
    for x in like:
        dtype = wide_dtype(x.dtype) if widen else x.dtype
        size = x.size * dtype.itemsize
        found.append(memory[start : start + size].view(dtype).reshape(x.shape))
        start += _aligned(size)
    return found
