"""Arguments of collectives that programs need: ``like=`` of `permute`, for a ring of uneven chunks; names of halos'."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.errors import ArgumentError, CommunicationError, ShapeError
from collectives import I, R


def ring_sum(x: Any, size: int, permute: Any) -> Any:
    """The sum over the ranks by a ring (reduce-scatter, then all-gather) of chunks that may be uneven."""
    rank = cc.world().index
    pairs = [(r, (r + 1) % size) for r in range(size)]
    ends = numpy.cumsum([len(part) for part in numpy.array_split(numpy.empty(x.shape[0]), size)])
    chunks = [x[start:end] for start, end in itertools.pairwise([0, *map(int, ends)])]
    for step in range(size - 1):
        sent, received = (rank - step) % size, (rank - step - 1) % size
        chunks[received] = chunks[received] + permute(chunks[sent], "dp", pairs, like=chunks[received])
    for step in range(size - 1):
        sent, received = (rank + 1 - step) % size, (rank - step) % size
        chunks[received] = permute(chunks[sent], "dp", pairs, like=chunks[received])
    return np.concatenate(chunks)


@pytest.mark.parametrize("permute", [cc.permute, cc.permute_async], ids=["blocking", "started"])
@pytest.mark.parametrize(("size", "rows"), [(1, 4), (2, 5), (3, 7), (3, 2), (4, 6)])
def test_a_chunked_ring(size: int, rows: int, permute: Any) -> None:
    """Values, gradients, second derivatives and tangents are those of the sum."""
    rng = numpy.random.default_rng(size)
    data, weights = rng.standard_normal((size, rows, 2)), rng.standard_normal((size, rows, 2))

    def program() -> Any:
        rank = cc.world().index
        with cc.Mesh(dp=size):
            w = ag.tensor(data[rank], requires_grad=True)
            with ag.Tape() as tape:
                total = ring_sum(w * w, size, permute)
                loss = cc.all_reduce((total * weights[rank]).sum(), "dp", to=I)
            tape.backward(loss)
            with ag.Tape() as outer:
                x = ag.tensor(data[rank], requires_grad=True)
                y = cc.all_reduce((ring_sum(x * x, size, permute) * weights[rank]).sum(), "dp", to=I)
                (g,) = outer.backward(y, wanted=[x], record=True)
                again = cc.all_reduce((g * g).sum(), "dp", to=I)
            outer.backward(again)
            return total.numpy(), w.grad.numpy(), x.grad.numpy()  # type: ignore[union-attr]

    ct = weights.sum(axis=0)
    for rank, (total, gradient, second) in enumerate(cc.run(program, ranks=size)):
        numpy.testing.assert_allclose(total, (data**2).sum(axis=0))
        numpy.testing.assert_allclose(gradient, 2 * data[rank] * ct)
        numpy.testing.assert_allclose(second, 8 * data[rank] * ct**2)


@pytest.mark.parametrize("permute", [cc.permute, cc.permute_async], ids=["blocking", "started"])
@pytest.mark.parametrize("rows", [7, 2, 6])
def test_uneven_parts_whose_label_knows_them(rows: int, permute: Any) -> None:
    """A Shard with agreed extents needs no ``like=``; a rank that receives nothing gets zeros of its own shape."""
    whole = numpy.random.default_rng(rows).standard_normal((2, rows))
    weights = numpy.arange(1.0, 4.0)

    def program() -> Any:
        with cc.Mesh(dp=3):
            w = ag.Parameter(whole.copy())
            with ag.Tape() as tape:
                part = cc.shard(cc.cast(w, "dp", to=R), "dp", dim=1)
                ring = permute(part, "dp", [(0, 1), (1, 2), (2, 0)]) * weights[cc.world().index]
                some = permute(part, "dp", [(0, 2)])
                loss = cc.all_reduce((ring * ring).sum() + some.sum(), "dp", to=I)
            tape.backward(loss)
            return ring.numpy(), some.shape, w.grad.numpy()  # type: ignore[union-attr]

    parts = numpy.array_split(whole, 3, axis=1)
    gradient = [2 * part * weights[(r + 1) % 3] ** 2 + (r == 0) for r, part in enumerate(parts)]
    for rank, (ring, shape, g) in enumerate(cc.run(program, ranks=3)):
        numpy.testing.assert_allclose(ring, parts[rank - 1] * weights[rank])
        assert shape == parts[0 if rank == 2 else rank].shape
        numpy.testing.assert_allclose(g, numpy.concatenate(gradient, axis=1))


@pytest.mark.parametrize("mode", ["first", "ranks", "off"])
def test_a_shape_that_does_not_arrive(mode: str) -> None:
    def program() -> Any:
        with cc.Mesh(dp=3):
            rank = cc.world().index
            x = numpy.ones(rank + 1)
            return cc.permute(x, "dp", [(0, 1), (1, 2), (2, 0)], like=numpy.empty(2)).shape

    cc.check(mode)
    try:
        with pytest.raises(ShapeError if mode != "off" else CommunicationError) as error:
            cc.run(program, ranks=3)
    finally:
        cc.check("first")
    if mode != "off":
        assert "rank 0 sends the shape (1,), and rank 1 was given like= of shape (2,)" in str(error.value)
        assert "raised on ranks 0-2 of 3" in str(error.value.__notes__)
        assert re.search(r"fix: like= of shape \(1,\) on rank 1", str(error.value))


def test_a_rank_that_receives_nothing_gets_zeros_of_its_shape() -> None:
    def program() -> Any:
        with cc.Mesh(dp=3):
            rank = cc.world().index
            shape = [(3,), (1,), (4,)][rank]
            x = ag.tensor(numpy.full(rank + 1, rank + 1.0), requires_grad=True)
            with ag.Tape() as tape:
                y = cc.permute(x, "dp", [(2, 0), (0, 1)], like=numpy.empty(shape))
                loss = cc.all_reduce((y * (rank + 2.0)).sum(), "dp", to=I)
            tape.backward(loss)
            return y.numpy().tolist(), x.grad.numpy().tolist()  # type: ignore[union-attr]

    assert cc.run(program, ranks=3) == [([3.0] * 3, [3.0]), ([1.0], [0.0] * 2), ([0.0] * 4, [2.0] * 3)]


def test_a_plan_and_a_dry_run() -> None:
    with cc.dry(64) as dry, cc.Mesh(dp=64):
        x = ag.tensor(numpy.ones((3, 2)), {"dp": cc.V})
        ring = [(r, (r + 1) % 64) for r in range(64)]
        y = cc.permute(x, "dp", ring, like=numpy.empty((5, 2)))
        assert y.shape == (5, 2)
    assert dry is not None

    def program() -> Any:
        with cc.Mesh(dp=2):
            w = ag.tensor(numpy.ones(1 + cc.world().index), requires_grad=True)
            with ag.Tape() as tape:
                cc.permute(w * 2, "dp", [(0, 1), (1, 0)], like=numpy.empty(2 - cc.world().index))
            plan = tape.plan()
            return plan.problems, [each.name for each in plan.communications]

    assert cc.run(program, ranks=2)[0][0] == []


CELLS = numpy.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("named", [
    {"axis": "dp", "width": 1, "dim": 1}, {"axes": "dp", "widths": 1, "dims": 1},
    {"axis": "dp", "widths": (1, 1), "dim": -1},
    {"axis": ["dp"], "width": [1], "dim": [1]},
])  # fmt: skip
def test_the_names_of_halo_exchange(named: Any) -> None:
    found = cc.run(lambda: [cc.halo_exchange(CELLS, **named).numpy() for _ in [cc.Mesh(dp=2).__enter__()]], 2)
    numpy.testing.assert_array_equal(found[0][0], numpy.hstack([numpy.zeros((2, 1)), CELLS, CELLS[:, :1]]))


@pytest.mark.parametrize(("named", "said"), [
    ({"axis": "dp"}, "neither width nor widths"), ({"width": 1}, "neither axis nor axes"),
    ({"axis": "dp", "axes": "dp", "width": 1}, "both axis='dp' and axes='dp'"),
    ({"axis": "dp", "width": 1, "dim": 0, "dims": 1}, "both dim=0 and dims=1"),
])  # fmt: skip
def test_an_argument_of_halo_exchange_is_given_once(named: Any, said: str) -> None:
    with cc.Mesh(dp=1):
        with pytest.raises(ArgumentError, match=said):
            cc.halo_exchange(CELLS, **named)
        assert cc.halo_exchange(CELLS, "dp", 1, dim=0).shape == (4, 3)  # the fix
