"""A vocabulary in parts: embedding, tied head and cross-entropy, against the serial modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, random
from autograd.errors import DtypeError, LayoutError, OptionError, ShapeError
from autograd.whole import whole_of
from collectives import I, R, Shard, V
from parallel import Column, Row, Vocabulary, parallelize
from parallel.tensor import vocabulary, vocabulary_cross_entropy

N, CLASSES = 9, 7
_generator = np.random.default_rng(2)
LOGITS, LABELS = _generator.normal(size=(N, CLASSES)), _generator.integers(0, CLASSES, N)
WEIGHTS = _generator.normal(size=N)  # of the losses, so that their cotangents differ
IGNORED = np.where(np.arange(N) % 4 == 1, -100, LABELS)
Array = Any


def on(ranks: int, program: Callable[[], Any]) -> list[Any]:
    return cc.run(lambda: _on_mesh(program), ranks)


def _on_mesh(program: Callable[[], Any]) -> Any:
    with cc.Mesh(tp=-1):
        return program()


def part(logits: Array, *, requires_grad: bool = False) -> Any:
    """This rank's classes: all extents differ, and the second rank of several has none."""
    size, rank = cc.world().size, cc.world().rank
    cuts = {1: [], 2: [CLASSES], 3: [3, 3]}[size]
    return cc.from_local(np.split(logits, cuts, 1)[rank], {"tp": Shard(1)}, requires_grad=requires_grad)


# -- cross-entropy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [LABELS, IGNORED, np.full(N, -100)], ids=["all", "ignored", "nothing"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_equals_the_serial_cross_entropy(ranks: int, reduction: str, smoothing: float, labels: Array) -> None:
    if reduction == "mean" and (labels == -100).all():
        return  # the mean of no rows
    weights: Any = WEIGHTS if reduction == "none" else 3.0
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    x = ag.tensor(LOGITS, requires_grad=True)
    with ag.Tape() as tape:
        losses = nn.cross_entropy(x, labels, **options)
        total = (losses * weights).sum()
    tape.backward(total)

    def program() -> Any:
        mine = part(LOGITS, requires_grad=True)
        w = ag.constant(weights) if reduction == "none" else weights
        with ag.Tape() as tape:
            found = vocabulary_cross_entropy(mine, ag.constant(labels), "tp", **options)
            total = (found * w).sum()
        tape.backward(total)
        assert found.layout["tp"] is I
        return found.numpy(), whole_of(mine.grad.array, mine.layout, "test", "x")

    for found, gradient in on(ranks, program):
        np.testing.assert_allclose(found, losses.numpy(), atol=1e-13)
        np.testing.assert_allclose(gradient, np.zeros_like(LOGITS) if x.grad is None else x.grad.numpy(), atol=1e-14)


@pytest.mark.parametrize("scale", [1e3, 1e-3])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_logits_and_dtypes(dtype: Any, scale: float) -> None:
    """Exponentials would overflow without the maximum; a rank's largest logit may be far below that of another."""
    logits = (LOGITS * scale).astype(dtype)
    exact = nn.cross_entropy(logits.astype(float), LABELS, reduction="none")

    def program() -> Any:
        with np.errstate(over="raise", invalid="raise"):
            return vocabulary_cross_entropy(part(logits), ag.constant(LABELS), "tp", reduction="none").numpy()

    tolerance = {np.float16: 4e-3, np.float32: 2e-6, np.float64: 1e-14}[dtype]
    for found in on(3, program):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, exact, rtol=tolerance, atol=tolerance * max(1.0, scale))


