"""Every operation of the registry in float16 and bfloat16, against float64: value, both modes and second order.

The arguments of a case are scaled to values from 1e-8 to 6e4, and mixed with zeros. The result must be that of float64
within a few roundings of the dtype, where three things are allowed for: rounding of the arguments (the result is
computed again at perturbed ones), the error of float32, in which 16 bits are computed, and what does not fit into the
dtype. So an infinity, a NaN or a zero in the place of an ordinary number fails.

The default run takes one case of each operation, ``pytest -m slow tests/autograd/ops/test_half_precision.py`` all.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.engine.primitive import registry
from autograd.errors import DtypeError, RingtapeError

from ... import summary
from ...grouped import each
from ...proofs.operations import CASES, WITHOUT_DERIVATIVE, Argument, Case, Pick, draw
from ..halves import HALVES

Array = Any
LIMITS = {"float16": (2.0**-11, 2.0**-24, 65504.0), "bfloat16": (2.0**-9, 9.2e-41, 3.3e38)}
"""The relative error of a rounding, the least number, the largest one."""
SCALES = ("own", 1e-8, 1e-4, 1.0, 300.0, 6e4, "mixed")
OPERATIONS = sorted({name for name in registry if "example" not in name} - set(WITHOUT_DERIVATIVE))

EXCEPT: dict[str, str] = {
    "rotary": "the case rounds its tables of cosines to the dtype",
    "take_along_axis": "equal elements are sorted in another order, and so are their gradients",
    "beta": "SciPy's result is wider than its arguments, whose sum overflows in the rule",
    "betaln": "SciPy's result is wider than its arguments, whose sum overflows in the rule",
    "log_ndtr": "SciPy's result is wider than its argument, whose square overflows in the rule",
    "xlog1py": "SciPy's result is wider than its arguments, which the rule reads in 16 bits",
    "solve_triangular": "the rule reads the solution, some elements of which do not fit into the dtype",
    "solve_sylvester": "the matrices are singular where all numbers round to zero",
}
"""Operations that are not checked, and why."""

FIRST_ORDER: dict[str, str] = {
    "one operand twice": "the addends of the second derivative do not fit into the dtype, and their sum does",
    "linspace, a host array": "NumPy computes the value in the dtype",
}
"""Labels of cases of which only the first order is checked, or the derivatives, and why."""

TOO_ROUGH = ("power", "divide", "hypot", "logaddexp", "logaddexp2", "pinv", "rgamma", "rms_norm")
"""Operations whose second order loses too much between the two sweeps, where cotangents have 16 bits."""
ROUGH_FORWARD = {
    "divide": "the quotient that the rule reads has 16 bits, and two terms cancel",
    "eigh": "eigenvalues that are equal in 16 bits are not in float64",
}
"""Operations whose tangents are not checked in bfloat16, and why."""


# -- one case ----------------------------------------------------------------------------------------------------------
def scaled(case: Case, scale: Any, dtype: Any, seed: int) -> list[Array] | None:
    """Arguments in float64 whose values are numbers of the dtype; None where they are not in the case's domain."""
    rng = numpy.random.default_rng(seed)
    found = []
    for make in case.args:
        x = numpy.asarray(make(rng))
        if x.dtype.kind == "f" and scale != "own" and getattr(make, "is_scaled", True):
            unit = x / (numpy.abs(x).max(initial=0) or 1.0)
            if scale == "mixed":
                sizes = rng.choice([1e-8, 1e-6, 1, 300, 6e4], size=x.shape)
                unit, scale_of = numpy.where(rng.random(x.shape) < 0.15, 0, numpy.sign(unit)), sizes
            else:
                scale_of = numpy.full(x.shape, scale)
            x = unit * scale_of
        if x.dtype.kind == "f":
            with numpy.errstate(all="ignore"):
                x = numpy.asarray(x).astype(dtype).astype(float)
            domain = make.domain if isinstance(make, Argument) else None
            if domain is not None and scale != "own" and "apart" not in domain.name and not numpy.all(domain.holds(x)):
                if "positive" not in domain.name:
                    return None
                x = numpy.where(x == 0, 1, numpy.abs(x))
        found.append(x)
    return found


def in_dtype(xs: Sequence[Array], dtype: Any) -> list[Array]:
    return [x.astype(dtype) if x.dtype.kind == "f" else x for x in xs]


def raw(x: Any) -> Array:
    return numpy.asarray(x.array if isinstance(x, ag.Tensor) else x)


def derivatives(f: Any, xs: Sequence[Array], seed: int, dtype: Any) -> dict[str, list[Array]]:
    """The value, the gradients, the tangent and the gradients of <gradient, tangent>, for random ct and tangents."""
    rng = numpy.random.default_rng(seed)
    at = [i for i, x in enumerate(xs) if x.dtype.kind in "fV"]

    def g(*ys: Any) -> Any:
        given = dict(zip(at, ys, strict=True))
        return f(*[given.get(i, ag.tensor(x)) for i, x in enumerate(xs)])

    def drawn(shape: tuple[int, ...]) -> Array:
        return rng.choice([-1.5, -1, 0.75, 1, 1.25], size=shape).astype(dtype)

    floats = [xs[i] for i in at]
    y = g(*map(ag.tensor, floats))
    found = {"value": [raw(y)]}
    ct, tangents = drawn(raw(y).shape), [drawn(x.shape) for x in floats]
    leaves = [ag.tensor(x, requires_grad=True) for x in floats]
    with ag.Tape() as tape:
        y = g(*leaves)
    if not isinstance(y, ag.Tensor) or y.tape is None:
        return found
    tape.backward(y, ct)
    found["reverse"] = [numpy.zeros_like(x.array) if x.grad is None else raw(x.grad) for x in leaves]
    found["forward"] = [raw(ag.jvp(g, floats, tangents)[1])]
    leaves = [ag.tensor(x, requires_grad=True) for x in floats]
    with ag.Tape() as outer:
        with ag.Tape() as tape:
            y = g(*leaves)
        gradients = tape.backward(y, ct, wanted=leaves, record=True)
    both = zip(gradients, tangents, strict=True)
    pairs = [(a, t) for a, t in both if isinstance(a, ag.Tensor) and a.tape is not None]
    if pairs:
        outer.backward([a for a, _ in pairs], [t for _, t in pairs])
        found["second"] = [numpy.zeros_like(x.array) if x.grad is None else raw(x.grad) for x in leaves]
    return found


