"""`capture`: record the operations of a step, or its launches on a GPU, and replay them without running the step."""

from __future__ import annotations

import copy
import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import get_ident
from types import MethodType
from typing import Any, NamedTuple, NoReturn, overload

import numpy as np

from ..arrays.capture import current_capture
from ..arrays.device import runtime_of
from ..arrays.runtime import Runtime
from ..engine.leaves import Leaf
from ..engine.pytree import Structure, flatten
from ..engine.recording import OUTSIDE, UNRECORDED
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import (
    SITES,
    UNTYPED,
    ArgumentError,
    CaptureError,
    OptionError,
    RingtapeError,
    TapeError,
    is_of_library,
    short,
    short_site,
    typed,
)
from .guards import MOST_BYTES, ORDINARY, Form, Guard, entry, in_other, is_heard, others_may_read
from .launch_graph import LaunchPlan, require_device
from .memory import Memory, Watch, is_large
from .proving import Around, proved_run
from .reach import Change, Reach
from .recorder import Made, OfForm, Recorder, Rehearsal, decides_otherwise, differ, difference
from .replay import Departed, compiled, in_order
from .tracing import TracedRun
from .verification import Comparison, Count, Counts, interval, told, unrecorded

__all__ = ["CapturedStep", "capture"]

_MOST_PLANS = 16
"""The records that are kept, and the calls that may be recorded one after another without a replay."""


_MOST_RUNS = 64
"""The runs in which arrays that constants depend on are looked for."""
_MOST_FIRSTS = 4
"""The recordings, with other decisions on data or another state each, that wait for a second one."""
_OTHER_DECISIONS = range(3, 19)
"""The departures of a form at which the step is recorded, too, so that later calls replay what it does then."""
_WORDS = object()
"""The last argument of a step whose last but one is a dictionary of keyword arguments."""


