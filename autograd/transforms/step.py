"""`capture`: record the operations of a step, and replay them without running the step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays.capture import current_capture
from ..engine.events import listeners, spans
from ..engine.leaves import Leaf
from ..engine.pytree import Structure, flatten
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..errors import ArgumentError, CaptureError, OptionError, TapeError, short
from .recorder import Held, Recorder, difference
from .replay import Departed, compiled

__all__ = ["CapturedStep", "capture"]

_MOST_PLANS = 16
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


class CapturedStep:
    """A step that is recorded and replayed; see `capture`.

    Attributes
    ----------
    is_captured : bool
        Whether a call with the arguments of the last one would be a replay.
    replays : int
        The number of calls that were replayed.
    """

    def __init__(self, step: Callable[..., Any], warmup: int):
        self._step, self._warmup = step, warmup
        self._plans: dict[Any, list[_Plan]] = {}
        self._first: dict[Any, tuple[Recorder, Any, _Guard]] = {}  # by the form of the arguments: a recording
        self._last: _Plan | None = None
        self._count = 0
        self.replays = 0

    @property
    def is_captured(self) -> bool:
        return self._last is not None

    def __repr__(self) -> str:
        how = f"captured, {self.replays} replays" if self.is_captured else f"not captured, {self._warmup} calls to go"
        return f"CapturedStep({getattr(self._step, '__name__', 'step')}, {how})"

    def __call__(self, *args: Any) -> Any:
        plan = self._last
        if plan is not None:
            given = plan.inputs_of(args)
            if given is not None and plan.holds():
                try:
                    found = plan.replay(*given)
                except Departed:
                    return self._step(*args)
                self.replays += 1
                return found[0] if plan.is_single else plan.structure.rebuild(found)
        return self._general(args)

    def _general(self, args: Any) -> Any:
        if state.recording is not None:
            raise TapeError(
                "capture: a captured step was called inside a tape's block, which would not record it\n  fix: put "
                "the tape and backward into the step"
            )
        if not _is_plain_state() or current_capture() is not None:
            return self._step(*args)
        if self._warmup > 0:
            self._warmup -= 1
            return self._step(*args)
        leaves, structure = flatten(args)
        form = _Form(leaves, structure)
        for plan in self._plans.get(form.key, ()):
            if plan.holds():
                self._last = plan
                given = form.arrays
                try:
                    found = plan.replay(*given)
                except Departed:
                    return self._step(*args)
                self.replays += 1
                return plan.structure.rebuild(found)
        return self._record(args, form)

    def _record(self, args: Any, form: _Form) -> Any:
        """Run the step, recorded. The second recording of a form makes a plan."""
        if self._count >= _MOST_PLANS:
            raise CaptureError(
                f"capture: the step was captured for {_MOST_PLANS} different calls, and is called otherwise again: "
                f"{form}\n  fix: pad the arguments to one shape; give numbers that change as arrays without "
                "dimensions; or call the step itself"
            )
        if not state.distribution.is_alone:
            raise CaptureError(
                f"capture: the step was called on a mesh of {state.distribution.group().size} ranks; needed: one rank. "
                "Communication between ranks is not captured"
            )
        self._last = None
        recorder = Recorder(form.arrays, threading.get_ident())
        with recorder:
            result = self._step(*args)
        found, structure = flatten(result)
        refs = [_result_of(recorder, x) for x in found]
        guard = _Guard(recorder)
        key = form.key
        before = self._first.get(key)
        if before is None or not before[2].holds() or before[2].modules != guard.modules:
            self._first[key] = recorder, refs, guard
            return result
        first, first_refs, _ = self._first.pop(key)
        fault = difference(first, recorder) or _other_results(first_refs, refs)
        if fault:
            raise CaptureError(
                f"capture: two runs of the step are not the same calls: {fault}\n  needed: a step whose operations, "
                "and constants, are the same in each call\n  fix: compute the value from arguments of the step, by "
                "operations of autograd; make constants before the step; or call the step itself"
            )
        self._count += 1
        plan = _Plan(form, compiled(recorder, recorder.rows, refs, len(form.arrays)), guard, structure, len(found))
        self._plans.setdefault(key, []).append(plan)
        self._last = plan
        return result


def _is_plain_state() -> bool:
    """Whether nothing hears of operations, and there is no mesh."""
    return not listeners and not spans


class _Form:
    """The form of arguments: what a plan needs of them, and their arrays."""

    def __init__(self, leaves: Sequence[Any], structure: Structure):
        self.leaves, self.structure = leaves, structure
        self.arrays: list[Any] = []
        self.parts: list[Any] = []
        seen: dict[int, int] = {}
        for i, x in enumerate(leaves):
            array = x.array if x.__class__ in TENSORS else x
            if x.__class__ in TENSORS and (x.tape is not None or (x._requires_grad and isinstance(x, Leaf))):
                if x.tape is not None and not x.tape.released(x.node):
                    raise TapeError("capture: an argument is recorded by a tape; needed: data\n  fix: stop_gradient(x)")
                if x.tape is None:
                    self.parts.append((x.__class__, id(x)))  # a parameter: it is read, and gets gradients
                    continue
            if isinstance(array, np.ndarray | np.generic):
                first = seen.setdefault(id(array), i)
                if first != i:
                    self.parts.append((x.__class__, "again", first))
                    continue
                layout = x.layout if x.__class__ in TENSORS else None
                strides = array.strides if array.ndim else ()
                self.parts.append((x.__class__, array.__class__, array.shape, array.dtype, strides, layout))
                self.arrays.append(array)
            elif x.__class__ in _CONSTANTS:
                self.parts.append((x.__class__, repr(x)))
            else:
                self.parts.append((x.__class__, id(x)))
        self.key = (repr(structure), *self.parts)

    def __str__(self) -> str:
        return ", ".join(short(x) for x in self.leaves)


class _Guard:
    """What must be as it was recorded: leaves, modules, and the state of the thread."""

    def __init__(self, recorder: Recorder):
        self.state = state.distribution, state.grid, state.no_grad
        self.leaves = [(x, _leaf_form(x)) for x in recorder.leaves.values()]
        self.modules = [(module, _module_form(module)) for module in recorder.modules.values()]

    def holds(self) -> bool:
        """Whether a replay would be the step."""
        return (
            (state.distribution, state.grid, state.no_grad) == self.state
            and all(_leaf_form(x) == form for x, form in self.leaves)
            and all(_module_form(module) == form for module, form in self.modules)
        )


def _leaf_form(x: Leaf) -> Any:
    array = x.array
    return array.__class__, array.shape, array.dtype, array.strides, x._requires_grad, x.layout


def _module_form(module: Any) -> Any:
    buffers = getattr(module, "_buffers", ())
    return [id(x) for name, x in vars(module).items() if name not in buffers], module.training


class _Plan:
    """A replay, and the calls that it fits."""

    def __init__(self, form: _Form, replay: Callable[..., Any], guard: _Guard, structure: Structure, count: int):
        self.replay, self.guard, self.structure = replay, guard, structure
        self.is_single = structure.kind is None
        self.key = form.key
        self.form = form

    def holds(self) -> bool:
        return state.recording is None and _is_plain_state() and current_capture() is None and self.guard.holds()

    def inputs_of(self, args: Any) -> list[Any] | None:
        """The arrays of the arguments; None if they are of another form."""
        leaves, structure = flatten(args)
        try:
            form = _Form(leaves, structure)
        except TapeError:
            return None
        return form.arrays if form.key == self.key else None


def _result_of(recorder: Recorder, x: Any) -> Any:
    """A result as a slot, or a constant."""
    if x.__class__ in TENSORS:
        if isinstance(x, Leaf) and recorder.slot_of(x.array) is None:
            return x
        found = recorder.slot_of(x.array)
        if found is None:
            raise CaptureError(
                f"capture: the step returns a Tensor of shape {x.array.shape} that is neither an argument nor the "
                "result of an operation of the step\n  fix: compute it by operations of autograd"
            )
        return Held(found, x.layout)
    if isinstance(x, np.ndarray | np.generic):
        slot = recorder.slot_of(x)
        if slot is None:
            raise CaptureError(
                f"capture: the step returns an array of shape {x.shape} that is neither an argument nor the result "
                "of an operation of the step\n  fix: return the Tensor"
            )
        return slot
    return x


def _other_results(first: Sequence[Any], second: Sequence[Any]) -> str:
    if len(first) != len(second):
        return f"{len(first)} results, then {len(second)}"
    for a, b in zip(first, second, strict=True):
        x, y = (getattr(each, "array", each) if each.__class__ is Held else each for each in (a, b))
        if a.__class__ is not b.__class__ or not (x is y or (not hasattr(x, "dtype") and x == y)):
            return f"the result {short(a)}, then {short(b)}"
    return ""


def capture(step: Callable[..., Any], *, warmup: int = 2) -> CapturedStep:
    """Return a function that records the operations of `step`, and from then on repeats them without running `step`.

    The first `warmup` calls run `step` as it is. The next two run it and record its operations: each call of a function
    on arrays, forward, backward and in sums of cotangents, each step of an optimizer, each key of a random draw. If
    both recordings are the same calls, later calls make these calls, with the same bits and without Tensors, layouts,
    tapes and the Python of the step.

    Parameters
    ----------
    step : callable
        A training step or another function. Its arguments, and its results, are Tensors, arrays, numbers and other
        objects, in nested tuples, lists and dictionaries.
    warmup : int
        Calls before the first recording, in which an optimizer makes its state.

    Returns
    -------
    CapturedStep
        Called as `step`. A Tensor that it returns has no tape.

    Raises
    ------
    CaptureError
        At a call that records: a value became plain data (``float(x)``, ``x.numpy()``, ``print(x)``, ``if x:``), which
        a replay could not repeat; an operation has a boolean index; data of a leaf, or a gradient, was assigned;
        running averages of a module were updated; a communication, a `checkpoint`, or a primitive of the user ran; or
        there are several ranks. At the second recording: it is not the same calls, because a constant was made anew in
        the step (by NumPy, or from numbers), or a Python decision was another one. The message names the line. At a
        call after 16 others, each of which had to be recorded anew.
    TapeError
        It is called inside a tape's block.

    Notes
    -----
    Guarded, at each call: the nesting of the arguments; of arrays and Tensors the type, shape, dtype, strides and
    layout, and which of them are one array; numbers, strings and other objects by their value or identity; of
    parameters and other leaves that the step reads, whether they are the same objects, with arrays of the same shape,
    dtype and strides, and whether they require a gradient; of modules that it calls, the mode and all attributes but
    buffers; the mesh, `no_grad`. A call that is guarded otherwise is recorded anew, twice. Where something hears of
    operations (`events`, a recorder, anomaly detection) the step itself runs. Values of arrays are read anew at each
    call: those of arguments, parameters, buffers, gradients, of the state and the numbers of an optimizer (rates and
    schedules too), and of arrays that were made before the step.

    Decisions on data that functions of autograd make, such as whether a label is ignored, are made anew; where one has
    another result, the step itself runs.

    Not seen, and so the caller's to avoid: a Python decision on data that is no Tensor, such as ``if x.max() > 3:`` of
    an array, on a global, or on an attribute of an object that is no module; what Python does besides operations, such
    as counting or appending to a list; and a write by NumPy to an array that the step reads.

    `clip_grad_norm_` returns a Tensor inside a captured step.

    Examples
    --------
    >>> import numpy, autograd as ag
    >>> from autograd import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> opt = optim.SGD(model.parameters(), lr=0.1)
    >>> @ag.capture
    ... def step(x, y):
    ...     opt.zero_grad()
    ...     with ag.Tape() as tape:
    ...         loss = ((model(x) - y) ** 2).mean()
    ...     tape.backward(loss)
    ...     opt.step()
    ...     return loss
    >>> x = numpy.random.default_rng(0).standard_normal((8, 2)).astype("float32")
    >>> losses = [float(step(x, x[:, :1])) for _ in range(20)]
    >>> step, losses[-1] < 0.1 * losses[0]
    (CapturedStep(step, captured, 16 replays), True)
    """
    if not callable(step):
        raise ArgumentError(f"capture: {step!r} was given; needed: a function")
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        raise OptionError(f"capture: warmup={warmup!r} was given; needed: a number of calls")
    return CapturedStep(step, warmup)
