"""Rows of real bugs of data parallelism that a law makes impossible (W), the optimizer's boundary catches (B), or the
comparison with one process finds (S). Those that layouts refuse are in ``tests/parallel/test_bugs.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import data, nn, optim, random
from parallel import DataParallel

X = np.random.default_rng(0).normal(size=(11, 6))
Y = np.random.default_rng(1).integers(0, 4, 11)


def make_model() -> nn.Sequential:
    random.seed(2)
    return nn.Sequential(nn.Linear(6, 5, dtype=float), nn.Tanh(), nn.Linear(5, 4, dtype=float))


def rows(mesh: cc.Mesh, a: Any) -> Any:
    on = mesh.axis("dp")
    return cc.from_local(np.array_split(a, on.size)[int(on.rank)], {"dp": cc.Shard(0)})


def serial(power: int = 1) -> list[Any]:
    model = make_model()
    with ag.Tape() as tape:
        loss = nn.cross_entropy(model(X), Y, reduction="sum") / len(X) * float(power)
    tape.backward(loss)
    return [p.grad.numpy() for p in model.parameters()]


def assert_close(ours: list[Any], theirs: list[Any], tolerance: float = 1e-12) -> None:
    for g, expected in zip(ours, theirs, strict=True):
        assert np.linalg.norm(g - expected) <= tolerance * np.linalg.norm(expected)


def test_row_25_accumulation_is_no_moving_average() -> None:
    """torchtitan#1733: the sum was divided by the number of microbatches after each of them."""

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            model = DataParallel(make_model(), "dp")
            with model.accumulate():
                for at in (slice(0, 1), slice(1, 7), slice(7, 11)):
                    with ag.Tape() as tape:
                        loss = nn.cross_entropy(model(rows(mesh, X[at])), rows(mesh, Y[at]), reduction="sum") / len(X)
                    tape.backward(loss)
            return [p.grad.numpy().copy() for p in model.parameters()]

    for ours in cc.run(program, 3):
        assert_close(ours, serial())


def test_row_27_the_mean_of_local_means() -> None:
    """transformers#34242: with unequal counts it is not the mean. Here the mean over divided rows is the global one."""

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            model = DataParallel(make_model(), "dp")
            x, y = rows(mesh, X), rows(mesh, Y)
            with ag.Tape() as tape:
                loss = nn.cross_entropy(model(x), y)
            tape.backward(loss)
            found = [p.grad.numpy().copy() for p in model.parameters()]
            with pytest.raises(cc.LayoutError):  # a division by the local count
                _ = cc.all_reduce(nn.cross_entropy(model(x), y, reduction="sum") / len(x), "dp", to=cc.I)
            return found

    for ours in cc.run(program, 3):
        assert_close(ours, serial())


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_row_28_the_norm_counts_each_element_once(zero: int) -> None:
    """NeMo RL#3788: the squares of gradients that all ranks of "tp" hold were added once per rank."""

    class Split(nn.Module):
        """Columns of the first layer and rows of the second one along "tp", if there is a mesh."""

        def __init__(self, at: slice, split: bool):
            whole = make_model()
            labels = ({"tp": cc.Shard(1)}, {"tp": cc.Shard(0)}) if split else (None, None)
            self.first = ag.Parameter(whole[0].weight.numpy()[:, at], labels[0], global_shape=(6, 5) if split else None)
            self.bias = ag.Parameter(np.linspace(-1.0, 1.0, 4))
            second = whole[2].weight.numpy()[at].T  # its first dimension is divided by "dp"
            label = {"tp": cc.Shard(1)} if split else None
            self.second = ag.Parameter(second, label, global_shape=(4, 5) if split else None)
            self.split = split

        def forward(self, x: Any) -> Any:
            x = cc.cast(x, "tp", to=cc.R) if self.split else x
            h = x @ self.first
            y = h @ self.second.T
            return (cc.all_reduce(y, "tp", to=cc.I) if self.split else y) + self.bias

    def program() -> Any:
        with cc.Mesh(tp=2, dp=3) as mesh:
            at = np.array_split(np.arange(5), 2)[int(mesh.axis("tp").rank)]
            model = DataParallel(Split(slice(at[0], at[-1] + 1), True), "dp", zero=zero)
            on = mesh.axis("dp")
            part = np.array_split(X, 3)[int(on.rank)]
            x = ag.tensor(part, {"dp": cc.Shard(0), "tp": cc.I}, global_shape=X.shape)
            with ag.Tape() as tape:
                loss = (model(x) ** 2).sum() / len(X)
            tape.backward(loss)
            norm = optim.clip_grad_norm_(model.parameters(), 0.1)
            return norm, optim.global_norm([p.grad for p in model.parameters()])

    model = Split(slice(None), False)
    with ag.Tape() as tape:
        loss = (model(X) ** 2).sum() / len(X)
    tape.backward(loss)
    expected = optim.clip_grad_norm_(model.parameters(), 0.1)
    for norm, clipped in cc.run(program, 6):
        assert abs(norm - expected) <= 1e-12 * expected and abs(clipped - 0.1) < 1e-6


