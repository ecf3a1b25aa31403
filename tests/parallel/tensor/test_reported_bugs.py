"""Rows of real bugs about tensor and sequence parallelism, with the layers of `parallel.tensor`.

Each is refused by the layouts, made impossible, or found by the comparison with one process. `tests/parallel/test_bugs`
has the same rows written with collectives alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import LayoutError, ReplicaMismatch
from autograd.whole import whole_of
from collectives import I, P, R, Shard, V
from examples.gpt import Loss
from parallel import Column, DataParallel, Row, Sequence, parallelize
from parallel.tensor import ColumnLinear, vocabulary_cross_entropy

from .models import CONFIG, HEAD, X, Y, divided_loss, divided_model, make_model, plan, serial, whole_gradients

Array = Any


def on(ranks: int, program: Callable[[cc.Mesh], Any], **sizes: int) -> list[Any]:
    def run() -> Any:
        with cc.Mesh(**(sizes or {"tp": -1})) as mesh:
            return program(mesh)

    return cc.run(run, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_row_1_a_norm_on_parts_of_the_sequence(ranks: int) -> None:
    """Megatron-LM#1446: the gradients of a norm's weights were those of each rank's tokens.

    Without the style `Sequence` the layouts refuse it, on one process too; with it the gradients are the serial ones.
    """

    def program(mesh: cc.Mesh) -> None:
        forgotten = {pattern: style for pattern, style in plan(True).items() if not isinstance(style, Sequence)}
        model = parallelize(make_model(), forgotten)
        says = r"layer_norm\(x: .*Shard\(1\)[\s\S]*fix: cast\(1.norm1.weight, 'tp', to=R\)"
        with pytest.raises(LayoutError, match=says):
            model(cc.from_local(X, {"tp": I}))

    on(ranks, program)


def test_row_2_a_router_on_parts_of_the_sequence() -> None:
    """Megatron-LM#619: any module with whole weights on parts of the tokens, here a linear layer."""
    w, x = np.random.default_rng(0).normal(size=(4, 3)), np.random.default_rng(1).normal(size=(2, 5, 4))

    def make() -> Any:
        router = nn.Linear(4, 3, bias=False, dtype=float)
        router.weight.data = w
        return nn.Sequential(router)

    expected = ag.grad(lambda w: (anp.tanh(x @ w) ** 2).sum())(w)

    def program(mesh: cc.Mesh) -> Any:
        part = cc.shard(ag.constant(x), "tp", 1)
        with pytest.raises(LayoutError, match="Invariant"):
            make()(part)
        router = parallelize(make(), {"0": Sequence("tp")})
        with ag.Tape() as tape:
            loss = cc.all_reduce((anp.tanh(router(part)) ** 2).sum(), "tp", to=I)
        tape.backward(loss)
        assert router[0].module.weight.grad.layout["tp"] is I
        return router[0].module.weight.grad.numpy()

    for found in on(3, program):
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_row_4_the_gradient_of_a_column_layers_input() -> None:
    """torchtitan#1805: dx was declared Replicated, though each rank has an addend. Here it is I, and the sum."""
    x, ct = np.random.default_rng(0).normal(size=(2, 8)), np.random.default_rng(1).normal(size=(2, 6))
    layer = lambda: nn.Linear(8, 6, dtype=float, key=random.Key(1))
    expected = ag.grad(lambda x: (layer()(x) * ct).sum())(x)

    def program(mesh: cc.Mesh) -> Any:
        leaf = ag.tensor(x, {"tp": I}, requires_grad=True)
        model = parallelize(layer(), {"*": Column("tp")})
        with ag.Tape() as tape:
            loss = cc.all_reduce((model(leaf) * cc.shard(ag.constant(ct), "tp", 1)).sum(), "tp", to=I)
        tape.backward(loss)
        assert leaf.grad.layout["tp"] is I
        return leaf.grad.numpy()

    for found in on(3, program):
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_row_6_two_axes() -> None:
    """torchtitan#2532: unwrapping for data parallelism dropped that tp uses the weight on data of its own.

    The norms of a stream in parts enter along both axes, in either order of the entries; a model whose norms enter
    along "dp" only is refused.
    """

    def gradients(model: Any, mesh: cc.Mesh) -> Any:
        on = mesh.axis("dp")
        x, y = (cc.from_local(np.array_split(a, on.size)[int(on.rank)], {"dp": Shard(0), "tp": I}) for a in (X, Y))
        random.seed(7)
        with ag.Tape() as tape:
            loss = cc.all_reduce(divided_loss()(model(x), y) / X.size, "dp", to=I)
        tape.backward(loss)
        return whole_gradients(model)

    def program(mesh: cc.Mesh) -> Any:
        forgotten = {pattern: style for pattern, style in plan(True).items() if not isinstance(style, Sequence)}
        with pytest.raises(LayoutError, match="axis 'tp'"):
            gradients(DataParallel(parallelize(make_model(), forgotten), "dp"), mesh)
        return gradients(DataParallel(divided_model(True), "dp"), mesh), gradients(
            DataParallel(parallelize(make_model(), forgotten), ("dp", "tp")), mesh
        )

    for both in on(4, program, dp=2, tp=2):
        for found in both:
            for name, g in serial().gradients.items():
                np.testing.assert_allclose(found[name].reshape(g.shape), g, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 3])
