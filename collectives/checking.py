"""How often ranks compare the calls they make, and what they are told when the calls differ. Every backend shares it.

The mode is read from ``RINGTAPE_CHECK`` once and changed with `set_check`:

- ``off``: never.
- ``first``: the first 1000 calls of every communicator (the default: a program that goes wrong mostly does so early).
- ``always``: every call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["MODES", "check_mode", "is_checked", "mismatch_text", "set_check"]

MODES = ("off", "first", "always")
FIRST_CALLS = 1000

_limits = {"off": 0.0, "first": float(FIRST_CALLS), "always": float("inf")}
_mode = os.environ.get("RINGTAPE_CHECK", "first")
if _mode not in MODES:
    raise ValueError(f"RINGTAPE_CHECK={_mode!r}: needed one of {', '.join(MODES)}")


def set_check(mode: str) -> None:
    """Set the mode, to the same one on all ranks and at the same place of the program.

    Raises
    ------
    ValueError
        The mode is none of `MODES`.
    """
    global _mode
    if mode not in MODES:
        raise ValueError(f"check mode {mode!r}: needed one of {', '.join(MODES)}")
    _mode = mode


def check_mode() -> str:
    """The mode in force."""
    return _mode


def is_checked(agreed: int) -> bool:
    """Whether a communicator that has compared `agreed` calls compares the next one."""
    return agreed < _limits[_mode]


def _rank_list(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def mismatch_text(name: str, ranks: Sequence[int], calls: Sequence[str]) -> str:
    """The text of a `CollectiveMismatch`.

    Parameters
    ----------
    name : str
        The communicator's name.
    ranks : sequence of int
        The world ranks of its members.
    calls : sequence of str
        What each member called, in the same order.
    """
    who: dict[str, list[int]] = {}
    for rank, call in zip(ranks, calls, strict=True):
        who.setdefault(call, []).append(rank)
    groups = sorted(who.items(), key=lambda item: (-len(item[1]), item[1]))
    if len(groups) > 1 and len(groups[0][1]) == len(groups[1][1]):
        head = f"the {len(ranks)} ranks of '{name}' made {len(groups)} different calls"
    else:
        odd = sorted(rank for _, members in groups[1:] for rank in members)
        head = f"{_rank_list(odd)} did not make the call of the other ranks of '{name}'"
    lines = [f"  {_rank_list(members)}: {call}" for call, members in groups]
    return "\n".join([head, *lines, "  needed: the same call, in the same order, on all ranks of the group"])
