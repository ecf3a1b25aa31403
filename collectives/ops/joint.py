"""One collective on several operands, recorded as one step: the entry of parameters into a computation.

    ENTRY = Joint("parameter entry", CAST_I_TO_R)
    entered = ENTRY.record(parameters, JointCall(on, calls, runs))

Everything follows from the declaration of the collective: the labels, the adjoint of each operand (here the all-reduce
P -> I), forward mode, and second order, where the adjoints of the operands run one after another. A joint step adds
two things. The ranks agree on which operands were used: an operand that no rank used gets no cotangent, and where only
some ranks used it, the others count zero. And at first order an object, `Runs`, decides how the requests of all
operands run: `OneByOne` makes those of the declaration, and `parallel.data.buckets` sums them in few large buffers.

On the tape the outputs come first, and the step right after them. So a sweep reaches the step when the cotangents of
all outputs are complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from autograd.arrays.capture import Whole, recorded
from autograd.engine import events
from autograd.engine.events import listeners
from autograd.engine.leaves import Parameter
from autograd.engine.recording import Node, Recording, Step, arrays_of, options_of, parents_of
from autograd.engine.state import state
from autograd.engine.sweep import Sweep
from autograd.engine.tensor import TENSORS, Tensor, interiors, place_off_tape
from autograd.layouts.layout import Layout

from ..checks import modes, sanitizer
from ..declaration.call import Call
from ..declaration.collective import Collective
from ..mesh import Axis
from ..transports.probe import Probe, Sent
from ..transports.protocol import Communicator, Request

__all__ = ["Joint", "JointCall", "OneByOne", "Result", "Runs", "used_on_any"]


class Runs(Protocol):
    """The requests of a joint step at first order, on raw arrays.

    A sweep calls `begin` before its first step, unless it is recorded or returns cotangents, and `adjoint` at the step.
    """

    group: Communicator
    """The channel of the requests."""
    axes: tuple[str, ...]
    """Along which they are."""

    def forward(self, arrays: list[Any]) -> list[Any]:
        """The results of all operands."""

    def begin(self, sweep: Sweep, first: int, step: int) -> None:
        """Prepare for a sweep that reaches the outputs, at the places `first` to `step` - 1."""

    def adjoint(self, cotangents: list[Any], sweep: Sweep, step: int) -> Iterable[tuple[int, Any]]:
        """Give the index and the cotangent of each operand that some rank has used, in an order common to all ranks.

        `cotangents` are those of the outputs, None where none arrived. The list is emptied, so that its arrays can be
        owned by the leaves.
        """

    def by_rows(self, cotangents: list[Any], sweep: Sweep, step: int) -> list[tuple[int, Any]]:
        """The results of `adjoint` in a step that is captured, whose requests are calls that a replay repeats.

        What the ranks compare before is none of them.
        """

    def sent(self, group: Probe) -> None:
        """Make the requests of the adjoint on `group`, if every operand was used."""


@dataclass(slots=True)
class JointCall:
    """The settled parts of a joint step for given operands: axis, calls and layouts, and how its requests run."""

    on: Axis
    calls: list[Call]
    layouts: list[Layout]
    runs: Runs
    _described: tuple[list[Any], str] = field(default=([], ""), init=False)

    @property
    def axes(self) -> tuple[str, ...]:
        return self.on.names

    def describe(self, operands: Sequence[Tensor]) -> str:
        """The dtypes and shapes of the whole operands, as a text for the comparison between the ranks."""
        given = list(map(_form, operands))
        if given != self._described[0]:
            wholes = [Result.of(x, each).shape for x, each in zip(operands, self.calls, strict=True)]
            text = ";".join(f"{dtype}{list(shape)}" for (dtype, _), shape in zip(given, wholes, strict=True))
            self._described = given, text
        return self._described[1]


class _Output(Step):
    """An output of a joint step. Its cotangent stays in the sweep until the step takes it."""

    name = "entered parameter"

    @staticmethod
    def entered(node: Node, place: int) -> tuple[Any, Layout]:
        """The operand that enters at a place, and the layout that it has inside."""
        _, first, _, operands, call = options_of(node)
        return operands[place - first], call.layouts[place - first]

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, at: int) -> Any:
        of, first, places, operands, call = options_of(node)
        i = at - first
        place, x = places[i], operands[i]
        t = carried[place - start] if place >= start else None
        if t is None:
            if of.silent:
                return None
            t = np.zeros_like(x.array)
            t = Tensor(t, x.layout) if record else t
        return of.tangent(t, call.calls[i], call.layouts[i], record)


class Joint(Step):
    """A collective that is applied to several operands in one step of the tape; see the module.

    Parameters
    ----------
    name : str
        The name in plans, timelines and dry runs.
    of : Collective
        It is linear and takes part in no other way than by its declaration.
    """

    communicates = True
    enters = True
    makes_rows = True  # a captured step repeats its calls

    def __init__(self, name: str, of: Collective):
        self.name = name
        self.of = of

    def record(
        self, operands: Sequence[Tensor], call: JointCall, called: str = "", announced: bool = False
    ) -> list[Tensor]:
        """Apply the collective to the operands, record it, and return the results.

        `called` is what the program has called, for the comparison between the ranks.
        """
        recording, on, layouts = state.recording, call.on, call.layouts
        if not operands:
            return []
        if state.recorder is not None and not announced:
            state.recorder.read_all(operands)
        if listeners and not announced:
            with events.emitting("forward", self.name, self, operands, call):
                results = self.record(operands, call, called, True)
            events.emit("end", "forward", self.name, self, operands, results)
            return results
        checks = on.group.checks
        if checks is not None and checks.count_call() and modes.limit:
            self._compare(operands, call, called or self.name, recording is not None)
        arrays = list(map(_array, operands))
        if not self.of.silent:
            arrays = _forward(call.runs, *arrays)
        if recording is None:
            return [
                Tensor(y, out, None, place_off_tape(y, (x,)))
                for x, y, out in zip(operands, arrays, layouts, strict=True)
            ]
        all_leaves = _PARAMETERS.issuperset(map(type, operands)) and all(map(_requires_grad, operands))
        if all_leaves:
            places = [_LEAF] * len(operands)
            recording.hold_all(operands)
        else:
            places = [_place(x, recording) for x in operands]
            for x, place in zip(operands, places, strict=True):
                if place == _LEAF:
                    recording.hold(x)
        recording.communicates = recording.communicates or on.group.size > 1
        nodes, operands = recording.nodes, tuple(operands)
        first = len(nodes)
        step = first + len(places)
        output = (_OUTPUT, None, (), (), (self.of, first, places, operands, call), None, None)
        nodes.extend([output] * len(places))
        nodes.append((self, None, operands, places, (call, all_leaves), None, None))
        if on.group.size > 1:
            recording.on_sweep.append(partial(_begin, call.runs, first, step))
        return interiors(arrays, layouts, recording, first)

    def _compare(self, operands: Sequence[Tensor], call: JointCall, called: str, recorded: bool) -> None:
        on, said = call.on, "recorded" if recorded else "not recorded"
        if modes.watching:
            for x in operands:
                sanitizer.witness(self.name, x)
        axis, described = "*".join(on.names), call.describe(operands)
        on.group.agree(f"{called} (axis={axis!r} {len(operands)} parameters {described}) {said}")

    # -- sweeps ------------------------------------------------------------------------------------------------
    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        operands, places, (call, all_leaves) = arrays_of(node), parents_of(node), options_of(node)
        step = sweep.start + len(sweep.cts)
        cotangents = sweep.given(len(places))
        on, leaves_too = call.on, sweep.wanted is None
        if state.recorder is not None and not sweep.record:
            self._give_by_rows(cotangents, operands, places, call, sweep, step)
            return
        # Cotangents are removed from the list as they are used, because a leaf takes an array without a copy only if
        # nothing else refers to it.
        if sweep.record:
            self._give(self._recorded(cotangents, call, operands), operands, places, leaves_too, sweep)
        elif on.group.size > 1 or not self.of.silent:
            self._give(call.runs.adjoint(cotangents, sweep, step), operands, places, leaves_too, sweep)
        elif all_leaves and leaves_too:
            for x in reversed(operands):
                g = _second = cotangents.pop()  # `accumulate` expects two references from its callers, as in a sweep
                if g is not None:
                    x.accumulate(g, sweep)
        else:
            for x, place in zip(reversed(operands), reversed(places), strict=True):
                g = cotangents.pop()
                if g is not None:
                    if place >= 0:
                        sweep.add(place, g)
                    elif leaves_too and place == _LEAF:
                        sweep.give(x, g)

    def _give_by_rows(
        self, cotangents: list[Any], operands: Any, places: Any, call: JointCall, sweep: Sweep, step: int
    ) -> None:
        """The step in a sweep of a step that is captured, in which each gradient is a call."""
        is_sum = call.on.group.size > 1
        if is_sum:
            found = call.runs.by_rows(cotangents, sweep, step)
        else:
            found = [(i, g) for i, g in reversed([*enumerate(cotangents)]) if g is not None]
        for i, g in found:
            if places[i] >= 0:
                sweep.add(places[i], g)
            elif sweep.wanted is None and places[i] == _LEAF:
                state.recorder.give(operands[i], g, adopts=is_sum)

    @staticmethod
    def _give(found: Iterable[tuple[int, Any]], operands: Any, places: Any, leaves_too: bool, sweep: Sweep) -> None:
        for i, g in found:
            if places[i] >= 0:
                sweep.add(places[i], g)
            elif leaves_too and places[i] == _LEAF:
                operands[i].adopt(g, sweep)

    def _recorded(self, cotangents: list[Any], call: JointCall, operands: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The adjoints of a recorded sweep, as Tensors, one operand after another."""
        on = call.on
        announce_gradients(on, len(cotangents))
        used = used_on_any(cotangents, on.group)
        for i in reversed(range(len(used))):
            g = cotangents.pop()
            if used[i]:
                if g is None:
                    g = Result.of(operands[i], call.calls[i]).zeros()
                g = g if g.__class__ in TENSORS else Tensor(g, call.layouts[i].dual)
                yield i, self.of._adjoint(g, call.calls[i])

    def communication(self, node: Node) -> tuple[Sequence[str], Communicator, list[Sent], list[Sent]]:
        """For `Tape.plan`: the axes, the channel, and the messages of both directions if every operand is used."""
        operands, (call, _) = arrays_of(node), options_of(node)
        forward, backward = Probe(call.runs.group), Probe(call.runs.group)
        if call.on.group.size > 1:
            for x, each in zip(operands, call.calls, strict=True):
                self.of._forward(np.zeros(x.array.shape, x.array.dtype), each.but(group=forward))
            call.runs.sent(backward)
        return call.on.names, call.runs.group, forward.sent, backward.sent


