"""Orderly shutdown of a world, and detection of ranks that exited early.

A rank whose script ends, or that closes the world, enters a nonblocking barrier on the control channel. Ranks may end
minutes apart, so an incomplete barrier is no error. After a moment the rank sends a `Departure` to the others: why it
has left, how many collective calls it has made on each channel, and how many messages it has sent to and received from
each rank. A rank that waits for a call or a message that will never be made then reports it; see `monitor`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from .activity import Activity, Departure
from .control import Control, Test

__all__ = ["Shutdown"]

_GRACE_S = 0.3  # departures are sent after it; ranks that end together differ by less
_TAG = 1


class Shutdown:
    """Makes one rank leave its world, and receives the departures of other ranks.

    Parameters
    ----------
    control : Control
        The control channel.
    activity : Activity
        The state of this rank; `receive` adds to its `departed`.
    """

    def __init__(self, control: Control, activity: Activity):
        self._control = control
        self._activity = activity
        self._departures: list[Test] | None = None

    def receive(self) -> None:
        """Receive the departures that have arrived."""
        while (message := self._control.receive(_TAG)) is not None:
            self._activity.add_departure(Departure(*message[1]))

    def send_departures(self, why: str, has_failed: bool) -> None:
        """Send all other ranks the departure of this one. Only the first call has an effect."""
        if self._departures is not None:
            return
        self._departures = []
        for rank in range(self._control.size):
            if rank != self._control.rank:
                departure = self._activity.departure(rank, why, has_failed)
                # A synchronous send is complete when it is received, so none is in transit when the channel is freed.
                self._departures.append(self._control.send(rank, _TAG, list(departure), is_synchronous=True))

    def leave(self, why: str, advance: Callable[[], bool]) -> Iterator[None]:
        """Wait until all ranks leave. A generator: every step makes progress, and the caller pauses between steps.

        Parameters
        ----------
        why : str
            The reason that is sent to the other ranks if one of them is late.
        advance : callable
            Makes progress on all other work; returns whether this rank has no incomplete send on the channel.
        """
        yield from self._barrier(why, advance)
        # All departures have been sent now. They have been received when all ranks are in the second barrier.
        yield from self._barrier(None, advance)

    def _barrier(self, why: str | None, advance: Callable[[], bool]) -> Iterator[None]:
        start = time.monotonic()
        while not self._is_quiet(advance):  # a rank's messages are received before it enters a barrier
            yield
        is_complete = self._control.barrier()
        while True:
            is_quiet = self._is_quiet(advance)
            if is_complete() and is_quiet:
                return
            if why is not None and time.monotonic() - start > _GRACE_S:
                self.send_departures(why, has_failed=False)
            yield

    def _is_quiet(self, advance: Callable[[], bool]) -> bool:
        self.receive()
        return advance() and self._have_sent()

    def _have_sent(self) -> bool:
        if self._departures:
            self._departures = [test for test in self._departures if not test()]
        return not self._departures
