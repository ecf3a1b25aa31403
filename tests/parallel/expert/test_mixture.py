"""The mixture of experts on one process against a dense reference, and its gradients against differences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
from autograd import nn, ops, optim, random
from autograd.testing import check_grads
from examples.gpt import Block, Config, Loss
from parallel import Experts, MixtureOfExperts, side_losses
from parallel.expert import Load, add_side_loss, balance_loss
from parallel.expert import mixture as module

from .cases import TOKENS, WEIGHTS, case, serial


def gelu(x: Any) -> Any:
    return x * (1 + anp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def dense(layer: MixtureOfExperts, x: Any, kept: Any, of: Any) -> tuple[Any, Any]:
    """Every expert applied to all tokens, multiplied by its weight or 0; and the balance loss by its definition."""
    router, up, up_bias, down, down_bias = of
    probabilities = anp.exp(x @ router)
    probabilities = probabilities / probabilities.sum(-1, keepdims=True)
    k = layer.router.top_k
    chosen = np.zeros(x.shape[:-1] + (layer.experts,))
    np.put_along_axis(chosen, np.argsort(-ops.arguments.raw(probabilities), -1)[..., :k], 1.0, -1)
    weights = probabilities * chosen
    if layer.router.renormalize:
        weights = weights / weights.sum(-1, keepdims=True)
    y: Any = 0
    for e in range(layer.experts):
        hidden = gelu(x @ up[e] + up_bias[e])
        y = y + (weights * kept)[..., e : e + 1] * (hidden @ down[e] + down_bias[e])
    tokens = x.size // x.shape[-1]
    share = chosen.reshape(-1, layer.experts).sum(0) / (k * tokens)
    mean = probabilities.reshape(-1, layer.experts).sum(0) / tokens
    return y, layer.experts * (share * mean).sum() * tokens


def kept_by_counting(layer: MixtureOfExperts, x: Any) -> Any:
    """Which choices fit, counted token by token in Python."""
    kept = np.zeros((*x.shape[:-1], layer.experts))
    logits = (x @ layer.router.weight.array).reshape(-1, layer.experts)
    limit = math.inf
    if layer.capacity is not None:
        limit = math.ceil(layer.capacity * len(logits) * layer.router.top_k / layer.experts)
    queue = [0] * layer.experts
    for t, row in enumerate(logits):
        for e in np.argsort(-row)[: layer.router.top_k]:
            queue[e] += 1
            kept.reshape(-1, layer.experts)[t, e] = queue[e] <= limit
    return kept


CASES = {
    "top 2": case(4),
    "top 1": case(5, top_k=1, balance=0.3),
    "top 1, renormalized": case(3, top_k=1, renormalize=True),
    "top 3 of 3": case(3, top_k=3, renormalize=False),
    "capacity": case(4, capacity=0.6, balance=1.0),
    "an expert without tokens": case(4, {2: -90.0}),
    "all tokens to one expert": case(3, {1: 90.0}, top_k=1, renormalize=True, capacity=0.5),
    "one expert": case(1, top_k=1),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_dense_computation(name: str) -> None:
    c = CASES[name]
    layer, found = c.make(), serial(c)
    kept = kept_by_counting(layer, TOKENS)
    parameters = [p.numpy() for p in layer.parameters()]
    y, side = dense(layer, TOKENS, kept, parameters)
    np.testing.assert_allclose(found.y, y, rtol=0, atol=1e-12)
    assert abs(found.side - layer.balance * side) < 1e-12
    assert found.load.experts.tolist() == kept.reshape(-1, layer.experts).sum(0).tolist()
    assert found.load.dropped == TOKENS[..., 0].size * layer.router.top_k - kept.sum()

    def objective(x: Any, *of: Any) -> Any:
        y, side = dense(layer, x, kept, of)
        return (y * WEIGHTS).sum() + layer.balance * side

    expected = ag.grad(objective, argnum=tuple(range(6)))(TOKENS, *parameters)
    for ours, theirs in zip([found.of_tokens, *found.gradients.values()], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11)


def test_every_parameter_has_a_gradient_that_is_not_a_small_number() -> None:
    """The comparisons above are of something."""
    for g in serial(CASES["capacity"]).gradients.values():
        assert np.abs(g).max() > 0.05


@pytest.mark.parametrize("name", ["top 2", "capacity", "an expert without tokens"])
def test_gradients_are_those_of_differences(name: str) -> None:
    layer = CASES[name].make()
    parts = list(layer.named_parameters())

    def f(x: Any, *values: Any) -> Any:
        for (_, owner, attribute, _), value in zip(owners, values, strict=True):
            vars(owner)[attribute] = value
        with side_losses() as side:
            return (layer(x) * WEIGHTS[:2, :2]).sum() + sum(side)

    owners = list(layer.named_owners())
    check_grads(f, TOKENS[:2, :2], *(p.numpy() for _, p in parts), order=1)


def test_the_balance_loss_is_one_for_each_token_where_all_experts_are_equal() -> None:
    p = ag.tensor(np.full((6, 4), 0.25))
    assert balance_loss(p, np.array([3, 3, 3, 3]), 2).item() == pytest.approx(6)
    assert balance_loss(p, np.array([12, 0, 0, 0]), 2).item() == pytest.approx(6)
    skewed = ag.tensor(np.tile([0.7, 0.1, 0.1, 0.1], (6, 1)))
    assert balance_loss(skewed, np.array([12, 0, 0, 0]), 2).item() == pytest.approx(6 * 4 * 0.7)


def test_training_with_the_balance_loss_evens_the_load() -> None:
    imbalance = []
    for balance in (0.0, 0.2):
        layer = case(4, {1: 2.0}, top_k=1, balance=balance).make()
        optimizer = optim.Adam(layer.parameters(), lr=0.03)
        for _ in range(60):
            optimizer.zero_grad()
            with ag.Tape() as tape, side_losses() as side:
                loss = ((layer(TOKENS) - WEIGHTS) ** 2).sum() / 120 + sum(side) / 30
            tape.backward(loss)
            optimizer.step()
        imbalance.append(layer.load.expert_imbalance)
    assert imbalance[1] < 1.5 < 2 < imbalance[0]


# -- side losses -------------------------------------------------------------------------------------------------------
def test_side_losses_are_collected_by_the_innermost_block() -> None:
    layer = case(3, z=0.1).make()
    with side_losses() as outer:
        layer(TOKENS)
        with side_losses() as inner:
            layer(TOKENS)
            layer(TOKENS)
        with pytest.raises(ZeroDivisionError), side_losses():
            layer(TOKENS)
            _ = 1 / 0
        add_side_loss(1.0)
    layer(TOKENS)  # nothing collects it
    add_side_loss(2.0)
    assert (len(outer), len(inner)) == (2, 2) and outer[1] == 1.0
    with side_losses() as none:
        case(3, balance=0.0).make()(TOKENS)
    assert none == [] and sum(none) == 0


def test_the_z_loss_is_the_square_of_the_log_of_the_sum() -> None:
    layer = case(3, balance=0.0, z=0.5).make()
    with side_losses() as side:
        layer(TOKENS)
    logits = TOKENS @ layer.router.weight.numpy()
    assert side[0].item() == pytest.approx(0.5 * (np.log(np.exp(logits).sum(-1)) ** 2).sum())


@pytest.mark.parametrize("collects", [True, False])
def test_checkpoints_keep_the_gradients_of_side_losses(collects: bool) -> None:
    found = []
    for wrap in (ag.checkpoint, lambda f: f):
        layer = nn.Sequential(case(3, balance=1.0).make(), case(4, balance=1.0, capacity=0.7).make())
        x = ag.tensor(TOKENS, requires_grad=True)
        with ag.Tape() as tape, side_losses() as side:
            y = x
            for each in layer:
                y = wrap(each)(y)
            loss = (y * WEIGHTS).sum() + (sum(side) if collects else 0.0)
        tape.backward(loss)
        assert len(side) == 2
        found.append([x.grad.numpy(), *(p.grad.numpy() for p in layer.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


# -- in a GPT ----------------------------------------------------------------------------------------------------------
def test_it_takes_the_place_of_the_mlp_of_a_block() -> None:
    config, key = Config(vocabulary=5, width=8, heads=2, layers=1), random.Key(0)
    block = Block(config, key, float, mlp=MixtureOfExperts(8, 16, 3, dtype=float, key=key.fold("mlp")))
    x = np.random.default_rng(0).normal(size=(2, 4, 8))
    with ag.Tape() as tape, side_losses() as side:
        logits = block(x)[..., :5]
        loss = (Loss()(logits, np.zeros((2, 4), int)) + sum(side)) / 8
    tape.backward(loss)
    names = [name for name, p in block.named_parameters() if name.startswith("mlp") and np.abs(p.grad.numpy()).max()]
    assert names == ["mlp.router.weight", "mlp.up", "mlp.up_bias", "mlp.down", "mlp.down_bias"]


# -- shapes, options, errors -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(4,), (0, 4), (3, 4), (2, 0, 4), (2, 3, 5, 4)])
def test_tokens_of_any_shape(shape: tuple[int, ...]) -> None:
    layer = case(3, capacity=0.9).make()
    x = ag.tensor(np.ones(shape), requires_grad=True)
    with ag.Tape() as tape, side_losses() as side:
        loss = layer(x).sum() + sum(side)
    tape.backward(loss)
    assert x.grad.shape == shape and layer.load.chosen.sum() == 2 * np.prod(shape[:-1], dtype=int)


def test_single_precision_stays_single() -> None:
    layer = MixtureOfExperts(4, 8, 3, balance=1.0, z=0.1, key=random.Key(1))
    x = ag.tensor(TOKENS.astype("float32"), requires_grad=True)
    with ag.Tape() as tape, side_losses() as side:
        loss = layer(x).sum() + sum(side)
    tape.backward(loss)
    assert loss.dtype == x.grad.dtype == layer.up.grad.dtype == np.float32


def test_state_and_training_mode() -> None:
    a, b = case(3).make(), MixtureOfExperts(4, 7, 3, dtype=float, key=random.Key(9))
    assert np.abs(a(TOKENS).numpy() - b(TOKENS).numpy()).max() > 0.01
    b.load_state_dict(a.state_dict())
    np.testing.assert_array_equal(a.eval()(TOKENS).numpy(), b.train()(TOKENS).numpy())
    assert list(a.state_dict()) == ["router.weight", "up", "up_bias", "down", "down_bias"]


@pytest.mark.parametrize("words, message", [
    ({"top_k": 4}, "top_k=4 was given for 3 experts; needed: 1 to 3"),
    ({"top_k": 0}, "top_k=0"),
    ({"capacity": 0}, "capacity=0 was given; needed: a positive factor"),
    ({"capacity": -1.0}, "capacity=-1.0"),
    ({"experts": 0}, "0"),
])  # fmt: skip
def test_options_that_make_no_sense_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ag.errors.RingtapeError, match=message):
        MixtureOfExperts(**{"width": 4, "hidden": 8, "experts": 3, **words})


def test_tokens_of_another_width_are_refused() -> None:
    with pytest.raises(ag.errors.ShapeError, match="matmul"):
        case(3).make()(np.ones((2, 5)))


def test_the_style_is_for_mixtures_of_experts_that_are_whole() -> None:
    with pytest.raises(ag.errors.ArgumentError, match=r"Experts\('ep'\) was given for 'a.mlp', a Linear"):
        Experts("ep").apply(nn.Linear(2, 2), "a.mlp", None)  # type: ignore[arg-type]  # the error comes first
    layer = case(3).make()
    layer.axis = "ep"
    with pytest.raises(ag.errors.ArgumentError, match="divides already"):
        Experts("ep").apply(layer, "a.mlp", None)  # type: ignore[arg-type]


# -- the report --------------------------------------------------------------------------------------------------------
@pytest.fixture
def load() -> Iterator[Load]:
    chosen = np.array([[4, 0, 2], [1, 5, 0], [3, 3, 0], [0, 6, 0]])
    yield Load(chosen, np.minimum(chosen, 4), (2, 2), 1, (2, 1))


def test_the_report_counts_experts_and_ranks(load: Load, tmp_path: Any) -> None:
    assert load.experts.tolist() == [8, 11, 2] and load.dropped == 3
    assert load.ranks.tolist() == [9, 2, 10, 0], "experts 0 and 1 of the tokens of ranks 0 and 1, and so on"
    assert load.expert_imbalance == 11 / 7 and load.rank_imbalance == 10 / (21 / 4)
    assert str(load).splitlines()[0] == (
        "24 tokens for 3 experts on 4 ranks, 3 dropped; busiest / mean: experts 1.57, ranks 1.90")
    assert "       1      11   52.4%        3  " + "#" * 24 in str(load)
    load.draw(tmp_path / "load.png")
    assert (tmp_path / "load.png").stat().st_size > 5000


def test_no_tokens_are_balanced() -> None:
    empty = Load(np.zeros((1, 3), int), np.zeros((1, 3), int), (), None, (3,))
    assert empty.expert_imbalance == empty.rank_imbalance == 1 and "0 dropped" in str(empty)


# -- planted faults ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", ["weights", "order", "dropped"])
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(4, capacity=0.6, balance=1.0, top_k=2)
    layer, right = c.make(), serial(c).y
    plan = module.plan_dispatch

    def faulty(*args: Any) -> Any:
        made = plan(*args)
        if fault == "order":  # the rows of the experts in another order than their groups
            return made._replace(rows=made.rows[::-1].copy())
        if fault == "dropped":  # the first tokens of a queue instead of the last
            return plan(*args[:2], None, *args[3:])
        return made

    monkeypatch.setattr(module, "plan_dispatch", faulty)
    if fault == "weights":
        monkeypatch.setattr(module, "combine", lambda rows, w, *rest: module_combine(rows, w * 0 + 1.0, *rest))
    y = layer(TOKENS).numpy()
    assert np.abs(y - right).max() > 1e-3


module_combine = module.combine
