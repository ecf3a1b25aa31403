"""Layers on a mesh: parts of the examples give the serial gradients; what would be wrong is refused."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, ops, random
from autograd.engine.primitive import registry
from autograd.errors import LayoutError
from autograd.layouts.layout import C, I, P, R, Shard, V
from autograd.ops.nn.unfold import windows

F = {"dtype": float}
ROWS = 7


class Images(nn.Module):
    def __init__(self) -> None:
        self.one, self.two = nn.Conv2d(2, 4, 3, padding=1, **F), nn.Conv2d(4, 4, 2, groups=2, **F)
        self.read = nn.Linear(4, 3, **F)

    def forward(self, x: Any) -> Any:
        x = ops.max_pool(nn.gelu(self.one(x)), 2)
        x = ops.avg_pool(nn.silu(self.two(x)), 2)
        x = nn.dropout(x.reshape(-1, 4), 0.3, key=random.Key(0, "drop"))
        return ((self.read(x)) ** 3).sum()


class Words(nn.Module):
    def __init__(self) -> None:
        self.embed, self.norm = nn.Embedding(9, 8, **F), nn.LayerNorm(8, **F)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True, rotary=True, **F)
        self.scale, self.cell = nn.RMSNorm(8, **F), nn.GRUCell(8, 5, **F)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        x = self.scale(x + self.attend(self.norm(x), need_weights=False, is_causal=True)[0])
        h = None
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return (h**3).sum()


class Story(nn.Module):
    """Padded words: masks that are parts of the data, dropout everywhere, a recurrent layer in both directions."""

    def __init__(self) -> None:
        self.embed = nn.Embedding(9, 8, padding_idx=0, **F)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=True, norm_first=True, **F)
        self.group, self.leaky = nn.GroupNorm(2, 4, **F), nn.LeakyReLU(0.2)
        self.lstm = nn.LSTM(8, 3, 2, batch_first=True, dropout=0.3, bidirectional=True, **F)

    def forward(self, words: Any) -> Any:
        x = self.layer(self.embed(words), src_key_padding_mask=words == 0)
        y, (h, _) = self.lstm(self.leaky(self.group(x)))
        return (y**3).sum() + (h**2).sum()


MODELS: dict[str, Any] = {
    "story": (Story, numpy.random.default_rng(3).integers(0, 9, (ROWS, 4))),
    "images": (Images, numpy.random.default_rng(1).standard_normal((ROWS, 2, 6, 6))),
    "words": (Words, numpy.random.default_rng(2).integers(0, 9, (ROWS, 4))),
}


def build(name: str) -> tuple[Any, Any]:
    random.seed(11)
    make, x = MODELS[name]
    return make(), x


def entered(model: nn.Module) -> list[tuple[dict[str, Any], str, Any]]:
    """Every parameter cast to R for the time of a forward pass, as data parallelism does."""
    kept = []
    for _, owner, attribute, p in list(model.named_owners()):
        kept.append((vars(owner), attribute, p))
        vars(owner)[attribute] = cc.cast(p, "dp", to=R)
    return kept


SHARDED = [pytest.param(name, Shard(0), id=f"sharded-{name}") for name in MODELS]
# The others drop by one key, which values without a place refuse; `tests/autograd/random/test_layouts.py` has that.
OWN_VALUES = [pytest.param(name, V, id=f"own values-{name}") for name in MODELS if name == "words"]


@pytest.mark.parametrize(("name", "label"), [*SHARDED, *OWN_VALUES])
@pytest.mark.parametrize("ranks", [1, 3])
def test_parts_of_the_examples_give_the_serial_gradients(name: str, ranks: int, label: Any) -> None:
    model, x = build(name)
    with ag.Tape() as tape:
        loss = model(ag.tensor(x))
    tape.backward(loss)
    wanted = {k: p.grad.numpy() for k, p in model.named_parameters()}

    def program() -> Any:
        with cc.Mesh(dp=ranks) as mesh:
            model, x = build(name)
            part = numpy.array_split(x, ranks)[mesh.place[0]]
            data = ag.tensor(part, {"dp": label}, global_shape=None if label is V else x.shape)
            with ag.Tape() as tape:
                kept = entered(model)
                loss = cc.all_reduce(model(data), "dp", to=I)
                for attributes, attribute, p in kept:
                    attributes[attribute] = p
            tape.backward(loss)
            return {k: p.grad.numpy() for k, p in model.named_parameters()}

    for found in cc.run(program, ranks):
        assert found.keys() == wanted.keys()
        for k, g in found.items():
            numpy.testing.assert_allclose(g, wanted[k], rtol=1e-10, atol=1e-10, err_msg=k)


def test_a_convolution_of_invariant_weights_and_parts_is_refused() -> None:
    with cc.Mesh(dp=1):
        layer = nn.Conv1d(2, 3, 2, **F)
        x = ag.tensor(numpy.ones((4, 2, 5)), {"dp": Shard(0)})
        with pytest.raises(LayoutError, match=r"cast\(layer.weight, 'dp', to=R\)"):
            layer(x)


@pytest.mark.parametrize("dim, result", [(0, Shard(0)), (1, "P"), (2, None)])
def test_where_a_convolution_may_be_sharded(dim: int, result: Any) -> None:
    """By examples; by channels with the weight's to match, which is Partial by proof; not by places."""
    with cc.Mesh(tp=1):
        x = ag.tensor(numpy.ones((4, 2, 5)), {"tp": Shard(dim)})
        w = ag.tensor(numpy.ones((3, 2, 2)), {"tp": Shard(1) if dim == 1 else R})
        if result is None:
            with pytest.raises(LayoutError, match="mixes along dimension 2"):
                ops.convolution(x, w)
        else:
            label = ops.convolution(x, w).layout["tp"]
            assert label == result or label.letter == result
        outputs = ops.convolution(ag.tensor(numpy.ones((4, 2, 5)), {"tp": R}), ag.tensor(w.numpy(), {"tp": Shard(0)}))
        assert outputs.layout["tp"] == Shard(1)
        with pytest.raises(LayoutError, match="mixes along"):
            ops.convolution(ag.tensor(numpy.ones((4, 2, 5)), {"tp": Shard(1)}),
                            ag.tensor(numpy.ones((2, 1, 2)), {"tp": Shard(0)}), groups=2)  # fmt: skip


