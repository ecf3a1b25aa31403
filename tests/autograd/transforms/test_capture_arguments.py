"""The arguments of a captured step: containers of the program, values that no operation takes, and what is refused."""

from __future__ import annotations

import functools
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import nn
from autograd.compiler.loops import Pointer, Unsupported
from autograd.compiler.machine import is_available, ufunc_row
from autograd.engine.pytree import register_pytree_node
from autograd.errors import CaptureError
from autograd.transforms.guards import Form

from .test_capture import bits

CALLS = 14


def _x(i: int, *shape: int) -> Any:
    return numpy.random.default_rng(i).standard_normal(shape or (5, 4)).astype("float32")


def _t(i: int) -> Any:
    return ag.tensor(_x(i))


@dataclass
class Batch:
    x: Any
    k: float = field(default=1.0, init=False)


class Encoding(dict[str, Any]):
    k: Any = 1.0


# -- a step that changes its arguments ---------------------------------------------------------------------------------
def _append(x: Any, log: Any) -> Any:
    log.append((x * 2.0).sum())
    return log[-1]


def _count(x: Any, state: Any) -> Any:
    state["n"] += 1
    return x * 2.0


def _fill(x: Any, batch: Any) -> Any:
    batch["y"] = x * 2.0
    return batch["y"].sum()


def _pop(x: Any, batch: Any) -> Any:
    return x * float(batch.pop("n"))


def _set(x: Any, batch: Any) -> Any:
    batch.k = 3.0
    return x * batch.k


def _exchange(x: Any, batch: Any) -> Any:
    batch.x = batch.x * 2.0
    return x * batch.x


def _turn(x: Any, batch: Any) -> Any:
    batch["a"] = batch.pop("a")
    return x * 2.0


CHANGES: dict[str, tuple[Callable[..., Any], Callable[[], Any], str]] = {
    "a list": (_append, list, r"argument 1\[0\] was absent and is Tensor"),
    "a list in a dictionary": (lambda x, b: _append(x, b["log"]), lambda: {"log": []}, r"argument 1\['log'\]\[0\] was"),
    "a number of a dictionary": (_count, lambda: {"n": 0}, r"argument 1\['n'\] was 0 and is 1"),
    "a new key": (_fill, dict, r"argument 1\['y'\] was absent"),
    "a key that is taken": (_pop, lambda: {"n": 3}, r"argument 1\['n'\] was 3 and is absent"),
    "the order of keys": (_turn, lambda: {"a": 1, "b": 2}, "containers were .*'a': .*'b': .* and are .*'b': .*'a':"),
    "a field": (_exchange, lambda: Batch(_t(9)), r"argument 1\.x was float32"),
    "a field that __init__ does not take": (_set, lambda: Batch(_t(9)), r"argument 1\.k was 1.0 and is 3.0"),
    "an attribute of a subclass of dict": (_set, Encoding, r"vars\(argument 1\)\['k'\] was absent and is 3.0"),
    "an item that is made when it is read": (lambda x, b: x * b["k"], lambda: defaultdict(float), r"argument 1\['k'\]"),
}  # fmt: skip


def _shown(x: Any) -> Any:
    """What a container of the tests holds."""
    if isinstance(x, dict):
        return [list(x), [_shown(part) for part in x.values()], _shown(vars(x)) if hasattr(x, "__dict__") else ()]
    return [_shown(part) for part in x] if isinstance(x, list) else bits(x.x) if isinstance(x, Batch) else bits(x)


@pytest.mark.parametrize("name", CHANGES)
def test_a_step_that_changes_an_argument_is_refused(name: str) -> None:
    step, make, text = CHANGES[name]
    do = ag.capture(step, warmup=0)
    for i in range(3):
        own, other = make(), make()
        needed = step(_t(i), other)
        with pytest.raises(CaptureError, match=f"the step changes its arguments: {text}") as caught:
            do(_t(i), own)
        assert _shown(own) == _shown(other), "the step has run once, with the caller's argument"
        assert "fix: return the value" in str(caught.value)
        assert needed is not None


def test_equal_numbers_in_the_place_of_others_are_no_change() -> None:
    def step(x: Any, state: Any) -> Any:
        state["rate"], state["mode"] = float("0.5"), "".join(["tr", "ain"])
        return x * state["rate"]

    do = ag.capture(step, warmup=0)
    for i in range(6):
        assert bits(do(_t(i), {"rate": 0.5, "mode": "train"})) == bits(_t(i) * 0.5)
    assert do.replays == 4


