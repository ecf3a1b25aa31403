"""Cases of `autograd.scipy`. There are none if SciPy is not installed."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import numpy
from numpy.random import Generator

from autograd.engine.leaves import constant
from autograd.engine.primitive import registry
from autograd.engine.tensor import TENSORS

from .base import Array, apart, between, case, normal, positive, real_only

ON_HOST: set[str] = set()
"""Operations that run on NumPy arrays only, because their SciPy function is not a ufunc."""


def fixed(*values: float) -> Any:
    """Return an argument with constant values."""
    return lambda rng: numpy.array(values)


def symmetric(n: int) -> Any:
    """Return an argument that is a symmetric positive definite matrix."""

    def make(rng: Generator) -> Array:
        a = rng.standard_normal((n, n))
        return a @ a.T + n * numpy.eye(n)

    return make


def triangular(n: int) -> Any:
    """Return an argument that is a matrix with well-conditioned triangles."""
    return lambda rng: rng.standard_normal((n, n)) + 4 * numpy.eye(n)


def simplex(n: int) -> Any:
    """Return an argument with positive numbers that sum to one."""

    def make(rng: Generator) -> Array:
        x = rng.uniform(0.5, 1.5, n)
        return x / x.sum()

    return make


def _special() -> None:
    ours, theirs = importlib.import_module("autograd.scipy.special"), importlib.import_module("scipy.special")
    unary = {
        "digamma": positive, "gamma": positive, "gammaln": positive, "rgamma": positive, "gammasgn": apart,
        "j0": positive, "j1": positive, "y0": positive, "y1": positive,
        "i0": normal, "i1": normal, "erf": normal, "erfc": normal,
        "erfinv": between(-0.9, 0.9), "erfcinv": between(0.1, 1.9), "ndtr": normal, "log_ndtr": normal,
        "ndtri": between(0.1, 0.9), "expit": normal, "logit": between(0.1, 0.9), "log_expit": normal,
        "entr": positive,
    }  # fmt: skip
    for name, domain in unary.items():
        for shape in ((), (2, 3)):
            case(name, str(shape), registry[name], getattr(theirs, name), domain(*shape))
    for name, (left, right) in {"beta": (positive, positive), "betaln": (positive, positive),
                                "xlogy": (normal, positive), "xlog1py": (normal, positive)}.items():  # fmt: skip
        for a, b in (((3,), (3,)), ((2, 1), (3,))):
            case(name, f"{a} {b}", registry[name], getattr(theirs, name), left(*a), right(*b))
    for name, order, domain in (("polygamma", 1, positive), ("gammainc", 1.5, positive), ("gammaincc", 1.5, positive),
                                ("jv", 2, positive), ("yn", 2, positive), ("iv", 1.5, positive),
                                ("ive", 1.5, positive)):  # fmt: skip
        f, g = getattr(ours, name), getattr(theirs, name)
        case(name, f"of order {order}", lambda x, f=f, n=order: f(n, x),
             lambda x, g=g, n=order: g(n, x).astype(x.dtype), domain(3))  # fmt: skip
    case("betainc", "of order 1.5, 2.5", lambda x: ours.betainc(1.5, 2.5, x), lambda x: theirs.betainc(1.5, 2.5, x),
         between(0.1, 0.9)(3))  # fmt: skip


def _as_constant(x: Any, array: Array) -> Any:
    """Return an array that can be combined with x, a Tensor of any layout or an array."""
    return constant(array) if x.__class__ in TENSORS else array


def _stats() -> None:
    ours, theirs = importlib.import_module("autograd.scipy.stats"), importlib.import_module("scipy.stats")
    families: dict[str, tuple[Any, Any, Any, tuple[float, ...]]] = {  # domains of x, loc, scale; shape parameters
        "norm": (normal, normal, positive, ()),
        "t": (normal, normal, positive, (3.5,)),
        "chi2": (positive, between(-1.0, 0.2), positive, (3.5,)),
        "gamma": (positive, between(-1.0, 0.2), positive, (2.5,)),
        "beta": (between(0.2, 0.8), between(-0.1, 0.1), between(1.0, 1.2), (2.5, 1.5)),
    }
    for name, (domain, locs, scales, shapes) in families.items():
        if name == "beta":
            real_only("beta.pdf", "beta.logpdf", reason="SciPy compares x with both ends of the support")
        for which in ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf"):
            ON_HOST.add(f"{name}.{which}")
            f, g = (getattr(getattr(m, name), which) for m in (ours, theirs))

            def ours_at(x: Any, loc: Any, scale: Any, f: Any = f, shapes: Any = shapes) -> Any:
                return f(x, *shapes, loc=loc, scale=scale)

            def theirs_at(x: Any, loc: Any, scale: Any, g: Any = g, shapes: Any = shapes) -> Any:
                return g(x, *shapes, loc=loc, scale=scale).astype(x.dtype)

            case(f"{name}.{which}", "x, loc, scale", ours_at, theirs_at, domain(3), locs(2, 1), scales(3))
            if which in ("pdf", "logpdf") and shapes:
                args = tuple(fixed(n, n + 1.0) for n in shapes)
                case(f"{name}.{which}", "x, shapes", f, lambda *xs, g=g: g(*xs).astype(xs[0].dtype), domain(2), *args)
    counts = numpy.array([0.0, 2.0, 3.0])
    for which in ("pmf", "logpmf", "cdf"):
        ON_HOST.add(f"poisson.{which}")
        f, g = (getattr(m.poisson, which) for m in (ours, theirs))
        case(f"poisson.{which}", "mu", lambda mu, f=f: f(_as_constant(mu, counts), mu).astype(mu.dtype),
             lambda mu, g=g: g(counts, mu).astype(mu.dtype), positive(3))  # fmt: skip
    ON_HOST.add("dirichlet.logpdf")
    x = simplex(3)(numpy.random.default_rng(0))
    case("dirichlet.logpdf", "alpha",
         lambda alpha: ours.dirichlet.logpdf(_as_constant(alpha, x), alpha).astype(alpha.dtype),
         lambda alpha: theirs.dirichlet.logpdf(x, alpha).astype(alpha.dtype), positive(3))  # fmt: skip


def _linear() -> None:
    ours, theirs = importlib.import_module("autograd.scipy.linalg"), importlib.import_module("scipy.linalg")
    signal = importlib.import_module("autograd.scipy.signal")
    ON_HOST.update(("sqrtm", "solve_sylvester", "solve_triangular", "solve_banded"))
    case("sqrtm", "3 x 3", ours.sqrtm, theirs.sqrtm, symmetric(3))
    case("solve_sylvester", "3 x 2", ours.solve_sylvester, theirs.solve_sylvester, symmetric(3), symmetric(2),
         normal(3, 2))  # fmt: skip
    for trans in (0, 1):
        for lower in (False, True):
            for unit in (False, True):
                words = {"trans": trans, "lower": lower, "unit_diagonal": unit}
                case("solve_triangular", f"{words}", lambda a, b, w=words: ours.solve_triangular(a, b, **w),
                     lambda a, b, w=words: theirs.solve_triangular(a, b, **w), triangular(3),
                     normal(3) if lower else normal(3, 2))  # fmt: skip
    for bands, b in (((1, 1), (4,)), ((2, 1), (4, 2)), ((0, 1), (4,))):
        def banded(rng: Generator, bands: Any = bands) -> Array:
            ab = rng.standard_normal((sum(bands) + 1, 4))
            ab[bands[1]] += 5
            return ab

        case("solve_banded", f"{bands}", lambda ab, b, n=bands: ours.solve_banded(n, ab, b),
             lambda ab, b, n=bands: theirs.solve_banded(n, ab, b), banded, normal(*b))  # fmt: skip
    convolve = importlib.import_module("scipy.signal").convolve
    for a, b in (((5,), (3,)), ((2,), (4,)), ((4, 5), (2, 3))):
        for mode in ("full", "valid", "same"):
            case("correlate", f"convolve {a} {b} {mode}", lambda x, y, m=mode: signal.convolve(x, y, mode=m),
                 lambda x, y, m=mode: convolve(x, y, m, method="direct"), normal(*a), normal(*b))  # fmt: skip
    case("zeros_around", "2 x 3", lambda x: registry["zeros_around"](x, options=(((1, 2),),)),
         lambda x: numpy.pad(x, [(0, 0), (0, 0), (1, 2)]), normal(1, 2, 3))  # fmt: skip


if find_spec("scipy") is not None:
    _special()
    _stats()
    _linear()
    real_only("digamma", "gamma", "rgamma", reason="SciPy has the polygamma function for real numbers only")
