"""A simulation of the ranks' transport calls, which finds deadlocks."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from .probe import Sent

__all__ = ["simulate"]


def simulate(calls: list[list[tuple[Any, Sent]]]) -> list[str]:
    """Replay every rank's transport calls: an empty list if all complete, else what each rank waits for.

    A send completes at once (it owns a copy); a recv waits for its message, a collective for all members of its group.
    """
    at = [0] * len(calls)
    boxes: dict[tuple[Any, int, int], deque[int]] = defaultdict(deque)

    def goes_on(rank: int) -> bool:
        (axes, group), sent = calls[rank][at[rank]]
        if sent.call == "send":
            boxes[axes, rank, sent.peer or 0].append(1)
            return True
        if sent.call == "recv":
            box = boxes[axes, sent.peer or 0, rank]
            return bool(box) and bool(box.popleft())
        here = [r for r in group if at[r] < len(calls[r]) and calls[r][at[r]][0] == (axes, group)
                and calls[r][at[r]][1].call == sent.call]  # fmt: skip
        if len(here) < len(group):
            return False
        for r in group:
            if r != rank:
                at[r] += 1
        return True

    moved = True
    while moved:
        moved = False
        for rank in range(len(calls)):
            while at[rank] < len(calls[rank]) and goes_on(rank):
                at[rank] += 1
                moved = True
    waiting = []
    for rank, mine in enumerate(calls):
        if at[rank] < len(mine):
            (axes, group), sent = mine[at[rank]]
            whom = f"from rank {sent.peer}" if sent.call == "recv" else f"of ranks {','.join(map(str, group))}"
            waiting.append(f"rank {rank} waits in {sent.call} along {'*'.join(axes)} {whom}")
    return waiting
