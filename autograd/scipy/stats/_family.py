"""Declares the functions of a continuous distribution: SciPy's values, with rules from the log-density's derivatives.

With z = (x - loc) / scale, the derivative of the log-density in z gives the derivatives of density and distribution
function in x, loc and scale. The derivatives of the log-density in the shape parameters give those of the density. The
distribution function has no closed-form derivative in the shape parameters; asking for one is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...engine.primitive import op
from ...errors import ArgumentError
from ...layouts.inference import broadcast
from ...ops import exp
from .._load import as_ufunc, scipy, without_derivative

__all__ = ["family"]

Function = Callable[..., Any]


def family(name: str, shapes: Sequence[str], score: Function, shape_scores: Sequence[Function]) -> tuple[Function, ...]:
    """Return ``(pdf, logpdf, cdf, logcdf, sf, logsf)`` of a distribution.

    Parameters
    ----------
    name : str
        The name of the distribution in scipy.stats.
    shapes : sequence of str
        The names of its shape parameters.
    score : callable
        ``score(z, *shapes)``, the derivative of the log-density in z.
    shape_scores : sequence of callable
        For each shape parameter ``f(z, *shapes)``, the derivative of the log-density in it.
    """
    theirs = getattr(scipy("stats"), name)
    n = len(shapes)

    def rules(slope: Function, scaled: Function | None, in_shapes: Sequence[Function] | None) -> list[Any]:
        """The adjoints in x, the shape parameters, loc and scale.

        ``slope(y, xs)`` is the derivative in x. A density also has the factor 1 / scale: ``scaled(y) / scale`` is
        subtracted from its derivative in scale.
        """

        def adjoint_of_x(ct: Any, y: Any, *xs: Any) -> Any:
            return ct * slope(y, xs)

        def adjoint_of_loc(ct: Any, y: Any, *xs: Any) -> Any:
            return -ct * slope(y, xs)

        def adjoint_of_scale(ct: Any, y: Any, *xs: Any) -> Any:
            d = -slope(y, xs) * _standardized(xs)
            return ct * (d if scaled is None else d - scaled(y) / xs[-1])

        found = [None] * n if in_shapes is None else list(in_shapes)
        return [adjoint_of_x, *found, adjoint_of_loc, adjoint_of_scale]

    def of_shape(rule: Function, density: bool) -> Function:
        def adjoint(ct: Any, y: Any, *xs: Any) -> Any:
            d = rule(_standardized(xs), *xs[1 : 1 + n])
            return ct * (y * d if density else d)

        return adjoint

    def log_slope(y: Any, xs: Any) -> Any:
        return score(_standardized(xs), *xs[1 : 1 + n]) / xs[-1]

    def declare(which: str, slope: Function, scaled: Function | None = None, density: bool | None = None) -> Function:
        in_shapes = None if density is None else [of_shape(rule, density) for rule in shape_scores]
        word = " ".join(["N", *(["S" if in_shapes is None else "N"] * n), "N", "N"])
        operation = op(
            f"{name}.{which}", word, as_ufunc(getattr(theirs, which)), rules(slope, scaled, in_shapes),
            saves="y" + "".join(map(str, range(n + 3))), dims=broadcast, operands=" ".join(["x", *shapes, "loc scale"]),
        )  # fmt: skip
        checked = operation if in_shapes is not None or not n else without_derivative(operation, *range(1, 1 + n))
        return _with_scipy_signature(checked, which, name, shapes)

    pdf = declare("pdf", lambda y, xs: y * log_slope(y, xs), lambda y: y, True)
    logpdf = declare("logpdf", log_slope, lambda y: 1.0, False)
    cdf = declare("cdf", lambda y, xs: pdf(*xs))
    logcdf = declare("logcdf", lambda y, xs: exp(logpdf(*xs) - y))
    sf = declare("sf", lambda y, xs: -pdf(*xs))
    logsf = declare("logsf", lambda y, xs: -exp(logpdf(*xs) - y))
    return pdf, logpdf, cdf, logcdf, sf, logsf


def _standardized(xs: Sequence[Any]) -> Any:
    return (xs[0] - xs[-2]) / xs[-1]


def _with_scipy_signature(operation: Function, which: str, name: str, shapes: Sequence[str]) -> Function:
    """The operation with SciPy's signature: arguments by position or name, and ``loc=0.0, scale=1.0``."""
    names = ("x", *shapes, "loc", "scale")

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        unknown = [key for key in kwargs if key not in names or key in given]
        if len(args) > len(names) or unknown:
            text = f"{name}.{which} takes {', '.join(names)}; given: {len(args)} by position, {list(kwargs)}"
            raise ArgumentError(text)
        given = {"loc": 0.0, "scale": 1.0, **given, **kwargs}
        missing = [key for key in names if key not in given]
        if missing:
            raise ArgumentError(f"{name}.{which} needs {', '.join(missing)} too")
        return operation(*(given[key] for key in names))

    call.__name__ = which
    call.__doc__ = f"Return SciPy's ``{name}.{which}({', '.join(names[:-2])}, loc=0.0, scale=1.0)``, differentiable."
    return call
