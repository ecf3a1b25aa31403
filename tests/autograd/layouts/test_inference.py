"""The layout of every local operation's result: the table "Local operations, per axis" as tests, on one process.

Labels are known without communication, so a mesh of size-1 axes shows every misuse. What must be seen on several ranks
(uneven extents, offsets) runs on threads at the end.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import ops
from autograd.engine.primitive import registry
from autograd.layouts.layout import dual_label
from autograd.layouts.rank_values import LocalCount, RankFloat, RankInt
from autograd.ops.nn.unfold import windows
from collectives import C, I, P, R, Rooted, Shard, V

from ...proofs import operations
from ...proofs.operations import CASES, WITHOUT_DERIVATIVE
from ...tables import each

REFUSED = "refused"
NUMBER = "a number"
Label = Any


@pytest.fixture(autouse=True)
def mesh() -> Iterator[cc.Mesh]:
    with cc.Mesh(tp=1) as found:
        yield found


def value(label: Label, shape: tuple[int, ...] = (4, 4), dtype: Any = float, requires_grad: bool = True) -> Any:
    """A tensor with one label on the axis "tp"; a number, or a constant, where that is the label."""
    if label is NUMBER:
        return 2.0
    array = numpy.random.default_rng(len(shape)).uniform(0.5, 1.5, shape).astype(dtype)
    if label is C:
        return ag.constant(array)
    whole = shape if isinstance(label, Shard) else None
    return ag.tensor(array, {"tp": label}, requires_grad=requires_grad and array.dtype.kind == "f", global_shape=whole)


FIX = re.compile(r"(?:fix: |or:  )(\w+)\((\w+|operand \d+), (.*?)\)(?:   \(|$)", re.MULTILINE)


LABELLED = re.compile(r"ag\.tensor\((\w+), layout=\{[^}]*\}\), ")


def follow(text: str, operands: list[Any], names: list[str]) -> list[Any]:
    """The operands with the error's own fix applied to the one that it names: its text is evaluated as it stands."""
    found = FIX.search(LABELLED.sub(r"\1, ", text))  # a constant with a label is followed as the constant
    assert found, f"no fix that can be followed:\n{text}"
    function, name, rest = found.groups()
    i = names.index(name)
    x = operands[i] if isinstance(operands[i], ag.Tensor) else ag.constant(numpy.array(operands[i]))
    call = f"cc.{function}(x, {rest})".replace("dim=...", "dim=0")
    fixed = list(operands)
    fixed[i] = eval(call, {"cc": cc, "x": x, "R": R, "I": I, "P": P, "V": V})
    assert not numpy.isnan(fixed[i].local).any()
    return fixed


@pytest.fixture(autouse=True)
def operation_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors name operands as the operation does, not as the variables of this file."""
    for module in ("names", "refusals", "texts"):
        monkeypatch.setattr(f"autograd.layouts.{module}.name_of", lambda x, default, *place: default)


def check(f: Callable[..., Any], operands: list[Any], labels: list[Label], expected: Label, operation: str) -> None:
    """The result's label; or an error with everything that it must say, and fixes that lead to a working program."""
    primitive = registry[operation]
    names = [primitive.operand_name(i) for i in range(len(operands))]
    if expected is not REFUSED:
        y = f(*operands)
        assert y.layout["tp"] == expected
        assert type(y.layout["tp"]) is type(expected)
        gradients_are_dual(f, operands)
        return
    with pytest.raises(ag.LayoutError) as error:
        f(*operands)
    text = str(error.value)
    assert f"{operation}(" in text.splitlines()[0]
    assert "axis 'tp'" in text
    assert "test_inference.py:" in text
    for name, label in zip(names, labels, strict=True):
        shown = next(part for part in text.splitlines()[0].split(f"{name}: ", 1)[1:])
        assert f"{{tp: {C if label is NUMBER else label}}}" in shown, f"{name}'s label is not shown"
    reason = text.splitlines()[1]
    assert any(name in reason for name in names), "no operand is named"
    for _ in range(4):  # a fix at a time, as a user would
        operands = follow(text, operands, names)
        try:
            f(*operands)
            return
        except ag.LayoutError as again:
            text = str(again)
    raise AssertionError(f"following the fixes does not lead to a working program; the last error:\n{text}")


def gradients_are_dual(f: Callable[..., Any], operands: list[Any]) -> None:
    """Every rule gives a cotangent of its operand's dual layout, plain and recorded."""
    leaves = [x for x in operands if isinstance(x, ag.Tensor) and x.requires_grad]
    if not leaves:
        return
    with ag.Tape() as outer:
        with ag.Tape() as tape:
            y = f(*operands)
        if y.tape is None:
            return
        ct = ag.tensor(numpy.ones(y.shape), y.layout.dual)
        tape.backward(y, ct, retain=True)
        recorded = tape.backward(y, ct, wanted=[], retain=True, record=True)
        assert recorded == []
    for x in leaves:
        if x.grad is None:
            continue
        assert x.grad.layout is x.layout.dual
        assert x.grad.layout["tp"] == dual_label(x.layout["tp"])
    assert outer.recording is tape.recording


# -- the table -------------------------------------------------------------------------------------------------------

SAME: list[tuple[Label, Label, Label]] = [
    (R, R, R), (I, I, I), (V, V, V), (R, V, V), (V, R, V),
    (R, C, R), (C, R, R), (I, C, I), (C, I, I), (V, C, V), (C, V, V), (C, C, C),
    (R, NUMBER, R), (NUMBER, R, R), (I, NUMBER, I), (NUMBER, I, I), (V, NUMBER, V), (NUMBER, V, V),
    (I, R, REFUSED), (R, I, REFUSED), (I, V, REFUSED), (V, I, REFUSED), (I, P, REFUSED), (P, I, REFUSED),
    (V, P, REFUSED), (P, V, REFUSED),
]  # fmt: skip
LINEAR = [*SAME, (P, P, P), (P, R, REFUSED), (R, P, REFUSED), (P, C, REFUSED), (C, P, REFUSED), (P, NUMBER, REFUSED),
          (NUMBER, P, REFUSED)]  # fmt: skip
