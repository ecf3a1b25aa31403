"""Training with backup workers, and the serial program of the rows that were used; on threads and between processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import BackupWorkers

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=lambda step: 0.1 / (1 + step), momentum=0.5),
    "Adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "LAMB": lambda p: optim.LAMB(p, lr=0.05),
    "groups": lambda p: optim.AdamW([{"params": list(p)[:1], "lr": 0.02}, {"params": list(p)[1:]}], lr=0.01),
}


class Net(nn.Module):
    """A model with a scalar parameter, and one that only odd ranks use."""

    def __init__(self, dtype: Any = float):
        random.seed(3)
        self.first, self.last = nn.Linear(3, 2, dtype=dtype), nn.Linear(2, 2, dtype=dtype)
        self.scale, self.odd = ag.Parameter(np.ones((), dtype)), ag.Parameter(np.full(2, 0.5, dtype))

    def forward(self, x: Any, rank: int) -> Any:
        y = self.last(np.tanh(self.first(x))) * self.scale
        return y * self.odd if rank % 2 else y


def batch(rank: int, step: int, dtype: Any = float) -> tuple[Any, Any]:
    """The rows of a rank, one more on each than on the one before it."""
    generator = np.random.default_rng((rank, step))
    return generator.normal(size=(1 + rank, 3)).astype(dtype), generator.integers(0, 2, 1 + rank)


def loss_of(model: Any, rank: int, step: int, of: float, dtype: Any = float) -> Any:
    x, y = batch(rank, step, dtype)
    return nn.cross_entropy(model(x, rank), y, reduction="sum") / of


def values(model: Any) -> np.ndarray:
    return np.concatenate([np.array(p.numpy()).ravel() for p in model.parameters()])


def train(
    backup: BackupWorkers, model: Any, rank: int, of: float, before: Callable[[int], None] = lambda step: None,
    dtype: Any = float,
) -> list[np.ndarray]:  # fmt: skip
    """Run the block's steps, and return the parameters after each that this rank was a member of, or has taken."""
    found = []
    for step in backup:
        with ag.Tape() as tape:
            loss = cc.declare_partial(loss_of(model, rank, step, of, dtype), "dp")
        tape.backward(loss)
        before(step)
        backup.step(rows=1 + rank, of=of)
        found.append(values(model))
    return found


def serial(name: str, members: Sequence[Sequence[int]], dtype: Any = float) -> list[np.ndarray]:
    """The parameters after each step, by one process that computes the mean over all rows of the members."""
    model = Net(dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    found = []
    for step, ranks in enumerate(members):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = sum(loss_of(model, rank, step, 1.0, dtype) for rank in ranks) / float(sum(r + 1 for r in ranks))
        tape.backward(loss)
        optimizer.step()
        found.append(values(model))
    return found


def run_and_compare(
    needed: int, steps: int, name: str = "Adam", script: Any = None, before: Any = None, of: float = 7.0,
    dtype: Any = float, tolerance: float = 1e-10,
) -> Any:  # fmt: skip
    """A block on each rank of a mesh of one axis: the parameters are those of the serial program, and the report."""
    with cc.Mesh(dp=-1) as mesh:
        rank, size = int(mesh.axis("dp").rank), int(mesh.axis("dp").size)
        model = Net(dtype)
        optimizer = OPTIMIZERS[name](model.parameters())
        with BackupWorkers(model, "dp", optimizer, needed=needed, steps=steps, script=script) as backup:
            found = train(backup, model, rank, of, (before or (lambda *_: lambda step: None))(backup, rank), dtype)
        report, mine = backup.report(), values(model)
        assert all(len(ranks) == needed and len(set(ranks)) == needed for ranks in report.members)
        everyone = [np.frombuffer(each) for each in mesh.axis("dp").group.exchange(mine.astype(float).tobytes())]
        assert all(np.array_equal(each, everyone[0]) for each in everyone)
        assert backup.used == sum(rank in ranks for ranks in report.members)
        assert backup.dropped == sum(rank in ranks for ranks in report.dropped)
        assert report.rows[rank] == backup.used * (1 + rank)
        assert report.dropped_rows[rank] == backup.dropped * (1 + rank)
        if size > 1:  # a synchronous step of the same optimizer compares its state between the ranks
            assert model.first.weight.layout["dp"] is cc.I
            for p in model.parameters():
                p.grad = ag.tensor(np.ones(p.shape, p.dtype), p.layout.dual)
            optimizer.step()
    expected = np.array(serial(name, report.members, dtype))  # outside of the mesh
    norm = np.linalg.norm(expected[-1] - values(Net(dtype)))
    assert np.linalg.norm(mine - expected[-1]) <= tolerance * norm
    ends = [np.linalg.norm(each - expected, axis=1).min() for each in found]
    assert max(ends) <= tolerance * norm  # what a rank has taken is the state after some step
    return mine, report


def late(rank: int, at: int, by: int) -> Any:
    """Make a rank compute, at its first step from `at` on, until so many later ones have been finished without it."""

    def before(backup: Any, mine: int) -> Callable[[int], None]:
        left = [at] if mine == rank else []

        def wait(now: int) -> None:
            if left and now >= left[0]:
                left.clear()
                last = min(now + by, backup.steps - 1)
                while not backup._arrivals.is_finished(last):
                    time.sleep(0.0005)

        return wait

    return before


def is_late(report: Any, rank: int, at: int, by: int) -> bool:
    """Whether the work of a rank was dropped once from step `at` on, and it has not begun so many steps after that."""
    for step in range(at, len(report.members)):
        absent = range(step + 1, min(step + by + 1, len(report.members)))
        if rank in report.dropped[step] and not any(rank in report.members[k] + report.dropped[k] for k in absent):
            return True
    return False
