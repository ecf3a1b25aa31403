"""Orderly shutdown of a world, and detection of ranks that exited early.

A rank whose script ends, or that closes the world, enters a nonblocking barrier on the control channel. Ranks may end
minutes apart, so an open barrier is no error. But after a moment the rank tells the others why it has left, how many
collective calls it has made on each channel, and how many messages it has sent to and received from each rank (a
`Departure`). A rank that waits for a call or a message that will never come then reports it; see `monitor`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from .activity import Activity, Departure
from .control import Control, Test

__all__ = ["Shutdown"]

_GRACE_S = 0.3  # ranks that end at the same time differ by less; departures are told after it
_TAG = 1


class Shutdown:
    """How one rank of a world leaves it, and what it hears of ranks that have left.

    Parameters
    ----------
    control : Control
        The control channel.
    activity : Activity
        What this rank does; `hear` fills in its `departed`.
    """

    def __init__(self, control: Control, activity: Activity):
        self._control = control
        self._activity = activity
        self._told: list[Test] | None = None

    def hear(self) -> None:
        """Receive the departures that have arrived."""
        while (message := self._control.receive(_TAG)) is not None:
            self._activity.hear(Departure(*message[1]))

    def tell(self, why: str, has_failed: bool) -> None:
        """Tell all other ranks that this one makes no further calls; only the first time counts."""
        if self._told is not None:
            return
        self._told = []
        for rank in range(self._control.size):
            if rank != self._control.rank:
                departure = self._activity.departure(rank, why, has_failed)
                # Synchronous: complete means received, so that none is under way when the channel is freed.
                self._told.append(self._control.send(rank, _TAG, list(departure), is_synchronous=True))

    def leave(self, why: str, advance: Callable[[], bool]) -> Iterator[None]:
        """Wait until all ranks leave. A generator: every step makes progress, and the caller pauses between steps.

        Parameters
        ----------
        why : str
            What the other ranks are told if one of them is late.
        advance : callable
            Makes progress on everything else; returns whether no message of this rank is under way on the channel.
        """
        yield from self._barrier(why, advance)
        # All departures have been sent by now. They have been received once all ranks are in the second barrier.
        yield from self._barrier(None, advance)

    def _barrier(self, why: str | None, advance: Callable[[], bool]) -> Iterator[None]:
        start = time.monotonic()
        while not self._is_quiet(advance):  # what a rank has said is received before it enters a barrier
            yield
        is_complete = self._control.barrier()
        while True:
            is_quiet = self._is_quiet(advance)
            if is_complete() and is_quiet:
                return
            if why is not None and time.monotonic() - start > _GRACE_S:
                self.tell(why, has_failed=False)
            yield

    def _is_quiet(self, advance: Callable[[], bool]) -> bool:
        self.hear()
        return advance() and self._are_told()

    def _are_told(self) -> bool:
        if self._told:
            self._told = [test for test in self._told if not test()]
        return not self._told
