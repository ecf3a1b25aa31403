"""Checks: everything that the ranks of one channel compare, and how far they have come.

The owner of the state of all comparisons along a channel. `Communicator.checks` is None in a group of one rank. The
modules of this folder fill it: `numbers`, `sanitizer` and `parts`, and `collectives.scale.addends`, before calls;
`collectives.replicas` at backward, at an optimizer's step and at the end of a mesh's block.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from . import modes
from .sampling import Sampling

__all__ = ["MOST", "Checks", "QuietChecks"]

MOST = 4096
"""Limit on the copies, and on the parts, that are kept for a channel without calls."""


class Checks:
    """The owner of all that the ranks of one channel compare.

    Parameters
    ----------
    never : bool
        Whether nothing is compared: in a dry run.

    Attributes
    ----------
    sampling : Sampling
        Counts the calls, and which of them are compared.
    copies : list of Copy
        Values that should be equal on the ranks. The next statement compares them (see `sanitizer`).
    parts : list of Part
        Parts of Shards that should differ. The next statements compare one each (see `parts`).
    lines : dict
        How often each line of the program has labelled a tensor R, I or Shard.
    objectives : int
        The number of Invariant objectives of which backward was called (see `collectives.replicas`).
    ends : int
        The number of blocks of the mesh that ended since the first objective or optimizer.
    """

    __slots__ = ("_leaves", "_leaves_so_far", "copies", "ends", "lines", "objectives", "parts", "sampling")
    is_quiet = False

    def __init__(self, *, never: bool = False):
        self.sampling = Sampling.never() if never else Sampling()
        self.copies: list[Any] = []
        self.parts: list[Any] = []
        self.lines: dict[Any, int] = {}
        self.objectives = 0
        self._leaves: dict[int, tuple[int, Any]] = {}  # numbers and weak references, by the identity of the leaf
        self._leaves_so_far = 0
        self.ends = 0

    @property
    def is_due(self) -> bool:
        """Whether the next call's fingerprint is compared. The same on all ranks of the group."""
        sampling = self.sampling
        return (sampling.agreed < modes.limit or sampling.calls >= sampling.opens) and modes.limit > 0

    def count_call(self) -> bool:
        """Count a call, and whether it is compared or recorded in a window, as mode ``off`` does, too."""
        sampling = self.sampling
        sampling.calls += 1
        return sampling.agreed < modes.limit or sampling.calls >= sampling.opens

    @property
    def takes_copies(self) -> bool:
        """Whether the next call compares a further copy."""
        return self.is_due and len(self.copies) < MOST

    @property
    def takes_parts(self) -> bool:
        """Whether one of the next calls compares a further part."""
        return self.is_due and len(self.parts) < MOST

    def take_copies(self) -> list[Any]:
        """The copies that no call has compared yet, which are compared now."""
        taken = self.copies.copy()
        self.copies.clear()
        return taken

    def next_addend(self, group: Any, addend: Any) -> Any:
        """The addend of the next call of the channel, if there are parts: the call's own, or the first part."""
        self.tell_part(group)
        if addend is None and self.parts:
            addend = self.parts[0]
            addend.is_sent = True
        return addend

    def tell_part(self, group: Any) -> None:
        """Warn, on the first rank of the group, if the part that a call has carried is equal on all ranks."""
        if self.parts and self.parts[0].is_sent:
            part = self.parts.pop(0)
            if part.is_equal and part.digest and not group.index:
                part.warn(group.size)

    def count_objective(self) -> bool:
        """Count a backward of an Invariant objective, and whether all about it is compared: the 1st, 2nd, 4th, ..."""
        self.objectives = n = self.objectives + 1
        return not n & (n - 1)  # as `modes.is_due`, without a call

    def keep_leaves(self, leaves: Iterable[Any]) -> None:
        """Keep the leaves of an objective, as long as they live, for the comparison at the end of the block."""
        living = self._leaves = {i: each for i, each in self._leaves.items() if each[1]() is not None}
        for leaf in leaves:
            if id(leaf) not in living:
                living[id(leaf)] = self._leaves_so_far, weakref.ref(leaf)
                self._leaves_so_far += 1

    def leaves(self) -> list[tuple[int, Any]]:
        """The leaves that were kept and live, with their numbers, which are the same on all ranks."""
        return [(number, leaf) for number, each in self._leaves.values() if (leaf := each()) is not None]

    def count_end(self) -> bool:
        """Count an end of the mesh's block, and whether copies are compared there."""
        self.ends += 1
        return modes.is_due(self.ends) or modes.watching

    def is_line_due(self, line: Any) -> bool:
        """Count a tensor that a line of the program has labelled, and whether it is the 1st, 2nd, 4th, ... one."""
        self.lines[line] = n = self.lines.get(line, 0) + 1
        return modes.is_due(n)


class QuietChecks(Checks):
    """Checks while a rank records a step that other ranks may replay: they count and compare the calls alone."""

    __slots__ = ()
    is_quiet = True
    is_due = takes_copies = takes_parts = False

    def count_call(self) -> bool:
        return False
