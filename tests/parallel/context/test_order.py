"""Zigzag order: which tokens each rank holds, and the way there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import LayoutError, ShapeError
from parallel import context

from .sequences import random


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_the_order_is_a_permutation_with_an_inverse(ranks: int) -> None:
    tokens = 6 * ranks
    order, inverse = context.zigzag_order(tokens, ranks), context.zigzag_inverse(tokens, ranks)
    assert sorted(order) == list(range(tokens))
    assert (order[inverse] == np.arange(tokens)).all() and (inverse[order] == np.arange(tokens)).all()
    for rank, mine in enumerate(np.split(order, ranks)):
        assert (np.diff(mine) > 0).all()  # so that the causal mask of a rank's own tokens is the usual triangle
        assert (mine == context.zigzag_positions(tokens, rank, ranks)).all()
        assert sum(p.stop - p.start for p in context.zigzag_pieces(tokens, rank, ranks)) == 6


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("label", [cc.I, cc.R])
def test_there_and_back_with_cotangents(label: Any, ranks: int) -> None:
    """y = 3 x through zigzag and unzigzag; the cotangent of the whole is that of the serial program."""
    whole, ct = random(2, 12, 3), random(2, 12, 3, seed=1)

    def program() -> Any:
        with cc.Mesh(cp=-1):
            x = ag.tensor(whole, {"cp": label}, requires_grad=True)
            with ag.Tape() as tape:
                mine = context.zigzag(x, "cp")
                assert mine.layout["cp"] is cc.V
                back = context.unzigzag(mine * 3.0, "cp")
                assert back.layout["cp"] is cc.R
                loss = (context.zigzag(back, "cp") * context.zigzag(ct, "cp")).sum()
                loss = cc.all_reduce(loss, "cp", to=cc.I)
            np.testing.assert_array_equal(back.numpy(), 3 * whole)
            tape.backward(loss)
            g = x.grad
            return (cc.all_reduce(g, "cp") if g.layout["cp"] is cc.P else g).numpy()

    for g in cc.run(program, ranks):
        np.testing.assert_allclose(g, 3 * ct, rtol=1e-14)


def test_integers_and_other_dimensions() -> None:
    tokens = np.arange(24).reshape(8, 3)

    def program() -> None:
        with cc.Mesh(cp=2) as mesh:
            expected = tokens[context.zigzag_positions(8, mesh.ranks.index, 2)]
            for x in (tokens, ag.tensor(tokens, {"cp": cc.I}), ag.constant(tokens)):
                mine = context.zigzag(x, "cp", dim=-2)
                np.testing.assert_array_equal(mine if x is tokens else mine.local, expected)
                np.testing.assert_array_equal(context.unzigzag(mine, "cp", dim=0).numpy(), tokens)

    cc.run(program, 2)


def test_rows_that_another_axis_divides() -> None:
    tokens = np.arange(32).reshape(4, 8)

    def program() -> None:
        with cc.Mesh(dp=2, cp=2) as mesh:
            dp, cp = mesh.axis("dp").group.index, mesh.axis("cp").group.index
            rows = cc.from_local(tokens[2 * dp : 2 * dp + 2], {"dp": cc.Shard(0), "cp": cc.I})
            mine = context.zigzag(rows, "cp")
            assert mine.layout["dp"] == cc.Shard(0) and mine.layout["cp"] is cc.V
            expected = tokens[2 * dp : 2 * dp + 2][:, context.zigzag_positions(8, cp, 2)]
            np.testing.assert_array_equal(mine.local, expected)

    cc.run(program, 4)


def test_mistakes() -> None:
    x = random(2, 10, 3)
    assert context.zigzag(x, "cp") is x and context.unzigzag(x, "cp") is x  # one process without a mesh
    with context.zigzag_draws("cp", 10):
        pass
    with cc.Mesh(cp=1):
        for label in (cc.V, cc.P, cc.Shard(1)):
            with pytest.raises(LayoutError, match="whole sequence on every rank"):
                context.zigzag(cc.from_local(x, {"cp": label}), "cp")
        with pytest.raises(LayoutError, match=r"cc.all_gather\(x, 'cp', 1\)"):
            context.unzigzag(cc.from_local(x, {"cp": cc.Shard(1)}), "cp")
        with pytest.raises(ShapeError, match="dim=3"):
            context.zigzag(x, "cp", dim=3)
        with pytest.raises(cc.MeshError):
            context.zigzag(x, "sp")

    def program() -> None:
        with cc.Mesh(cp=2):
            for a in (x, ag.tensor(x, {"cp": cc.I})):
                with pytest.raises(ShapeError, match="padding to 12 tokens"):
                    context.zigzag(a, "cp")
            with pytest.raises(ShapeError, match="multiple of 4"), context.zigzag_draws("cp", 10):
                pass

    cc.run(program, 2)
