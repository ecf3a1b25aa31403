"""Hyperparameters and copies that differ between two compared steps, or after the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import optim
from collectives import I, R, Shard
from collectives.checks import modes

pytestmark = pytest.mark.timeout(60)
DATA = np.random.default_rng(0).standard_normal((6, 3))


@pytest.fixture(autouse=True)
def mode_as_before() -> Iterator[None]:
    mode = modes.check_mode()
    yield
    cc.check(mode)


def backward(rank: int, w: Any, label: Any = None) -> None:
    w.zero_grad()
    with ag.Tape() as tape:
        if label is None:
            y = ag.tensor(DATA[rank::2]) @ cc.cast(w, "dp", to=R)
            loss = cc.all_reduce((y * y).sum(), "dp", to=I) / len(DATA)
        else:
            loss = cc.all_reduce((w * w).sum(), "dp", to=I)
    tape.backward(loss)


def train(change: Callable[[int, int, Any, Any], None], steps: int, at: list[int] | None = None, **words: Any) -> None:
    """Two ranks train; before step n each calls ``change(n, rank, optimizer, w)``. `at` receives the last step."""

    def program() -> None:
        with cc.Mesh(dp=2) as mesh:
            rank = int(mesh.axis("dp").rank)
            w = ag.Parameter(np.ones(3), name="w")
            optimizer = optim.SGD([w], **{"lr": 0.01, **words})
            for n in range(1, steps + 1):
                change(n, rank, optimizer, w)
                if at is not None and rank == 0:
                    at[:] = [n]
                backward(rank, w)
                optimizer.step()

    cc.run(program, 2)


def one_rate(n: int, rank: int, optimizer: Any, w: Any) -> None:
    if n == 17 and rank == 1:
        optimizer.lr = 0.02


def one_momentum(n: int, rank: int, optimizer: Any, w: Any) -> None:
    if n == 17:
        optimizer.momentum = 0.5 + 0.1 * rank


def one_late(n: int, rank: int, optimizer: Any, w: Any) -> None:
    if n == 17 + rank:
        optimizer.lr = 0.02


@pytest.mark.parametrize("change", [one_rate, one_momentum, one_late])
@pytest.mark.parametrize("mode", ["first", "always", "ranks"])
def test_a_number_that_one_rank_changes_is_found_at_the_next_call(mode: str, change: Any) -> None:
    cc.check(mode)
    at: list[int] = []
    with pytest.raises(cc.ReplicaMismatch) as error:
        train(change, 30, at, momentum=0.9)
    assert at[0] in (17, 18)
    for word in ("the hyperparameters of rank", "step 17 of SGD", "fix: the same number on every rank"):
        assert word in str(error.value)
    if change is not one_momentum:
        assert "no hyperparameter has changed" in str(error.value) and "SGD(lr=0.02, momentum=0.9" in str(error.value)


def test_the_offered_fix_has_the_serial_result() -> None:
    """A rate that is halved where the loss of all ranks stands still, and a schedule."""

    def same(n: int, rank: int, optimizer: Any, w: Any) -> None:
        if n == 17:
            shared = cc.all_reduce(ag.tensor(float(rank)), "dp", to=I)
            optimizer.lr /= 2 * shared.item()

    train(same, 20)
    train(lambda *_: None, 20, lr=optim.schedules.cosine_annealing_lr(0.1, 20))


@pytest.mark.parametrize("steps", [17, 18])
def test_what_differs_at_the_last_step_is_found_at_the_end_of_the_block(steps: int) -> None:
    """No compared step follows, and no call: the block of the mesh ends."""

    def rate(n: int, rank: int, optimizer: Any, w: Any) -> None:
        if n == steps:
            optimizer.lr = 0.01 * (1 + rank)

    def value(n: int, rank: int, optimizer: Any, w: Any) -> None:
        if n == steps and rank:
            w.data = w.data * 1.5

    def skipped(n: int, rank: int, optimizer: Any, w: Any) -> None:
        if n == steps and rank:
            optimizer.step = lambda: None

    for change, word in ((rate, "of SGD"), (value, "w of SGD"), (skipped, "of SGD")):
        with pytest.raises(cc.ReplicaMismatch) as error:
            train(change, steps)
        assert word in str(error.value)
    assert "found at the call at test_late_differences.py" in str(error.value)


def test_the_end_of_the_block_compares_the_constants_of_a_program_without_an_optimizer() -> None:
    def program() -> None:
        with cc.Mesh(dp=2) as mesh:
            w = ag.Parameter(np.ones(3))
            backward(int(mesh.ranks.rank), w)
            w.data = w.numpy() - 0.1 * w.grad.numpy()
            _ = w * (0.5 + float(mesh.ranks.rank))

    with pytest.raises(cc.ReplicaMismatch, match="the plain numbers of"):
        cc.run(program, 2)


def test_off_and_shards() -> None:
    cc.check("off")
    train(one_rate, 30)
    cc.check("first")

    def program() -> None:
        with cc.Mesh(dp=2) as mesh:
            rank = int(mesh.axis("dp").rank)
            w = ag.Parameter(np.ones(2) + rank, {"dp": Shard(0)}, global_shape=(4,))
            optimizer = optim.Adam([w], lr=0.01)
            for n in range(1, 8):
                optimizer.betas = (0.9, 0.99 if n < 5 or rank else 0.9)
                backward(rank, w, Shard)
                optimizer.step()

    with pytest.raises(cc.ReplicaMismatch, match=r"step 5 of Adam"):
        cc.run(program, 2)


def test_an_error_of_one_rank_is_not_hidden_by_the_end_of_the_block() -> None:
    def fail(n: int, rank: int, optimizer: Any, w: Any) -> None:
        if n == 4 and rank:
            raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        train(fail, 5)

    def at_the_end() -> None:
        with cc.Mesh(dp=2) as mesh:
            w = ag.Parameter(np.ones(3))
            backward(int(mesh.ranks.rank), w)
            optim.SGD([w], 0.1).step()
            if int(mesh.ranks.rank) == 1:
                raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        cc.run(at_the_end, 2)


def test_a_block_for_each_step_and_optimizers_that_are_gone() -> None:
    """The ends of blocks are compared sparsely, and an optimizer that only one rank has kept is no difference."""

    def program() -> None:
        mesh, kept = cc.Mesh(dp=2), []
        for n in range(5):
            with mesh:
                rank = int(mesh.ranks.rank)
                w = ag.Parameter(np.ones(3))
                optimizer = optim.SGD([w], 0.1 + 0.01 * n)
                backward(rank, w)
                optimizer.step()
                if rank:
                    kept.append(optimizer)
        assert mesh.axis("dp").group.checks.ends == 5

    cc.run(program, 2)
