"""Numerical derivatives with estimates of their errors.

A central difference with step h has a truncation error of about h^2 f''' / 6 and a rounding error of about e |f| / h,
where e is the machine epsilon. Neither is known beforehand. `settled_slope` therefore takes differences with a series
of steps, extrapolates them to step zero, and estimates the error from their spread (Ridders 1982, "Accurate computation
of F'(x) and F'(x) F''(x)", Advances in Engineering Software 4). If the function accepts complex numbers and is
analytic, the complex step ``Im f(x + ih) / h`` has neither error (Squire and Trapp 1998, "Using complex variables to
estimate derivatives of real functions", SIAM Review 40).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from ..engine.state import state
from ..errors import CommunicationError, MeshError, typed_errors
from .probing import Function, value

__all__ = ["along", "at_element", "complex_step", "first_slopes", "numeric_gradient", "numeric_tangent",
           "rounded_size", "settled_slope"]  # fmt: skip

_ROWS = 20  # number of steps, each half the one before
_COLUMNS = 3  # number of extrapolations
_WINDOW = 5  # number of consecutive rows from which rounding is estimated
_SHRINKS = 40  # largest number of times that a first step outside the function's domain is divided by four
_PROBES = 16  # number of small steps from which rounding is estimated: a few may show none by chance
_STEP = 1e-20  # of the complex step, which subtracts nothing, so that it can be arbitrarily small
_ZERO_SLOPE = 100 * _STEP**2  # a complex-step slope below this is a term of second order: the slope is zero


@contextmanager
def _warnings(action: Literal["ignore", "error"], category: type[Warning] = Warning) -> Iterator[None]:
    """Ignore warnings, or raise them; not under a mesh: ranks may be threads, and threads share the filters."""
    if state.grid is not None:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter(action, category)
        yield


@typed_errors
def settled_slope(
    phi: Callable[[float], Any],
    scale: float = 1.0,
    precision: float = 2.2e-16,
    total: bool = False,
    stairs: Any = False,
) -> tuple[Any, Any]:
    """Return the derivative of `phi` at zero and an estimate of its error, arrays if `phi` returns arrays.

    Parameters
    ----------
    phi : callable
        A function of a real step. It may return nan outside its domain.
    scale : float
        Size of the number that the step is added to.
    precision : float
        Relative precision of the values of `phi`.
    total : bool
        Whether to return the derivative of the sum of the elements of `phi`. Elements that no step changes are left
        out, so that they add no rounding error.
    stairs : bool or array of bool
        Whether an element that large steps change and small steps do not is piecewise constant because of rounding. The
        small steps are then ignored; otherwise they count as slope 0.

    Examples
    --------
    >>> import numpy
    >>> from autograd.testing import settled_slope
    >>> slope, error = settled_slope(lambda t: numpy.exp(1 + t))
    >>> bool(abs(slope - numpy.e) <= 2 * error), bool(error < 1e-10)
    (True, True)
    """
    h = 0.1 * max(abs(scale), 0.01)
    with np.errstate(all="ignore"), _warnings("ignore"):
        for _ in range(_SHRINKS):  # until the step stays in the function's domain
            if np.isfinite(phi(h)).all() and np.isfinite(phi(-h)).all():
                break
            h /= 4
        return _extrapolate(phi, h, precision, total, stairs)


def _difference(phi: Callable[[float], Any], h: float) -> tuple[Any, Any]:
    """Return ``phi(h) - phi(-h)``, and the larger absolute value of the two."""
    ahead, behind = np.asarray(phi(h)), np.asarray(phi(-h))
    return ahead - behind, np.maximum(np.abs(ahead), np.abs(behind))


def _extrapolate(
    phi: Callable[[float], Any], h: float, precision: float, total: bool, stairs: Any
) -> tuple[Any, Any]:
    """Return, for each element, the entry of the extrapolation table with the smallest error, and that error."""
    rows: list[list[Any]] = []  # one row per step; column k has been extrapolated k times
    moves: list[list[Any]] = []  # absolute change of each column from the row before
    rounding: list[Any] = []
    best: Any = np.nan
    error: Any = np.inf
    moving: Any = False  # which elements some step has changed
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
        # Intermediate values inside `phi` may round more than its result. That rounding shows in the changes of the
        # columns, so the error estimate is at least the largest change in the last few rows. Two successive changes of
        # a column count, because one may be small by chance.
        rounding.append(np.maximum(precision * size, moves[n][min(2, len(moves[n]) - 1)] * h if n else 0.0))
        if n >= _WINDOW:
            noise = np.max(rounding[n - _WINDOW + 1 :], axis=0) / h
            for k in range(1, len(row)):
                estimate = np.maximum(moves[n][k], moves[n - 1][k] / 4) + noise
                better = estimate < error
                best, error = np.where(better, row[k], best), np.where(better, estimate, error)
        h /= 2
    return best, error


def rounded_size(phi: Callable[[float], Any], scale: float = 1.0, precision: float = 2.2e-16) -> Any:
    """Estimate the size of the terms that cancel in the values of `phi` at zero, an array if `phi` returns arrays.

    A value may be much smaller than the terms that cancelled in it, like ``log(exp(x)) - x``, and its rounding error is
    relative to these terms. It is measured by second differences over steps so small that only rounding contributes to
    them.

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
    with np.errstate(all="ignore"), _warnings("ignore"):
        base = 2 * np.asarray(phi(0.0))
        second = [np.abs(np.asarray(phi(float(h))) - base + np.asarray(phi(-float(h)))) for h in steps]
    return np.nan_to_num(np.max(second, axis=0) / precision, nan=0.0, posinf=0.0)