class CapturedStep:
    """A step that is recorded and replayed; see `capture`.

    Attributes
    ----------
    is_captured : bool
        Whether a call with the arguments of the last one would be a replay.
    replays : int
        The number of calls that were replayed.
    departures : int
        The number of calls that ran the step itself because a decision on data was another one than in the record.
    """

    def __init__(self, step: Callable[..., Any], warmup: int, verify: bool):
        functools.update_wrapper(self, step, updated=())
        self._step, self._warmup, self._options = step, warmup, (warmup, verify)
        self._thread: Any = None  # the values of `state` in the thread that this is of: the first that calls it
        self._others: dict[int, CapturedStep] = {}  # by thread
        self._of_objects: dict[int, tuple[Any, CapturedStep]] = {}  # of a method, the last ones
        self._plans: dict[Any, list[_Plan | LaunchPlan]] = {}
        self._first: dict[Any, list[_Run]] = {}  # by the form of the arguments: recordings that wait
        self._refused: dict[Any, tuple[Guard, str]] = {}  # by form: what a proof has found
        self._without_casts: set[Any] = set()  # forms of which no constant is a cast of an argument
        self._warm: set[Any] = set()  # of which a step on a device has run as it is
        self._runtime: Runtime | None = None  # of the device of a step without arguments on it
        self._last: _Plan | LaunchPlan | None = None
        self._made: list[tuple[Any, _Plan | LaunchPlan]] = []
        self._departed: dict[Any, int] = {}  # by form: the calls that ran the step itself
        self._counts = Counts(warmup, verify)
        self._on: Count | None = None  # that of the mesh of the last call that was no replay at once
        self._counted = 0  # the replays that are counted there
        self._count = 0  # of the recorded calls since a replay
        self._parts: dict[str, tuple[Any, ...]] = {}  # of the last one's form
        self._replays = 0  # at the last recorded call
        self._why = ""  # what a recorded call found to be other than the one before
        self._refusal = ""  # the error of the last one
        self._verified = 7 if verify else -1  # the number of replays before the next that is verified
        self._cost = float("inf")  # of a comparison, in replays
        self.replays = 0
        self.departures = 0

    @property
    def is_captured(self) -> bool:
        return self._last is not None

    def __repr__(self) -> str:
        how = f"captured, {self.replays} replays" if self.is_captured else f"not captured, {self._warmup} calls to go"
        return f"CapturedStep({getattr(self._step, '__name__', 'step')}, {how})"

    def __str__(self) -> str:
        found, plan = [repr(self)], self._last
        if isinstance(plan, _Plan):
            of = plan.program
            found.append(f"its rows are replayed one by one: {plan.why}" if of is None else str(of))
            if of is not None and of.misses:
                found.append(f"{of.misses} replays made the recorded calls one by one: leaves or optimizers "
                             "had other arrays or numbers than in the record")  # fmt: skip
        if self.departures:
            found.append(f"{self.departures} calls ran the step itself: a decision on data was another one")
        return "\n  ".join(found)

    def explain(self) -> str:
        """Each loop and call of the replay of the last call's form, as text; "" where there is none.

        ``print(step)`` tells how many there are, what stays a call of Python and why, and what it takes.
        """
        program = self._last.program if isinstance(self._last, _Plan) else None
        return "" if program is None else program.explain()

    def __call__(self, /, *args: Any, **words: Any) -> Any:
        if words:
            args = *args, words, _WORDS
        if self._thread is not state.__dict__:
            return self._in_thread(args)
        plan = self._last
        if plan is not None:
            if self.replays == self._verified:
                return self._verify(args)
            try:
                found = plan.enter(args)
            except Departed:
                return self._decided_otherwise(args, plan)
            except UNTYPED as error:
                self._count_error()
                _raise_typed(error)
            except RingtapeError:
                self._count_error()
                raise
            if found is not None:
                self.replays += 1
                return found[0] if plan.is_single else plan.structure.rebuild(found)
        return self._general(args)

    def _run(self, *args: Any) -> Any:
        """Run the step itself, of the arguments that `__call__` has made."""
        return self._step(*args[:-2], **args[-2]) if args and args[-1] is _WORDS else self._step(*args)

    def _replay(self, plan: _Plan | LaunchPlan, replay: Callable[[], list[Any] | None]) -> list[Any] | None:
        """The result of a replay of a plan, in a list; None if it does not fit, or finds another decision on data."""
        try:
            found = replay()
        except Departed:
            return None
        except UNTYPED as error:
            _raise_typed(error)
        if found is None:
            return None
        self._last, self.replays = plan, self.replays + 1
        return [plan.structure.rebuild(found)]

    def _decided_otherwise(self, args: tuple[Any, ...], departed: _Plan | LaunchPlan) -> Any:
        """A call whose decisions on data are not those of the last plan, and may be those of another one."""
        for _, plan in self._made if state.distribution.is_alone else ():
            if plan is not departed and (found := self._replay(plan, partial(plan.enter, args))) is not None:
                return found[0]
        return self._general(args, departed)

    def _in_thread(self, args: tuple[Any, ...]) -> Any:
        """The first call, or one in another thread, which has records of its own."""
        own = state.__dict__
        if self._thread is None:
            self._thread = own
        if self._thread is own:
            return self(*args)
        other = self._others.get(get_ident())
        if other is None or other._thread is not own:  # a thread that has ended may have had its number
            other = self._others[get_ident()] = CapturedStep(self._step, *self._options)
        return other(*args)

    def __get__(self, instance: Any, owner: Any = None) -> CapturedStep:
        """The captured step of an object whose class has this one as a method. Those of 16 objects are kept."""
        if instance is None:
            return self
        held = self._of_objects.get(id(instance))
        if held is None:
            if len(self._of_objects) >= _MOST_PLANS:
                del self._of_objects[next(iter(self._of_objects))]
            held = instance, CapturedStep(MethodType(self._step, instance), *self._options)
            self._of_objects[id(instance)] = held
        return held[1]

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedStep:
        return CapturedStep(copy.deepcopy(self._step, memo), *self._options)  # a record is of this step's objects

    def __reduce__(self) -> Any:
        return CapturedStep, (self._step, *self._options)

    def _verify(self, args: tuple[Any, ...]) -> Any:
        """Replay the step, run the step itself from the same state, and compare what both have left."""
        plan, n = self._last, self.replays
        if current_capture() is not None:
            return self._run(*args)
        if not state.distribution.is_alone:
            return self._on_ranks(args)
        self._verified = 2 * n + 1
        if not isinstance(plan, _Plan):
            return self(*args)
        made = self._compared(plan, lambda: plan.enter(args))
        if made is None or made.found is None:  # another form, or another decision on data: nothing has changed
            self._last, self._verified = None, n + 1
            return self._general(args)
        other = made.difference(self._run, args)
        self._cost = min(self._cost, made.cost)
        self._verified = n + interval(n + 1, self._cost)
        if other:
            self._refuse_other(plan, other)
        return made.result

    def _compared(self, plan: _Plan, replay: Callable[[], Any]) -> Comparison | None:
        """A replay that the step itself may follow; None if it departs."""
        try:
            made = Comparison(plan.guard, replay)
        except Departed:
            return None
        except UNTYPED as error:
            _raise_typed(error)
        self.replays += made.found is not None
        return made

    def _refuse_other(self, plan: _Plan, other: str) -> NoReturn:
        self._forget(plan)
        raise CaptureError(
            f"capture: replay {self.replays} of the step has left another value than the step itself, which has run "
            f"beside it from the same state: {other}\n  The step reads something that is not seen: see the "
            "contract in the help of `capture`. Replays since the last comparison may be wrong, too; the state is "
            "now that of the step itself\n  fix: give the value as an argument; or call the step itself"
        )

    # -- several ranks -----------------------------------------------------------------------------------------------
    def _count_calls(self) -> Count:
        """The count of the calls on this mesh. Replays since it was last asked are those of the mesh before."""
        if self._on is not None:
            self._on.calls += self.replays - self._counted
        self._counted = self.replays
        found = self._on = self._counts.of(state.distribution)
        return found

    def _aim(self, count: Count) -> None:
        """Let the call that is due be no replay at once."""
        self._verified = self.replays + count.due - count.calls - 1

    def _count_error(self) -> None:
        """Count a call whose replay has raised an error. Other ranks may have run the step itself, which raises it."""
        if not state.distribution.is_alone:
            self._counted -= 1
            self._verified -= 1

    def _on_ranks(self, args: tuple[Any, ...], departed: _Plan | LaunchPlan | None = None) -> Any:
        """A call on several ranks that was no replay at once."""
        count = self._count_calls()
        count.calls += 1
        try:
            if count.calls == count.due:
                return self._verify_on_ranks(args, count, departed)
            return self._otherwise(args, departed)
        finally:
            self._counted = self.replays
            self._aim(count)

    def _verify_on_ranks(
        self, args: tuple[Any, ...], count: Count, departed: _Plan | LaunchPlan | None
    ) -> Any:
        """The call that all ranks verify if each of them replays it. Else each does what it does at another call."""
        count.skip()
        plan: Any = None
        made = None
        if departed is None and state.recording is None and not is_heard():
            form = Form(args)
            plan = next((each for each in self._plans.get(form.key, ()) if each.holds()), None)
            if isinstance(plan, _Plan):
                self._last = plan
                made = self._compared(plan, lambda: plan.run(*form.arrays))
                departed = plan if made is None else None
        result = self._otherwise(args, departed) if made is None else plan.structure.rebuild(made.found)
        if not self._counts.axes:  # it sends nothing
            return result
        axes = self._counts.axes
        group = state.distribution.group(axes)
        if not all(told(group, made is not None)) or made is None:
            return result
        other = made.difference(self._run, args, axes)
        found = told(group, (other, made.cost))
        count.compared(max(cost for _, cost in found))
        others = [f"on rank {rank}, {text}" for rank, (text, _) in zip(group.ranks, found, strict=True) if text]
        if others:
            self._refuse_other(plan, "; ".join(others))
        return made.result

    def _forget(self, plan: _Plan) -> None:
        self._last = None
        for plans in self._plans.values():
            plans[:] = [each for each in plans if each is not plan]
        self._made = [(key, each) for key, each in self._made if each is not plan]

    def _general(self, args: tuple[Any, ...], departed: _Plan | LaunchPlan | None = None) -> Any:
        """A call that was no replay at once: its last plan fits no more, or finds another decision on data."""
        if current_capture() is not None:  # of another step, which calls this one
            return self._run(*args)
        if not state.distribution.is_alone:
            return self._on_ranks(args, departed)
        if self._on is not None:  # the calls before were on several ranks
            self._count_calls()
            self._on, self._verified = None, self.replays if self._options[1] else -1
        return self._otherwise(args, departed)

    def _otherwise(self, args: tuple[Any, ...], departed: _Plan | LaunchPlan | None) -> Any:
        """Replay another plan, run the step itself, or record it."""
        if state.recording is not None:
            raise TapeError(
                "capture: a captured step was called inside a tape's block, which would not record it\n  fix: put "
                "the tape and backward into the step"
            )
        self._counts.runs += 1
        if is_heard() or self._warmup > 0:
            self._warmup -= not is_heard()
            return unrecorded(self._run, args, self._counts)
        form = Form(args)
        for plan in sorted(self._plans.get(form.key, ()), key=lambda each: not each.fits()):
            if plan is not departed and plan.holds() and not plan.is_worn():
                self._last = plan
                if (found := self._replay(plan, partial(plan.run, *form.arrays))) is not None:
                    return found[0]
                departed = plan
        if departed is not None:
            return self._depart(args, form)
        if form.is_on_device or self._runtime is not None:
            return self._capture_launches(form)
        return self._record(args, form)

    def _depart(self, args: tuple[Any, ...], form: Form) -> Any:
        """Run the step itself, where no replay has found its decisions on data. Other ranks may go on replaying."""
        self.departures += 1
        if not state.distribution.is_alone:
            with Recorder(form.arrays, get_ident(), is_quiet=True):
                return self._run(*args)
        n = self._departed[form.key] = self._departed.get(form.key, 0) + 1
        if n not in _OTHER_DECISIONS or form.is_on_device:
            return self._run(*args)
        run = _Recorded(self._first.pop(form.key, []))
        try:
            return self._recorded(form, run)
        except CaptureError:  # then each such call runs the step
            return run.result if run.is_done else self._step_again(args, run)

    def _step_again(self, args: tuple[Any, ...], run: _Recorded) -> Any:
        """Run the step by itself, after a recorded run that did not come to its end."""
        if run.before is not None:
            run.before.give_back()
        return self._run(*args)

    def _capture_launches(self, form: Form) -> Any:
        """Run the step of a form as it is, or capture its work on the device and replay it."""
        runtime = require_device(form.leaves, self._runtime)
        self._count_recording(form)
        if form.key not in self._warm:  # kernels are compiled, and the tables of new arrays made
            self._warm.add(form.key)
            return self._run(*form.args)
        self._warm.remove(form.key)
        plan = LaunchPlan(form, self._run, self._roots(form, None), runtime)
        self._keep(form, plan)
        return plan.structure.rebuild(plan.replay())

    def _count_recording(self, form: Form) -> None:
        if self.replays > self._replays:
            self._count, self._replays = 0, self.replays
        if self._count >= _MOST_PLANS:
            if self._refusal:
                raise CaptureError(self._refusal)
            other, fix = form.advice(self._parts)
            if not other and (self._why or form.named_parts() == self._parts):
                fix = "make what differs the same in each call, or an argument of the step; write to an array in place"
            raise CaptureError(
                f"capture: {_MOST_PLANS} calls of the step were recorded without a replay, and this is another one: "
                f"{form}{self._why}{other}\n  fix: {fix}; or call the step itself"
            )
        self._last, self._parts = None, form.named_parts()
        self._count += 1

    def _keep(self, form: Form, plan: _Plan | LaunchPlan) -> None:
        self._plans.setdefault(form.key, []).append(plan)
        self._made.append((form.key, plan))
        if len(self._made) > _MOST_PLANS:
            old, dropped = self._made.pop(0)
            self._plans[old].remove(dropped)
        self._last = plan

    def _record(self, args: tuple[Any, ...], form: Form) -> Any:
        """Run the step, recorded. The second recording of a form makes a plan.

        Where it is refused on one process, the step has run once, as by itself.
        """
        run = _Recorded(self._first.pop(form.key, []))
        try:
            known = self._refused.get(form.key)
            if known is not None and known[0].holds():
                raise CaptureError(known[1])
            self._count_recording(form)
            try:
                found, self._refusal = self._recorded(form, run), ""
            except CaptureError as error:
                self._refusal = str(error)
                raise
            return found
        except CaptureError as error:
            if state.distribution.is_alone and self._runtime is None and not form.is_on_device:
                if not run.is_done:
                    self._step_again(args, run)
                error.extend("\n  The step itself has run in this call.")
            raise

    def _recorded(self, form: Form, of: _Recorded) -> Any:
        self._why = ""
        first = next((each for each in reversed(of.firsts) if each.guard.holds()), None)
        changed: set[str] = set()  # by the run before, in what it depends on
        if of.firsts and first is not of.firsts[-1]:
            last = of.firsts[-1]
            self._why = "".join(f"\n  {each}" for each in last.guard.reach.changes()[:3])
            changed = {change.path for change in last.changes}
        given = form.copied()
        roots = list(self._roots(form, first))
        reach = Reach(roots, None if first is None else first.guard.reach)
        recorder = self._recorder(form, given, reach)
        recorder.watch = None if first is None or others_may_read() else Watch(reach)  # others may write, too
        if not form.is_on_device and (state.distribution.is_alone or first is not None):
            # Another thread may write meanwhile to what this step only reads.
            changing = None if first is None or not others_may_read() else first.recorder.changing.values()
            of.before = Memory(reach) if changing is None else Memory.of(reach, changing)
        recorder.follow(reach.stateful)
        recorder.stateful = reach.stateful
        with recorder:
            result = self._run(*given.args)
        if recorder.watch is not None:
            recorder.watch.end()
        if not state.distribution.is_alone:
            self._counts.note_axes(recorder.axes())
        form.require_unwritten(given)
        if of.before is not None:
            of.before.require_no_draw()
        of.is_done, of.result = True, form.own(given, result)
        found, structure = flatten(result)
        result = of.result
        self._runtime = next(filter(None, (runtime_of(type(x.array)) for x in recorder.leaves.values())), None)
        if self._runtime is not None:  # only its leaves are on a device
            return result
        for change in reach.changes():
            if change.path in changed:
                _refuse(change)
        results = [_result_of(recorder, x) for x in found]
        changes = reach.changes()
        run = _Run(recorder, results, Guard(recorder, reach, is_left_other=bool(changes)), changes, form.held)
        if first is not None and state.distribution.is_alone:
            first = self._alike(of.firsts, recorder)
        firsts = [each for each in of.firsts[-_MOST_FIRSTS:] if each is not first]
        if firsts or first is None:
            self._first[form.key] = [*firsts, *([run] if first is None else [])]
        if first is None:
            recorder.forget()
            if len(self._first) > _MOST_PLANS:
                del self._first[next(iter(self._first))]
            return result
        around = None
        if of.before is not None:
            around = Around(of.before, of.before.anew(Reach(roots, of.before.reach)))
        try:
            if not self._is_repeated(form, first, run, around):
                return result
            program, why = None, "there is an array of a device among the arguments"
            if around is not None:
                run.guard.contents = self._contents(form, recorder, around)
                recorder.rows = in_order(recorder.rows, len(form.arrays))
            rows = compiled(recorder, results, len(form.arrays))
            if around is not None:
                before = self._plans.get(form.key, ())
                worn = [plan.program for plan in before if isinstance(plan, _Plan) and plan.is_worn()]
                program, why = proved_run(
                    self._run, form, given, recorder, results, found, rows, around,
                    [getattr(x, "array", x) for x, _ in run.guard.contents],
                    {key for each in worn if each is not None for key in each.exchanged()},
                )  # fmt: skip
        finally:
            if around is not None:
                around.after.give_back()
        plan = _Plan(form, run, structure, rows, program, why)
        plan.begin(self.replays, self._plans.get(form.key, ()))
        self._keep(form, plan)
        return result

    def _recorder(self, form: Form, given: Form, reach: Reach) -> Recorder:
        """A recorder of a run, which knows what the step can reach."""
        # The ranks compare the first runs, which are recorded at the same calls on all of them.
        is_quiet = self._counts.is_late and not state.distribution.is_alone
        recorder = Recorder(given.arrays, get_ident(), is_quiet)
        arrays = [x for x in reach.arrays.values() if x.__class__ is np.ndarray and x.size]
        recorder.outside = [x for x in arrays if x.flags.c_contiguous]
        recorder.reachable = {id(x.array): x for x in reach.leaves.values()}
        recorder.persistent = {*map(id, arrays)}
        recorder.may_cast = not form.is_on_device and form.key not in self._without_casts
        return recorder

    def _is_repeated(self, form: Form, first: _Run, run: _Run, around: Around | None) -> bool:
        """Whether two runs are the same calls, proved on other values; False if casts are to be left out first.

        Raises
        ------
        CaptureError
            They are not the same calls, or the proof has failed.
        """
        fault, is_proved = "", False
        try:
            is_proved = around is not None and self._prove(form, run.recorder, around)
            fault = difference(first.recorder, run.recorder, is_proved)
            if not fault and (other := differ(first.results, run.results)):
                fault = f"a result is {other}"
        except CaptureError as error:
            if not run.recorder.casts:
                if len(self._refused) >= _MOST_PLANS:
                    del self._refused[next(iter(self._refused))]
                self._refused[form.key] = run.guard, error.reason  # other data may not show it
                raise
        if run.recorder.casts and (fault or not is_proved):  # one was equal to an argument by chance: without them
            self._without_casts.add(form.key)
            return False
        if fault and is_proved and around is not None and self._depart_from_each_other(first, run, around):
            self._why = f"\n  {fault}"
            self._first.setdefault(form.key, []).extend((first, run))
            run.recorder.forget()
            return False
        if fault:
            raise CaptureError(
                f"capture: two runs of the step are not the same calls: {fault}\n  needed: a step whose operations, "
                "and constants, are the same in each call\n  fix: compute the value from arguments of the step, by "
                "operations of autograd; make constants before the step; or call the step itself"
                f"{_of_draws(run.recorder)}"
            )
        return True

    def _depart_from_each_other(self, first: _Run, run: _Run, around: Around) -> bool:
        """Whether replays of either run end at the arguments of the other one, as by the error of a check of values."""

        def departs(of: _Run, other: _Run) -> bool:
            around.before.give_back()
            arrays = [x for _, x in other.recorder.inputs]
            try:
                compiled(of.recorder, of.results, len(arrays))(*arrays)
            except (Departed, *UNTYPED) as error:
                return isinstance(error, Departed)
            return False

        return state.distribution.is_alone and departs(first, run) and departs(run, first)

    def _alike(self, firsts: Sequence[_Run], recorder: Recorder) -> _Run | None:
        """The last of some recordings with the calls of this one, or at least its decisions on data."""
        alike = [each for each in reversed(firsts)
                 if not decides_otherwise(each.recorder, recorder) and each.guard.holds()]  # fmt: skip
        if not alike:
            self._why = f"\n  {difference(firsts[-1].recorder, recorder)}"
            return None
        some = alike if len(alike) > 1 else []
        return next((each for each in some if not difference(each.recorder, recorder, True)), alike[0])

    def _prove(self, form: Form, recorder: Recorder, around: Around) -> bool:
        """Run the step again from the same state with other values of its arguments, and compare the calls.

        What differs has been computed from an argument by Python or NumPy, and a replay would take it for a constant.
        Some runs have values that are far from those of the recorded one: moved, far larger or smaller, with a NaN.
        Where the step does not take them, one run has values near to these.

        Returns
        -------
        bool
            Whether the calls are the same. The step may also refuse all values, or decide otherwise on data by a
            decision that replays make anew.

        Raises
        ------
        CaptureError
            A constant differs.
        """

        def is_same(seed: int, is_far: bool, scale: float = 1.0) -> bool:
            around.before.give_back()
            return self._is_same(form, form.other(seed, is_far, scale), recorder, is_far)

        proofs = [is_same(seed, True, scale) for seed, scale in enumerate((1.0, 32.0, 1 / 32, float("nan")))]
        return any(proofs) or is_same(0, is_far=False)

    def _is_same(self, form: Form, other: Form, recorder: Recorder, is_far: bool) -> bool:
        """Whether the step makes the same calls of other values; see `_prove`."""
        fault = self._fault(other, recorder)
        if fault is None or fault is Departed or (fault.__class__ is OfForm and is_far):  # a size may stay
            return False
        if fault:
            raise CaptureError(
                f"capture: with other values of its arguments, the step is not the same calls: {fault}\n  needed: a "
                "step whose operations, and constants, do not depend on the values of arguments\n  fix: compute the "
                "value from arguments of the step by operations of autograd, as ag.tensor(x) / 255 in the place of "
                f"ag.tensor(x / 255); or call the step itself{_of_draws(recorder)}"
            )
        return all(form.arrays[at].tobytes() != other.arrays[at].tobytes() for at in recorder.casts)

    def _fault(self, form: Form, recorder: Recorder) -> Any:
        """The first difference of a run with the arguments of a form, as text.

        None if the step refuses the values, as an index that is out of range; `Departed` if it decides otherwise.
        """
        again = (
            Recorder(form.arrays, get_ident()) if state.distribution.is_alone
            else Rehearsal(form.arrays, get_ident(), recorder)
        )  # fmt: skip
        again.outside, again.reachable, again.twins = recorder.outside, recorder.reachable, recorder.twins
        again.persistent, again.may_cast, again.like = recorder.persistent, recorder.may_cast, recorder.rows
        again.follow(recorder.stateful)
        try:
            with again, warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                self._run(*form.args)
        except (Exception, SystemExit):
            return None
        return Departed if decides_otherwise(recorder, again) else difference(recorder, again, may_be_new=True)

    def _contents(self, form: Form, recorder: Recorder, around: Around) -> list[tuple[Any, bytes]]:
        """The arrays of the program, and leaves, from which constants of the record are computed by Python or NumPy.

        They are found by runs in which the arrays hold other values, if no other thread may read them meanwhile. A
        replay compares them.

        Raises
        ------
        CaptureError
            One is too large to be compared at each call.
        """
        reach = around.before.reach
        places = [*reach.arrays.items(), *((path, x.array) for path, x in reach.leaves.items())]
        leaves = {id(x.array): x for x in reach.leaves.values()}
        arrays = [(path, x) for path, x in places if _may_hold_other(x)]
        others = [x for _, x in places if isinstance(x, np.ndarray) and not _may_hold_other(x) and _may_be_written(x)]

        def fault(on: Sequence[tuple[str, Any]], scale: float | None) -> Any:
            around.before.give_back()
            kept = [x.copy() for _, x in on]
            try:
                for i, (_, x) in enumerate(on):
                    in_other(x, i, scale)
                return self._fault(form.copied(), recorder)
            finally:
                for (_, x), own in zip(on, kept, strict=True):
                    x[...] = own

        trained = {at for at, x in leaves.items() if x._requires_grad}

        def may_refuse(x: Any) -> bool:
            return x.nbytes <= MOST_BYTES and id(x) not in trained

        found: list[tuple[str, Any]] = []
        far = [pair for pair in arrays if may_refuse(pair[1])]
        waiting, runs = deque((group, scale) for group, scale in ((arrays, None), (far, 32.0), (far, 0.0)) if group), 0
        while waiting and runs < _MOST_RUNS and not others_may_read():
            (group, scale), runs = waiting.popleft(), runs + 1
            why = fault(group, scale)
            is_other = isinstance(why, str) and why != ""
            if is_other or scale is None and why != "":  # it depends on one of them, or does not take the values
                half = len(group) // 2
                if half:
                    waiting += [(group[:half], scale), (group[half:], scale)]
                elif why.__class__ is str or why is None and may_refuse(group[0][1]):
                    found += [pair for pair in group if pair not in found]
        if large := next((path for path, x in found if x.nbytes > MOST_BYTES or id(x) in trained), ""):
            raise CaptureError(
                f"capture: the step computes a constant from {large} by NumPy or Python, and replays would compare its "
                f"values; needed: an array that is no parameter, of at most {MOST_BYTES} bytes\n"
                "  fix: compute the constant before the step; or by operations of autograd, as np.sum(ag.tensor(x))"
            )
        around.after.give_back()
        small = [x for x in others if 0 < x.nbytes <= MOST_BYTES]  # such as text, dates and records
        return [(leaves.get(id(x), x), x.tobytes()) for x in [*(x for _, x in found), *small]]

    def _roots(self, form: Form, first: _Run | None) -> Iterator[tuple[str, Any]]:
        """The objects in which the step may read state. The first run may have found some that no code names."""
        yield getattr(self._step, "__name__", "step"), self._step
        yield from (("an argument", x) for x in form.held)
        if first is not None:
            yield from ((f"a {type(x).__name__}", x) for x in first.recorder.modules.values())
            yield from ((x.name or "a leaf", x) for x in first.recorder.leaves.values())
            # What is changed is given back after proofs.
            yield from ((f"a {type(x).__name__}", x) for x in first.recorder.changing.values())


