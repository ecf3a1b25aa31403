"""Agreement of the ranks that have not failed on who they are, where a death ends the job: by control messages.

Every rank that calls `World.survivors` sends that to the *collector*, the first rank that has not departed, and sends
it again to the next one if that departs. The collector tells all ranks that the epoch has ended, and waits until each
rank has either called or departed. A rank that has called cannot depart before it has the result, so all of them
receive the same one. The messages are linear in the number of ranks.

Where MPI survives deaths, it agrees itself: see `transports.mpi.fault_tolerance`.
"""

from __future__ import annotations

from typing import Any

from .activity import Activity, Channel, Departure, Wait
from .control import Control, Test

__all__ = ["Survivors"]

_TAG = 9


class Survivors:
    """One rank's part in the agreement.

    Parameters
    ----------
    control : Control
        The control channel, of all ranks that the world began with.
    activity : Activity
        The state of this rank.
    """

    def __init__(self, control: Control, activity: Activity):
        self._control = control
        self._activity = activity
        self._sends: list[Test] = []
        self._calls = Channel("survivors", "world", control.ranks, epoch=1 << 62)  # it belongs to no epoch
        self._asked: int | None = None  # the collector that this rank has sent its call to
        self._waited: tuple[Wait, tuple[int, ...]] | None = None
        self._called: dict[int, dict[int, bool]] = {}  # as the collector: who has called, finished or not, by epoch
        self._results: dict[int, list[int]] = {}  # the members, by epoch
        self._finished = False  # the call of this rank
        self.all_finished = False  # of the newest epoch
        self._next = 0  # the newest epoch that a rank is known to have called for

    def enter(self, finished: bool = False) -> int:
        """Begin to agree on the members of the next epoch, and return its number."""
        self._finished = finished
        self._asked, number = None, self._activity.epoch + 1
        self._activity.end_epoch()
        self._calls.calls = number
        self._activity.channels["survivors"] = self._calls
        return number

    def wait(self, number: int) -> Wait:
        """The wait of this rank for the others, for its monitor: for those that have not departed."""
        left = self._left()
        if self._waited is None or self._waited[1] != left or self._waited[0][2] != number:
            self._waited = (Channel("survivors", "world", left, epoch=1 << 62), "survivors", number, None), left
        return self._waited[0]

    def members(self, number: int) -> tuple[int, ...] | None:
        """The members of an epoch; None if the ranks have not agreed yet. Makes progress."""
        collector = self._left()[0]
        if self._asked != collector:
            self._asked = collector
            self._send(collector, {"called": number, "finished": self._finished})
        self.step()
        found = self._results.get(number)
        return None if found is None else tuple(found)

    def step(self) -> None:
        """Receive what has arrived, and as the collector tell the result once it is known."""
        self._sends = [test for test in self._sends if not test()]
        while (message := self._control.receive(_TAG)) is not None:
            self._take(*message)
        if self._next > self._activity.epoch > self._activity.ended:
            self._activity.end_epoch()
        for number, called in self._called.items():
            # A departure that arrives before a call of the same rank is handled after it.
            if number not in self._results and set(self._left()) <= called.keys():
                result = sorted(called)
                departures = {str(rank): each.why for rank, each in self._activity.departed.copy().items()}
                for rank in result:
                    self._send(rank, {"members": [number, result, departures, all(called.values())]})

    @property
    def is_quiet(self) -> bool:
        """Whether all messages of this rank were received; makes progress."""
        self._sends = [test for test in self._sends if not test()]
        return not self._sends

    def _left(self) -> tuple[int, ...]:
        return tuple(rank for rank in self._activity.members if rank not in self._activity.departed)

    def _send(self, rank: int, content: dict[str, Any]) -> None:
        if rank == self._control.rank:
            self._take(rank, content)
        else:
            self._sends.append(self._control.send(rank, _TAG, content, is_synchronous=True))

    def _take(self, source: int, content: dict[str, Any]) -> None:
        activity = self._activity
        if "called" in content:
            number = content["called"]
            is_first = number not in self._called
            self._called.setdefault(number, {})[source] = content["finished"]
            for rank in self._left() if is_first else ():
                self._send(rank, {"ended": number})
        elif "members" in content:
            number, members, departures, self.all_finished = content["members"]
            for rank, why in departures.items():
                activity.add_departure(Departure(int(rank), why, True, {}, {}, {}))
            self._results[number] = members
        else:
            self._next = max(self._next, content["ended"])
