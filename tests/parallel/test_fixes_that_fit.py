"""The fixes that errors and warnings offer fit the program: each is followed to the serial gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim
from autograd.errors import GradientWarning
from collectives import I, R, V
from parallel import DataParallel

X = numpy.random.default_rng(0).standard_normal((6, 4))
W = numpy.random.default_rng(1).standard_normal((4, 6))


def refusal(program: Callable[[], Any], ranks: int = 2) -> str:
    with pytest.raises(ag.LayoutError) as caught:
        cc.run(program, ranks)
    return str(caught.value)


class Divided(nn.Module):
    """A layer with a divided weight; its bias is added to addends, unless it is fixed."""

    def __init__(self, *, is_fixed: bool) -> None:
        self.is_fixed = is_fixed
        self.w = ag.Parameter(cc.shard(ag.tensor(W, {"tp": R}), "tp", dim=0))
        self.b = ag.Parameter(numpy.ones(6))

    def forward(self, x: Any) -> Any:
        addend = cc.shard(x, "tp", dim=1) @ self.w
        if self.is_fixed:
            return cc.all_reduce(addend + cc.cast(self.b, "tp", to=cc.P), "tp", to=I)
        return cc.all_reduce(addend + self.b, "tp", to=I)


def test_data_parallelism_is_not_offered_to_a_model_with_divided_weights() -> None:
    def program(*, is_fixed: bool) -> Any:
        with cc.Mesh(tp=-1):
            net = Divided(is_fixed=is_fixed)
            with ag.Tape() as tape:
                loss = (net(ag.tensor(X, {"tp": R})) ** 2).sum()
            tape.backward(loss)
            return net.b.grad.numpy()

    text = refusal(lambda: program(is_fixed=False))
    assert "cast(self.b, 'tp', to=P)" in text and "DataParallel" not in text
    for found in cc.run(lambda: program(is_fixed=True), 2):
        numpy.testing.assert_allclose(found, 2 * (X @ W + 1).sum(0))


class Normalized(nn.Module):
    """A layer and a batch norm, of the rows of this rank or of all ranks."""

    def __init__(self, *, is_fixed: bool) -> None:
        self.is_fixed = is_fixed
        self.linear, self.norm = nn.Linear(4, 6, dtype=float), nn.BatchNorm1d(6, dtype=float)
        self.linear.weight.data = W

    def forward(self, x: Any) -> Any:
        h = self.linear(x)
        if self.is_fixed:
            return cc.shard(self.norm(cc.all_gather(h, "dp", dim=0)), "dp", dim=0)
        return self.norm(h)


def test_batch_norm_says_what_to_use_for_divided_rows() -> None:
    def gradients(net: Any, model: Any, x: Any, total: Callable[[Any], Any]) -> Any:
        with ag.Tape() as tape:
            loss = total((np.tanh(model(x)) ** 3).sum())
        tape.backward(loss)
        return [p.grad.numpy() for p in net.parameters()], net.norm.running_mean

    def program(*, is_fixed: bool) -> Any:
        with cc.Mesh(dp=-1):
            net = Normalized(is_fixed=is_fixed)
            x = cc.shard(ag.tensor(X, {"dp": R}), "dp")
            found, mean = gradients(net, DataParallel(net, "dp"), x, lambda s: cc.all_reduce(s, "dp", to=I))
            return found, numpy.asarray(mean.array)

    text = refusal(lambda: program(is_fixed=False))
    assert "BatchNorm1d takes no sharded examples" in text
    assert "fix: LayerNorm, RMSNorm or GroupNorm in its place" in text
    assert "shard(norm(all_gather(h, 'dp', dim=0)), 'dp', dim=0)" in text and "centred" not in text
    ag.random.seed(0)
    net = Normalized(is_fixed=False)
    wanted, mean = gradients(net, net, X, lambda s: s)
    for found, running in cc.run(lambda: (ag.random.seed(0), program(is_fixed=True))[1], 3):
        numpy.testing.assert_allclose(running, mean)
        for a, b in zip(found, wanted, strict=True):
            numpy.testing.assert_allclose(a, b, atol=1e-12)


BESIDE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "a constant": (
        lambda y: y * np.arange(1.0, 7.0)[:, None],
        lambda y: y * cc.shard(np.arange(1.0, 7.0)[:, None], "dp", dim=0),
        ", 'dp', dim=0)   (this rank's part",
    ),
    "a constant of a part's extent": (
        lambda y: y * np.arange(1.0, 1.0 + int(y.shape[0]))[:, None],
        lambda y: y * cc.shard(ag.tensor(numpy.arange(1.0, 7.0), {"dp": R})[:, None], "dp", dim=0),
        "fix: shard(whole, 'dp', dim=0), with whole made for all 6 and labelled R, in place of ",
    ),
    "a condition": (
        lambda y: np.where(np.arange(int(y.shape[0]))[:, None] % 2 == 0, y, 0),
        lambda y: np.where(cc.shard(ag.tensor(numpy.arange(6), {"dp": R})[:, None] % 2 == 0, "dp", dim=0), y, 0),
        "fix: shard(whole, 'dp', dim=0), with whole made for all 6 and labelled R, in place of condition",
    ),
}


@pytest.mark.parametrize("use", BESIDE)
def test_a_constant_beside_parts(use: str) -> None:
    wrong, fixed, says = BESIDE[use]

    def program(operation: Callable[[Any], Any]) -> Any:
        with cc.Mesh(dp=-1) as mesh:
            assert mesh.sizes
            w = ag.Parameter(numpy.ones(4))
            x = cc.shard(ag.tensor(X, {"dp": R}), "dp")
            with ag.Tape() as tape:
                y = np.tanh(x * cc.cast(w, "dp", to=R))
                loss = cc.all_reduce(operation(y).sum(), "dp", to=I)
            tape.backward(loss)
            return w.grad.numpy()

    text = refusal(lambda: program(wrong))
    assert says in text and "mesh." not in text, text
    with ag.Tape() as tape:
        w = ag.Parameter(numpy.ones(4))
        loss = wrong(np.tanh(X * w)).sum()
    tape.backward(loss)
    for found in cc.run(lambda: program(fixed), 2):
        numpy.testing.assert_allclose(found, w.grad.numpy())


def test_the_columns_of_a_fused_weight() -> None:
    """Three weights, each divided by columns, have the gradients of the one that is split."""

    def program(*, is_fused: bool) -> Any:
        with cc.Mesh(tp=-1):
            x, whole = ag.tensor(X, {"tp": R}), [ag.tensor(a, {"tp": R}) for a in numpy.split(W, 3, 1)]
            if is_fused:
                w = ag.Parameter(cc.shard(ag.tensor(W, {"tp": R}), "tp", dim=1))
                np.split(x @ w, 3, axis=-1)
            weights = [ag.Parameter(cc.shard(a, "tp", dim=1)) for a in whole]
            with ag.Tape() as tape:
                q, k, v = (x @ w for w in weights)
                loss = cc.all_reduce((np.tanh(q * k) * v).sum(), "tp", to=I)
            tape.backward(loss)
            return [p.grad.numpy() for p in weights]

    assert "a weight for each slice, each divided by columns" in refusal(lambda: program(is_fused=True))

    def serial(w: Any) -> Any:
        q, k, v = np.split(X @ w, 3, axis=-1)
        return (np.tanh(q * k) * v).sum()

    parts = cc.run(lambda: program(is_fused=False), 2)
    found = numpy.concatenate([numpy.concatenate([rank[i] for rank in parts], 1) for i in range(3)], 1)
    numpy.testing.assert_allclose(found, ag.grad(serial)(W))


def warned(program: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        cc.run(program, 2)
    return [str(each.message) for each in caught if each.category is GradientWarning]


def test_messages_of_one_line_without_influence_are_told_once() -> None:
    def program() -> None:
        with cc.Mesh(pp=2) as mesh:
            stage = int(mesh.axis("pp").rank)
            w = ag.Parameter(W[stage], {"pp": V})
            for _ in range(4):
                with ag.Tape() as tape:
                    mine = None
                    if stage == 0:
                        cc.send(w * 2, "pp", 1)
                    else:
                        mine = (w * ag.stop_gradient(cc.recv("pp", 0))).sum()
                    loss = cc.broadcast(mine, "pp", 1, to=I)
                tape.backward(loss)

    (text,) = warned(program)
    assert "a message from rank 0, received at test_fixes_that_fit.py:" in text


@pytest.mark.parametrize("mistake", ["zero_grad before step", "an optimizer of replaced parameters"])
def test_a_step_without_gradients_names_its_causes(mistake: str) -> None:
    def program() -> None:
        with cc.Mesh(dp=-1):
            net = nn.Linear(4, 6, dtype=float)
            optimizer = optim.SGD(net.parameters(), lr=0.1)
            if mistake == "an optimizer of replaced parameters":
                net.weight, net.bias = ag.Parameter(W), ag.Parameter(numpy.zeros(6))
            x = cc.shard(ag.tensor(X, {"dp": R}), "dp")
            model = DataParallel(net, "dp")
            with ag.Tape() as tape:
                loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=I)
            tape.backward(loss)
            if mistake == "zero_grad before step":
                optimizer.zero_grad()
            optimizer.step()

    text = warned(program)[0]
    assert "or:  zero_grad() after step(), or before backward" in text
    assert "or:  make the optimizer after the last parameter of the model was replaced" in text
