"""Parameters of which each rank has a copy of its own for a while: I before and after, V along an axis in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import as_array, move, to_host
from autograd.arrays.half import is_half
from autograd.arrays.pairs import from_pairs, pairs_of
from autograd.engine.leaves import Leaf
from autograd.engine.locks import step_check
from autograd.engine.tensor import TENSORS
from autograd.errors import ArgumentError, LayoutError, MeshError, OptionError, TapeError
from autograd.layouts.layout import C, I, V
from autograd.layouts.messages import describe
from autograd.nn import Module
from autograd.optim import Optimizer
from collectives import current_mesh
from collectives.mesh import Axis
from collectives.transports.protocol import Request

__all__ = ["OwnCopies", "assign", "host_flat", "numbers_of", "put_flat", "real_size", "weighted_means"]

Array = np.ndarray[Any, Any]


class OwnCopies:
    """The parameters of a module and its optimizer, while each rank of an axis updates a copy of its own.

    `part` relabels every parameter of the module from I to V along the axis, and `join` back. In between the optimizer
    compares nothing between the ranks, because their copies differ, and they take steps at different times.

    Parameters
    ----------
    caller : str
        The name of the class that uses it, for messages.
    module : Module
    axis : str or sequence of str
    optimizer : Optimizer
        Of parameters of the module.

    Attributes
    ----------
    learned : list of Leaf
        The parameters of the optimizer.

    Raises
    ------
    ArgumentError
        `module` is no Module, `optimizer` no Optimizer, or one of its parameters is not of the module.
    MeshError
        `axis` is no name of an axis.
    """

    def __init__(self, caller: str, module: Module, axis: str | Sequence[str], optimizer: Optimizer):
        if not isinstance(module, Module):
            raise ArgumentError(f"{caller}: {type(module).__name__} was given; needed: a Module")
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(f"{caller}: {type(optimizer).__name__} was given; needed: an Optimizer")
        names = axis if isinstance(axis, tuple | list) else (axis,)
        if not names or not all(isinstance(name, str) for name in names):
            raise MeshError(f"{caller}: axis={axis!r} was given; needed: the name of an axis")
        self.caller, self.module, self.axis, self.optimizer = caller, module, axis, optimizer
        self.learned = optimizer.parameters
        self.all = dict(module.named_parameters())
        mine = {id(p) for p in self.all.values()}
        for i, p in enumerate(self.learned):
            if id(p) not in mine:
                raise ArgumentError(
                    f"{caller}: {p.name or f'parameter {i}'} of the optimizer is no parameter of the module; needed: "
                    "an optimizer of parameters of the module that is trained"
                )
        self._digest_every = optimizer.digest_every

    @property
    def names(self) -> list[str]:
        """The names of the parameters of the optimizer."""
        paths = {id(p): path for path, p in self.all.items()}
        return [paths[id(p)] for p in self.learned]

    def part(self) -> Axis:
        """Check that the parameters are equal on all ranks, and give each rank its own copy: I -> V. All call it.

        Gradients of before are removed, as they belong to one value.

        Raises
        ------
        LayoutError
            A parameter is not I along the axis.
        ReplicaMismatch
            The parameters differ between the ranks.
        TapeError
            A tape still needs a parameter.
        """
        mesh = current_mesh()
        on = mesh.axis(self.axis)
        for path, p in self.all.items():
            layout = p.labelled(mesh.grid)
            for a in on.names:
                if layout[a] is not I and layout[a] is not C:
                    raise LayoutError(
                        f"{self.caller}({path}: {describe(p.array, p.array.shape, layout)}, axis {a!r})\n"
                        f"  axis {a!r}: the parameter is {layout[a].word}; needed: Invariant, one value of which each "
                        f"rank takes a copy\n  fix: leave the label of axis {a!r} out of the Parameter's layout"
                    )
            if p.uses:
                raise TapeError(
                    f"{self.caller}: a tape still needs {path}, as one value of all ranks; needed: the block of "
                    f"{self.caller} around that of the tape"
                )
        mesh.check_replicas(self.all.values())
        for p in self.all.values():
            p.layout = p.labelled(mesh.grid).replace(on.names, V)
            p.grad = None
        self._digest_every, self.optimizer.digest_every = self.optimizer.digest_every, 0
        return on

    @contextmanager
    def as_one(self, on: Axis) -> Iterator[None]:
        """A block in which the parameters of the optimizer are labelled as one value, I: their copies are equal."""
        layouts = [p.layout for p in self.learned]
        for p in self.learned:
            assert p.layout is not None
            p.layout = p.layout.replace(on.names, I)
        try:
            yield
        finally:
            for p, layout in zip(self.learned, layouts, strict=True):
                p.layout = layout

    def join(self, on: Axis) -> None:
        """Label the parameters as one value again, V -> I: their copies are equal, and so are the buffers.

        The optimizer's next step compares its state between the ranks, which is each rank's own.
        """
        for p in self.all.values():
            assert p.layout is not None
            p.layout = p.layout.replace(on.names, I)
            p.grad = None
        self.optimizer.digest_every = self._digest_every
        self.optimizer.calls = 0

    def averaged_buffers(self) -> list[Any]:
        """The buffers that are numbers, such as running means."""
        return [getattr(owner, attribute) for owner, attribute in self._averaged()]

    def set_buffers(self, means: Sequence[Array], on: Axis) -> None:
        """Replace the `averaged_buffers` by values that are the same on all ranks; integers are rounded."""
        for (owner, attribute), mean in zip(self._averaged(), means, strict=True):
            buffer = getattr(owner, attribute)
            mean = np.rint(mean) if buffer.dtype.kind in "iu" else mean
            value: Any = mean.astype(buffer.dtype).reshape(buffer.shape)
            if buffer.__class__ in TENSORS:
                layout = buffer.layout.replace(on.names, C)
                value = value if all(label is C for label in layout.labels) else Leaf(value, layout)
            setattr(owner, attribute, value)

    def _averaged(self) -> list[tuple[Module, str]]:
        found = [(owner, attribute) for _, owner, attribute in self.module.named_buffer_owners()]
        return [(owner, attribute) for owner, attribute in found if getattr(owner, attribute).dtype.kind in "iufc"]


def assign(p: Leaf, value: Any) -> None:
    """Write an array of the parameter's device, or of the host, to a parameter, in place.

    Raises
    ------
    SavedArrayError
        A tape still needs the parameter's present value.
    """
    step_check(p)
    if isinstance(p.array, np.generic):
        p.array = value.astype(p.array.dtype).reshape(())[()]
    else:
        value = value.reshape(p.array.shape).astype(p.array.dtype, copy=False)
        p.array[...] = move(value, p.array) if isinstance(value, np.ndarray) else value


def host_flat(parameters: Sequence[Leaf], out: Array) -> Array:
    """Copy the elements of parameters, one after another, to a flat host array of real numbers: pairs of complex ones.

    `put_flat` is its inverse.
    """
    for p, part in zip(parameters, _parts_of_flat(parameters, out), strict=True):
        array = to_host(p.array)
        part[...] = pairs_of(array) if array.dtype.kind == "c" else array
    return out


def put_flat(parameters: Sequence[Leaf], flat: Array) -> None:
    """Write the elements of parameters from a flat array that `host_flat` has filled; see `assign`."""
    for p, part in zip(parameters, _parts_of_flat(parameters, flat), strict=True):
        assign(p, from_pairs(part) if p.array.dtype.kind == "c" else part)


def real_size(p: Leaf) -> int:
    """The number of real numbers in a parameter."""
    return int(p.array.size) * (2 if p.array.dtype.kind == "c" else 1)


def _parts_of_flat(parameters: Sequence[Leaf], flat: Array) -> Iterator[Array]:
    end = 0
    for p in parameters:
        start, end = end, end + real_size(p)
        yield flat[start:end].reshape((*p.array.shape, 2) if p.array.dtype.kind == "c" else p.array.shape)


# -- means -------------------------------------------------------------------------------------------------------------
def numbers_of(x: Any) -> Array:
    """The value of a parameter or a buffer, in the dtype in which it is averaged."""
    array = as_array(x.array if x.__class__ in TENSORS else x)
    if is_half(array.dtype):
        return array.astype(np.float32)
    return array.astype(np.float64) if array.dtype.kind in "iu" else array


def weighted_means(call: str, values: Sequence[Array], weight: float, on: Axis, bucket_bytes: int) -> list[Array]:
    """``sum_r(weight_r x_r) / sum_r(weight_r)`` of each array over the ranks of an axis. All ranks call it.

    It sends one all-reduce for each bucket of one dtype, with the weight as its last element.

    Raises
    ------
    OptionError
        The weights of all ranks are 0.
    """
    means: list[Any] = [None] * len(values)
    for bucket in _buckets(values, bucket_bytes):
        ends = np.cumsum([part.stop - part.start for part in bucket]).tolist()
        flat = np.empty_like(values[bucket[0].array], shape=(ends[-1] + 1,))
        for part, start, end in zip(bucket, [0, *ends], ends, strict=False):
            np.multiply(values[part.array].reshape(-1)[part.start : part.stop], weight, out=flat[start:end])
        flat[-1] = weight
        total = on.group.run(Request("all_reduce", flat))
        if to_host(total[-1:])[0] == 0:
            raise OptionError(
                f"{call}: weight=0 was given on all {on.size} ranks, so that their mean is undefined; needed: a "
                "positive weight on one of them"
            )
        total = total[:-1] / total[-1].real
        for part, start, end in zip(bucket, [0, *ends], ends, strict=False):
            if means[part.array] is None:
                means[part.array] = np.empty_like(values[part.array], dtype=total.dtype, order="C")
            means[part.array].reshape(-1)[part.start : part.stop] = total[start:end]
    return [np.empty_like(x) if mean is None else mean for x, mean in zip(values, means, strict=True)]


class _Part(NamedTuple):
    """Elements `start` to `stop` of the array with number `array`."""

    array: int
    start: int
    stop: int


def _buckets(values: Sequence[Array], bucket_bytes: int) -> list[list[_Part]]:
    """Divide the elements of all arrays, in order, into buckets of one dtype and at most `bucket_bytes`.

    Examples
    --------
    >>> _buckets([np.zeros(3), np.zeros(4)], 40)
    [[_Part(array=0, start=0, stop=3), _Part(array=1, start=0, stop=2)], [_Part(array=1, start=2, stop=4)]]
    """
    found: list[list[_Part]] = []
    for dtype in dict.fromkeys(x.dtype for x in values):
        most = max(1, bucket_bytes // dtype.itemsize)
        room = 0
        for index, x in enumerate(values):
            start = 0
            while x.dtype == dtype and start < x.size:
                if room == 0:
                    found.append([])
                    room = most
                stop = min(x.size, start + room)
                found[-1].append(_Part(index, start, stop))
                room -= stop - start
                start = stop
    return found
