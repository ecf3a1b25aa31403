"""Random numbers under a mesh: draws follow layouts, the same on any number of ranks; one mask on data that differ."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, random
from autograd.errors import DtypeError, LayoutError, MeshError, RingtapeError, ShapeError
from autograd.layouts.layout import C, D, I, Label, P, R, Rooted, Shard, V
from collectives.ops.headers import read, write

from ...on_mesh import on_mesh

KEY = random.Key(5, "draw", 2)
DRAWS = {
    "uniform": lambda key, shape: random.uniform(key, shape, low=-1, high=2, dtype="float32"),
    "normal": lambda key, shape: random.normal(key, shape, mean=1.0),
    "bernoulli": lambda key, shape: random.bernoulli(key, shape, 0.3),
    "integers": lambda key, shape: random.integers(key, shape, -4, 9),
}


def part(shape: tuple[int, ...], labels: dict[str, Label], mesh: cc.Mesh) -> numpy.ndarray:
    """This rank's part of zeros, axes in the mesh's order, by the rule of numpy.array_split."""
    whole = numpy.arange(numpy.prod(shape)).reshape(shape)
    for name, size, place in zip(mesh.names, mesh.sizes, mesh.place, strict=True):
        label = labels.get(name)
        if isinstance(label, Shard):
            whole = numpy.array_split(whole, size, label.dim)[place]
    return whole


# -- draws that are for a Tensor -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("axes, labels", [
    ({"dp": 1}, {"dp": Shard(0)}), ({"dp": 3}, {"dp": Shard(0)}), ({"dp": 5}, {"dp": Shard(1)}),
    ({"dp": 2, "tp": 3}, {"dp": Shard(0), "tp": Shard(1)}), ({"dp": 3, "tp": 2}, {"dp": Shard(1), "tp": Shard(1)}),
    ({"dp": 2, "tp": 2}, {"dp": R, "tp": Shard(0)}), ({"dp": 2, "tp": 2}, {"dp": I, "tp": P}),
    ({"dp": 2, "tp": 2}, {"dp": Rooted(1), "tp": Shard(1)}),
])  # fmt: skip
def test_a_draw_for_a_tensor_is_its_part_of_one_logical_draw(name: str, axes: Any, labels: Any) -> None:
    shape = (7, 11)
    whole = DRAWS[name](KEY, shape)
    flat = numpy.asarray(whole).reshape(-1)

    def body(mesh: cc.Mesh) -> Any:
        places = part(shape, labels, mesh)
        x = ag.tensor(places * 1.0, labels, global_shape=shape)
        drawn = DRAWS[name](KEY, x)
        assert isinstance(drawn, ag.Tensor) and drawn.dtype == whole.dtype
        assert dict(drawn.layout or {}) == {a: x if isinstance(x, Shard) else D for a, x in labels.items()}
        numpy.testing.assert_array_equal(drawn.numpy(), flat[places])
        return True

    assert all(on_mesh(body, **axes))


def test_a_draw_for_what_operations_made_of_a_part() -> None:
    """Labels that a transpose and a reshape have moved and scaled say where the elements are."""
    whole = random.normal(KEY, (4, 15))

    def body(mesh: cc.Mesh) -> Any:
        x = ag.tensor(part((5, 3, 4), {"dp": Shard(0)}, mesh) * 1.0, {"dp": Shard(0)}, global_shape=(5, 3, 4))
        y = x.reshape(-1, 4).T  # [4, 3n], sharded on the last dimension in multiples of 3
        drawn = random.normal(KEY, y)
        return drawn.numpy(), drawn.layout["dp"]

    found = on_mesh(body, dp=3)
    numpy.testing.assert_array_equal(numpy.concatenate([array for array, _ in found], axis=1), whole)
    assert all(label == Shard(1) for _, label in found)


@pytest.mark.parametrize("name", DRAWS)
def test_no_draw_for_values_without_a_place(name: str) -> None:
    def body(mesh: cc.Mesh) -> str:
        x = ag.tensor(numpy.zeros((2, 3)), {"tp": Shard(1)})
        with pytest.raises(LayoutError) as error:
            DRAWS[name](KEY, x)
        return str(error.value)

    for axes in ({"dp": 1, "tp": 1}, {"dp": 2, "tp": 2}):
        for text in on_mesh(body, **axes):
            for word in (f"{name}(key, x: f64[2,3] {{dp: V, tp: Shard(1)}})", "axis 'dp'", "different values (Varying)",
                         "fix: key.along('dp')", "cc.from_local(x, {'dp': Shard(0)})", "test_layouts.py:"):  # fmt: skip
                assert word in text


def test_a_key_along_an_axis_differs_there_and_nowhere_else() -> None:
    def body(mesh: cc.Mesh) -> Any:
        x = ag.tensor(numpy.zeros((2, 3)), {"tp": I})
        along = random.normal(KEY.along("dp"), x)
        assert dict(along.layout or {}) == {"dp": V, "tp": D}
        again = random.normal(KEY.along("dp"), (2, 3))
        assert dict(again.layout or {}) == {"dp": V, "tp": D}
        numpy.testing.assert_array_equal(again.numpy(), along.numpy())
        counts = random.integers(KEY.along("dp"), x, 0, 99)
        numpy.testing.assert_array_equal(random.integers(KEY.along("dp"), 3, 0, 99), counts.numpy()[0])
        return along.numpy().tolist(), random.permutation(KEY.along("dp"), 20).tolist()

    found = on_mesh(body, dp=3, tp=2)
    normals, orders = [x for x, _ in found], [x for _, x in found]
    for values in (normals, orders):
        assert values[0] == values[1] and values[2] == values[3] and values[4] == values[5]
        assert len({str(x) for x in values}) == 3
    assert str(random.normal(KEY, (2, 3)).tolist()) not in {str(x) for x in normals}
    # without a mesh an axis has one place: as on the first rank
    assert random.normal(KEY.along("dp"), (2, 3)).tolist() == normals[0]


def test_keys_along_axes_are_values() -> None:
    a = KEY.along("tp").along("dp")
    assert a == KEY.along("dp", "tp") == KEY.along("dp", "tp", "dp") and a != KEY and a.axes == ("dp", "tp")
    assert a.fold("x").axes == a.at(3).axes == ("dp", "tp")
    assert repr(a) == "Key(seed=5, name='draw', step=2, axes=('dp', 'tp'))"
    draws = [random.uniform(k, 8).tolist() for k in (KEY, a, KEY.along("dp"), KEY.along("tp"), KEY.along("d", "p"))]
    assert len({str(x) for x in draws}) == 5
    with pytest.raises(DtypeError, match="names of mesh axes"):
        KEY.along(3)
    with cc.Mesh(dp=1), pytest.raises(MeshError, match="'pp'"):
        random.uniform(KEY.along("pp"), 3)


def test_a_tensor_without_a_mesh_is_a_shape() -> None:
    x = ag.tensor(numpy.zeros((3, 2)))
    drawn = random.normal(KEY, x)
    assert type(drawn) is numpy.ndarray
    numpy.testing.assert_array_equal(drawn, random.normal(KEY, (3, 2)))
    with pytest.raises(ShapeError, match="part"):
        random.normal(KEY, x, part=(slice(0, 3), slice(0, 2)))


# -- draws of a shape ------------------------------------------------------------------------------------------------


def test_a_draw_of_a_shape_is_the_same_everywhere_and_says_so() -> None:
    with cc.Mesh(dp=1, tp=1):
        drawn = random.uniform(KEY, (2, 3))
        assert dict(drawn.layout or {}) == {"dp": D, "tp": D}
        assert dict((drawn * 2.0 + 1).layout or {}) == {"dp": D, "tp": D}
        assert dict((drawn * ag.constant(numpy.ones(3))).layout or {}) == {"dp": D, "tp": D}
        assert dict(ag.tensor(drawn).layout or {}) == {"dp": D, "tp": D}
        assert dict(ag.tensor(drawn, {"dp": R}).layout or {}) == {"dp": R, "tp": D}
        assert dict(ag.constant(drawn).layout or {}) == {"dp": C, "tp": C}
        assert dict(ag.Parameter(drawn).layout or {}) == {"dp": I, "tp": I}
        assert dict(drawn[:1].layout or {}) == {"dp": D, "tp": D}
        assert dict(drawn[cc.current_mesh().axis("dp").rank :].layout or {}) == {"dp": V, "tp": D}  # another part
        assert type(random.uniform(KEY, (2, 3), part=(slice(0, 1), slice(0, 3)))) is numpy.ndarray
        assert type(random.integers(KEY, 3, 0, 9)) is type(random.permutation(KEY, 3)) is numpy.ndarray
        for label in (R, I):
            assert cc.cast(drawn, "dp", to=label).layout["dp"] is label
        assert cc.cast(drawn, "dp", to=P).layout["dp"] is P


@pytest.mark.parametrize("label, result", [(R, R), (I, I), (P, P), (C, C), (Rooted(0), Rooted(0))])
def test_what_a_draw_mixes_with(label: Label, result: Label) -> None:
    with cc.Mesh(dp=1):
        x = ag.constant(numpy.ones(3)) if label is C else ag.tensor(numpy.ones(3), {"dp": label})
        y = x * random.bernoulli(KEY, (3,), 0.5)
        assert y.layout["dp"] == (D if label is C else result)


def test_a_draw_shared_by_all_rows_of_a_sharded_tensor() -> None:
    whole = random.bernoulli(KEY, (4,), 0.5)
    with cc.Mesh(dp=1):
        x = ag.tensor(numpy.ones((3, 4)), {"dp": Shard(0)})
        y = x * random.bernoulli(KEY, (4,), 0.5)  # broadcast along the rows: the serial program's own
        assert y.layout["dp"] == Shard(0)
        numpy.testing.assert_array_equal(y.numpy(), numpy.ones((3, 4)) * whole)


def refusals(body: Any) -> list[str]:
    def refused(mesh: cc.Mesh) -> str:
        with pytest.raises(LayoutError) as error:
            body(mesh)
        return str(error.value)

    return on_mesh(refused, dp=1) + on_mesh(refused, dp=3)


@pytest.mark.parametrize("use", [
    lambda x, d: x * d, lambda x, d: x + d, lambda x, d: d - x, lambda x, d: x.numpy() * d,
    lambda x, d: np.where(d > 0.5, x, 0.0), lambda x, d: x @ d.T, lambda x, d: x * (1.0 - ag.tensor(d)),
])  # fmt: skip
def test_a_draw_of_a_shape_on_values_that_differ_is_refused(use: Any) -> None:
    def body(mesh: cc.Mesh) -> Any:
        return use(ag.tensor(numpy.full((2, 4), float(mesh.axis("dp").rank))), random.uniform(KEY, (2, 4)))

    for text in refusals(body):
        assert "same random numbers on every rank (Drawn)" in text and "axis 'dp'" in text
        assert "key.along('dp')" in text and "test_layouts.py:" in text


def test_a_draw_of_a_parts_own_shape_is_refused() -> None:
    def make(mesh: cc.Mesh) -> ag.Tensor:
        return ag.tensor(part((7, 2), {"dp": Shard(0)}, mesh) * 1.0, {"dp": Shard(0)}, global_shape=(7, 2))

    for text in refusals(lambda mesh: random.bernoulli(KEY, make(mesh).shape, 0.5)):
        assert "axis 'dp': an extent is that of this rank's part" in text and "fix: bernoulli(key, x)" in text
    for text in refusals(lambda mesh: random.permutation(KEY, make(mesh).shape[0])):
        assert "permutation" in text and "key.along('dp')" in text
    for text in refusals(lambda mesh: make(mesh) * random.bernoulli(KEY, make(mesh).numpy().shape, 0.5)):
        assert "fix: draw y for x: pass it instead of a shape" in text


def test_the_label_travels() -> None:
    with cc.Mesh(dp=1):
        drawn = random.uniform(KEY, 3)
        assert drawn.layout is not None
        assert pickle.loads(pickle.dumps(drawn.layout["dp"])) is D
        header = write(drawn.array, drawn.layout, False, "send")
        assert read(header, False, "send", "rank 0")[2] == {"dp": D}


# -- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_dropout_is_the_same_on_any_number_of_ranks(ranks: int) -> None:
    x = numpy.random.default_rng(0).standard_normal((7, 4))
    serial = nn.dropout(x, 0.4, key=KEY)
    assert set(numpy.unique(serial == 0)) == {False, True}
    numpy.testing.assert_allclose(serial[serial != 0], (x / 0.6)[serial != 0], rtol=1e-15)

    def body(mesh: cc.Mesh) -> Any:
        part_of_x = ag.tensor(numpy.array_split(x, ranks)[mesh.place[0]], {"dp": Shard(0)}, global_shape=x.shape)
        same = nn.dropout(ag.tensor(x, {"dp": R}), 0.4, key=KEY).numpy()
        addend = ag.tensor(x * (mesh.place[0] + 1.0), {"dp": P})
        summed = cc.all_reduce(nn.dropout(addend, 0.4, key=KEY), "dp", to=R).numpy()
        return nn.dropout(part_of_x, 0.4, key=KEY).numpy(), same, summed

    found = on_mesh(body, dp=ranks)
    numpy.testing.assert_array_equal(numpy.concatenate([a for a, _, _ in found]), serial)
    for _, same, summed in found:
        numpy.testing.assert_array_equal(same, serial)
        numpy.testing.assert_allclose(summed, serial * ranks * (ranks + 1) / 2, rtol=1e-12)


def test_dropout_of_values_without_a_place() -> None:
    for text in refusals(lambda mesh: nn.dropout(numpy.ones((2, 3)), 0.5, key=KEY)):
        assert "dropout(key, x: f64[2,3] {dp: V})" in text and "key.along('dp')" in text
    found = on_mesh(lambda mesh: nn.Dropout(0.5, along="dp")(numpy.ones((4, 8))).numpy().tolist(), dp=3)
    assert len({str(x) for x in found}) == 3


def test_dropout_alone() -> None:
    x = numpy.ones((50, 40), numpy.float32)
    y = nn.dropout(x, 0.25, key=KEY)
    assert y.dtype == x.dtype and set(y.ravel().tolist()) == {0.0, float(numpy.float32(1 / 0.75))}
    assert abs((y == 0).mean() - 0.25) < 0.05
    assert nn.dropout(x, 0.25, key=KEY, training=False) is x and nn.dropout(x, 0.0, key=KEY) is x
    assert not nn.dropout(x, 1.0, key=KEY).any()
    g = ag.grad(lambda x: nn.dropout(x, 0.25, key=KEY).sum())(x)
    numpy.testing.assert_array_equal(g, y)
    random.seed(3)
    first, second = nn.dropout(x), nn.dropout(x)
    assert (first != second).any()
    random.seed(3)
    numpy.testing.assert_array_equal(nn.dropout(x), first)
    with pytest.raises(RingtapeError, match="probability"):
        nn.dropout(x, 1.5, key=KEY)