class _Recorded:
    """A recorded run, while it runs.

    Attributes
    ----------
    firsts : list of _Run
        The recordings of its form that have no second one, each with other decisions on data.
    before : Memory or None
        Of what the step can reach, before it.
    is_done : bool
        Whether the step has come to its end.
    result : object
        That of the step, then.
    """

    def __init__(self, firsts: list[_Run]):
        self.firsts = firsts
        self.before: Memory | None = None
        self.is_done = False
        self.result: Any = None


class _Run(NamedTuple):
    """A recorded run: its rows, its results, and what it depends on."""

    recorder: Recorder
    results: list[Any]
    guard: Guard
    changes: list[Change]  # of what the guard compares
    held: list[Any]  # what the key of its form names


class _Plan:
    """A replay, and the calls that it fits.

    Attributes
    ----------
    run : callable
        Of the arrays of the arguments.
    enter : callable
        Of the arguments: `run`, or None where it does not fit.
    program : TracedRun or None
        The step as a program of NumPy's calls, or of machine code.
    why : str
        There is no program, so that the rows are replayed as they are.
    start : int
        The number of replays before.
    """

    start = 0

    def __init__(self, form: Form, of: _Run, structure: Structure, rows: Any, program: TracedRun | None, why: str):
        again = [_refuse(change) if change.again is None else change.again for change in of.changes]
        self.guard, self.structure, self.held = of.guard, structure, of.held
        self.is_single = structure.kind is None
        self.run = rows if program is None else program.with_exact(rows)
        self.program, self.why = program, why
        for row in of.recorder.rows:
            row.value = row.value if row.expected else None  # the recorded values
        if again:
            self.run = _followed(self.run, again)
        self.enter = entry(form, of.guard, self.run, program, again)

    def begin(self, replays: int, others: Sequence[_Plan | LaunchPlan]) -> None:
        """Note the number of replays, and set the program's patience by what has become of the plan before."""
        self.start = replays
        last = others[-1] if others else None
        if self.program is not None and isinstance(last, _Plan) and last.program is not None and last.is_worn():
            was_of_use = replays - last.start > 2 * last.program.misses
            # else a leaf may get another array in each call: the step is recorded ever more seldom
            self.program.patience = 8 if was_of_use else 8 * last.program.patience

    def holds(self) -> bool:
        """Whether a replay would be the step, for arguments of its form."""
        return self.guard.holds()

    def fits(self) -> bool:
        """Whether the replay would be the program, not the rows one by one."""
        return self.program is not None and self.program.fits()

    def is_worn(self) -> bool:
        """Whether the step may better be recorded anew, with the arrays that its leaves have now."""
        return self.program is not None and self.program.is_worn()


