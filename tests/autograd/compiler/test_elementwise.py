"""Compiled steps of one element have the bits of NumPy's functions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograd.compiler import build, operations
from autograd.compiler.loops import UFUNCS, Loop, Pointer, Unsupported, dtypes_of, pointer_of
from autograd.compiler.machine import compile_loops, is_available

from ...tables import each
from .running import DTYPES, SPECIAL, elementwise, made, numbers, run, same, write_anew

pytestmark = pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")

HALF = ["f2"] if operations.FEATURES.get("F16C") else []
STEPS = [(name, dtype) for name, (_, dtypes, _) in UFUNCS.items() for dtype in dtypes if dtype in (*DTYPES, *HALF)]
CASTS = [(a, b) for a in DTYPES for b in DTYPES if not (a in ("f4", "f8") and b == "u4")]
SAME_SIZE = [(a, b) for a in DTYPES for b in DTYPES if "b1" not in (a, b) and a[1] == b[1]]
SHAPES = [(), (1,), (5,), (67,), (3, 16), (4, 3, 5)]


@each(STEPS, lambda step: step[1])
def test_a_ufunc_has_numpys_bits(step: tuple[str, str]) -> None:
    name, dtype = step
    random, function = np.random.default_rng(len(name)), getattr(np, name)
    count = UFUNCS[name][0]
    # All pairs of special numbers, in a contiguous loop that is vectorized.
    with np.errstate(all="ignore"):
        special = np.array(SPECIAL).astype(dtype) if dtype[0] == "f" else np.unique(numbers(dtype, 60, random))
    pairs = list(itertools.product(special, special)) if count == 2 else [(x,) for x in special]
    operands = [np.array(each, dtype) for each in zip(*pairs, strict=True)]
    steps = [(name, *range(count))]
    elementwise(function, steps, operands, operands[0].shape)
    for shape in ((), (67,), (4, 3, 5)):
        elementwise(function, steps, [made(shape, dtype, random) for _ in range(count)], shape)


@each(CASTS, lambda cast: cast[0])
def test_a_cast_has_numpys_bits(cast: tuple[str, str]) -> None:
    source, target = cast
    random = np.random.default_rng(1)
    for shape in ((400,), (3, 7)):
        x = made(shape, source, random)
        elementwise(lambda x: x.astype(target), [("cast", target, 0)], [x], shape)


@pytest.mark.skipif(not HALF, reason="the processor does not convert float16")
def test_casts_of_float16_have_numpys_bits() -> None:
    every = np.arange(1 << 16, dtype="u2").view("f2")
    elementwise(lambda x: x.astype("f4"), [("cast", "f4", 0)], [every], every.shape)
    wide = every[np.isfinite(every)].astype("f4")
    between = wide + np.diff(wide, append=wide[:1]) / 2  # ties, too
    for x in (wide, between, np.nextafter(between, np.float32(0)), np.nextafter(between, np.float32(np.inf))):
        elementwise(lambda x: x.astype("f2"), [("cast", "f2", 0)], [x], x.shape)
    for shape in ((400,), (3, 7), ()):
        for source, target in (("f2", "f4"), ("f4", "f2")):
            x = made(shape, source, np.random.default_rng(1))
            elementwise(lambda x, to=target: x.astype(to), [("cast", target, 0)], [x], shape)
    with pytest.raises(Unsupported, match="f8 to f2"):  # it would be rounded twice
        elementwise(lambda x: x.astype("f2"), [("cast", "f2", 0)], [np.ones(3)], (3,))


@pytest.mark.parametrize(("source", "target"), SAME_SIZE)
def test_a_number_with_the_bits_of_another(source: str, target: str) -> None:
    x = made((400,), source, np.random.default_rng(5))
    elementwise(lambda x: x.view(target), [("bitcast", target, 0)], [x], (400,))


def test_the_bits_of_a_cast_to_unsigned_32_bits_depend_on_the_place() -> None:
    x = Pointer("f4", (4,))
    with pytest.raises(Unsupported, match="u4"):
        dtypes_of(Loop((8,), (x,), (("load", 0), ("cast", "u4", 0))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_where(dtype: str) -> None:
    random = np.random.default_rng(2)
    for shape in SHAPES:
        arrays = [made(shape, "b1", random), made(shape, dtype, random), made(shape, dtype, random)]
        elementwise(np.where, [("where", 0, 1, 2)], arrays, shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_keep_their_bits(dtype: str) -> None:
    for x in numbers(dtype, 40, np.random.default_rng(3)):
        out = np.empty(3, dtype)
        loop = Loop((3,), (pointer_of(out),), (("constant", dtype, x.tobytes().hex()), ("store", 0, 0)))
        assert run(loop, [out]) == 0
        assert out.tobytes() == np.full(3, x).tobytes()


def test_nothing_is_contracted_or_reassociated() -> None:
    """With a fused product and sum, or with sums in another order, some of these numbers differ."""
    random = np.random.default_rng(4)
    for dtype in ("f4", "f8"):
        x, y, z = (random.standard_normal(4096).astype(dtype) for _ in range(3))
        elementwise(lambda x, y, z: x * y + z, [("multiply", 0, 1), ("add", 3, 2)], [x, y, z], (4096,))
        elementwise(lambda x, y, z: (x + y) + z, [("add", 0, 1), ("add", 3, 2)], [x, y, z], (4096,))
        elementwise(lambda x, y, z: x / y * z, [("divide", 0, 1), ("multiply", 3, 2)], [x, y, z], (4096,))


def test_the_code_is_vectorized() -> None:
    """The text that LLVM makes of a chain has vector instructions."""
    from llvmlite import binding

    from autograd.compiler import emit

    x = Pointer("f4", (4,))
    loop = Loop((4096,), (x, x), (("load", 0), ("square", 0), ("add", 1, 0), ("store", 1, 2)))
    made = build._machine()
    module = binding.parse_assembly(made.head + emit.function_text(loop, "f"), binding.create_context())
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = binding.create_pass_builder(made.machine, options)
    builder.getModulePassManager().run(module, builder)
    assert " x float>" in str(module) and "llvm.fma" not in str(module)


_UNARY = ("negative", "absolute", "square", "sqrt", "sign", "floor", "rint", "positive")
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "copysign")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_chains(data: st.DataObject) -> None:
    """Random steps over random layouts, with results on the way that are stored."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dtype = data.draw(st.sampled_from(["f4", "f8"]))
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 8, 17, 33]), min_size=0, max_size=3)))
    arrays = [made(shape, dtype, random) for _ in range(data.draw(st.integers(1, 4)))]
    steps: list[tuple[Any, ...]] = [("load", k) for k in range(len(arrays))]
    values = list(arrays)
    outputs: list[Any] = []
    needed = []
    with np.errstate(all="ignore"):
        for _ in range(data.draw(st.integers(1, 8))):
            at = [k for k, v in enumerate(values) if v is not None]
            if data.draw(st.booleans()):
                name, given = data.draw(st.sampled_from(_UNARY)), [data.draw(st.sampled_from(at))]
            else:
                name = data.draw(st.sampled_from(_BINARY))
                given = [data.draw(st.sampled_from(at)), data.draw(st.sampled_from(at))]
            steps.append((name, *given))
            values.append(np.asarray(getattr(np, name)(*(values[i] for i in given))))
            if data.draw(st.booleans()):
                steps.append(("store", len(arrays) + len(outputs), len(values) - 1))
                needed.append(values[-1])
                outputs.append(np.empty(shape, dtype))
                values.append(None)
    loop = Loop(shape, tuple(pointer_of(x) for x in (*arrays, *outputs)), tuple(steps))
    assert run(loop, [*arrays, *outputs]) >= 0
    for found, one in zip(outputs, needed, strict=True):
        assert same(found, one), loop