# -- containers of the program -----------------------------------------------------------------------------------------
@dataclass
class Post:
    x: Any

    def __post_init__(self) -> None:
        self.k: Any = 1.0


@dataclass
class Norm:
    x: Any

    def __post_init__(self) -> None:
        self.x = self.x * 2.0


@dataclass(frozen=True, slots=True)
class Slots:
    x: Any
    k: Any = field(default=1.0, init=False)


@dataclass
class Static:
    x: Any
    k: Any = field(default=1.0, metadata={"static": True})
    mask: Any = field(init=False)

    def __post_init__(self) -> None:
        self.mask = numpy.asarray(self.x.array > 0)


@dataclass
class Cached:
    x: Any
    k: Any

    @functools.cached_property
    def y(self) -> Any:
        return self.x * self.k


class CachedItems(dict[str, Any]):
    @functools.cached_property
    def y(self) -> Any:
        return self["x"] * self["k"]


@dataclass
class Output(OrderedDict[str, Any]):
    x: Any

    def __post_init__(self) -> None:
        self["x"] = self.x

    def __reduce__(self) -> Any:  # as that of outputs of models
        make, _, *rest = super().__reduce__()
        return make, (self.x,), *rest


class Rows(list[Any]):
    k: Any = 1.0


Named = namedtuple("Named", "x y")


class Pair(Named):
    k: Any = 1.0


class Own:
    def __init__(self, x: Any, k: Any):
        self.x, self.k = x, k


register_pytree_node(Own, lambda own: ((own.x,), own.k), lambda k, parts: Own(*parts, k))


def _with(x: Any, k: Any) -> Any:
    object.__setattr__(x, "k", k)
    return x


# a container of a Tensor and a number, and a step
CONTAINERS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "a subclass of dict": (lambda x, k: _with(Encoding(x=x), k), lambda b: b["x"] * b.k),
    "a subclass of list": (lambda x, k: _with(Rows([x]), k), lambda b: b[0] * b.k),
    "a subclass of a named tuple": (lambda x, k: _with(Pair(x, 0), k), lambda b: b.x * b.k),
    "a named tuple": (Named, lambda b: b.x * b.y),
    "a field with init=False": (lambda x, k: _with(Batch(x), k), lambda b: b.x * b.k),
    "an attribute set after __post_init__": (lambda x, k: _with(Post(x), k), lambda b: b.x * b.k),
    "a dataclass that converts": (lambda x, k: _with(Norm(x), k), lambda b: b.x * b.k),
    "a dataclass with slots": (lambda x, k: _with(Slots(x), k), lambda b: b.x * b.k),
    "a static field": (Static, lambda b: b.x * b.mask * b.k),
    "a cached property": (Cached, lambda b: b.y * b.y),
    "a cached property of a subclass of dict": (lambda x, k: CachedItems(x=x, k=k), lambda b: b.y * b.y),
    "a dataclass that is a dictionary": (lambda x, k: _with(Output(x), k), lambda b: b["x"] * b.x * b.k),
    "a default": (lambda x, k: defaultdict(list, x=x, k=k), lambda b: b["x"] * b["k"]),
    "a dictionary with an order": (lambda x, k: OrderedDict(x=x, k=k), lambda b: b["x"] * b["k"]),
    "a UserDict": (lambda x, k: UserDict(x=x, k=k), lambda b: b["x"] * b["k"]),
    "a view of a dictionary": (lambda x, k: MappingProxyType({"x": x, "k": k}), lambda b: b["x"] * b["k"]),
    "a registered class": (Own, lambda b: b.x * b.k),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_of_the_program_are_copied_whole(name: str) -> None:
    make, step = CONTAINERS[name]
    do = ag.capture(step)
    for i in range(CALLS):
        k = 2.0 if i < CALLS - 3 else 3.0
        assert bits(do(make(_t(i), k))) == bits(step(make(_t(i), k))), i
    assert do.replays == CALLS - 2 - 4 and do.is_captured  # two records


class Twice(tuple[Any, ...]):
    def __new__(cls, x: Any) -> Any:
        return super().__new__(cls, [x[0] * 2.0])


class Uncopied(dict[str, Any]):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return (_fail, ())


def _fail() -> Any:
    raise KeyError("no copy")


