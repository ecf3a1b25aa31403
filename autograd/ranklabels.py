"""The labels of operands that are no Tensors, and of what is used with numbers that differ between ranks."""

from __future__ import annotations

from typing import Any

from .errors import LayoutError
from .explain import rank_dependent
from .grid import Grid
from .layout import C, D, I, Layout, P, R, V
from .ranknumbers import RankFloat, RankInt

__all__ = ["layout_of", "varying"]


def layout_of(x: Any, grid: Grid) -> Layout:
    """The layout of an operand that is no Tensor: numbers are constants, arrays V, rank-dependent numbers V there."""
    if isinstance(x, RankInt | RankFloat):
        return grid.layout([V if name in x.axes else C for name in grid.names])
    return grid.uniform(C if getattr(x, "shape", ()) == () else V)


def varying(layout: Layout, axes: frozenset[str], name: str) -> Layout:
    """Copies that are used with a rank-dependent option are values of their own."""
    for axis in axes:
        if layout[axis] is I or layout[axis] is P:
            raise LayoutError(rank_dependent(name, layout, axis))
    return layout.replace([axis for axis in axes if layout[axis] in (R, C, D)], V)
