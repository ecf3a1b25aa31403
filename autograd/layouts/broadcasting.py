"""The `dims` function of elementwise operations. `dispatch` undoes broadcasting for cotangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["broadcast"]


def broadcast(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    """The `dims` of elementwise operations: NumPy's broadcasting."""
    ndim = max(map(len, shapes))
    return [tuple(range(ndim - len(shape), ndim)) for shape in shapes]
