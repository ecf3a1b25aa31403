"""`check_grads`: comparison of derivatives with numerical derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.state import state
from ..engine.tensor import TENSORS, may_need_gradient
from ..errors import CommunicationError, RingtapeError, typed_errors
from ..transforms import vjp
from .coordinates import Function, OnAllRanks, plain_arrays_named
from .declaration import check_users_declarations
from .differences import along, at_element, complex_step, first_slopes, numeric_tangent, rounded_size, settled_slope
from .locating import locate
from .probing import pairing, random_like, value
from .report import GradientMismatch, compare, worst_elements

__all__ = ["check_grads"]

_MODES = ("reverse", "forward")
_SHORT = {"rev": "reverse", "fwd": "forward"}


@typed_errors
def check_grads(
    f: Function,
    *args: Any,
    order: int = 2,
    modes: Sequence[str] = _MODES,
    eps: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
) -> None:
    """Compare the derivatives of a function with finite differences and, where possible, complex-step derivatives.

    The check draws a random cotangent ct and a random tangent dx. Reverse mode is compared with the numerical gradient
    of ``<ct, f>``, element by element; forward mode with the numerical derivative of `f` along dx. Order 2 repeats this
    for the derivatives that order 1 has checked, in each mode: reverse over reverse, forward over reverse, and so on.

    The error of the numerical derivative is added to the tolerance. If one central difference does not confirm an
    element, a series of differences is extrapolated, which also estimates the error, and the complex step is tried,
    whose error is negligible. A correct derivative of an ill-conditioned function therefore passes, and a relative
    error of 1e-4 is found wherever rounding leaves four correct digits.

    Parameters
    ----------
    f : callable
        Takes the arrays that are given and returns one array. It is called at least twice per element, of all ranks
        together, so keep the arguments small.
    *args : array_like
        Floating or complex, away from kinks. Derivatives in single precision are compared with differences in double.
        Under a mesh, Tensors of any labels; a plain array is Varying.
    order : int
        The highest order of derivatives to check.
    modes : sequence of str
        One or both of "reverse" and "forward", which may be written "rev" and "fwd" as in HIPS autograd.
    eps : float, optional
        Step of the first differences, relative to ``max(1, |x|)``. By default the cube root of the machine epsilon.
    rtol, atol : float, optional
        Tolerances relative to each element and to the largest element of its argument. By default 1e-6 and 1e-9, in
        single precision 1e-3 and 1e-4.
    seed : int
        Seed of the random cotangents and tangents.

    Raises
    ------
    GradientMismatch
        A derivative is wrong: the message names mode, order, argument and elements. Or the differences do not converge
        at this point, so that the derivative can be neither confirmed nor refuted.
    DeclarationMismatch
        An operation of yours that the function calls does not have a property that its declaration states; see
        `check_declaration`.
    DtypeError
        An argument, or the result, is not floating or complex.
    ReplicaMismatch
        Under a mesh: the copies of an argument that is R or I differ between ranks.
    TapeError
        `f` uses a value that was computed outside of it from a value that requires a gradient, as an argument does.
    RingtapeError
        `order` or `modes` is not valid.

    Notes
    -----
    Under a mesh all its ranks call it together, and `f` takes and returns values with labels. Arguments and result may
    have any labels. The pairing is the sum over the ranks of local dot products, counted once along axes on which the
    value is Invariant. Each element that can change by itself is tested: that of a copy together with the other copies
    (R, I), and that of a part or addend on each rank (V, Shard, P). The cotangents have the dual labels. Copies of
    Invariant values must be equal. If a derivative is wrong on one rank, all ranks raise.

    Complex values: the pairing is bilinear, so the gradient of a real L at ``z = x + iy`` is ``dL/dx - i dL/dy``.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd.testing import check_grads
    >>> check_grads(lambda x, y: np.sin(x) * y, np.array([0.5, 1.0]), np.array(2.0))
    >>> from autograd.extend import op
    >>> wrong = op("wrong cube (example)", "N", lambda x: x**3, lambda ct, y, x: ct * 2 * x**2, saves="0")
    >>> try:
    ...     check_grads(wrong, np.array([1.0, 2.0]), order=1, modes=["reverse"])
    ... except AssertionError as error:
    ...     print(str(error).splitlines()[0])
    reverse mode, order 1, argument 0 of shape (2,): 2 of 2 elements differ
    """
    kinds = tuple(_SHORT.get(mode, mode) for mode in modes)
    if not kinds or not {*kinds} <= {*_MODES}:
        raise RingtapeError(f"check_grads: modes={list(modes)} was given; needed: one or both of {', '.join(_MODES)}")
    if order < 1:
        raise RingtapeError(f"check_grads: order={order} was given; needed: at least 1")
    tested, xs = OnAllRanks.at(f, args, "check_grads")
    single = any(np.finfo(x.dtype).eps > 1e-10 for x in xs)
    options = _Options(
        kinds, eps, (1e-3 if single else 1e-6) if rtol is None else rtol,
        (1e-4 if single else 1e-9) if atol is None else atol, np.random.default_rng(seed),
    )  # fmt: skip
    with plain_arrays_named(args, "check_grads"):
        if any(x.__class__ in TENSORS and may_need_gradient(x) for x in args):
            vjp(f, *[x if x.__class__ in TENSORS else np.asarray(x) for x in args])  # the copies below are new leaves
        check_users_declarations(f, tested.spread(xs), seed)
        try:
            _check(tested, xs, order, options, "")
        except GradientMismatch as error:
            locate(error, tested, xs, lambda g, zs: _check(g, zs, order, options, ""))
            raise


@dataclass(frozen=True)
class _Options:
    modes: tuple[str, ...]
    eps: float | None
    rtol: float
    atol: float
    rng: np.random.Generator


def _check(
    f: OnAllRanks, xs: list[np.ndarray], order: int, options: _Options, path: str, cancelled: float = 0.0
) -> None:
    """Check one order and those above it.

    `path` names the derivative that `f` is, like "forward of reverse". `cancelled` is the size of terms that may have
    cancelled in the values of `f`.
    """
    y = f.value(xs)
    ct = random_like(y, options.rng)
    dxs = [random_like(x, options.rng) for x in xs]
    depth = len(path.split(" of ")) + 1 if path else 1
    title = f"order {depth}" + (f" (of the {path} derivative)" if path else "")
    point = _Point(f, xs, dxs, y, options, cancelled)
    if "reverse" in options.modes:
        found = f.gradients(xs, ct)
        for i, (x, g) in enumerate(zip(xs, found, strict=True)):
            shown = f"argument {i} of shape {x.shape}{f.arguments[i].title}"
            _check_reverse(point, i, ct, g, f"reverse mode, {title}, {shown}")
    if "forward" in options.modes:
        where = f"forward mode, {title}"
        dy = f.tangent(xs, dxs, f"{where}: the tangent of the result")
        if dy.shape != y.shape:
            raise GradientMismatch(f"{where}: the tangent has shape {dy.shape}; needed: {y.shape}, as the value")
        _check_forward(point, dy, f"{where}, the value of shape {y.shape}")
    if order > 1:
        cancelled = max(cancelled, float(np.max(np.abs(y), initial=0.0)))
        for mode in options.modes:
            deeper = f"{mode} of {path}" if path else mode
            if mode == "forward":
                _check(f.tangent_function(dxs), xs, order - 1, options, deeper, cancelled)
            else:
                for gradient in f.gradient_functions(ct):
                    _check(gradient, xs, order - 1, options, deeper, cancelled)


class _Point:
    """The function and the point where it is differentiated numerically, in double precision if `f` accepts it.

    Attributes
    ----------
    given, xs : list of array
        The arguments in their own dtypes, and widened to double precision.
    y : array
        The value of `f` at `xs`.
    own_eps, eps : float
        Machine epsilon of the derivative that is checked, and of `y`.
    step : float
        Relative step of the first differences.
    largest : float
        Bound on the size of cancelling terms. A larger one would let a kink pass for rounding.
    """

    def __init__(
        self, f: Function, xs: list[np.ndarray], dxs: list[np.ndarray], y: np.ndarray, options: _Options,
        cancelled: float,
    ):  # fmt: skip
        self.f, self.options, self.cancelled = f, options, cancelled
        self.given = xs
        self.own_eps = float(np.finfo(y.dtype).eps)
        self.xs = [x.astype(np.result_type(x.dtype, np.float64)) for x in xs]
        self.y = y
        if any(a.dtype != b.dtype for a, b in zip(self.xs, xs, strict=True)):
            try:
                self.y = value(f, self.xs)
            except CommunicationError:
                raise
            except Exception:  # the function accepts single precision only
                self.xs = xs
        self.dxs = [dx.astype(x.dtype) for dx, x in zip(dxs, self.xs, strict=True)]
        self.eps = float(np.finfo(self.y.dtype).eps)
        self.step = self.eps ** (1 / 3) if options.eps is None else options.eps
        self.largest = max((float(np.max(np.abs(x), initial=1.0)) for x in self.xs), default=1.0)
        self._analytic: bool | None = None

    @property
    def precisions(self) -> list[tuple[list[np.ndarray], float]]:
        """The arguments in each precision in which rounding is measured, and its machine epsilon."""
        widened = (self.xs, self.eps)
        if self.eps == self.own_eps and all(a.dtype == b.dtype for a, b in zip(self.xs, self.given, strict=True)):
            return [widened]
        return [widened, (self.given, self.own_eps)]

    @property
    def analytic(self) -> bool:
        """Whether the complex step agrees with differences along a random direction."""
        if self._analytic is None:
            step = None
            if self.y.dtype.kind == "f" and all(x.dtype == np.float64 for x in self.xs):
                step = complex_step(self.f, self.xs, self.dxs)
            self._analytic = False
            if step is not None and step.shape == self.y.shape:
                slope, error = settled_slope(along(self.f, self.xs, self.dxs), 1.0, self.eps, stairs=step != 0)
                self._analytic = bool(np.all(np.abs(step - slope) <= 3 * error + 1e-6 * np.abs(slope)))
        return self._analytic


_WORST = 2
"""Number of elements of a distributed argument that are examined before the others."""


def _check_reverse(point: _Point, i: int, ct: np.ndarray, got: np.ndarray, where: str) -> None:
    """Compare the gradient of one argument with numerical derivatives, element by element."""
    f, x, options = point.f, point.xs[i], point.options
    if not x.size:
        return
    ct = ct.astype(np.result_type(ct.dtype, point.y.dtype))
    expected, sizes = first_slopes(f, point.xs, i, ct, point.step)
    # where no term changed, any term of <ct, y> may have cancelled
    sizes = np.where(np.isfinite(sizes) & (sizes > 0), sizes, np.max(np.abs(ct * point.y), initial=0.0))
    scale = np.maximum(1.0, np.abs(x))
    floor = np.asarray(64 * point.own_eps * (sizes + point.cancelled) / scale)  # rounding error of a correct derivative
    error = np.asarray(floor + 4 * point.eps * sizes / (point.step * scale))
    unconfirmed = _unconfirmed(expected, got, error, options)
    if state.grid is not None:  # evaluations communicate: stop at the worst elements if they are wrong
        unconfirmed.sort(key=lambda at: -np.nan_to_num(abs(expected[at] - got[at]), nan=np.inf))
    for n, at in enumerate(unconfirmed):
        if n == _WORST and state.grid is not None:
            alone = np.full(error.shape, np.inf)
            for done in unconfirmed[:n]:
                alone[done] = error[done]
            compare(where, expected, got, options.rtol, options.atol, alone, worst=n)
        base = float(abs(x[at]))
        size = max(float(np.sum(rounded_size(at_element(f, zs, i, at, ct, unit), base, eps)))
                   for zs, eps in point.precisions
                   for unit in ((1, 1j) if x.dtype.kind == "c" else (1,)))  # fmt: skip
        sizes[at] = max(sizes[at], min(size, point.largest * float(np.max(np.abs(ct)))))
        floor[at] = 64 * point.own_eps * (sizes[at] + point.cancelled) / scale[at]
        settings = (base, point.eps, True, abs(got[at]) > floor[at])
        slope, slope_error = settled_slope(at_element(f, point.xs, i, at, ct), *settings)
        if x.dtype.kind == "c":
            imaginary, imaginary_error = settled_slope(at_element(f, point.xs, i, at, ct, 1j), *settings)
            slope, slope_error = slope - 1j * imaginary, slope_error + imaginary_error
        elif point.analytic:
            unit = [np.zeros_like(z) for z in point.xs]
            unit[i][at] = 1
            step = complex_step(f, point.xs, unit)
            if step is not None and abs(pairing(ct, step) - slope) <= 3 * slope_error + 1e-6 * abs(slope):
                slope, slope_error = np.asarray(pairing(ct, step)), np.asarray(0.0)
        expected[at], error[at] = slope, 2 * slope_error + floor[at]
    compare(where, expected, got, options.rtol, options.atol, error)
    _check_convergence(where, expected, got, error, float(np.max(sizes)) + point.cancelled, options)


def _check_forward(point: _Point, got: np.ndarray, where: str) -> None:
    """Compare a tangent with the numerical derivative along its direction."""
    f, options = point.f, point.options
    if not got.size:
        return
    size = np.abs(point.y)
    expected = np.array(numeric_tangent(f, point.xs, point.dxs, point.step))
    floor = 64 * point.own_eps * (size + np.mean(size) + point.cancelled)
    error = np.asarray(floor + 4 * point.eps * size / point.step)
    unconfirmed = _unconfirmed(expected, got, error, options)
    if unconfirmed:
        phi = along(f, point.xs, point.dxs)
        rounded = np.max([rounded_size(along(f, zs, point.dxs), 1.0, eps) for zs, eps in point.precisions], axis=0)
        size = np.maximum(size, np.minimum(rounded, point.largest))
        floor = 64 * point.own_eps * (size + np.mean(size) + point.cancelled)
        slope, slope_error = settled_slope(phi, 1.0, point.eps, stairs=np.abs(got) > floor)
        step = complex_step(f, point.xs, point.dxs) if point.analytic else None
        if step is not None:
            slope, slope_error = step, np.zeros_like(slope_error)
        for at in unconfirmed:
            expected[at], error[at] = slope[at], 2 * slope_error[at] + floor[at]
    compare(where, expected, got, options.rtol, options.atol, error)
    _check_convergence(where, expected, got, error, float(np.max(size)) + point.cancelled, options)


def _unconfirmed(expected: np.ndarray, got: np.ndarray, error: Any, options: _Options) -> list[tuple[int, ...]]:
    """Return the indices of elements that the first difference contradicts, or is too inaccurate to confirm."""
    with np.errstate(invalid="ignore"):
        tolerance = options.rtol * np.abs(expected) + options.atol * np.max(np.abs(expected))
        confirmed = (np.abs(expected - got) <= tolerance + error) & (error <= 1e-5 * np.abs(expected) + tolerance)
        confirmed |= (expected == got) & (expected == 0)
    return [tuple(int(n) for n in at) for at in np.argwhere(~confirmed)]


def _check_convergence(
    where: str, expected: np.ndarray, got: np.ndarray, error: Any, size: float, options: _Options
) -> None:
    """Raise GradientMismatch if a numerical derivative is too inaccurate to confirm anything."""
    scale = max(float(np.max(np.abs(expected))), size)
    larger = np.maximum(np.abs(expected), np.abs(got))
    inaccurate = (error > max(1e-3, 10 * options.rtol) * larger) & (error > max(1e-6, options.rtol) * scale)
    if inaccurate.any():
        raise GradientMismatch(
            f"{where}: differences do not converge in {int(inaccurate.sum())} of {inaccurate.size} elements, so the "
            "derivative cannot be checked. Needed: arguments away from kinks and jumps, or a function that accepts "
            "complex numbers" + worst_elements(inaccurate, np.abs(expected - got), expected, got, error)
        )
