"""`parallelize` and `Shards`: patterns, replaced modules, tied weights, parts, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, random
from autograd.errors import ArgumentError, LayoutError, MeshError, OptionError, ReplicaMismatch, ShapeError
from autograd.whole import whole_of
from collectives import I, Shard
from parallel import Column, Row, Sequence, Shards, Vocabulary, parallelize
from parallel.tensor import ColumnLinear, RowLinear, VocabularyEmbedding

from .models import make_model, plan


def on(ranks: int, program: Callable[[cc.Mesh], Any], **sizes: int) -> list[Any]:
    def run() -> Any:
        with cc.Mesh(**(sizes or {"tp": -1})) as mesh:
            return program(mesh)

    return cc.run(run, ranks)


def linear(inputs: int = 4, outputs: int = 6) -> nn.Linear:
    return nn.Linear(inputs, outputs, dtype=float, key=random.Key(0))


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "blocks", "unit"), [(0, 1, 1), (1, 1, 1), (-1, 3, 1), (1, 2, 2), (1, 1, 3), (0, 5, 1)])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_parts_are_slices_of_the_whole(ranks: int, dim: int, blocks: int, unit: int) -> None:
    whole = np.random.default_rng(0).normal(size=(5, 12))

    def program(mesh: cc.Mesh) -> None:
        p = ag.Parameter(whole, name="w")
        part = Shards(mesh).divide(p, "tp", dim, blocks, unit)
        found = whole_of(part.array, part.layout, "test", "w")
        np.testing.assert_array_equal(found.reshape(whole.shape), whole)
        assert part.name == "w" and part.array.flags.c_contiguous and part.array.base is None
        label = part.layout["tp"]
        assert label == Shard(dim % 2 + (blocks > 1)) and part.array.shape[label.dim] % unit == 0
        assert part.global_shape == found.shape

    on(ranks, program)


def test_labels_of_other_axes_are_kept() -> None:
    def program(mesh: cc.Mesh) -> None:
        p = ag.Parameter(np.ones((3, 4, 6)), {"ep": Shard(2), "pp": cc.V}, global_shape=None)
        part = Shards(mesh).divide(p, "tp", 1, blocks=2)
        assert dict(part.layout) == {"tp": Shard(2), "ep": Shard(3), "pp": cc.V}
        frozen = ag.Parameter(np.ones(4), requires_grad=False)
        assert not Shards(mesh).divide(frozen, "tp", 0).requires_grad

    on(2, program, tp=2, ep=1, pp=1)


def test_divisions_that_are_refused() -> None:
    def program(mesh: cc.Mesh) -> None:
        shards, w = Shards(mesh), ag.Parameter(np.ones((4, 6)), name="w")
        assert shards.divide(w, "tp", 0) is shards.divide(w, "tp", -2)
        with pytest.raises(LayoutError, match="dimension 0, blocks=1.*dimension 1, blocks=3"):
            shards.divide(w, "tp", 1, blocks=3)
        with pytest.raises(LayoutError, match="axis 'tp': the parameter is Shard; needed: Invariant"):
            shards.divide(shards.divide(w, "tp", 0), "tp", 1)
        with pytest.raises(LayoutError, match="axis 'dp': it divides dimension 0 already"):
            shards.divide(ag.Parameter(np.ones((4, 6)), {"dp": Shard(0)}), "tp", 0)
        for options in ({"blocks": 4}, {"unit": 4}, {"blocks": 3, "unit": 4}, {"blocks": 0}, {"unit": 0}):
            with pytest.raises(ShapeError, match="needed: an extent of dimension 1 that is a multiple"):
                shards.divide(ag.Parameter(np.ones((4, 6))), "tp", 1, **options)
        with pytest.raises(ShapeError, match="needed: an extent"):
            shards.divide(ag.Parameter(np.array(1.0)), "tp", 0)
        with pytest.raises(MeshError, match="'mp'"):
            shards.divide(ag.Parameter(np.ones(4)), "mp", 0)

    on(2, program, tp=2, dp=1)


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_modules_are_replaced_everywhere() -> None:
    """In attributes, lists, tuples and dictionaries, and a shared module at all of its places."""

    class Model(nn.Module):
        def __init__(self) -> None:
            self.one = linear()
            self.several = [linear(), self.one]
            self.pair = (linear(), nn.ReLU())
            self.named = nn.ModuleDict({"a": linear()})
            self.inner = nn.Sequential(nn.Sequential(linear()), nn.Linear(6, 4, dtype=float))

    def program(mesh: cc.Mesh) -> None:
        model = Model().eval()
        names = [name for name, _ in model.named_parameters()]
        found = parallelize(model, {"one": Column("tp"), "several.0": Column("tp"), "pair.0": Column("tp"),
                                    "*.a": Column("tp"), "inner.0.*": Column("tp"), "inner.1": Row("tp")})  # fmt: skip
        assert found is model and model.one is model.several[1]
        made = [model.one, model.several[0], model.pair[0], model.named["a"], model.inner[0][0]]
        assert all(isinstance(each, ColumnLinear) and not each.training for each in made)
        assert isinstance(model.inner[1], RowLinear) and isinstance(model.pair, tuple)
        assert [name for name, _ in model.named_parameters()] == names

    on(2, program)


def test_a_single_layer_and_inner_modules_first() -> None:
    class Twice:
        """A style that wraps the module that it gets."""

        def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
            assert isinstance(module, nn.Sequential) and isinstance(module[0], ColumnLinear)
            return nn.Sequential(*module)

    def program(mesh: cc.Mesh) -> None:
        assert isinstance(parallelize(linear(), {"*": Column("tp")}), ColumnLinear)
        model = nn.Sequential(nn.Sequential(linear()))
        inner = model[0]
        parallelize(model, {"0": Twice(), "0.0": Column("tp")})
        assert model[0] is not inner

    on(2, program)


def test_patterns_that_match_nothing_or_twice() -> None:
    def program(mesh: cc.Mesh) -> None:
        with pytest.raises(OptionError, match=r"'\*.qvk' matches no module.*similar paths: '1.qkv'"):
            parallelize(make_model(), {"*.qvk": Column("tp")})
        with pytest.raises(OptionError, match=r"'up' matches no module.*similar paths: '1.mlp.up'"):
            parallelize(make_model(), {"up": Column("tp")})
        with pytest.raises(OptionError, match="its paths: '0', '1'"):
            parallelize(nn.Sequential(linear(), linear()), {"encoder": Column("tp")})
        with pytest.raises(OptionError, match=r"'\*.up' and '\*.mlp.\*' both match '1.mlp.up', a Linear"):
            parallelize(make_model(), {"*.up": Column("tp"), "*.mlp.*": Column("tp")})

    on(1, program)


def test_without_a_mesh_the_model_stays_as_it_is() -> None:
    model = make_model()
    assert parallelize(model, plan()) is model and type(model[1].qkv) is nn.Linear
    with pytest.raises(OptionError, match="matches no module"):  # also on one process
        parallelize(model, {"*.nothing": Column("tp")})


def test_the_mesh_may_be_given() -> None:
    def program() -> None:
        mesh = cc.Mesh(tp=-1)
        model = parallelize(linear(), {"*": Column("tp")}, mesh)
        with mesh:
            assert model(cc.from_local(np.ones((2, 4)), {"tp": I})).global_shape == (2, 6)
        with pytest.raises(MeshError, match="no mesh is current"):
            model(np.ones((2, 4)))

    cc.run(program, 2)


@pytest.mark.parametrize(("given", "error", "says"), [
    ((3, {}), ArgumentError, "3 was given; needed: a Module"),
    ((linear(), [("*", Column("tp"))]), ArgumentError, "needed: a mapping from pattern to style"),
    ((linear(), {"*": Column}), ArgumentError, "needed: a pattern of module paths and a style"),
    ((linear(), {"*": "column"}), ArgumentError, "a style, an object with a method apply"),
    ((linear(), {0: Column("tp")}), ArgumentError, "a pattern of module paths"),
    ((linear(), {"*": Column("mp")}), MeshError, "'mp'"),
    ((linear(), {"*": Column("tp", blocks=5)}), ShapeError, "multiple of blocks"),
    ((nn.LayerNorm(4), {"*": Column("tp")}), ArgumentError, "is a LayerNorm; needed: an nn.Linear"),
    ((nn.LayerNorm(4), {"*": Vocabulary("tp")}), ArgumentError, "needed: an nn.Embedding, nn.TiedLinear"),
    ((nn.CrossEntropyLoss(np.ones(3)), {"*": Vocabulary("tp")}), OptionError, "class weights"),
    ((linear(), {"*": type("Nothing", (), {"apply": lambda *_: None})()}), ArgumentError, "needed: a Module"),
    ((linear(), {"*": Column("tp")}, "mesh"), ArgumentError, "needed: a Mesh"),
], ids=range(12))  # fmt: skip
def test_refused(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        on(1, lambda mesh: parallelize(*given))


@pytest.mark.parametrize(("make", "error", "says"), [
    (lambda: Column(("dp", "tp")), ArgumentError, "Column: axis="), (lambda: Row(3), ArgumentError, "Row: axis=3"),
    (lambda: Row("tp", to=cc.R), OptionError, "Row: to=R was given; needed: I, or Shard"),
    (lambda: Vocabulary("tp", to=1), OptionError, "Vocabulary: to=1"),
    (lambda: Sequence(None), ArgumentError, "Sequence: axis=None"),
])  # fmt: skip
def test_styles_that_are_refused(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


# -- tied weights ------------------------------------------------------------------------------------------------------


def test_a_tied_weight_is_divided_once() -> None:
    def program(mesh: cc.Mesh) -> None:
        model = parallelize(make_model(), plan())
        assert model[0].table.weight is model[3].out.weight
        assert isinstance(model[0].table, VocabularyEmbedding)

    on(3, program)


def test_a_tie_that_the_plan_would_break() -> None:
    def program(mesh: cc.Mesh) -> None:
        incomplete = {k: v for k, v in plan().items() if k != "*.out"}
        model = make_model()
        before = [(path, id(module)) for path, module in model.named_modules()]
        with pytest.raises(LayoutError, match=r"3.out.weight, of a TiedLinear that no pattern matches, is the same"):
            parallelize(model, incomplete)
        assert [(path, id(module)) for path, module in model.named_modules()] == before, "the model is as before"
        parallelize(model, plan())
        with pytest.raises(ArgumentError, match="'1.mlp.up' is a ColumnLinear, which is divided already"):
            parallelize(model, plan())

    on(2, program)


# -- values ------------------------------------------------------------------------------------------------------------


def test_ranks_with_other_weights() -> None:
    """Slices of different models would train, and the loss would fall."""

    def program(mesh: cc.Mesh) -> None:
        random.seed(int(mesh.axis("tp").rank))
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        with pytest.raises(ReplicaMismatch):
            parallelize(model, {"0": Column("tp")})
        assert type(model[0]) is nn.Linear

    on(2, program)


def test_a_checkpoint_of_one_number_of_ranks_is_loaded_on_another() -> None:
    saved = on(4, lambda mesh: parallelize(make_model(), plan()).state_dict())[0]
    serial = make_model().state_dict()
    for name, value in serial.items():
        np.testing.assert_array_equal(saved[name].reshape(value.shape), value)

    def load(mesh: cc.Mesh) -> Any:
        model = parallelize(make_model(), plan())
        for p in model.parameters():
            p.data = p.numpy() * 0
        model.load_state_dict(saved)
        return model.state_dict()

    for ranks in (1, 3):
        for found in on(ranks, load):
            for name, value in serial.items():
                np.testing.assert_array_equal(found[name].reshape(value.shape), value)


def test_what_a_divided_model_prints() -> None:
    def program(mesh: cc.Mesh) -> str:
        return repr(parallelize(make_model(), plan(True)))

    text = on(2, program)[0]
    for part in (
        "(qkv): ColumnLinear([24, 3, 12] of this rank, axis='tp')", "(norm1): SequenceModule(axis='tp'",
        "(down): RowLinear([48, 24] of this rank, axis='tp', to=Shard(1))",
        "(table): VocabularyEmbedding(7 of 13 rows, 24, axis='tp', to=Shard(1))",
    ):  # fmt: skip
        assert part in text, text
    assert [repr(style) for style in plan(True).values()] == [
        "Vocabulary('tp', to=Shard(1))", "Column('tp', blocks=3, unit=4)", "Row('tp', to=Shard(1), unit=4)",
        "Column('tp')", "Row('tp', to=Shard(1))", "Vocabulary('tp')", "Sequence('tp')",
    ]  # fmt: skip


# -- a plan that lacks a style ----------------------------------------------------------------------------------------


class Hidden(nn.Module):
    def __init__(self) -> None:
        self.norm, self.up, self.down = nn.LayerNorm(4, dtype=float), linear(4, 6), linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.down(self.up(self.norm(x)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_column_without_its_row_says_so_by_the_path_of_the_module(ranks: int) -> None:
    x = np.ones((3, 4))

    def program(mesh: cc.Mesh) -> None:
        model = parallelize(nn.Sequential(Hidden(), Hidden()), {"1.up": Column("tp")})
        with pytest.raises(LayoutError, match=r"'1.up' is divided by Column\('tp'\)") as caught:
            model(ag.constant(x))
        fixes = [line for line in str(caught.value).splitlines() if line.startswith(("  fix: ", "  or:  "))]
        assert fixes[0] == "  fix: \"1.down\": Row('tp') in the plan" and fixes[1].startswith("  or:  shard(1.down")
        whole = parallelize(nn.Sequential(Hidden(), Hidden()), {"*.up": Column("tp"), "*.down": Row("tp")})
        assert whole(ag.constant(x)).shape == (3, 4)
        with pytest.raises(LayoutError) as other:  # about something else: no advice
            whole(ag.tensor(x))
        assert "in the plan" not in str(other.value)

    on(ranks, program)


def test_a_norm_after_a_column_says_so() -> None:
    def program(mesh: cc.Mesh) -> None:
        model = parallelize(nn.Sequential(linear(4, 6), nn.LayerNorm(6), linear(6, 4)), {"0": Column("tp")})
        with pytest.raises((LayoutError, ShapeError), match=r"fix: Row\('tp'\) for the layer after '0' in the plan"):
            model(ag.constant(np.ones((3, 4))))

    on(2, program)


def test_a_row_without_its_column_names_its_module() -> None:
    def program(mesh: cc.Mesh) -> None:
        model = parallelize(nn.Sequential(Hidden()), {"*.down": Row("tp")})
        with pytest.raises(LayoutError, match=r"RowLinear '0.down'\(x: .*\n.*every rank has all features"):
            model(ag.constant(np.ones((3, 4))))

    on(2, program)
