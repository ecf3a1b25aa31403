"""Which rank holds what, from the layout alone: as NumPy cuts the value."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import collectives as cc
from autograd.layouts.holdings import holdings
from autograd.layouts.layout import Grid, I, P, R, Rooted, Shard, V


def cut(text: str, whole: np.ndarray) -> np.ndarray:
    """The part that a text like ``[0:2, :]`` names."""
    slices = [slice(*(int(n) if n else None for n in span.split(":"))) for span in re.findall(r"\d*:\d*", text)]
    return whole[tuple(slices)]


@pytest.mark.parametrize("shape", [(5, 4), (7, 3), (2, 9)])
@pytest.mark.parametrize(("dp", "tp"), [(1, 3), (2, 3), (3, 2)])
@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (0, 0), (1, None), (None, 1)])
def test_every_rank_holds_what_the_table_says(
    shape: tuple[int, int], dp: int, tp: int, dims: tuple[int | None, int | None]
) -> None:
    whole = np.random.default_rng(3).normal(size=shape)

    def program() -> tuple[np.ndarray, list[tuple[tuple[int, ...], str]]]:
        import autograd as ag

        with cc.Mesh(dp=dp, tp=tp):
            x = ag.tensor(whole, layout={"dp": R, "tp": R})
            for axis, dim in zip(("dp", "tp"), dims, strict=True):
                x = x if dim is None else cc.shard(x, axis, dim)
            assert "hold" in x._repr_html_() or max(dp, tp) == 1
            return x.numpy(), holdings(x.layout, x.shape)

    found = cc.run(program, dp * tp)
    assert all(told == found[0][1] for _, told in found)
    for ranks, text in found[0][1]:
        for rank in ranks:
            assert np.array_equal(found[rank][0], cut(text, whole))
    assert sorted(itertools.chain(*(ranks for ranks, _ in found[0][1]))) == list(range(dp * tp))


def test_unequal_extents_and_what_is_not_known() -> None:
    def program() -> list[list[tuple[tuple[int, ...], str]]]:
        with cc.Mesh(dp=3) as mesh:
            rank = int(mesh.axis("dp").rank)
            x = cc.from_local(np.ones((rank * 2 + 1, 2)), {"dp": Shard(0)})
            y = cc.cast(np.ones(3), "dp", to=V)
            return [holdings(x.layout, x.shape), holdings(y.layout, y.shape)]

    for found, varying in cc.run(program, 3):
        assert found == [((0,), "[0:1, :]"), ((1,), "[1:4, :]"), ((2,), "[4:9, :]")]
        assert [text for _, text in varying] == ["value 0 of 'dp', [:]", "value 1 of 'dp', [:]", "value 2 of 'dp', [:]"]
    grid = Grid.of(("a", "b"), (2, 2), (0, 1))
    assert holdings(grid.layout([Shard(0), I]), (3,)) == [((0, 1, 2, 3), "[?]")]
    nested = grid.layout([Shard(0, 7, 0, 1, (4, 3)), Shard(0, 4, 3, 1, (3, 1))])
    assert holdings(nested, (1,)) == [((0,), "[0:3]"), ((1,), "[3:4]"), ((2, 3), "[?]")]
    assert holdings(grid.layout([Rooted(1), P]), ()) == [
        ((0, 1), "nothing"), ((2,), "addend 0 of 'b' of the number"), ((3,), "addend 1 of 'b' of the number"),
    ]  # fmt: skip