def test_row_10_the_labels_logit_is_summed_off_the_tape(ranks: int) -> None:
    """ms-swift#9947. The raw sum has lost its label, and taken for I it is refused at the loss; or found (V)."""

    def program(mesh: cc.Mesh) -> None:
        model = divided_model().eval()
        with ag.Tape() as tape:
            logits = model(cc.from_local(X, {"tp": I}))
            with pytest.raises(ag.TapeError, match="stop_gradient"):
                logits.numpy()
            raw = ag.stop_gradient(logits).numpy()
            picked = cc.world().all_reduce(np.ascontiguousarray(raw[..., 0]).ravel())
            loss = -ag.tensor(picked).sum()
        with pytest.raises(LayoutError, match="Varying"):
            tape.backward(loss)

    on(ranks, program)


@pytest.mark.parametrize("to", [R, I])
def test_row_19_gathered_logits_in_the_vocabularys_cross_entropy(to: Any) -> None:
    """Megatron-LM#7452. Each rank would take its classes for those of its number."""

    def program(mesh: cc.Mesh) -> None:
        logits = divided_model().eval()(cc.from_local(X, {"tp": I}))
        whole = cc.all_gather(logits, "tp", 2, to=to)
        with pytest.raises(LayoutError, match="every rank has the logits of all classes[\\s\\S]*nn.cross_entropy"):
            divided_loss()(whole, ag.constant(Y))
        assert abs(float(Loss()(whole, ag.constant(Y))) - float(divided_loss()(logits, ag.constant(Y)))) < 1e-10

    on(2, program)


def test_row_17_the_bias_of_a_row_layer() -> None:
    """torchtitan#2106: the bias was added to the addend of each rank, so it counted p times."""
    layer = nn.Linear(6, 2, dtype=float)
    x = np.random.default_rng(0).normal(size=(3, 6))

    def program(mesh: cc.Mesh) -> Any:
        model = nn.Linear(6, 2, dtype=float)
        model.load_state_dict(layer.state_dict())
        divided = parallelize(model, {"*": Row("tp")})
        with ag.Tape() as tape:
            y = divided(cc.shard(ag.constant(x), "tp", 1))
            loss = (y * y).sum()
        tape.backward(loss)
        assert divided.bias.grad.layout["tp"] is I
        return y.numpy(), divided.bias.grad.numpy()

    expected = layer(x).numpy()
    for y, gradient in on(4, program):
        np.testing.assert_allclose(y, expected, atol=1e-13)
        np.testing.assert_allclose(gradient, 2 * expected.sum(0), atol=1e-13)


@pytest.mark.parametrize("sequence", [False, True])
def test_row_28_the_norm_counts_whole_gradients_once(sequence: bool) -> None:
    """NeMo RL#3788: the squares of gradients that are the same on all ranks of "tp" were added once per rank."""
    gradients = serial().gradients
    expected = sum(float((g**2).sum()) for g in gradients.values()) ** 0.5

    def program(mesh: cc.Mesh) -> float:
        model = divided_model(sequence)
        random.seed(7)
        with ag.Tape() as tape:
            loss = divided_loss()(model(cc.from_local(X, {"tp": I})), cc.from_local(Y, {"tp": I})) / X.size
        tape.backward(loss)
        return float(optim.clip_grad_norm_(model.parameters(), 1.0))

    for found in on(3, program):
        assert abs(found - expected) < 1e-10


def test_row_31_slices_of_other_models() -> None:
    """torchtitan#166: a seed per rank. A part has nothing to be compared with, so the wholes are compared before."""

    def program(mesh: cc.Mesh) -> None:
        random.seed(int(mesh.axis("tp").rank))
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
        with pytest.raises(ReplicaMismatch, match="0.weight"):
            parallelize(model, {"0": Column("tp"), "2": Row("tp")})

    on(2, program)


def test_row_34_dropout_on_parts() -> None:
    """transformers#31412: the same mask on ranks whose data differ.

    On parts of the sequence or of the features each rank has its part of the mask. A mask without places is refused.
    """
    whole = np.ones((3, 6, 8))
    random.seed(3)
    expected = nn.Dropout(0.5)(whole)

    def program(mesh: cc.Mesh) -> Any:
        found = []
        for dim in (1, 2):
            random.seed(3)
            found.append(cc.all_gather(nn.Dropout(0.5)(cc.shard(ag.constant(whole), "tp", dim)), "tp", dim).numpy())
        part = cc.shard(ag.constant(whole), "tp", 1)
        with pytest.raises(LayoutError, match="Drawn|drawn|same on all ranks|mask"):
            part * random.bernoulli(random.Key(3), tuple(int(n) for n in part.shape), 0.5)
        with pytest.raises(LayoutError, match="axis 'tp'"):
            nn.Dropout(0.5)(cc.cast(part, "tp", to=V))
        return found

    for found in on(3, program):
        for each in found:
            np.testing.assert_array_equal(each, expected)


