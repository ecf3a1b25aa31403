"""Pipelines on meshes with more axes: data parallelism with ZeRO, and tensor parallel layers, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from autograd.whole import whole_of
from examples.gpt import Loss
from parallel.pipeline import SCHEDULES, Pipeline

from .serial import assert_equal, batch, make_layers
from .serial import train as train_serial

slow = pytest.mark.slow
ROWS, STEPS, WIDTH, TOKENS, HIDDEN = 11, 2, 6, 4, 24


def in_order(a: np.ndarray, dp: int, m: int) -> np.ndarray:
    """Rows in the order in which a serial run has them in microbatches of array_split's sizes, if these are even."""
    parts = [np.array_split(part, m) for part in np.array_split(a, dp)]
    return np.concatenate([part[i] for i in range(m) for part in parts])


def values(model: Any, of: Callable[[Any], Any]) -> dict[str, Any]:
    found = {}
    for name, p in model.named_parameters():
        x = of(p)
        found[name] = None if x is None else whole_of(x, p.layout, "test", name)
    return found


def train(model: Any, share: Callable[[np.ndarray], Any], rows: int, of: Any = batch) -> Any:
    optimizer, losses, first = optim.AdamW(model.parameters(), lr=0.01), [], {}
    for step in range(STEPS):
        x, y = of(rows, step)
        optimizer.zero_grad()
        losses.append(model.step(share(x), share(y), scale=1.0 / x.size))
        first = first or values(model, lambda p: None if p.grad is None else p.grad.array)
        optim.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return losses, first, values(model, lambda p: p.array)


def check(
    dp: int, pp: int, m: int, rows: int, make: Any, loss: Any, of: Any = batch, tp: int = 1, **options: Any
) -> None:
    """Train on a mesh, and compare the ranks of each pipeline with one process."""

    def program() -> Any:
        with cc.Mesh(dp=dp, pp=pp, tp=tp) as mesh:
            d = int(mesh.axis("dp").rank)

            def share(a: np.ndarray) -> Any:
                return cc.from_local(np.array_split(a, dp)[d], {"dp": cc.Shard(0), "pp": cc.V, "tp": cc.I})

            model = Pipeline(make(tp), loss(), microbatches=m, seed=5, data="dp", **options)
            return train(model, share, rows, of)

    found = cc.run(program, dp * pp * tp)

    def ordered(rows: int, step: int) -> Any:
        return tuple(in_order(a, dp, m) for a in of(rows, step))

    expected = train_serial(make(0), loss(), m, rows, STEPS, ordered)
    for d in range(dp):
        for t in range(tp):
            assert_equal([found[(d * pp + r) * tp + t] for r in range(pp)], expected)


def gpt(tp: int) -> Any:
    return make_layers(4)


DATA = [("1f1b", 0, 2, 3), ("zb-v", 2, 2, 2), ("zb-h1", 1, 3, 2)]
MORE_DATA = [(s, zero, dp, pp) for s in SCHEDULES for zero in (0, 1, 2) for dp, pp in ((2, 2), (2, 3), (3, 2), (3, 1))]


@pytest.mark.parametrize(
    ("schedule", "zero", "dp", "pp"), [*DATA, *(pytest.param(*c, marks=slow) for c in MORE_DATA if c not in DATA)]
)
def test_data_parallel(schedule: str, zero: int, dp: int, pp: int) -> None:
    check(dp, pp, 2, 4 * dp, gpt, Loss, schedule=schedule, zero=zero, chunks=None)


def untied(tp: int) -> nn.Sequential:
    random.seed(4)
    make = lambda: [nn.Linear(WIDTH, WIDTH, dtype=float), nn.Tanh(), nn.Dropout(0.3)]
    return nn.Sequential(*(layer for _ in range(3) for layer in make()))


def squares(n: int, step: int = 0) -> Any:
    rng = np.random.default_rng(step)
    return rng.standard_normal((n, TOKENS, WIDTH)), rng.standard_normal((n, TOKENS, WIDTH))


def distance() -> Any:
    return lambda y, t: ((y - t) ** 2).sum()


@pytest.mark.parametrize("schedule", ["1f1b", *(pytest.param(s, marks=slow) for s in ("gpipe", "interleaved"))])
def test_zero_3(schedule: str) -> None:
    check(2, 3, 2, 8, untied, distance, squares, schedule=schedule, zero=3)


class TensorParallel(nn.Module):
    """Two linear layers divided by columns and rows, a norm, and dropout, between ranks with equal streams."""

    def __init__(self, tp: int):
        key = random.Key(7, f"layer {random.next_key('layer').name}")
        up = np.asarray(random.normal(key, (WIDTH, HIDDEN), part=(slice(0, WIDTH), slice(0, HIDDEN)), dtype=float))
        down = up.T[::-1].copy()
        self.tp, self.dropout = tp, nn.Dropout(0.3)
        self.norm = nn.LayerNorm(WIDTH, dtype=float)
        if tp:
            r = int(cc.current_mesh().axis("tp").rank)
            up, down = np.array_split(up, tp, 1)[r], np.array_split(down, tp, 0)[r]
            self.up = ag.Parameter(up, {"tp": cc.Shard(1)}, global_shape=(WIDTH, HIDDEN))
            self.down = ag.Parameter(down, {"tp": cc.Shard(0)}, global_shape=(HIDDEN, WIDTH))
        else:
            self.up, self.down = ag.Parameter(up), ag.Parameter(down)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        if self.tp:
            y = cc.cast(y, "tp", to=cc.R)
        y = anp.tanh(y @ self.up * 0.3) @ self.down * 0.3
        if self.tp:
            y = cc.all_reduce(y, "tp", to=cc.I)
        return x + self.dropout(y)