def test_rows_that_another_axis_divides() -> None:
    """The sum over the rows is Partial there, a mean divides by all rows, and one that leaves out rows is refused."""
    expected = nn.cross_entropy(LOGITS, LABELS, reduction="mean")

    def program() -> Any:
        with cc.Mesh(dp=2, tp=2) as mesh:
            rows = np.array_split(np.arange(N), 2)[int(mesh.axis("dp").rank)]
            columns = np.array_split(np.arange(CLASSES), 2)[int(mesh.axis("tp").rank)]
            x = cc.from_local(LOGITS[rows][:, columns], {"dp": Shard(0), "tp": Shard(1)})
            labels, some = (cc.from_local(a[rows], {"dp": Shard(0), "tp": I}) for a in (LABELS, IGNORED))
            mean = vocabulary_cross_entropy(x, labels, "tp")
            total = vocabulary_cross_entropy(x, labels, "tp", reduction="sum")
            assert dict(mean.layout) == dict(total.layout) == {"dp": cc.P, "tp": I}
            each = vocabulary_cross_entropy(x, labels, "tp", reduction="none")
            assert dict(each.layout) == {"dp": Shard(0), "tp": I}
            with pytest.raises(LayoutError, match="reduction='mean'.*axis 'dp'|reduction='mean'[\\s\\S]*axis 'dp'"):
                vocabulary_cross_entropy(x, some, "tp")
            return float(cc.all_reduce(mean, "dp", to=I)), float(cc.all_reduce(total, "dp", to=I)) / N

    for found in cc.run(program, 4):
        np.testing.assert_allclose(found, [float(expected)] * 2, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_second_derivatives_and_forward_mode(smoothing: float) -> None:
    """Products of the Hessian with vectors, in reverse over reverse and forward over reverse mode."""
    t = np.random.default_rng(4).normal(size=LOGITS.shape)

    def serial(x: Any) -> Any:
        losses = nn.cross_entropy(x, LABELS, reduction="none", label_smoothing=smoothing)
        return (losses * losses * WEIGHTS).sum()

    hvp = ag.grad(lambda x: (ag.grad(serial)(x) * t).sum())(LOGITS)
    tangent = ag.jvp(serial, (LOGITS,), (t,))[1]
    twice = ag.jvp(ag.grad(serial), (LOGITS,), (t,))[1]

    def program() -> Any:
        labels, weights = ag.constant(LABELS), ag.constant(WEIGHTS)

        def loss(x: Any) -> Any:
            losses = vocabulary_cross_entropy(x, labels, "tp", reduction="none", label_smoothing=smoothing)
            return (losses * losses * weights).sum()

        x, dx = part(LOGITS), part(t)
        inner = lambda x: cc.all_reduce((ag.grad(loss)(x) * dx).sum(), "tp", to=I)
        found = [ag.grad(inner)(x), ag.jvp(ag.grad(loss), (x,), (dx,))[1]]
        return [cc.all_gather(g, "tp", 1).numpy() for g in found], float(ag.jvp(loss, (x,), (dx,))[1])

    for (first, second), directional in on(2, program):
        np.testing.assert_allclose(first, hvp, atol=1e-13)
        np.testing.assert_allclose(second, np.asarray(twice), atol=1e-13)
        assert abs(directional - float(tangent)) < 1e-13


def test_one_gather_forward_and_nothing_backward() -> None:
    """Two numbers per row; the logits are never sent."""

    def program() -> Any:
        x, labels = part(LOGITS, requires_grad=True), ag.constant(LABELS)
        vocabulary_cross_entropy(x, labels, "tp")  # the first use compares the constants
        with cc.timeline() as t:
            with ag.Tape() as tape:
                loss = vocabulary_cross_entropy(x, labels, "tp")
            tape.backward(loss)
        return [(row.call, row.direction, row.calls, row.bytes) for row in t.report.rows
                if row.axis == "tp" and row.rank == 0 and row.call not in ("agree", "exchange")]  # fmt: skip

    assert on(3, program)[0] == [("all_gather", "forward", 1, 2 * N * 8)]


@pytest.mark.parametrize("fault", ["own terms only", "labels of the part"])
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's own sum of exponentials, and labels that count from the first class of each rank."""
    if fault == "own terms only":
        gather = vocabulary.ALL_GATHER

        def own(x: Any, call: Any) -> Any:
            y = gather(x, call)
            return ag.Tensor(np.tile(x.array, (call.group.size, 1)), y.layout)

        monkeypatch.setattr(vocabulary, "ALL_GATHER", own)
    else:
        own_index = vocabulary._own_index
        monkeypatch.setattr(vocabulary, "_own_index", lambda x, axis, offset, n: own_index(x, axis, 0, n))
    exact = nn.cross_entropy(LOGITS, LABELS, reduction="none")

    def program() -> Any:
        with np.errstate(divide="ignore"):  # the logarithm of the sum of a rank without classes
            return vocabulary_cross_entropy(part(LOGITS), ag.constant(LABELS), "tp", reduction="none").numpy()

    assert all(np.abs(found - exact).max() > 0.01 for found in on(3, program))


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda x, t: (cc.all_gather(x, "tp", 1, to=R), t), LayoutError, "logits of all classes[\\s\\S]*nn.cross_entropy"),
    (lambda x, t: (cc.all_gather(x, "tp", 1, to=I), t), LayoutError, "logits of all classes"),
    (lambda x, t: (cc.cast(x, "tp", to=V), t), LayoutError, "no parts of one value"),
    (lambda x, t: (cc.shard(ag.constant(LOGITS), "tp", 0), t), LayoutError, "its parts lie along dimension 0"),
    (lambda x, t: (cc.cast(cc.cast(x, "tp", to=V), "tp", to=Shard(1)), t), LayoutError, "have not agreed"),
    (lambda x, t: (x, LABELS), LayoutError, "the labels are V: a plain array has no label[\\s\\S]*ag.constant"),
    (lambda x, t: (x, cc.shard(t, "tp")), LayoutError, "the labels are Shard"),
    (lambda x, t: (x, ag.constant(LABELS * 1.0)), DtypeError, "needed: integers"),
    (lambda x, t: (x, ag.constant(LABELS[1:])), ShapeError, "needed: \\[n, classes\\] and \\[n\\]"),
    (lambda x, t: (x, ag.constant(LABELS + 7)), ShapeError, "needed: 0..6"),
    (lambda x, t: (x, ag.constant(LABELS - 7)), ShapeError, "needed: 0..6"),
], ids=range(11))  # fmt: skip
def test_refused(call: Any, error: type[Exception], says: str) -> None:
    def program() -> None:
        with pytest.raises(error, match=says):
            vocabulary_cross_entropy(*call(part(LOGITS), ag.constant(LABELS)), "tp")

    on(2, program)


