"""The second stage of sums over rows, for the programs that include ``columns.cuh``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.runtime import Program
from .program import Launch, launch_known, type_name

__all__ = ["sum_groups"]


def sum_groups(program: Program, parts: Any, first: Any, second: Any = None) -> None:
    """Write the sums over the groups of `parts`, [groups, 1 or 2, width], to arrays [width], in the groups' order.

    They are two arrays, because a gradient owns its memory: a view of one array of both would be copied.
    """
    groups, kinds, width = parts.shape

    def make() -> Launch:
        return Launch((-(-width // 32), kinds), (32, 8), (None, None, None, np.int32(groups), np.int32(width)))

    launch_known(program, f"sums_of_groups<{type_name(first.dtype)}>", parts.shape, make, parts, first, second)
