"""The ranks of an audited job, in a grid with named axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autograd.errors import ArgumentError, typed_errors

from .files import Step

__all__ = ["Mesh"]

_POWERS = ((1, "{}"), (-1, "1 / {}"), (2, "the square of {}"), (-2, "1 / the square of {}"), (0.5, "the root of {}"),
           (-0.5, "1 / the root of {}"))  # fmt: skip
"""The powers of a count that a factor may be, as text."""


@typed_errors
class Mesh:
    """The ranks of a job; the coordinate on the last axis varies fastest.

    Parameters
    ----------
    sizes : mapping of str to int
    ranks : sequence of int
    grid : array_like, optional
        The ranks in the grid, if they are in another order.

    Attributes
    ----------
    at : dict of int to dict
        By rank: its coordinate on each axis.

    Raises
    ------
    ArgumentError
        The grid has not the job's ranks.
    """

    def __init__(self, sizes: Mapping[str, int], ranks: Sequence[int], grid: Any = None):
        self.sizes = dict(sizes)
        places = list(itertools.product(*(range(size) for size in sizes.values())))
        order = list(ranks) if grid is None else np.asarray(grid).ravel().tolist()
        if len(places) != len(order) or sorted(order) != sorted(ranks):
            raise ArgumentError(
                f"the mesh {self.sizes} has {len(places)} ranks; the job has {len(ranks)}\n  fix: --mesh "
                f"dp={len(ranks)}"
            )
        self.at = {rank: dict(zip(sizes, place, strict=True)) for rank, place in zip(order, places, strict=True)}

    @classmethod
    def of(cls, step: Mapping[int, Step], given: Mapping[str, int] | None = None) -> Mesh:
        """The mesh that is given, that of a job's DTensors, or one axis of all ranks."""
        ranks = list(step)
        if given is not None:
            return cls(given, ranks)
        for axes, grid in step[ranks[0]].meta["mesh"].items():
            if np.size(grid) == len(ranks):
                return cls(dict(zip(axes.split(","), np.shape(grid), strict=True)), ranks, grid)
        return cls({"ranks": len(ranks)}, ranks)

    def groups(self, axes: Sequence[str]) -> list[list[int]]:
        """The ranks that differ on some axes only."""
        found: dict[Any, list[int]] = {}
        for rank, at in self.at.items():
            found.setdefault(tuple(i for axis, i in at.items() if axis not in axes), []).append(rank)
        return list(found.values())

    def subsets(self) -> Iterator[tuple[str, ...]]:
        """The axes with more than one rank, one by one, then two together, and so on."""
        many = [axis for axis, size in self.sizes.items() if size > 1]
        for n in range(1, len(many) + 1):
            yield from itertools.combinations(many, n)

    def count(self, axes: Sequence[str]) -> int:
        """The number of ranks that differ on some axes only."""
        return math.prod(self.sizes[axis] for axis in axes)

    def index(self, rank: int, axes: Sequence[str]) -> int:
        """The number of a rank among those that differ on some axes only."""
        found = 0
        for axis in axes:
            found = found * self.sizes[axis] + self.at[rank][axis]
        return found

    @staticmethod
    def shown(axes: Sequence[str]) -> str:
        return " and ".join(map(repr, axes))

    def names_of(self, factor: float, precision: float, microbatches: int) -> str:
        """All counts of which a factor is a power, as text; "" if there are none."""
        precision = min(precision, 0.1)
        counts = {f"the {self.count(axes)} ranks of {self.shown(axes)}": self.count(axes) for axes in self.subsets()}
        if microbatches > 1:
            counts[f"the {microbatches} microbatches"] = microbatches
        found = [form.format(text) for text, n in counts.items() for power, form in _POWERS
                 if abs(factor - n**power) <= precision * n**power]  # fmt: skip
        power = math.log2(factor) if factor > 0 else 0.0
        is_scale = abs(power) >= 8 and abs(power - round(power)) < precision
        return ", or ".join(found) or ("a scale of the loss that is not divided out" if is_scale else "")
