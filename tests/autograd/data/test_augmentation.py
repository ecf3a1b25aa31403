"""Sampling and augmentation: the same choices on any number of ranks, each what it says it is."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import data, random
from autograd.errors import LayoutError, MeshError, ShapeError, TapeError
from autograd.layouts.layout import Shard, V

KEY = random.Key(9, "augment")
X = numpy.random.default_rng(0).standard_normal((11, 2, 6, 5))


def parts_of(axes: dict[str, int], f: Any, x: Any = X) -> Any:
    """`f` of each rank's part of the examples, put together again."""

    def program() -> Any:
        with cc.Mesh(**axes) as mesh:
            part = numpy.array_split(x, mesh.sizes[0])[mesh.place[0]]
            y = f(ag.tensor(part, {"dp": Shard(0), "tp": ag.R}, global_shape=x.shape))
            assert y.layout["dp"] == Shard(0)
            return mesh.place, y.numpy()

    found = cc.run(program, int(numpy.prod(list(axes.values()))))
    return numpy.concatenate([y for place, y in found if place[1] == 1])


def test_an_epoch_has_every_example_once() -> None:
    for batch, drop, count in ((4, False, 3), (4, True, 2), (11, True, 1), (20, False, 1), (20, True, 0)):
        epoch = list(data.batches(KEY.at(2), 11, batch, drop_last=drop))
        assert len(epoch) == count
        seen = sorted(int(i) for b in epoch for i in b)
        assert seen == list(range(11)) if not drop or batch == 11 else len(set(seen)) == len(seen)
    orders = [numpy.concatenate(list(data.batches(KEY.at(e), 11, 4))).tolist() for e in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert numpy.concatenate(list(data.batches(KEY, 5, 2, shuffle=False))).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ShapeError):
        list(data.batches(KEY, 5, 0))


def test_ranks_share_the_same_epoch() -> None:
    whole = [b.tolist() for b in data.batches(KEY.at(1), 23, 7)]

    def program() -> Any:
        with cc.Mesh(dp=3):
            return [data.share(b, "dp").tolist() for b in data.batches(KEY.at(1), 23, 7)]

    found = cc.run(program, 3)
    assert [sum((rank[i] for rank in found), []) for i in range(len(whole))] == whole
    with pytest.raises(MeshError, match="no mesh"):
        data.share([1], "dp")


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("f", [
    lambda x: data.random_flip(x, KEY), lambda x: data.random_flip(x, KEY, 0.3, dim=2),
    lambda x: data.random_crop(x, 3, KEY), lambda x: data.random_crop(x, (5, 4, 4), KEY, padding=2),
])  # fmt: skip
def test_the_number_of_ranks_does_not_change_the_choices(ranks: int, f: Any) -> None:
    numpy.testing.assert_array_equal(parts_of({"dp": ranks, "tp": 2}, f), f(X))


def test_flips_are_flips() -> None:
    y = data.random_flip(X, KEY)
    flipped = [bool((a == b[..., ::-1]).all()) for a, b in zip(y, X, strict=True)]
    assert set(flipped) == {True, False}
    assert all(f or (a == b).all() for f, a, b in zip(flipped, y, X, strict=True))
    numpy.testing.assert_array_equal(data.random_flip(X, KEY, 0.0), X)
    many = data.random_flip(numpy.tile([0.0, 1.0], (4000, 1)), KEY, 0.3)
    assert abs(many[:, 0].mean() - 0.3) < 0.03
    g = ag.grad(lambda x: (data.random_flip(x, KEY) * X).sum())(numpy.zeros_like(X))
    numpy.testing.assert_array_equal(g, y)  # a flip is its own transpose


def test_crops_are_windows() -> None:
    y = data.random_crop(X, (4, 3), KEY, padding=1)
    wide = numpy.pad(X, [(0, 0), (0, 0), (1, 1), (1, 1)])
    places = set()
    for a, b in zip(y, wide, strict=True):
        at = [(i, j) for i in range(5) for j in range(5) if (b[:, i : i + 4, j : j + 3] == a).all()]
        assert at
        places.add(at[0])
    assert len(places) > 5
    numpy.testing.assert_array_equal(data.random_crop(X, (6, 5), KEY), X)


def test_what_is_refused() -> None:
    for call in (
        lambda: data.random_flip(X, KEY, dim=0), lambda: data.random_flip(X[0, 0, 0], KEY),
        lambda: data.random_crop(X, 7, KEY), lambda: data.random_crop(X, (1, 1, 1, 1), KEY),
    ):  # fmt: skip
        with pytest.raises(ShapeError):
            call()
    with ag.Tape(), pytest.raises(TapeError, match="data"):
        data.random_crop(ag.Parameter(X), 3, KEY)
    with cc.Mesh(dp=1):
        with pytest.raises(LayoutError, match="key.along"):
            data.random_flip(X, KEY)
        assert data.random_flip(X, KEY.along("dp")).layout["dp"] is V
        with pytest.raises(LayoutError, match="whole on every rank"):
            data.random_flip(ag.tensor(X, {"dp": Shard(3)}), KEY)
        with pytest.raises(LayoutError, match="whole on every rank"):
            data.random_crop(ag.tensor(X, {"dp": Shard(2)}), 3, KEY)
