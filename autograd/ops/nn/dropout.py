"""Dropout as a fused operation, by a mask that is a function of a key and of the elements' places."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.device import move
from ...arrays.shape_only import Shaped
from ...layouts.inference import broadcast
from ...random.philox import Source, words_of
from .fused import Fused

__all__ = ["Mask", "masked"]


class Mask:
    """The option of `masked`: which elements are kept, and their factor.

    Signatures are kept by options. All masks are equal, because none decides a layout, and each call has another one.

    Parameters
    ----------
    source : Source
        Where the words of the elements come from.
    limit : int
        An element is kept if the upper 53 bits of its word are below this.
    scale : float
        The factor of the elements that are kept, a number of their dtype.
    """

    __slots__ = ("limit", "scale", "source")

    def __init__(self, source: Source, limit: int, scale: float):
        self.source, self.limit, self.scale = source, limit, scale

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask)

    def __hash__(self) -> int:
        return hash(Mask)

    def factors(self, x: Any) -> Any:
        """The factors of the elements of the array `x`, on its device."""
        kept = words_of(self.source, x.shape) >> 11 < np.uint64(self.limit)
        return move(kept * x.dtype.type(self.scale), x)


masked: Fused = Fused(
    "dropout", "a", lambda x, mask: x if type(x) is Shaped else x * mask.factors(x),
    (lambda ct, y, x, mask: masked(ct, options=(mask,)),), saves="", dims=broadcast, operands="x",
    kernel="dropout",
)  # fmt: skip
"""Return `x` times the factors of its `Mask`. Adjoint: the same of ct."""
