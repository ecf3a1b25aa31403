"""`cuda_graph`: capture what a step gives to a GPU, and replay it without running the step on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.capture import Capture, set_capture
from ..arrays.device import runtime_of
from ..arrays.runtime import Runtime
from ..engine.leaves import Leaf
from ..engine.pytree import Structure, flatten
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import ArgumentError, CaptureError, OptionError, RingtapeError, TapeError, short

__all__ = ["CudaGraph", "Launches", "copied", "cuda_graph", "require_device"]


class Launches:
    """The work that one run of a step gave to a device, and copies of its arguments, which the work reads.

    Attributes
    ----------
    inputs : list
        The arguments, with the copies in the place of arrays on the device. A leaf that gets gradients is itself.
    arrays : list of arrays
        The copies, each once.
    result : object
        The result of the step. Each replay writes to its arrays.
    """

    def __init__(
        self, step: Callable[..., Any], leaves: list[Any], structure: Structure, runtime: Runtime, capture: Capture
    ):
        self.inputs = copied(leaves)
        own = (_array(x) for x, given in zip(self.inputs, leaves, strict=True) if x is not given)
        self.arrays = list({id(x): x for x in own}.values())
        self._capture = capture
        self._is_first = True
        set_capture(capture)
        try:
            self.result, self._replay = runtime.capture(lambda: step(*structure.rebuild(self.inputs)))
        except RingtapeError:
            raise
        except RuntimeError as error:
            raise CaptureError(
                f"capture: the step cannot be captured: {type(error).__name__}: {error}\n  needed: a step that "
                "gives work to the device only: no values read on the host, no branches on them, no new shapes"
            ) from error
        finally:
            set_capture(None)

    def fits(self) -> bool:
        """Whether the optimizers of the step still update the arrays of the capture."""
        try:
            self._capture.check()
        except CaptureError:
            return False
        return True

    def run(self) -> None:
        """Give the device the work of a step. The first time, it is the step that was captured."""
        if not self._is_first:
            self._capture.advance()
        self._is_first = False
        self._capture.write()
        self._replay()


class CudaGraph:
    """A step that is captured and replayed; see `cuda_graph`.

    Attributes
    ----------
    is_captured : bool
        Whether the next call replays.
    """

    def __init__(self, step: Callable[..., Any], warmup: int):
        self._step, self._warmup = step, warmup
        self._work: Launches | None = None
        self._structure: Structure | None = None

    @property
    def is_captured(self) -> bool:
        return self._work is not None

    def __call__(self, *args: Any) -> Any:
        if state.recording is not None:
            raise TapeError(
                "cuda_graph: a captured step was called inside a tape's block, which would not record it\n  fix: put "
                "the tape and backward into the step"
            )
        leaves, structure = flatten(args)
        if self._work is None:
            runtime = require_device(leaves)
            if self._warmup > 0:
                self._warmup -= 1
                return self._step(*args)
            self._work, self._structure = Launches(self._step, leaves, structure, runtime, Capture()), structure
        else:
            self._set_inputs(self._work.inputs, leaves, structure)
        self._work.run()
        return self._work.result

    def _set_inputs(self, inputs: list[Any], leaves: list[Any], structure: Structure) -> None:
        """Copy new arguments into the arrays that the captured work reads."""
        if structure != self._structure:
            raise CaptureError(
                f"cuda_graph: arguments {structure!r} were given; needed: {self._structure!r}, as at the capture"
            )
        for i, (own, given) in enumerate(zip(inputs, leaves, strict=True)):
            into, x = _array(own), _array(given)
            if runtime_of(type(into)) is None or _is_read_as_leaf(own):
                if given is not own and (_is_read_as_leaf(own) or type(given) is not type(own) or given != own):
                    raise CaptureError(
                        f"cuda_graph: argument {i} is {short(given)}, and was {short(own)} at the capture, a constant "
                        "of the captured step\n  fix: an array on the GPU in place of the number"
                    )
            elif type(x) is not type(into) or x.shape != into.shape or x.dtype != into.dtype:
                raise CaptureError(
                    f"cuda_graph: argument {i} is {_named(x)}, and was {_named(into)} at the capture; needed: arrays "
                    "of the same shapes and dtypes on the GPU at each call\n  fix: ag.capture(step), which captures "
                    "each form of arguments; or pad the last batch"
                )
            elif x is not into:
                into[...] = x

    def __repr__(self) -> str:
        how = "captured" if self.is_captured else f"not captured, {self._warmup} calls to go"
        return f"CudaGraph({getattr(self._step, '__name__', 'step')}, {how})"


def require_device(leaves: list[Any], known: Runtime | None = None) -> Runtime:
    """The runtime of the GPU that holds the arguments of a step. Raises an error if the step cannot be captured.

    `known` is that of a step whose parameters are on a GPU.
    """
    if not state.distribution.is_alone:
        raise CaptureError(
            f"capture: the step was called on a mesh of {state.distribution.group().size} ranks; needed: one rank. "
            "Communication between ranks is not captured"
        )
    kinds = {type(_array(x)) for x in leaves}
    runtime = next((found for kind in kinds if (found := runtime_of(kind)) is not None), known)
    if runtime is None:
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
        raise ArgumentError(
            f"capture: the arguments are {names}; needed: at least one array on a GPU, from which the captured "
            "step reads its data"
        )
    if np.ndarray in kinds:
        raise ArgumentError(
            "capture: a host array was given, which would be a constant of the captured step; needed: arrays on "
            "the GPU\n  fix: move the arguments to the device first, or give the step a number"
        )
    return runtime


def cuda_graph(step: Callable[..., Any], *, warmup: int = 2) -> CudaGraph:
    """Return a function that runs `step` once to capture its work on a GPU, and from then on replays that work.

    It is the bare form of `capture` on a GPU: of one form of arguments, and without guards and copies of results. A
    replay costs one launch. Nothing of the step runs on the host again, so it is for steps whose launches take longer
    than their work. Every call is one step: the first `warmup` calls run `step` as it is, the next one captures it and
    replays it, and the others replay.

    Parameters
    ----------
    step : callable
        A training step or another function: of arrays or Tensors on a GPU, and of numbers, in nested tuples, lists and
        dictionaries.
    warmup : int
        Calls before the capture, in which kernels are compiled and the optimizer's state is made.

    Returns
    -------
    CudaGraph
        Its arguments are copied into arrays of its own, which the captured work reads; their shapes and dtypes stay
        the same, and so do numbers. Its results, and the gradients of parameters, are the same arrays at each call: the
        next call overwrites them.

    Raises
    ------
    CaptureError
        At a call. The step read values on the host, drew random numbers, assigned buffers of modules, or ran an
        optimizer that does not support it; there are several ranks; or arguments have other shapes than at the capture.
    ArgumentError
        No argument is on a GPU, or one is a host array.
    TapeError
        It is called inside a tape's block.

    Notes
    -----
    `Adam`, `AdamW` and `SGD` support it, with schedules and groups of parameters. The numbers of each step, such as the
    learning rate and the corrections of Adam, are computed on the host before a replay, and written to the device by
    one small launch. So ``opt.lr`` may be assigned between calls. `clip_grad_norm_` computes its factor on the device.
    `MasterWeights` decides on the host whether to skip a step, and is refused.

    Examples
    --------
    >>> import autograd as ag
    >>> def step(x, y):
    ...     with ag.Tape() as tape:
    ...         loss = ((model(x) - y) ** 2).mean()
    ...     tape.backward(loss); opt.step(); opt.zero_grad()
    ...     return loss
    >>> ag.cuda_graph(step)
    CudaGraph(step, not captured, 2 calls to go)
    """
    if not callable(step):
        raise ArgumentError(f"cuda_graph: {step!r} was given; needed: a function")
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        raise OptionError(f"cuda_graph: warmup={warmup!r} was given; needed: a number of calls")
    return CudaGraph(step, warmup)


def _array(x: Any) -> Any:
    return x.array if isinstance(x, Tensor) or x.__class__ in TENSORS else x


def _is_read_as_leaf(x: Any) -> bool:
    return isinstance(x, Leaf) and x._requires_grad


def copied(values: list[Any]) -> list[Any]:
    """Copies of the arrays on a device, and of Tensors with such arrays. Other values, and leaves, are themselves."""
    copies: dict[int, Any] = {}  # by the id of an array
    return [_copied(x, copies) for x in values]


def _copied(x: Any, copies: dict[int, Any]) -> Any:
    """A copy of an array on a device, or of a Tensor with such an array; another value, or a leaf, itself."""
    array = _array(x)
    if runtime_of(type(array)) is None or _is_read_as_leaf(x):
        return x
    own = copies.get(id(array))
    if own is None:
        own = copies[id(array)] = array.copy()
    return own if array is x else Tensor(own, x.layout)


def _named(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else repr(x)