def test_rows_by_number_have_the_layout_of_the_numbers() -> None:
    """An index by V numbers would be labelled R if only the table's layout counted."""
    with cc.Mesh(dp=1):
        table = ag.tensor(numpy.ones((4, 2)), {"dp": R})
        assert nn.embedding(numpy.array([1, 2]), table).layout["dp"] is V
        assert nn.embedding(ag.constant([1, 2]), table).layout["dp"] is R
        assert nn.embedding(ag.tensor([[1], [2]], {"dp": Shard(0)}), table).layout["dp"] == Shard(0)
        with pytest.raises(LayoutError, match="mixes along dimension 0"):
            nn.embedding(ag.constant([1, 2]), ag.tensor(numpy.ones((4, 2)), {"dp": Shard(0)}))


# -- batch norm --------------------------------------------------------------------------------------------------------


def test_batch_norm_of_parts() -> None:
    def program() -> Any:
        with cc.Mesh(dp=2) as mesh:
            place = mesh.place[0]
            layer = nn.BatchNorm1d(3, affine=False, **F)
            x = numpy.random.default_rng(place).standard_normal((4, 3))
            with pytest.raises(LayoutError, match="takes no sharded examples"):
                layer(ag.tensor(x, {"dp": Shard(0)}))
            y = layer(ag.tensor(x))
            assert y.layout["dp"] is V and layer.running_mean.layout["dp"] is V
            numpy.testing.assert_allclose(layer.running_mean.numpy(), 0.1 * x.mean(axis=0))
            numpy.testing.assert_allclose(layer.running_var.numpy(), 0.9 + 0.1 * x.var(axis=0, ddof=1))
            assert layer.eval()(ag.tensor(x, {"dp": R})).layout["dp"] is V
            state = layer.state_dict()
            fresh = nn.BatchNorm1d(3, affine=False, **F)
            fresh.load_state_dict(state)
            numpy.testing.assert_array_equal(fresh.running_var, state["running_var"])
            same = nn.BatchNorm1d(3, affine=False, **F)
            same(ag.tensor(numpy.arange(6.0).reshape(2, 3), {"dp": R}))  # equal copies: equal statistics
            assert same.running_mean.layout["dp"] is C
            assert same.eval()(ag.tensor(numpy.ones((2, 3)), {"dp": I})).layout["dp"] is I
            return True

    assert all(cc.run(program, 2))


# -- where parameters start --------------------------------------------------------------------------------------------

INITS: dict[str, Any] = {
    "uniform_": lambda p, key: nn.init.uniform_(p, -1.0, 2.0, key),
    "normal_": lambda p, key: nn.init.normal_(p, 0.5, 0.1, key),
    "trunc_normal_": lambda p, key: nn.init.trunc_normal_(p, 0.0, 0.5, -0.6, 0.7, key),
    "xavier_uniform_": lambda p, key: nn.init.xavier_uniform_(p, 2.0, key),
    "xavier_normal_": lambda p, key: nn.init.xavier_normal_(p, key=key),
    "kaiming_uniform_": lambda p, key: nn.init.kaiming_uniform_(p, 0.1, "fan_out", key=key),
    "kaiming_normal_": lambda p, key: nn.init.kaiming_normal_(p, nonlinearity="relu", key=key),
    "orthogonal_": lambda p, key: nn.init.orthogonal_(p, 1.5, key),
}


@pytest.mark.parametrize("name", INITS)
def test_a_part_of_a_parameter_starts_as_its_part_of_the_whole(name: str) -> None:
    key, shape = random.Key(4, name), (6, 5)
    whole = INITS[name](ag.Parameter(numpy.zeros(shape)), key).numpy()
    assert len(numpy.unique(whole)) > 25

    def program() -> Any:
        with cc.Mesh(dp=2, tp=2) as mesh:
            part = numpy.array_split(numpy.zeros(shape), 2, axis=1)[mesh.place[1]]
            p = ag.Parameter(part, {"tp": Shard(1)}, global_shape=shape)
            assert INITS[name](p, key) is p
            return mesh.place, p.numpy()

    for place, found in cc.run(program, 4):
        numpy.testing.assert_array_equal(found, numpy.array_split(whole, 2, axis=1)[place[1]])


def test_the_cotangent_of_a_shared_kernel_is_partial_by_proof() -> None:
    with cc.Mesh(dp=1):
        ct, x = (ag.tensor(numpy.ones((4, n, 5)), {"dp": Shard(0)}) for n in (3, 2))
        geometry = (tuple(windows("test", (5,), 1)), 1)
        assert registry["convolution_weight"](ct, x, options=geometry).layout["dp"] is P
        index = ag.tensor([1, 2, 0, 1], {"dp": Shard(0)})
        assert registry["add_rows"](ct, index, options=(3,)).layout["dp"] is P