@pytest.mark.parametrize(
    ("make", "step", "text"),
    [
        (lambda x: Twice([x]), lambda b: b[0] * 1.0, r"has another argument 0\[0\]"),
        (lambda x: Uncopied(x=x), lambda b: b["x"] * 1.0, "is none: KeyError: 'no copy'"),
        (lambda x: numpy.ma.masked_array(x.array, x.array > 0), lambda b: ag.tensor(b.filled(0.0)), "MaskedArray"),
        (lambda x: numpy.zeros(5, [("x", "f4")]).view(numpy.recarray), lambda b: ag.tensor(b.x), "recarray"),
        (lambda x: numpy.array([1.0, "a"], object), lambda b: _t(0) * b[0], r"argument 0 is object\[2\]"),
        (lambda x: numpy.zeros(5000, "U4"), lambda b: _t(0) * len(b), "at most 65536 bytes"),
    ],
)
def test_an_argument_that_is_not_copied_whole_is_refused(make: Any, step: Any, text: str) -> None:
    do = ag.capture(step, warmup=0)
    for i in range(3):
        with pytest.raises(CaptureError, match=text + r"(.|\n)*The step itself has run"):
            do(make(_t(i)))


def test_the_memory_of_a_file_may_be_an_argument(tmp_path: Any) -> None:
    rows = numpy.memmap(tmp_path / "rows", "float32", "w+", shape=(40, 4))
    rows[...] = _x(0, 40, 4)
    do = ag.capture(lambda x: ag.tensor(x) * 2.0)
    for i in range(8):
        assert bits(do(rows[4 * i : 4 * i + 4])) == bits(rows[4 * i : 4 * i + 4] * 2)
    assert do.replays == 4


def test_a_tensor_that_is_there_twice_is_one_in_the_recorded_runs() -> None:
    do = ag.capture(lambda a, b: a * (2.0 if a is b else 3.0))
    for i in range(8):
        x = _t(i)
        assert bits(do(x, x)) == bits(x * 2.0)
    assert do.replays == 4


# -- values that no operation takes ------------------------------------------------------------------------------------
RECORD = numpy.dtype([("rate", "f4")])
BY_VALUE: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int], Any]]] = {
    "a text": (lambda x, m: x.sum() if m == "sum" else x.mean(), lambda i: numpy.array(["sum", "avg"])[i]),
    "bytes": (lambda x, m: x.sum() if m == b"a" else x.mean(), lambda i: numpy.array([b"a", b"b"])[i]),
    "an array of text": (lambda x, m: x * {"a": 1.0, "b": 2.0}[str(m[0])], lambda i: numpy.array(["ab"[i]])),
    "texts of two lengths": (lambda x, m: x * float(len(str(m))), lambda i: numpy.str_("a" * (i + 1))),
    "a date": (lambda x, d: x * float(d.astype(int) % 7), lambda i: numpy.datetime64("2024-01-01") + i),
    "dates": (lambda x, d: x * float(d.astype(int)[0] % 7), lambda i: numpy.array(["2024-01-01"], "M8[D]") + i),
    "dates of two units": (lambda x, d: x * float(d.astype(int)), lambda i: numpy.array(1, ["m8[h]", "m8[m]"][i])[()]),
    "a record": (lambda x, r: x * float(r["rate"]), lambda i: numpy.array([(1.0,), (2.0,)], RECORD)[i]),
    "records": (lambda x, r: x * float(r["rate"][0]), lambda i: numpy.array([(1.0 + i,)], RECORD)),
}  # fmt: skip


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("name", BY_VALUE)
def test_text_dates_and_records_count_by_value(name: str, is_nested: bool) -> None:
    step, make = BY_VALUE[name]
    do = ag.capture((lambda b: step(b["x"], b["m"])) if is_nested else step)
    for i in range(20):
        args = _t(i), make(int(i >= 8))
        needed = step(*args)
        assert bits(do(*((OrderedDict(x=args[0], m=args[1]),) if is_nested else args))) == bits(needed), i
    assert do.replays == 4 + 10


@pytest.mark.parametrize("dtype", [">f4", "U3", "M8[D]"])
def test_a_dtype_that_is_no_single_object_fits_the_entry(dtype: str) -> None:
    do = ag.capture(lambda x, y: y * 2.0 if x.dtype.kind != "f" else ag.tensor(x) * y)
    for i in range(6):
        do(numpy.zeros(4, dtype), _t(i)[:, :4])
    assert do.replays == 2
    assert do._last.enter((numpy.zeros(4, numpy.dtype(dtype).str), _t(7)[:, :4])) is not None  # type: ignore[union-attr]
    for other in (numpy.zeros(4, "f8"), numpy.zeros(4, "U4"), numpy.ones(4).astype(dtype)[:3]):
        assert do._last.enter((other, _t(7)[:, :4])) is None  # type: ignore[union-attr]


