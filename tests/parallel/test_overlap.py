"""The model of overlap, beside a simulation in steps of a unit of time, and beside the predictions of dry worlds."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import ArgumentError
from parallel.data.overlap import communication_time, predict_step, simulate

MACHINE = cc.Topology(4, cc.Link(1e-6, 1e10), cc.Link(1e-5, 1e9), reduced_bytes_per_s=1e10)


def by_units(ready: list[int], transfer: list[int], backward_end: int) -> tuple[int, int]:
    """The units of time in which the link is busy before and after the end of backward."""
    left, now, busy = list(transfer), 0, [0, 0]
    while any(left):
        first = next(i for i, n in enumerate(left) if n)
        if ready[first] <= now:
            left[first] -= 1
            busy[now >= backward_end] += 1
        now += 1
    return busy[0], busy[1]


def test_the_link_carries_one_bucket_at_a_time_from_when_it_is_ready() -> None:
    rng = numpy.random.default_rng(0)
    for _ in range(200):
        n, end = int(rng.integers(0, 6)), int(rng.integers(1, 30))
        ready, transfer = rng.integers(0, end + 1, n).tolist(), rng.integers(1, 12, n).tolist()
        found = simulate(ready, transfer, end)
        assert (found.hidden_s, found.exposed_s) == by_units(ready, transfer, end), (ready, transfer, end)
        assert all(b >= r for b, r in zip(found.begin_s, ready, strict=True))
        assert all(b >= e for b, e in zip(found.begin_s[1:], found.end_s, strict=False))


@pytest.mark.parametrize(
    ("ready", "transfer"), [([1.0], []), ([1.0], [-1.0]), ([5.0], [1.0]), ([1.0], [float("nan")]), ([-1e999], [1.0])]
)
def test_times_that_cannot_be_are_refused(ready: list[float], transfer: list[float]) -> None:
    with pytest.raises(ArgumentError, match="needed"):
        simulate(ready, transfer, 4.0)


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "hierarchical"])
def test_the_time_of_an_all_reduce_is_that_of_a_dry_world(algorithm: str) -> None:
    with cc.dry(ranks=16, mesh={"dp": 16}, topology=MACHINE) as run:
        cc.all_reduce(ag.tensor(numpy.zeros(1000, numpy.float32)), "dp")
    assert communication_time(4000, 16, MACHINE, algorithm=algorithm) == pytest.approx(run.time_s(algorithm))


def test_a_compressed_sum_is_the_sum_of_its_calls() -> None:
    calls = [("all_to_all", 1e6), ("all_gather", 1e6)]
    each = [communication_time([call], 16, MACHINE) for call in calls]
    assert communication_time(calls, 16, MACHINE) == pytest.approx(sum(each)) and min(each) > 0
    with pytest.raises(ArgumentError, match="'hierarchical' was given; the calls have"):
        communication_time(calls, 16, MACHINE, algorithm="hierarchical")
    assert communication_time(4000, 1, MACHINE, algorithm="ring") == 0


def test_without_overlap_all_communication_is_exposed() -> None:
    ready, sizes = [0.001, 0.003], [4e6, 4e6]
    options: Any = {"ranks": 16, "topology": MACHINE, "forward_s": 1.0, "optimizer_s": 2.0}
    serial = predict_step(ready, sizes, 0.004, overlap=False, **options)
    hidden = predict_step(ready, sizes, 0.004, **options)
    one = communication_time(4e6, 16, MACHINE)
    assert serial.exposed_s == pytest.approx(2 * one) and serial.exposed_share == pytest.approx(1.0)
    assert hidden.exposed_s == pytest.approx(2 * one - 0.003)  # sending starts at 1 ms, and has no gap
    assert hidden.step_s == pytest.approx(3.004 + hidden.exposed_s)