MULTILINEAR = [*SAME, (P, P, REFUSED), (P, R, P), (R, P, P), (P, C, P), (C, P, P)]
NUMERIC = [(P, NUMBER, P), (NUMBER, P, P)]
DIVIDE = [*SAME, (P, P, REFUSED), (P, R, P), (R, P, REFUSED), (P, C, P), (C, P, REFUSED), (P, NUMBER, P),
          (NUMBER, P, REFUSED)]  # fmt: skip
NONLINEAR = [*SAME, (P, P, REFUSED), (P, R, REFUSED), (R, P, REFUSED), (P, C, REFUSED), (C, P, REFUSED),
             (P, NUMBER, REFUSED), (NUMBER, P, REFUSED)]  # fmt: skip

TABLE: list[tuple[str, Label, Label, Label]] = [
    *(("add", *row) for row in LINEAR),
    *(("subtract", *row) for row in LINEAR),
    *(("multiply", *row) for row in [*MULTILINEAR, *NUMERIC]),
    *(("matmul", *row) for row in MULTILINEAR if NUMBER not in row),
    *(("divide", *row) for row in DIVIDE),
    *(("power", *row) for row in NONLINEAR),
    *(("maximum", *row) for row in NONLINEAR),
    *(("minimum", *row) for row in NONLINEAR),
]


@each(TABLE, lambda row: row[0])
def test_two_operands(row: tuple[str, Label, Label, Label]) -> None:
    operation, left, right, expected = row
    check(registry[operation], [value(left), value(right)], [left, right], expected, operation)


@pytest.mark.parametrize("left, right, expected", [row for row in LINEAR if NUMBER not in row])
def test_concatenate(left: Label, right: Label, expected: Label) -> None:
    check(lambda a, b: np.concatenate([a, b]), [value(left), value(right)], [left, right], expected, "concatenate")


_TWO_OF_FOUR = (tuple(windows("test", (4,), 2)), 1)
CONVOLUTIONS: dict[str, Callable[..., Any]] = {  # of x [2, 2, 4], w [4, 2, 2] and y [2, 4, 3], two of the three
    "convolution": lambda a, b: ops.convolution(a.reshape(2, 2, 4), b.reshape(4, 2, 2)),
    "convolution_input": lambda a, b: registry["convolution_input"](
        ops.concatenate([a.reshape(2, 4, 2)] * 2, 2)[:, :, :3], b.reshape(4, 2, 2), options=_TWO_OF_FOUR),
    "convolution_weight": lambda a, b: registry["convolution_weight"](
        ops.concatenate([a.reshape(2, 4, 2)] * 2, 2)[:, :, :3], b.reshape(2, 2, 4), options=_TWO_OF_FOUR),
}


@pytest.mark.parametrize("operation", CONVOLUTIONS)
@pytest.mark.parametrize("left, right, expected", [row for row in MULTILINEAR if NUMBER not in row])
def test_convolutions(operation: str, left: Label, right: Label, expected: Label) -> None:
    check(CONVOLUTIONS[operation], [value(left), value(right)], [left, right], expected, operation)


_COUNTS = numpy.array([1, 3])
GROUPED: dict[str, Callable[..., Any]] = {  # of x [4, 2], and weight [2, 2, 4] or y [4, 4]
    "grouped_matmul": lambda a, b: ops.grouped_linear(a[:, :2], b.reshape(2, 2, 4), None, ag.constant(_COUNTS)),
    "grouped_outer": lambda a, b: registry["grouped_outer"](a[:, :2], b, ag.constant(_COUNTS)),
}


@pytest.mark.parametrize("operation", GROUPED)
@pytest.mark.parametrize("left, right, expected", [row for row in MULTILINEAR if NUMBER not in row])
def test_grouped_products(operation: str, left: Label, right: Label, expected: Label) -> None:
    check(GROUPED[operation], [value(left), value(right)], [left, right], expected, operation)


@pytest.mark.parametrize("label", [R, I, V, C, Rooted(0)])
def test_grouped_linear(label: Label) -> None:
    def layer(x: Any) -> Any:
        return ops.grouped_linear(x[:, :2], x.reshape(2, 2, 4), x[:2], ag.constant(_COUNTS))

    check(layer, [value(label)], [label], label, "grouped_linear")


def test_grouped_linear_of_rows_and_counts_that_differ() -> None:
    """Each rank groups its own rows: the weight's cotangent is then an addend."""
    x, weight, bias = value(V), value(R).reshape(2, 4, 2), value(R)[:2, :2]
    y = ops.grouped_linear(x, weight, bias, ag.tensor(_COUNTS, {"tp": V}))
    assert y.layout["tp"] is V
    with pytest.raises(ag.LayoutError, match="Varying"):
        ops.grouped_linear(value(I), value(I).reshape(2, 4, 2), None, _COUNTS)


