"""A mixture of experts on one process and on meshes: the same tokens, weights and cotangents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, random
from autograd.whole import whole_of
from collectives import I, Shard, V
from parallel import DataParallel, Experts, MixtureOfExperts, parallelize, side_losses

WIDTH, HIDDEN = 4, 7
TOKENS = np.random.default_rng(0).normal(size=(6, 5, WIDTH))
TOKENS[..., -1] = 1.0  # a feature by which a router can prefer an expert
WEIGHTS = np.random.default_rng(1).normal(size=TOKENS.shape)
DIMS = {"dp": Shard(0), "ep": Shard(0), "cp": Shard(1), "tp": I}


@dataclass(frozen=True)
class Case:
    """A layer and how its router is biased: by expert, what is added to the logits of all tokens."""

    experts: int
    options: tuple[tuple[str, Any], ...] = ()
    bias: tuple[tuple[int, float], ...] = ()

    def make(self) -> MixtureOfExperts:
        key = random.Key(3, "mixture")
        layer = MixtureOfExperts(WIDTH, HIDDEN, self.experts, dtype=float, key=key, **dict(self.options))
        for expert, value in self.bias:
            layer.router.weight.array[-1, expert] += value
        return layer


def case(experts: int, bias: Mapping[int, float] | None = None, **options: Any) -> Case:
    return Case(experts, tuple(options.items()), tuple((bias or {}).items()))


@dataclass
class Result:
    """The result of a layer, the objective, and the gradients. On a mesh `y` and `of_tokens` are this rank's parts."""

    y: Any
    loss: float
    of_tokens: Any
    gradients: dict[str, Any]
    load: Any
    side: float = 0.0
    labels: dict[str, Any] = field(default_factory=dict)


@cache
def serial(c: Case) -> Result:
    layer, x = c.make(), ag.tensor(TOKENS, requires_grad=True)
    with ag.Tape() as tape, side_losses() as side:
        y = layer(x)
        loss = (y * WEIGHTS).sum() + sum(side)
    tape.backward(loss)
    gradients = {name: p.grad.numpy() for name, p in layer.named_parameters()}
    return Result(y.numpy(), loss.item(), x.grad.numpy(), gradients, layer.load, sum(x.item() for x in side))


def mine(whole: Any, mesh: cc.Mesh, labels: Mapping[str, Any]) -> Any:
    """This rank's part of an array. V is a part of the sequence too."""
    for name in mesh.names:
        label = labels[name]
        if label is not I:
            dim = 1 if label is V else label.dim
            whole = np.array_split(whole, mesh.axis(name).size, dim)[int(mesh.axis(name).rank)]
    return whole


def on_mesh(c: Case, sizes: Mapping[str, int], labels: Mapping[str, Any] | None = None, wrap: Any = None) -> Result:
    """The same as `serial` on the ranks of a mesh; a rank calls it."""
    labels = {name: {**DIMS, **(labels or {})}[name] for name in sizes}
    with cc.Mesh(**sizes) as mesh:
        layer: Any = c.make()
        if "ep" in sizes:
            layer = divided(layer, mesh)
        batch = tuple(name for name in sizes if name != "tp")
        model = DataParallel(layer, batch) if batch else layer
        x = cc.from_local(mine(TOKENS, mesh, labels), labels, requires_grad=True)
        weights = cc.from_local(mine(WEIGHTS, mesh, labels), labels)
        with ag.Tape() as tape, side_losses() as side:
            y = (wrap(model) if wrap else model)(x)
            assert y.layout == x.layout
            loss = (y * weights).sum()
            for name in sizes:
                if name == "tp" and labels[name] is not I:
                    loss = cc.all_reduce(loss, name, to=I)  # the layer has summed its side loss along it
            total = loss + sum(side)
            for name in batch:
                total = cc.all_reduce(total, name, to=I)
        tape.backward(total)
        gradients = {n: whole_of(p.grad.array, p.layout, "test", n) for n, p in layer.named_parameters()}
        return Result(y.numpy(), total.item(), x.grad.numpy(), gradients, layer.load, labels=labels)


def divided(layer: MixtureOfExperts, mesh: cc.Mesh, axis: str = "ep") -> Any:
    return parallelize(nn.Sequential(layer), {"0": Experts(axis)}, mesh)[0]


def assert_equal(ours: Result, c: Case, mesh_of: Any) -> None:
    """Compare this rank's result with the serial one."""
    theirs = serial(c)
    near = {"rtol": 0, "atol": 1e-10}
    np.testing.assert_allclose(ours.y, mesh_of(theirs.y), **near)
    np.testing.assert_allclose(ours.of_tokens, mesh_of(theirs.of_tokens), **near)
    assert abs(ours.loss - theirs.loss) < 1e-10
    assert list(ours.gradients) == list(theirs.gradients)
    for name, g in theirs.gradients.items():
        scale = max(np.linalg.norm(g), 1e-6)
        assert np.linalg.norm(ours.gradients[name] - g) <= 1e-10 * scale, name
    assert ours.load.experts.tolist() == theirs.load.experts.tolist()
    assert ours.load.dropped == theirs.load.dropped
    assert ours.load.ranks.sum() == theirs.load.experts.sum()


def check(c: Case, sizes: Mapping[str, int], labels: Mapping[str, Any] | None = None, wrap: Any = None) -> list[Result]:
    """Run a case on threads, and compare it on every rank with one process."""

    def program() -> Result:
        ours = on_mesh(c, sizes, labels, wrap)
        with cc.Mesh(**sizes) as mesh:
            assert_equal(ours, c, lambda whole: mine(whole, mesh, ours.labels))
        return ours

    serial(c)
    return cc.run(program, int(np.prod(list(sizes.values()))))
