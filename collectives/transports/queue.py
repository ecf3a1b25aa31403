"""Algorithms on one channel, which run one after the other in the order in which they were started.

No thread runs them: an algorithm makes progress when it, or a later one of its queue, is tested or waited for.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .protocol import Pending
from .steps import Steps, Whole

__all__ = ["Queue"]


class Queue:
    """The algorithms on one channel that have been started and are not done."""

    def __init__(self) -> None:
        self.jobs: deque[_Job] = deque()
        self.is_running = False  # a job waits or is tested, and calls that are handed over then only join the queue

    def run(self, steps: Steps[Any]) -> Any:
        """Run an algorithm to its end, after those that were started before it."""
        return self.start(steps, in_background=False).finish()

    def start(self, steps: Steps[Any], in_background: bool = True) -> _Job:
        """Add an algorithm to the queue. In the background, no step of it blocks."""
        job = _Job(self, steps, in_background)
        self.jobs.append(job)
        return job

    def drain(self) -> None:
        """Finish all started algorithms."""
        while self.jobs:
            self.jobs[0].finish()


class _Job:
    """A started algorithm. It runs when those before it in the queue are done."""

    def __init__(self, queue: Queue, steps: Steps[Any], in_background: bool):
        self._queue = queue
        self._in_background = in_background
        self._steps = steps
        self._at: Pending[Any] | None = None
        self._is_done = False
        self._result: Any = None

    def _step(self) -> None:
        try:
            if self._at is not None:
                self._at.wait()  # some transports copy the data only in wait
            self._at = next(self._steps)
            if self._in_background and isinstance(self._at, Whole):
                self._at.start()
        except StopIteration as stop:
            self._is_done, self._result, self._at = True, stop.value, None
            self._queue.jobs.popleft()
        except BaseException:
            self._queue.jobs.popleft()
            raise

    def test(self) -> bool:
        """Make progress without waiting; returns whether the algorithm is done."""
        jobs, queue = self._queue.jobs, self._queue
        if queue.is_running:
            return self._is_done
        queue.is_running = True
        try:
            while not self._is_done:
                first = jobs[0]
                if first._at is not None and not first._at.test():
                    return False
                first._step()
            return True
        finally:
            queue.is_running = False

    def finish(self) -> Any:
        """Wait for the result."""
        jobs, queue = self._queue.jobs, self._queue
        queue.is_running = True
        try:
            while not self._is_done:
                jobs[0]._step()
        finally:
            queue.is_running = False
        return self._result
