"""What every transport refuses, in the same words: arrays that it cannot take, ranks and counts that do not fit.

Each function returns what it was given, so that it stands where the value is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from autograd.errors import MeshError, ShapeError

from .protocol import Array, Communicator

__all__ = ["checked_array", "checked_counts", "checked_rank", "checked_size"]


def checked_array(x: Array) -> Array:
    """The array, if a transport can take it.

    Examples
    --------
    >>> import numpy as np
    >>> checked_array(np.ones((2, 3)))
    Traceback (most recent call last):
    autograd.errors.ShapeError: a transport takes one-dimensional C-contiguous arrays, not shape (2, 3): ravel it first
    """
    if x.ndim != 1 or not x.flags.c_contiguous:
        raise ShapeError(f"a transport takes one-dimensional C-contiguous arrays, not shape {x.shape}: ravel it first")
    return x


def checked_rank(group: Communicator, role: str, rank: int) -> int:
    """The rank, if the group has it; `role` is what the call names it (root, dst, ...).

    Examples
    --------
    >>> import collectives as cc
    >>> checked_rank(cc.world(), "root", 1)
    Traceback (most recent call last):
    autograd.errors.MeshError: root 1 is no rank of 'world', whose ranks are 0 to 0
    """
    if not 0 <= rank < group.size:
        raise MeshError(f"{role} {rank} is no rank of '{group.name}', whose ranks are 0 to {group.size - 1}")
    return rank


def checked_counts(group: Communicator, what: str, counts: Sequence[int]) -> Sequence[int]:
    """The counts, if they are one for every rank of the group and none is negative.

    Examples
    --------
    >>> import collectives as cc
    >>> checked_counts(cc.world(), "counts", [2, 3])
    Traceback (most recent call last):
    autograd.errors.ShapeError: counts on 'world' must be 1 counts >= 0, not [2, 3]
    """
    if len(counts) != group.size or min(counts) < 0:
        raise ShapeError(f"{what} on '{group.name}' must be {group.size} counts >= 0, not {list(map(int, counts))}")
    return counts


def checked_size(x: Array, needed: int, meaning: str) -> Array:
    """The array, if a transport can take it and it has as many elements as `meaning` says.

    Examples
    --------
    >>> import numpy as np
    >>> checked_size(np.ones(2), 3, "the sum of counts")
    Traceback (most recent call last):
    autograd.errors.ShapeError: the array has 2 elements where the sum of counts is 3
    """
    if checked_array(x).size != needed:
        raise ShapeError(f"the array has {x.size} elements where {meaning} is {int(needed)}")
    return x