_TWO_BY_TWO = (tuple(windows("test", (4,), 2, 2)),)
_IMAGES = ag.constant(numpy.array([[[0.0, 1.0, 1.0, 1.0]] * 2] * 2))
UNARY_LINEAR: dict[str, Callable[..., Any]] = {
    "negative": lambda x: -x,
    "astype": lambda x: x.astype("float32"),
    "getitem": lambda x: x[1:],
    "put": lambda x: ops.indexing.put(x, options=((slice(0, 4),), (6, 4))),
    "reshape": lambda x: x.reshape(2, 8),
    "transpose": lambda x: x.T,
    "broadcast_to": lambda x: np.broadcast_to(x, (3, 4, 4)),
    "expand_dims": lambda x: np.expand_dims(x, 0),
    "squeeze": lambda x: np.squeeze(ops.sum(x, 0, keepdims=True), 0),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(axis=0),
    "take_rows": lambda x: ops.take_rows(x, ag.constant([0, 2, 2])),
    "add_rows": lambda x: registry["add_rows"](x, ag.constant([0, 2, 2, 1]), options=(5,)),
    "take_own_rows": lambda x: registry["take_own_rows"](x, ag.constant([0, -1, 2])),
    "add_own_rows": lambda x: registry["add_own_rows"](x, ag.constant([0, -1, 2, 1]), options=(5,)),
    "unfold": lambda x: registry["unfold"](x.reshape(2, 2, 4), options=(tuple(windows("test", (4,), 2)),)),
    "fold": lambda x: registry["fold"](x.reshape(2, 2, 2, 2), options=(tuple(windows("test", (3,), 2)),)),
    "max_pool_tangent": lambda x: registry["max_pool_tangent"](x.reshape(2, 2, 4), _IMAGES, options=_TWO_BY_TWO),
    "max_pool_cotangent": lambda x: registry["max_pool_cotangent"](
        x[:2].reshape(2, 2, 2), _IMAGES, options=_TWO_BY_TWO),
}  # fmt: skip
UNARY_NONLINEAR: dict[str, Callable[..., Any]] = {
    **{name: registry[name] for name in (
        "exp", "expm1", "log", "log1p", "sqrt", "square", "reciprocal", "sin", "cos", "tanh", "sign", "absolute",
        "sigmoid", "relu", "softplus")},
    "softmax": ops.softmax,
    "logsumexp": ops.logsumexp,
    "log_softmax": ops.log_softmax,
    "gelu": ops.gelu,
    "silu": ops.silu,
    "normal_cdf": registry["normal_cdf"],
    "normalize": ops.layer_norm,
    "self_attention": lambda x: ops.self_attention(np.broadcast_to(np.reshape(x, (4, 1, 2, 2)), (4, 3, 2, 2))),
    "max": np.max,
    "min": np.min,
    "max_pool": lambda x: ops.max_pool(x.reshape(2, 2, 4), 2),
}  # fmt: skip
TWO_OPERANDS = {"add", "subtract", "multiply", "matmul", "divide", "power", "maximum", "minimum", "concatenate",
                "where", "cross_entropy", "cross_entropy_sum", "class_terms", "linear", "convolution",
                "convolution_input", "convolution_weight", "grouped_linear", "grouped_matmul", "grouped_outer",
                # of these see test_fused.py
                "layer_norm", "rms_norm", "attention", "masked_attention", "masked_self_attention", "rotary",
                "smoothed_cross_entropy"}  # fmt: skip


@each(itertools.product(UNARY_LINEAR, [R, I, V, P, C, Rooted(0)]), lambda pair: pair[1])
def test_linear_operations_keep_every_label(operation_and_label: tuple[str, Label]) -> None:
    operation, label = operation_and_label
    check(UNARY_LINEAR[operation], [value(label)], [label], label, operation)


@each(itertools.product(UNARY_NONLINEAR, [R, I, V, P, C, Rooted(0)]), lambda pair: pair[1])
def test_nonlinear_operations_refuse_partial(operation_and_label: tuple[str, Label]) -> None:
    operation, label = operation_and_label
    check(UNARY_NONLINEAR[operation], [value(label)], [label], REFUSED if label is P else label, operation)


# Operations that need no shapes of their own: one of their cases is run on every label.
_BY_HAND = {*UNARY_LINEAR, *UNARY_NONLINEAR, *TWO_OPERANDS}
FROM_CASES: dict[str, Any] = {}
for _case in CASES:
    if _case.operation not in _BY_HAND and "host array" not in _case.label and all(a.size for a in _case.draw()):
        FROM_CASES.setdefault(_case.operation, _case)


@each(itertools.product(FROM_CASES, [R, I, V, P, C, Rooted(0)]), lambda pair: pair[1])
def test_labels_go_through_every_other_operation(operation_and_label: tuple[str, Label]) -> None:
    """A label that all operands have is the result's; Partial only where the word says that it is linear."""
    operation, label = operation_and_label
    c, word = FROM_CASES[operation], registry[operation].words
    jointly = len(set(word)) == 1 and word[0] == "a"
    arrays = c.draw()
    if label is C:
        operands = [ag.constant(a) for a in arrays]
    else:
        operands = [ag.tensor(a, {"tp": label}, requires_grad=True) for a in arrays]
    if label is not P or jointly:
        y = c.f(*operands)
        assert y.layout["tp"] == label
        gradients_are_dual(c.f, operands)
        return
    with pytest.raises(ag.LayoutError) as error:
        c.f(*operands)
    place = re.search(r"\bat (\w+\.py):\d+", str(error.value))  # the line of the case, or of this test
    callers = {"test_inference.py", *(path.name for path in Path(operations.__file__).parent.glob("*.py"))}
    assert "axis 'tp'" in str(error.value) and place is not None and place[1] in callers


def test_every_operation_is_in_the_table() -> None:
    known = {*UNARY_LINEAR, *UNARY_NONLINEAR, *TWO_OPERANDS, *WITHOUT_DERIVATIVE, *FROM_CASES}
    missing = {name for name in registry if "example" not in name} - known
    assert not missing, f"operations that test_inference.py does not cover: {sorted(missing)}"


WITHOUT_CONSTANTS = [row for row in LINEAR if row[0] is not row[1] or row[0] is not C]


@each(itertools.product([R, I, C], WITHOUT_CONSTANTS), lambda pair: pair[0])
def test_where_with_a_condition_that_is_the_same_everywhere(given: tuple[Label, tuple[Label, Label, Label]]) -> None:
    condition, (left, right, expected) = given
    mask = value(condition, dtype=bool)
    check(np.where, [mask, value(left), value(right)], [condition, left, right], expected, "where")


@pytest.mark.parametrize("left, expected", [(R, V), (V, V), (C, V), (NUMBER, V), (I, REFUSED), (P, REFUSED)])
def test_where_with_a_condition_that_differs(left: Label, expected: Label) -> None:
    mask = value(V, dtype=bool)
    check(np.where, [mask, value(left), value(left)], [V, left, left], expected, "where")


@pytest.mark.parametrize("label", [R, I, V, C, P])
def test_cross_entropy(label: Label) -> None:
    labels = ag.constant(numpy.array([0, 1, 2, 3]))
    check(ops.cross_entropy, [value(label), labels], [label, C], REFUSED if label is P else label, "cross_entropy")


@pytest.mark.parametrize("labels", [R, I, V])
def test_cross_entropy_and_its_labels(labels: Label) -> None:
    t = ag.tensor(numpy.array([0, 1, 2, 3]), {"tp": labels})
    assert ops.cross_entropy(value(V), t).layout["tp"] is V
    assert ops.cross_entropy(value(R), t).layout["tp"] is (V if labels is V else R)
    if labels is V:
        with pytest.raises(ag.LayoutError, match=r"Invariant \(logits\) does not mix with Varying \(labels\)"):
            ops.cross_entropy(value(I), t)
    else:
        assert ops.cross_entropy(value(I), t).layout["tp"] is I


