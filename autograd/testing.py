"""Checks of derivatives, for the tests of operations: ours and a user's.

`check_grads` compares reverse and forward mode with central finite differences, to any order; `check_adjoint` compares
the two modes with each other, which needs no step size and is exact to rounding: the dot-product test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arrays import is_array, is_inexact, to_host
from .errors import DtypeError, RingtapeError, ShapeError
from .tensor import TENSORS
from .transforms import jvp, vjp

__all__ = ["GradientMismatch", "check_adjoint", "check_grads"]

Function = Callable[..., Any]
_MODES = ("reverse", "forward")


class GradientMismatch(RingtapeError, AssertionError):
    """A derivative that is not what finite differences, or the other mode, say; the text names the element."""


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
    """Compare the derivatives of a function with central finite differences.

    With a random cotangent ct and a random tangent dx, reverse mode is held against
    ``(<ct, f(x + h e_i)> - <ct, f(x - h e_i)>) / 2h`` for every element i of every argument, forward mode against
    ``(f(x + h dx) - f(x - h dx)) / 2h``. Order 2 does the same to the derivative that order 1 has checked, in each
    mode: reverse over reverse, forward over reverse, and so on.

    Parameters
    ----------
    f : callable
        Of as many arrays as are given; returns one array. It is called twice per element, so keep arguments small.
    *args : array_like
        Floating or complex; float64 or complex128, unless the tolerances are wide. Away from kinks.
    order : int
        The highest derivative to check.
    modes : sequence of str
        Of "reverse" and "forward".
    eps : float, optional
        The step, relative to ``max(1, |x|)``; by default the cube root of the dtype's precision.
    rtol, atol : float, optional
        Tolerances, by default for the dtype: 1e-6 and 1e-7 in float64.
    seed : int
        Of the random cotangents and tangents.

    Raises
    ------
    GradientMismatch
        Which mode and order, which argument, which element, what was expected and what was got.
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
    >>> from autograd.primitive import op, broadcast
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
    xs = _arguments(args, "check_grads")
    precision = max((float(np.finfo(x.dtype).eps) for x in xs), default=2.2e-16)
    coarse = precision > 1e-10
    _check(
        f, xs, order, modes,
        precision ** (1 / 3) if eps is None else eps,
        (1e-2 if coarse else 1e-6) if rtol is None else rtol,
        (1e-2 if coarse else 1e-7) if atol is None else atol,
        np.random.default_rng(seed), "",
    )  # fmt: skip


def _check(f: Function, xs: list[np.ndarray], order: int, modes: Sequence[str], eps: float, rtol: float, atol: float,
           rng: np.random.Generator, path: str) -> None:
    y = _value(f, xs)
    ct = random_like(y, rng)
    dxs = [random_like(x, rng) for x in xs]
    depth = len(path.split(" of ")) + 1 if path else 1
    title = f"order {depth}" + (f" (of the {path} derivative)" if path else "")
    if "reverse" in modes:
        found = _pulled(f, xs, ct)
        for i, (x, g) in enumerate(zip(xs, found, strict=True)):
            where = f"reverse mode, {title}, argument {i} of shape {x.shape}"
            compare(where, numeric_gradient(f, xs, i, ct, eps), g, rtol, atol)
    if "forward" in modes:
        dy = to_host(_raw(jvp(f, tuple(xs), tuple(dxs))[1]))
        if dy.shape != y.shape:
            raise GradientMismatch(f"forward mode, {title}: a tangent of shape {dy.shape}, a value of shape {y.shape}")
        where = f"forward mode, {title}, the value of shape {y.shape}"
        compare(where, numeric_tangent(f, xs, dxs, eps), dy, rtol, atol)
    if order > 1:
        for mode in modes:
            deeper = f"{mode} of {path}" if path else mode
            if mode == "forward":
                _check(lambda *zs: jvp(f, zs, dxs)[1], xs, order - 1, modes, eps, rtol, atol, rng, deeper)
            else:
                for i in range(len(xs)):
                    _check(_pullback(f, i, ct), xs, order - 1, modes, eps, rtol, atol, rng, deeper)


def _pullback(f: Function, i: int, ct: np.ndarray) -> Function:
    """The function that pulls a fixed cotangent back to the i-th argument."""

    def pulled(*zs: Any) -> Any:
        found = vjp(f, *zs)[1](ct)
        return found if len(zs) == 1 else found[i]

    return pulled


def check_adjoint(f: Function, *args: Any, rtol: float | None = None, seed: int = 0) -> None:
    """The dot-product test: reverse mode is the adjoint of forward mode, ``<ct, J dx> = <J* ct, dx>``.

    Parameters
    ----------
    f : callable
        Of as many arrays as are given; returns one array.
    *args : array_like
        Floating or complex, of any shapes.
    rtol : float, optional
        Relative to the norms of what is multiplied; by default for the dtype: 1e-10 in float64.
    seed : int
        Of the random cotangent and tangents.

    Raises
    ------
    GradientMismatch
        The two products, and those of each argument alone, which tell the argument that is wrong.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd.testing import check_adjoint
    >>> check_adjoint(lambda a, b: np.tanh(a @ b), np.ones((2, 3)), np.ones((3, 2)))
    """
    xs = _arguments(args, "check_adjoint")
    rng = np.random.default_rng(seed)
    y = _value(f, xs)
    ct = random_like(y, rng)
    dxs = [random_like(x, rng) for x in xs]
    precision = max((float(np.finfo(x.dtype).eps) for x in xs), default=2.2e-16)
    rtol = (1e-4 if precision > 1e-10 else 1e-10) if rtol is None else rtol
    gs = _pulled(f, xs, ct)
    bad = []
    for i, (g, dx) in enumerate(zip(gs, dxs, strict=True)):
        alone = [d if j == i else np.zeros_like(d) for j, d in enumerate(dxs)]
        dy = to_host(_raw(jvp(f, tuple(xs), tuple(alone))[1]))
        left, right = pairing(ct, dy), pairing(g, dx)
        scale = norm(ct) * norm(dy) + norm(g) * norm(dx)
        if not abs(left - right) <= rtol * scale:
            bad.append(f"  argument {i} of shape {dx.shape}: <ct, J dx> = {left!r}, <J* ct, dx> = {right!r}")
    if bad:
        raise GradientMismatch("\n".join([f"reverse mode is not the adjoint of forward mode (rtol={rtol:g})", *bad]))


