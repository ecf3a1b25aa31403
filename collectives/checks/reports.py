"""The comparison of the ranks' calls, and the texts of reports on several ranks, which are the same for all transports.

Different calls are detected at three places, which compare and report them here: before a call, by the statements that
ranks exchange (`sanitizer`); while the program runs and at its end, by the histories that monitors exchange
(`job.comparison`); when a library ends a rank, by the latest calls that the ranks of its host send to the supervisor
(`job.supervisor`). The supervisor loads this file without the packages, so it imports the standard library only.
"""

from __future__ import annotations

import os
import warnings
from collections import namedtuple  # not typing's: that takes a quarter of the supervisor's start
from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "MadeCall", "call_difference", "first_call_difference", "first_difference", "line_difference", "mismatch_text",
    "number_difference", "print_report", "rank_list", "unknown_calls_text", "unreceived_text", "warn_once",
]  # fmt: skip

_MOST_SHOWN = 6  # messages that an error lists


class MadeCall(namedtuple("MadeCall", ("text", "site", "number", "callers"), defaults=("", 0, ""))):
    """A call that a rank has made: its text, its line, its number on the channel, and the lines around its own."""

    __slots__ = ()


# -- the comparison of calls -------------------------------------------------------------------------------------------
def call_difference(name: str, calls: Mapping[int, MadeCall]) -> str | None:
    """The text of the error if the ranks of communicator `name` make different calls; None if they make the same."""
    return mismatch_text(name, calls) if _differ(call.text for call in calls.values()) else None


def number_difference(name: str, calls: Mapping[int, MadeCall]) -> str | None:
    """The text of the error if the same call has different numbers; None if it has the same one."""
    if not _differ(call.number for call in calls.values()):
        return None
    counted = {rank: f"{call.text} as call #{call.number} of '{name}'" for rank, call in calls.items()}
    return mismatch_text(name, {rank: call._replace(text=counted[rank]) for rank, call in calls.items()})


def line_difference(name: str, calls: Mapping[int, MadeCall]) -> str | None:
    """The text of the error if the same call is made at different lines, or called from others; None if not."""
    where = {rank: call.site for rank, call in calls.items()}
    if not _differ(where.values()):
        if not _differ(call.callers for call in calls.values()):
            return None
        where = {rank: f"{call.site}, called from {call.callers or 'no function'}" for rank, call in calls.items()}
    shown = {rank: MadeCall(f"{call.text}\n    at {where[rank]}") for rank, call in calls.items()}
    return "\n".join([
        *_call_lines(name, shown, "the same call at the line of"),
        "  needed: the same lines of the program on all ranks, or the ranks may confuse two equal calls",
        '  fix: call it at one place; or, if the different lines are intended, cc.check("ranks", sites=False)',
    ])  # fmt: skip


def first_call_difference(name: str, histories: Mapping[int, tuple[int, Sequence[MadeCall]]]) -> str | None:
    """The text of the error about the first call that differs; None if none does.

    `histories` has for each rank the number of calls before the first one that is known, and the calls from it on.
    """
    at = first_difference([(first, [call.text for call in calls]) for first, calls in histories.values()])
    if at is None:
        return None
    known = {rank: calls[at - first : at - first + 1] for rank, (first, calls) in histories.items()}
    return mismatch_text(name, {rank: calls[0] for rank, calls in known.items() if calls})


def first_difference(histories: Sequence[tuple[int, Sequence[object]]]) -> int | None:
    """The number of the first call that differs, as far as at least two histories go.

    >>> first_difference([(2, "cdef"), (0, "abcdE"), (3, "d")])
    4
    """
    start = max(first for first, _ in histories)
    ends = sorted(first + len(calls) for first, calls in histories)
    shared_end = max(start, ends[0])
    shared = [calls[start - first : shared_end - first] for first, calls in histories]
    if all(calls == shared[0] for calls in shared):  # the usual result, without a step for each call
        start = shared_end
    for number in range(start, ends[-2] if len(ends) > 1 else start):
        if _differ(calls[number - first] for first, calls in histories if number - first < len(calls)):
            return number
    return None


def _differ(values: Iterable[object]) -> bool:
    return len(set(values)) > 1