# -- the exact text --------------------------------------------------------------------------------------------------


def test_the_error_reads_like_the_design_says() -> None:
    x = ag.tensor(numpy.ones((8, 64), numpy.float32), {"tp": V})
    w = ag.Parameter(numpy.ones(64, numpy.float32))
    with pytest.raises(ag.LayoutError) as error:
        x * w
    first, second, third, fourth, last = str(error.value).splitlines()
    assert first == "multiply(x: f32[8,64] {tp: V}, y: f32[64] {tp: I})"
    assert second.startswith("  axis 'tp': Invariant (y) does not mix with Varying (x); y's gradient would miss")
    assert third == "  fix: cast(y, 'tp', to=R)   (free forward, all-reduce in backward)"
    assert fourth.startswith("  or:  y = ag.Parameter(y.numpy(), {'tp': V}), if it belongs to this rank alone")
    assert re.fullmatch(r"  at test_inference\.py:\d+", last)


def test_only_the_axis_that_is_wrong_is_named() -> None:
    with cc.Mesh(dp=1, tp=1):
        x = ag.tensor(numpy.ones((2, 2)), {"dp": V, "tp": R})
        w = ag.tensor(numpy.ones((2, 2)), {"dp": R, "tp": I})
        with pytest.raises(ag.LayoutError) as error:
            x @ w
        text = str(error.value)
        assert "axis 'tp'" in text and "axis 'dp'" not in text
        assert (x @ cc.cast(w, "tp", to=R)).layout == {"dp": V, "tp": R}


def test_axes_are_independent() -> None:
    with cc.Mesh(dp=1, tp=1):
        x = ag.tensor(numpy.ones((2, 2)), {"dp": P, "tp": V})
        w = ag.tensor(numpy.ones((2, 2)), {"dp": R, "tp": R})
        assert (x @ w).layout == {"dp": P, "tp": V}
        assert (-x).layout == {"dp": P, "tp": V}


# -- literals, constants, integers -----------------------------------------------------------------------------------


def test_a_literal_zero_may_be_added_to_partial() -> None:
    p = value(P)
    total = sum([p, p, p])
    assert total.layout["tp"] is P
    assert (0 + p).layout["tp"] is P
    assert (p + 0).layout["tp"] is P
    for number in (1, 0.5, True):
        with pytest.raises(ag.LayoutError, match="once per rank"):
            p + number
        with pytest.raises(ag.LayoutError, match="once per rank"):
            number + p


def test_numbers_and_numpy_scalars_are_constants_and_arrays_are_varying() -> None:
    i = value(I)
    for number in (2, 2.5, True, numpy.float64(2), numpy.array(2.0), numpy.int64(3)):
        assert (i * number).layout["tp"] is I
        assert (number * i).layout["tp"] is I
    with pytest.raises(ag.LayoutError, match=r"Invariant \(x\) does not mix with Varying \(y\)"):
        i * numpy.ones((4, 4))
    assert (i * ag.constant(numpy.ones((4, 4)))).layout["tp"] is I
    assert (value(R) * numpy.ones((4, 4))).layout["tp"] is V
    assert (value(R) * ag.constant(numpy.ones((4, 4)))).layout["tp"] is R


def test_a_constant_made_before_the_mesh_stays_constant() -> None:
    from autograd.engine.state import state

    before = state.grid
    state.grid = None
    c = ag.constant(numpy.ones((4, 4)))
    state.grid = before
    assert c.layout is None
    assert (value(I) * c).layout["tp"] is I


@pytest.mark.parametrize("dtype", [int, bool])
def test_integers_do_not_tell_replicated_from_invariant(dtype: Any) -> None:
    for label in (R, I):
        n = value(label, dtype=dtype)
        assert (value(R) * n).layout["tp"] is R
        assert (value(I) * n).layout["tp"] is I
        assert (value(V) * n).layout["tp"] is V
        assert (n + value(label, dtype=int)).layout["tp"] is C


def test_a_function_of_integers_is_constant_whatever_ran_before() -> None:
    n = value(I, dtype=int)
    for _ in range(2):
        assert np.exp(n).layout["tp"] is C
        np.exp(value(I))
        np.exp(value(R))
    assert (value(R) * np.exp(n)).layout["tp"] is R


def test_stop_gradient_makes_copies_constant() -> None:
    assert ops.stop_gradient(value(I)).layout["tp"] is C
    assert ops.stop_gradient(value(R)).layout["tp"] is C
    assert ops.stop_gradient(value(V)).layout["tp"] is V
    assert (value(R) * ops.stop_gradient(value(I))).layout["tp"] is R


def test_comparisons() -> None:
    assert (value(I) > value(I)).layout["tp"] is C
    assert (value(I) > value(R)).layout["tp"] is C
    assert (value(I) > value(V)).layout["tp"] is V
    with pytest.raises(ag.LayoutError, match="Partial"):
        _ = value(P) > 0
    assert np.argmax(value(R)).layout["tp"] is C


# -- first use -------------------------------------------------------------------------------------------------------


def test_first_use_labels_for_good() -> None:
    from autograd.engine.state import state

    before = state.grid
    state.grid = None
    w, a = ag.Parameter(numpy.ones((2, 2))), ag.tensor(numpy.ones(2))
    x = ag.tensor(numpy.ones((2, 2)), requires_grad=True)
    state.grid = before
    assert w.layout is None and x.layout is None
    assert (x * 2).layout["tp"] is V
    assert x.layout == {"tp": V}
    with pytest.raises(ag.LayoutError, match="Invariant"):
        x @ w
    assert w.layout == {"tp": I}
    assert (a * x).layout["tp"] is V
    assert ag.Parameter(numpy.ones(2)).layout == {"tp": I}
    assert ag.tensor(numpy.ones(2)).layout == {"tp": V}
    assert ag.tensor(numpy.ones(2), {"tp": R}).layout == {"tp": R}


def test_axes_that_are_not_named() -> None:
    with cc.Mesh(dp=1, tp=1):
        assert ag.Parameter(numpy.ones(2), {"tp": Shard(0)}).layout == {"dp": I, "tp": Shard(0)}
        assert ag.tensor(numpy.ones(2), {"tp": R}).layout == {"dp": V, "tp": R}


