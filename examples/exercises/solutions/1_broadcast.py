"""Every rank used the value, so its cotangent is the sum of the cotangents of the copies, on the rank that has it."""

from __future__ import annotations

from typing import Any

import numpy as np


def adjoint(ct: np.ndarray, group: Any) -> np.ndarray | None:
    """Return the cotangent of x on rank 0, and None on the other ranks."""
    total: np.ndarray | None = group.reduce(ct.copy(), 0)
    return total
