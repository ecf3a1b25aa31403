"""The division of contiguous arrays among threads, for the kernels that use ``elements.cuh``."""

from __future__ import annotations

from typing import Any

import numpy as np

from .program import Launch

__all__ = ["by_elements"]

THREADS = 256
BYTES = 64
"""A thread reads so many bytes of the wider array together."""


def by_elements(size: int, itemsize: int, arrays: int) -> Launch:
    """The launch of a kernel of so many arrays and their number of elements, of which the wider has an `itemsize`.

    Examples
    --------
    >>> by_elements(5000, 4, 2).grid
    (2,)
    """
    grid = (min(-(-size * itemsize // (BYTES * THREADS)), 1 << 16),)
    whole: list[Any] = [None] * arrays
    return Launch(grid, (THREADS,), (*whole, np.int64(size)))
