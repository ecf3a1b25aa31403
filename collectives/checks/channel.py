"""Checks: everything that the ranks of one channel compare, and how far they have come.

The owner of the state of all comparisons along a channel. `Communicator.checks` is None in a group of one rank. The
modules of this folder fill it: `numbers`, `sanitizer`, `addends` and `parts` before calls, `collectives.replicas` at
backward, at an optimizer's step and at the end of a mesh's block.
"""

from __future__ import annotations

from typing import Any

from . import modes
from .sampling import Sampling

__all__ = ["MOST", "Checks"]

MOST = 4096
"""Limit on the copies, and on the parts, that are kept for a channel without calls."""


class Checks:
    """The owner of all that the ranks of one channel compare.

    Parameters
    ----------
    every : bool
        Whether ``first`` compares all calls, as on threads, where it costs little.
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
    leaves : dict
        Weak references to the leaves of these objectives. They are compared at the end of the mesh's block.
    ends : int
        The number of blocks of the mesh that ended since the first objective or optimizer.
    """

    __slots__ = ("_every", "_never", "copies", "ends", "leaves", "lines", "objectives", "parts", "sampling")

    def __init__(self, *, every: bool = False, never: bool = False):
        self._every, self._never = every, never
        self.sampling = Sampling.never() if never else Sampling()
        self.copies: list[Any] = []
        self.parts: list[Any] = []
        self.lines: dict[Any, int] = {}
        self.objectives = 0
        self.leaves: dict[int, Any] = {}
        self.ends = 0

    @property
    def is_due(self) -> bool:
        """Whether the next call's fingerprint is compared. The same on all ranks of the group."""
        if self._every or self._never:
            return modes.limit > 0 and not self._never
        sampling = self.sampling
        return (sampling.agreed < modes.limit or sampling.calls >= sampling.opens) and modes.limit > 0

    @property
    def takes_copies(self) -> bool:
        """Whether the next call compares a further copy."""
        return self.is_due and len(self.copies) < MOST

    def is_line_due(self, line: Any) -> bool:
        """Count a tensor that a line of the program has labelled, and whether it is the 1st, 2nd, 4th, ... one."""
        self.lines[line] = n = self.lines.get(line, 0) + 1
        return modes.is_due(n)
