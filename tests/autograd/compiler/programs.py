"""Random programs of NumPy's calls, which are run as they are, traced, as calls, and as machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from autograd.compiler import program as program_module
from autograd.compiler.nodes import Buffer, Operand, Refused
from autograd.compiler.numbers import Number
from autograd.compiler.program import Program
from autograd.compiler.trace import Trace, Traced, in_memory, operand_of, tracing

from .running import frame_of, run_once, same

FLOATS, INTEGERS = ("f4", "f8"), ("i4", "i8", "u1")
FORMS: list[tuple[int, ...]] = [(6, 4), (4,), (6, 1), (3, 6, 4), (1, 4), (), (5, 5), (0, 4), (6,)]


def filled(shape: Sequence[int], dtype: str, random: np.random.Generator) -> Any:
    """Moderate numbers, zeros of both signs among them."""
    size = int(np.prod(shape))
    if dtype == "b1":
        return (random.random(size) < 0.5).reshape(shape)
    if dtype in INTEGERS:
        return random.integers(0, 4, size).astype(dtype).reshape(shape)
    x = random.standard_normal(size)
    x[random.random(size) < 0.1] = -0.0
    return x.astype(dtype).reshape(shape)


def laid_out(x: Any, random: np.random.Generator) -> Any:
    """The array with its elements in some order, and with gaps, in memory that begins at an odd place."""
    how = random.integers(5)
    if how == 1:
        x = np.asfortranarray(x)
    elif how == 2 and x.ndim:
        x = np.repeat(x, 2, -1)[..., ::2]
    elif how == 3 and x.ndim:
        x = x[::-1].copy()[::-1]
    return x


def elsewhere(x: Any, random: np.random.Generator) -> Any:
    """An array with the strides of another one and other numbers, at an address of another alignment."""
    low, high = np.lib.array_utils.byte_bounds(x)
    raw = np.zeros(high - low + 256, np.uint8)
    start = -raw.ctypes.data % 64 + x.itemsize * int(random.integers(1, 9))
    found: Any = np.ndarray(x.shape, x.dtype, raw.data, start + x.ctypes.data - low, x.strides)
    found[...] = filled(x.shape, x.dtype.str[1:], random)
    return found


class RandomProgram:
    """Calls that depend on a seed, and on shapes and dtypes, but on no values.

    Attributes
    ----------
    skipped : set of int
        The calls that are left out, since they are not traced.
    done : list of str
        The calls of the last run.
    """

    def __init__(self, seed: int, length: int = 14):
        self.seed, self.length = seed, length
        self.skipped: set[int] = set()
        self.done: list[str] = []
        random = np.random.default_rng(seed)
        pick = lambda: (FORMS[random.integers(len(FORMS))], random.choice(["f4", "f4", "f8", "i8", "b1", "u1", "i4"]))
        make = lambda: laid_out(filled(*pick(), random), random)
        self.arguments = [make() for _ in range(3)]
        self.states = [np.array(filled(FORMS[random.integers(4)], "f4", random)) for _ in range(2)]
        self.constants = [make() for _ in range(2)]
        self.indices = [random.integers(-1, 4, random.choice([3, 6])), random.integers(0, 1, (2, 4))]

    def run(self, arguments: Sequence[Any], states: Sequence[Any], rate: Any, at: Callable[[int], None]) -> list[Any]:
        """The arrays that are there at the end. Arguments and constants are not written."""
        random = np.random.default_rng((self.seed, 1))
        calls = _Calls(random, rate)
        calls.known, calls.constants = [*arguments, *states], self.constants
        calls.own = [False] * len(arguments) + [True] * len(states)
        calls.indices = [*self.indices, *(x for x in arguments if x.dtype.kind == "i")]
        self.done = []
        for i in range(self.length):
            calls.random = np.random.default_rng((self.seed, 2, i))
            if i in self.skipped:
                continue
            at(i)
            name = calls.random.choice(list(_KINDS), p=_CHANCES)
            self.done.append(f"{i} {name}")
            getattr(calls, name)()
        return calls.known[len(arguments) :]


_WEIGHTS = {
    "view": 4, "unary": 4, "binary": 8, "in_place": 4, "assign": 3, "reduce": 4, "choose": 2, "join": 2, "cast": 2,
    "gather": 3, "scatter": 2, "add_at": 2, "product": 2, "make": 1, "scaled": 2, "element": 1, "clip": 1, "roll": 1,
    "vecdot": 1, "with_out": 2,
}  # fmt: skip
_KINDS = list(_WEIGHTS)
_CHANCES = np.array(list(_WEIGHTS.values())) / sum(_WEIGHTS.values())


class _Calls:
    """Calls of NumPy on arrays that are known so far."""

    def __init__(self, random: np.random.Generator, rate: Any):
        self.random, self.rate = random, rate
        self.known: list[Any] = []
        self.own: list[bool] = []
        self.constants: list[Any] = []  # operands beside traced arrays: calls on them alone are not traced
        self.indices: list[Any] = []

    def any(self, *, floats: bool = False, own: bool = False, dims: int = 0) -> Any:
        """One of the arrays, rather a late one."""
        found = [
            x for x, is_own in zip(self.known, self.own, strict=True)
            if (not floats or x.dtype.kind == "f") and (not own or is_own) and x.ndim >= dims
        ]  # fmt: skip
        return found[max(self.random.integers(len(found), size=2))] if found else None

    def put(self, x: Any, own: bool = True) -> None:
        if getattr(x, "ndim", None) is not None and x.size <= 400:
            self.known.append(x)
            self.own.append(own and isinstance(x, np.ndarray))

    def is_own(self, x: Any) -> bool:
        return next(own for each, own in zip(self.known, self.own, strict=True) if each is x)

    def key(self, x: Any) -> Any:
        slices = [slice(None), slice(None, None, -1), slice(1, None), slice(None, None, 2), slice(0, -1), slice(None)]
        parts: list[Any] = [slices[self.random.integers(6)] for _ in x.shape]
        if x.ndim and x.shape[0] and self.random.random() < 0.2:
            parts[0] = int(self.random.integers(x.shape[0]))
        if self.random.random() < 0.15:
            parts.insert(0, None)
        return tuple(parts)

    def view(self) -> None:
        x = self.any()
        how = self.random.integers(6)
        if how == 0:
            y = x.T
        elif how == 1:
            y = x.reshape(-1)
        elif how == 2 and x.ndim < 3:
            y = np.broadcast_to(x, (2, *x.shape))
            self.put(y, False)
            return
        elif how == 3 and x.ndim == 2:
            y = np.moveaxis(x, 0, -1)
        else:
            y = x[self.key(x)]
        self.put(y, self.is_own(x) and how != 1)  # `reshape` may copy: traced and plain arrays do it alike

    def element(self) -> None:
        x = self.any(dims=1)
        if x is not None and x.size:
            self.put(x[tuple(int(self.random.integers(n)) for n in x.shape)])

    def unary(self) -> None:
        x = self.any(floats=True)
        if x is None:
            return
        f = [np.negative, np.absolute, np.square, np.exp, np.tanh, np.floor, np.sign, np.positive, np.isnan,
             np.signbit][self.random.integers(10)]  # fmt: skip
        self.put(f(x))

    def pair(self) -> tuple[Any, Any]:
        x = self.any()
        for _ in range(6):
            y = self.any() if self.random.random() < 0.8 else self.constants[self.random.integers(2)]
            try:
                shape = np.broadcast_shapes(x.shape, y.shape)
            except ValueError:
                continue
            if int(np.prod(shape)) <= 400:
                return x, y
        return x, [2, 0.5, np.float32(1.5), -0.0, np.int64(3)][self.random.integers(5)]

    def binary(self) -> None:
        x, y = self.pair()
        functions: list[Any] = [np.add, np.subtract, np.multiply, np.maximum, np.minimum, np.less, np.equal,
                                np.greater_equal, np.divide, np.logical_and]  # fmt: skip
        f = functions[self.random.integers(10)]
        if self.random.random() < 0.5:
            x, y = y, x
        self.put(f(x, y))

    def in_place(self) -> None:
        x, y = self.any(floats=True, own=True), self.any()
        if x is None or not isinstance(x, np.ndarray):
            return
        if not _fits(y.shape, x.shape) or not np.can_cast(y.dtype, x.dtype, "same_kind"):
            y = 0.5
        how = self.random.integers(3)
        if how == 0:
            x += y
        elif how == 1:
            x *= y
        else:
            x -= y

    def with_out(self) -> None:
        x, y = self.any(floats=True, own=True), self.any()
        if x is None or not isinstance(x, np.ndarray):
            return
        if not _fits(y.shape, x.shape) or not np.can_cast(y.dtype, x.dtype, "same_kind"):
            return
        np.add(y, 1, out=x, casting="same_kind")

    def assign(self) -> None:
        x, y = self.any(own=True), self.any() if self.random.random() < 0.8 else self.constants[0]
        if x is None or not isinstance(x, np.ndarray):
            return
        key = self.key(x)
        part = x[key]
        if not _fits(y.shape, part.shape) or not np.can_cast(y.dtype, x.dtype, "same_kind"):
            y = 1
        x[key] = y

    def reduce(self) -> None:
        x = self.any(dims=1)
        if x is None or not x.size:
            return
        axes = [None, 0, -1, tuple(range(x.ndim)), (0,)][self.random.integers(5)]
        names = ["sum", "max", "min", "sum", "mean" if x.dtype.kind == "f" else "sum", "any", "all"]
        name = names[self.random.integers(7)]
        self.put(getattr(x, name)(axis=axes, keepdims=bool(self.random.integers(2))))

    def choose(self) -> None:
        x, y = self.pair()
        self.put(np.where(x > 0 if self.random.random() < 0.5 else x.astype(bool), y, x))

    def join(self) -> None:
        x = self.any(dims=1)
        if x is None:
            return
        y = x * 2 if self.random.random() < 0.5 else x
        self.put(np.concatenate([x, y], -1) if self.random.random() < 0.6 else np.stack([y, x]))

    def cast(self) -> None:
        x = self.any()
        dtype = ["f4", "f8", "i8", "b1", "i4"][self.random.integers(5)]
        if x.dtype.kind == "f" and dtype in INTEGERS:
            x = np.where(np.isfinite(x), x, 0).clip(-100, 100)
        self.put(x.astype(dtype))

    def gather(self) -> None:
        x, i = self.any(dims=1), self.index()
        if x is None or not x.shape[0]:
            return
        i = i % x.shape[0] if not isinstance(i, np.ndarray) else i
        i = np.minimum(i, x.shape[0] - 1)
        i = np.maximum(i, -x.shape[0])
        if x.ndim > 1 and x.shape[1] and self.random.random() < 0.4:
            self.put(x[i, np.minimum(i, x.shape[1] - 1) * 0])
        elif x.ndim > 1 and x.shape[-1] and self.random.random() < 0.4:
            self.put(x.take(i * 0, -1))
        else:
            self.put(x[i])

    def index(self) -> Any:
        return self.indices[self.random.integers(len(self.indices))]

    def scatter(self, adds: bool = False) -> None:
        x, i = self.any(own=True, floats=True, dims=1), self.index()
        if x is None or not x.shape[0] or not isinstance(x, np.ndarray):
            return
        i = np.maximum(np.minimum(i, x.shape[0] - 1), -x.shape[0])
        value: Any = self.any(floats=True)
        if value is None or value.shape != (*i.shape, *x.shape[1:]) or value.dtype != x.dtype:
            value = 0.25
        if adds:
            np.add.at(x, i, value)
        else:
            x[i] = value

    def add_at(self) -> None:
        self.scatter(True)

    def product(self) -> None:
        x, y = self.any(floats=True, dims=2), self.any(floats=True, dims=2)
        if x is None or y is None or x.ndim != 2 or y.ndim != 2 or x.dtype != y.dtype:
            return
        if x.shape[1] != y.shape[0]:
            y = y.T if x.shape[1] == y.shape[1] else x.T
        if not 0 < x.size * y.size < 3000:
            return
        z = x @ y if self.random.random() < 0.5 else np.dot(x, y)
        if self.random.random() < 0.4:
            np.matmul(x, y, out=z)
        self.put(z)

    def vecdot(self) -> None:
        x = self.any(floats=True, dims=1)
        if x is not None:
            self.put(np.vecdot(x, x))

    def make(self) -> None:
        x = self.any()
        functions: list[Any] = [np.zeros_like, np.ones_like, np.empty_like]
        y = functions[self.random.integers(3)](x)
        if isinstance(y, np.ndarray):
            y[...] = x if self.random.random() < 0.5 else 3
            self.put(y)

    def scaled(self) -> None:
        x = self.any(floats=True)
        if x is not None:
            self.put(x * self.rate if self.random.random() < 0.5 else x * (1 - self.rate * 0.5))

    def clip(self) -> None:
        x = self.any(floats=True)
        if x is not None:
            self.put(x.clip(-0.5, 0.5))

    def roll(self) -> None:
        x = self.any(dims=1)
        if x is not None and isinstance(x, Traced | np.ndarray):
            self.put(np.roll(np.add(x, x), 1, int(self.random.integers(x.ndim))))


def _fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, into) == into
    except ValueError:
        return False


class TracedProgram:
    """A random program that is traced.

    Attributes
    ----------
    states : list of ndarray
        Those that the program writes.
    """

    def __init__(self, of: RandomProgram):
        self.of = of
        self.rates = [0.75]
        self.states = [x.copy() for x in of.states]
        while True:
            try:
                self._trace()
                break
            except (Refused, TypeError, ValueError):
                of.skipped.add(self._now)

    def _note(self, i: int) -> None:
        self._now = self.trace.row = i

    def _trace(self) -> None:
        self.trace = trace = Trace()
        arguments = [trace.new(x, "argument", key=i) for i, x in enumerate(self.of.arguments)]
        states = [trace.state(x) for x in self.states]
        rate = Number.of(self.rates[0], lambda: self.rates[0])
        self._now = -1
        with tracing(trace), np.errstate(all="ignore"):
            known = self.of.run(arguments, states, rate, self._note)
        self.kept: dict[int, Operand] = {}  # by the place of an array among those that are known
        self.gradients: dict[int, Buffer] = {}
        for k, x in enumerate(known):
            if type(x) is Traced and x._buffer.kind != "argument":
                self.kept[k] = operand_of(x._value, x._buffer)
                if x.dtype.kind == "f" and x.size and k % 5 == 4:
                    made = trace.new(np.empty_like(in_memory(x)), "gradient")
                    trace.copy(operand_of(made._value, made._buffer), self.kept[k])
                    self.gradients[k] = made._buffer

    def program(self) -> Program:
        kept, gradients = list(self.kept.values()), list(self.gradients.values())
        return Program(list(self.trace.nodes), kept, self.of.arguments, gradients, self.trace.quiet)


@contextmanager
def as_calls() -> Iterator[None]:
    """A block in which programs are calls of NumPy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_module, "is_available", lambda: False)
        yield