# -- other values of integers ------------------------------------------------------------------------------------------
UNPROVED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int], Any]]] = {
    "the inverse of 1": (lambda x, n: x * (1.0 / int(n)), lambda i: numpy.int64(1 + i)),
    "a key without the number before": (lambda x, n: x * {1: 1.0, 3: 2.0}[int(n)], lambda i: numpy.int64((3, 1)[i])),
    "a shape": (lambda x, n: x.reshape((int(n), -1)).sum(1), lambda i: numpy.int64((4, 2)[i])),
    "the largest of equal lengths": (lambda x, n: x[:, : int(n.max())].sum(1), lambda i: numpy.full(4, (4, 2)[i])),
    "the sum of equal numbers": (lambda x, n: x * float(n.sum()), lambda i: numpy.full(3, 2 + i)),
    "the last of two": (lambda x, n: x * float(n[-1]), lambda i: numpy.array([1, i])),
    "a label that no recorded call has": (
        lambda x, n: x * (2.0 if n[0] == 1 else 3.0), lambda i: numpy.array([2 - i, 0, 2, 0, 0])),
    "the first of two": (lambda x, n: x * float(n[0]), lambda i: numpy.array([i, 1])),
    "the smallest": (lambda x, n: x * float(n.min()), lambda i: numpy.array([0 + i, 5, 2, 3])),
    "how many are not 0": (lambda x, n: x * float(numpy.count_nonzero(n)), lambda i: numpy.array([3, 1, 2 - 2 * i])),
    "whether all are equal": (lambda x, n: x * (2.0 if (n == n[0]).all() else 3.0), lambda i: numpy.array([3, 3 + i])),
    "whether a mask has none": (lambda x, m: x * (2.0 if m.any() else 3.0), lambda i: numpy.arange(4) < 4 - 4 * i),
    "whether an integer is 0": (lambda x, n: x if n else -x, lambda i: numpy.int64(3 - 3 * i)),
    "whether a number is 0": (lambda x, a: x if a else -x, lambda i: numpy.float32(1.5 - 1.5 * i)),
    "whether a number of no dimensions is 0": (lambda x, a: x * (a != 0), lambda i: numpy.array(2.0 - 2 * i)),
    "whether the last number is 0": (lambda x, a: x if a[-1] else -x, lambda i: numpy.array([1.5, 1.5 - 1.5 * i])),
    "the last of a mask": (lambda x, m: x * (2.0 if m[-1] else 3.0), lambda i: numpy.arange(4) < 4 - i),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPROVED)
def test_a_number_that_python_computes_from_integers_is_refused(name: str) -> None:
    step, make = UNPROVED[name]
    do = ag.capture(step)
    with pytest.raises(CaptureError, match="with other values of (its )?arguments"):
        for i in range(9):
            args = ag.tensor(_x(i, 4, 4)), make(int(i >= 6))
            assert bits(do(*args)) == bits(step(*args)), "silently wrong"


@pytest.mark.parametrize(
    "flat", [[3, 1, 2], [0, 1], [5, 5, 5], [1], [0], [2], [-1, -1], [-100, 2, 0, 1], [255, 255], [7, 0, 7]]
)
def test_other_integers_are_of_the_range(flat: list[int]) -> None:
    given = numpy.array(flat, "uint8" if min(flat) >= 0 else "int8")
    others = [Form((given,)).other(seed, True).arrays[0] for seed in range(3)]
    assert all(other.dtype == given.dtype and (other != given).any() for other in others)
    for of in (numpy.sum, lambda x: x[0], lambda x: x[-1]):
        assert any(of(other) != of(given) for other in others), of
    if len({*flat}) > 1:
        low, high = min(*flat, 0), max(flat)
        assert all(low <= other.min() and other.max() <= high for other in others)
        assert any(other.max() != high for other in others)
        assert low == 0 or all(low in other for other in others)  # the label of rows that are ignored


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [2, 2, 2, 2], [-100, 0, 1, 2], [-100, -100, 1, 3]])
def test_labels_and_indices_are_captured(labels: list[int]) -> None:
    table = ag.Parameter(_x(3, 4, 4))

    def step(x: Any, y: Any, i: Any) -> Any:
        return nn.cross_entropy(ag.tensor(x) @ table, y) + nn.embedding(i, table).sum()

    do = ag.capture(step)
    for i in range(10):
        y = numpy.roll(numpy.array(labels), i)
        args = _x(i, 4, 4), y, abs(y) % 4
        assert bits(do(*args)) == bits(step(*args))
    assert do.replays == 6