def test_row_30_clipped_before_the_sum() -> None:
    """horovod#1346. The gradients of a DataParallel model are summed when backward returns, so clip sees the sum."""

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            model = DataParallel(make_model(), "dp")
            with ag.Tape() as tape:
                loss = nn.cross_entropy(model(rows(mesh, X)), rows(mesh, Y), reduction="sum") / len(X) * 50.0
            tape.backward(loss)
            return optim.clip_grad_norm_(model.parameters(), 1.0)

    expected = np.sqrt(sum((g**2).sum() for g in serial(50)))
    for norm in cc.run(program, 3):
        assert abs(norm - expected) <= 1e-12 * expected


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_row_47_a_group_whose_ranks_are_not_the_first_ones(zero: int) -> None:
    """DeepSpeed#7672: the parts were found by the rank in the world."""

    def program() -> Any:
        with cc.Mesh(dp=3, other=2) as mesh:  # groups of "dp": ranks 0, 2, 4 and 1, 3, 5
            model = DataParallel(make_model(), "dp", zero=zero)
            on = mesh.axis("dp")
            x, y = (
                ag.tensor(np.array_split(a, 3)[int(on.rank)], {"dp": cc.Shard(0), "other": cc.I}, global_shape=a.shape)
                for a in (X, Y)
            )
            with ag.Tape() as tape:
                loss = nn.cross_entropy(model(x), y, reduction="sum") / len(X)
            tape.backward(loss)
            return [(cc.all_gather(p.grad, "dp") if zero else p.grad).numpy().copy() for p in model.parameters()]

    for ours in cc.run(program, 6):
        assert_close(ours, serial())


def test_an_overflow_on_one_rank_is_in_the_sum_on_all() -> None:
    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            found = []
            for options in ({}, {"bucket_bytes": 0}, {"zero": 2}):
                model = DataParallel(nn.Linear(1, 6, bias=False, dtype=np.float16), "dp", **options)
                value = 6e4 if mesh.ranks.index == 1 else 1.0
                x = cc.from_local(np.full((2, 1), value, np.float16), {"dp": cc.Shard(0)})
                with ag.Tape() as tape:
                    loss = (model(x) * np.float16(2.0)).sum()
                with np.errstate(over="ignore"):
                    tape.backward(loss)
                whole = [cc.all_gather(p.grad, "dp") if "zero" in options else p.grad for p in model.parameters()]
                found.append(all(np.isinf(g.numpy()).all() for g in whole))
            return found

    assert cc.run(program, 3) == [[True] * 3] * 3


def test_the_order_of_examples_is_that_of_one_process_after_a_resume_on_other_ranks() -> None:
    """A sampler that counts each rank's examples repeats some of them, and leaves out others, on another number."""
    dataset = data.TensorDataset(np.arange(23))

    def read(state: Any, count: int) -> Any:
        with cc.Mesh(dp=-1):
            loader = data.DataLoader(dataset, 4, shuffle=True, key=random.Key(3, "order"), axis="dp")
            if state is not None:
                loader.load_state_dict(state)
            seen = []
            for i, (x,) in enumerate(loader):
                seen.append(cc.all_gather(x, "dp").numpy().tolist())
                if i + 1 == count:
                    break
            return seen, loader.state_dict()

    whole, _ = cc.run(lambda: read(None, 99), 1)[0]
    first, state = cc.run(lambda: read(None, 2), 3)[0]
    rest, _ = cc.run(lambda: read(state, 99), 2)[0]
    assert first + rest == whole and sorted(sum(whole, [])) == list(range(23))
