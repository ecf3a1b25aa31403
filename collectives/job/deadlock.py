"""Deadlock detection over MPI: collect the states of all ranks, ask `verdict` for a deadlock, and tell all ranks.

When a wait has lasted a while, the rank's monitor notifies a *collector*, the monitor of the first rank. The collector
requests the states of all ranks on the control channel. Every monitor replies, also while its rank computes or is
blocked. A reply contains the rank's waits, the lines of the program that wait, and the counts of calls and messages.
The messages are linear in the number of ranks. If no request follows a notice, because the collector's process has
stopped or holds the interpreter's lock, the next rank is notified. The collector looks for four conditions in the
replies (`verdict`):

- *Departed.* A rank waits for a call or a message of a rank that has left. The collector sends the departure to it.
- *Deadlock.* A set of ranks that all wait for each other. Detection takes two rounds of replies, and the second starts
  when the first is complete.
- *Overdue.* The wait has lasted longer than the time limit (`checks.modes.time_limit_s`).
- *Long.* The wait has lasted a minute (`RINGTAPE_REPORT_S`). The collector prints the states, and the job goes on.

The verdict states the wait of every rank, its line in the program, and the ranks that did not arrive. It is sent to all
ranks. A polling rank (every rank polls under ``ranks`` checking and under the policy ``raise``) raises it as a
`DeadlockError`. A rank that is blocked inside MPI cannot, so its monitor ends the job with that text. Without a verdict
nothing changes, and the time to the next notice doubles.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from autograd.errors import DeadlockError, TimeLimitError, site_of_thread

from ..checks import modes, reports
from .activity import Activity, Channel, Departure, Wait
from .control import Control, Test
from .threads import patience_s
from .verdict import RankState, WaitState, deadlocked, missing_ranks, verdict_text

__all__ = ["FIRST_S", "DeadlockDetection"]

FIRST_S = 0.6  # how long a wait lasts before the first notice
_REPLY_S = 1.0  # how long a reply may take; a rank that holds the interpreter's lock cannot reply
_ANSWER_S = 3.0  # how long a request may take to follow a notice; then the next rank is notified
_PAUSE_S = 0.3  # between two evaluations, so that many notices cause few rounds
_BLOCKED_S = 1.0  # how long a rank may take to raise the verdict before its monitor ends the job
_BUSY_S = 2.0  # then a message that has not been received is no reason to look again soon
_TAGS = _NOTICE, _REQUEST, _REPLY, _VERDICT, _DEPARTURE = 2, 3, 4, 5, 7


class _Collector:
    """The monitor that requests the states of all ranks and evaluates them; that of each rank may become it.

    Parameters
    ----------
    control : Control
        The control channel.
    activity : Activity
        The state of this rank.
    state : callable
        Returns the state of this rank as the others send it.
    tell : callable
        Sends a message to a rank, or takes it if it is for this one.
    """

    def __init__(
        self, control: Control, activity: Activity, state: Callable[[], RankState],
        tell: Callable[[int, int, Any], Test],
    ):  # fmt: skip
        self._rank, self._ranks = control.rank, control.ranks
        self._activity, self._state, self._tell = activity, state, tell
        self.is_notified = False
        self._round = 0
        self._requested_s: float | None = None
        self._evaluated_s = 0.0
        self._requests: dict[int, Test] = {}  # requests that have not been received
        self._heard_s: dict[int, float] = {}  # when each rank replied last
        self._replies: dict[int, RankState] = {}
        self._before: dict[int, RankState] | None = None  # the replies of the first round
        self._reported: set[tuple[int, int, str, int]] = set()  # the long waits that were reported

    @property
    def is_collecting(self) -> bool:
        """Whether replies are awaited."""
        return self._requested_s is not None

    def step(self, now: float) -> None:
        """Evaluate a round of replies that is complete or late, or begin one if a rank waits long."""
        if self._requested_s is not None:
            if len(self._replies) == len(self._ranks) or now - self._requested_s > _REPLY_S:
                self._requested_s = None
                self._evaluate(now)
        elif self.is_notified and now - self._evaluated_s > _PAUSE_S:
            self.is_notified = False
            self._before = None
            self._request_states(now)

    def take(self, source: int, reply: Any) -> None:
        """Take the reply of a rank."""
        self._heard_s[source] = time.monotonic()
        if reply["round"] == self._round:
            self._replies[source] = RankState.decode(reply["state"])

    def _request_states(self, now: float) -> None:
        self._round += 1
        self._requested_s = now
        self._replies = {self._rank: self._state()}
        for rank in self._ranks:
            # A rank that has not even received the last request is not sent another one.
            if rank != self._rank and (rank not in self._requests or self._requests[rank]()):
                self._requests[rank] = self._tell(rank, _REQUEST, {"round": self._round})

    def _evaluate(self, now: float) -> None:
        before, self._before = self._before, self._replies
        if before is None:
            self._send_departures()
            self._request_states(now)  # start the second round, now that the first is complete
            return
        self._before, self._evaluated_s = None, now
        waits = [(wait.lasts_s, rank) for rank, reply in self._replies.items() for wait in reply.blocked]
        if not waits:
            return
        longest, slowest = max(waits)
        waiting = deadlocked(before, self._replies)
        limit_s, limit_by = self._replies[slowest].limit
        if not waiting and (limit_s is None or longest < limit_s):
            self._report_long(longest, slowest, now)
            return
        if len(waiting) == len(self._ranks):
            why = "deadlock: no rank can continue"
        elif waiting:
            why = "deadlock: ranks wait for each other"
        else:
            why = f"rank {slowest} has waited for {limit_s:g} s ({limit_by})"
        text = self._text(why, now)
        ended = {str(rank): reply.waits for rank, reply in self._replies.items() if not waiting or rank in waiting}
        verdict = {"text": text, "waits": ended, "is_limit": not waiting}
        for rank in sorted(self._ranks, key=lambda rank: rank == self._rank):  # this one last: it may end the job
            self._tell(rank, _VERDICT, verdict)

    def _send_departures(self) -> None:
        """Send the departures of ranks that have left to the ranks that wait for them."""
        for rank, reply in self._replies.items():
            awaited = {other for wait in reply.waits for other in missing_ranks(wait, self._replies, rank)}
            for other in awaited:
                theirs = self._replies.get(other)
                if theirs is not None and theirs.left is not None:
                    sent = {key: each[rank] for key, each in theirs.sent.items() if rank in each}
                    received = {key: each[rank] for key, each in theirs.received.items() if rank in each}
                    self._tell(rank, _DEPARTURE, [other, theirs.left, False, theirs.calls, sent, received])

    def _report_long(self, longest: float, slowest: int, now: float) -> None:
        """Print the states of the ranks, once for each wait that has become long."""
        least_s = modes.report_s()
        keys = {
            (rank, wait.thread, wait.key, wait.number)
            for rank, reply in self._replies.items() for wait in reply.blocked
            if least_s is not None and wait.lasts_s >= least_s
        }  # fmt: skip
        if keys and not keys & self._reported:
            why = f"rank {slowest} has waited for {longest:.0f} s; the job goes on (RINGTAPE_TIMEOUT_S limits waits)"
            reports.print_report(self._text(why, now))
        self._reported = keys

    def _text(self, why: str, now: float) -> str:
        silent_s = {rank: now - heard_s for rank, heard_s in self._heard_s.items()}
        return verdict_text(why, self._replies, self._ranks, silent_s, self._activity.failed)


class DeadlockDetection:
    """Watches one rank's waits: sends notices and replies, and takes verdicts. Used by one thread only.

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
        self._sends: list[tuple[Test, float]] = []
        # thread -> its wait, the time when it was first seen, and how long it lasts before the next notice
        self._since: dict[int, tuple[Wait, float, float]] = {}
        self._calls = 0
        self._called_s = time.monotonic()  # when this rank made its last call
        self._collects_at = control.ranks[0]  # the rank that is notified
        self._noticed_s: float | None = None  # when the last notice was sent, until a request follows
        self._collector = _Collector(control, activity, self._state, self._tell)
        self._verdicts: list[tuple[int, Wait, float, str]] = []  # waits that must end with a verdict
        self.left: str | None = None  # why this rank has left
        self.rank = control.rank
        self.ranks = control.ranks

    @property
    def is_busy(self) -> bool:
        """Whether the next `step` should follow soon."""
        now = time.monotonic()
        is_sending = any(now - since < _BUSY_S for _, since in self._sends)
        return self._collector.is_collecting or is_sending or bool(self._verdicts)

    def step(self) -> None:
        """Examine the waits and the replies, and make the next notice, request, verdict or end of the job."""
        now = time.monotonic()
        self.has_sent()
        self._since = {
            thread: known if (known := self._since.get(thread)) and known[0] is wait else (wait, now, FIRST_S)
            for thread, wait in self._activity.waits().items()
        }
        calls = sum([channel.calls for channel in self._channels.copy().values()])
        if calls != self._calls:
            self._calls, self._called_s = calls, now
        for thread, wait, since, text in self._verdicts:
            if self._waiting.get(thread) is wait and now - since > _BLOCKED_S:
                self._end_job(text, is_printed_once=True)
        self._verdicts = [entry for entry in self._verdicts if self._waiting.get(entry[0]) is entry[1]]
        self._notify_if_long(now)
        self._collector.step(now)

    # -- a rank that waits -------------------------------------------------------------------------------------
    def _first(self) -> int:
        """The first rank that is not known to have died."""
        departed = self._activity.departed
        return next((r for r in self.ranks if r not in departed or departed[r].calls is not None), self.rank)

    def _notify_if_long(self, now: float) -> None:
        is_due, limits = False, (modes.time_limit_s(), modes.report_s())
        for thread, (wait, since, next_s) in self._since.items():
            lasts = now - since
            if lasts >= next_s:
                is_due = True
                ends = [limit for limit in limits if limit is not None and limit > lasts]
                self._since[thread] = wait, since, min([2 * lasts, *ends])
        if not any(now - since >= FIRST_S for _, since, _ in self._since.values()):
            self._collects_at, self._noticed_s = self._first(), None
        elif is_due:
            self._notify(now)
        elif self._noticed_s is not None and now - self._noticed_s > _ANSWER_S and self._collects_at < self.rank:
            self._collects_at = self.ranks[self.ranks.index(self._collects_at) + 1]
            self._notify(now)

    def _notify(self, now: float) -> None:
        self._tell(self._collects_at, _NOTICE, {})
        self._noticed_s = None if self._collects_at == self.rank else now

    # -- messages ----------------------------------------------------------------------------------------------
    def _tell(self, rank: int, tag: int, content: Any) -> Test:
        """Send a message to a rank, or take it if it is for this one."""
        if rank == self.rank:
            self._take(tag, rank, content)
            return lambda: True
        # A synchronous send is complete when it is received, so no message is in transit when the channel is freed.
        test = self._control.send(rank, tag, content, is_synchronous=True)
        self._sends.append((test, time.monotonic()))
        return test

    def has_sent(self) -> bool:
        """Whether all messages of this rank have been received; makes progress."""
        self._sends = [sent for sent in self._sends if not sent[0]()]
        return not self._sends

    def receive(self) -> None:
        """Receive the messages that have arrived, and reply to requests."""
        for tag in _TAGS:
            while (message := self._control.receive(tag)) is not None:
                self._take(tag, *message)

    def _take(self, tag: int, source: int, content: Any) -> None:
        if tag == _NOTICE:
            self._collector.is_notified = True
        elif tag == _REQUEST:
            self._noticed_s = None
            self._tell(source, _REPLY, {"state": self._state(), "round": content["round"]})
        elif tag == _VERDICT:
            self._receive_verdict(content)
        elif tag == _DEPARTURE:
            self._activity.add_departure(Departure(*content))
        else:
            self._collector.take(source, content)

    def _state(self) -> RankState:
        now = time.monotonic()
        waits = self._activity.waits()
        place = site_of_thread(threading.main_thread().ident) or "an unknown place"
        channels = self._channels.copy()
        return RankState(
            waits=[
                WaitState(
                    thread, channel.key, call, number, peer, _call_text(channel, call, number, peer),
                    site_of_thread(abs(thread)), channel.ranks,
                    now - self._since.get(thread, (None, now, 0))[1], channel.count,
                )
                for thread, (channel, call, number, peer) in waits.items()
            ],
            patience_s=None if self.left is not None else patience_s(waits, self._waiting),
            left=self.left,
            doing=f"computes at {place}" if self.left is None else "has left",
            called_s=now - self._called_s,
            task=self._activity.task,
            limit=(modes.time_limit_s(), modes.time_limit_source()),
            calls={key: channel.calls for key, channel in channels.items()},
            sent={key: channel.sent.copy() for key, channel in channels.items() if channel.sent},
            received={key: channel.received.copy() for key, channel in channels.items() if channel.received},
        )  # fmt: skip

    def _receive_verdict(self, verdict: Any) -> None:
        ended = {int(rank): [WaitState(*wait) for wait in waits] for rank, waits in verdict["waits"].items()}
        mine = {(wait.thread, wait.key, wait.call, wait.number) for wait in ended.get(self.rank, [])}
        # A rank that makes one of these calls later must not wait in it, because the other ranks have raised an error.
        for wait_state in (each for waits in ended.values() for each in waits):
            channel = self._channels.get(wait_state.key)
            if channel is not None and channel.broken is None:
                channel.broken = (TimeLimitError if verdict["is_limit"] else DeadlockError)(verdict["text"])
                self._activity.is_alarmed = True
        now = time.monotonic()
        for thread, wait in self._activity.waits().items():
            if thread > 0 and (thread, wait[0].key, wait[1], wait[2]) in mine:
                self._verdicts.append((thread, wait, now, verdict["text"]))


def _call_text(channel: Channel, call: str, number: int, peer: int | None) -> str:
    whom = "" if peer is None else f" {'to' if call == 'lend' else 'from'} rank {peer}"
    return f"{call} #{number} on '{channel.name}'{whom}"
