"""A continuous distribution's functions from SciPy's and from the derivatives of its log-density.

Everything else follows: with z = (x - loc) / scale, the derivatives of density and distribution function in x, loc and
scale; with the log-density's derivatives in the shape parameters, the density's. The distribution function's
derivatives in the shape parameters have no closed form here, and asking for one is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...engine.broadcasting import broadcast
from ...engine.primitive import op
from ...ops import exp
from .._load import as_ufunc, scipy, without_derivative

__all__ = ["family"]

Function = Callable[..., Any]


def family(name: str, shapes: Sequence[str], score: Function, shape_scores: Sequence[Function]) -> tuple[Function, ...]:
    """``(pdf, logpdf, cdf, logcdf, sf, logsf)`` of a distribution.

    Parameters
    ----------
    name : str
        SciPy's name.
    shapes : sequence of str
        What its shape parameters are called.
    score : callable
        ``score(z, *shapes)``, the derivative of the log-density in z.
    shape_scores : sequence of callable
        ``(z, *shapes)``, its derivatives in the shape parameters.
    """
    theirs = getattr(scipy("stats"), name)
    n = len(shapes)

    def rules(slope: Function, scaled: Function | None, in_shapes: Sequence[Function] | None) -> list[Any]:
        """The adjoints in x, the shape parameters, loc and scale, from ``slope(y, xs)``, the derivative in x."""

        def in_x(ct: Any, y: Any, *xs: Any) -> Any:
            return ct * slope(y, xs)

        def in_loc(ct: Any, y: Any, *xs: Any) -> Any:
            return -ct * slope(y, xs)

        def in_scale(ct: Any, y: Any, *xs: Any) -> Any:
            d = -slope(y, xs) * _z(xs)
            return ct * (d if scaled is None else d - scaled(y) / xs[-1])

        found = [None] * n if in_shapes is None else list(in_shapes)
        return [in_x, *found, in_loc, in_scale]

    def of_shape(rule: Function, density: bool) -> Function:
        def adjoint(ct: Any, y: Any, *xs: Any) -> Any:
            d = rule(_z(xs), *xs[1 : 1 + n])
            return ct * (y * d if density else d)

        return adjoint

    def log_slope(y: Any, xs: Any) -> Any:
        return score(_z(xs), *xs[1 : 1 + n]) / xs[-1]

    def declared(which: str, slope: Function, scaled: Function | None = None, density: bool | None = None) -> Function:
        in_shapes = None if density is None else [of_shape(rule, density) for rule in shape_scores]
        word = " ".join(["N", *(["S" if in_shapes is None else "N"] * n), "N", "N"])
        operation = op(
            f"{name}.{which}", word, as_ufunc(getattr(theirs, which)), rules(slope, scaled, in_shapes),
            saves="y" + "".join(map(str, range(n + 3))), dims=broadcast, operands=" ".join(["x", *shapes, "loc scale"]),
        )  # fmt: skip
        checked = operation if in_shapes is not None or not n else without_derivative(operation, *range(1, 1 + n))
        return _signed(checked, which, name, shapes)

    pdf = declared("pdf", lambda y, xs: y * log_slope(y, xs), lambda y: y, True)
    logpdf = declared("logpdf", log_slope, lambda y: 1.0, False)
    cdf = declared("cdf", lambda y, xs: pdf(*xs))
    logcdf = declared("logcdf", lambda y, xs: exp(logpdf(*xs) - y))
    sf = declared("sf", lambda y, xs: -pdf(*xs))
    logsf = declared("logsf", lambda y, xs: -exp(logpdf(*xs) - y))
    return pdf, logpdf, cdf, logcdf, sf, logsf


def _z(xs: Sequence[Any]) -> Any:
    return (xs[0] - xs[-2]) / xs[-1]


def _signed(operation: Function, which: str, name: str, shapes: Sequence[str]) -> Function:
    """The operation with SciPy's parameters: by position or name, ``loc=0.0, scale=1.0``."""
    names = ("x", *shapes, "loc", "scale")

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        unknown = [key for key in kwargs if key not in names or key in given]
        if len(args) > len(names) or unknown:
            raise TypeError(f"{name}.{which} takes {', '.join(names)}; given: {len(args)} by position, {list(kwargs)}")
        given = {"loc": 0.0, "scale": 1.0, **given, **kwargs}
        missing = [key for key in names if key not in given]
        if missing:
            raise TypeError(f"{name}.{which} needs {', '.join(missing)} too")
        return operation(*(given[key] for key in names))

    call.__name__ = which
    call.__doc__ = f"``{name}.{which}({', '.join(names[:-2])}, loc=0.0, scale=1.0)``, SciPy's, differentiable."
    return call
