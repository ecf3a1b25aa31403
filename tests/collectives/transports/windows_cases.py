"""What windows and clocks must do on every transport; each rank calls `conforms`."""

from __future__ import annotations

import pickle

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

    places = group.window(np.zeros(2 * size, np.uint8))
    for owner in range(size):
        places.put(np.full(1, 7 + me, np.uint8), owner, me)
        with places.locked(owner):
            places.put(np.full(1, 250 + me, np.uint8), owner, size + me)
    group.barrier()
    expected_places = [*range(7, 7 + size), *range(250, 250 + size)]
    assert places.get((me + 1) % size).tolist() == expected_places

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
        (lambda: places.put(np.ones(1), 0), DtypeError), (lambda: places.put(np.ones(2, np.uint8), 0, 2 * size - 1),
                                                         ShapeError),
        (lambda: window.fetch_and_add(1, 0, 2), ShapeError), (lambda: group.window(np.ones((2, 2))), ShapeError),
        (lambda: group.window(np.ones(2, np.float16)), DtypeError),
    ):  # fmt: skip
        with pytest.raises(error):
            wrong()
    if size > 1:
        with pytest.raises(CollectiveMismatch, match="the same dtype"):
            group.window(np.ones(1, np.float32 if me else np.float64))
    group.barrier()
    for each in (window, places, counters, clocks):
        each.free()
    arrive(group)


def arrive(group: Communicator) -> None:
    """Half of the ranks are members of a step. The others go on after the newest step, whichever that is."""
    me, size, steps = int(group.rank), int(group.size), 40
    count = (size + 1) // 2
    arrivals = group.arrivals(count, steps)
    mine, step = [], 0
    while step < steps:
        if arrivals.take(step):
            members = arrivals.members(step)
            assert me in members and len(set(members)) == count and members == tuple(sorted(members))
            mine.append((step, members))
            arrivals.finish(step)
        else:
            arrivals.wait(step)
            assert arrivals.is_finished(step)
            step = arrivals.newest(step)
        step += 1
    for each in group.exchange(pickle.dumps(mine)):  # `ast.literal_eval` of Python 3.11 fails at times in threads
        for at, members in pickle.loads(each):
            assert all(members == other for here, other in mine if here == at)
    recorded = [pair for each in group.exchange(pickle.dumps(list(arrivals.recorded())))
                for pair in pickle.loads(each)]  # fmt: skip
    assert sorted(at for at, _ in recorded) == list(range(steps)) and set(mine) <= set(recorded)
    arrivals.free()

    told = group.arrivals(1, 2)  # the members are given: the last rank, then the first
    for step, rank in enumerate((size - 1, 0)):
        if told.take(step, me == rank):
            assert told.members(step) == (rank,)
            told.finish(step)
        told.wait(step)
    told.free()
    for wrong in ((0, 1), (size + 1, 1), (1, 0)):
        with pytest.raises(ArgumentError, match="arrivals: count="):
            group.arrivals(*wrong)
