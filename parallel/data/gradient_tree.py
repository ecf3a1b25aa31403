"""Sums of the gradients of microbatches whose bits do not depend on which rank has computed which microbatch.

The gradient of a microbatch is one addend of the tree of `collectives.reproducible_sum` over the numbers of all
microbatches. A rank adds those of its own microbatches as they come, and holds lg m + 1 gradients at most; the ranks
continue the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.half import is_half
from autograd.engine.leaves import Leaf
from collectives.algorithms.reproducible import StreamedSum
from collectives.mesh import Axis

__all__ = ["GradientTree"]

_ALIGNMENT_BYTES = 64


class _Flat:
    """The gradients of leaves of one dtype in a flat array, with one flag for each, which tells whether it was used."""

    def __init__(self, indices: list[int], leaves: list[Leaf], count: int):
        dtype = leaves[0].array.dtype
        wide = np.dtype(np.float32) if is_half(dtype) else dtype  # added in float32, and rounded once
        unit = max(1, _ALIGNMENT_BYTES // wide.itemsize)
        self.indices, self.leaves, self.slices, end = indices, leaves, list[slice](), 0
        for x in leaves:
            self.slices.append(slice(end, end + math.prod(x.array.shape)))
            end += -(-math.prod(x.array.shape) // unit) * unit
        self.elements = end
        self.sum = StreamedSum(count, end + len(leaves), wide)

    def take(self, number: int) -> None:
        flat = self.sum.buffer()
        flat[self.elements :] = 0
        end = 0
        for k, (leaf, at) in enumerate(zip(self.leaves, self.slices, strict=True)):
            flat[end : at.start] = 0
            g, leaf.grad, end = leaf.grad, None, at.stop
            if g is None:
                flat[at] = 0
            else:
                flat[at] = g.array.reshape(-1)
                flat[self.elements + k] = 1
        flat[end : self.elements] = 0
        self.sum.add(number, flat)


class GradientTree:
    """The sums of some leaves' gradients over the microbatches of a step.

    Parameters
    ----------
    leaves : sequence of Leaf
        Their `grad` is that of one microbatch at a time.
    count : int
        The number of microbatches of all ranks.
    """

    def __init__(self, leaves: Sequence[Leaf], count: int):
        by_dtype: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            if x.requires_grad:
                by_dtype.setdefault(x.array.dtype, []).append(i)
        self._leaves = leaves
        self._flats = [_Flat(at, [leaves[i] for i in at], count) for at in by_dtype.values()]

    def take(self, number: int) -> None:
        """Take the gradients of a microbatch from the leaves, and add them."""
        for flat in self._flats:
            flat.take(number)

    def swapped(self, gradients: Sequence[Any] | None = None) -> list[Any]:
        """Set the gradients of the leaves, by default to None, and return those that they had."""
        found = [x.grad for x in self._leaves]
        for x, g in zip(self._leaves, gradients or [None] * len(found), strict=True):
            x.grad = g
        return found

    def totals(self, on: Axis | None, indices: Sequence[Sequence[int]]) -> list[Any]:
        """The sum of each leaf's gradients, as an array; None if no microbatch has used it. It ends this object.

        All ranks along the axis `on` call it. `indices` are the numbers of every rank's microbatches.
        """
        found: list[Any] = [None] * len(self._leaves)
        group: Any = None if on is None or on.group.size == 1 else on.using("reproducible")
        if group is not None:
            group.agree(lambda: f"gradients of {len(self._leaves)} parameters in the order of their microbatches")
        for flat in self._flats:
            total = flat.sum.total(group, indices)
            for k, (i, leaf, at) in enumerate(zip(flat.indices, flat.leaves, flat.slices, strict=True)):
                if total[flat.elements + k]:
                    found[i] = total[at].reshape(leaf.array.shape).astype(leaf.array.dtype, copy=False)
        return found
