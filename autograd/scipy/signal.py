"""Convolution over some dimensions and contraction over others: ``autograd.scipy.signal.convolve``.

It is built on one bilinear operation, the correlation of an array with the windows of another. Both adjoints are
correlations again: with o = m - k,

    y[i,j,o] = sum_dk p[i,d,o+k] q[j,d,k]
    dp[i,d,m] = sum_jk ct[i,j,m-k] q[j,d,k]      the correlation of the padded ct with q reversed
    dq[j,d,k] = sum_io p[i,d,o+k] ct[i,j,o]      the correlation of p with ct
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.primitive import Primitive, op
from ..errors import ShapeError, typed_errors
from ..ops import reshape, swapaxes, transpose
from ..ops.arguments import normal_axis
from ._load import as_ufunc

__all__ = ["convolve"]

Shape = tuple[int, ...]
_MODES = ("full", "valid", "same")


def _correlate_windows(p: Any, q: Any) -> Any:
    spatial = tuple(range(2, p.ndim))
    if not spatial:
        return p @ q.T
    window = np.lib.stride_tricks.sliding_window_view(p, q.shape[2:], axis=spatial)
    n = len(spatial)
    y = np.tensordot(window, q, axes=((1, *range(2 + n, 2 + 2 * n)), (1, *range(2, 2 + n))))
    return np.moveaxis(y, -1, 1)


def _correlate_adjoint_of_p(ct: Any, y: Any, p: Any, q: Any) -> Any:
    sizes = tuple(int(n) for n in q.shape[2:])
    around = _pad(ct, options=(tuple((n - 1, n - 1) for n in sizes),))
    return _correlate(around, _flip(swapaxes(q, 0, 1)))


_correlate: Primitive = op(
    "correlate", "a b",
    as_ufunc(_correlate_windows, lambda p, q: (
        p.shape[0], q.shape[0], *(m - n + 1 for m, n in zip(p.shape[2:], q.shape[2:], strict=True)))),
    (_correlate_adjoint_of_p, lambda ct, y, p, q: swapaxes(_correlate(swapaxes(p, 0, 1), swapaxes(ct, 0, 1)), 0, 1)),
    saves=("1", "0"), operands="p q",
)  # fmt: skip


def _unpad(x: Any, widths: Sequence[tuple[int, int]]) -> Any:
    inner = tuple(slice(left, n - right) for (left, right), n in zip(widths, x.shape[2:], strict=True))
    return x[(slice(None), slice(None), *inner)]


_pad: Primitive = op(
    "zeros_around", "a", lambda x, widths: np.pad(x, [(0, 0), (0, 0), *widths]),
    lambda ct, y, x, widths: _unpad(ct, widths), operands="x"
)


def _flip(x: Any) -> Any:
    return x[(slice(None), slice(None), *[slice(None, None, -1)] * (len(x.shape) - 2))]


@typed_errors
def convolve(
    A: Any, B: Any, axes: Any = None, dot_axes: Any = ((), ()), mode: str = "full"
) -> Any:  # A and B are HIPS autograd's names, which programs pass as keywords
    """Return the convolution of two arrays over pairs of dimensions.

    Parameters
    ----------
    A, B : array
    axes : pair of sequences of int, optional
        The dimensions of A and of B that are convolved, in pairs; by default all of both.
    dot_axes : pair of sequences of int
        The dimensions of A and of B that are multiplied and summed, in pairs.
    mode : {"full", "valid", "same"}
        "full": all overlaps. "valid": only complete overlaps; one array must be at least as large as the other in
        every pair. "same": as many values as A has, from the middle of the full result.

    Returns
    -------
    array
        Its dimensions are those of A in neither `axes` nor `dot_axes`, then those of B, then the convolved ones.

    Raises
    ------
    ShapeError
        The dimensions do not fit together, or `mode` is none of the three.

    Examples
    --------
    >>> import numpy
    >>> from autograd.scipy.signal import convolve
    >>> convolve(numpy.array([1.0, 2.0, 3.0]), numpy.array([1.0, 10.0]))
    array([ 1., 12., 23., 30.])
    """
    A, B = (x if hasattr(x, "shape") else np.asarray(x) for x in (A, B))
    if mode not in _MODES:
        raise ShapeError(f"convolve: mode={mode!r} was given; needed: one of {', '.join(_MODES)}")
    if axes is None:
        axes = (range(len(A.shape)), range(len(A.shape)))
    convolved, dotted = [tuple(map(int, a)) for a in axes], [tuple(map(int, a)) for a in dot_axes]
    a, kept_a, size_a = _canonical(A, convolved[0], dotted[0], "A")
    b, kept_b, size_b = _canonical(B, convolved[1], dotted[1], "B")
    if len(size_a) != len(size_b) or a.shape[1] != b.shape[1]:
        raise ShapeError(
            f"convolve of shapes {tuple(A.shape)} and {tuple(B.shape)}: axes={axes}, dot_axes={dot_axes}; needed: as "
            "many dimensions of A as of B in axes and in dot_axes, and equal extents in dot_axes"
        )
    y = _convolved(a, b, size_a, size_b, mode)
    return reshape(y, (*kept_a, *kept_b, *(int(n) for n in y.shape[2:])))


def _canonical(x: Any, convolved: Shape, dotted: Shape, name: str) -> tuple[Any, Shape, Shape]:
    """`x` as [kept, summed, *convolved] with the kept and the summed dimensions merged; the extents kept; the sizes."""
    ndim = len(x.shape)
    convolved, dotted = (tuple(normal_axis(k, ndim, "axes") for k in a) for a in (convolved, dotted))
    if len({*convolved, *dotted}) != len(convolved) + len(dotted):
        raise ShapeError(f"convolve: dimensions {convolved} and {dotted} of {name} were given; needed: each once")
    kept = tuple(i for i in range(ndim) if i not in convolved and i not in dotted)
    extents = tuple(int(n) for n in x.shape)
    sizes = tuple(extents[i] for i in convolved)
    x = transpose(x, (*kept, *dotted, *convolved))
    x = reshape(x, (math.prod(extents[i] for i in kept), math.prod(extents[i] for i in dotted), *sizes))
    return x, tuple(extents[i] for i in kept), sizes


def _convolved(a: Any, b: Any, size_a: Shape, size_b: Shape, mode: str) -> Any:
    if mode == "valid":
        if any(m < n for m, n in zip(size_a, size_b, strict=True)):
            if any(m > n for m, n in zip(size_a, size_b, strict=True)):
                raise ShapeError(
                    f"convolve, mode='valid', of extents {size_a} and {size_b}; needed: one array at least as large as "
                    "the other in every convolved dimension"
                )
            return swapaxes(_correlate(b, _flip(a)), 0, 1)
        return _correlate(a, _flip(b))
    if mode == "full":
        if math.prod(size_b) > math.prod(size_a):  # the larger array provides the windows
            return swapaxes(_convolved(b, a, size_b, size_a, mode), 0, 1)
        widths = tuple((n - 1, n - 1) for n in size_b)
    else:
        widths = tuple((n - 1 - (n - 1) // 2, (n - 1) // 2) for n in size_b)
    return _correlate(_pad(a, options=(widths,)), _flip(b))