def test_labels_that_do_not_exist() -> None:
    with pytest.raises(ag.MeshError, match="'pp'.*'tp'"):
        ag.tensor(numpy.ones(2), {"pp": R})
    with pytest.raises(ag.LayoutError, match="'R' was given"):
        ag.tensor(numpy.ones(2), {"tp": "R"})
    with pytest.raises(ag.LayoutError, match="mapping"):
        ag.tensor(numpy.ones(2), R)
    with pytest.raises(ag.ShapeError, match=r"Shard\(2\)"):
        ag.tensor(numpy.ones(2), {"tp": Shard(2)})


# -- sharded dimensions ----------------------------------------------------------------------------------------------

S0, S1, S2 = Shard(0), Shard(1), Shard(2)


@pytest.mark.parametrize(
    "left, right, expected",
    [
        (R, S1, S1), (S0, R, S0), (S1, S0, P), (C, S1, S1),
        (S1, R, REFUSED), (R, S0, REFUSED), (S1, V, REFUSED), (V, S0, REFUSED), (S1, C, REFUSED), (S0, I, REFUSED),
        (I, S1, REFUSED), (S0, S1, REFUSED), (S0, S0, REFUSED), (S1, S1, REFUSED), (P, S1, REFUSED), (S0, P, REFUSED),
    ],
)  # fmt: skip
def test_matrix_products(left: Label, right: Label, expected: Label) -> None:
    check(registry["matmul"], [value(left), value(right)], [left, right], expected, "matmul")


def test_batched_products() -> None:
    x = value(S0, (3, 4, 5))
    assert (x @ value(R, (5, 2))).layout["tp"] == S0
    assert (x @ value(S0, (3, 5, 2))).layout["tp"] == S0
    assert (value(S1, (3, 4, 5)) @ value(R, (5, 2))).layout["tp"] == S1
    assert (value(S2, (3, 4, 5)) @ value(S1, (3, 5, 2))).layout["tp"] is P
    assert (value(S2, (3, 4, 5)) @ value(S0, (5,))).layout["tp"] is P
    assert (value(R, (5,)) @ value(S1, (5, 2))).layout["tp"] == S0
    assert (value(S0, (5,)) @ value(S0, (5,))).layout["tp"] is P
    with pytest.raises(ag.LayoutError, match="spans"):
        x @ value(R, (3, 5, 2))


@pytest.mark.parametrize("operation", ["add", "multiply", "divide", "maximum"])
@pytest.mark.parametrize(
    "left, right, expected",
    [
        (S0, S0, S0), (S1, S1, S1), (S0, V, S0), (V, S0, S0), (S0, NUMBER, S0),
        (S0, S1, REFUSED), (S0, R, REFUSED), (R, S0, REFUSED), (S0, I, REFUSED), (S0, P, REFUSED), (S0, C, REFUSED),
    ],
)  # fmt: skip
def test_elementwise_operations_on_parts(operation: str, left: Label, right: Label, expected: Label) -> None:
    check(registry[operation], [value(left), value(right)], [left, right], expected, operation)


def test_a_replicated_operand_that_does_not_span_the_sharded_dimension() -> None:
    x = value(S0, (4, 3))
    assert (x + value(R, (3,))).layout["tp"] == S0
    assert (x * value(R, (1, 3))).layout["tp"] == S0
    assert (x * value(R, ())).layout["tp"] == S0
    assert (value(S1, (4, 3)) + value(S0, (3,))).layout["tp"] == S1
    with pytest.raises(ag.LayoutError, match="spans dimension 0"):
        x + value(R, (4, 1))
    with pytest.raises(ag.LayoutError, match="Invariant"):
        x + value(I, (3,))


@pytest.mark.parametrize("f, x, expected", [
    (lambda x: x.sum(), S0, P), (lambda x: x.sum(axis=0), S0, P), (lambda x: x.sum(axis=1), S0, S0),
    (lambda x: x.sum(axis=0), S1, S0), (lambda x: x.sum(axis=0, keepdims=True), S1, S1),
    (lambda x: x.sum(axis=(0, 2)), S1, S0), (lambda x: x.sum(axis=(0, 1)), S1, P),
    (lambda x: x.mean(axis=1), S0, S0), (lambda x: x.max(axis=0), S1, S0), (lambda x: ops.softmax(x, 0), S1, S1),
    (lambda x: ops.logsumexp(x, 0), S1, S0), (lambda x: ops.log_softmax(x, -1), S0, S0), (np.tanh, S1, S1),
    (lambda x: np.argmax(x, 1), S0, S0), (lambda x: -x, S2, S2),
    (lambda x: x.transpose(2, 0, 1), S0, S1), (lambda x: x.swapaxes(0, 2), S2, S0),
    (lambda x: np.moveaxis(x, 0, -1), S0, S2),
    (lambda x: x.reshape(4, 24), S0, S0), (lambda x: x.reshape(4, 24), S1, S1), (lambda x: x.reshape(24, 4), S0, S0),
    (lambda x: x.reshape(24, 4), S2, S1), (lambda x: x.reshape(2, 2, 6, 4), S0, S0),
    (lambda x: x.reshape(4, 2, 3, 4), S1, S1),
    (lambda x: x.reshape(96), S0, S0), (lambda x: np.expand_dims(x, 0), S0, S1),
    (lambda x: np.expand_dims(x, 1), S0, S0), (lambda x: np.squeeze(x[:, :1], 1), S2, S1),
    (lambda x: x[:, 1], S0, S0), (lambda x: x[:, 1:3], S0, S0), (lambda x: x[1], S1, S0), (lambda x: x[..., 0], S0, S0),
    (lambda x: x[None], S0, S1), (lambda x: x[:, :, numpy.array([0, 0])], S1, S1),
    (lambda x: np.broadcast_to(x, (2, 4, 6, 4)), S0, S1), (lambda x: np.concatenate([x, x], 1), S0, S0),
    (lambda x: np.stack([x, x]), S0, S1), (lambda x: x.astype("float32"), S1, S1),
])  # fmt: skip
def test_what_a_part_becomes(f: Callable[..., Any], x: Label, expected: Label) -> None:
    operand = value(x, (4, 6, 4))
    y = f(operand)
    assert y.layout["tp"] == expected
    assert type(y.layout["tp"]) is type(expected)
    if isinstance(expected, Shard):
        assert y.layout["tp"].extent == y.array.shape[expected.dim]
        assert y.global_shape == y.array.shape
    gradients_are_dual(f, [operand])