@pytest.mark.parametrize("options", [{"reduction": "average"}, {"label_smoothing": 1.5}])
def test_options_that_are_refused(options: Any) -> None:
    def program() -> None:
        with pytest.raises(OptionError, match=next(iter(options))):
            vocabulary_cross_entropy(part(LOGITS), ag.constant(LABELS), "tp", **options)

    on(1, program)


# -- embedding and heads -----------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """An embedding, something between, and a head with the same table; the head of an untied model is linear."""

    def __init__(self, is_tied: bool, rows: int, padding_idx: int | None = None):
        self.table = nn.Embedding(rows, 4, padding_idx, dtype=float, key=random.Key(1))
        head = nn.Linear(4, rows, dtype=float, key=random.Key(2))
        self.out: Any = nn.TiedLinear(self.table) if is_tied else head
        self.loss = nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1)

    def forward(self, tokens: Any, targets: Any) -> Any:
        logits = self.out(anp.tanh(self.table(tokens)))
        return self.loss(anp.reshape(logits, (-1, logits.shape[-1])), anp.reshape(targets, (-1,)))


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(("ranks", "rows", "padding"), [(1, 5, None), (2, 5, 3), (3, 5, None), (3, 2, 0), (4, 9, 8)])
def test_embedding_and_head(ranks: int, rows: int, padding: int | None, is_tied: bool, sequence: bool) -> None:
    """Also with fewer rows than ranks, and a row for padding that any of the ranks may have."""
    draw = np.random.default_rng(rows).integers
    tokens, targets = draw(0, rows, (2, 5)), draw(0, rows, (2, 5))
    model = Tied(is_tied, rows, padding)
    with ag.Tape() as tape:
        loss = model(tokens, targets)
    tape.backward(loss)
    expected = {name: p.grad.numpy() for name, p in model.named_parameters()}

    def program() -> Any:
        style = Vocabulary("tp", to=Shard(1) if sequence else I)
        model = parallelize(Tied(is_tied, rows, padding), {"table": style, "out": style, "loss": style})
        with ag.Tape() as tape:
            loss = model(ag.constant(tokens), ag.constant(targets))
        tape.backward(loss)
        gradients = {n: whole_of(p.grad.array, p.layout, "test", n) for n, p in model.named_parameters()}
        return float(loss), gradients

    for found, gradients in on(ranks, program):
        assert abs(found - float(loss)) < 1e-12 and list(gradients) == list(expected)
        for name, g in expected.items():
            np.testing.assert_allclose(gradients[name], g, atol=1e-14, err_msg=name)


def test_columns_and_rows_of_a_table_do_not_mix() -> None:
    """A tied head cannot be divided otherwise than its embedding."""

    def program() -> None:
        class Untidy(Tied):
            def __init__(self) -> None:
                super().__init__(False, 4)
                self.out.weight = self.table.weight  # square, and stored otherwise

        with pytest.raises(ShapeError, match="stored"):
            Untidy()
        with pytest.raises(TypeError, match="TiedLinear"):
            parallelize(Tied(True, 6), {"table": Vocabulary("tp"), "out": Column("tp")})
        with pytest.raises(TypeError, match="Embedding"):
            parallelize(Tied(True, 6), {"table": Row("tp")})

    on(2, program)


@pytest.mark.parametrize(("tokens", "error", "says"), [
    (np.array([0, 1]), LayoutError, "the indices are V: a plain array has no label"),
    (ag.constant(np.array([0.0])), DtypeError, "needed: integers"),
    (ag.constant(np.array([0, 5])), ShapeError, "needed: 0..4"),
    (ag.constant(np.array([-1])), ShapeError, "needed: 0..4"),
])  # fmt: skip
def test_indices_that_are_refused(tokens: Any, error: type[Exception], says: str) -> None:
    def program() -> None:
        table = parallelize(nn.Embedding(5, 3), {"*": Vocabulary("tp")})
        given = ag.constant(tokens.numpy()) if isinstance(tokens, ag.Tensor) else tokens
        with pytest.raises(error, match=says):
            table(given)

    on(2, program)


def test_unsigned_indices_and_labels() -> None:
    def program() -> Any:
        table = parallelize(nn.Embedding(5, 3, dtype=float, key=random.Key(0)), {"*": Vocabulary("tp")})
        tokens = ag.constant(np.array([4, 0, 3], np.uint8))
        labels = ag.constant(LABELS.astype(np.uint16))
        return table(tokens).numpy(), float(vocabulary_cross_entropy(part(LOGITS), labels, "tp"))

    expected = nn.Embedding(5, 3, dtype=float, key=random.Key(0))(np.array([4, 0, 3])).numpy()
    for found, loss in on(3, program):
        np.testing.assert_array_equal(found, expected)
        assert abs(loss - float(nn.cross_entropy(LOGITS, LABELS))) < 1e-14
