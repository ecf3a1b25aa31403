"""Tables of inner loops: a row has the bits of its call, what a loop cannot do is no row, and faults are seen."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

import autograd as ag
from autograd import kernels, nn, optim
from autograd.errors import ShapeError
from autograd.transforms import replay
from autograd.transforms import table as file
from autograd.transforms.lowering import Gradients
from autograd.transforms.table import Table
from tests.autograd.transforms.test_capture import mlp

pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(kernels.walker() is None, reason="RINGTAPE_COMPILED=0, or another processor")

F32 = np.dtype(np.float32)


class Empty:
    """A lowering without calls."""

    inputs = ()

    def __init__(self, *values: Any):
        self.gradients = Gradients([], values, 0, [])

    def in_order(self) -> Any:
        return iter(())


def drawn(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def bits_of(*arrays: Any) -> list[bytes]:
    return [x.tobytes() for x in arrays]


def walked(function: Any, *args: Any) -> bool:
    """Whether a call whose last argument is the output is a row; then it must have the bits of the call, twice."""
    table: Any = Table(Empty(), [])  # type: ignore[arg-type]
    rows, outputs = table._rows_of([(function, args, None, False)])
    if not rows:
        return False
    walk, *numbers = table.walk(rows)
    out = args[-1]
    for seed in (1, 2):
        for x in args:
            x[...] = drawn(*x.shape, seed=seed)
        before = out.copy()
        function(*args)
        needed = out.copy()
        out[...] = before
        assert walk(*numbers, 0) == 0
        assert bits_of(out) == bits_of(needed)
    assert [x is out for x in outputs] == [True]
    return True


def cut(x: Any, *key: Any) -> Any:
    return x[key]


X = drawn(6, 10)
ELEMENTWISE: dict[str, tuple[bool, Any]] = {
    "one dimension": (True, lambda: (np.add, drawn(7), drawn(7), drawn(7))),
    "float64": (True, lambda: (np.divide, drawn(3, 5, dtype="d"), drawn(3, 5, dtype="d"), drawn(3, 5, dtype="d"))),
    "rows": (True, lambda: (np.add, drawn(5, 7), drawn(7), drawn(5, 7))),
    "columns": (True, lambda: (np.multiply, drawn(5, 7), drawn(5, 1), drawn(5, 7))),
    "dimensions that merge": (True, lambda: (np.multiply, drawn(2, 3, 4, 5), drawn(4, 5), drawn(2, 3, 4, 5))),
    "a number": (True, lambda: (np.arctan2, drawn(5, 7), drawn(), drawn(5, 7))),
    "numbers": (True, lambda: (np.divide, drawn(), drawn(), drawn())),
    "a transpose": (True, lambda: (np.subtract, drawn(7, 5).T, drawn(5, 7), drawn(5, 7))),
    "strides": (True, lambda: (np.exp, cut(drawn(6, 10), slice(None), slice(0, 10, 3)), drawn(6, 4))),
    "backwards": (True, lambda: (np.tanh, cut(drawn(9), slice(None, None, -1)), drawn(9))),
    "long": (True, lambda: (np.exp, drawn(10_001), drawn(10_001))),
    "three loops": (False, lambda: (np.add, drawn(3, 4, 5).transpose(2, 1, 0), drawn(5, 4, 3), drawn(5, 4, 3))),
    "other dtypes": (False, lambda: (np.add, drawn(5), drawn(5, dtype="d"), drawn(5, dtype="d"))),
    "other bytes": (False, lambda: (np.add, drawn(5).astype(">f4"), drawn(5).astype(">f4"), drawn(5).astype(">f4"))),
    "unaligned": (False, lambda: (np.exp, np.zeros(21, "u1")[1:].view("f4"), drawn(5))),
    "empty": (False, lambda: (np.add, drawn(0, 3), drawn(3), drawn(0, 3))),
    "a reduction": (False, lambda: (np.add.reduce, drawn(3, 3), drawn(3))),
    "two results": (False, lambda: (np.modf, drawn(3), drawn(3), drawn(3))),
}


@pytest.mark.parametrize("case", ELEMENTWISE)
def test_elementwise(case: str) -> None:
    expected, make = ELEMENTWISE[case]
    assert walked(*make()) == expected


def test_an_output_may_be_an_input_but_not_overlap_it() -> None:
    x, y = drawn(10), drawn(10)
    assert walked(np.add, x, y, x)
    assert walked(np.add, y, x, x)
    assert not walked(np.add, x[:-1], y[:-1], x[1:])
    assert not walked(np.add, x[::-1], y, x)
    assert not walked(np.multiply, x, x[:1].reshape(()), x)
    m = drawn(4, 4)
    assert not walked(np.add, m.T, m, m)
    assert not walked(m.dot, drawn(4, 4), m)
    m.flags.writeable = False
    table: Any = Table(Empty(), [])  # type: ignore[arg-type]
    assert not table._rows_of([(np.add, (m, m, m), None, False)])[0]


def test_without_the_check_an_overlap_gives_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_check", lambda *args, **words: None)
    m = drawn(4, 4)
    with pytest.raises(AssertionError):
        assert not walked(np.add, m.T, m, m)


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("shape", [(32, 64, 64), (5, 7, 3), (1, 9, 4), (33, 10, 64), (40, 200, 31)], ids=str)
def test_products(shape: tuple[int, int, int], dtype: str) -> None:
    m, k, n = shape
    table: Any = Table(Empty(), [])  # type: ignore[arg-type]
    for a in (drawn(m, k, dtype=dtype), drawn(k, m, dtype=dtype).T, drawn(k, dtype=dtype)):
        for b in (drawn(k, n, dtype=dtype), drawn(n, k, dtype=dtype).T, drawn(k, dtype=dtype)):
            out = np.empty(a.shape[:-1] + b.shape[1:], dtype)
            rows, _ = table._rows_of([(a.dot, (b, out), None, False)])
            if not rows:  # the BLAS of this machine adds in another order
                continue
            walk, *numbers = table.walk(rows)
            b += 1
            walk(*numbers, 0)
            assert bits_of(out) == bits_of(a.dot(b))


@pytest.mark.parametrize("name", [
    "relu_backward", "relu_backward_in_place", "bias", "bias_relu", "transpose", "momentum",
])  # fmt: skip
def test_compiled_loops(name: str) -> None:
    loop = kernels.loop(name, F32)
    shapes: dict[str, Any] = {
        "relu_backward": [(9,)] * 3, "relu_backward_in_place": [(9,)] * 2, "bias": [(4, 5), (5,)],
        "bias_relu": [(4, 5), (5,)],
        "transpose": [(4, 5), (5, 4)], "momentum": [(9,), (9,), (9,), (), ()],
    }  # fmt: skip
    arrays = [drawn(*shape, seed=k) for k, shape in enumerate(shapes[name])]
    others = [x.copy() for x in arrays]
    table: Any = Table(Empty(), [])  # type: ignore[arg-type]
    rows, _ = table._rows_of([(loop, arrays, None, False)])
    walk, *numbers = table.walk(rows)
    assert walk(*numbers, 0) == 0
    loop(*[x if x.ndim else x[()] for x in others])
    assert bits_of(*arrays) == bits_of(*others)
    assert not table._rows_of([(loop, [arrays[0].astype("d"), *arrays[1:]], None, False)])[0]


@pytest.mark.parametrize("dtype", ["f", "d"])
def test_a_bias_and_a_relu_in_one_pass_have_the_same_bits(dtype: str) -> None:
    odd = [0.0, -0.0, 1.0, -1.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45]
    x, b = np.array([odd] * 10, dtype), np.array(odd, dtype)
    x = np.ascontiguousarray(x.T)
    with np.errstate(all="ignore"):
        needed = np.maximum(x + b, np.zeros((), dtype))
    kernels.loop("bias_relu", np.dtype(dtype))(x, b)  # type: ignore[misc]
    assert bits_of(x) == bits_of(needed)


def test_gradients_have_the_addresses_of_the_step() -> None:
    lowering: Any = Empty(drawn(3), drawn(2, 2))
    table: Any = Table(lowering, [])
    x = drawn(3)
    rows, _ = table._rows_of([(np.exp, (x, lowering.gradients.tokens[0]), None, False)])
    walk, *numbers = table.walk(rows)
    blocks = [np.zeros((), lowering.gradients.kind) for _ in range(3)]
    for k, block in enumerate(blocks):
        x[...] = k
        walk(*numbers, id(block))
    assert [bits_of(block["g0"]) for block in blocks] == [bits_of(np.exp(np.full(3, k, "f"))) for k in range(3)]
    assert not any(block["g1"].any() for block in blocks)


def test_a_loop_that_gives_up_ends_the_walk() -> None:
    loop, table = kernels.loop("cross_entropy", F32), Table(Empty(), [])  # type: ignore[arg-type]
    labels, after = np.array([0, 4]), drawn(3)
    calls = [(loop, (drawn(2, 4), labels, drawn(2), drawn(2, 4), drawn(2)), None, True),
             (np.exp, (after, after), None, False)]  # fmt: skip
    rows, _ = table._rows_of(calls)
    walk, *numbers = table.walk(rows)
    before = after.copy()
    assert walk(*numbers, 0) == -1 and bits_of(after) == bits_of(before)
    labels[1] = 3
    assert walk(*numbers, 0) == 0 and bits_of(after) == bits_of(np.exp(before))


def test_errors_of_floating_point_are_those_of_the_functions() -> None:
    walker = kernels.walker()
    big, zero, table = np.full(3, 3e38, "f"), np.zeros(3, "f"), Table(Empty(), [])  # type: ignore[arg-type]
    out = np.empty(3, "f")
    cases = [(np.multiply, (big, big, out), walker.OVERFLOW), (np.divide, (big, zero, out), walker.DIVISION),
             (np.divide, (zero, zero, out), walker.INVALID), (np.add, (zero, zero, out), 0)]  # fmt: skip
    of_product = [(big.dot, (big, np.empty((), "f")), None, False)]  # which NumPy does not tell of
    for function, args, flag in cases:
        rows = [*table._rows_of(of_product)[0], *table._rows_of([(function, args, None, False)])[0]]
        walk, *numbers = table.walk(rows)
        assert walk(*numbers, 0) == flag


# -- in a captured step ------------------------------------------------------------------------------------------------
def network(**options: Any) -> tuple[Any, Any]:
    """A training step of a network, and its model."""
    ag.random.seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = optim.SGD(model.parameters(), 0.1, **{"momentum": 0.9, **options})

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(model(x), y, reduction="sum") / len(y)
        tape.backward(loss)
        optimizer.step()
        return loss

    return step, model


def trained(captures: bool, steps: int = 9) -> tuple[list[Any], Any]:
    """The bits of losses, parameters and kept gradients after some steps, and the captured step."""
    step, model = network()
    do = ag.capture(step) if captures else step
    found, kept = [], []
    for k in range(steps):
        x, y = ag.tensor(drawn(20, 12, seed=k)), ag.tensor(np.random.default_rng(k).integers(0, 3, 20))
        found.append(bits_of(do(x, y).numpy()))
        kept.append([p.grad.array for p in model.parameters()])
    return [found, [bits_of(*each) for each in kept], bits_of(*(p.array for p in model.parameters()))], do


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tables that captured steps make from now on."""
    found: list[Any] = []

    class Listed(Table):
        def __init__(self, lowering: Any, inputs: Any):
            super().__init__(lowering, inputs)
            found.append((self, lowering))

    monkeypatch.setattr(replay, "Table", Listed)
    return found


