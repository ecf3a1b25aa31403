"""Discrete Fourier transforms. Those over several dimensions apply the one-dimensional transform to each, as in NumPy.

The matrix of a complex transform is symmetric, so under the bilinear pairing the transform is its own adjoint. The
adjoint of `rfft` is `irfft` with weights, and that of `irfft` is `rfft` with weights: a frequency whose conjugate is
omitted counts half in the one and twice in the other.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..arrays.shape_only import Shaped
from ..engine.primitive import Primitive, op
from .arguments import instead_of, made_like, normal_axis, operand, raw
from .elementwise import conj
from .indexing import getitem
from .manipulation import pad, roll
from .shape import mixed_axis_dims

_ADJOINT_NORM = {None: "forward", "backward": "forward", "forward": None, "ortho": "ortho"}


def _complex_transform(name: str, function: Any) -> Primitive:
    made: Primitive = op(
        name, "a", lambda x, axis, norm: function(x, None, axis, norm),
        lambda ct, y, x, axis, norm: made(ct, options=(axis, norm)), dims=mixed_axis_dims, operands="a",
    )  # fmt: skip
    return made


_fft_op, _ifft_op = _complex_transform("fft", np.fft.fft), _complex_transform("ifft", np.fft.ifft)


def _weights(like: Any, axis: int, n: int, middle: float) -> Any:
    """Weights of the frequencies of a real transform: 1 for those without a conjugate partner, `middle` for the others.

    Without a partner are frequency zero and, if the extent n is even, the highest.
    """

    shape = (n // 2 + 1,) + (1,) * (len(like.shape) - axis - 1)
    made = made_like(partial(np.full, shape, middle, like.dtype.type(0).real.dtype), like)
    w = raw(made)
    if type(w) is not Shaped:
        w[0] = 1
        if n % 2 == 0:
            w[-1] = 1
    return made


def _irfft_adjoint(ct: Any, y: Any, x: Any, axis: int, n: int, norm: Any) -> Any:
    g = conj(_rfft_op(ct, options=(axis, n, _ADJOINT_NORM[norm])))
    return g * _weights(g, axis, n, 2.0)


_rfft_op: Primitive = op(
    "rfft", "a", lambda x, axis, n, norm: np.fft.rfft(x, None, axis, norm),
    lambda ct, y, x, axis, n, norm: _irfft_op(
        conj(ct) * _weights(ct, axis, n, 0.5), options=(axis, n, _ADJOINT_NORM[norm])),
    dims=mixed_axis_dims, operands="a",
)  # fmt: skip
_irfft_op: Primitive = op(
    "irfft", "a", lambda x, axis, n, norm: np.fft.irfft(x, n, axis, norm), _irfft_adjoint, dims=mixed_axis_dims,
    operands="a",
)  # fmt: skip


def _resized(x: Any, axis: int, n: int) -> Any:
    """`x` cut, or padded with zeros at the end, to an extent of n along an axis."""
    have = int(raw(x).shape[axis])
    if have > n:
        return getitem(x, (slice(None),) * axis + (slice(0, n),))
    return x if have == n else pad(x, [(0, n - have if i == axis else 0) for i in range(x.ndim)])


def _complex_along_axis(primitive: Primitive, a: Any, n: Any, axis: int, norm: Any) -> Any:
    a = operand(a)
    axis = normal_axis(axis, a.ndim)
    a = a if n is None else _resized(a, axis, int(n))
    if a.dtype.kind != "c":
        a = a.astype(np.result_type(a.dtype, np.complex64))
    return primitive(a, options=(axis, norm))


def _rfft_along_axis(a: Any, n: Any, axis: int, norm: Any) -> Any:
    a = operand(a)
    axis = normal_axis(axis, a.ndim)
    a = a if n is None else _resized(a, axis, int(n))
    a = a if a.dtype.kind == "f" else a.astype(float)
    return _rfft_op(a, options=(axis, int(raw(a).shape[axis]), norm))


def _irfft_along_axis(a: Any, n: Any, axis: int, norm: Any) -> Any:
    a = operand(a)
    axis = normal_axis(axis, a.ndim)
    given = a.dtype
    n = 2 * (int(raw(a).shape[axis]) - 1) if n is None else int(n)
    a = _resized(a, axis, n // 2 + 1)
    if a.dtype.kind != "c":
        a = a.astype(np.result_type(a.dtype, np.complex64))
    y = _irfft_op(a, options=(axis, n, norm))
    return y.astype(given) if given == np.float16 else y


@instead_of(np.fft.fft)
def fft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """Return the discrete Fourier transform along an axis. Adjoint: the same transform."""
    return _complex_along_axis(_fft_op, a, n, axis, norm)


@instead_of(np.fft.ifft)
def ifft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """Return the inverse discrete Fourier transform along an axis. Adjoint: the same transform."""
    return _complex_along_axis(_ifft_op, a, n, axis, norm)


@instead_of(np.fft.rfft)
def rfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """Return the transform of real numbers: the frequencies 0 to n // 2; the others are their conjugates.

    Adjoint: the real part of `fft` of the cotangent padded with zeros.
    """
    return _rfft_along_axis(a, n, axis, norm)


@instead_of(np.fft.irfft)
def irfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """Return the inverse of `rfft`, n real numbers.

    Adjoint: `rfft` of the cotangent, conjugated and divided by n, with the frequencies counted twice that stand for
    two.

    The imaginary parts of frequency zero and, for even n, of the highest frequency are ignored: they are zero in the
    transform of real numbers.
    """
    return _irfft_along_axis(a, n, axis, norm)


@instead_of(np.fft.hfft)
def hfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """Return the transform of numbers with Hermitian symmetry, which is real.

    Adjoint: that of `irfft` of the conjugate, times n.
    """
    return _irfft_along_axis(conj(operand(a)), n, axis, _ADJOINT_NORM[norm])


@instead_of(np.fft.ihfft)
def ihfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """Return the inverse of `hfft`. Adjoint: that of `rfft`, conjugated and divided by n."""
    return conj(_rfft_along_axis(a, n, axis, _ADJOINT_NORM[norm]))


# -- over several dimensions -----------------------------------------------------------------------------------------
def _extents_and_axes(a: Any, s: Any, axes: Any) -> list[tuple[Any, int]]:
    """For each dimension to transform its extent (None: unchanged) and its axis."""
    if axes is None:
        axes = range(a.ndim) if s is None else range(a.ndim - len(s), a.ndim)
    axes = [normal_axis(i, a.ndim) for i in axes]
    if s is None:
        return [(None, axis) for axis in axes]
    shape = raw(a).shape
    return [(None if n is None else shape[i] if n == -1 else int(n), i) for n, i in zip(s, axes, strict=True)]


def _complex_over_axes(primitive: Primitive) -> Any:
    def transform(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: None = None) -> Any:
        a = operand(a)
        for n, axis in reversed(_extents_and_axes(a, s, axes)):
            a = _complex_along_axis(primitive, a, n, axis, norm)
        return a

    return transform


def _rfft_over_axes(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: None = None) -> Any:
    a = operand(a)
    *others, (n, last) = _extents_and_axes(a, s, axes)
    y = _rfft_along_axis(a, n, last, norm)
    for n, axis in reversed(others):
        y = _complex_along_axis(_fft_op, y, n, axis, norm)
    return y


def _irfft_over_axes(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: None = None) -> Any:
    a = operand(a)
    *others, (n, last) = _extents_and_axes(a, s, axes)
    for m, axis in others:
        a = _complex_along_axis(_ifft_op, a, m, axis, norm)
    return _irfft_along_axis(a, n, last, norm)


def _named_transform(theirs: Any, transform: Any, what: str) -> Any:
    two = theirs.__name__.endswith("2")

    @instead_of(theirs)
    def named(
        a: Any, s: Any = None, axes: Any = (-2, -1) if two else None, norm: Any = None, out: None = None
    ) -> Any:
        return transform(a, s, axes, norm)

    named.__name__ = named.__qualname__ = theirs.__name__
    named.__doc__ = (
        f"Return the {what} over {'two axes, by default the last two' if two else 'several axes'}.\n\n"
        "Adjoint: those of the transforms over one axis, in reverse order."
    )
    return named


_fftn, _ifftn = _complex_over_axes(_fft_op), _complex_over_axes(_ifft_op)
fftn = _named_transform(np.fft.fftn, _fftn, "Fourier transform")
ifftn = _named_transform(np.fft.ifftn, _ifftn, "inverse Fourier transform")
fft2 = _named_transform(np.fft.fft2, _fftn, "Fourier transform")
ifft2 = _named_transform(np.fft.ifft2, _ifftn, "inverse Fourier transform")
rfftn = _named_transform(np.fft.rfftn, _rfft_over_axes, "Fourier transform of real numbers")
irfftn = _named_transform(np.fft.irfftn, _irfft_over_axes, "inverse of `rfftn`, real numbers,")
rfft2 = _named_transform(np.fft.rfft2, _rfft_over_axes, "Fourier transform of real numbers")
irfft2 = _named_transform(np.fft.irfft2, _irfft_over_axes, "inverse of `rfft2`, real numbers,")


def _shift(x: Any, axes: Any, sign: int) -> Any:
    axes = tuple(range(x.ndim)) if axes is None else axes
    axes = tuple(normal_axis(i, x.ndim, "axes") for i in (axes if np.ndim(axes) else (axes,)))  # one may occur twice
    halves = [int(raw(x).shape[i]) // 2 for i in axes]
    return roll(x, tuple(h if sign > 0 else -h for h in halves), axes)


@instead_of(np.fft.fftshift)
def fftshift(x: Any, axes: Any = None) -> Any:
    """Return the frequencies rolled so that zero is in the middle, along axes or along all.

    Adjoint: `ifftshift` of the cotangent.
    """
    return _shift(x, axes, 1)


@instead_of(np.fft.ifftshift)
def ifftshift(x: Any, axes: Any = None) -> Any:
    """Return the inverse of `fftshift`. Adjoint: `fftshift` of the cotangent."""
    return _shift(x, axes, -1)
