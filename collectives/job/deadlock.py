"""Deadlock detection over MPI: collect the states of all ranks, look for a deadlock, and send the verdict to all ranks.

When a wait has lasted a while, the rank's monitor requests the states of the other ranks on the control channel. Every
monitor replies, also while its rank computes or is blocked. A reply contains the rank's waits, the lines of the program
that wait, and the counts of calls and messages. The requesting monitor looks for two conditions in the replies:

- *Deadlock.* A set of ranks that all wait, each for a call or a message that only another rank of the set can make.
  Detection takes two rounds of replies, and the second starts when the first is complete. A rank that is in the same
  wait in both rounds was in it in between as well, so at one moment all ranks of the set were waiting. No time limit is
  needed. Another thread of such a rank could still make the missing call, so all its threads must wait. Daemon threads
  that do not wait, such as that of a progress bar, are ignored after ten seconds.
- *Overdue.* The wait has lasted longer than the time limit (`checks.modes.time_limit_s`).

The verdict states the wait of every rank, its line in the program, and the ranks that did not arrive. It is sent to all
ranks. A polling rank (every rank polls under ``ranks`` checking and under the policy ``raise``) raises it as a
`DeadlockError`. A rank that is blocked inside MPI cannot, so its monitor ends the job with that text. Without a verdict
nothing changes, and the time to the next request doubles.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from autograd.errors import site_of_thread

from ..checks import modes
from .activity import Activity, Channel, Wait
from .control import Control, Test

__all__ = ["FIRST_S", "DeadlockDetection", "deadlocked", "verdict_text"]

FIRST_S = 0.6  # how long a wait lasts before the first request
_REPLY_S = 1.0  # how long a reply may take; a rank that holds the interpreter's lock cannot reply
_DAEMONS_S = 10.0  # then daemon threads that do not wait are ignored
_BLOCKED_S = 1.0  # how long a rank may take to raise the verdict before its monitor ends the job
_TAGS = _REQUEST, _REPLY, _VERDICT = 2, 3, 4

State = dict[str, Any]


class DeadlockDetection:
    """Sends one rank's requests and replies, and evaluates the replies that it receives. Used by one thread only.

    Parameters
    ----------
    control : Control
        The control channel.
    activity : Activity
        The state of this rank.
    end_job : callable
        Prints a text and ends the job.
    """

    def __init__(self, control: Control, activity: Activity, end_job: Callable[..., None]):
        self._control = control
        self._activity = activity
        self._waiting = activity.waiting
        self._channels = activity.channels
        self._end_job = end_job
        self._sends: list[Test] = []
        self._since: dict[int, tuple[Wait, float]] = {}  # thread -> its wait, and the time when it was first seen
        self._next_s = FIRST_S
        self._round = 0
        self._requested_s: float | None = None
        self._replies: dict[int, State] = {}
        self._before: dict[int, State] | None = None  # the replies of the first round
        self._verdicts: list[tuple[int, Wait, float, str]] = []  # waits that must end with a verdict
        self.has_left = False
        self.rank = control.rank
        self.size = control.size

    @property
    def is_busy(self) -> bool:
        """Whether the next `step` should follow soon."""
        return self._requested_s is not None or bool(self._sends) or bool(self._verdicts)

    def step(self) -> None:
        """Examine the waits and the replies, and make the next request, verdict or end of the job."""
        now = time.monotonic()
        self.has_sent()
        waits = dict(self._waiting)
        self._since = {
            thread: self._since[thread] if thread in self._since and self._since[thread][0] is wait else (wait, now)
            for thread, wait in waits.items()
        }
        longest = max((now - since for thread, (_, since) in self._since.items() if thread > 0), default=0.0)
        for thread, wait, since, text in self._verdicts:
            if self._waiting.get(thread) is wait and now - since > _BLOCKED_S:
                self._end_job(text, is_printed_once=True)
        self._verdicts = [entry for entry in self._verdicts if self._waiting.get(entry[0]) is entry[1]]
        limit_s = modes.time_limit_s()
        if self._requested_s is not None:
            if len(self._replies) == self.size or now - self._requested_s > _REPLY_S:
                self._requested_s = None
                self._evaluate(longest, limit_s)
        elif longest < FIRST_S:
            self._next_s, self._before = FIRST_S, None
        elif longest >= self._next_s or (limit_s is not None and self._next_s > limit_s and longest >= limit_s):
            self._request_states()

    def _request_states(self) -> None:
        self._round += 1
        self._requested_s = time.monotonic()
        self._replies = {self.rank: self._state()}
        self._send_to_all(_REQUEST, {"round": self._round})

    def _evaluate(self, longest: float, limit_s: float | None) -> None:
        before, self._before = self._before, self._replies
        if before is None:  # start the second round, now that the first is complete
            self._request_states()
            return
        waiting = deadlocked(before, self._replies, longest > _DAEMONS_S, self._activity.raises)
        self._before = None
        self._next_s *= 2
        if not waiting and (limit_s is None or longest < limit_s):
            return
        if len(waiting) == self.size:
            why = "deadlock: no rank can continue"
        elif waiting:
            why = "deadlock: ranks wait for each other"
        else:
            why = f"rank {self.rank} has waited for {limit_s:g} s (RINGTAPE_TIMEOUT_S)"
        text = verdict_text(why, self._replies, self.size)
        waits = {str(rank): reply["waits"] for rank, reply in self._replies.items() if not waiting or rank in waiting}
        verdict = {"text": text, "waits": waits}
        self._send_to_all(_VERDICT, verdict)
        self._receive_verdict(verdict)

    # -- messages ----------------------------------------------------------------------------------------------
    def _send_to_all(self, tag: int, content: Any) -> None:
        for rank in range(self.size):
            if rank != self.rank:
                self._send(rank, tag, content)

    def _send(self, rank: int, tag: int, content: Any) -> None:
        # A synchronous send is complete when it is received, so no message is in transit when the channel is freed.
        self._sends.append(self._control.send(rank, tag, content, is_synchronous=True))

    def has_sent(self) -> bool:
        """Whether all messages of this rank have been received; makes progress."""
        self._sends = [test for test in self._sends if not test()]
        return not self._sends

    def receive(self) -> None:
        """Receive the messages that have arrived, and reply to requests."""
        for tag in _TAGS:
            while (message := self._control.receive(tag)) is not None:
                self._take(tag, *message)

    def _take(self, tag: int, source: int, content: Any) -> None:
        if tag == _REQUEST:
            self._send(source, _REPLY, {**self._state(), "round": content["round"]})
        elif tag == _VERDICT:
            self._receive_verdict(content)
        elif content["round"] == self._round:
            self._replies[source] = content

    def _state(self) -> State:
        """The state of this rank: its waits, whether all its threads wait, and its counts."""
        waits = dict(self._waiting)
        monitor = threading.current_thread()
        idle = [t for t in threading.enumerate() if t is not monitor and t.ident not in waits]
        main = threading.main_thread()
        doing = "has left" if self.has_left else f"computes at {site_of_thread(main.ident) or 'an unknown place'}"
        return {
            "waits": [
                [thread, channel.key, call, number, source, f"{_call_text(channel, call, number, source)}",
                 site_of_thread(abs(thread)), list(channel.ranks)]
                for thread, (channel, call, number, source) in waits.items()
            ],
            "is_blocked": not self.has_left and all(t.daemon for t in idle),
            "has_daemons": bool(idle),
            "has_left": self.has_left,
            "doing": doing,
            "task": self._activity.task,
            "calls": {key: channel.calls for key, channel in self._channels.copy().items()},
            "sent": {key: channel.sent.copy() for key, channel in self._channels.copy().items() if channel.sent},
            "received": {
                key: channel.received.copy() for key, channel in self._channels.copy().items() if channel.received
            },
        }  # fmt: skip

    def _receive_verdict(self, verdict: Any) -> None:
        mine = {tuple(wait[:4]) for wait in verdict["waits"].get(str(self.rank), [])}
        # A rank that makes one of these calls later must not wait in it, because the other ranks have raised an error.
        for waits in verdict["waits"].values():
            for wait in waits:
                channel = self._channels.get(wait[1])
                if channel is not None and channel.broken is None:
                    channel.broken = verdict["text"]
                    self._activity.is_alarmed = True
        now = time.monotonic()
        for thread, wait in dict(self._waiting).items():
            if thread > 0 and (thread, wait[0].key, wait[1], wait[2]) in mine:
                self._verdicts.append((thread, wait, now, verdict["text"]))


def _call_text(channel: Channel, call: str, number: int, peer: int | None) -> str:
    whom = "" if peer is None else f" {'to' if call == 'lend' else 'from'} rank {peer}"
    return f"{call} #{number} on '{channel.name}'{whom}"


def _missing(wait: Any, replies: dict[int, State], rank: int) -> list[int]:
    """The ranks that have not made the call, or not sent (for a lend: received) the message, that the wait needs."""
    _, key, call, number, peer, _, _, ranks = wait
    if peer is not None:
        what = "received" if call == "lend" else "sent"
        counts = replies[peer].get(what, {}).get(key, {}) if peer in replies else {}
        made = counts.get(str(rank), counts.get(rank, 0))
        return [peer] if made < number else []
    return [r for r in ranks if r != rank and (r not in replies or replies[r]["calls"].get(key, 0) < number)]


def deadlocked(
    before: dict[int, State], after: dict[int, State], is_late: bool = False, raises: bool = False
) -> set[int]:
    """The ranks that wait for each other, so that no other rank can end their waits; see the module.

    Parameters
    ----------
    before, after : dict of int to dict
        Two rounds of replies, by rank.
    is_late : bool
        Whether the wait has lasted so long that daemon threads are to be ignored.
    raises : bool
        Whether a wait for a rank that has left raises an error, so that it is no deadlock.
    """

    def is_blocked(reply: State) -> bool:
        return reply["is_blocked"] and (is_late or not reply["has_daemons"])

    def blocked_in(reply: State) -> list[Any]:
        return [wait for wait in reply["waits"] if wait[0] > 0]  # the others are tests of incomplete calls

    def waits_of(reply: State) -> set[tuple[Any, ...]]:
        return {tuple(wait[:5]) for wait in blocked_in(reply)}

    waiting = {
        rank
        for rank in before.keys() & after.keys()
        if is_blocked(before[rank]) and is_blocked(after[rank]) and waits_of(before[rank]) == waits_of(after[rank])
    }
    gone = {rank for rank, reply in after.items() if reply["has_left"]}

    def never_ends(missing: list[int]) -> bool:
        """Whether the missing ranks of a wait will never arrive and the wait will not raise an error."""
        if raises:
            return not gone.intersection(missing) and bool(waiting.intersection(missing))
        return bool((waiting | gone).intersection(missing))

    while True:
        blocked = {
            rank for rank in waiting if all(never_ends(_missing(wait, after, rank)) for wait in blocked_in(after[rank]))
        }
        if blocked == waiting:
            return waiting
        waiting = blocked


def verdict_text(why: str, replies: dict[int, State], size: int) -> str:
    """The text of a verdict: the reason, and the state of every rank, one line each."""
    lines = []
    for rank in range(size):
        reply = replies.get(rank)
        if reply is None:
            lines.append(f"rank {rank} does not reply: its program holds the interpreter's lock, or it has stopped")
        elif not reply["waits"]:
            lines.append(f"rank {rank} {reply['doing']}{_task(reply)}")
        if reply is None:
            continue
        for wait in reply["waits"]:
            missing = _missing(wait, replies, rank)
            for_ranks = f" for {modes.rank_list(missing)}" if missing and wait[4] is None else ""
            at = f" at {wait[6]}" if wait[6] else ""
            lines.append(f"rank {rank} waits in {wait[5]}{for_ranks}{at}{_task(reply)}")
    return "\n  ".join([why, *lines])


def _task(reply: State) -> str:
    return f" ({reply['task']})" if reply.get("task") else ""
