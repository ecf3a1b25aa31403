"""Derivatives by numbers, and how far each can be trusted.

A central difference of step h is off by truncation, about h^2 f''' / 6, and by rounding, about e |f| / h. Neither is
known beforehand, so a slope that matters is taken with a whole row of steps, extrapolated to step zero (Ridders 1982,
"Accurate computation of F'(x) and F'(x) F''(x)", Advances in Engineering Software 4), and comes with the error that the
row itself shows. Where the function takes complex numbers and is analytic, ``Im f(x + ih) / h`` has neither error
(Squire and Trapp 1998, "Using complex variables to estimate derivatives of real functions", SIAM Review 40).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .probing import Function, value

__all__ = ["along", "at_element", "complex_step", "first_slopes", "numeric_gradient", "numeric_tangent",
           "rounded_size", "settled_slope"]  # fmt: skip

_ROWS, _COLUMNS = 20, 3  # how many steps, each half of the one before, and how often they are extrapolated
_WINDOW = 5  # how many rows must agree
_SHRINKS = 40  # how often a first step that leaves the function's domain is divided by four
_PROBES = 16  # how many small steps look for rounding: a few may show none by chance
_STEP = 1e-20  # of the complex step: nothing is subtracted, so it may be as small as one likes
_LEAVES = 100 * _STEP**2  # of the order of the step's square, which is all there is where the slope is zero


def settled_slope(
    phi: Callable[[float], Any],
    scale: float = 1.0,
    precision: float = 2.2e-16,
    total: bool = False,
    stairs: Any = False,
) -> tuple[Any, Any]:
    """The slope of `phi` at zero and the error of it, each an array where `phi` gives arrays.

    Parameters
    ----------
    phi : callable
        Of a real step; where it is undefined, nan is enough.
    scale : float
        The size of what the step is added to.
    precision : float
        The relative precision of the values of `phi`.
    total : bool
        The slope of the sum of what `phi` gives. Terms that do not change cancel before they can round.
    stairs : bool or array of bool
        Whether values that small steps do not change at all, and larger ones did, are stairs that rounding has made.

    Examples
    --------
    >>> import numpy
    >>> from autograd.testing import settled_slope
    >>> slope, error = settled_slope(lambda t: numpy.exp(1 + t))
    >>> bool(abs(slope - numpy.e) <= 2 * error), bool(error < 1e-10)
    (True, True)
    """
    h = 0.1 * max(abs(scale), 0.01)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(_SHRINKS):  # into the function's domain
            if np.isfinite(phi(h)).all() and np.isfinite(phi(-h)).all():
                break
            h /= 4
        return _extrapolated(phi, h, precision, total, stairs)


def _difference(phi: Callable[[float], Any], h: float) -> tuple[Any, Any]:
    """What `phi` changes by between -h and h, and the size of the values that were subtracted."""
    ahead, behind = np.asarray(phi(h)), np.asarray(phi(-h))
    return ahead - behind, np.maximum(np.abs(ahead), np.abs(behind))


def _extrapolated(
    phi: Callable[[float], Any], h: float, precision: float, total: bool, stairs: Any
) -> tuple[Any, Any]:
    """The best entry of a table of extrapolated differences, element by element, and its error."""
    rows: list[list[Any]] = []
    moves: list[list[Any]] = []  # how far each column moved from the row before
    rounding: list[Any] = []
    best: Any = np.nan
    error: Any = np.inf
    moving: Any = False
    for n in range(_ROWS):
        change, size = _difference(phi, h)
        moving = moving | (change != 0)
        if total:
            change, size = np.sum(change), np.sum(size * moving)
        change = np.where(np.any(moving) if total else moving, np.where(stairs & (change == 0), np.nan, change), 0.0)
        row = [change / (2 * h)]
        for k, before in enumerate(rows[-1][:_COLUMNS] if rows else (), 1):
            row.append(row[-1] + (row[-1] - before) / (4.0**k - 1))
        moves.append([np.abs(a - b) for a, b in zip(row, rows[-1], strict=False)] if rows else [])
        rows.append(row)
        # What columns still move by is rounding too, of values inside `phi` that nobody sees: never trust less than
        # the last few rows show. A column must have settled twice, since it may stand still once by chance.
        rounding.append(np.maximum(precision * size, moves[n][min(2, len(moves[n]) - 1)] * h if n else 0.0))
        if n >= _WINDOW:
            noise = np.max(rounding[n - _WINDOW + 1 :], axis=0) / h
            for k in range(1, len(row)):
                off = np.maximum(moves[n][k], moves[n - 1][k] / 4) + noise
                better = off < error
                best, error = np.where(better, row[k], best), np.where(better, off, error)
        h /= 2
    return best, error


def rounded_size(phi: Callable[[float], Any], scale: float = 1.0, precision: float = 2.2e-16) -> Any:
    """How large the terms are whose rounding the values of `phi` show, each an array where `phi` gives arrays.

    A value may be far smaller than what has cancelled in it: ``log(exp(x)) - x`` is of the size of the rounding of x.
    Second differences over steps so small that nothing bends are rounding alone.

    Examples
    --------
    >>> import numpy
    >>> from autograd.testing.differences import rounded_size
    >>> bool(0.1 < rounded_size(lambda t: numpy.log(numpy.exp(0.7 + t)) - (0.7 + t)) < 10)
    True
    >>> bool(rounded_size(lambda t: 1e-20 * numpy.sin(0.7 + t)) < 1e-18)
    True
    """
    steps = max(1.0, abs(scale)) * np.geomspace(precision, 0.1 * np.sqrt(precision), _PROBES)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = 2 * np.asarray(phi(0.0))
        bends = [np.abs(np.asarray(phi(float(h))) - base + np.asarray(phi(-float(h)))) for h in steps]
    return np.nan_to_num(np.max(bends, axis=0) / precision, nan=0.0, posinf=0.0)


def complex_step(f: Function, xs: Sequence[np.ndarray], dxs: Sequence[np.ndarray]) -> np.ndarray | None:
    """The derivative of `f` along `dxs` by a step in imaginary direction; None where `f` takes no complex numbers.

    Whether it is the derivative must be checked against a difference: a function that is not analytic (``abs``) gives
    something else.

    Examples
    --------
    >>> import numpy
    >>> from autograd.testing import complex_step
    >>> complex_step(lambda x: x**3, [numpy.array([2.0])], [numpy.array([1.0])])
    array([12.])
    """
    moved = [x + 1j * _STEP * dx for x, dx in zip(xs, dxs, strict=True)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        try:
            y = value(f, moved)
        except Exception:  # whatever a function says that does not know complex numbers
            return None
    if y.dtype.kind != "c" or not np.isfinite(y).all():
        return None
    slope = np.asarray(y.imag / _STEP)
    return np.where(np.abs(slope) <= _LEAVES, 0.0, slope)


def along(f: Function, xs: Sequence[np.ndarray], dxs: Sequence[np.ndarray]) -> Callable[[complex], np.ndarray]:
    """`f` as a function of a step along `dxs`."""
    return lambda t: value(f, [np.asarray(x + t * dx, x.dtype) for x, dx in zip(xs, dxs, strict=True)])


def at_element(
    f: Function, xs: Sequence[np.ndarray], i: int, at: tuple[int, ...], ct: np.ndarray, unit: complex = 1.0
) -> Callable[[float], Any]:
    """The terms of ``<ct, f>`` as a function of a step in one element of argument i, in the direction `unit`."""

    def phi(t: float) -> Any:
        moved = list(xs)
        moved[i] = np.array(xs[i])
        moved[i][at] += t * unit
        return np.asarray(ct * value(f, moved)).real

    return phi


def first_slopes(
    f: Function, xs: Sequence[np.ndarray], i: int, ct: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """Central differences of ``<ct, f>`` in every element of argument i, and the sizes of what was subtracted."""
    base = xs[i]
    out, sizes = np.zeros(base.shape, base.dtype), np.zeros(base.shape)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at in np.ndindex(*base.shape):
            h = eps * max(1.0, float(abs(base[at])))
            for unit, factor in ((1, 1), (1j, -1j)) if base.dtype.kind == "c" else ((1, 1),):
                change, size = _difference(at_element(f, xs, i, at, ct, unit), h)
                out[at] += factor * (np.sum(change) / (2 * h))
                sizes[at] += np.sum(size * (change != 0))
    return out, sizes


def numeric_gradient(f: Function, xs: Sequence[np.ndarray], i: int, ct: np.ndarray, eps: float) -> np.ndarray:
    """Central differences of ``<ct, f>`` in every element of argument i; `eps` is relative to ``max(1, |x|)``."""
    return first_slopes(f, xs, i, ct, eps)[0]


def numeric_tangent(f: Function, xs: Sequence[np.ndarray], dxs: Sequence[np.ndarray], eps: float) -> np.ndarray:
    """The central difference of `f` along `dxs`."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _difference(along(f, xs, dxs), eps)[0] / (2 * eps)
