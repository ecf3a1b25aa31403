"""Every operation of the registry, drawn: any shapes, layout in memory, dtype; value, orders 1 and 2, both modes.

`tests.proofs.operations` says what an operation needs; here one body checks whatever is drawn from it. The default run
draws a few of every operation, ``pytest -m slow tests/autograd/ops/test_registry_properties.py`` thousands. The run
prints how many cases there were and each skip with its reason; an operation without cases fails.
"""

from __future__ import annotations

import warnings
from typing import Any

import hypothesis
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autograd as ag
from autograd import ops
from autograd.engine.primitive import op, registry
from autograd.testing import GradientMismatch, check_adjoint, check_grads

from ... import summary
from ...proofs.operations import (
    CASES,
    FAMILIES,
    MEMORIES,
    REAL_ONLY,
    WITHOUT_DERIVATIVE,
    Argument,
    Case,
    Pick,
    case,
    draw,
)
from ...proofs.operations.base import Domain
from ...tables import each

Array = Any
OPERATIONS = sorted({name for name in registry if "example" not in name} - set(WITHOUT_DERIVATIVE))
DTYPES = ("float64", "float32", "complex128", "complex64")
every = pytest.mark.parametrize("name", OPERATIONS)


def raw(x: Any) -> Array:
    return numpy.asarray(x.array if isinstance(x, ag.Tensor) else x)


def examine(c: Case, dtype: str, seed: int, memories: tuple[str, ...], order: int = 2) -> bool:
    """Check one case; False where it is not for this dtype, which is noted with the reason."""
    if dtype.startswith("complex"):
        reason = c.refuses_complex()
        if reason:
            kind = reason.partition(":")[0]  # after it comes NumPy's own message, which names the function
            summary.count(f"registry, not checked with complex numbers, {kind}", c.operation)
            return False
    args = c.variant(seed, dtype, memories)
    single = dtype in ("float32", "complex64")
    with numpy.errstate(all="ignore"):
        expected = numpy.asarray(c.numpy(*[numpy.ascontiguousarray(a).reshape(a.shape) for a in args]))
        found = raw(c.f(*map(ag.tensor, args)))
    assert found.shape == expected.shape, f"{c.operation} {c.label}: value {found.shape}; needed {expected.shape}"
    assert found.dtype == expected.dtype, f"{c.operation} {c.label}: value {found.dtype}; needed {expected.dtype}"
    tolerance = 1e-4 if single else 1e-12
    numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    with warnings.catch_warnings():
        warnings.simplefilter("error", numpy.exceptions.ComplexWarning)
        check_adjoint(c.f, *args, seed=seed)
        if sum(a.size for a in args) > 40:
            check_grads(c.f, *args, order=1, modes=["forward"], seed=seed)  # along one direction; the rest by adjoints
        else:
            check_grads(c.f, *args, order=order, seed=seed)
    if c.operation != "planted":
        summary.count("registry, drawn cases", dtype)
        summary.distinct("registry, operations with drawn cases", c.operation)
    return True


@st.composite
def drawn(draw_: Any, name: str) -> tuple[Case, str, int, tuple[str, ...]]:
    """A case of an operation, a dtype, a seed of its values, and a layout in memory for each argument."""
    c = draw(name, Pick(lambda low, high: draw_(st.integers(low, high))))
    dtype = draw_(st.sampled_from(DTYPES))
    return c, dtype, draw_(st.integers(0, 2**16)), tuple(draw_(st.sampled_from(MEMORIES)) for _ in c.args)


# -- the account -----------------------------------------------------------------------------------------------------


def test_every_operation_is_drawn() -> None:
    cased = {c.operation for c in CASES} | set(FAMILIES)
    missing = [name for name in OPERATIONS if name not in cased]
    assert not missing, f"operations without cases in tests/proofs/operations: {missing}"
    unknown = (cased | set(WITHOUT_DERIVATIVE) | set(REAL_ONLY)) - set(registry)
    assert not unknown, f"cases, families or reasons of operations that do not exist: {sorted(unknown)}"
    for name, reason in WITHOUT_DERIVATIVE.items():
        summary.line("registry, operations without derivative", f"{name}: {reason}")


# -- the properties --------------------------------------------------------------------------------------------------


@every
def test_a_few_of_every_operation(name: str) -> None:
    """One of each dtype, layouts in memory in turn, at shapes that a seed picks.

    One has second order: the complex128 one, or the float64 one where the operation refuses complex numbers.
    """
    first = OPERATIONS.index(name)
    for i, dtype in enumerate(DTYPES):
        memories = (MEMORIES[(first + i) % len(MEMORIES)], MEMORIES[(first + i + 2) % len(MEMORIES)])
        c = draw(name, Pick.seeded(first + 1000 * i))
        is_second = dtype == "complex128" or (dtype == "float64" and bool(c.refuses_complex()))
        examine(c, dtype, first, memories, order=2 if is_second else 1)


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_operation(data: Any) -> None:
    name = data.draw(st.sampled_from(OPERATIONS))
    examine(*data.draw(drawn(name)), order=1)