# -- what a refusal names ----------------------------------------------------------------------------------------------
class Scale:
    def loss(self, x: Any) -> Any:
        return (x * 2.0).sum()


SCALE = Scale()
RENEWED: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], str]] = {
    "a method": (lambda f, x: f(x), lambda i: (SCALE.loss, _t(i)), "argument 0 is another method .*make the method"),
    "a slice": (lambda x, s: x[s] * 2.0, lambda i: (_t(i), slice(0, i)), r"argument 1 was slice\(0, \d+, None\) and"),
    "a set": (lambda x, b: x * len(b["s"]), lambda i: (_t(i), {"s": frozenset([1])}), r"argument 1\['s'\] is another"),
    "a function": (lambda x, f: f(x), lambda i: (_t(i), lambda x: x * 2.0), "argument 1 is another function"),
    "a partial function": (
        lambda x, f: f(x), lambda i: (_t(i), functools.partial(ag.Tensor.sum, axis=0)), "argument 1 is another part"),
    "a parameter": (lambda p: p * 2.0, lambda i: (ag.Parameter(_x(i)),), "argument 0 is another Parameter .*make the"),
    "a number": (lambda x, k: x * k, lambda i: (_t(i), float(i)), r"argument 1 was \d+.0 and is \d+.0.*numpy.float64"),
    "a text": (lambda x, k: x * 2, lambda i: (_t(i), str(i)), r"argument 1 was '\d+' and is '\d+'.*fix: leave out"),
    "texts": (lambda x, k: x * 2, lambda i: (_t(i), numpy.array([f"{i:4}"])), "argument 1 has other values; .*leave"),
    "a shape": (lambda x: x * 2.0, lambda i: (ag.tensor(_x(i, 3, i + 1)),), "fix: pad the arguments"),
}  # fmt: skip


@pytest.mark.parametrize("name", RENEWED)
def test_a_refusal_names_what_is_another_one_in_each_call(name: str) -> None:
    step, make, text = RENEWED[name]
    do = ag.capture(step)
    with pytest.raises(CaptureError, match=f"(?s)recorded without a replay.*{text}"):
        for i in range(20):
            do(*make(i))


def test_slices_and_ranges_count_by_value() -> None:
    do = ag.capture(lambda x, s, r: sum(x[i] for i in r) + x[s].sum(), warmup=0)
    for i in range(12):
        n = 2 if i < 8 else 1
        found = do(_t(i), slice(0, n), range(n))
        assert bits(found) == bits(sum(_t(i)[k] for k in range(n)) + _t(i)[:n].sum())
    assert do.replays == 8


def test_a_step_that_is_refused_in_each_call_names_the_cause_to_the_end() -> None:
    do = ag.capture(lambda x: float(ag.tensor(x).sum()), warmup=0)
    for i in range(20):
        with pytest.raises(CaptureError, match=r"float made plain data of a value(?s:.)*fix: operations on the Tensor"):
            do(_x(i))


# -- powers of integers ------------------------------------------------------------------------------------------------
def test_a_power_of_integers_raises_the_error_of_the_step() -> None:
    def step(x: Any, y: Any) -> Any:
        return ag.tensor(x) ** ag.tensor(y)

    do, exponents = ag.capture(step), numpy.arange(20).reshape(5, 4)
    for i in range(14):
        x = (_x(i) * 50).astype("int64")
        if i in (7, 10, 11, 12):
            with pytest.raises(ag.errors.ShapeError, match="negative integer powers"):
                do(x, exponents - 1)
        else:
            assert bits(do(x, exponents)) == bits(step(x, exponents)), i


@pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")
def test_the_loop_of_a_power_of_integers_is_not_called_without_python() -> None:
    with pytest.raises(Unsupported, match="an error of Python"):
        ufunc_row(numpy.power, (4,), [Pointer("i8", (8,))] * 3)
    ufunc_row(numpy.power, (4,), [Pointer("u8", (8,))] * 3)
    ufunc_row(numpy.power, (4,), [Pointer("f8", (8,))] * 3)