def test_operands_that_are_only_read_may_overlap() -> None:
    x = np.random.default_rng(7).standard_normal(100)
    elementwise(np.subtract, [("subtract", 0, 1)], [x[1:], x[:-1]], (99,))
    elementwise(np.multiply, [("multiply", 0, 1)], [x[:30, None], x[None, :30]], (30, 30))


def test_a_result_may_be_an_operand() -> None:
    x = np.arange(37, dtype="f4")
    needed = (x + 1) * x
    one = np.float32(1).tobytes().hex()
    steps = (("load", 0), ("constant", "f4", one), ("add", 0, 1), ("multiply", 2, 0), ("store", 0, 3))
    assert run(Loop((37,), (pointer_of(x),), steps), [x]) == 0
    assert same(x, needed)


def test_an_element_that_is_written_in_each_iteration_is_read_again() -> None:
    x, total = np.random.default_rng(6).standard_normal((5, 33)), np.zeros(5)
    needed = total.copy()
    for column in x.T:
        needed = needed + column
    steps = (("load", 0), ("load", 1), ("add", 1, 0), ("store", 1, 2))
    assert run(Loop((5, 33), (pointer_of(x), Pointer("f8", (8, 0))), steps), [x, total]) == 0
    assert same(total, needed)


def test_a_loop_without_elements_does_nothing() -> None:
    out = np.ones(3)
    loop = Loop((0, 3), (Pointer("f8", (8, 8)),), (("load", 0), ("square", 0), ("store", 0, 1)))
    assert run(loop, [out]) == 0 and (out == 1).all()


