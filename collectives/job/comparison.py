"""Comparison of the calls that the ranks have made, in every check mode, at no cost to the calls themselves.

Two ranks that make different calls on a channel corrupt each other's data or hang. The fingerprints of the check modes
find that before the call, but ``first`` stops after 1000 calls and ``off`` compares nothing. The monitors therefore
compare the histories of all channels (see `history`) while the program runs, and once more when it ends.

About once a second, a rank that has made calls sends a summary to the next rank of the channel: the digest of its calls
up to a multiple of `BLOCK`, and the marks after it. The receiver compares it with its own history as soon as it has
made as many calls. If all neighbours agree, all ranks agree, so the messages are linear in the number of ranks.

Where two histories differ, the receiver asks the other ranks of the channel for their call at that place, with the line
of the program, and ends the job with the text of a `CollectiveMismatch`. Under the policy ``raise`` the ranks raise it.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from autograd.errors import CollectiveMismatch, site_of_thread

from ..checks import reports
from ..checks.reports import MadeCall, call_difference, first_difference, unknown_calls_text
from .activity import Activity, Channel, Numbers, has_made
from .control import Control, Test
from .history import Record
from .marks import call_of

__all__ = ["Comparison"]

_TAG = 6
_PERIOD_S = 1.0  # between two summaries of one rank
_BLOCKED_PERIOD_S = 0.25  # while it waits
_REPLY_S = 1.0  # how long a reply may take; a rank that holds the interpreter's lock cannot reply
_RETIRED_S = 10.0  # how long the history of a freed channel is kept
_LATEST = 24  # calls of a channel that the supervisor compares, and how much of their texts and places
_TEXT_CHARACTERS, _SITE_CHARACTERS = 180, 100

Summary = tuple[int, int, Any, bool]
"""The number of calls of the digest, the digest, the marks after it, and whether the rank makes no further call."""


class _Difference(NamedTuple):
    """A place where two histories differ: what is asked of the other ranks, and their answers."""

    key: str
    at: int | None  # None: the marks of that place are no longer kept
    since: float
    answers: dict[int, Any]  # by world rank: the text and the place of the call, or why there is none


class Comparison:
    """Sends one rank's summaries, and compares those that it receives. Used by one thread only.

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
        self._end_job = end_job
        self._records: dict[str, Record] = {}
        self._retired: dict[str, float] = {}  # channels that were freed, and when
        self._sent: dict[str, int] = {}  # the number of calls in the last summary of each channel
        self._in_transit: dict[int, Test] = {}  # the last summary to each rank
        self._replies: list[Test] = []
        self._next_s = 0.0
        self._received: dict[tuple[str, int], list[Summary]] = {}  # summaries that could not be compared yet
        self._difference: _Difference | None = None
        self._is_told = False
        self._is_final = False  # whether this rank's program makes no further calls
        self._sent_to_me: dict[int, Any] = {}  # by rank: the messages that it has sent, when its program has ended

    # -- steps -------------------------------------------------------------------------------------------------
    def step(self) -> None:
        """Take in this rank's new calls, send a summary of them if it is time, and compare what was received."""
        now = time.monotonic()
        self._fold(now)
        self._reap()
        if now >= self._next_s:
            self._next_s = now + (_BLOCKED_PERIOD_S if self._activity.waits() else _PERIOD_S)
            self._send_summaries()
        for key, source in list(self._received):
            self._compare(key, source)
        if self._is_final and self._sent_to_me:
            self._compare_messages()
        found = self._difference
        if found is not None and not self._is_told:
            record = self._records[found.key]
            if len(found.answers) == len(record.channel.ranks) or now - found.since > _REPLY_S:
                self._tell(found, record)

    def finish(self) -> None:
        """Send the last summary: this rank's program has ended."""
        self._is_final = True
        self._sent.clear()
        self._next_s = 0.0
        channels = self._activity.channels.copy()
        targets = {target for channel in channels.values() for target in channel.texts}
        for target in targets:
            counts = {
                key: [_total(channel.sent[target]), list(channel.texts[target])]
                for key, channel in channels.items() if target in channel.texts
            }  # fmt: skip
            self._replies.append(self._send(target, {"messages": counts}))

    def is_quiet(self) -> bool:
        """Whether nothing that this rank has sent or asked is under way; makes progress."""
        self._reap()
        is_asking = self._difference is not None and not self._is_told
        return not (self._replies or self._in_transit or is_asking or (self._is_final and self._is_unsent()))

    def _reap(self) -> None:
        self._replies = [test for test in self._replies if not test()]
        self._in_transit = {rank: test for rank, test in self._in_transit.items() if not test()}

    def _present_records(self) -> dict[str, Record]:
        """The records of all channels, with new ones for channels that have none."""
        known = self._records.copy()
        channels = self._activity.channels.copy()
        return known | {
            key: Record(channel)
            for key, channel in channels.items() if channel.history is not None and key not in known
        }  # fmt: skip

    def _fold(self, now: float) -> None:
        channels = self._activity.channels.copy()
        self._records = self._present_records()
        for key, record in list(self._records.items()):
            record.fold()
            if key in channels:
                continue
            if now - self._retired.setdefault(key, now) > _RETIRED_S:  # its last calls have been compared
                del self._records[key], self._retired[key]
                self._sent.pop(key, None)
                self._received = {name: kept for name, kept in self._received.items() if name[0] != key}

    def _is_compared(self, channel: Channel) -> bool:
        """Whether the ranks of a channel make the same calls: not after a deadlock or a failure that was survived."""
        return channel.broken is None and not self._activity.departed.keys() & set(channel.ranks)

    # -- summaries ---------------------------------------------------------------------------------------------
    def _next_rank(self, record: Record) -> int | None:
        """The rank that this one's summaries of a channel go to; None for the last rank."""
        ranks = record.channel.ranks
        after = ranks.index(self._activity.rank) + 1
        return ranks[after] if after < len(ranks) else None

    def _send_summaries(self) -> None:
        summaries: dict[int, dict[str, Any]] = {}
        for key, record in self._records.items():
            target = self._next_rank(record)
            if target is None or self._sent.get(key) == record.number or target in self._in_transit:
                continue
            if not self._is_compared(record.channel):
                self._sent[key] = record.number
                continue
            if record.number or self._is_final:
                _, tail = record.marks(record.hashed)
                digest = record.digest(record.hashed)
                summaries.setdefault(target, {})[key] = [record.hashed, digest, tail.tobytes().hex(), self._is_final]
                self._sent[key] = record.number
        for target, content in summaries.items():
            self._in_transit[target] = self._send(target, {"summaries": content})

    def _is_unsent(self) -> bool:
        return any(
            self._sent.get(key) != record.number and self._next_rank(record) is not None
            for key, record in self._records.items()
        )

    def _send(self, rank: int, content: Any) -> Test:
        # A synchronous send is complete when it is received, so no message is in transit when the channel is freed.
        return self._control.send(rank, _TAG, content, is_synchronous=True)

    def receive(self) -> None:
        """Receive the messages that have arrived, and reply to questions."""
        while (message := self._control.receive(_TAG)) is not None:
            source, content = message
            if "summaries" in content:
                for key, (hashed, digest, tail, is_final) in content["summaries"].items():
                    # The oldest one that cannot be compared yet is kept, and the latest one.
                    kept = self._received.setdefault((key, source), [])
                    del kept[1:]
                    kept.append((hashed, digest, _marks(tail), is_final))
            elif "messages" in content:
                self._sent_to_me[source] = content["messages"]
            elif "question" in content:
                self._fold(time.monotonic())
                key, index = content["question"]
                answer = self._answer(key, index)
                self._replies.append(self._send(source, {"answer": [key, index, answer]}))
            elif "answer" in content:
                key, index, answer = content["answer"]
                found = self._difference
                if found is not None and (found.key, found.at) == (key, index):
                    found.answers[source] = answer
            elif "window" in content:
                self._fold(time.monotonic())
                record = self._records.get(content["window"])
                first, marks = (0, array("Q")) if record is None else record.marks(0)
                reply = {"marks": [content["window"], first, marks.tobytes().hex()]}
                self._replies.append(self._send(source, reply))
            elif "marks" in content:
                self._take_window(source, *content["marks"])
            else:
                self._take_verdict(*content["verdict"])

    # -- messages between two ranks ------------------------------------------------------------------------------
    def _compare_messages(self) -> None:
        """Look for messages that this rank has not received. Its program and those of the senders have ended."""
        found, self._sent_to_me, mine = self._sent_to_me, {}, self._activity.rank
        unreceived = []
        for source, channels in found.items():
            for key, (total, texts) in channels.items():
                channel = self._activity.channels.get(key)
                received: Any = 0 if channel is None else channel.received.get(source, 0)
                if total > _total(received) and (channel is None or channel.broken is None):
                    unreceived += [(source, mine, text) for number, text in texts if not has_made(received, number)]
        if unreceived and not self._activity.raises and not self._activity.departed:
            self._end_job(f"CollectiveMismatch: {reports.unreceived_text(unreceived)}", is_printed_once=True)

    # -- comparison --------------------------------------------------------------------------------------------
    def _compare(self, key: str, source: int) -> None:
        record = self._records.get(key)
        kept = self._received[key, source]
        if record is not None and not self._is_compared(record.channel):
            kept.clear()
        while kept and record is not None and self._difference is None:
            hashed, digest, tail, is_final = kept[0]
            are_final = is_final and self._is_final and not self._activity.raises
            if record.hashed < hashed and not are_final:
                return  # this rank has not made as many calls yet
            if record.hashed < hashed or record.digest(hashed) not in (None, digest):
                self._difference = _Difference(key, None, time.monotonic(), {})
                self._replies.append(self._send(source, {"window": key}))
                return
            start, marks = record.marks(hashed)
            at = first_difference([(hashed, tail), (start, marks)]) if start == hashed else None
            number = hashed + len(tail)
            if at is None and are_final and number != record.number:  # calls are missing at the end
                at = min(number, record.number)
            if at is not None:
                self._ask(key, at)
            elif number > record.number or (is_final and not self._is_final):
                return  # the rest is compared when this rank has made these calls, or when it ends
            else:
                del kept[0]
        if not kept:
            del self._received[key, source]

    def _take_window(self, source: int, key: str, first: int, marks: str) -> None:
        record, theirs = self._records[key], _marks(marks)
        start, mine = record.marks(first)
        at = first_difference([(first, theirs), (start, mine)])
        if at is None and self._is_final and first + len(theirs) != record.number:
            at = min(first + len(theirs), record.number)
        # A difference is the first one only if the marks before it are there and equal.
        is_first = at is not None and (at > start or start == 0)
        self._ask(key, at if is_first else None)

    def _ask(self, key: str, index: int | None) -> None:
        """Ask the other ranks of a channel for their call at a place where two histories differ."""
        mine = self._activity.rank
        self._difference = _Difference(key, index, time.monotonic(), {mine: self._answer(key, index)})
        for rank in self._records[key].channel.ranks:
            if rank != mine:
                self._replies.append(self._send(rank, {"question": [key, index]}))

    def _answer(self, key: str, index: int | None) -> Any:
        """This rank's call at a place of a channel's history, and its line, or why there is none."""
        record = self._records.get(key)
        if record is None or index is None or index >= record.number:
            return [_ENDED if self._is_final else _NOT_YET, _site_of_program()]
        first, marks = record.marks(index)
        return self._described(record.channel, marks) if first == index else ["a call whose text is no longer kept", ""]

    def _described(self, channel: Channel, marks: Sequence[int]) -> list[str]:
        """The text and the line of the first of a channel's last calls, given the marks of all of them."""
        text, first = call_of(marks[0])
        if all(made & 1 for made in marks[1:]):  # it is the last one, or the collective that these belong to
            for thread, wait in self._activity.waits().items():
                if thread > 0 and wait[0].ranks == channel.ranks:
                    return [text, site_of_thread(thread)]
        now = _site_of_program()
        if not first or self._is_final:
            return [text, first]
        # The line of a completed call is not recorded, because every call would pay for it.
        return [text, first if now == first else f"{first} (its first such call; it is now at {now})"]

    def latest(self) -> list[str]:
        """The latest calls of every channel, as lines for the supervisor.

        Another thread may call it, and does not wait for this one, which MPI may have stopped.
        """
        lines = []
        for key, record in self._present_records().items():
            if not self._is_compared(record.channel):
                continue
            first, marks = record.latest(_LATEST)
            calls = [self._described(record.channel, marks[at:]) for at in range(len(marks))]
            calls += [[_ENDED, _site_of_program()]] * self._is_final
            fields = [key, record.channel.name]
            for text, site in calls:
                fields += [text[:_TEXT_CHARACTERS], site[:_SITE_CHARACTERS]]
            lines.append("\t".join([f"calls {first}", *(" ".join(field.split()) for field in fields)]))
        return lines

    # -- the verdict -------------------------------------------------------------------------------------------
    def _tell(self, found: _Difference, record: Record) -> None:
        if not self._is_compared(record.channel):
            self._difference = None
            return
        self._is_told = True
        text = _text(found, record)
        if self._activity.raises:
            # The program may never call this channel again, and then nothing else would tell.
            reports.print_report(f"CollectiveMismatch: {text}")
            for rank in record.channel.ranks:
                if rank != self._activity.rank:
                    self._replies.append(self._send(rank, {"verdict": [found.key, text]}))
            self._take_verdict(found.key, text)
        else:
            self._end_job(f"CollectiveMismatch: {text}", is_printed_once=True)

    def _take_verdict(self, key: str, text: str) -> None:
        channel = self._activity.channels.get(key)
        if channel is not None and channel.broken is None:
            channel.broken = CollectiveMismatch(text)
            self._activity.is_alarmed = True


def _site_of_program() -> str:
    return site_of_thread(threading.main_thread().ident)


def _total(made: Any) -> int:
    return made.total if isinstance(made, Numbers) else int(made)


def _marks(text: str) -> Any:
    marks = array("Q")
    marks.frombytes(bytes.fromhex(text))
    return marks


def _text(found: _Difference, record: Record) -> str:
    name = record.channel.name
    calls = {
        rank: MadeCall(*found.answers[rank])
        for rank in record.channel.ranks if rank in found.answers and found.answers[rank][0] != _NOT_YET
    }  # fmt: skip
    text = None if found.at is None else call_difference(name, calls)
    return unknown_calls_text(name, record.number) if text is None else text


_NOT_YET = "not yet"
_ENDED = "no further call: its program has ended"
