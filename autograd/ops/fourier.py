"""Fourier transforms. One dimension at a time; transforms of several are made of them, as NumPy's are.

The matrix of a transform is symmetric, so under the bilinear pairing the transform is its own adjoint. The real ones
are each other's, with the frequencies that stand for two counted twice or half.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.primitive import Primitive, op
from ..layouts.layout import Mix
from .arguments import instead_of, made_like, operand, raw
from .elementwise import conj
from .indexing import getitem
from .manipulation import pad, roll

Shape = tuple[int, ...]
_SWAPPED = {None: "forward", "backward": "forward", "forward": None, "ortho": "ortho"}


def _dims(shapes: Sequence[Shape], options: Any) -> Any:
    return [tuple(Mix if i == options[0] else i for i in range(len(shapes[0])))]


def _complex(name: str, function: Any) -> Primitive:
    made: Primitive = op(
        name, "a", lambda x, axis, norm: function(x, None, axis, norm),
        lambda ct, y, x, axis, norm: made(ct, options=(axis, norm)), dims=_dims, operands="a",
    )  # fmt: skip
    return made


_fft_op, _ifft_op = _complex("fft", np.fft.fft), _complex("ifft", np.fft.ifft)


def _weights(like: Any, axis: int, n: int, middle: float) -> Any:
    """1 for the frequencies that stand for one (zero, and the highest of an even extent), `middle` for the others."""

    def make(**on: Any) -> Any:
        w = np.full(n // 2 + 1, middle, like.dtype.type(0).real.dtype, **on)
        w[0] = 1
        if n % 2 == 0:
            w[-1] = 1
        return w.reshape((-1,) + (1,) * (len(like.shape) - axis - 1))

    return made_like(make, like)


def _rfft_rule(ct: Any, y: Any, x: Any, axis: int, n: int, norm: Any) -> Any:
    return _irfft_op(conj(ct) * _weights(ct, axis, n, 0.5), options=(axis, n, _SWAPPED[norm]))


def _irfft_rule(ct: Any, y: Any, x: Any, axis: int, n: int, norm: Any) -> Any:
    g = conj(_rfft_op(ct, options=(axis, n, _SWAPPED[norm])))
    return g * _weights(g, axis, n, 2.0)


_rfft_op: Primitive = op(
    "rfft", "a", lambda x, axis, n, norm: np.fft.rfft(x, None, axis, norm), _rfft_rule, dims=_dims, operands="a"
)
_irfft_op: Primitive = op(
    "irfft", "a", lambda x, axis, n, norm: np.fft.irfft(x, n, axis, norm), _irfft_rule, dims=_dims, operands="a"
)


def _fitted(x: Any, axis: int, n: int) -> Any:
    """Cut or padded with zeros at the end, to an extent of n."""
    have = int(raw(x).shape[axis])
    if have > n:
        return getitem(x, (slice(None),) * axis + (slice(0, n),))
    return x if have == n else pad(x, [(0, n - have if i == axis else 0) for i in range(x.ndim)])


def _one(primitive: Primitive, a: Any, n: Any, axis: int, norm: Any) -> Any:
    a, axis = operand(a), axis % a.ndim
    a = a if n is None else _fitted(a, axis, int(n))
    if a.dtype.kind != "c":
        a = a.astype(np.result_type(a.dtype, np.complex64))
    return primitive(a, options=(axis, norm))


def _real(a: Any, n: Any, axis: int, norm: Any) -> Any:
    a, axis = operand(a), axis % a.ndim
    a = a if n is None else _fitted(a, axis, int(n))
    a = a if a.dtype.kind == "f" else a.astype(float)
    return _rfft_op(a, options=(axis, int(raw(a).shape[axis]), norm))


def _of_real(a: Any, n: Any, axis: int, norm: Any) -> Any:
    a, axis = operand(a), axis % a.ndim
    n = 2 * (int(raw(a).shape[axis]) - 1) if n is None else int(n)
    a = _fitted(a, axis, n // 2 + 1)
    if a.dtype.kind != "c":
        a = a.astype(np.result_type(a.dtype, np.complex64))
    return _irfft_op(a, options=(axis, n, norm))


@instead_of(np.fft.fft)
def fft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """The discrete Fourier transform along an axis. Adjoint: the same."""
    return _one(_fft_op, a, n, axis, norm)


@instead_of(np.fft.ifft)
def ifft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """The inverse transform along an axis. Adjoint: the same."""
    return _one(_ifft_op, a, n, axis, norm)


@instead_of(np.fft.rfft)
def rfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """The transform of real numbers: the frequencies that are not conjugates of others."""
    return _real(a, n, axis, norm)


@instead_of(np.fft.irfft)
def irfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """The inverse of `rfft`; of frequencies that a real transform has real, the imaginary part is not read."""
    return _of_real(a, n, axis, norm)


@instead_of(np.fft.hfft)
def hfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """The transform of numbers with hermitian symmetry, which is real."""
    return _of_real(conj(operand(a)), n, axis, _SWAPPED[norm])


@instead_of(np.fft.ihfft)
def ihfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: None = None) -> Any:
    """The inverse of `hfft`."""
    return conj(_real(a, n, axis, _SWAPPED[norm]))


# -- of several dimensions -------------------------------------------------------------------------------------------
def _plan(a: Any, s: Any, axes: Any) -> list[tuple[Any, int]]:
    """(extent or None, axis) of each dimension to transform."""
    if axes is None:
        axes = range(a.ndim) if s is None else range(a.ndim - len(s), a.ndim)
    axes = [int(i) % a.ndim for i in axes]
    extents = [None] * len(axes) if s is None else [None if n in (None, -1) else int(n) for n in s]
    return list(zip(extents, axes, strict=True))


def _several(primitive: Primitive) -> Any:
    def transform(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: None = None) -> Any:
        a = operand(a)
        for n, axis in reversed(_plan(a, s, axes)):
            a = _one(primitive, a, n, axis, norm)
        return a

    return transform


def _several_real(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: None = None) -> Any:
    a = operand(a)
    *others, (n, last) = _plan(a, s, axes)
    y = _real(a, n, last, norm)
    for n, axis in reversed(others):
        y = _one(_fft_op, y, n, axis, norm)
    return y


def _several_of_real(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: None = None) -> Any:
    a = operand(a)
    *others, (n, last) = _plan(a, s, axes)
    for m, axis in others:
        a = _one(_ifft_op, a, m, axis, norm)
    return _of_real(a, n, last, norm)


def _made(theirs: Any, transform: Any, what: str) -> Any:
    two = theirs.__name__.endswith("2")

    @instead_of(theirs)
    def named(
        a: Any, s: Any = None, axes: Any = (-2, -1) if two else None, norm: Any = None, out: None = None
    ) -> Any:
        return transform(a, s, axes, norm)

    named.__name__ = named.__qualname__ = theirs.__name__
    named.__doc__ = f"{what} over {'two' if two else 'several'} dimensions."
    return named


fftn = _made(np.fft.fftn, _several(_fft_op), "The transform")
ifftn = _made(np.fft.ifftn, _several(_ifft_op), "The inverse transform")
fft2 = _made(np.fft.fft2, _several(_fft_op), "The transform")
ifft2 = _made(np.fft.ifft2, _several(_ifft_op), "The inverse transform")
rfftn = _made(np.fft.rfftn, _several_real, "The transform of real numbers")
irfftn = _made(np.fft.irfftn, _several_of_real, "The inverse of the transform of real numbers")
rfft2 = _made(np.fft.rfft2, _several_real, "The transform of real numbers")
irfft2 = _made(np.fft.irfft2, _several_of_real, "The inverse of the transform of real numbers")


def _shifts(x: Any, axes: Any, sign: int) -> Any:
    axes = range(x.ndim) if axes is None else (axes,) if isinstance(axes, int | np.integer) else axes
    axes = tuple(int(i) % x.ndim for i in axes)
    halves = [int(raw(x).shape[i]) // 2 for i in axes]
    return roll(x, tuple(h if sign > 0 else -h for h in halves), axes)


@instead_of(np.fft.fftshift)
def fftshift(x: Any, axes: Any = None) -> Any:
    """The zero frequency moved to the middle."""
    return _shifts(x, axes, 1)


@instead_of(np.fft.ifftshift)
def ifftshift(x: Any, axes: Any = None) -> Any:
    """The inverse of `fftshift`."""
    return _shifts(x, axes, -1)