def tensor_parallel(tp: int) -> nn.Sequential:
    random.seed(4)
    return nn.Sequential(*(TensorParallel(tp) for _ in range(6)))


@pytest.mark.parametrize("schedule", ["zb-h1", *(pytest.param(s, marks=slow) for s in SCHEDULES if s != "zb-h1")])
def test_tensor_parallel(schedule: str) -> None:
    check(1, 3, 3, 6, tensor_parallel, distance, squares, tp=2, schedule=schedule)


class Divided(nn.Module):
    """All its parameters are divided."""

    def __init__(self, tp: int):
        self.tp = tp
        r = int(cc.current_mesh().axis("tp").rank) if tp else 0
        whole = np.random.default_rng(0).standard_normal((WIDTH, HIDDEN)) * 0.3
        part = np.array_split(whole, max(tp, 1), 1)[r]
        layout: Any = {"tp": cc.Shard(1)} if tp else None
        self.table = ag.Parameter(part, layout, global_shape=whole.shape if tp else None)

    def forward(self, x: Any) -> Any:
        if not self.tp:
            return anp.tanh(x @ self.table) @ self.table.T
        y = anp.tanh(cc.cast(x, "tp", to=cc.R) @ self.table)
        return cc.all_reduce(y @ self.table.T, "tp", to=cc.I)


def test_stages_whose_parameters_are_divided_along_other_axes() -> None:
    """The norm of all gradients is summed over combinations of axes that not every stage has."""
    def make(tp: int) -> Any:
        random.seed(2)
        return nn.Sequential(Divided(tp), nn.Linear(WIDTH, WIDTH, dtype=float), nn.LayerNorm(WIDTH, dtype=float))

    check(1, 3, 2, 4, make, distance, squares, tp=2, costs=[1.0] * 3)


def test_master_weights() -> None:
    """An overflow on one stage is one of all stages, also where these have no other axes in common."""

    def program(bad: bool) -> Any:
        with cc.Mesh(pp=2, tp=2) as mesh:
            random.seed(2)
            layers = [Divided(2), nn.Linear(WIDTH, WIDTH, dtype=float)]
            model = Pipeline(layers, lambda y: y.sum(), microbatches=2)
            optimizer = optim.MasterWeights(lambda ps: optim.SGD(ps, lr=0.1), model.parameters())
            x = ag.tensor(squares(4)[0], {"pp": cc.V, "tp": cc.I})
            model.step(x, scale=optimizer.scale(ag.constant(1.0)))
            if bad and int(mesh.axis("pp").rank) == 1:
                model.parameters()[0].grad.array[0, 0] = np.inf  # type: ignore[union-attr]
            return optimizer.step()

    assert cc.run(program, 4, False) == [True] * 4 and cc.run(program, 4, True) == [False] * 4


@slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_three_axes(schedule: str) -> None:
    check(2, 2, 2, 8, tensor_parallel, distance, squares, tp=2, schedule=schedule)


def test_uneven_rows() -> None:
    """11 rows on 2 ranks in 3 microbatches: dropout masks follow the rows, so the serial run has the same rows."""

    def program(dp: int) -> Any:
        with cc.Mesh(dp=dp, pp=2) as mesh:
            d = int(mesh.axis("dp").rank)
            x, y = batch(ROWS)
            model = Pipeline(make_layers(2, dropout=0.0), Loss(), microbatches=3, data="dp")
            share = lambda a: cc.from_local(np.array_split(a, dp)[d], {"dp": cc.Shard(0), "pp": cc.V})
            loss = model.step(share(x), share(y), scale=1.0 / x.size)
            return loss, {name: p.grad.numpy() for name, p in model.named_parameters()}

    expected = cc.run(program, 2, 1)
    found = cc.run(program, 4, 2)
    for rank, (loss, gradients) in enumerate(found):
        assert loss == pytest.approx(expected[0][0], rel=1e-12)
        for name, g in gradients.items():
            np.testing.assert_allclose(g, expected[rank % 2][1][name], rtol=0, atol=1e-12)


def test_a_rank_without_parameters_takes_part() -> None:
    """Its entry and its optimizer are empty."""

    def program() -> Any:
        with cc.Mesh(dp=2, pp=2) as mesh:
            random.seed(0)
            x = cc.from_local(np.ones((4, 3)) * (1 + int(mesh.axis("dp").rank)), {"dp": cc.Shard(0), "pp": cc.V})
            layers = [nn.Linear(3, 3, dtype=float), nn.Tanh()]
            model = Pipeline(layers, lambda y: y.sum(), microbatches=2, data="dp", costs=[1.0, 1.0])
            model.step(x)
            return [p.grad.numpy().sum() for p in model.parameters()], optim.clip_grad_norm_(model.parameters(), 1.0)

    found = cc.run(program, 4)
    assert [len(grads) for grads, _ in found] == [2, 0, 2, 0]
    assert len({norm for _, norm in found}) == 1
