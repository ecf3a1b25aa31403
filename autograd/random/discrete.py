"""Random integers, booleans and permutations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.tensor import Tensor
from ..errors import RingtapeError, ShapeError, typed_errors
from .keys import Key, check_key, integer, real
from .philox import Numbers, capturing, draw, whole_capture, write_words
from .placement import Part, of_shape

__all__ = ["bernoulli", "integers", "permutation"]

Array = np.ndarray[Any, Any]


@typed_errors
def integers(key: Key, shape: int | Sequence[int] | Tensor, low: int, high: int, part: Part | None = None) -> Any:
    """Draw integers uniformly from low, ..., high - 1.

    Parameters
    ----------
    key : Key
        The stream.
    shape : int, sequence of int or Tensor
        The shape of the logical tensor; or the Tensor that the draw is for.
    low, high : int
        The bounds, -2^63 <= low < high <= 2^63.
    part : tuple of slice, optional
        The part to make; all of it by default. See `autograd.random` on this and on shape.

    Returns
    -------
    numpy.ndarray or Tensor
        The part, int64. Bitwise ``integers(key, shape, low, high)[part]``. A Tensor only inside a mesh and if `shape`
        is a Tensor.

    Raises
    ------
    RingtapeError
        If the bounds are out of range.
    DtypeError
        If a bound is not an integer.
    ShapeError, LayoutError
        As every draw does: see `autograd.random`.

    Notes
    -----
    ``low`` plus the upper 64 bits of word * (high - low). The probabilities differ by at most 2^-64. Rejection sampling
    would make them equal, but needs a varying number of words.

    Examples
    --------
    >>> x = integers(Key(1, "crop"), (2, 500), -1, 2)
    >>> sorted(set(x.ravel().tolist()))
    [-1, 0, 1]
    """
    if (capture := whole_capture(low, high)) is not None:
        return capture.call(integers, (key, shape, low, high, part))
    low, high = integer(low, "integers: low"), integer(high, "integers: high")
    if not -(2**63) <= low < high <= 2**63:
        raise RingtapeError(f"integers: low={low}, high={high}; needed: -2**63 <= low < high <= 2**63")
    made = Numbers("integers", (high - low, low))
    return draw(key, shape, part, np.dtype(np.int64), _integers, "integers", made, choices=True)


def _integers(words: Array, dtype: Any, count: int, low: int) -> Array:
    return (multiply_high(words, count) + np.uint64(low % 2**64)).view(dtype)


@typed_errors
def bernoulli(key: Key, shape: int | Sequence[int] | Tensor, p: float, part: Part | None = None) -> Any:
    """Draw booleans that are True with probability p.

    Parameters
    ----------
    key : Key
        The stream.
    shape : int, sequence of int or Tensor
        The shape of the logical tensor; or the Tensor that the draw is for.
    p : float
        The probability, 0 <= p <= 1.
    part : tuple of slice, optional
        The part to make; all of it by default. See `autograd.random` on this and on shape.

    Returns
    -------
    numpy.ndarray or Tensor
        The part, bool. Equal to ``uniform(key, shape, part=part) < p``, without computing the uniform numbers.

    Raises
    ------
    RingtapeError
        If p is not a probability.
    ShapeError, LayoutError
        As every draw does: see `autograd.random`.

    Examples
    --------
    >>> keep = bernoulli(Key(1, "dropout"), (100, 100), 0.9)
    >>> keep.dtype, bool(0.88 < keep.mean() < 0.92)
    (dtype('bool'), True)
    """
    if (capture := whole_capture(p)) is not None:
        return capture.call(bernoulli, (key, shape, p, part))
    p = real(p, "bernoulli(key, shape, p): p")
    if not 0 <= p <= 1:
        raise RingtapeError(f"bernoulli: p={p!r}; needed: 0 <= p <= 1")
    least = math.ceil(p * 2.0**53)  # the smallest upper 53 bits whose uniform number is not below p
    return draw(key, shape, part, np.dtype(bool), _booleans, "bernoulli", Numbers("booleans", (least,)), numbers=(p,))


def _booleans(words: Array, dtype: Any, least: int) -> Array:
    return words < np.uint64(least << 11) if least < 2**53 else words >= np.uint64(0)


@typed_errors
def permutation(key: Key, n: int) -> Array:
    """Return a random permutation of 0, ..., n - 1.

    Parameters
    ----------
    key : Key
        The stream.
    n : int
        The length.

    Returns
    -------
    numpy.ndarray
        int64, of shape (n,).

    Raises
    ------
    ShapeError
        If n is not a length.

    Notes
    -----
    The permutation that sorts n random words. The probability that two words are equal, and their order thus not
    random, is below n^2 / 2^65.

    Examples
    --------
    >>> order = permutation(Key(1, "shuffle").at(4), 10)
    >>> sorted(order.tolist()) == list(range(10))
    True
    """
    if (capture := capturing()) is not None:
        found: Array = capture.call(permutation, (key, n))
        return found
    check_key(key, "permutation")
    extents, box, _ = of_shape(n, key.axes, None, "permutation")
    if len(extents) != 1:
        raise ShapeError(f"permutation: n must be one number, got {n!r}")
    words = np.empty(extents, np.uint64)
    write_words(words, key, extents, box)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


def multiply_high(words: Array, n: int) -> Array:
    """Return the upper 64 bits of words * n for 0 < n <= 2^64, computed from products of 32-bit halves."""
    mask, half = np.uint64(2**32 - 1), np.uint64(32)
    n1, n0 = np.uint64(n >> 32), np.uint64(n & (2**32 - 1))
    w1, w0 = words >> half, words & mask
    middle = w1 * n0 + (w0 * n0 >> half)
    return w1 * n1 + (middle >> half) + ((w0 * n1 + (middle & mask)) >> half)
