"""Sums among some ranks of a group, whose set changes from sum to sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import collectives as cc
from collectives.algorithms.members import Members


@pytest.mark.parametrize("size", [1, 7, 5000])  # short, and long enough for another algorithm
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64"])
def test_sums_of_changing_sets(size: int, dtype: str) -> None:
    ranks, steps = 6, 20
    generator = np.random.default_rng(size)
    sets = [tuple(sorted(generator.choice(ranks, 1 + step % ranks, replace=False).tolist())) for step in range(steps)]

    def addend(rank: int, step: int) -> Any:
        return np.random.default_rng((rank, step)).integers(-9, 9, size).astype(dtype)

    def program() -> list[Any]:
        world = cc.world()
        found = []
        for step, members in enumerate(sets):
            if world.index in members:
                x = addend(world.index, step)
                kept = x.copy()
                found.append((step, Members(world, members, "some").all_reduce(x)))
                assert np.array_equal(x, kept)
        return found

    for rank, found in enumerate(cc.run(program, ranks)):
        assert [step for step, _ in found] == [step for step, members in enumerate(sets) if rank in members]
        for step, y in found:
            assert y.dtype == dtype
            assert np.array_equal(y, sum(addend(r, step) for r in sets[step]))  # whole numbers, exact in all of these


def test_messages_and_bytes() -> None:
    """Rabenseifner's algorithm between the 4 members of 6 ranks: 2 lg 4 messages, and 3/2 of the array."""

    def program() -> Any:
        world = cc.world()
        world.traffic.clear()
        if world.index in (0, 2, 3, 5):
            Members(world, (0, 2, 3, 5), "some").all_reduce(np.ones(4096))
        return world.traffic.messages, world.traffic.bytes

    found = cc.run(program, 6)
    assert found[1] == found[4] == (0, 0)
    assert all(found[rank] == (4, 4096 * 8 * 3 // 2) for rank in (0, 2, 3, 5))
