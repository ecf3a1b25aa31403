"""The second stage of sums over rows, for the programs that include ``columns.cuh``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.runtime import Program
from .program import Launch, launch_known, type_name

__all__ = ["sum_groups"]


def sum_groups(program: Program, parts: Any, sums: Any) -> None:
    """Write the sums over the groups of `parts`, [groups, ..., width], to `sums`, [..., width], in their order."""
    groups, width = parts.shape[0], parts.shape[-1]
    kinds = sums.size // width

    def make() -> Launch:
        return Launch((-(-width // 32), kinds), (32, 8), (None, None, np.int32(groups), np.int32(width)))

    launch_known(program, f"sums_of_groups<{type_name(sums.dtype)}>", parts.shape, make, parts, sums)
