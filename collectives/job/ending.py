"""Announcing the end of the job to the other hosts, over MPI.

When a rank ends the job, the launcher ends the ranks of all hosts. The supervisors of the other hosts would report
these deaths as failures. So the rank first sends one message to every other host, whose monitor passes it on to its
supervisor. A rank that is killed cannot do that; see `supervisor`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .control import Control

__all__ = ["Ending"]

_TAG = 8
_ANNOUNCING_S = 0.6  # how long the other hosts may take to receive the message
_PAUSE_S = 0.01


class Ending:
    """Sends and receives the announcements of one rank.

    Parameters
    ----------
    control : Control
        The control channel.
    hosts : sequence of int
        For each rank, the lowest rank on its host. That rank receives the announcements.
    report_ending : callable
        Sends this host's supervisor that the job ends.
    """

    def __init__(self, control: Control, hosts: Sequence[int], report_ending: Callable[[], None]):
        self._control = control
        self._report_ending = report_ending
        self._others = sorted(set(hosts) - {hosts[control.rank]})

    def announce(self) -> None:
        """Send all other hosts that this rank ends the job, and wait a moment until they have received it."""
        sends = [self._control.send(rank, _TAG, None, is_synchronous=True) for rank in self._others]
        deadline = time.monotonic() + _ANNOUNCING_S
        while (sends := [test for test in sends if not test()]) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)

    def receive(self) -> bool:
        """Receive the announcements that have arrived; whether there was one."""
        has_arrived = False
        while self._others and self._control.receive(_TAG) is not None:
            self._report_ending()
            has_arrived = True
        return has_arrived