def _forward(runs: Runs, *arrays: Any) -> list[Any]:
    """The results of all operands. Of a captured step it is one call."""
    if state.recorder is None:
        return runs.forward(list(arrays))
    found: list[Any] = recorded(_forward, Whole(runs), *arrays, changes="messages")
    return found


def _begin(runs: Runs, first: int, step: int, sweep: Sweep) -> None:
    """Call `Runs.begin` with a sweep of the recording, if it contains the step."""
    if sweep.start <= first and step < sweep.start + len(sweep.cts):
        runs.begin(sweep, first, step)


def announce_gradients(on: Axis, n: int) -> None:
    """Compare with the other ranks that a sweep is at the step of so many operands."""
    if on.group.checks is not None:
        on.group.checks.count_call()
        on.group.announce(lambda: f"gradients of {n} parameters (axis={'*'.join(on.names)!r}) in a backward sweep")


def used_on_any(cotangents: list[Any], group: Communicator) -> list[bool]:
    """Whether any rank has a cotangent, for each output."""
    used = [g is not None for g in cotangents]
    if group.size == 1:
        return used
    return [bool(n) for n in group.run(Request("all_reduce", np.array(used, np.float32)))]


class Result(NamedTuple):
    """The shape of a result, and an empty array of its dtype on its device."""

    shape: tuple[int, ...]
    like: Any

    @classmethod
    def of(cls, x: Tensor, call: Call) -> Result:
        """That of a collective that gives the whole of `x` if it is a part, or a value of the shape of `x`."""
        shape = list(x.array.shape)
        if call.extents:
            shape[call.dim] = sum(call.extents)
        return cls(tuple(shape), np.empty_like(x.array, shape=(0,)))

    def zeros(self) -> Any:
        return np.zeros_like(self.like, shape=self.shape)