# -- what they are made of -------------------------------------------------------------------------------------------


def _raw(x: Any) -> Any:
    return x.array if x.__class__ in TENSORS else x


def _arguments(args: Sequence[Any], name: str) -> list[np.ndarray]:
    if not args:
        raise ShapeError(f"{name}: no arguments were given; needed: the arrays at which to differentiate")
    xs = [to_host(_raw(x)) if is_array(_raw(x)) else np.asarray(x) for x in args]
    for i, x in enumerate(xs):
        if not is_inexact(x.dtype):
            raise DtypeError(f"{name}: argument {i} has dtype {x.dtype}; needed: a floating or complex dtype")
    return xs


def _value(f: Function, xs: Sequence[Any]) -> np.ndarray:
    y = _raw(f(*xs))
    if isinstance(y, tuple | list):
        raise ShapeError(f"the function returned {len(y)} values; needed: one array. Fix: concatenate them")
    y = to_host(y) if is_array(y) else np.asarray(y)
    if not is_inexact(y.dtype):
        raise DtypeError(f"the function returned dtype {y.dtype}; needed: a floating or complex dtype")
    return y


def _pulled(f: Function, xs: Sequence[Any], ct: np.ndarray) -> list[np.ndarray]:
    found = vjp(f, *xs)[1](ct)
    gs = [to_host(_raw(g)) for g in ([found] if len(xs) == 1 else found)]
    for i, (x, g) in enumerate(zip(xs, gs, strict=True)):
        if g.shape != x.shape or g.dtype != x.dtype:
            raise GradientMismatch(
                f"reverse mode, argument {i}: the gradient is {g.dtype}{list(g.shape)}; needed: the argument's own "
                f"{x.dtype}{list(x.shape)}"
            )
    return gs


def random_like(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Normal values of the shape and dtype of `x`."""
    z = rng.standard_normal(x.shape)
    if x.dtype.kind == "c":
        z = z + 1j * rng.standard_normal(x.shape)
    return np.asarray(z).astype(x.dtype)


def pairing(ct: np.ndarray, x: np.ndarray) -> float:
    """``<ct, x>``, its real part: bilinear, without conjugate."""
    return float(np.sum(np.asarray(ct) * np.asarray(x)).real)


def norm(x: np.ndarray) -> float:
    """The Euclidean norm of all elements."""
    return float(np.sqrt(np.sum(np.abs(x) ** 2)))


def numeric_gradient(f: Function, xs: Sequence[np.ndarray], i: int, ct: np.ndarray, eps: float) -> np.ndarray:
    """Central differences of ``<ct, f>`` in every element of argument i."""
    base = xs[i]
    out = np.zeros(base.shape, base.dtype)
    for at in np.ndindex(*base.shape):
        h = eps * max(1.0, float(abs(base[at])))
        out[at] = _slope(f, xs, i, at, ct, h)
        if base.dtype.kind == "c":
            out[at] -= 1j * _slope(f, xs, i, at, ct, 1j * h)
    return out


def _slope(f: Function, xs: Sequence[np.ndarray], i: int, at: tuple[int, ...], ct: np.ndarray, h: complex) -> float:
    values = []
    for step in (h, -h):
        moved = list(xs)
        moved[i] = np.array(xs[i])
        moved[i][at] += step
        values.append(pairing(ct, _value(f, moved)))
    return (values[0] - values[1]) / (2 * abs(h))


def numeric_tangent(f: Function, xs: Sequence[np.ndarray], dxs: Sequence[np.ndarray], eps: float) -> np.ndarray:
    """The central difference of `f` along `dxs`."""
    ahead, behind = (
        _value(f, [np.asarray(x + step * dx, x.dtype) for x, dx in zip(xs, dxs, strict=True)]) for step in (eps, -eps)
    )
    return (ahead - behind) / (2 * eps)


def compare(where: str, expected: np.ndarray, got: np.ndarray, rtol: float, atol: float) -> None:
    """Raise GradientMismatch unless `got` is close to `expected`; the text lists the worst elements."""
    if expected.size == 0:
        return
    scale = max(float(np.max(np.abs(expected))), 1.0)
    with np.errstate(invalid="ignore"):
        off = np.abs(expected - got)
        wrong = ~(off <= atol * scale + rtol * np.abs(expected))
    if not wrong.any():
        return
    worst = sorted(np.argwhere(wrong).tolist(), key=lambda at: -np.nan_to_num(off[tuple(at)], nan=np.inf))[:5]
    lines = [f"{where}: {int(wrong.sum())} of {wrong.size} elements differ"]
    for at in worst:
        place = tuple(int(n) for n in at)
        lines.append(f"  element {list(place)}: expected {expected[place]!s}, got {got[place]!s}")
    raise GradientMismatch("\n".join(lines))