def test_row_50_a_fused_projection_on_another_number_of_ranks() -> None:
    """ColossalAI#817: saved at tp=4, divided evenly at tp=2, so that a rank had the queries and the first keys.

    The divided projection is [inputs, 3, width], Shard(2): its whole value has the blocks of the serial one in order.
    """

    def logits(model: Any, mesh: cc.Mesh) -> Any:
        return cc.all_gather(model.eval()(cc.from_local(X, {"tp": I})), "tp", 2).numpy()

    def save(mesh: cc.Mesh) -> Any:
        model = divided_model()
        for p in model.parameters():
            p.data = p.numpy() * 1.5
        return model.state_dict(), logits(model, mesh)

    saved, expected = on(4, save)[0]
    width = CONFIG.width
    assert saved["1.qkv.weight"].shape == (width, 3, width)
    serial_model = make_model()
    serial_model.load_state_dict({n: saved[n].reshape(v.shape) for n, v in serial_model.state_dict().items()})
    np.testing.assert_allclose(serial_model.eval()(X).numpy(), expected, atol=1e-12)

    def load(mesh: cc.Mesh) -> Any:
        model = divided_model()
        model.load_state_dict(saved)
        return logits(model, mesh)

    def evenly(mesh: cc.Mesh) -> Any:
        """The mutant: the columns of the whole matrix are divided without their blocks."""
        model = divided_model()
        for block in model.layers[1:-1]:
            flat = np.array_split(saved["1.qkv.weight"].reshape(width, -1), mesh.axis("tp").size, 1)
            mine = flat[int(mesh.axis("tp").rank)]
            assert isinstance(block.qkv, ColumnLinear)
            block.qkv.weight.data = mine.reshape(block.qkv.weight.array.shape)
        return logits(model, mesh)

    for ranks in (1, 2, 3):
        for found in on(ranks, load):
            np.testing.assert_allclose(found, expected, atol=1e-12)
    assert all(np.abs(found - expected).max() > 0.01 for found in on(2, evenly))
    assert all(np.abs(found - expected).max() < 10 for found in on(1, evenly)), "one rank has all columns"


def test_row_15_a_constant_beside_addends() -> None:
    """pytorch#163193: 10 was added to an addend. Within a region, after a row layer's product, that is refused."""

    def program(mesh: cc.Mesh) -> None:
        x = cc.shard(ag.constant(np.ones((2, 6))), "tp", 1)
        w = cc.shard(ag.constant(np.ones((6, 3))), "tp", 0)
        with pytest.raises(LayoutError, match="Partial"):
            x @ w + 10.0
        assert (x @ w).layout["tp"] is P

    on(2, program)


def test_every_head_is_computed_once() -> None:
    """Row 50 within one run: heads of the parts, in order of the ranks, are those of the serial model."""
    width = CONFIG.width
    qkv = nn.Linear(width, 3 * width, dtype=float, key=random.Key(1))
    x = np.random.default_rng(0).normal(size=(2, 5, width))
    attend = nn.SelfAttention(HEAD, rotary=True)
    expected = attend(qkv(x).numpy().reshape(2, 5, 3, width))

    def program(mesh: cc.Mesh) -> Any:
        layer = parallelize(nn.Linear(width, 3 * width, dtype=float, key=random.Key(1)), {"*": Column("tp", 3, HEAD)})
        return cc.all_gather(attend(layer(ag.constant(x))), "tp", 2).numpy()

    for found in on(4, program):
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_losses_of_the_vocabulary_count_once() -> None:
    """Row 13 (jax#3970) in its form here: the loss is I, and is summed no more. Seeded on every rank it counts once."""

    def program(mesh: cc.Mesh) -> Any:
        logits = cc.shard(ag.constant(np.eye(4)), "tp", 1)
        leaf = cc.from_local(logits.numpy(), {"tp": Shard(1)}, requires_grad=True)
        with ag.Tape() as tape:
            loss = vocabulary_cross_entropy(leaf, ag.constant(np.arange(4)), "tp", reduction="sum")
            with pytest.raises(LayoutError, match="leave all_reduce out"):
                cc.all_reduce(loss, "tp", to=I)
        tape.backward(loss)
        return whole_of(leaf.grad.array, leaf.layout, "test", "x")

    expected = ag.grad(lambda x: nn.cross_entropy(x, np.arange(4), reduction="sum"))(np.eye(4))
    for found in on(2, program):
        np.testing.assert_allclose(found, expected, atol=1e-14)
