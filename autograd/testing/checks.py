"""`check_grads`: derivatives against slopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.device import to_host
from ..errors import RingtapeError
from ..transforms import jvp, vjp
from .differences import along, at_element, complex_step, first_slopes, numeric_tangent, rounded_size, settled_slope
from .probing import Function, arguments, pairing, pulled, random_like, raw, value
from .report import GradientMismatch, compare, listed

__all__ = ["check_grads"]

_MODES = ("reverse", "forward")


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
    """Compare the derivatives of a function with finite differences, and with the complex step where that exists.

    With a random cotangent ct and a random tangent dx, reverse mode is held against the slope of ``<ct, f>`` in every
    element of every argument, forward mode against the slope of `f` along dx. Order 2 does the same to the derivative
    that order 1 has checked, in each mode: reverse over reverse, forward over reverse, and so on.

    The tolerance of an element is what is asked for and what the slope itself is known to: elements that one central
    difference does not confirm are looked at again with a row of steps, extrapolated, which shows its own error, and
    by a step in imaginary direction, which has next to none. So a derivative of an ill-conditioned function passes
    where it is right, and one that is wrong by 1e-4 fails wherever rounding leaves four digits to be seen.

    Parameters
    ----------
    f : callable
        Of as many arrays as are given; returns one array. It is called at least twice per element, so keep arguments
        small.
    *args : array_like
        Floating or complex, away from kinks. Single precision is compared with differences in double.
    order : int
        The highest derivative to check.
    modes : sequence of str
        Of "reverse" and "forward".
    eps : float, optional
        The step of the first differences, relative to ``max(1, |x|)``; by default the cube root of the precision.
    rtol, atol : float, optional
        Tolerances, relative to an element and to the largest element of its argument; by default 1e-6 and 1e-9, and
        in single precision 1e-3 and 1e-4.
    seed : int
        Of the random cotangents and tangents.

    Raises
    ------
    GradientMismatch
        Which mode and order, which argument, which element, what was expected and what was got; or that differences
        do not settle at this point, so that nothing can be said.
    DtypeError
        An argument without derivative.

    Notes
    -----
    Complex values: the pairing is bilinear, so the gradient of a real L at ``z = x + iy`` is ``dL/dx - i dL/dy``.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd.testing import check_grads
    >>> check_grads(lambda x, y: np.sin(x) * y, np.array([0.5, 1.0]), np.array(2.0))
    >>> from autograd.engine.primitive import op, broadcast
    >>> wrong = op("wrong cube (example)", "N", lambda x: x**3, lambda ct, y, x: ct * 2 * x**2, saves="0",
    ...            dims=broadcast)
    >>> try:
    ...     check_grads(wrong, np.array([1.0, 2.0]), order=1, modes=["reverse"])
    ... except AssertionError as error:
    ...     print(str(error).splitlines()[0])
    reverse mode, order 1, argument 0 of shape (2,): 2 of 2 elements differ
    """
    unknown = [m for m in modes if m not in _MODES]
    if unknown or not modes:
        raise RingtapeError(f"check_grads: modes={list(modes)} was given; needed: one or both of {', '.join(_MODES)}")
    if order < 1:
        raise RingtapeError(f"check_grads: order={order} was given; needed: at least 1")
    xs = arguments(args, "check_grads")
    coarse = any(np.finfo(x.dtype).eps > 1e-10 for x in xs)
    asked = _Asked(
        tuple(modes), eps, (1e-3 if coarse else 1e-6) if rtol is None else rtol,
        (1e-4 if coarse else 1e-9) if atol is None else atol, np.random.default_rng(seed),
    )  # fmt: skip
    _check(f, xs, order, asked, "")


@dataclass(frozen=True)
class _Asked:
    """What the caller wants of every comparison."""

    modes: tuple[str, ...]
    eps: float | None
    rtol: float
    atol: float
    rng: np.random.Generator


def _check(f: Function, xs: list[np.ndarray], order: int, asked: _Asked, path: str, hidden: float = 0.0) -> None:
    """Check one order and those above it; `hidden` is the size of what may have cancelled in the values of `f`."""
    y = value(f, xs)
    ct = random_like(y, asked.rng)
    dxs = [random_like(x, asked.rng) for x in xs]
    depth = len(path.split(" of ")) + 1 if path else 1
    title = f"order {depth}" + (f" (of the {path} derivative)" if path else "")
    at = _Point(f, xs, dxs, y, asked, hidden)
    if "reverse" in asked.modes:
        for i, (x, g) in enumerate(zip(xs, pulled(f, xs, ct), strict=True)):
            _reverse(at, i, ct, g, f"reverse mode, {title}, argument {i} of shape {x.shape}")
    if "forward" in asked.modes:
        dy = to_host(raw(jvp(f, tuple(xs), tuple(dxs))[1]))
        if dy.shape != y.shape:
            raise GradientMismatch(f"forward mode, {title}: a tangent of shape {dy.shape}, a value of shape {y.shape}")
        _forward(at, dy, f"forward mode, {title}, the value of shape {y.shape}")
    if order > 1:
        hidden = max(hidden, float(np.max(np.abs(y), initial=0.0)))
        for mode in asked.modes:
            deeper = f"{mode} of {path}" if path else mode
            if mode == "forward":
                _check(lambda *zs: jvp(f, zs, _like(dxs, zs))[1], xs, order - 1, asked, deeper, hidden)
            else:
                for i in range(len(xs)):
                    _check(_pullback(f, i, ct), xs, order - 1, asked, deeper, hidden)


def _like(dxs: Sequence[np.ndarray], zs: Sequence[Any]) -> list[np.ndarray]:
    """Fixed tangents in the dtypes of the arguments at hand, which the checks widen."""
    return [dx.astype(z.dtype) for dx, z in zip(dxs, zs, strict=True)]


def _pullback(f: Function, i: int, ct: np.ndarray) -> Function:
    """The function that pulls a fixed cotangent back to the i-th argument."""

    def back(*zs: Any) -> Any:
        found = vjp(f, *zs)[1](ct)
        return found if len(zs) == 1 else found[i]

    return back


class _Point:
    """A function at a point, for slopes: its arguments in double precision, and whether it is analytic there."""

    def __init__(
        self, f: Function, xs: list[np.ndarray], dxs: list[np.ndarray], y: np.ndarray, asked: _Asked, hidden: float
    ):
        self.f, self.asked, self.hidden = f, asked, hidden
        self.given = xs
        self.own = float(np.finfo(y.dtype).eps)  # the precision in which the derivative itself was computed
        self.xs = [x.astype(np.result_type(x.dtype, np.float64)) for x in xs]
        self.y = y
        if any(a.dtype != b.dtype for a, b in zip(self.xs, xs, strict=True)):
            try:
                self.y = value(f, self.xs)
            except Exception:  # a function of single precision only
                self.xs = xs
        self.dxs = [dx.astype(x.dtype) for dx, x in zip(dxs, self.xs, strict=True)]
        self.precision = float(np.finfo(self.y.dtype).eps)
        self.eps = self.precision ** (1 / 3) if asked.eps is None else asked.eps
        # the largest terms that may cancel unseen: no more than the arguments, or a kink would pass for rounding
        self.largest = max((float(np.max(np.abs(x), initial=1.0)) for x in self.xs), default=1.0)
        self._analytic: bool | None = None

    @property
    def analytic(self) -> bool:
        """Whether the complex step gives the slope along a random direction that differences give."""
        if self._analytic is None:
            step = None
            if self.y.dtype.kind == "f" and all(x.dtype == np.float64 for x in self.xs):
                step = complex_step(self.f, self.xs, self.dxs)
            self._analytic = False
            if step is not None and step.shape == self.y.shape:
                slope, error = settled_slope(along(self.f, self.xs, self.dxs), 1.0, self.precision, stairs=step != 0)
                self._analytic = bool(np.all(np.abs(step - slope) <= 3 * error + 1e-6 * np.abs(slope)))
        return self._analytic


def _reverse(at: _Point, i: int, ct: np.ndarray, got: np.ndarray, where: str) -> None:
    """Hold the gradient of one argument against slopes in each of its elements."""
    x, asked = at.xs[i], at.asked
    if not x.size:
        return
    ct = ct.astype(np.result_type(ct.dtype, at.y.dtype))
    expected, sizes = first_slopes(at.f, at.xs, i, ct, at.eps)
    whole = np.max(np.abs(ct * at.y), initial=0.0)  # where nothing changes, nobody knows what has cancelled
    sizes = np.where(np.isfinite(sizes) & (sizes > 0), sizes, whole)
    reach = np.maximum(1.0, np.abs(x))
    floor = np.asarray(64 * at.own * (sizes + at.hidden) / reach)  # what rounding may do to any derivative
    error = np.asarray(floor + 4 * at.precision * sizes / (at.eps * reach))
    for place in _doubtful(expected, got, error, asked):
        base = float(abs(x[place]))
        shown = max(float(np.sum(rounded_size(at_element(at.f, zs, i, place, ct, unit), base, precision)))
                    for zs, precision in ((at.xs, at.precision), (at.given, at.own))
                    for unit in ((1, 1j) if x.dtype.kind == "c" else (1,)))  # fmt: skip
        sizes[place] = max(sizes[place], min(shown, at.largest * float(np.max(np.abs(ct)))))
        floor[place] = 64 * at.own * (sizes[place] + at.hidden) / reach[place]
        known = (base, at.precision, True, abs(got[place]) > floor[place])
        slope, off = settled_slope(at_element(at.f, at.xs, i, place, ct), *known)
        if x.dtype.kind == "c":
            second, more = settled_slope(at_element(at.f, at.xs, i, place, ct, 1j), *known)
            slope, off = slope - 1j * second, off + more
        elif at.analytic:
            unit = [np.zeros_like(z) for z in at.xs]
            unit[i][place] = 1
            step = complex_step(at.f, at.xs, unit)
            if step is not None and abs(pairing(ct, step) - slope) <= 3 * off + 1e-6 * abs(slope):
                slope, off = np.asarray(pairing(ct, step)), np.asarray(0.0)
        expected[place], error[place] = slope, 2 * off + floor[place]
    compare(where, expected, got, asked.rtol, asked.atol, error)
    _refuse_unsettled(where, expected, got, error, float(np.max(sizes)) + at.hidden, asked)


def _forward(at: _Point, got: np.ndarray, where: str) -> None:
    """Hold a tangent against the slope along its direction."""
    asked = at.asked
    if not got.size:
        return
    size = np.abs(at.y)
    expected = np.array(numeric_tangent(at.f, at.xs, at.dxs, at.eps))
    floor = 64 * at.own * (size + np.mean(size) + at.hidden)
    error = np.asarray(floor + 4 * at.precision * size / at.eps)
    doubtful = _doubtful(expected, got, error, asked)
    if doubtful:
        phi = along(at.f, at.xs, at.dxs)
        shown = np.maximum(rounded_size(phi, 1.0, at.precision),
                           rounded_size(along(at.f, at.given, at.dxs), 1.0, at.own))  # fmt: skip
        size = np.maximum(size, np.minimum(shown, at.largest))
        floor = 64 * at.own * (size + np.mean(size) + at.hidden)
        slope, off = settled_slope(phi, 1.0, at.precision, stairs=np.abs(got) > floor)
        step = complex_step(at.f, at.xs, at.dxs) if at.analytic else None
        if step is not None:
            slope, off = step, np.zeros_like(off)
        for place in doubtful:
            expected[place], error[place] = slope[place], 2 * off[place] + floor[place]
    compare(where, expected, got, asked.rtol, asked.atol, error)
    _refuse_unsettled(where, expected, got, error, float(np.max(size)) + at.hidden, asked)


def _doubtful(expected: np.ndarray, got: np.ndarray, error: Any, asked: _Asked) -> list[tuple[int, ...]]:
    """The elements that a first difference does not confirm, or not well enough to say so."""
    with np.errstate(invalid="ignore"):
        tolerance = asked.rtol * np.abs(expected) + asked.atol * np.max(np.abs(expected))
        sure = (np.abs(expected - got) <= tolerance + error) & (error <= 1e-5 * np.abs(expected) + tolerance)
        sure |= (expected == got) & (expected == 0)
    return [tuple(int(n) for n in place) for place in np.argwhere(~sure)]


def _refuse_unsettled(
    where: str, expected: np.ndarray, got: np.ndarray, error: Any, size: float, asked: _Asked
) -> None:
    """Refuse to call a derivative right where the slope that it was held against is hardly known."""
    reach = max(float(np.max(np.abs(expected))), size)
    most = np.maximum(np.abs(expected), np.abs(got))
    vague = (error > max(1e-3, 10 * asked.rtol) * most) & (error > max(1e-6, asked.rtol) * reach)
    if vague.any():
        raise GradientMismatch(
            f"{where}: differences do not settle in {int(vague.sum())} of {vague.size} elements, so nothing can be "
            "said of the derivative. Needed: arguments away from kinks and jumps, or a function that takes complex "
            "numbers" + listed(vague, np.abs(expected - got), expected, got, error)
        )
