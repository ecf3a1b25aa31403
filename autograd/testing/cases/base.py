"""How a case of an operation is written, and how its arguments are drawn.

    case("exp", "of a matrix", registry["exp"], numpy.exp, normal(2, 3))

The function is called with Tensors, with plain arrays and with arrays of a device; NumPy's with plain arrays only. An
argument says its domain and its shape (`normal(2, 3)`, `positive(3)`, or any function of a random generator); dtype and
layout in memory are the test's to choose, so they are not written. From one such line the tests make float32, float64
and complex arguments, contiguous and not.

    @family("sum")
    def _(pick):
        shape = pick.shape()
        axis = pick.axes(shape)
        return Use(lambda x: np.sum(x, axis), lambda x: numpy.sum(x, axis), normal(*shape))

A family is a case whose shapes and options are drawn too. Elementwise operations have theirs without a word: every
shape that broadcasts.

What is not defined for complex numbers says so once, `real_only("maximum", reason="complex numbers have no order")`,
and what NumPy itself refuses need not be said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy
from numpy.random import Generator

from .choices import Pick

__all__ = [
    "CASES", "FAMILIES", "MEMORIES", "REAL_ONLY", "WITHOUT_DERIVATIVE", "Argument", "Case", "Domain", "Maker", "Use",
    "apart", "arranged", "between", "case", "family", "normal", "offset", "positive", "real_only", "strided",
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
    "stop_gradient": "cuts the derivative, which is what it is for",
}
"""Operations without cases, and the reason."""

REAL_ONLY: dict[str, str] = {}
"""Operations that are not differentiated at complex numbers, and the reason."""


def real_only(*operations: str, reason: str) -> None:
    """Say that operations have no derivative at complex numbers, though NumPy may compute something there."""
    REAL_ONLY.update(dict.fromkeys(operations, reason))


# -- arguments -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Domain:
    """Where an argument may lie: how it is drawn, and a predicate that tells it.

    A complex argument is a real one with small imaginary parts, unless the domain says how else (a Hermitian matrix).
    """

    name: str
    sample: Callable[[Generator, tuple[int, ...]], Array]
    holds: Callable[[Array], Any]
    complex_sample: Callable[[Generator, tuple[int, ...]], Array] | None = None


@dataclass(frozen=True)
class Argument:
    """An argument of a case: a domain and a shape. Called with a generator it is an array of float64."""

    domain: Domain
    shape: tuple[int, ...]
    memory: str = "C"

    def __call__(self, rng: Generator) -> Array:
        return arranged(numpy.asarray(self.domain.sample(rng, self.shape)), self.memory)


Maker = Callable[..., Argument]
"""Of extents, an argument of that shape."""


def _apart(rng: Generator, shape: tuple[int, ...]) -> Array:
    n = int(numpy.prod(shape))
    return ((rng.permutation(n) - n // 2 + 0.5) * 0.2).reshape(shape)


def _far(x: Array) -> bool:
    flat = numpy.sort(numpy.append(numpy.ravel(x), 0.0))
    return bool(numpy.all(numpy.diff(flat) > 0.01))


NORMAL = Domain("any", lambda rng, shape: rng.standard_normal(shape), lambda x: numpy.isfinite(x).all())
POSITIVE = Domain("positive", lambda rng, shape: rng.uniform(0.5, 2.0, shape), lambda x: (numpy.real(x) > 0).all())
APART = Domain("apart from each other and from 0", _apart, _far)


def normal(*shape: int) -> Argument:
    """Any values."""
    return Argument(NORMAL, shape)


def positive(*shape: int) -> Argument:
    """Positive values, away from zero."""
    return Argument(POSITIVE, shape)


def apart(*shape: int) -> Argument:
    """Distinct values, away from each other and from zero: no kink is near."""
    return Argument(APART, shape)


def between(low: float, high: float) -> Maker:
    """Values of an interval, of whatever shape."""
    domain = Domain(f"between {low} and {high}", lambda rng, shape: rng.uniform(low, high, shape),
                    lambda x: ((numpy.real(x) >= low) & (numpy.real(x) <= high)).all())  # fmt: skip
    return lambda *shape: Argument(domain, shape)


def offset(argument: Argument, by: float) -> Argument:
    """The same values moved by a constant, so that they never meet those of another argument."""
    moved = argument.domain
    domain = Domain(f"{moved.name}, moved by {by}", lambda rng, shape: moved.sample(rng, shape) + by,
                    lambda x: moved.holds(numpy.asarray(x) - by))  # fmt: skip
    return replace(argument, domain=domain)


# -- layouts in memory -----------------------------------------------------------------------------------------------

MEMORIES = ("C", "F", "gaps", "backwards", "inside")
"""The layouts in memory that the tests draw."""


def arranged(x: Array, memory: str) -> Array:
    """The same values in another layout in memory.

    C, F : contiguous
    gaps : every dimension reversed in memory, and a gap after each element
    backwards : negative strides
    inside : a part of a larger array
    """
    if x.ndim == 0 or memory == "C":
        return numpy.ascontiguousarray(x).reshape(x.shape)
    if memory == "F":
        return numpy.asfortranarray(x)
    if memory == "backwards":
        turn = (slice(None, None, -1),) * x.ndim
        return numpy.ascontiguousarray(x[turn])[turn]
    if memory == "inside":
        view = numpy.full(tuple(n + 2 for n in x.shape), 99, x.dtype)[(slice(1, -1),) * x.ndim]
    else:
        wide = numpy.zeros(tuple(2 * n for n in x.shape[::-1]), x.dtype)
        view = wide[tuple(slice(None, None, 2) for _ in x.shape)].T
    view[...] = x
    return view


def strided(make: Callable[[Generator], Array]) -> Callable[[Generator], Array]:
    """The same values with every dimension reversed in memory and a gap after each element."""
    return replace(make, memory="gaps") if isinstance(make, Argument) else lambda rng: arranged(make(rng), "gaps")


# -- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One use of an operation: what it computes on Tensors, NumPy's own way, and how its arguments are drawn."""

    operation: str
    label: str
    f: Callable[..., Any]
    numpy: Callable[..., Any]
    args: tuple[Callable[[Generator], Array], ...]

    def draw(self, seed: int = 1) -> list[Array]:
        """The arguments, in double precision."""
        rng = numpy.random.default_rng(seed)
        return [make(rng) for make in self.args]

    def variant(self, seed: int, dtype: Any, memories: tuple[str, ...] = ()) -> list[Array]:
        """The arguments in another dtype, and each in a layout in memory; complex ones have imaginary parts.

        Raises
        ------
        AssertionError
            An argument that its own domain does not hold.
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
        """Why this case is not for complex numbers; "" where it is."""
        if self.operation in REAL_ONLY:
            return REAL_ONLY[self.operation]
        import warnings

        with numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error", numpy.exceptions.ComplexWarning)
            try:
                self.numpy(*self.variant(0, numpy.complex128))
            except (TypeError, ValueError, numpy.exceptions.ComplexWarning) as error:
                return f"NumPy refuses complex numbers: {str(error).splitlines()[0][:90]}"
        return ""


CASES: list[Case] = []


def case(operation: str, label: str, f: Any, numpys: Any, *args: Any) -> None:
    """Add a case; the arguments are `normal(2, 3)` and the like, or functions of a random generator."""
    CASES.append(Case(operation, label, f, numpys, args))


# -- families: cases whose shapes and options are drawn --------------------------------------------------------------


class Use:
    """What a family returns: the function, NumPy's own, and the arguments."""

    def __init__(self, f: Any, numpys: Any, *args: Any):
        self.f, self.numpys, self.args = f, numpys, args


Drawer = Callable[[Pick], Use]
FAMILIES: dict[str, list[Drawer]] = {}


def family(operation: str) -> Callable[[Drawer], Drawer]:
    """Declare a family of an operation's cases; several may be declared."""

    def declare(make: Drawer) -> Drawer:
        FAMILIES.setdefault(operation, []).append(make)
        return make

    return declare
