"""Reproducible sums: the same bits for any number of ranks, share, way and bucket size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autograd as ag
import collectives as cc
from autograd.errors import CollectiveMismatch, LayoutError, MeshError, ShapeError
from collectives.algorithms import reproducible

WAYS = ("reproducible", "reproducible:tree")


def pairwise(addends: np.ndarray) -> np.ndarray:
    """The tree as a serial program: cut at the largest power of two below the number of addends."""
    if len(addends) == 1:
        return addends[0]
    half = 1 << ((len(addends) - 1).bit_length() - 1)
    return pairwise(addends[:half]) + pairwise(addends[half:])


def rough(count: int, size: int, dtype: Any, seed: int = 0) -> np.ndarray:
    """Numbers of very different sizes, so that every other order has other bits."""
    rng = np.random.default_rng([count, size, seed])
    return (rng.standard_normal((count, size)) * 2.0 ** rng.integers(-6, 6, (count, size))).astype(dtype)


def summed(addends: np.ndarray, owners: Sequence[int], ranks: int, way: str, buckets: int = 1) -> set[bytes]:
    """The sums' bits on all ranks, addend i being on rank owners[i]."""
    def program() -> bytes:
        with cc.Mesh(dp=-1) as mesh:
            mine = [i for i, owner in enumerate(owners) if owner == mesh.axis("dp").rank]
            cuts = np.array_split(np.arange(addends.shape[1]), buckets)
            return b"".join(
                cc.reproducible_sum(addends[np.ix_(mine, cut)], mine, "dp", algorithm=way).numpy().tobytes()
                for cut in cuts)  # fmt: skip

    return set(cc.run(program, ranks))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_the_same_bits_on_any_number_of_ranks(dtype: Any) -> None:
    for count in (1, 5, 8, 13):
        addends = rough(count, 11, dtype)
        want = {pairwise(addends).tobytes()}
        for ranks in range(1, 9):
            shares = {
                "contiguous": [i * ranks // count for i in range(count)],
                "in turn": [i % ranks for i in range(count)],
                "all on the last": [ranks - 1] * count,
                "at random": np.random.default_rng(count).integers(0, ranks, count).tolist(),
            }
            for share, owners in shares.items():
                way = WAYS[(ranks + len(share)) % 2]
                assert summed(addends, owners, ranks, way) == want, (count, ranks, share, way)


def test_ways_and_buckets() -> None:
    addends = rough(12, 40, np.float32)
    owners = [i % 3 for i in range(12)]
    found = [summed(addends, owners, 3, way, buckets) for way in WAYS for buckets in (1, 2, 7, 40)]
    assert all(bits == {pairwise(addends).tobytes()} for bits in found)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_share(draw: Any) -> None:
    ranks, count = draw.draw(st.integers(1, 8)), draw.draw(st.integers(1, 20))
    owners = draw.draw(st.lists(st.integers(0, ranks - 1), min_size=count, max_size=count))
    addends = rough(count, draw.draw(st.integers(0, 9)), np.float32, draw.draw(st.integers(0, 9)))
    assert summed(addends, owners, ranks, draw.draw(st.sampled_from(WAYS))) == {pairwise(addends).tobytes()}


@pytest.mark.parametrize("way", WAYS)
def test_one_addend_a_rank(way: str) -> None:
    for ranks in range(1, 9):
        addends = rough(ranks, 7, np.float32)

        def program(addends: np.ndarray = addends) -> bytes:
            with cc.Mesh(dp=-1):
                return cc.all_reduce(addends[cc.world().rank], "dp", algorithm=way).numpy().tobytes()

        assert set(cc.run(program, ranks)) == {pairwise(addends).tobytes()}


def test_an_ordinary_sum_does_not_have_this() -> None:
    """The claim is not empty: with these numbers a ring's bits change with the number of ranks."""
    addends, seen = rough(12, 40, np.float32), set()
    for ranks in (1, 2, 3, 4):
        def program() -> bytes:
            group = cc.world()
            mine = np.array_split(addends, group.size)[group.rank]
            with cc.Mesh(dp=-1, algorithm="ring"):
                return cc.all_reduce(mine.sum(axis=0), "dp").numpy().tobytes()

        seen |= set(cc.run(program, ranks))
    assert len(seen) > 1


def test_float16_is_summed_wide_and_rounded_once() -> None:
    addends = rough(9, 5, np.float16)
    want = pairwise(addends.astype(np.float32)).astype(np.float16).tobytes()
    assert all(summed(addends, [i % ranks for i in range(9)], ranks, WAYS[0]) == {want} for ranks in (1, 2, 3))


def test_gradients() -> None:
    """Every addend has the sum's cotangent; addends are Tensors, in a list or stacked."""
    def program() -> Any:
        rank = cc.world().rank
        with cc.Mesh(dp=2):
            xs = [ag.tensor(np.full(3, 10.0 * rank + k), requires_grad=True) for k in range(rank + 1)]
            with ag.Tape() as tape:
                y = cc.reproducible_sum(xs, range(rank, 2 * rank + 1), "dp")
                z = cc.all_reduce((y * np.full(3, rank + 1.0)).sum(), "dp", to=cc.I)
            tape.backward([z])
            return y.numpy().tolist(), [x.grad.numpy().tolist() for x in xs]

    assert cc.run(program, 2) == [([21.0] * 3, [[3.0] * 3]), ([21.0] * 3, [[3.0] * 3] * 2)]


def test_inputs_are_not_changed() -> None:
    addends = rough(4, 6, np.float32)
    kept = addends.copy()
    addends.flags.writeable = False
    for ranks in (1, 2, 4):
        summed(addends, [i % ranks for i in range(4)], ranks, WAYS[0])
    assert np.array_equal(addends, kept)


def test_refusals() -> None:
    def wrong(indices: Any, **options: Any) -> Any:
        def program() -> None:
            with cc.Mesh(dp=2):
                mine = indices[cc.world().rank]
                cc.reproducible_sum(np.ones((2, 3)), mine, "dp", **options)

        return lambda: cc.run(program, 2)

    with pytest.raises(ShapeError, match=r"rank 0: \[0, 1\]; rank 1: \[1, 2\](.|\n)*from 0 to 3 once"):
        wrong([[0, 1], [1, 2]])()
    with pytest.raises(ShapeError, match="from 0 to 3 once"):
        wrong([[0, 1], [3, 4]])()
    with pytest.raises(ShapeError, match="was given 1 indices"):
        wrong([[0], [1]])()
    with pytest.raises(MeshError, match="reproducible:tree"):
        wrong([[0, 1], [2, 3]], algorithm="ring")()
    with pytest.raises(LayoutError, match="to=R or to=I"):
        wrong([[0, 1], [2, 3]], to=cc.V)()
    with cc.Mesh(dp=1):
        with pytest.raises(ShapeError, match="empty list"):
            cc.reproducible_sum([], [], "dp")
        with pytest.raises(LayoutError, match="Invariant"):
            cc.reproducible_sum(ag.Parameter(np.ones((1, 2))), [0], "dp")

    def different() -> None:
        with cc.Mesh(dp=2):
            rank = cc.world().rank
            cc.reproducible_sum(np.ones((1, 3)), [rank], "dp", algorithm=WAYS[rank])

    with pytest.raises(CollectiveMismatch, match="algorithm=reproducible:tree"):
        cc.run(different, 2)


def test_nodes() -> None:
    assert reproducible.nodes_of([], 4) == []
    assert reproducible.nodes_of(range(4, 7), 7) == [(2, 1)]  # what lies beyond the end is not missed
    assert reproducible.nodes_of(range(1, 7), 8) == [(0, 1), (0, 6), (1, 1), (1, 2)]
    assert reproducible.nodes_of([0, 1, 2], 4) == [(0, 2), (1, 0)]


@pytest.mark.parametrize("fault", ["order of arrival", "local sum first"])
def test_planted_faults(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    addends = rough(12, 40, np.float32)
    want = {pairwise(addends).tobytes()}
    if fault == "order of arrival":  # one after the other instead of as a tree
        def in_a_row(values: Any, count: int) -> Any:
            return {(4, 0): sum(values.values())} if values else {}

        monkeypatch.setattr(reproducible, "sum_tree", in_a_row)
        monkeypatch.setattr(reproducible, "nodes_of", lambda indices, count: [(4, 0)] if len(indices) else [])
        assert summed(addends, [0] * 12, 1, WAYS[0]) != want
    else:  # a rank adds up all it has, before the tree
        additions = reproducible._additions

        def greedy(nodes: Any, count: int) -> Any:
            have = sorted(nodes)
            return additions(nodes, count) if len(have) < 4 else [((0, a), (0, a + 2), (1, a // 2)) for a in (0, 1)]

        monkeypatch.setattr(reproducible, "_additions", greedy)
        with pytest.raises((AssertionError, KeyError, ValueError, cc.CommunicationError)):
            assert summed(addends[:4], [0] * 4, 1, WAYS[0]) == {pairwise(addends[:4]).tobytes()}
