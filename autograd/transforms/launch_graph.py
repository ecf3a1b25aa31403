"""Launches: what a step gives to a GPU, captured, and replayed without running the step on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..arrays.capture import set_capture
from ..arrays.device import runtime_of
from ..arrays.runtime import Runtime
from ..engine.leaves import Leaf
from ..engine.pytree import flatten
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import ArgumentError, CaptureError, RingtapeError
from .guards import Form, Guard, Seen
from .reach import Reach

__all__ = ["LaunchPlan", "require_device"]


class LaunchPlan:
    """A replay of the launches of one run of a step, and the calls that it fits.

    The work reads copies of the arrays among the arguments.
    """

    is_single = False

    def __init__(self, form: Form, step: Callable[..., Any], roots: Iterable[tuple[str, Any]], runtime: Runtime):
        reach = Reach(roots)
        inputs = _copied(form.leaves)
        own = (_array(x) for x, given in zip(inputs, form.leaves, strict=True) if x is not given)
        self._arrays = list({id(x): x for x in own}.values())
        self._is_first = True
        with Seen() as seen:
            set_capture(seen)
            try:
                result, self._launch = runtime.capture(lambda: step(*form.structure.rebuild(inputs)))
            except RingtapeError:
                raise
            except RuntimeError as error:
                raise CaptureError(
                    f"capture: the step cannot be captured: {type(error).__name__}: {error}\n  needed: a step that "
                    "gives work to the device only: no values read on the host, no branches on them, no new shapes"
                ) from error
            finally:
                set_capture(None)
        self._capture, self.guard, self.held = seen, Guard(seen, reach), form.held
        self._results, self.structure = flatten(result)
        self._gradients = [(leaf, leaf._grad) for leaf in seen.leaves.values()]

    def enter(self, args: tuple[Any, ...]) -> None:
        """Nothing: each call is compared by `holds`."""

    def holds(self) -> bool:
        """Whether a replay would be the step, for arguments of its form."""
        try:
            self._capture.check()  # whether the optimizers update the arrays of the capture
        except CaptureError:
            return False
        return self.guard.holds() and self.guard.has_same_arrays()

    def fits(self) -> bool:
        """Whether it is the work of the arrays that are there now: always, if it holds."""
        return True

    def is_worn(self) -> bool:
        """Never: a plan of other arrays does not hold."""
        return False

    def run(self, *arrays: Any) -> list[Any]:
        """The results for the arrays of other arguments."""
        for own, x in zip(self._arrays, arrays, strict=True):
            if x is not own:
                own[...] = x
        return self.replay()

    def replay(self) -> list[Any]:
        """Copies of the results. The gradients are the arrays that the work writes."""
        if not self._is_first:  # the first time, it is the step that was captured
            self._capture.advance()
        self._is_first = False
        self._capture.write()
        self._launch()
        for leaf, gradient in self._gradients:
            leaf._grad = gradient
        return _copied(self._results)


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


def _array(x: Any) -> Any:
    return x.array if isinstance(x, Tensor) or x.__class__ in TENSORS else x


def _copied(values: list[Any]) -> list[Any]:
    """Copies of the arrays on a device, and of Tensors with such arrays. Other values, and leaves, are themselves."""
    copies: dict[int, Any] = {}  # by the id of an array

    def copied(x: Any) -> Any:
        array = _array(x)
        if runtime_of(type(array)) is None or (isinstance(x, Leaf) and x._requires_grad):
            return x
        own = copies.get(id(array))
        if own is None:
            own = copies[id(array)] = array.copy()
        return own if array is x else Tensor(own, x.layout)

    return [copied(x) for x in values]