def fault_of(traced: TracedProgram, compiled: bool, runs: int = 2) -> str:
    """The first difference between a traced program, which is built and run, and NumPy; "" if there is none."""
    of = traced.of
    for mine, x in zip(traced.states, of.states, strict=True):
        mine[...] = x
    states = [x.copy() for x in of.states]
    if compiled:
        program = traced.program()
    else:
        with as_calls():
            program = traced.program()
    random = np.random.default_rng(of.seed)
    earlier: list[tuple[Any, Any]] = []
    with np.errstate(all="ignore"):
        for run in range(runs):
            arguments = [elsewhere(x, random) for x in of.arguments] if run else of.arguments
            rate = traced.rates[0] = 0.75 + 0.5 * run
            needed = of.run(arguments, states, rate, lambda i: None)
            frame = frame_of(program, arguments)
            run_once(program, frame)
            for k, place in traced.kept.items():
                found = program.memory.reader(place)(frame)
                if not same(found, needed[k]):
                    return f"run {run}: value {k} of {of.done}: {found} instead of {needed[k]}"
            for k, buffer in traced.gradients.items():
                name, order = program.memory.gradient(buffer)
                found = frame.gradients[name] if order is None else frame.gradients[name].transpose(order)
                earlier.append((found, needed[k].copy()))
                if not same(np.asarray(found), needed[k]):
                    return f"run {run}: gradient of value {k} of {of.done}"
            for mine, x in zip(traced.states, states, strict=True):
                if not same(mine, x):
                    return f"run {run}: a state after {of.done}"
    if any(not same(np.asarray(found), x) for found, x in earlier):
        return "a gradient of an earlier run has changed"
    return ""
