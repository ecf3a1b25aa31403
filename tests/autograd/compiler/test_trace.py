"""Traced arrays: each call gives what NumPy gives, and no value leaves them silently."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autograd.compiler.build import is_available
from autograd.compiler.nodes import Refused
from autograd.compiler.numbers import Number, evaluated
from autograd.compiler.program import Departed, Program
from autograd.compiler.trace import Trace, Traced, in_memory, operand_of, tracing
from autograd.random import continuous, discrete, philox

from ...tables import each
from .programs import as_calls
from .running import frame_of, run_once, same


def made(seed: int = 0, dtype: str = "f4", shape: tuple[int, ...] = (3, 4)) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype)


class Traces:
    """A trace with arguments, whose program can be run with others."""

    def __init__(self, *arrays: Any):
        self.arrays = arrays
        self.trace = Trace()
        self.arguments = [self.trace.new(x, "argument", key=i) for i, x in enumerate(arrays)]

    def call(self, function: Callable[..., Any]) -> Any:
        with tracing(self.trace):
            return function(*self.arguments)

    def program(self, result: Traced) -> Callable[..., Any]:
        place = operand_of(result._value, result._buffer)
        found = Program(list(self.trace.nodes), [place], list(self.arrays), [])
        read = found.memory.reader(place)

        def run(*arrays: Any) -> Any:
            frame = frame_of(found, arrays)
            run_once(found, frame)
            return read(frame)

        run.plan = found.plan  # type: ignore[attr-defined]
        return run


X, Y = "x", "y"
SAME: dict[str, Callable[..., Any]] = {
    "negative": lambda x, y: -x,
    "einsum": lambda x, y: np.einsum("ij,ij->i", x, y),
    "a norm": lambda x, y: np.linalg.norm(x, axis=0),
    "inv": lambda x, y: np.linalg.inv(x[:, :3] @ y[:, :3].T),
    "a decomposition": lambda x, y: np.linalg.svd(x, False)[0] + np.linalg.qr(y.T).R[0, 0],
    "sort": lambda x, y: np.sort(x, 0) + y.argsort(1),
    "cumsum": lambda x, y: np.cumsum(x) + y.cumsum()[::-1],
    "var": lambda x, y: x.var(0) + np.std(y, 0),
    "searchsorted": lambda x, y: np.searchsorted(np.arange(3.0), x) + x[0].searchsorted(y),
    "interp": lambda x, y: np.interp(x, [0, 1], [0, 1]),
    "triangles": lambda x, y: np.tril(x) + np.triu(y, 1),
    "outer products": lambda x, y: x[:, :, None] @ y[:, None],
    "outer products of zeros": lambda x, y: (x * 0)[:, :, None] @ y[:, None],
    "infinite": lambda x, y: np.isneginf(-1 / (x * 0)) | np.isposinf(y / (x * 0)),
    "in place on a number": lambda x, y: (lambda a: operator.iadd(a, 1) + a)(x.sum()),
    "absolute": lambda x, y: abs(x),
    "add": lambda x, y: x + y,
    "reflected": lambda x, y: 2 - x,
    "divide": lambda x, y: x / y,
    "compare": lambda x, y: x < y,
    "invert": lambda x, y: ~(x < y),
    "and": lambda x, y: (x < y) & (x > 0),
    "power": lambda x, y: x**2,
    "square root": lambda x, y: abs(x) ** 0.5,
    "reciprocal": lambda x, y: x**-1,
    "cube": lambda x, y: x**3,
    "matmul": lambda x, y: x @ y.T,
    "dot": lambda x, y: x.dot(y.T),
    "np.dot": lambda x, y: np.dot(x, y.T),
    "T": lambda x, y: x.T + 0,
    "real": lambda x, y: x.real + 0,
    "index": lambda x, y: x[1] * 2,
    "element": lambda x, y: x[1, 2] * 2,
    "ellipsis": lambda x, y: x[..., 1],
    "new axis": lambda x, y: x[:, None] + y,
    "reversed": lambda x, y: x[::-1, ::2] + 0,
    "gather": lambda x, y: x[[2, 0, 2]],
    "gather of two": lambda x, y: x[np.array([0, 2]), np.array([1, 1])],
    "take": lambda x, y: x.take([1, 0], 1),
    "take of all": lambda x, y: x.take([5, 0]),
    "repeat": lambda x, y: x.repeat(2, 1),
    "astype": lambda x, y: x.astype("f8"),
    "copy": lambda x, y: x.copy(),
    "copy.copy": lambda x, y: copy.copy(x.T),
    "deepcopy": lambda x, y: copy.deepcopy(x.T),
    "np.copy": lambda x, y: np.copy(x.T),
    "reshape": lambda x, y: x.reshape(4, 3) + 1,
    "ravel": lambda x, y: x.T.ravel(),
    "flatten": lambda x, y: x.flatten(),
    "transpose": lambda x, y: x.transpose(1, 0) * 1,
    "swapaxes": lambda x, y: x.swapaxes(0, 1) * 1,
    "squeeze": lambda x, y: x[:1].squeeze() * 1,
    "diagonal": lambda x, y: x[:, :3].diagonal() * 1,
    "view": lambda x, y: x.view(np.dtype("i4")) + 1,
    "bits of a number": lambda x, y: ((x * 2).view("i4") & -8 ^ 3).view("f4") * y,
    "shifts": lambda x, y: (x.view(np.uint32) >> 9) + (y.view(np.int32) << 3) - (y.view("i4") >> 28),
    "sum": lambda x, y: x.sum(),
    "argmax": lambda x, y: x.argmax(0),
    "np.argmin": lambda x, y: np.argmin(x, 1),
    "place of all": lambda x, y: x.argmax(),
    "sum of rows": lambda x, y: x.sum(1, keepdims=True),
    "max": lambda x, y: x.max(0),
    "argmax of rows": lambda x, y: x.argmax(1),
    "argmin of all": lambda x, y: np.argmin(x),
    "min": lambda x, y: np.min(x, 1),
    "prod": lambda x, y: x.prod(0),
    "mean": lambda x, y: x.mean((0, 1)),
    "np.mean": lambda x, y: np.mean(x, 0),
    "any": lambda x, y: (x > 0).any(0),
    "all": lambda x, y: np.all(x < 9),
    "clip": lambda x, y: x.clip(-1, 1),
    "np.clip": lambda x, y: np.clip(x, None, 1),
    "where": lambda x, y: np.where(x > y, x, 0),
    "concatenate": lambda x, y: np.concatenate([x, y], 1),
    "stack": lambda x, y: np.stack([x, y], -1),
    "roll": lambda x, y: np.roll(x.T, 1, 0),
    "roll of all": lambda x, y: np.roll(x, 2),
    "roll of two": lambda x, y: np.roll(x, (1, 2), (0, 1)),
    "zeros_like": lambda x, y: np.zeros_like(x) + x,
    "ones_like": lambda x, y: np.ones_like(x.T) * x.T,
    "full_like": lambda x, y: np.full_like(x, 2.5) + x,
    "broadcast_to": lambda x, y: np.broadcast_to(x, (2, 3, 4)) + 1,
    "moveaxis": lambda x, y: np.moveaxis(x, 0, 1) * 1,
    "flip": lambda x, y: np.flip(x, 1) * 1,
    "split": lambda x, y: np.split(x, 2, 1)[1] * 1,
    "vecdot": lambda x, y: np.vecdot(x, y),
    "take_along_axis": lambda x, y: np.take_along_axis(x, np.array([[1], [0], [3]]), 1),
    "unpacked": lambda x, y: sum(x, start=0.0),
    "tanh": lambda x, y: np.tanh(x),
    "exp": lambda x, y: np.exp(x),
    "isnan": lambda x, y: np.isnan(x),
    "maximum": lambda x, y: np.maximum(x, y),
    "out": lambda x, y: np.add(x, y, out=np.empty_like(x)),
    "number of a sum": lambda x, y: x.sum() * x,
    "scalar of a scalar": lambda x, y: np.float32(2) * x,
    "fill": lambda x, y: (lambda z: (z.fill(2), z)[1])(x.copy()) + x,
    "conj": lambda x, y: x.conj() * 1,
    "a cast of a number": lambda x, y: x.sum().astype("f8") + 0,
    "T of a number": lambda x, y: x.sum().T + 0,
    "swapped rows": lambda x, y: np.flipud(x) - np.fliplr(x),
    "square": lambda x, y: np.square(x),
}
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "a mask": lambda z, y: z.__setitem__(y > 0, 0.5),
    "copyto with a mask": lambda z, y: np.copyto(z, 2.0, where=y < 0),
    "in place": lambda z, y: operator.iadd(z, y),
    "a part": lambda z, y: z.__setitem__((slice(1, 3), 1), 5.0),
    "a row": lambda z, y: z.__setitem__(0, y[1]),
    "a view": lambda z, y: operator.imul(z[:, ::2], 2),
    "a transposed view": lambda z, y: operator.imul(z.T, y.T),
    "rows": lambda z, y: z.__setitem__(np.array([2, 0]), y[:2]),
    "add.at": lambda z, y: np.add.at(z, np.array([1, 1, 0]), y),
    "copyto": lambda z, y: np.copyto(z, y),
    "out of a product": lambda z, y: np.matmul(y[:, :3], y, out=z),
    "put_along_axis": lambda z, y: np.put_along_axis(z, np.array([[1], [0], [3]]), 7.0, 1),
    "out of a sum": lambda z, y: np.sum(y, 0, out=z[0]),
    "a mask's product": lambda z, y: operator.imul(z, y > 0),
    "its bits": lambda z, y: operator.ixor((z.__imul__(2)).view("i4"), y.view("i4") & 7),
}


@each(SAME, lambda name: name[0])
def test_a_call_gives_what_numpy_gives(name: str) -> None:
    for compiled in (False, True):
        _check(SAME[name], compiled)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_leaves_what_numpy_leaves(name: str, compiled: bool) -> None:
    def function(x: Any, y: Any) -> Any:
        z = x.copy()
        WRITES[name](z, y)
        return z

    _check(function, compiled)


def _check(function: Callable[..., Any], compiled: bool) -> None:
    with np.errstate(all="ignore"):
        needed = function(made(0), made(1))
        traces = Traces(made(0), made(1))
        found = traces.call(function)
        assert type(found) is Traced
        assert found.__class__ is type(needed)
        assert found.dtype == needed.dtype
        assert found.strides == needed.strides or found.size == 1
        assert same(in_memory(found), needed)
        if compiled:
            run = traces.program(found)
        else:
            with as_calls():
                run = traces.program(found)
        for seed in (2, 3):
            assert same(np.asarray(run(made(seed), made(seed + 9))), function(made(seed), made(seed + 9)))


LEAVES: dict[str, Callable[[Any], Any]] = {
    "ascontiguousarray": np.ascontiguousarray,
    "asarray": np.asarray,
    "array": lambda x: np.array(x),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "complex": lambda x: complex(x.sum()),
    "index": lambda x: operator.index(x.astype("i8").sum()),
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "tobytes": lambda x: x.tobytes(),
    "range": lambda x: range(x.astype("i8").sum()),
    "math": lambda x: math.sqrt(abs(x.sum())),
    "round": lambda x: round(x.sum()),
    "format": lambda x: f"{x.sum():.3f}",
    "pickle": pickle.dumps,
    "dumps": lambda x: x.dumps(),
    "memoryview": memoryview,
    "bytes": bytes,
    "bytearray": bytearray,
    "a plain array at a traced index": lambda x: np.arange(9)[x[0].astype("i8")],
    "a plain list at a traced index": lambda x: [1, 2][x.astype("i8").sum()],
    "a plain array's part": lambda x: np.zeros((3, 4)).__setitem__(0, x[0]),
    "a plain array's fill": lambda x: np.zeros(3).fill(x.sum()),
    "plain dot": lambda x: np.ones(3).dot(x),
    "plain array's list": lambda x: np.array([x, x]),
    "a plain out": lambda x: np.add(x, 1, out=np.zeros((3, 4), "f4")),
    "plain in place": lambda x: operator.iadd(np.zeros((3, 4), "f4"), x),
    "a plain out of dot": lambda x: np.dot(x, x.T, out=np.zeros((3, 3), "f4")),
    "copyto": lambda x: np.copyto(np.zeros((3, 4)), x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "where alone": lambda x: np.where(x > 0),
    "unique": lambda x: np.unique(x),
    "quotient": lambda x: x.sum() // 2,
    "rest": lambda x: x % 2,
    "divmod": lambda x: divmod(x.sum(), 2),
    "a power of a number": lambda x: x.sum() ** 2,
    "a number's power": lambda x: 2 ** x.sum(),
    "print options": lambda x: np.array2string(x),
    "allclose": lambda x: np.allclose(x, x),
    "array_equal": lambda x: np.array_equal(x, x + 1),
    "fromiter": lambda x: np.fromiter((v for v in x[0]), "f4"),
    "frombuffer": lambda x: np.frombuffer(x, "f4"),
    "ufunc outer": lambda x: np.add.outer(x, x),
    "accumulate": lambda x: np.add.accumulate(x),
    "reduceat": lambda x: np.add.reduceat(x, [0]),
    "where in a ufunc": lambda x: np.add(x, 1, where=x > 0),
    "initial": lambda x: x.sum(initial=3.0),
    "frexp": lambda x: np.frexp(x),
    "a part of itself": lambda x: (lambda z: z.__setitem__((slice(1, None),), z[:-1]))(x.copy()),
    "put": lambda x: x.put([0], 1.0),
    "a view of another size": lambda x: x.view(np.dtype("i8")),
    "float16 sums": lambda x: x.astype("f2").sum(),
    "slices of numbers": lambda x: x[: x[0, 0].astype("i8")],
    "shape of a value": lambda x: np.zeros(x[0, 0].astype("i8")),
    "reshape by a value": lambda x: x.reshape(x[0, 0].astype("i8"), -1),
    "setflags": lambda x: x.setflags(write=False),
    "tofile": lambda x: x.tofile("no file"),
    "a write to an argument": lambda x: operator.iadd(x, 1),
    "a string": lambda x: np.array2string(x + 1),
    "bincount": lambda x: np.bincount(x[0].astype("i8")),
    "ctypes": lambda x: x.ctypes.data,
    "data": lambda x: x.data,
    "flat": lambda x: list(x.flat),
    "random": lambda x: np.random.default_rng(0).permutation(x),
    "choose": lambda x: np.choose(x[0].astype("i8"), [1, 2]),
    "isin": lambda x: np.isin(x, [1.0]),
    "traced beside plain": lambda x: np.asarray([x[0, 0], 1.0]),
    "ndarray": lambda x: np.ndarray((3,), "f4", x),
    "a set of values": lambda x: np.float64(x.sum()),
    "float32": lambda x: np.float32(x.sum()),
    "hash of bytes": lambda x: hash(x.tobytes()),
}
_REFUSALS = (Refused, TypeError, ValueError, AttributeError, IndexError)


OF_WORDS = {
    "uniform": (continuous._uniform, "f8", (3 * 2.0**-53, -1.0, 0.0, float(np.nextafter(2.0, 0)))),
    "uniform32": (continuous._uniform, "f4", (2.0**-53, 0.0, 0.0, float(np.nextafter(np.float32(1), np.float32(0))))),
    "normal": (continuous._normal, "f8", (1.7, 0.3)),
    "normal32": (continuous._normal, "f4", (1.0, 0.0)),
    "truncated": (continuous._truncated, "f4", (2.0, 0.5, -1.0, 9.0, 2.0**-53 * 0.77, 0.227)),
    "integers": (discrete._integers, "i8", (10**18 + 9, -5)),
    "booleans": (discrete._booleans, "b1", (2**52 + 12345,)),
    "all true": (discrete._booleans, "b1", (2**53,)),
}


@pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")
@pytest.mark.parametrize("name", OF_WORDS)
def test_numbers_that_are_made_of_words_are_loops(name: str) -> None:
    """Also of the first and last words, far in the tails; no branch that is not taken raises a flag."""
    transform, dtype, values = OF_WORDS[name]
    ends = np.array([0, 1, 2**64 - 1, 2**63 - 1, 2**63, 2**63 + 2**11, 2**12, 2**40, 2**64 - 2**20], np.uint64)
    words = np.concatenate([ends, np.random.default_rng(2).integers(0, 2**64, 20_000 - ends.size, np.uint64)])
    needed = philox._transformed(words.copy(), transform, np.dtype(dtype), *values)
    of = Traces(words.reshape(100, 200))
    found = of.call(lambda words: philox._transformed(words, transform, np.dtype(dtype), *values))
    run = of.program(found)
    with np.errstate(all="raise"):
        assert same(run(words.reshape(100, 200)).reshape(-1), needed)
        assert same(run(words[::-1].copy().reshape(100, 200)).reshape(-1), needed[::-1])
    groups = run.plan.groups  # type: ignore[attr-defined]
    assert len(groups) <= 6 and all(group.is_loop or "clip" in repr(group) for group in groups)


@pytest.mark.parametrize("name", LEAVES)
def test_a_value_that_would_leave_the_arrays_is_refused(name: str) -> None:
    traces = Traces(abs(made(0)))
    with pytest.raises(_REFUSALS):
        traces.call(LEAVES[name])


DECISIONS: dict[str, Callable[[Any], Any]] = {
    "if": lambda x: 1 if x.sum() > 0 else 2,
    "and": lambda x: (x.sum() > 0 and 1) or 2,
    "max of numbers": lambda x: max(x[0, 0], x[0, 1]),
    "sorted": lambda x: sorted(x[0])[0],
    "in": lambda x: 5.0 in [x[0, 0], x[0, 1]],
    "assert": lambda x: bool((x < 1e9).all()),
    "in an array": lambda x: 0.0 in list(x[0]),
    "equal": lambda x: [x[0, 0]] == [3.0],
    "not": lambda x: not x.sum(),
    "any": lambda x: any(v > 0 for v in x[0]),
    "min by key": lambda x: min(x[0], key=lambda v: v * v),
    "while": lambda x: next(k for k in range(99) if x.sum() * 0 + k > 3),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_becomes_a_guard(name: str) -> None:
    traces = Traces(made(0))
    traces.call(DECISIONS[name])
    assert any(node.kind == "guard" for node in traces.trace.nodes)


@pytest.mark.parametrize("compiled", [False, True])
def test_another_decision_departs(compiled: bool) -> None:
    traces = Traces(abs(made(0)))
    found = traces.call(lambda x: x * 2 if x.sum() > 0 else x * 3)
    if compiled:
        run = traces.program(found)
    else:
        with as_calls():
            run = traces.program(found)
    assert same(run(abs(made(1))), abs(made(1)) * 2)
    with pytest.raises(Departed):
        run(-abs(made(1)))


def test_many_decisions_are_refused() -> None:
    with pytest.raises(Refused, match="many decisions"):
        Traces(made(0)).call(lambda x: [bool(x[0, 0] > k) for k in range(100)])


def test_a_traced_array_says_what_numpy_says_of_its_form() -> None:
    x = made(0).T
    y = Traces(x).arguments[0]
    assert isinstance(y, np.ndarray)
    assert isinstance(y.sum(), np.float32)
    assert not isinstance(y.sum(), np.ndarray)
    names = ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides")
    assert [getattr(y, name) for name in names] == [getattr(x, name) for name in names]
    assert len(y) == len(x)
    assert y.flags.c_contiguous == x.flags.c_contiguous
    assert np.shape(y) == x.shape
    assert np.result_type(y, 1.0) == x.dtype
    assert str(y) == "Traced(float32[4, 3])"


def test_a_dictionary_finds_a_traced_array_by_its_identity() -> None:
    x, y = Traces(made(0), made(0)).arguments
    assert {x: 1}[x] == 1
    assert hash(x) != hash(y)


def test_arrays_of_two_traces_are_refused() -> None:
    x, y = Traces(made(0)).arguments[0], Traces(made(0)).arguments[0]
    with pytest.raises(Refused, match="another trace"):
        _ = x + y


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda n: n + 1,
    "difference": lambda n: 1 - n,
    "other difference": lambda n: n - 0.5,
    "product": lambda n: 3 * n,
    "quotient": lambda n: 1 / n,
    "power": lambda n: 0.9**n,
    "own power": lambda n: n**2,
    "floor": lambda n: 7 // n,
    "rest": lambda n: 7 % n,
    "negative": lambda n: -n,
    "two": lambda n: n * n - n,
    "nested": lambda n: (1 - 0.9**n) ** 0.5 / (1 + n),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_arithmetic_with_a_number_is_evaluated_anew(name: str) -> None:
    value = [2]
    found = NUMBERS[name](Number.of(2, lambda: value[0]))
    for n in (2, 3, 5):
        value[0] = n
        assert evaluated([found]) == (NUMBERS[name](n),)
    assert found.value == NUMBERS[name](2)


@pytest.mark.parametrize(
    "use",
    [
        float,
        int,
        bool,
        round,
        math.floor,
        math.sqrt,
        str.__mod__,
        np.asarray,
        range,
        lambda n: n > 1,
        lambda n: n == 2,
        lambda n: n in [3],
        lambda n: max(n, 3),
    ],
)
def test_a_number_does_not_decide(use: Any) -> None:
    with pytest.raises((Refused, TypeError)):
        use(Number.of(2.0, lambda: 2.0))