def faults(case: Case, name: str, scale: Any, seed: int = 0, roundings: int = 6) -> list[str]:
    """What is wrong with a case in a dtype of 16 bits; the count of what was compared goes to the summary."""
    dtype, (ulp, least, largest) = HALVES[name], LIMITS[name]
    xs = scaled(case, scale, dtype, seed)
    if xs is None or not any(x.dtype.kind == "f" for x in xs):
        summary.count("16 bits, outside of the domain", name)
        return []
    perturbed = numpy.random.default_rng(5)
    with numpy.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exact = derivatives(case.f, xs, seed, numpy.float64)
            single = derivatives(case.f, in_dtype(xs, numpy.float32), seed, numpy.float32)
            near = [
                derivatives(case.f, [x * (1 + ulp * perturbed.choice([-1, 1], size=x.shape)) if x.dtype.kind == "f"
                                     else x for x in xs], seed, numpy.float64) for _ in range(3)
            ]  # fmt: skip
        except Exception:  # as of a matrix that has become singular
            summary.count("16 bits, refused in float64", name)
            return []
        try:
            found = derivatives(case.f, in_dtype(xs, dtype), seed, dtype)
        except RingtapeError as error:  # NumPy's linear algebra does not take 16 bits
            summary.count(f"16 bits, refused by a {type(error).__name__}", name)
            of_numpy = "unsupported in linalg" in str(error) or "could not be promoted" in str(error)
            return [] if isinstance(error, DtypeError) or of_numpy else [repr(error)]
    wrong = []
    for mode, results in exact.items():
        if mode not in found:
            wrong.append(f"{mode}: missing")
            continue
        if (mode == "second" and case.operation in TOO_ROUGH) or (case.label in FIRST_ORDER and mode != "reverse"):
            continue
        if mode == "forward" and name == "bfloat16" and case.operation in ROUGH_FORWARD:
            continue
        for i, r in enumerate(results):
            if r.dtype.kind != "f":
                continue
            h = found[mode][i].astype(float)
            with numpy.errstate(all="ignore"):
                spread = [numpy.abs(other[mode][i] - r) for other in near if mode in other]
                error = 8 * numpy.max(spread, axis=0) + 4 * numpy.abs(single[mode][i].astype(float) - r)
                allowed = roundings * (ulp * numpy.abs(r) + least) + error + 1e-12 * numpy.abs(r).max(initial=0)
                if roundings > 6:  # between operations, relative to what is added up
                    allowed += roundings * ulp * numpy.abs(r).max(initial=0)
                right = (numpy.abs(h - r) <= allowed) | ~numpy.isfinite(r) | ~numpy.isfinite(allowed)
                right |= numpy.abs(r) + allowed > largest * (1 - ulp)
            if not right.all():
                at = numpy.unravel_index(numpy.argmin(right), right.shape)
                wrong.append(f"{mode}, {i} at {tuple(map(int, at))}: {h[at]:.5g} for {r[at]:.5g} +- {allowed[at]:.2g}")
    summary.count("16 bits, checked", f"{name}, {scale}")
    return [f"{case.operation} {case.label}, {name}, {scale}: {text}" for text in wrong]


def cases_of(operation: str) -> Iterator[Case]:
    yield from (case for case in CASES if case.operation == operation)
    yield draw(operation, Pick.seeded(OPERATIONS.index(operation)))


def check(cases: Sequence[Case], scales: Sequence[Any]) -> None:
    found = [text for case in cases for name in HALVES for scale in scales for text in faults(case, name, scale)]
    assert not found, "\n".join(found)


@each([name for name in OPERATIONS if name not in EXCEPT], lambda name: name[0])
def test_an_operation(name: str) -> None:
    """Scales in turn, so that all of them are used."""
    first = OPERATIONS.index(name)
    check([next(cases_of(name))], (SCALES[first % 3], SCALES[3 + first % 4]))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in EXCEPT])
def test_all_cases_of_an_operation(name: str) -> None:
    check(list(cases_of(name)), SCALES)


WITH_DTYPE = ("sum", "prod", "mean", "var", "std", "cumsum", "cumprod", "nansum", "nanprod", "nanmean", "nanvar",
              "nanstd", "nancumsum", "nancumprod")  # fmt: skip


@each(WITH_DTYPE, lambda name: "all")
def test_a_dtype_that_is_given_is_that_of_the_result(name: str) -> None:
    x = ag.tensor(numpy.ones((2, 3), numpy.float16))
    for dtype in ("float32", "f8", numpy.float32, numpy.dtype("float64")):
        for y in (getattr(np, name)(x, dtype=dtype), getattr(np, name)(x, 0, dtype)):
            assert y.dtype == numpy.dtype(dtype)
