"""NumPy's functions that CuPy does not have."""

from __future__ import annotations

__all__ = ["ABSENT_FROM_CUPY"]

ABSENT_FROM_CUPY: frozenset[str] = frozenset()