class OneByOne:
    """The requests of the declaration: one per operand, started in reverse order, after one for the used flags.

    Parameters
    ----------
    of : Collective
    operands : sequence of Tensor
        Their shapes and dtypes are used.
    calls : sequence of Call
    on : Axis
    """

    def __init__(self, of: Collective, operands: Sequence[Tensor], calls: Sequence[Call], on: Axis):
        self.of, self.calls, self.on, self.group, self.axes = of, calls, on, on.group, on.names
        self._results = [Result.of(x, call) for x, call in zip(operands, calls, strict=True)]

    def forward(self, arrays: list[Any]) -> list[Any]:
        return [self.of._forward(x, call) for x, call in zip(arrays, self.calls, strict=True)]

    def begin(self, sweep: Sweep, first: int, step: int) -> None:
        """Nothing is prepared."""

    def adjoint(self, cotangents: list[Any], sweep: Sweep, step: int) -> Iterator[tuple[int, Any]]:
        announce_gradients(self.on, len(self.calls))
        yield from _started(self.on, self.of, self.calls, [each.zeros for each in self._results], cotangents)

    def by_rows(self, cotangents: list[Any], sweep: Sweep, step: int) -> list[tuple[int, Any]]:
        announce_gradients(self.on, len(self.calls))
        given = self.of, tuple(self.calls), tuple([(each.shape, each.like.dtype) for each in self._results])
        found: list[Any] = recorded(_summed, Whole(self.on), *given, *cotangents, changes="messages", name="enter")
        return found

    def sent(self, group: Probe) -> None:
        group.run(Request("all_reduce", np.zeros(len(self.calls), np.float32)))
        for result, call in zip(reversed(self._results), reversed(self.calls), strict=True):
            self.of._adjoint(np.zeros(result.shape, result.like.dtype), call.but(group=group))


