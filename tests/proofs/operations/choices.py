"""`Pick`: random shapes and options of test cases.

Every choice is made from integers between two bounds, so that the source may be a random generator or a property-based
testing library, which shrinks failing examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy

__all__ = ["Pick"]

T = TypeVar("T")


class Pick:
    """Random choices, made from calls of ``integer(low, high)``, which includes both bounds.

    Smaller integers give simpler choices.

    Examples
    --------
    >>> pick = Pick.seeded(3)
    >>> shape = pick.shape(max_dims=3)
    >>> len(shape) <= 3
    True
    >>> [len(s) <= 3 for s in pick.broadcastable(2)]
    [True, True]
    """

    def __init__(self, integer: Callable[[int, int], int]):
        self.integer = integer

    @classmethod
    def seeded(cls, seed: int) -> Pick:
        """Return choices from a random generator."""
        rng = numpy.random.default_rng(seed)
        return cls(lambda low, high: int(rng.integers(low, high + 1)))

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.integer(0, len(choices) - 1)]

    def boolean(self) -> bool:
        return bool(self.integer(0, 1))

    def shape(self, min_dims: int = 0, max_dims: int = 3, min_side: int = 0, max_side: int = 3) -> tuple[int, ...]:
        """Return a shape. Extents may be 0 unless `min_side` is larger."""
        return tuple(self.integer(min_side, max_side) for _ in range(self.integer(min_dims, max_dims)))

    def axis(self, shape: Sequence[int]) -> int:
        """Return a dimension of a shape, negative or not. The shape must have at least one."""
        return self.integer(-len(shape), len(shape) - 1)

    def axes(self, shape: Sequence[int]) -> Any:
        """Return the axis argument of a reduction: None, a dimension, or a tuple of different dimensions."""
        some = tuple(i - len(shape) * self.integer(0, 1) for i in range(len(shape)) if self.boolean())
        return self.one_of((None, some, some[0] if some else None))

    def permutation(self, n: int) -> tuple[int, ...]:
        left = list(range(n))
        return tuple(left.pop(self.integer(0, len(left) - 1)) for _ in range(n))

    def broadcastable(self, count: int, max_dims: int = 3, max_side: int = 3) -> list[tuple[int, ...]]:
        """Return shapes that broadcast together: one shape, with leading dimensions dropped and extents set to 1."""
        whole = self.shape(max_dims=max_dims, max_side=max_side)
        shapes = []
        for _ in range(count):
            kept = whole[self.integer(0, len(whole)) :]
            shapes.append(tuple(1 if self.integer(0, 3) == 3 else n for n in kept))
        return shapes
