"""`slow_link`: the same values, not before the time of the link."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import OptionError
from collectives import I, P, V
from collectives.inspect.observing import observing
from collectives.testing import slow_link

N = 6000  # numbers of 8 bytes

# Each call, and the bytes that each of p ranks sends at least.
CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[int], float]]] = {
    "all_reduce": (lambda x: cc.all_reduce(ag.tensor(x, {"dp": P}), "dp").numpy(), lambda p: 16 * N * (p - 1) / p),
    "all_gather": (lambda x: cc.all_gather(ag.tensor(x, {"dp": V}), "dp").numpy(), lambda p: 8 * N * (p - 1)),
    "permute": (lambda x: cc.permute(ag.tensor(x, {"dp": V}), "dp", [
        (r, (r + 1) % int(cc.world().size)) for r in range(cc.world().size)]).numpy(), lambda p: 8 * N),
    "started": (lambda x: cc.all_reduce_async(ag.tensor(x, {"dp": P}), "dp", to=I).wait().numpy(),
                lambda p: 16 * N * (p - 1) / p),
    "get": (lambda x: cc.get(ag.tensor(x, {"dp": V}), "dp", (int(cc.world().rank) + 1) % int(cc.world().size)).numpy(),
            lambda p: 8 * N),
}  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", CALLS)
def test_the_values_are_the_same_and_no_sooner_than_on_the_link(name: str, ranks: int) -> None:
    call, size = CALLS[name]

    def program() -> tuple[Any, Any, float]:
        x = numpy.arange(N) + 10.0 * int(cc.world().rank)
        with cc.Mesh(dp=-1):
            expected = call(x)
            with slow_link(gbit_per_s=0.08, latency_s=0.001):
                start = time.perf_counter()
                found = call(x)
                return expected, found, time.perf_counter() - start

    for expected, found, seconds in cc.run(program, ranks):
        numpy.testing.assert_array_equal(found, expected)
        assert seconds >= 0.001 + size(ranks) / 1e7


def test_calls_follow_one_another_and_a_started_one_does_not_block() -> None:
    def program() -> tuple[bool, float]:
        with cc.Mesh(dp=-1), slow_link(gbit_per_s=0.08, latency_s=0):
            start = time.perf_counter()
            first, second = (cc.all_reduce_async(ag.tensor(numpy.ones(N), {"dp": P}), "dp") for _ in range(2))
            tested = first.test() and time.perf_counter() - start < 0.0048
            second.wait(), first.wait()
            return tested, time.perf_counter() - start

    for tested, seconds in cc.run(program, 2):
        assert not tested
        assert seconds >= 2 * 8 * N / 1e7


def test_comparisons_and_one_rank_cost_nothing_and_outer_observers_see_the_calls() -> None:
    def program() -> list[str]:
        seen: list[str] = []

        def observer(group: Any, request: Any, started: bool, run: Callable[[], Any]) -> Any:
            seen.append(request.call)
            return run()

        with observing(observer), slow_link(gbit_per_s=1e-9, latency_s=0):  # a second a bit
            group = cc.world()
            if group.size > 1:
                group.agree("the same")
            else:
                group.all_reduce(numpy.ones(3))
        return seen

    assert cc.run(program, 2)[0] == ["agree"]
    assert cc.run(program, 1)[0] == ["all_reduce"]


def test_around_a_run_it_holds_for_all_ranks_of_it() -> None:
    def program() -> float:
        start = time.perf_counter()
        cc.world().all_reduce(numpy.ones(N))
        return time.perf_counter() - start

    cc.world()  # this thread may have one of its own
    with slow_link(gbit_per_s=0.08, latency_s=0):
        assert min(cc.run(program, 2)) >= 8 * N / 1e7
    assert cc.World.wrappers == []


@pytest.mark.parametrize("words", [{"gbit_per_s": 0}, {"gbit_per_s": float("nan")}, {"latency_s": -1.0}])
def test_refused(words: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="needed: a positive speed"), slow_link(**words):
        pass
