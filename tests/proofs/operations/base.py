"""Declaration of test cases of operations, and generation of their arguments.

    case("exp", "of a matrix", registry["exp"], numpy.exp, normal(2, 3))

declares a case: the operation, a label, the function to test, the same function in NumPy, and the arguments. The
function is called with Tensors, with plain arrays and with arrays on a device, NumPy's with plain arrays only. An
argument has a domain and a shape, like ``normal(2, 3)`` and ``positive(3)``, or is any function of a random generator.
The tests choose dtype and memory layout: float32, float64 and complex, contiguous or not.

    @family("sum")
    def _(pick):
        shape = pick.shape()
        axis = pick.axes(shape)
        return Use(lambda x: np.sum(x, axis), lambda x: numpy.sum(x, axis), normal(*shape))

declares a family: cases with random shapes and options. An elementwise operation has a family without declaration,
with all shapes that broadcast.

``real_only("maximum", reason="complex numbers have no order")`` declares that an operation is not defined for complex
numbers. If NumPy refuses them, this is found out automatically.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy
from numpy.random import Generator

import autograd.numpy as np

from .choices import Pick

__all__ = [
    "CASES", "FAMILIES", "MEMORIES", "REAL_ONLY", "WITHOUT_DERIVATIVE", "Argument", "Case", "Domain", "Maker", "Use",
    "apart", "arranged", "between", "case", "family", "normal", "numpy_case", "offset", "positive", "real_only",
    "strided",
]  # fmt: skip

Array = Any

WITHOUT_DERIVATIVE: dict[str, str] = {
    "equal": "its result is boolean",
    "not_equal": "its result is boolean",
    "less": "its result is boolean",
    "less_equal": "its result is boolean",
    "greater": "its result is boolean",
    "greater_equal": "its result is boolean",
    "logical_not": "its result is boolean",
    "isfinite": "its result is boolean",
    "argmax": "its result is an integer",
    "stop_gradient": "it stops differentiation",
}
"""The reasons why operations have no cases."""

REAL_ONLY: dict[str, str] = {}
"""The reasons why operations are not differentiated at complex numbers."""


def real_only(*operations: str, reason: str) -> None:
    """Declare that operations have no derivative at complex numbers, even if NumPy computes a value there."""
    REAL_ONLY.update(dict.fromkeys(operations, reason))


# -- arguments -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Domain:
    """A set of arrays: a sampler, and a predicate that tells whether an array belongs to it.

    A complex argument is a real sample plus small imaginary parts, unless the domain has a `complex_sample`.
    """

    name: str
    sample: Callable[[Generator, tuple[int, ...]], Array]
    holds: Callable[[Array], Any]
    complex_sample: Callable[[Generator, tuple[int, ...]], Array] | None = None


@dataclass(frozen=True)
class Argument:
    """An argument of a case: a domain and a shape. Calling it with a random generator returns a float64 array."""

    domain: Domain
    shape: tuple[int, ...]
    memory: str = "C"

    def __call__(self, rng: Generator) -> Array:
        return arranged(numpy.asarray(self.domain.sample(rng, self.shape)), self.memory)


Maker = Callable[..., Argument]
"""A function from the extents of a shape to an argument of that shape."""


def _sample_apart(rng: Generator, shape: tuple[int, ...]) -> Array:
    n = int(numpy.prod(shape))
    return ((rng.permutation(n) - n // 2 + 0.5) * 0.2).reshape(shape)


def _is_apart(x: Array) -> bool:
    flat = numpy.sort(numpy.append(numpy.ravel(x), 0.0))
    return bool(numpy.all(numpy.diff(flat) > 0.01))


NORMAL = Domain("any", lambda rng, shape: rng.standard_normal(shape), lambda x: numpy.isfinite(x).all())
POSITIVE = Domain("positive", lambda rng, shape: rng.uniform(0.5, 2.0, shape), lambda x: (numpy.real(x) > 0).all())
APART = Domain("apart from each other and from 0", _sample_apart, _is_apart)


def normal(*shape: int) -> Argument:
    """Return an argument with standard normal values."""
    return Argument(NORMAL, shape)


def positive(*shape: int) -> Argument:
    """Return an argument with positive values, away from zero."""
    return Argument(POSITIVE, shape)


def apart(*shape: int) -> Argument:
    """Return an argument with values away from each other and from zero, and so from kinks of functions like max."""
    return Argument(APART, shape)


def between(low: float, high: float) -> Maker:
    """Return a function that makes arguments with uniform values between two bounds."""
    domain = Domain(f"between {low} and {high}", lambda rng, shape: rng.uniform(low, high, shape),
                    lambda x: ((numpy.real(x) >= low) & (numpy.real(x) <= high)).all())  # fmt: skip
    return lambda *shape: Argument(domain, shape)


def offset(argument: Argument, by: float) -> Argument:
    """Add a constant to the values of an argument, so that they differ from those of another argument."""
    base = argument.domain
    domain = Domain(f"{base.name}, plus {by}", lambda rng, shape: base.sample(rng, shape) + by,
                    lambda x: base.holds(numpy.asarray(x) - by))  # fmt: skip
    return replace(argument, domain=domain)


# -- memory layouts --------------------------------------------------------------------------------------------------

MEMORIES = ("C", "F", "gaps", "backwards", "inside")
"""The memory layouts that the tests choose from; see `arranged`."""


def arranged(x: Array, memory: str) -> Array:
    """Return the same values in another memory layout.

    C, F : contiguous in C or Fortran order
    gaps : dimensions in reverse order in memory, with a gap after each element
    backwards : negative strides
    inside : a slice of a larger array
    """
    if x.ndim == 0 or memory == "C":
        return numpy.ascontiguousarray(x).reshape(x.shape)
    if memory == "F":
        return numpy.asfortranarray(x)
    if memory == "backwards":
        reverse = (slice(None, None, -1),) * x.ndim
        return numpy.ascontiguousarray(x[reverse])[reverse]
    if memory == "inside":
        view = numpy.full(tuple(n + 2 for n in x.shape), 99, x.dtype)[(slice(1, -1),) * x.ndim]
    else:
        wide = numpy.zeros(tuple(2 * n for n in x.shape[::-1]), x.dtype)
        view = wide[tuple(slice(None, None, 2) for _ in x.shape)].T
    view[...] = x
    return view


def strided(make: Callable[[Generator], Array]) -> Callable[[Generator], Array]:
    """Return the same argument in the memory layout "gaps"."""
    return replace(make, memory="gaps") if isinstance(make, Argument) else lambda rng: arranged(make(rng), "gaps")


# -- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A test case of an operation.

    Attributes
    ----------
    operation, label : str
    f : callable
        The function to test, which uses the operation.
    numpy : callable
        The same function in NumPy.
    args : tuple of callable
        Functions from a random generator to the arguments.
    """

    operation: str
    label: str
    f: Callable[..., Any]
    numpy: Callable[..., Any]
    args: tuple[Callable[[Generator], Array], ...]

    def draw(self, seed: int = 1) -> list[Array]:
        """Return random arguments in double precision."""
        rng = numpy.random.default_rng(seed)
        return [make(rng) for make in self.args]

    def variant(self, seed: int, dtype: Any, memories: tuple[str, ...] = ()) -> list[Array]:
        """Return random arguments of a dtype. Argument i has the memory layout ``memories[i % len(memories)]``.

        Raises
        ------
        AssertionError
            The sampler of a domain returned an array outside the domain.
        """
        rng = numpy.random.default_rng(seed)
        dtype = numpy.dtype(dtype)
        drawn = []
        for i, make in enumerate(self.args):
            x = numpy.asarray(make(rng))
            assert not isinstance(make, Argument) or make.domain.holds(x), f"{x!r} is not {make.domain.name}"
            own = make.domain.complex_sample if isinstance(make, Argument) else None
            if dtype.kind == "c" and own is not None:
                x = own(rng, x.shape)
            elif dtype.kind == "c":
                x = x + 1j * rng.uniform(-0.4, 0.4, x.shape)
            drawn.append(arranged(numpy.asarray(x).astype(dtype), memories[i % len(memories)] if memories else "C"))
        return drawn

    def refuses_complex(self) -> str:
        """Return the reason why this case cannot be run with complex numbers, or "" if it can."""
        if self.operation in REAL_ONLY:
            return REAL_ONLY[self.operation]
        with numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error", numpy.exceptions.ComplexWarning)
            try:
                self.numpy(*self.variant(0, numpy.complex128))
            except (TypeError, ValueError, numpy.exceptions.ComplexWarning) as error:
                return f"NumPy refuses complex numbers: {str(error).splitlines()[0][:90]}"
        return ""


CASES: list[Case] = []


def case(operation: str, label: str, f: Any, reference: Any, *args: Any) -> None:
    """Add a case. `reference` is the function in NumPy; arguments are like `normal(2, 3)`, see the module."""
    CASES.append(Case(operation, label, f, reference, args))


def numpy_case(operation: str, label: str, f: Any, *args: Any) -> None:
    """Add a case of a function ``f(np, *arrays)``, which is called with autograd.numpy and with NumPy as ``np``."""
    case(operation, label, partial(f, np), partial(f, numpy), *args)


# -- families: cases with random shapes and options ------------------------------------------------------------------


class Use:
    """The result of a family: the function to test, the same function in NumPy, and the arguments."""

    def __init__(self, f: Any, reference: Any, *args: Any):
        self.f, self.reference, self.args = f, reference, args


Family = Callable[[Pick], Use]
FAMILIES: dict[str, list[Family]] = {}


def family(operation: str) -> Callable[[Family], Family]:
    """Declare a family of cases of an operation, as a decorator. An operation may have several."""

    def declare(make: Family) -> Family:
        FAMILIES.setdefault(operation, []).append(make)
        return make

    return declare