@pytest.mark.parametrize("f, x", [
    (lambda x: x.max(axis=0), S0), (lambda x: x.min(), S1),
    (lambda x: ops.softmax(x, 0), S0), (ops.softmax, S2), (lambda x: ops.logsumexp(x, 1), S1),
    (lambda x: ops.log_softmax(x, 1), S1), (np.argmax, S0), (lambda x: np.argmax(x, 2), S2),
    (lambda x: x[0], S0), (lambda x: x[1:], S0), (lambda x: x[::-1], S0), (lambda x: x[:, 0], S1),
    (lambda x: x[numpy.array([0, 1])], S0), (lambda x: x[numpy.array([True, False, True, False])], S0),
    (lambda x: np.concatenate([x, x]), S0), (lambda x: x.reshape(24, 4), S1), (lambda x: x.reshape(96), S1),
    (lambda x: x.reshape(3, 8, 4), S1),
    (lambda x: x[:, numpy.array([0, 1]), numpy.array([0, 1])], S0),
])  # fmt: skip
def test_what_a_part_does_not_allow(f: Callable[..., Any], x: Label) -> None:
    with pytest.raises(ag.LayoutError) as error:
        f(value(x, (4, 6, 4)))
    text = str(error.value)
    assert "axis 'tp'" in text and repr(x) in text and "fix: " in text and "test_inference.py:" in text
    f(cc.all_gather(value(x, (4, 6, 4)), "tp", dim=x.dim))  # what the text offers


@each(itertools.product([R, I, V, P, S0, S1], [R, I, V, P, S0, S1], [R, I, V, P, S0]), lambda labels: labels[0])
def test_a_linear_layer_is_the_product_and_the_sum(labels: tuple[Label, Label, Label]) -> None:
    x, w, b = labels

    def outcome(f: Any) -> Any:
        operands = value(x), value(w), value(b, (4,))
        try:
            with ag.Tape():
                return f(*operands).layout["tp"]
        except ag.LayoutError:
            return "refused"

    assert outcome(ops.linear) == outcome(lambda x, w, b: x @ w + b)


@pytest.mark.parametrize("label", [R, I, V, P, C])
def test_terms_of_classes(label: Label) -> None:
    """Of the logits and the places of the labels among them, which are constants here."""
    places = ag.constant(numpy.array([1, -1, 2, 3]))

    def terms(x: Any) -> Any:
        return registry["class_terms"](x, places, options=(0.0, 7))

    check(terms, [value(label)], [label], REFUSED if label is P else label, "class_terms")


def test_the_sum_of_cross_entropy_over_sharded_rows_is_partial() -> None:
    rows, same = ag.tensor([1, 0, 2, 1], {"tp": Shard(0)}), ag.tensor([1, 0, 2, 1], {"tp": R})
    assert ops.cross_entropy(value(S0), rows, reduction="sum").layout["tp"] is P
    assert ops.cross_entropy(value(S0), numpy.array([1, 0, 2, 1]), reduction="sum").layout["tp"] is P
    with pytest.raises(ag.LayoutError, match="contraction is unmatched"):
        ops.cross_entropy(value(S0), same, reduction="sum")
    with pytest.raises(ag.LayoutError, match=r"the classes are Shard(.|\n)*fix: .*Vocabulary"):
        ops.cross_entropy(value(S1), same, reduction="sum")


def test_cross_entropy_over_sharded_classes_is_refused() -> None:
    labels = ag.constant(numpy.array([0, 1, 2, 3]))
    with pytest.raises(ag.LayoutError, match=r"the classes are Shard(.|\n)*fix: .*Vocabulary"):
        ops.cross_entropy(value(S1), labels)
    sharded = ag.tensor(numpy.array([0, 1, 2, 3]), {"tp": Shard(0)})
    assert ops.cross_entropy(value(S0), sharded).layout["tp"] == S0
    with pytest.raises(ag.LayoutError, match="spans"):
        ops.cross_entropy(value(S0), labels)


def test_gradient_of_a_parts_contraction_is_the_part() -> None:
    x, w = value(S1, (2, 4)), value(S0, (4, 3))
    with ag.Tape() as tape:
        y = cc.all_reduce(x @ w, "tp", to=I)
        loss = (y * y).sum()
    tape.backward(loss)
    assert x.grad.layout["tp"] == S1 and w.grad.layout["tp"] == S0


# -- numbers that differ between ranks -------------------------------------------------------------------------------


def test_a_rank_dependent_slice_of_copies_varies(mesh: cc.Mesh) -> None:
    rank = mesh.axis("tp").rank
    assert value(R)[rank * 2 :].layout["tp"] is V
    assert value(V)[rank * 2 :].layout["tp"] is V
    assert value(C)[rank].layout["tp"] is V
    assert value(R)[2:].layout["tp"] is R
    assert value(R)[:, 1 + rank].layout["tp"] is V
    for label, fix in ((I, "cast(x, 'tp', to=R)"), (P, "all_reduce(x, 'tp', to=R)")):
        with pytest.raises(ag.LayoutError) as error:
            value(label)[rank * 2 :]
        text = str(error.value)
        assert "axis 'tp'" in text and label.word in text and fix in text and "getitem" in text
    assert cc.cast(value(I), "tp", to=R)[rank * 2 :].layout["tp"] is V


def test_the_gradient_of_a_rank_dependent_slice_is_partial(mesh: cc.Mesh) -> None:
    x = value(R)
    with ag.Tape() as tape:
        loss = cc.all_reduce(x[mesh.axis("tp").rank :].sum(), "tp", to=I)
    tape.backward(loss)
    assert x.grad.layout["tp"] is P


BY_INDEX: dict[str, Callable[[Any, Any], Any]] = {
    "getitem": lambda x, i: x[i],
    "getitem of a pair": lambda x, i: x[i, 1:],
    "mask": lambda x, i: x[i >= 0],
    "take": lambda x, i: np.take(x, i, axis=0),
    "take, wrapped": lambda x, i: np.take(x, i, axis=0, mode="wrap"),
    "take_along_axis": lambda x, i: np.take_along_axis(x, np.reshape(i, (-1, 1)), 0),
    "compress": lambda x, i: np.compress(i >= 0, x, axis=0),
    "extract": lambda x, i: np.extract(np.reshape(i >= 0, (-1, 1)) * (x == x), x),
    "choose": lambda x, i: np.choose(i, x),
    "repeat": lambda x, i: np.repeat(x, i, axis=0),
    "delete": lambda x, i: np.delete(x, i, axis=0),
}


