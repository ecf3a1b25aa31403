"""A simulation of the ranks' transport calls, which finds deadlocks."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from ..transports.probe import Sent

__all__ = ["Simulated", "simulate"]


class Simulated(NamedTuple):
    """A transport call of one rank.

    Attributes
    ----------
    axes, group : the axes of the call, and the world ranks that make it
    sent : the call
    phase : ``start`` or ``wait`` for the two parts of a nonblocking call, "" for a blocking call
    number : identifies a nonblocking call, the same on all its ranks
    """

    axes: tuple[str, ...]
    group: tuple[int, ...]
    sent: Sent
    phase: str = ""
    number: Any = None


def simulate(calls: list[list[Simulated]]) -> list[str]:
    """Replay every rank's transport calls: an empty list if all complete, else what each rank waits for.

    A send completes at once (it owns a copy); a recv waits for its message, a collective for all members of its group.
    Of a nonblocking call, the start completes at once, and the wait is what waits.
    """
    at = [0] * len(calls)
    arrived: Counter[Any] = Counter()  # messages by channel, source and destination
    posted: Counter[Any] = Counter()  # receives, which get the messages in order
    tickets: dict[Any, int] = {}  # the number of a started receive among them
    started: Counter[Any] = Counter()  # the ranks that have started a nonblocking collective

    def completes(rank: int) -> bool:
        call = calls[rank][at[rank]]
        sent, is_started = call.sent, bool(call.phase)
        if sent.call == "send":
            if call.phase != "wait":
                arrived[call.axes, is_started, rank, sent.peer] += 1
            return True
        if sent.call == "recv":
            box = (call.axes, is_started, sent.peer, rank)
            ticket = (rank, call.number)
            if call.phase == "start":
                tickets[ticket] = posted[box]
                posted[box] += 1
                return True
            if call.phase == "wait":
                return arrived[box] > tickets.get(ticket, arrived[box])
            if arrived[box] <= posted[box]:
                return False
            posted[box] += 1
            return True
        if call.phase == "start":
            started[call.number] += 1
            return True
        if call.phase == "wait":
            return started[call.number] >= len(call.group)
        here = [r for r in call.group if at[r] < len(calls[r]) and _meets(calls[r][at[r]], call)]
        if len(here) < len(call.group):
            return False
        for r in call.group:
            if r != rank:
                at[r] += 1
        return True

    moved = True
    while moved:
        moved = False
        for rank in range(len(calls)):
            while at[rank] < len(calls[rank]) and completes(rank):
                at[rank] += 1
                moved = True
    waiting = []
    for rank, mine in enumerate(calls):
        if at[rank] < len(mine):
            axes, group, sent = mine[at[rank]][:3]
            whom = f"from rank {sent.peer}" if sent.call == "recv" else f"of ranks {','.join(map(str, group))}"
            waiting.append(f"rank {rank} waits in {sent.call} along {'*'.join(axes)} {whom}")
    return waiting


def _meets(one: Simulated, other: Simulated) -> bool:
    """Whether two ranks' blocking collectives are the same call."""
    return (one.axes, one.group, one.sent.call, one.phase) == (other.axes, other.group, other.sent.call, other.phase)
