"""Sums of rows that have the same place: the gradients of rows and elements that were taken by index.

A compiled loop adds the rows in their order. Without one they are sorted by place, stably, and each run of equal places
is one sum. So the sums are the same in every run, and the time does not depend on how often a place occurs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiled import INT64, are_bare, find, stands_for

__all__ = ["sum_rows"]


def sum_rows(xs: Any, places: Any, count: int) -> Any:
    """An array of `count` rows, each the sum of the rows of `xs` at its place, in their order; zeros where none is.

    Parameters
    ----------
    xs : array, [n, ...]
    places : array of integers, [n]
        From ``-count`` to ``count - 1``; negative ones count from the end.

    Examples
    --------
    >>> import numpy
    >>> sum_rows(numpy.array([1.0, 2.0, 4.0]), numpy.array([1, 0, -1]), 2)
    array([2., 5.])
    """
    out = np.zeros_like(xs, shape=(count, *xs.shape[1:]), order="C")
    if not places.size:
        return out
    loop = find("sum_rows", xs.dtype) if xs.dtype.char in "fd" and xs.dtype.isnative else None
    if loop is not None and xs.ndim > 1:
        if not are_bare(xs.dtype, xs):
            xs = xs.copy()
        if not are_bare(INT64, places):
            places = places.astype(INT64, "C")
        if stands_for.has_loops:  # in its order, too, and known to write to the rows at `places` alone
            np.add.at(out, places, xs)
            return out
        if loop(xs.reshape(len(xs), -1), places, out.reshape(count, -1)):
            return out
        out[...] = 0
    order = np.argsort(places, kind="stable")
    ranked = places[order]
    if ranked[0] < 0:  # the same row may have two names
        places = np.where(places < 0, places + count, places)
        order = np.argsort(places, kind="stable")
        ranked = places[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    out[ranked[starts]] = np.add.reduceat(xs[order], starts, axis=0)
    return out