@pytest.mark.parametrize(
    "steps",
    [
        (("load", 0), ("exp", 0)),
        (("load", 0), ("load", 1), ("add", 0, 1)),
        (("load", 1), ("sqrt", 0)),
        (("load", 0), ("store", 1, 0)),
        (("load", 0), ("where", 0, 0, 0)),
        (("load", 0), ("load_at", 1, ((0, 4, 3),))),
        (("load", 0), ("cast", "g16", 0)),
        (("load", 0), ("store", 0, 0), ("square", 1)),
        (("reduce", "add", 0, 0, (0,)), ("load", 0)),
    ],
)
def test_what_has_no_compiled_form_is_refused(steps: Any) -> None:
    with pytest.raises(Unsupported):
        compile_loops([Loop((8,), (Pointer("f4", (4,)), Pointer("i4", (4,))), steps)])


def test_other_dtypes_are_refused() -> None:
    for dtype in ("c8", "O8", "M8", "g16"):
        with pytest.raises(Unsupported):
            compile_loops([Loop((8,), (Pointer(dtype, (4,)),), (("load", 0),))])


def _of_floats(**instructions: str) -> dict[str, Any]:
    return operations._OF_FLOATS | {name: operations._instruction(text) for name, text in instructions.items()}


PLANTED = {
    "contracted": ("_OF_FLOATS", _of_floats(add="fadd contract", multiply="fmul contract")),
    "reassociated": ("_OF_FLOATS", _of_floats(add="fadd reassoc nsz", subtract="fsub reassoc nsz")),
    "NaN": ("_FLOAT_COMPARISONS", {"not_equal": "one"}),
    "unsigned": ("_COMPARISONS", {"less": "le"}),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    x, y, z = (random.standard_normal(4096) for _ in range(3))
    x[::7] = np.nan if fault == "NaN" else 1
    whole = random.integers(0, 9, 4096).astype("u4")
    check: dict[str, Any] = {
        "contracted": (lambda x, y, z: x * y + z, [("multiply", 0, 1), ("add", 3, 2)], [x, y, z]),
        "reassociated": (lambda x, y: (x + y) - x, [("add", 0, 1), ("subtract", 2, 0)], [x, y]),
        "NaN": (np.not_equal, [("not_equal", 0, 1)], [x, y]),
        "unsigned": (np.less, [("less", 0, 1)], [whole, whole[::-1].copy()]),
    }
    elementwise(*check[fault], (4096,))
    write_anew(monkeypatch)
    monkeypatch.setattr(operations, *PLANTED[fault])
    with pytest.raises(AssertionError):
        elementwise(*check[fault], (4096,))