@typed_errors
def complex_step(f: Function, xs: Sequence[np.ndarray], dxs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the complex-step derivative of `f` along `dxs`, or None if `f` does not accept complex numbers.

    The result is the derivative only if `f` is analytic, which must be checked against a difference: for ``abs`` it is
    something else.

    Examples
    --------
    >>> import numpy
    >>> from autograd.testing import complex_step
    >>> complex_step(lambda x: x**3, [numpy.array([2.0])], [numpy.array([1.0])])
    array([12.])
    """
    moved = [x + 1j * _STEP * dx for x, dx in zip(xs, dxs, strict=True)]
    with np.errstate(all="ignore"), _warnings("error", np.exceptions.ComplexWarning):
        try:
            y = value(f, moved)
        except CommunicationError:
            raise
        except Exception:  # a function that does not accept complex numbers may raise anything
            return None
    if y.dtype.kind != "c" or not np.isfinite(y).all():
        return None
    slope = np.asarray(y.imag / _STEP)
    return np.where(np.abs(slope) <= _ZERO_SLOPE, 0.0, slope)


def along(f: Function, xs: Sequence[np.ndarray], dxs: Sequence[np.ndarray]) -> Callable[[complex], np.ndarray]:
    """Return `f` as a function of a step along `dxs`."""
    return lambda t: value(f, [np.asarray(x + t * dx, x.dtype) for x, dx in zip(xs, dxs, strict=True)])


def at_element(
    f: Function, xs: Sequence[np.ndarray], i: int, at: tuple[int, ...], ct: np.ndarray, unit: complex = 1.0
) -> Callable[[float], Any]:
    """Return the terms of ``<ct, f>`` as a function of a step of element `at` of argument i, in the direction `unit`.

    `unit` is 1 or 1j.
    """

    def phi(t: float) -> Any:
        moved = list(xs)
        moved[i] = np.array(xs[i])
        moved[i][at] += t * unit
        return np.asarray(ct * value(f, moved)).real

    return phi


def first_slopes(
    f: Function, xs: Sequence[np.ndarray], i: int, ct: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return `numeric_gradient`, and for each element the sum of the absolute values of the terms subtracted."""
    base = xs[i]
    out, sizes = np.zeros(base.shape, base.dtype), np.zeros(base.shape)
    with np.errstate(all="ignore"), _warnings("ignore"):
        for at in np.ndindex(*base.shape):
            h = eps * max(1.0, float(abs(base[at])))
            for unit, factor in ((1, 1), (1j, -1j)) if base.dtype.kind == "c" else ((1, 1),):
                change, size = _difference(at_element(f, xs, i, at, ct, unit), h)
                out[at] += factor * (np.sum(change) / (2 * h))
                sizes[at] += np.sum(size * (change != 0))
    return out, sizes


@typed_errors
def numeric_gradient(f: Function, xs: Sequence[np.ndarray], i: int, ct: np.ndarray, eps: float) -> np.ndarray:
    """Return the gradient of ``<ct, f>`` for argument i by central differences.

    Parameters
    ----------
    f : callable
        A function of the arrays `xs` that returns one array.
    xs : sequence of array
    i : int
    ct : array
        The cotangent of the result.
    eps : float
        The step, relative to ``max(1, |x|)`` of each element x.

    Raises
    ------
    MeshError
        Under a mesh of several ranks, which would each move an element at the same time.
    """
    if state.grid is not None and max(state.grid.sizes) > 1:
        raise MeshError(
            "numeric_gradient was called under a mesh of several ranks; each of them would move an element of its own "
            "at the same time\n  fix: check_grads(f, ...), which moves one at a time"
        )
    return first_slopes(f, xs, i, ct, eps)[0]


@typed_errors
def numeric_tangent(f: Function, xs: Sequence[np.ndarray], dxs: Sequence[np.ndarray], eps: float) -> np.ndarray:
    """Return the derivative of `f` at `xs` along `dxs` by one central difference of step `eps`."""
    with np.errstate(all="ignore"), _warnings("ignore"):
        return _difference(along(f, xs, dxs), eps)[0] / (2 * eps)
