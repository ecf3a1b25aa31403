"""Deadlock detection over MPI: ask every rank what it waits for, judge the answers, and tell all ranks the verdict.

The monitor of a rank whose wait has lasted a while asks the other ranks, on the control channel, what they do. Every
monitor answers, also while its rank computes or is blocked, with its rank's waits, the lines of the program where they
are, and its counts of calls and messages. The rank that asked judges the answers:

- *Deadlock.* A set of ranks that all wait, each for a call or a message that only another rank of the set can make. It
  takes two rounds of answers, all of the first before any of the second: a rank that is in the same wait in both rounds
  was in it in between, so there was a moment at which all ranks of the set waited. No time limit is needed. Another
  thread of such a rank could still send what is missing, so all threads must wait; daemon threads that do not wait,
  such as a progress bar's, are ignored after ten seconds.
- *Overdue.* The wait has lasted longer than the time limit (`checks.modes.time_limit_s`).

The verdict says what every rank waits for and where, and who never arrived. It goes to all ranks. A rank that polls
(every rank does under ``ranks`` checking and under the policy ``raise``) raises it as a `DeadlockError`; one that is
blocked inside MPI cannot, and its monitor ends the job with that text. Before there is a verdict nothing is changed,
and a rank that waits for a good reason asks less and less often.
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

FIRST_S = 0.6  # how long a wait lasts before the other ranks are asked
_ANSWER_S = 1.0  # how long a monitor may take to answer; one whose rank holds the interpreter may not
_DAEMONS_S = 10.0  # after it, daemon threads that do not wait are ignored
_BLOCKED_S = 1.0  # how long a rank has to raise the verdict, before its monitor ends the job
_TAGS = _ASK, _ANSWER, _VERDICT = 2, 3, 4

Answer = dict[str, Any]


class DeadlockDetection:
    """The questions of one rank to the others, and its answers to theirs. Its methods are called by one thread.

    Parameters
    ----------
    control : Control
        The control channel.
    activity : Activity
        What this rank does.
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
        self._since: dict[int, tuple[Wait, float]] = {}  # thread -> its wait, and since when it was seen
        self._next_s = FIRST_S
        self._round = 0
        self._asked: float | None = None
        self._answers: dict[int, Answer] = {}
        self._before: dict[int, Answer] | None = None  # the first round's answers
        self._told: list[tuple[int, Wait, float, str]] = []  # waits that should end with a verdict
        self.has_left = False
        self.rank = control.rank
        self.size = control.size

    @property
    def is_busy(self) -> bool:
        """Whether the monitor should look again soon."""
        return self._asked is not None or bool(self._sends) or bool(self._told)

    def step(self) -> None:
        """Look at the waits and the answers, and do what is due."""
        now = time.monotonic()
        self.has_sent()
        waits = dict(self._waiting)
        self._since = {
            thread: self._since[thread] if thread in self._since and self._since[thread][0] is wait else (wait, now)
            for thread, wait in waits.items()
        }
        longest = max((now - since for thread, (_, since) in self._since.items() if thread > 0), default=0.0)
        for thread, wait, told, text in self._told:
            if self._waiting.get(thread) is wait and now - told > _BLOCKED_S:
                self._end_job(text, is_told_once=True)
        self._told = [entry for entry in self._told if self._waiting.get(entry[0]) is entry[1]]
        limit_s = modes.time_limit_s()
        if self._asked is not None:
            if len(self._answers) == self.size or now - self._asked > _ANSWER_S:
                self._asked = None
                self._judge(longest, limit_s)
        elif longest < FIRST_S:
            self._next_s, self._before = FIRST_S, None
        elif longest >= self._next_s or (limit_s is not None and self._next_s > limit_s and longest >= limit_s):
            self._ask()

    def _ask(self) -> None:
        self._round += 1
        self._asked = time.monotonic()
        self._answers = {self.rank: self._answer()}
        self._send_to_all(_ASK, {"round": self._round})

    def _judge(self, longest: float, limit_s: float | None) -> None:
        before, self._before = self._before, self._answers
        if before is None:  # a second round, at once: the first one's answers lie before it
            self._ask()
            return
        stuck = deadlocked(before, self._answers, longest > _DAEMONS_S, self._activity.raises)
        self._before = None
        self._next_s *= 2
        if not stuck and (limit_s is None or longest < limit_s):
            return
        why = "no rank can go on" if len(stuck) == self.size else "ranks wait for each other" if stuck else ""
        if not why:
            why = f"rank {self.rank} has waited for {limit_s:g} s (RINGTAPE_TIMEOUT_S)"
        text = verdict_text(why, self._answers, self.size)
        waits = {str(rank): answer["waits"] for rank, answer in self._answers.items() if not stuck or rank in stuck}
        verdict = {"text": text, "waits": waits}
        self._send_to_all(_VERDICT, verdict)
        self._hear_verdict(verdict)

    # -- messages ----------------------------------------------------------------------------------------------
    def _send_to_all(self, tag: int, content: Any) -> None:
        for rank in range(self.size):
            if rank != self.rank:
                self._send(rank, tag, content)

    def _send(self, rank: int, tag: int, content: Any) -> None:
        # Synchronous: complete means received, so that none is under way when the channel is freed.
        self._sends.append(self._control.send(rank, tag, content, is_synchronous=True))

    def has_sent(self) -> bool:
        """Whether all that this rank has said was received; makes progress."""
        self._sends = [test for test in self._sends if not test()]
        return not self._sends

    def hear(self) -> None:
        """Receive what has arrived, and answer."""
        for tag in _TAGS:
            while (message := self._control.receive(tag)) is not None:
                self._take(tag, *message)

    def _take(self, tag: int, source: int, content: Any) -> None:
        if tag == _ASK:
            self._send(source, _ANSWER, {**self._answer(), "round": content["round"]})
        elif tag == _VERDICT:
            self._hear_verdict(content)
        elif content["round"] == self._round:
            self._answers[source] = content

    def _answer(self) -> Answer:
        """What this rank does: its waits, and whether all its threads wait."""
        waits = dict(self._waiting)
        monitor = threading.current_thread()
        idle = [t for t in threading.enumerate() if t is not monitor and t.ident not in waits]
        main = threading.main_thread()
        doing = "has left" if self.has_left else f"computes at {site_of_thread(main.ident) or 'an unknown place'}"
        return {
            "waits": [
                [thread, channel.key, call, number, source, f"{_named(channel, call, number, source)}",
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

    def _hear_verdict(self, verdict: Any) -> None:
        mine = {tuple(wait[:4]) for wait in verdict["waits"].get(str(self.rank), [])}
        # A rank that comes later to a call that the others have given up must not wait in it.
        for waits in verdict["waits"].values():
            for wait in waits:
                channel = self._channels.get(wait[1])
                if channel is not None and channel.broken is None:
                    channel.broken = verdict["text"]
                    self._activity.is_alarmed = True
        now = time.monotonic()
        for thread, wait in dict(self._waiting).items():
            if thread > 0 and (thread, wait[0].key, wait[1], wait[2]) in mine:
                self._told.append((thread, wait, now, verdict["text"]))


def _named(channel: Channel, call: str, number: int, source: int | None) -> str:
    peer = "" if source is None else f" {'to' if call == 'lend' else 'from'} rank {source}"
    return f"{call} #{number} on '{channel.name}'{peer}"


def _missing(wait: Any, answers: dict[int, Answer], rank: int) -> list[int]:
    """The ranks that the wait is for: those that have not made the call, or not sent (or received) the message."""
    _, key, call, number, peer, _, _, ranks = wait
    if peer is not None:
        what = "received" if call == "lend" else "sent"
        counts = answers[peer].get(what, {}).get(key, {}) if peer in answers else {}
        made = counts.get(str(rank), counts.get(rank, 0))
        return [peer] if made < number else []
    return [r for r in ranks if r != rank and (r not in answers or answers[r]["calls"].get(key, 0) < number)]


def deadlocked(
    before: dict[int, Answer], after: dict[int, Answer], is_late: bool = False, raises: bool = False
) -> set[int]:
    """The ranks that wait for each other, so that no other rank can end their waits: see the module.

    Parameters
    ----------
    before, after : dict of int to dict
        Two rounds of answers, by rank.
    is_late : bool
        Whether the wait has lasted so long that daemon threads are ignored.
    raises : bool
        Whether a wait for a rank that has left will raise an error, so that it is no deadlock.
    """

    def is_blocked(answer: Answer) -> bool:
        return answer["is_blocked"] and (is_late or not answer["has_daemons"])

    def blocked_in(answer: Answer) -> list[Any]:
        return [wait for wait in answer["waits"] if wait[0] > 0]  # the others are tests that found it incomplete

    def waits_of(answer: Answer) -> set[tuple[Any, ...]]:
        return {tuple(wait[:5]) for wait in blocked_in(answer)}

    stuck = {
        rank
        for rank in before.keys() & after.keys()
        if is_blocked(before[rank]) and is_blocked(after[rank]) and waits_of(before[rank]) == waits_of(after[rank])
    }
    gone = {rank for rank, answer in after.items() if answer["has_left"]}

    def is_held(missing: list[int]) -> bool:
        """Whether the ranks that a wait is for never come, and nobody tells it."""
        if raises:
            return not gone.intersection(missing) and bool(stuck.intersection(missing))
        return bool((stuck | gone).intersection(missing))

    while True:
        held = {
            rank for rank in stuck if all(is_held(_missing(wait, after, rank)) for wait in blocked_in(after[rank]))
        }
        if held == stuck:
            return stuck
        stuck = held


def verdict_text(why: str, answers: dict[int, Answer], size: int) -> str:
    """The text of a verdict: why, and what every rank does, one line each."""
    lines = []
    for rank in range(size):
        answer = answers.get(rank)
        if answer is None:
            lines.append(f"rank {rank} does not answer: its program holds the interpreter, or it has stopped")
        elif not answer["waits"]:
            lines.append(f"rank {rank} {answer['doing']}{_task(answer)}")
        if answer is None:
            continue
        for wait in answer["waits"]:
            missing = _missing(wait, answers, rank)
            for_whom = f" for {modes.rank_list(missing)}" if missing and wait[4] is None else ""
            at = f" at {wait[6]}" if wait[6] else ""
            lines.append(f"rank {rank} waits in {wait[5]}{for_whom}{at}{_task(answer)}")
    return "\n  ".join([why, *lines])


def _task(answer: Answer) -> str:
    return f" ({answer['task']})" if answer.get("task") else ""
