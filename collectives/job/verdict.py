"""Deadlocks: which ranks wait for ever, and what they are told. The texts are those of all transports.

- *Threads.* The rank that waits, ends or fails last sees that all ranks wait (`transports.threads.waiting`).
- *MPI.* The monitor of the first rank collects the states of all ranks twice (`deadlock`). `deadlocked` finds a set of
  ranks that all wait, each for a call or a message that only another rank of the set can make, or for some number of
  ranks of which too few are outside of the set. A rank that is in the same wait in both rounds was in it in between as
  well, so at one moment all ranks of the set were waiting. No time limit is needed. Another thread of such a rank could
  still make the missing call, so all its threads must wait, in ringtape or for another thread without a limit (as the
  idle threads of a pool do). Daemon threads and threads that have never communicated, such as those of a progress bar
  or a data loader, are ignored after ten seconds.

`states_text` is the text of every such error. A rank that polls raises it (`transports.mpi.waiting`), as do ranks on
threads; the monitor of a rank that is blocked inside MPI ends the job with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from ..checks.reports import rank_list
from .activity import has_made

__all__ = [
    "RankState", "WaitState", "deadlocked", "missing_ranks", "states_text", "task_text", "verdict_text",
    "waiting_state",
]  # fmt: skip


class WaitState(NamedTuple):
    """A wait of a thread of a rank.

    The number of the thread is negative for a call that was tested and found incomplete. `peer` is the sender of a recv
    or the receiver of a lend, else None. `needs` ranks must make the call; 0 stands for all.
    """

    thread: int
    key: str
    call: str
    number: int
    peer: int | None
    text: str
    site: str | None
    ranks: Sequence[int]
    lasts_s: float
    needs: int


class RankState(NamedTuple):
    """The state of a rank: its waits, how long all its threads must wait, and its counts of calls and messages.

    `patience_s` is None if a thread of it computes. `sent` and `received` are by channel and rank.
    """

    waits: Sequence[WaitState]
    patience_s: float | None
    left: str | None
    doing: str
    called_s: float
    calls: dict[str, int]
    sent: dict[str, dict[int, Any]]
    received: dict[str, dict[int, Any]]
    task: str = ""
    limit: tuple[float | None, str] = (None, "")

    @classmethod
    def decode(cls, values: Sequence[Any]) -> Self:
        """The state from a message, of which JSON has made lists, and texts of the keys."""
        found = cls(*values)
        sent, received = (
            {key: {int(rank): n for rank, n in each.items()} for key, each in of.items()}
            for of in (found.sent, found.received)
        )
        return found._replace(waits=[WaitState(*wait) for wait in found.waits], sent=sent, received=received)

    @property
    def blocked(self) -> list[WaitState]:
        """The waits, without the calls that were only tested."""
        return [wait for wait in self.waits if wait.thread > 0]

    @property
    def is_blocked(self) -> bool:
        """Whether no thread of it makes another call."""
        patience_s = self.patience_s
        return patience_s is not None and all(wait.lasts_s >= patience_s for wait in self.blocked)


# -- the decision ------------------------------------------------------------------------------------------------------
def missing_ranks(wait: WaitState, replies: Mapping[int, RankState], rank: int) -> list[int]:
    """The ranks that have not made the call, or not sent (for a lend: received) the message, that the wait needs."""
    key, number, peer = wait.key, wait.number, wait.peer
    if peer is not None:
        theirs = replies.get(peer)
        counts = {} if theirs is None else (theirs.received if wait.call == "lend" else theirs.sent).get(key, {})
        return [] if has_made(counts.get(rank, 0), number) else [peer]
    return [r for r in wait.ranks if r != rank and (r not in replies or replies[r].calls.get(key, 0) < number)]


def deadlocked(before: Mapping[int, RankState], after: Mapping[int, RankState]) -> set[int]:
    """The ranks that wait for each other, so that no other rank can end their waits; see the module.

    Parameters
    ----------
    before, after : dict of int to RankState
        Two rounds of replies, by rank.
    """

    def waits_of(reply: RankState) -> set[tuple[Any, ...]]:
        return {(wait.thread, wait.key, wait.call, wait.number, wait.peer) for wait in reply.blocked}

    waiting = {
        rank
        for rank in before.keys() & after.keys()
        if after[rank].blocked
        and before[rank].is_blocked
        and after[rank].is_blocked
        and waits_of(before[rank]) == waits_of(after[rank])
    }
    gone = {rank for rank, reply in after.items() if reply.left is not None}

    def never_ends(wait: WaitState, rank: int) -> bool:
        """Whether a wait never ends because of other waits. A wait for a rank that has left ends with its departure."""
        missing = missing_ranks(wait, after, rank)
        stuck = waiting.intersection(missing)
        if gone.intersection(missing):
            return False
        if wait.needs == 0:
            return bool(stuck)
        is_missing = after[rank].calls.get(wait.key, 0) < wait.number  # it waits for what others have begun without it
        return len(wait.ranks) - len(stuck) - is_missing < wait.needs

    while True:
        blocked = {rank for rank in waiting if all(never_ends(wait, rank) for wait in after[rank].blocked)}
        if blocked == waiting:
            return waiting
        waiting = blocked


# -- the texts ---------------------------------------------------------------------------------------------------------
def verdict_text(
    why: str, replies: Mapping[int, RankState], ranks: Sequence[int], silent_s: Mapping[int, float] | None = None,
    failed: Mapping[int, str] | None = None,
) -> str:  # fmt: skip
    """The text of a verdict: the reason, and the state of every rank, one line each.

    `silent_s` says for how many seconds ranks without a reply have not replied, and `failed` why ranks have failed.
    """
    lines = []
    for rank in ranks:
        reply = replies.get(rank)
        if reply is None and failed and rank in failed:
            lines.append(f"rank {rank} {failed[rank]}")
            continue
        if reply is None:
            for_s = f" for {silent_s[rank]:.0f} s" if silent_s and rank in silent_s else ""
            lines.append(
                f"rank {rank} does not reply{for_s}: its program holds the interpreter's lock, or it has stopped"
            )
            continue
        since = reply.called_s
        if not reply.waits:
            for_s = "" if reply.left is not None or since < 1 else f" (its last call was {since:.0f} s ago)"
            lines.append(f"rank {rank} {reply.doing}{for_s}{task_text(reply.task)}")
        for wait in reply.waits:
            missing = missing_ranks(wait, replies, rank) if wait.peer is None else []
            lines.append(waiting_state(rank, wait.text, wait.site, reply.task, missing, wait.lasts_s))
    return states_text(why, lines, [wait.text for reply in replies.values() for wait in reply.waits])


def states_text(why: str, states: Sequence[str], waits: Sequence[str]) -> str:
    """The text of a deadlock or of a long wait: the reason, the state of each rank, and a fix if the waits show one.

    Parameters
    ----------
    why : str
        The reason.
    states : sequence of str
        A line for each rank, or for each wait of a rank, as `waiting_state` makes it.
    waits : sequence of str
        The calls that the ranks wait in.
    """
    return "\n  ".join([why, *states]) + _fix(waits)


def waiting_state(
    rank: int, call: str, site: str | None, task: str, missing: Sequence[int] = (), lasts_s: float = 0.0
) -> str:
    """The state of a rank that waits: ``rank 1 waits in all_reduce #4 on 'dp' for rank 0 at model.py:41, for 3 s``.

    Parameters
    ----------
    rank : int
        The rank.
    call : str
        The call that it waits in.
    site : str or None
        The line of the program, if it is known.
    task : str
        The task that the rank has set (`World.set_task`); may be empty.
    missing : sequence of int
        The ranks that have not made the call, if they are known and the call does not name them.
    lasts_s : float
        For how many seconds it has waited. Less than one is not shown.
    """
    for_ranks = f" for {rank_list(missing)}" if missing else ""
    at = f" at {site}" if site else ""
    for_s = f", for {lasts_s:.0f} s" if lasts_s >= 1 else ""
    return f"rank {rank} waits in {call}{for_ranks}{at}{for_s}{task_text(task)}"


def task_text(task: str) -> str:
    """The task of a rank as the end of a line about it."""
    return f" ({task})" if task else ""


def _fix(waits: Sequence[str]) -> str:
    """The fix for ranks that wait for each other, as a line of a text; "" if the waits do not show what is wrong."""
    if any("cast I->R" in wait for wait in waits) and any("recv" in wait and "cast" not in wait for wait in waits):
        return (
            "\n  fix: on a pipeline's stages, cast at the start of the tape's block, before send and recv, on all "
            "ranks: a cast is one call of all of them"
        )
    if any("the cotangent of message" in wait for wait in waits):
        return (
            "\n  fix: the cotangent of a message is sent by backward of the tape that recorded its recv: is this recv "
            "missing, or backward on its rank? With several messages, the order of their backwards matters"
        )
    if waits and all(wait.startswith("recv from rank") for wait in waits):
        return "\n  fix: one rank sends before it receives, or permute, with which all ranks send and receive at once"
    return ""
