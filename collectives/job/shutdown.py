"""Orderly shutdown of a world, and detection of ranks that exited early.

A rank whose script ends, or that closes the world, enters a nonblocking barrier on the control channel. Ranks may end
minutes apart, so an incomplete barrier is no error. A rank that waits for a call or a message of a rank that has left
is found by deadlock detection, whose collector sends it the `Departure`: why the rank has left, how many collective
calls it has made on each channel, and how many messages it has sent to and received from the waiting rank. So leaving
costs no messages besides the barriers. Only a rank that has failed under the policy ``raise`` sends its departure to
all others itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .activity import Activity, Departure
from .control import Control, Test

__all__ = ["Shutdown"]

_TAG = 1


class Shutdown:
    """Makes one rank leave its world, and receives the departures of other ranks.

    Parameters
    ----------
    control : Control
        The control channel.
    activity : Activity
        The state of this rank; `receive` adds to its `departed`.
    lasting : Control, optional
        The channel of departures, if `control` may end before they arrive.
    """

    def __init__(self, control: Control, activity: Activity, lasting: Control | None = None):
        self._control = control
        self._lasting = lasting or control
        self._activity = activity
        self._departures: list[Test] | None = None

    def receive(self) -> None:
        """Receive the departures that have arrived."""
        while (message := self._lasting.receive(_TAG)) is not None:
            self._activity.add_departure(Departure(*message[1]))

    def send_departures(self, why: str) -> None:
        """Send all other ranks the departure of this one, which has failed. Only the first call has an effect."""
        if self._departures is not None:
            return
        self._departures = []
        for rank in self._control.ranks:
            if rank != self._control.rank:
                departure = self._activity.departure(rank, why, has_failed=True)
                # A synchronous send is complete when it is received, so none is in transit when the channel is freed.
                self._departures.append(self._lasting.send(rank, _TAG, list(departure), is_synchronous=True))

    def leave(self, advance: Callable[[int], bool]) -> Iterator[None]:
        """Wait until all ranks leave. A generator: every step makes progress, and the caller pauses between steps.

        There are three barriers. When the first is complete, all programs have ended. When the second is complete, all
        questions of the monitors have been asked and received; when the third is, all answers. It ends early if another
        rank ends the epoch (`World.survivors`).

        Parameters
        ----------
        advance : callable
            Makes progress on all other work, given the number of the barrier (0, 1, 2). Returns whether this rank has
            no incomplete send on the channel and waits for no answer.
        """
        for number in range(3):
            while not self._is_quiet(advance, number):  # a rank's messages are received before it enters a barrier
                yield
            is_complete = self._control.barrier(number)
            while not self._control.is_over:
                is_quiet = self._is_quiet(advance, number)
                if is_complete() and is_quiet:
                    break
                yield

    def _is_quiet(self, advance: Callable[[int], bool], number: int) -> bool:
        self.receive()
        return (advance(number) and self.have_sent()) or self._control.is_over

    def have_sent(self) -> bool:
        """Whether all departures of this rank were received; makes progress."""
        if self._departures:
            self._departures = [test for test in self._departures if not test()]
        return not self._departures