def mismatch_text(name: str, calls: Mapping[int, MadeCall]) -> str:
    """The text of a `CollectiveMismatch` on communicator `name`, from the calls by world rank."""
    lines = _call_lines(name, calls, "the call of")
    lines.append("  needed: the same call, in the same order, on all ranks of the group")
    texts = {call.text for call in calls.values()}
    ended = {text for text in texts if text.startswith("the end of the block of ")}
    if ended and ended != texts:
        lines.append("  fix: as many steps on all ranks: data.DataLoader(dataset, rows, axis=...) shares each batch "
                     "among all ranks,\n       and a rank without rows goes on with an empty array")  # fmt: skip
    elif len(texts) > 1 and all(text.startswith("permute(") for text in texts):
        lines.append("  fix: permute(..., like=y), if the parts have different shapes: y has the shape that this rank "
                     "receives")  # fmt: skip
    return "\n".join(lines)


def unknown_calls_text(name: str, number: int) -> str:
    """The text of a `CollectiveMismatch` if the calls that differ, before call `number`, are no longer known."""
    return (
        f"the ranks of '{name}' have made different calls (before call {number}; the calls of that place are no longer "
        "kept)\n  fix: RINGTAPE_CHECK=always compares every call before it is made"
    )


def _call_lines(name: str, calls: Mapping[int, MadeCall], what: str) -> list[str]:
    """The ranks that differ, and each call with its ranks and their lines. The call of most ranks comes first."""
    who: dict[str, list[int]] = {}
    for rank, call in calls.items():
        who.setdefault(call.text, []).append(rank)
    groups = sorted(who.items(), key=lambda item: (-len(item[1]), item[1]))
    if len(groups) > 1 and len(groups[0][1]) == len(groups[1][1]):
        head = f"the {len(calls)} ranks of '{name}' made {len(groups)} different calls"
    else:
        odd = sorted(rank for _, members in groups[1:] for rank in members)
        head = f"{rank_list(odd)} did not make {what} the other ranks of '{name}'"
    return [head, *(f"  {rank_list(members)}: {text}{_places(members, calls)}" for text, members in groups)]


def _places(members: Sequence[int], calls: Mapping[int, MadeCall]) -> str:
    found: dict[str, list[int]] = {}
    for rank in members:
        if calls[rank].site:
            found.setdefault(calls[rank].site, []).append(rank)
    if len(found) == 1:
        return f"\n    at {next(iter(found))}"
    return "".join(f"\n    at {site} ({rank_list(some)})" for site, some in found.items())


# -- other texts -------------------------------------------------------------------------------------------------------
def rank_list(ranks: Sequence[int]) -> str:
    """``rank 1``, or ``ranks 0, 2``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def print_report(text: str) -> None:
    """Print ``ringtape: <text>`` on stderr, without the control characters that other ranks may have put into it.

    It is a single write, so that the lines of several ranks are not interleaved.
    """
    from autograd.errors import printable  # not in the supervisor

    os.write(2, f"ringtape: {printable(text)}\n".encode(errors="replace"))


def warn_once(text: str, category: type[Warning], site: tuple[str, int]) -> None:
    """Warn of a line of the program. By default Python shows a text once for each line."""
    file, line = site
    warnings.warn_explicit(text, category, file, line, registry=_told)


_told: dict[str | tuple[str, type[Warning], int], int] = {}  # the warnings that were given, for Python's filters


def unreceived_text(messages: Sequence[tuple[int, int, str]]) -> str:
    """The message for values that were sent and never received: each with its two ranks and its description."""
    lines = [f"from rank {source} to rank {target}: {text}" for source, target, text in messages[:_MOST_SHOWN]]
    if len(messages) > _MOST_SHOWN:
        lines.append(f"and {len(messages) - _MOST_SHOWN} more")
    is_cotangent = any(text.startswith("the cotangent") for _, _, text in messages)
    fix = (
        "tape.backward(...) on both ranks of a message, for the tapes that recorded its send and its recv"
        if is_cotangent else "a recv for every send, or leave the send out"
    )  # fmt: skip
    count = f"{len(messages)} message{'s were' if len(messages) > 1 else ' was'}"
    return "\n  ".join([f"all programs have ended, and {count} sent and never received", *lines, f"fix: {fix}"])