@pytest.mark.parametrize("operation", BY_INDEX)
def test_an_index_that_differs_between_ranks_makes_what_it_takes_differ(operation: str, mesh: cc.Mesh) -> None:
    index = numpy.array([0, 1, 2, 1])
    take = BY_INDEX[operation]
    for at, made in ((V, V), (R, R), (I, R), (C, R)):
        of_index = ag.constant(index) if at is C else ag.tensor(index, {"tp": at})
        assert take(value(R), of_index).layout["tp"] is made, at
    assert take(value(R), index).layout["tp"] is V, "a plain array is each rank's own"
    try:
        assert take(value(R), ag.tensor(index, {"tp": S0})).layout["tp"] is V
    except ag.LayoutError:
        assert operation in ("take_along_axis", "choose", "extract"), "only where the index spans what it is put on"
    with pytest.raises(ag.LayoutError, match="Invariant"):
        take(value(I), ag.tensor(index, {"tp": V}))
    assert take(value(I), ag.tensor(index, {"tp": R})).layout["tp"] is I


def test_a_list_of_numbers_is_the_same_index_everywhere(mesh: cc.Mesh) -> None:
    assert value(I)[[0, 2]].layout["tp"] is I and np.take(value(I), [0, 2], axis=0).layout["tp"] is I
    assert value(I)[numpy.int64(1)].layout["tp"] is I and value(P)[[0]].layout["tp"] is P
    with pytest.raises(ag.LayoutError, match=r"fix: cast\(x, 'tp', to=R\)\n  or:  ag.constant\(index\)"):
        value(I)[numpy.array([0, 2])]


def test_the_gradient_by_an_index_of_each_rank_is_summed() -> None:
    """Rows that each rank chooses for itself: what one process that chooses all of them would get."""

    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            rank = mesh.axis("dp").rank
            w = ag.Parameter(numpy.arange(10.0).reshape(5, 2))
            rows = ag.tensor(numpy.array([int(rank), 4]), {"dp": V})
            with ag.Tape() as tape:
                loss = cc.all_reduce((cc.cast(w, "dp", to=R)[rows] ** 2).sum(), "dp", to=I)
            tape.backward(loss)
            return w.grad.numpy()

    serial = 2 * numpy.arange(10.0).reshape(5, 2) * numpy.array([[1], [1], [1], [0], [3]])  # how often each is taken
    for gradient in cc.run(program, ranks=3):
        assert numpy.array_equal(gradient, serial)