def test_a_step_is_two_walks(tables: list[Any]) -> None:
    needed, _ = trained(False)
    found, do = trained(True)
    assert found == needed and do.replays == 5
    ((table, lowering),) = tables
    calls = [call for of in lowering.calls.values() for call in of or ()]
    assert {id(call) for call in calls} | {id(update) for update in lowering.updates.values()} == table.rows.keys()
    assert list(table.rows.values()).count([]) == 1  # the ReLU is made with the bias before it


def test_threads_have_tables_of_their_own() -> None:
    needed, _ = trained(False, steps=30)
    found: list[Any] = [None] * 3

    def run(k: int) -> None:
        found[k] = trained(True, steps=30)[0]

    threads = [threading.Thread(target=run, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [needed] * 3


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("labels", [ag.tensor, np.asarray], ids=["a Tensor", "an array"])
def test_losses_are_lowered(reduction: Any, labels: Any, tables: list[Any]) -> None:
    runs = []
    for captures in (False, True):
        ag.random.seed(0)
        model = nn.Linear(12, 5)
        optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = nn.cross_entropy(model(x), y, reduction=reduction)
                loss = loss.mean() if reduction == "none" else loss
            tape.backward(loss)
            optimizer.step()
            return loss

        do = ag.capture(step) if captures else step
        given = [(drawn(7, 12, seed=k), labels(np.random.default_rng(k).integers(0, 5, 7))) for k in range(8)]
        runs.append([bits_of(do(*each).numpy(), model.weight.grad.array, model.weight.array) for each in given])
    assert runs[0] == runs[1] and do.replays == 4
    ((_, lowering),) = tables
    assert len(lowering.updates) == 1  # so all gradients are lowered


def test_a_label_at_which_a_loop_gives_up_runs_the_step() -> None:
    steps = []
    for captures in (False, True):
        step, model = network()
        do = ag.capture(step) if captures else step
        found = []
        for k in range(8):
            labels = np.random.default_rng(k).integers(0, 3, 20)
            labels[3] = -100 if k == 6 else labels[3]  # a row that is ignored
            found.append(bits_of(do(ag.tensor(drawn(20, 12, seed=k)), ag.tensor(labels)).numpy()))
        steps.append((found, bits_of(*(p.array for p in model.parameters()))))
    assert steps[0] == steps[1] and do.replays == 3
    parameters = bits_of(*(p.array for p in model.parameters()))
    with pytest.raises(ShapeError, match="3 classes"):
        do(ag.tensor(drawn(20, 12)), ag.tensor(np.full(20, 7)))
    assert bits_of(*(p.array for p in model.parameters())) == parameters


def plant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the rows of tables."""
    real: Any = getattr(Table, "walk" if name == "stale gradients" else "_elementwise")

    def other_rows(self: Any, ufunc: Any, arrays: Any) -> Any:
        row = real(self, ufunc, arrays)
        if name == "stride":
            row["strides"][0] *= 2
        elif name == "pointer":
            row["pointers"][1] = row["pointers"][0]
        elif name == "length":
            row["dims"][0] //= 2
        elif name == "count":
            row["count"] = 0
        return row

    def without_moves(self: Any, rows: Any) -> Any:
        walk, address, count, _, _ = real(self, rows)
        table = np.array(rows, kernels.walker().ROW)
        self._kept.append(table)
        return walk, table.ctypes.data, count, 0, 0

    if name == "stale gradients":
        monkeypatch.setattr(Table, "walk", without_moves)
    else:
        monkeypatch.setattr(Table, "_elementwise", other_rows)


@pytest.mark.parametrize("fault", ["stride", "pointer", "length", "count"])
def test_a_wrong_row_is_not_used(fault: str, tables: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    needed, _ = trained(False)
    plant(fault, monkeypatch)
    found, do = trained(True)
    assert found == needed and do.replays == 5
    ((table, lowering),) = tables
    ufuncs = [call for of in lowering.calls.values() for call in of or () if isinstance(call[0], np.ufunc)]
    assert any(id(call) not in table.rows for call in ufuncs)


def test_stale_gradients_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    needed, _ = trained(False)
    plant("stale gradients", monkeypatch)
    found, _ = trained(True)
    assert found[1] != needed[1]


def test_without_the_form_of_loops_the_calls_are_made(tables: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    needed, _ = trained(False)
    monkeypatch.setattr(file, "_CAPSULE", b"numpy_9.99_ufunc_call_info")
    found, do = trained(True)
    assert found == needed and do.replays == 5
    ((table, lowering),) = tables
    assert all(id(call) not in table.rows for of in lowering.calls.values() for call in of or ()
               if isinstance(call[0], np.ufunc) and call[0] is not np.maximum and call[0] is not np.add)  # fmt: skip


def test_without_a_walk_the_calls_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for captures in (False, True):
        step, model = mlp(784, 128, 10)  # large enough that the gradient of a weight is computed in parts
        do = ag.capture(step) if captures else step
        if captures:
            monkeypatch.setattr(kernels, "walker", lambda: None)
        losses = [bits_of(do().numpy()) for _ in range(9)]
        found.append((losses, bits_of(*(p.grad.array for p in model.parameters()))))
    assert found[0] == found[1] and do.replays == 5


@pytest.mark.parametrize("kind", ["divide", "over", "invalid"])
def test_errors_are_told_as_numpy_is_told_to(kind: str) -> None:
    @ag.capture
    def step(x: Any) -> Any:
        y = ag.tensor(x)
        return 1 / y + y if kind == "divide" else ag.ops.exp(y * 1.0) if kind == "over" else ag.ops.log(y - 0.5)

    for k in range(6):
        step(drawn(4, seed=k) ** 2 + 1)
    assert step.replays == 2
    bad = {"divide": 0.0, "over": 1e4, "invalid": -1.0}[kind]
    x = np.full(4, bad, "f")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        step(x)
    with np.errstate(**{kind: "warn"}), pytest.warns(RuntimeWarning):  # type: ignore[call-overload]
        step(x)
    assert step.replays == 4
    with np.errstate(**{kind: "raise"}), pytest.raises(FloatingPointError):  # type: ignore[call-overload]
        step(x)
    assert step.replays == 4  # the step itself has raised it