@pytest.mark.slow
@every
@hypothesis.settings(
    max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@given(data=st.data())
def test_many_of_every_operation(name: str, data: Any) -> None:
    examine(*data.draw(drawn(name)))


@pytest.mark.slow
@each(CASES, lambda c: c.operation, lambda c: f"{c.operation} {c.label}")
def test_every_written_case_in_every_dtype(c: Case) -> None:
    for dtype in DTYPES:
        for i, memory in enumerate(MEMORIES):
            if not examine(c, dtype, i, (memory,), order=2 if i == 1 else 1):
                break  # not a case of this dtype


# -- what they draw, and that they fail where they must --------------------------------------------------------------


def test_arguments_keep_their_domain_dtype_and_values_in_any_layout() -> None:
    for c in CASES:
        for memory in MEMORIES:
            plain, moved = c.variant(3, "float64"), c.variant(3, "float64", (memory,))
            for x, y in zip(plain, moved, strict=True):
                assert numpy.array_equal(x, y) and x.dtype == y.dtype
    x = numpy.arange(6.0).reshape(2, 3)
    c = Case("add", "", None, None, (lambda rng: x,))
    layouts = {m: c.variant(0, "float64", (m,))[0] for m in MEMORIES}
    assert layouts["F"].flags.f_contiguous and not layouts["F"].flags.c_contiguous
    assert layouts["backwards"].strides[0] < 0
    assert not any(layouts[m].flags.contiguous or layouts[m].flags.f_contiguous for m in ("gaps", "inside"))


def test_a_domain_may_say_what_is_complex_and_is_held_to_its_predicate() -> None:
    def hermitian(rng: Any, shape: tuple[int, ...]) -> Array:
        z = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        return z + z.conj().T

    domain = Domain("symmetric", lambda rng, s: numpy.eye(*s), lambda x: numpy.array_equal(x, x.T), hermitian)
    (z,) = Case("exp", "", None, None, (Argument(domain, (3, 3)),)).variant(1, "complex64", ("F",))
    assert z.dtype == "complex64" and numpy.array_equal(z, z.conj().T) and numpy.abs(z.imag).max() > 0.1
    wrong = Domain("symmetric", lambda rng, s: numpy.ones(s).cumsum(0), domain.holds)
    with pytest.raises(AssertionError, match="is not symmetric"):
        Case("exp", "", None, None, (Argument(wrong, (3, 3)),)).variant(1, "float64")


def test_shapes_of_every_kind_are_drawn() -> None:
    """0-d, empty, of extent 1 and broadcasting ones come up for elementwise operations in a few dozen draws."""
    seen = [tuple(a.shape for a in c.args if isinstance(a, Argument))
            for c in (draw("multiply", Pick.seeded(i)) for i in range(60))]  # fmt: skip
    assert any(() in s for s in seen) and any(0 in x for s in seen for x in s)
    assert any(1 in x for s in seen for x in s) and any(len(set(s)) > 1 for s in seen)


def planted(rule: Any, function: Any = lambda x: x * x, **words: Any) -> Case:
    from autograd.layouts.inference import broadcast

    made = op("planted", "N", function, rule, **{"saves": "0", "dims": broadcast, **words})
    del registry["planted"]
    return Case("planted", "", made, function, (lambda rng: rng.standard_normal((2, 3)),))


def test_the_body_sees_planted_faults() -> None:
    assert examine(planted(lambda ct, y, x: ct * 2 * x), "float64", 0, ("F",))
    assert examine(planted(lambda ct, y, x: ct * 2 * x), "complex64", 0, ("gaps",))
    factor, conjugate = planted(lambda ct, y, x: ct * 2.001 * x), planted(lambda ct, y, x: ct * 2 * numpy.conj(x))
    stopped = planted(lambda ct, y, x: ct * 2 * ops.stop_gradient(x))
    for wrong, dtype, error in (
        (factor, "float64", GradientMismatch),
        (stopped, "float64", GradientMismatch),  # right to first order
        (planted(lambda ct, y, x: ct * 2 * x.astype("float64")), "float32", GradientMismatch),
    ):
        with pytest.raises(error):
            examine(wrong, dtype, 0, ("C",))
    for dtype in ("float64", "complex128"):
        if dtype == "float64":
            assert examine(conjugate, dtype, 0, ("C",), order=1)
        else:
            with pytest.raises(GradientMismatch):
                examine(conjugate, dtype, 0, ("C",), order=1)


def test_a_rule_that_needs_contiguous_memory_is_seen() -> None:
    """The adjoint reads its operand's memory in order, whatever its strides."""

    def rule(ct: Any, y: Any, x: Any) -> Any:
        flat = x.array if isinstance(x, ag.Tensor) else x
        return ct * 2 * numpy.ndarray(flat.shape, flat.dtype, numpy.array(flat, order="K").ravel("K"))

    assert examine(planted(rule), "float64", 0, ("C",), order=1)
    with pytest.raises(GradientMismatch):
        examine(planted(rule), "float64", 0, ("F",), order=1)


def test_an_operation_without_cases_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OPERATIONS", [*OPERATIONS, "forgotten"])
    with pytest.raises(AssertionError, match="forgotten"):
        test_every_operation_is_drawn()


def test_what_is_declared_real_is_skipped_with_its_reason() -> None:
    c = next(c for c in CASES if c.operation == "maximum")
    assert not examine(c, "complex128", 0, ())
    assert any("complex numbers have no order" in text and "maximum" in text for text in summary.text(is_verbose=True))


def test_one_line_makes_a_case() -> None:
    before = len(CASES)
    case("planted", "a line", lambda x: x * x, lambda x: x * x, lambda rng: rng.standard_normal(3))
    assert examine(CASES.pop(), "complex128", 1, ("backwards",)) and len(CASES) == before