def test_arithmetic_keeps_what_a_number_knows(mesh: cc.Mesh) -> None:
    rank = mesh.axis("tp").rank
    for number in (rank + 1, 1 + rank, rank * 2, 2 * rank, rank - 1, 5 - rank, -rank, rank // 2, rank % 2,
                   7 // (rank + 1), rank << 1, abs(rank), (rank + 1) ** 2, rank + rank):  # fmt: skip
        assert isinstance(number, RankInt) and number.axes == {"tp"}
    for number in (rank / 2, 1 / (rank + 1), rank / 2 + 1, -(rank / 2), rank + 0.5, rank * 0.5):
        assert isinstance(number, RankFloat) and number.axes == {"tp"}
    assert type(int(rank)) is int
    assert (value(R) * rank).layout["tp"] is V
    assert (value(R) / (rank + 2)).layout["tp"] is V
    assert (value(R) * (rank / 2 + 1)).layout["tp"] is V
    with pytest.raises(ag.LayoutError, match="Invariant"):
        value(I) * rank
    assert (value(I) * int(rank)).layout["tp"] is I
    assert isinstance(numpy.arange(4.0)[rank], float)
    assert (numpy.ones(2, numpy.float32) * rank).dtype == numpy.float32, "weak, as a Python number is"
    assert (value(R, dtype="float32") * rank).dtype == numpy.float32


def test_a_number_knows_each_of_its_axes() -> None:
    with cc.Mesh(dp=1, tp=1) as mesh:
        dp, tp = mesh.axis("dp").rank, mesh.axis("tp").rank
        assert (dp * 2 + tp).axes == {"dp", "tp"}
        assert mesh.axis(("dp", "tp")).rank.axes == {"dp", "tp"}
        x = ag.tensor(numpy.ones(4), {"dp": R, "tp": R})
        assert x[tp:].layout == {"dp": R, "tp": V}
        assert x[dp * 2 + tp :].layout == {"dp": V, "tp": V}


def test_a_mean_divided_by_a_local_count_is_refused() -> None:
    x = value(S0)
    count = x.shape[0]
    assert isinstance(count, LocalCount) and not isinstance(x.shape[1], LocalCount)
    total = x.sum()
    with pytest.raises(ag.LayoutError) as error:
        total / count
    text = str(error.value)
    assert "divide(" in text and "axis 'tp'" in text and "Partial" in text and "Varying" in text
    assert (total / x.global_shape[0]).layout["tp"] is P
    with pytest.raises(ag.LayoutError):
        total * (1 / count)
    assert x.mean().layout["tp"] is P and x.mean(1).layout["tp"] == S0


def test_a_local_extent_may_shape_the_part_itself() -> None:
    x = value(S0, (4, 6))
    assert x.reshape(x.shape[0], 2, 3).layout["tp"] == S0
    assert x.reshape((x.shape[0], 6)).layout["tp"] == S0
    assert np.broadcast_to(value(R, (6,)), x.shape).layout["tp"] is V


# -- a rule that breaks the pairing is caught ------------------------------------------------------------------------


def test_a_rule_that_is_not_linear_in_the_cotangent_is_refused() -> None:
    from autograd.engine.primitive import op
    from autograd.layouts.inference import broadcast

    bad = op("bad", "a", lambda x: x * 1, lambda ct, y, x: ct * ct, dims=broadcast, operands="x")
    del registry["bad"]
    x = value(R)
    with ag.Tape() as tape:
        y = cc.all_reduce(cc.cast(bad(x), "tp", to=V).sum(), "tp", to=I)
    with pytest.raises(ag.LayoutError) as error:
        tape.backward(y)
    assert "multiply" in str(error.value) or "bad's adjoint" in str(error.value)


def test_a_rule_that_forgets_an_operands_label_is_refused() -> None:
    from autograd.engine.primitive import op
    from autograd.layouts.inference import broadcast

    bad = op("bad", "a a", lambda x, y: x + y, (lambda ct, z, x, y: np.exp(ct), lambda ct, z, x, y: ct), dims=broadcast)
    del registry["bad"]
    x, y = value(R), value(R)
    with ag.Tape() as tape:
        z = bad(x, y)
    with pytest.raises(ag.LayoutError, match="exp"):
        tape.backward(z, ag.tensor(numpy.ones((4, 4)), {"tp": P}))


def test_rules_are_checked_once_for_each_signature() -> None:
    from autograd.engine.primitive import op
    from autograd.layouts.inference import broadcast

    calls = []

    def rule(ct: Any, y: Any, x: Any) -> Any:
        calls.append(type(ct))
        return ct * 2

    double = op("double", "a", lambda x: x * 2, rule, dims=broadcast, operands="x")
    del registry["double"]
    for _ in range(3):
        x = value(I)
        with ag.Tape() as tape:
            y = double(x).sum()
        tape.backward(y)
    assert calls.count(ag.Tensor) == 1
    assert calls.count(numpy.ndarray) == 3


# -- what several ranks see ------------------------------------------------------------------------------------------


def test_uneven_parts_know_extent_and_offset() -> None:
    def program() -> Any:
        with cc.Mesh(tp=3) as mesh:
            n = [3, 2, 2][mesh.axis("tp").rank]
            x = ag.tensor(numpy.ones((n, 6)), {"tp": Shard(0)}, global_shape=(7, 6))
            label = x.layout["tp"]
            y = x.reshape(x.shape[0] * 3, 2).T
            turned = y.layout["tp"]
            return label.extent, label.offset, x.global_shape, turned.extent, turned.offset, y.global_shape

    assert cc.run(program, 3) == [
        (7, 0, (7, 6), 21, 0, (2, 21)),
        (7, 3, (7, 6), 21, 9, (2, 21)),
        (7, 5, (7, 6), 21, 15, (2, 21)),
    ]


def test_a_part_that_does_not_fit_is_refused_on_the_rank_that_has_it() -> None:
    def program() -> None:
        with cc.Mesh(tp=3):
            ag.tensor(numpy.ones((3, 6)), {"tp": Shard(0)}, global_shape=(7, 6))

    with pytest.raises(ag.ShapeError, match=r"has 3, but by the array_split rule.*\(7, 6\) it must have 2"):
        cc.run(program, 3)


def test_parts_that_are_cut_differently_do_not_mix() -> None:
    def program() -> None:
        with cc.Mesh(tp=3) as mesh:
            n, other = [(2, 2), (2, 1), (1, 2)][mesh.axis("tp").rank]
            a = ag.tensor(numpy.ones(n), {"tp": Shard(0)}, global_shape=(5,))
            assert (a + a).global_shape == (5,)
            b = cc.from_local(numpy.ones(other), {"tp": Shard(0)})
            with pytest.raises(ag.LayoutError, match=r"Shard\(0\) of 5 on 3 ranks does not mix with Shard\(0\) of 5 in "
                               r"parts 2, 1, 2 of y"):
                a + b

    cc.run(program, 3)


def test_a_split_across_a_boundary_is_refused() -> None:
    def program() -> Any:
        with cc.Mesh(tp=3) as mesh:
            x = ag.tensor(numpy.ones([4, 4, 4][mesh.axis("tp").rank]), {"tp": Shard(0)}, global_shape=(12,))
            assert x.reshape(-1, 2).global_shape == (6, 2)
            y = ag.tensor(numpy.ones([2, 2, 2][mesh.axis("tp").rank]), {"tp": Shard(0)})
            y.reshape(1, 2)
            uneven = ag.tensor(numpy.ones([4, 4, 3][mesh.axis("tp").rank]), {"tp": Shard(0)}, global_shape=(11,))
            uneven.reshape(-1, 2) if mesh.axis("tp").rank < 2 else uneven.reshape(1, 3)

    with pytest.raises(ag.LayoutError, match="splits across a boundary"):
        cc.run(program, 3)


def test_the_outer_axis_comes_first() -> None:
    def program() -> Any:
        with cc.Mesh(dp=2, tp=2):
            x = cc.from_local(numpy.ones((2, 3)), {"dp": Shard(0), "tp": Shard(0)})
            d, t = x.layout["dp"], x.layout["tp"]
            return (d.extent, d.offset), (t.extent, t.offset), x.global_shape

    assert cc.run(program, 4) == [
        ((8, 0), (4, 0), (8, 3)), ((8, 0), (4, 2), (8, 3)), ((8, 4), (4, 0), (8, 3)), ((8, 4), (4, 2), (8, 3)),
    ]  # fmt: skip


def test_a_contraction_over_uneven_parts_is_the_serial_one() -> None:
    rng = numpy.random.default_rng(0)
    a, b = rng.standard_normal((2, 7)), rng.standard_normal((7, 3))

    def program() -> Any:
        with cc.Mesh(tp=3) as mesh:
            at = slice(*[(0, 3), (3, 5), (5, 7)][mesh.axis("tp").rank])
            x = ag.tensor(a[:, at], {"tp": Shard(1)}, global_shape=(2, 7), requires_grad=True)
            w = ag.tensor(b[at], {"tp": Shard(0)}, global_shape=(7, 3), requires_grad=True)
            with ag.Tape() as tape:
                y = x @ w
                assert y.layout["tp"] is P
                y = cc.all_reduce(y, "tp", to=I)
                loss = (y * y).sum()
            tape.backward(loss)
            return y.numpy(), x.grad.numpy(), w.grad.numpy(), at

    ga, gb = 2 * a @ b @ b.T, a.T @ (2 * a @ b)
    for y, gx, gw, at in cc.run(program, 3):
        numpy.testing.assert_allclose(y, a @ b, rtol=1e-13)
        numpy.testing.assert_allclose(gx, ga[:, at], rtol=1e-12)
        numpy.testing.assert_allclose(gw, gb[at], rtol=1e-12)
