"""The texts of reports on several ranks: a mismatch, a deadlock, and messages that no rank received.

Every transport finds these errors in its own way. The texts are made here, so that they are the same for all.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from autograd.errors import printable

__all__ = ["mismatch_text", "print_report", "rank_list", "states_text", "task_text", "unreceived_text", "wait_text",
           "warn_once"]  # fmt: skip

_MOST_SHOWN = 6  # messages that an error lists


def print_report(text: str) -> None:
    """Print ``ringtape: <text>`` on stderr, without the control characters that other ranks may have put into it.

    It is a single write, so that the lines of several ranks are not interleaved.
    """
    os.write(2, f"ringtape: {printable(text)}\n".encode(errors="replace"))


def warn_once(text: str, category: type[Warning], site: tuple[str, int]) -> None:
    """Warn of a line of the program. By default Python shows a text once for each line."""
    file, line = site
    warnings.warn_explicit(text, category, file, line, registry=_told)


_told: dict[Any, Any] = {}  # the warnings that were given, for Python's filters


def rank_list(ranks: Sequence[int]) -> str:
    """``rank 1``, or ``ranks 0, 2``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def states_text(why: str, states: Sequence[str], waits: Sequence[str]) -> str:
    """The text of a deadlock or of a long wait: the reason, the state of each rank, and a fix if the waits show one.

    Parameters
    ----------
    why : str
        The reason.
    states : sequence of str
        A line for each rank, or for each wait of a rank, as `wait_text` makes it.
    waits : sequence of str
        The calls that the ranks wait in.
    """
    return "\n  ".join([why, *states]) + _fix(waits)


def wait_text(
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
    return ""


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


def mismatch_text(name: str, ranks: Sequence[int], calls: Sequence[str], sites: Sequence[str] = ()) -> str:
    """The text of a `CollectiveMismatch`.

    Parameters
    ----------
    name : str
        The communicator's name.
    ranks : sequence of int
        The world ranks of its members.
    calls : sequence of str
        The call of each member, in the same order.
    sites : sequence of str
        The call site of each member, ``model.py:41``; an empty string if it is not known.
    """
    who: dict[str, list[int]] = {}
    for rank, call in zip(ranks, calls, strict=True):
        who.setdefault(call, []).append(rank)
    groups = sorted(who.items(), key=lambda item: (-len(item[1]), item[1]))
    if len(groups) > 1 and len(groups[0][1]) == len(groups[1][1]):
        head = f"the {len(ranks)} ranks of '{name}' made {len(groups)} different calls"
    else:
        odd = sorted(rank for _, members in groups[1:] for rank in members)
        head = f"{rank_list(odd)} did not make the call of the other ranks of '{name}'"
    where = dict(zip(ranks, sites, strict=True)) if sites else {}
    lines = [f"  {rank_list(members)}: {call}{_places(members, where)}" for call, members in groups]
    lines.append("  needed: the same call, in the same order, on all ranks of the group")
    if len(groups) > 1 and all(call.startswith("permute(") for call, _ in groups):
        lines.append("  fix: permute(..., like=y), if the parts have different shapes: y has the shape that this rank "
                     "receives")  # fmt: skip
    return "\n".join([head, *lines])


def _places(members: Sequence[int], where: dict[int, str]) -> str:
    found: dict[str, list[int]] = {}
    for rank in members:
        if where.get(rank):
            found.setdefault(where[rank], []).append(rank)
    if len(found) == 1:
        return f"\n    at {next(iter(found))}"
    return "".join(f"\n    at {site} ({rank_list(some)})" for site, some in found.items())
