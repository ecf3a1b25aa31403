"""Transforms and checkpoints around data parallelism: entries of parameters inside what is run again."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, random
from collectives import I, Shard
from parallel import DataParallel
from parallel.recompute import Recomputed

ROWS = numpy.random.default_rng(0).standard_normal((7, 3))


class Part(nn.Module):
    """A part of a model that is run again: as layers of a deep net are."""

    def __init__(self, wrap: Any, inner: Any):
        self.inner = inner
        self.wrap = wrap

    def forward(self, x: Any) -> Any:
        return self.wrap(self.inner)(x)


class Noise(nn.Module):
    """A layer with a generator of NumPy, another one on each rank."""

    def __init__(self, rng: Any):
        self.rng = rng

    def forward(self, x: Any) -> Any:
        return x * ag.tensor(self.rng.normal(size=x.shape).astype("float32"), {"dp": Shard(0)}, global_shape=(7, 4))


def step(ranks: int, wrap: Any, inside: bool, noisy: bool = False) -> Any:
    """The gradients of one step, with the entry inside the checkpoint or the checkpoint inside the entry."""

    def program() -> list[Any]:
        with cc.Mesh(dp=ranks) as mesh:
            random.seed(1)
            noise = Noise(numpy.random.default_rng(int(mesh.axis("dp").rank)))
            body = nn.Sequential(nn.Linear(3, 4), *[noise] * noisy, nn.Linear(4, 2))
            for p in body.parameters():
                p.data = p.array * 1.0
            if inside:
                model = wrap(DataParallel(body, "dp"))
            else:
                model = DataParallel(nn.Sequential(Part(wrap, body)), "dp")
            part = numpy.array_split(ROWS, ranks)[int(mesh.axis("dp").rank)].astype("float32")
            x = ag.tensor(part, {"dp": Shard(0)}, global_shape=ROWS.shape)
            with ag.Tape() as tape:
                loss = cc.all_reduce(np.sum(np.tanh(model(x)) ** 2), "dp", to=I)
            tape.backward(loss)
            return [p.grad.array.copy() for p in body.parameters() if p.grad is not None]

    return cc.run(program, ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("inside", [True, False])
def test_checkpoint_and_data_parallelism(ranks: int, inside: bool) -> None:
    expected = step(ranks, lambda f: f, inside)
    found = step(ranks, ag.checkpoint, inside)
    serial = step(1, lambda f: f, inside)[0]
    for mine, reference in zip(found, expected, strict=True):
        assert len(mine) == 4
        for g, e, s in zip(mine, reference, serial, strict=True):
            numpy.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-6)
            numpy.testing.assert_allclose(g, s, rtol=1e-4, atol=1e-5)


def recomputed(f: Any) -> Any:
    return Recomputed(f) if isinstance(f, nn.Module) else ag.checkpoint(f)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("wrap", [ag.checkpoint, recomputed])
def test_generators_of_the_ranks_are_rewound(ranks: int, wrap: Any) -> None:
    for inside in (True, False):
        expected, found = (step(ranks, w, inside, noisy=True) for w in (lambda f: f, wrap))
        for mine, reference in zip(found, expected, strict=True):
            for g, e in zip(mine, reference, strict=True):
                numpy.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-6)


def test_the_check_is_seen_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run that does not find the entered parameters meets the bare ones: refused, not wrong."""
    monkeypatch.setattr(DataParallel, "_reuse_entry", lambda *args: nullcontext())
    with pytest.raises(ag.LayoutError, match="Invariant"):
        step(2, ag.checkpoint, inside=False)
