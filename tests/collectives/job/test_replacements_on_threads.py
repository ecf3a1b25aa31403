"""`World.survivors(replace=)` on threads: ranks that are started in the place of those that have died."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd.errors import DeadlockError, OptionError, RankFailed
from collectives.transports.job import Death
from collectives.transports.protocol import Request


def joined(replace: Any = True) -> Any:
    """The channel of the next epoch, which a replacement is in from the start."""
    world = cc.World.current()
    return world.communicator if world.is_replacement else world.survivors(replace=replace)


@pytest.mark.parametrize("dead", [(0,), (2,), (1, 3), (0, 1, 2, 3)])
def test_they_have_the_numbers_of_the_dead_and_are_in_the_epoch(dead: tuple[int, ...]) -> None:
    starts: list[int] = []

    def program() -> Any:
        world, group = cc.World.current(), cc.world()
        me = group.ranks[group.index]
        starts.append(me)
        if me in dead and not world.is_replacement:
            raise Death("was killed")
        while world.epoch == 0 and len(world.failed) < len(dead):
            pass
        group = joined()
        assert cc.world() is group is world.communicator and not world.failed
        assert {rank: (each.epoch, "was killed" in each.why) for rank, each in world.replaced.items()} == dict.fromkeys(
            dead, (1, True))  # fmt: skip
        with cc.Mesh(group, dp=-1) as mesh:
            total = mesh.axis("dp").group.all_reduce(np.array([me + 1.0]))[0]
        return me, group.name, group.ranks, total, world.is_replacement

    with cc.World("threads", 5, policy="raise") as world:
        found = world.run(program)
    assert found == [(rank, "survivors 1", (0, 1, 2, 3, 4), 15.0, rank in dead) for rank in range(5)]
    assert sorted(starts) == sorted([0, 1, 2, 3, 4, *dead])


@pytest.mark.parametrize(
    ("given", "replaced"),
    [((1, 1, 1), [0]), ((0, True, 3), []), ((1, True, 5), [0]), ((2, 9, True), [0, 3])],
)
def test_the_least_number_counts(given: tuple[Any, ...], replaced: list[int]) -> None:
    def program() -> Any:
        world, me = cc.World.current(), cc.world().ranks[cc.world().index]
        if me in (0, 3) and not world.is_replacement:
            raise Death("was killed")
        while world.epoch == 0 and (len(world.failed) < 2 or me > 1 and world._job._ranks.ended < 0):
            pass  # the rank that gives the least calls it first
        return joined(None if me in (0, 3) else given[(1, 2, 4).index(me)]).ranks

    with cc.World("threads", 5, policy="raise") as world:
        found = world.run(program)
        assert sorted(world.replaced) == replaced and sorted({*world.failed, *replaced}) == [0, 3]
    assert found[1] == tuple(rank for rank in range(5) if rank not in (0, 3) or rank in replaced)


def test_a_rank_that_has_raised_is_not_replaced() -> None:
    def program() -> Any:
        if cc.world().index == 1:
            raise OSError("no data")
        while not cc.World.current().failed:
            pass
        return joined().ranks

    with cc.World("threads", 3, policy="raise") as world:
        assert world.run(program) == [(0, 2), None, (0, 2)]


def test_twenty_replacements_leave_no_channels_and_no_threads() -> None:
    """Each rank dies in turn. Messages that nobody has received go with the epoch."""

    def program() -> Any:
        world = cc.World.current()
        while True:
            number, group = world.epoch, world.communicator
            me = group.ranks[group.index]
            if number == 20:
                return len(world._job._ranks._channels), world.epoch
            try:
                group.lane("x").start(Request("send", np.ones(1), peer=group.index))
                if me == number % 3:
                    raise Death("was killed")
                group.barrier()
                raise AssertionError("rank has died")
            except RankFailed:
                world.survivors(replace=True)

    before = threading.active_count()
    with cc.World("threads", 3, policy="raise") as world:
        found = world.run(program)
        assert [epoch for _, epoch in found] == [20, 20, 20] and found[0][0] <= 4 and not world.failed
    gc.collect()
    assert threading.active_count() <= before


def test_a_deadlock_with_a_replacement_is_found() -> None:
    def program() -> None:
        world = cc.World.current()
        if cc.world().ranks[cc.world().index] == 1 and not world.is_replacement:
            raise Death("was killed")
        while world.epoch == 0 and not world.failed:
            pass
        group = joined()
        with pytest.raises(DeadlockError, match=r"rank 1 waits in recv"):
            group.recv(np.empty(1), (group.index + 1) % 3)

    with cc.World("threads", 3, policy="raise") as world:
        world.run(program)


def test_a_thread_that_cannot_be_started_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> Any:
        world, group = cc.World.current(), cc.world()
        group.barrier()  # all have been started
        if group.index == 1:
            raise Death("was killed")
        while not world.failed:
            pass
        monkeypatch.setattr(threading.Thread, "start", refuse)
        group = world.survivors(replace=True)
        with pytest.raises(RankFailed, match="rank 1 of 3 raised RuntimeError: can't start new thread"):
            group.barrier()
        return world.survivors(replace=True).ranks

    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with cc.World("threads", 3, policy="raise") as world:
        assert world.run(program) == [(0, 2), None, (0, 2)]


@pytest.mark.parametrize("replace", [-1, 1.5, None])
def test_wrong_numbers(replace: Any) -> None:
    def program() -> None:
        with pytest.raises(OptionError, match=r"survivors\(replace=.*needed: a whole number"):
            cc.World.current().survivors(replace=replace)

    with cc.World("threads", 2, policy="raise") as world:
        world.run(program)


def test_a_world_that_ends_with_a_rank_cannot_replace_one() -> None:
    def program() -> None:
        with pytest.raises(OptionError, match=r"needed: World\('threads', policy='raise'\)"):
            cc.World.current().survivors(replace=True)

    cc.run(program, 2)
