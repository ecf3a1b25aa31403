"""A recorder of times: the records that it makes have names, nesting and times, and nothing else.

Timelines read them. A record with all facts (`recorder.Recorder`) costs more than ten times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .record import OperationRecord

__all__ = ["TimesRecorder"]


class TimesRecorder:
    """A listener (`engine.events`) that makes a record of each operation of its thread. It keeps no array.

    Parameters
    ----------
    clock : callable
        Returns the time in nanoseconds.

    Attributes
    ----------
    records : list of OperationRecord
        They have `id`, `direction`, `name`, `cause`, `begin_ns` and `end_ns`, which is 0 for an operation that has not
        ended or has raised.
    elements : int
        The number of elements of the results of all operations of forward so far.

    Examples
    --------
    >>> import time, autograd as ag
    >>> from autograd.records.times import TimesRecorder
    >>> recorder = TimesRecorder(time.perf_counter_ns)
    >>> with ag.events.listening(recorder):
    ...     y = ag.tensor([1.0, 2.0]) * 3.0
    >>> [(record.name, record.cause, record.begin_ns < record.end_ns) for record in recorder.records], recorder.elements
    ([('multiply', None, True)], 2)
    """

    def __init__(self, clock: Callable[[], int]):
        self.records: list[OperationRecord] = []
        self.elements = 0
        self._clock = clock
        self._open: list[OperationRecord] = []

    @property
    def current(self) -> OperationRecord | None:
        """The record of the innermost operation that runs."""
        return self._open[-1] if self._open else None

    def __call__(self, phase: str, direction: str, name: str) -> None:
        """Hear the begin or the end of an operation or a named part."""
        running = self._open
        if phase == "begin":
            record = OperationRecord(len(self.records), direction, name)
            if running:
                record.cause = running[-1].id
            self.records.append(record)
            running.append(record)
            record.begin_ns = self._clock()
            return
        end = self._clock()
        while running:  # those that an error ended have no end event
            record = running.pop()
            if record.name == name and record.direction == direction:
                record.end_ns = end
                return

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        """Hear an event with its facts, of which the size of a result is counted."""
        self(phase, direction, name)
        if phase == "end" and direction == "forward" and not getattr(facts[0], "enters", False):
            result = facts[2]
            for y in result if isinstance(result, tuple | list) else (result,):
                self.elements += int(getattr(getattr(y, "array", y), "size", 0))