def _may_hold_other(x: Any) -> bool:
    is_ordinary = x.__class__ is np.ndarray and x.dtype.kind in ORDINARY
    return is_ordinary and bool(x.size) and x.flags.writeable and not is_large(x)


def _of_draws(recorder: Recorder) -> str:
    """The fix for a value that NumPy may have computed from a random draw, which is an array; "" if there is none."""
    has_draws = any(getattr(row.function, "__module__", "").startswith("autograd.random.") for row in recorder.rows)
    return "\n  or:  ag.tensor(draw), before you compute with what autograd.random has drawn" if has_draws else ""


def _may_be_written(x: Any) -> bool:
    """Whether an array, or one whose memory it shows, is writeable."""
    return bool(x.flags.writeable) or (isinstance(x.base, np.ndarray) and _may_be_written(x.base))


def _refuse(change: Change) -> NoReturn:
    raise CaptureError(
        f"capture: the step changes what it depends on: {change}; a replay would not repeat that\n  fix: read it after "
        "the call; return what the step computes, and keep, count or append that outside; or call the step itself"
    )


def _raise_typed(error: Exception) -> NoReturn:
    """Raise the typed error for a builtin one that a replay has raised after it has changed something.

    The step itself would raise it there, too, and has changed the same up to there.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != "<captured step>":
        trace = trace.tb_next
    if trace is None or isinstance(error, RingtapeError) or not is_of_library(error):
        raise error
    site = trace.tb_frame.f_globals[SITES].get(trace.tb_lineno)
    raise typed(error, f"{error}, in a replay{f'{chr(10)}  at {short_site(*site)}' if site else ''}") from error


def _followed(run: Callable[..., Any], again: Sequence[Callable[[], Any]]) -> Callable[..., Any]:
    """A replay that also makes the changes of the recorded run, which are the same in each."""

    def replay(*arrays: Any) -> Any:
        found = run(*arrays)
        for change in again:
            change()
        return found

    return replay


def _result_of(recorder: Recorder, x: Any) -> Any:
    """A result as a slot, or a constant."""
    is_tensor = x.__class__ in TENSORS
    if isinstance(x, Leaf) and (recorder.slot_of(x.array) is None or id(x) in recorder.leaves):
        return x
    found = array = x.array if is_tensor else x
    if array.__class__ is not np.bool_ and (is_tensor or isinstance(x, np.ndarray | np.generic)):  # decisions are rows
        found = recorder.slot_of(array)
        if found is None:
            raise CaptureError(
                f"capture: the step returns {short(x)}, which is neither an argument nor the result of an operation of "
                "the step\n  fix: compute it by operations of autograd, or of autograd.numpy: np.subtract(p, "
                "np.multiply(lr, g)), or ag.tensor(p) - lr * g, in the place of p - lr * g"
            )
    if not is_tensor:
        return found
    place = UNRECORDED if x.tape is not None or x.node == UNRECORDED else OUTSIDE
    return Made(Tensor, (found, x.layout, None, place))


@overload
def capture(step: Callable[..., Any], *, warmup: int = 2, verify: bool = True) -> CapturedStep: ...
@overload
def capture(*, warmup: int = 2, verify: bool = True) -> Callable[[Callable[..., Any]], CapturedStep]: ...
def capture(step: Any = None, *, warmup: int = 2, verify: bool = True) -> Any:
    """Return a function that records the operations of `step`, and from then on repeats them without running `step`.

    The first `warmup` calls run `step` as it is. The next two run it and record its operations: each call of a function
    on arrays, forward, backward and in sums of cotangents, each step of an optimizer, each key of a random draw. The
    second of them runs it again from the same state, with other values of its arguments, so that what is computed from
    them outside of operations shows; on several ranks this run sends nothing. If all recordings are the same calls,
    later calls make these calls, with the same bits and without Tensors, layouts, tapes and the Python of the step.

    Parameters
    ----------
    step : callable, optional
        A training step or another function. Its arguments, and its results, are Tensors, arrays, numbers and other
        objects, in nested tuples, lists and dictionaries. Without it a decorator is returned:
        ``@ag.capture(warmup=0)``.
    warmup : int
        Calls before the first recording, in which an optimizer makes its state.
    verify : bool
        Whether the 8th, 16th and 32nd replay, and later ones as rarely as their cost needs (about one in 600 of the
        time), are compared with the step itself, which runs beside it from the same state. On several ranks these are
        calls at which all ranks replay.

    Returns
    -------
    CapturedStep
        Called as `step`. A Tensor that it returns has no tape.

    Raises
    ------
    CaptureError
        At a call that records: a value became plain data (``float(x)``, ``x.numpy()``, ``print(x)``), which a replay
        could not repeat; an operation has a boolean index; data of a leaf, a gradient, or a buffer was
        assigned, other than by batch norm; NumPy wrote to an array of the program, to a gradient or to an argument; the
        step counts, or keeps something that it reads; it draws random numbers of NumPy or Python, or can reach an
        iterator; or a nonblocking communication, or a primitive with a jvp alone
        ran. At the second recording: it is not the same calls, because a constant was made anew in the
        step (by NumPy, or from numbers), or a Python decision was another one. The message names the line. After 16
        recorded calls without a replay. At a replay that is compared: it has left other bits than the step itself, so
        the step reads something that is not seen. On several ranks, at a run while others may replay: it asks them for
        values. On one process the step has run once in a call that is refused, as by itself.
    TapeError
        It is called inside a tape's block.

    Notes
    -----
    Guarded, at each call: the nesting of the arguments; of arrays and Tensors the type, shape, dtype, strides and
    layout, and which of them are one array; numbers, strings and other objects by their value or identity; the mesh,
    `no_grad`; and whatever the step can reach before it runs: closures, the globals that its code and that of the
    functions it calls name, defaults, `self`, modules, attributes of plain objects and of their classes, containers at
    any depth (`reach.py` has the rules). There plain data counts by value, and objects, such as parameters and
    optimizers, by identity. Another call is recorded anew, twice. Where something hears of operations (`events`, a
    recorder, anomaly detection) the step itself runs. Values of arrays are read anew at each call: those of arguments,
    parameters, gradients, of the state and the numbers of an optimizer (rates and schedules too), and of arrays that
    were made before the step. An attribute, a mode or ``requires_grad`` that the step leaves other than it found it is
    set by replays, too.

    Decisions on data that functions of autograd make, such as whether a label is ignored, are made anew; where one has
    another result, the step itself runs. So are checks of values, such as the range of labels: a replay raises the
    error of the step.

    Not seen, and so the caller's to avoid: a Python decision on data that is no Tensor, such as ``assert x.max() < 3``
    of an array, unless other values show it; what installed packages, files, environment variables and clocks hold;
    and output, such as printing. The comparison of replays with the
    step itself finds what changes a result.

    Each thread has records of its own. `capture` may decorate a method: each object has records of its own, and those
    of 16 objects are kept. A copy of a captured step captures anew.

    `clip_grad_norm_` and `MasterWeights.step` return a Tensor inside a captured step.

    A step whose arrays are on a GPU is captured as its launches: after `warmup` and one more call
    the step runs once more to give the device its work, and a replay is one launch, a copy of each argument and a copy
    of each result. Gradients are the same arrays at each call. The guards are the same; a parameter, or the state of an
    optimizer, with another array is captured anew. There is one rank, and random draws and running averages are
    refused. Not seen, besides: a gradient from before the call, to which a step that does not remove gradients would
    add.

    With the extra ``fast`` one compiled function makes most calls of a small network, with the same bits. Errors of
    floating point are then reported once for many calls, underflow and those in loops of Numba not at all; under
    ``numpy.errstate(over="raise")`` the step itself runs and raises.

    All ranks of a mesh call the step alike, and record it at the same calls. A replay makes the same requests in the
    same order: collectives, the buckets of `DataParallel`, which start where their last gradient is written, the
    gathers of ZeRO. What the ranks compare besides is compared in the first runs only: a rank whose call is
    no replay later, as that of a shorter batch, sends what the others send in theirs.

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
    if step is not None and not callable(step):
        raise ArgumentError(f"capture: {step!r} was given; needed: a function")
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        raise OptionError(f"capture: warmup={warmup!r} was given; needed: a number of calls")
    if not isinstance(verify, bool):
        raise OptionError(f"capture: verify={verify!r} was given; needed: True or False")
    if step is None:
        return functools.partial(capture, warmup=warmup, verify=verify)
    return CapturedStep(step, warmup, verify)
