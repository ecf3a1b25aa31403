"""Every exact mode of `DataParallel` against the same training on one process without a mesh, in float64."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from autograd.whole import whole_of
from parallel import DataParallel
from parallel.data import buckets

from ...collectives.launch import launch_command

WIDTH, CLASSES, ROWS, BATCH, STEPS = 7, 5, 23, 9, 9  # batches of 9, 9 and 5 rows

MODES: dict[str, dict[str, Any]] = {
    "one bucket": {},
    "small buckets": {"bucket_bytes": 200, "first_bucket_bytes": 60},
    "no buckets": {"bucket_bytes": 0},
    "two buffers": {"buffers": 2, "bucket_bytes": 300},
    "zero 1": {"zero": 1},
    "zero 1, small buckets": {"zero": 1, "bucket_bytes": 200, "first_bucket_bytes": 60},
    "zero 2": {"zero": 2, "bucket_bytes": 200},
    "zero 3": {"zero": 3},
    "zero 3, small buckets": {"zero": 3, "bucket_bytes": 100},
}


class Block(nn.Module):
    def __init__(self) -> None:
        self.norm = nn.LayerNorm(WIDTH, dtype=float)
        self.inner = nn.Linear(WIDTH, WIDTH, dtype=float)

    def forward(self, x: Any) -> Any:
        return x + anp.tanh(self.inner(self.norm(x)))


class Model(nn.Module):
    """Tied weights at both ends, a number, blocks, one of which is called twice, and a parameter nobody uses."""

    def __init__(self) -> None:
        self.table = ag.Parameter(random.normal(random.Key(3, "table"), (CLASSES, WIDTH), dtype=float))
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.temperature = ag.Parameter(np.array(0.8))
        self.here = ag.Parameter(np.linspace(0.5, 1.5, WIDTH))
        self.never = ag.Parameter(np.ones((3, 2)))
        self.used, self.axis = True, ""

    def forward(self, rows: Any) -> Any:
        x = nn.functional.embedding(rows, self.table)
        for block in (*self.blocks, self.blocks[1]):
            x = block(x)
        if self.axis:  # another collective on the group, in mid-network: it adds the zeros of all ranks
            x = x + 0.0 * cc.all_reduce(x.sum() * 0.0, self.axis)
        x = x * self.here if self.used else x * 1.0
        return x @ self.table.T * self.temperature


def make_model() -> Model:
    random.seed(5)
    return Model()


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(2)
    rows, classes = generator.integers(0, CLASSES, ROWS), generator.integers(0, CLASSES, ROWS)
    return [(rows[at : at + BATCH], classes[at : at + BATCH]) for at in range(0, ROWS, BATCH)]


def train(
    model: Any, shared: Callable[[np.ndarray], Any], objective: Callable[[Any], Any], parts: int = 1, **numbers: Any
) -> Any:
    """The first gradient, and the parameters at the end; Adam has the given numbers, too."""
    optimizer = optim.Adam(model.parameters(), lr=0.01, **numbers)
    first: dict[str, Any] = {}
    for step in range(STEPS):
        x, y = batches()[step % 3]
        optimizer.zero_grad()
        with model.accumulate() if parts > 1 else nullcontext():
            for rows, classes in zip(np.array_split(x, parts), np.array_split(y, parts), strict=True):
                with ag.Tape() as tape:
                    loss = nn.cross_entropy(model(shared(rows)), shared(classes), reduction="sum") / len(x)
                    loss = objective(loss)
                tape.backward(loss)
        if not first:
            first = {name: None if p.grad is None else whole_of(p.grad.array, p.layout, "test", name)
                     for name, p in model.named_parameters()}  # fmt: skip
        optim.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return first, model.state_dict()


@cache
def serial() -> Any:
    return train(make_model(), lambda a: a, lambda loss: loss)


def assert_equal(ours: Any, theirs: Any) -> None:
    gradients, parameters = ours
    expected, final = theirs
    assert list(gradients) == list(expected)
    for name, g in expected.items():
        if g is None:
            assert gradients[name] is None, name
        else:
            assert np.linalg.norm(gradients[name] - g) <= 1e-12 * max(np.linalg.norm(g), 1e-3), name
    for name, p in final.items():
        assert np.linalg.norm(parameters[name] - p) <= 1e-10 * np.linalg.norm(p), name


def run(ranks: int, options: dict[str, Any], parts: int = 1, prepare: Any = None, **numbers: Any) -> list[Any]:
    return cc.run(program_of(options, parts, prepare, **numbers), ranks)


def program_of(options: dict[str, Any], parts: int = 1, prepare: Any = None, **numbers: Any) -> Callable[[], Any]:
    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            module = make_model()
            if prepare is not None:
                prepare(module, mesh)
            model = DataParallel(module, "dp", **options)

            def shared(a: np.ndarray) -> Any:
                return cc.from_local(np.array_split(a, mesh.ranks.size)[mesh.ranks.index], {"dp": cc.Shard(0)})

            return train(model, shared, lambda loss: cc.all_reduce(loss, "dp", to=cc.I), parts, **numbers)

    return program


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))])
def test_equals_one_process(ranks: int, mode: str) -> None:
    for ours in run(ranks, MODES[mode]):
        assert_equal(ours, serial())


@pytest.mark.parametrize("mode", ["small buckets", "zero 1", "zero 2", "zero 3"])
def test_amsgrad_and_maximize(mode: str) -> None:
    numbers: dict[str, Any] = {"betas": (0.9, 0.5), "amsgrad": True, "maximize": True}
    expected = train(make_model(), lambda a: a, lambda loss: loss, **numbers)
    for ours in run(3, MODES[mode], **numbers):
        assert_equal(ours, expected)


@pytest.mark.parametrize("mode", ["one bucket", "small buckets", "zero 1", "zero 2", "zero 3"])
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_microbatches_equal_the_large_batch(ranks: int, mode: str) -> None:
    """4 microbatches of 3, 2, 2 and 2 rows; the last batch has 5 rows, so some ranks have empty microbatches."""
    for ours in run(ranks, MODES[mode], parts=4):
        assert_equal(ours, serial())


@pytest.mark.parametrize("mode", ["small buckets", "no buckets", "zero 2", "zero 3"])
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_another_collective_on_the_group_in_mid_network(ranks: int, mode: str) -> None:
    def prepare(module: Model, mesh: cc.Mesh) -> None:
        module.axis = "dp"

    for ours in run(ranks, MODES[mode], prepare=prepare):
        assert_equal(ours, serial())


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_over_mpi(ranks: int) -> None:
    """All modes in one job, whose ranks share memory; and with requests that are started, as between hosts.

    On two ranks every third mode is started.
    """
    found = launch_command(["-m", __name__], ranks, limit_s=100)
    assert found.code == 0, found.out + found.err
    assert found.out.count("equal") == ranks


def main() -> None:
    for started in (False, True):
        for options in list(MODES.values())[:: 3 if started and cc.world().size == 2 else 1]:
            prepare = _without_shared_memory if started else None
            assert_equal(program_of(options, 3 if started else 1, prepare)(), serial())
    print("equal")


def _without_shared_memory(module: Model, mesh: cc.Mesh) -> None:
    """Let the ranks seem to be on hosts of their own."""
    buckets.is_on_one_host = lambda group: False


@pytest.mark.parametrize("mode", MODES)
def test_a_parameter_that_is_used_on_one_rank_only(mode: str) -> None:
    """The rank without it counts zero; the serial gradient is that of the rows of the other ranks."""

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            module = make_model()
            module.used = mesh.ranks.index == 1
            model = DataParallel(module, "dp", **MODES[mode])
            x, y = batches()[0]
            rows, classes = (cc.from_local(np.array_split(a, 3)[mesh.ranks.index], {"dp": cc.Shard(0)}) for a in (x, y))
            with ag.Tape() as tape:
                loss = nn.cross_entropy(model(rows), classes, reduction="sum") / len(x)
            tape.backward(loss)
            return {n: None if p.grad is None else whole_of(p.grad.array, p.layout, "test", n)
                    for n, p in model.named_parameters()}  # fmt: skip

    module = make_model()
    x, y = (np.array_split(a, 3) for a in batches()[0])
    with ag.Tape() as tape:
        loss: Any = 0.0
        for r in range(3):
            module.used = r == 1
            loss = loss + nn.cross_entropy(module(x[r]), y[r], reduction="sum") / BATCH
    tape.backward(loss)
    for ours in cc.run(program, 3):
        for name, p in module.named_parameters():
            if p.grad is None:
                assert ours[name] is None
            else:
                g = p.grad.numpy()
                assert np.linalg.norm(ours[name] - g) <= 1e-12 * np.linalg.norm(g), name


if __name__ == "__main__":
    main()
