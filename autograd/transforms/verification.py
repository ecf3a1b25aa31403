"""Verification in flight: the step itself runs beside a replay from the same state, and both must leave the same.

On several ranks one of them may replay at a call at which another one runs the step itself. But all call the step
alike. So they count calls, not replays: at a call that is due each rank does what it does at any other call, and tells
the ranks with which the step communicates whether that was a replay. If it was one on all of them, the step itself runs
on all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

from ..engine.distribution import Group
from ..engine.events import listening, listening_to_spans
from ..engine.pytree import flatten
from ..engine.state import state
from .guards import Guard
from .memory import Beside, Left, Memory
from .recorder import axes_of_copies

__all__ = ["Comparison", "Counts", "interval", "told", "unrecorded"]

_FIRST = 8
_REPLAYS = 600
"""From the 32nd replay on comparisons take about as much time as one replay in so many."""
_NEVER = 1 << 62


def interval(n: int, cost: float) -> int:
    """The number of replays from the comparison of the n-th to the next, where one costs as much as `cost` replays."""
    return n if n < 32 else max(min(n, 1000), math.ceil(_REPLAYS * cost))


class Comparison:
    """A replay, and the step itself from the same state.

    Parameters
    ----------
    guard : Guard
        Of the replay.
    replay : callable

    Attributes
    ----------
    found, result : object
        What the replay has returned, and the step itself, whose gradients and results the program may write to.
    """

    def __init__(self, guard: Guard, replay: Callable[[], Any]):
        start = perf_counter()
        self.result: Any = None
        self._reach = guard.reach
        self._before = Memory(self._reach) if guard.is_left_other else Memory.of(self._reach, guard.changing)
        ready = perf_counter()
        self.found = replay()
        self._of_replay, self._seconds = perf_counter() - ready, ready - start

    @property
    def cost(self) -> float:
        """The time for it besides the replay, in replays."""
        return self._seconds / max(self._of_replay, 1e-9)

    def difference(self, step: Callable[..., Any], args: tuple[Any, ...], together: Sequence[str] = ()) -> str:
        """Run the step. Return the path of the first value that it has left other than the replay; "" if none is.

        All ranks along the axes `together` call it.
        """
        start = perf_counter()
        left = Left(self._reach, self.found)
        self._before.give_back()
        with Beside(together):
            self.result = step(*args)
        other = left.difference(flatten(self.result)[0])
        self._seconds += perf_counter() - start
        return other


class Count:
    """The calls of a step on one mesh, and the next that is verified.

    Attributes
    ----------
    calls, due : int
    """

    def __init__(self, before: int):
        self.calls, self._before, self.due = 0, before, before + _FIRST
        self._cost, self._skipped = math.inf, 0

    def skip(self) -> None:
        """Some rank does not replay at this call. Others are due until the ranks meet."""
        self.due = self.calls + min(1 << min(self._skipped, 10), 1000)
        self._skipped += 1

    def compared(self, cost: float) -> None:
        """The ranks have compared a replay at this call, which has cost as much as so many replays."""
        self._cost, self._skipped = min(self._cost, cost), 0
        self.due = self.calls + interval(self.calls - self._before, self._cost)


class Counts:
    """The calls of a step on several ranks, with keywords and without, by mesh.

    Parameters
    ----------
    warmup : int
    verify : bool

    Attributes
    ----------
    runs : int
        The calls that were no replays at once.
    axes : tuple of str
        Along which it communicates, as far as its runs on this rank tell.
    is_known : bool
        Whether it has run so that this can be told.
    """

    def __init__(self, warmup: int, verify: bool):
        self.runs = 0
        self.axes: tuple[str, ...] = ()
        self.is_known = False
        self.warmup, self._before, self._verify = warmup, warmup + 2, verify
        self._of: WeakKeyDictionary[Any, Count] = WeakKeyDictionary()

    @property
    def is_late(self) -> bool:
        """Whether other ranks may replay at this call, which compare nothing with this one."""
        return self.runs > self._before

    def of(self, mesh: Any) -> Count:
        """The count of a mesh."""
        found = self._of.get(mesh)
        if found is None:
            found = self._of[mesh] = Count(self._before if self._verify else _NEVER)
        return found

    def note_axes(self, axes: Container[str]) -> None:
        """A run communicates along these axes."""
        grid = state.grid
        assert grid is not None
        names = [name for name, size in zip(grid.names, grid.sizes, strict=True) if size > 1]
        self.axes = tuple(name for name in names if name in axes or name in self.axes)
        self.is_known = True


def told(group: Group, mine: Any) -> list[Any]:
    """The answers of all ranks of a group about a call that is verified, of which this one is `mine`."""
    return [json.loads(each) for each in group.exchange(json.dumps(mine).encode(), "verification of a captured step")]


class _Axes:
    """A listener that notes the axes of communications."""

    whole = True  # it takes operations as they are

    def __init__(self) -> None:
        self.found: set[str] = set()

    def span(self, edge: str, name: str, rows: int) -> None:
        """Nothing: where something hears of spans, the updates of optimizers are told."""

    def __call__(self, phase: str, direction: str, name: str) -> None:
        pass

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        if direction == "update":
            self.found.update(axes_of_copies(facts[:1]))
        elif direction == "forward" and phase == "begin":
            self.found.update(getattr(facts[2], "axes", ()))


def unrecorded(step: Callable[..., Any], args: tuple[Any, ...], counts: Counts) -> Any:
    """Run a step as it is, while other ranks may record or replay it. Note its axes if no recording has."""
    if state.distribution.is_alone or counts.runs <= counts.warmup:  # the other ranks run it, too
        return step(*args)
    axes = _Axes()
    with ExitStack() as blocks:
        blocks.enter_context(Beside(is_quiet=counts.is_late))
        if not counts.is_known:
            blocks.enter_context(listening(axes))
            blocks.enter_context(listening_to_spans(axes.span))
        result = step(*args)
    if not counts.is_known:
        counts.note_axes(axes.found)
    return result
