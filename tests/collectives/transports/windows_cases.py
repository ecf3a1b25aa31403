"""What windows and clocks must do on every transport; each rank calls `conforms`."""

from __future__ import annotations

import numpy as np
import pytest

from autograd.errors import ArgumentError, CollectiveMismatch, DtypeError, MeshError, ShapeError
from collectives.transports.protocol import Communicator


def conforms(group: Communicator) -> None:
    """Access windows without the owner's part, lock them, and wait for clocks."""
    me, size = int(group.rank), int(group.size)
    window = group.window(np.full(2 + me, 10.0 * me))
    assert window.counts == tuple(2 + rank for rank in range(size))
    group.barrier()
    for owner in range(size):
        window.add(np.full(1, 1.0), owner, 1)
    group.barrier()
    for owner in range(size):
        expected = np.full(2 + owner, 10.0 * owner)
        expected[1] += size
        assert np.array_equal(window.get(owner), expected)
        assert np.array_equal(window.get(owner, 1, 1), expected[1:2])

    # Two elements are changed one after the other, so that a rank that is let in between sees them differ.
    counters = group.window(np.zeros(2 if me == 0 else 0, np.int64))
    numbers = []
    for _ in range(60):
        with counters.locked(0):
            both = counters.get(0)
            assert both[0] == both[1], both
            numbers.append(counters.fetch_and_add(1, 0, 0))
            counters.add(np.ones(1, np.int64), 0, 1)
    found = [np.frombuffer(each, np.int64) for each in group.exchange(np.array(numbers, np.int64).tobytes())]
    assert sorted(np.concatenate(found).tolist()) == list(range(60 * size))

    clocks = group.clocks()
    for clock in range(1, 6):
        clocks.set(clock)
        clocks.wait(clock)  # as a barrier
        values = clocks.values()
        assert values[me] == clock and min(values) >= clock and max(values) <= clock + 1
    with pytest.raises(ArgumentError, match="needed: no less"):
        clocks.set(2)

    for wrong, error in (
        (lambda: window.get(size), MeshError), (lambda: window.get(0, 1, 2), ShapeError),
        (lambda: window.get(0, -1), ShapeError), (lambda: window.add(np.ones(1, np.float32), 0), DtypeError),
        (lambda: window.fetch_and_add(1, 0, 2), ShapeError), (lambda: group.window(np.ones((2, 2))), ShapeError),
        (lambda: group.window(np.ones(2, np.float16)), DtypeError),
    ):  # fmt: skip
        with pytest.raises(error):
            wrong()
    if size > 1:
        with pytest.raises(CollectiveMismatch, match="the same dtype"):
            group.window(np.ones(1, np.float32 if me else np.float64))
    group.barrier()
    for each in (window, counters, clocks):
        each.free()