def _started(
    on: Axis, of: Collective, calls: Sequence[Call], zeros: Sequence[Callable[[], Any]], cotangents: list[Any]
) -> Iterator[tuple[int, Any]]:
    """Start the adjoint of each operand that some rank has used, and yield its index and its cotangent."""
    used = used_on_any(cotangents, on.group)
    started: deque[Any] = deque()
    for i in reversed(range(len(used))):
        g = cotangents.pop()
        if used[i]:
            g = zeros[i]() if g is None else g
            started.append((i, of._adjoint(g, calls[i].but(begin=_start))))
    g = None
    while started:
        i, finish = started.popleft()
        yield i, finish()


def _summed(on: Axis, of: Collective, calls: Sequence[Call], forms: Any, *cotangents: Any) -> list[tuple[int, Any]]:
    """All requests, as one call of a captured step. Another entry of the same parameters has the same arguments."""
    zeros = [partial(np.zeros, shape, dtype) for shape, dtype in forms]
    return list(_started(on, of, calls, zeros, list(cotangents)))


def _start(collective: Collective, x: Any, call: Call) -> Any:
    """Start a collective on a raw array, in an adjoint. Return a function that waits for the result."""
    call = call.but(begin=None)
    if not collective.starts(call):
        y = collective(x, call)
        return lambda: y
    pending, finish = collective.start(x, call)
    return lambda: finish(pending.wait())


def _place(x: Tensor, recording: Recording) -> int:
    if x.tape is None:
        return _LEAF if x.requires_grad else -1
    return x.node if x.tape is recording else recording.enter(x)


_array, _requires_grad = attrgetter("array"), attrgetter("_requires_grad")
_form = attrgetter("array.dtype", "array.shape")
_PARAMETERS = frozenset((Parameter,))
_LEAF = -2
"""The place of a leaf. It has no place on the tape: the step gives it its cotangent directly."""
_OUTPUT = _Output()
