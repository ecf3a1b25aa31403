"""How dimensions travel through an operation: what a declaration's `dims` returns for each dimension of each operand.

It is the dimension of the result that it becomes, as an integer; or that and a factor, where extents scale; or `Mix`;
or a `Sum`.
"""

from __future__ import annotations

__all__ = ["Mix", "Sum"]


class Mix:
    """The operation mixes along this dimension, so it cannot be sharded."""


class Sum:
    """The operation sums over this dimension; dimensions of one contraction share the object's key."""

    __slots__ = ("key",)

    def __init__(self, key: object = None):
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and self.key == other.key

    def __hash__(self) -> int:
        return hash(("Sum", self.key))
