"""`World.survivors` on threads: an agreement, a new epoch, and the end of all waits on channels of the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd.errors import DeadlockError, RankFailed
from collectives.transports.job import Death
from collectives.transports.protocol import Request


def in_a_window(group: Any) -> Any:
    window = group.window(np.zeros(2))
    return lambda: window.get(0)


def in_clocks(group: Any) -> Any:
    clocks = group.clocks()
    return lambda: clocks.wait(1)


CALLS: dict[str, Callable[[Any], Any]] = {
    "a collective": lambda group: group.barrier,
    "a message from a living rank": lambda group: lambda: group.recv(np.empty(1), (group.index + 1) % group.size),
    "a started call": lambda group: lambda: group.start(Request("barrier")).wait(),
    "a subgroup": lambda group: group.duplicate("again").barrier,
    "a lane": lambda group: lambda: group.lane("x").recv(np.empty(1), 0 if group.index else 1),
    "a window": in_a_window, "clocks": in_clocks,
}  # fmt: skip


@pytest.mark.parametrize("where", CALLS)
@pytest.mark.parametrize("ranks", [3, 5])
def test_the_first_rank_that_calls_it_ends_the_waits_on_living_ranks(where: str, ranks: int) -> None:
    """Rank 0 knows of the death; the others wait for ranks that live, or find out when they communicate."""

    def program() -> Any:
        world, group = cc.World.current(), cc.world()
        call = CALLS[where](group)
        if group.index == 2:
            raise Death("was killed")
        if group.index:
            with pytest.raises(RankFailed, match=r"rank 2 of \d was killed; rank 0 has called World.survivors|rank 2"):
                while True:
                    call()
        while 2 not in world.failed:
            pass
        group = world.survivors()
        assert cc.world() is group is world.communicator and world.epoch == 1
        group.barrier()
        return group.name, group.ranks, group.all_reduce(np.array([group.ranks[group.index] + 1.0]))[0]

    with cc.World("threads", ranks, policy="raise") as world:
        found = world.run(program)
    living = tuple(rank for rank in range(ranks) if rank != 2)
    total = sum(rank + 1.0 for rank in living)
    assert [each for each in found if each] == [("survivors 1", living, total)] * (ranks - 1)
    assert world.epoch == 1


def test_a_rank_that_computes_finds_out_at_its_next_communication() -> None:
    def program() -> Any:
        world, group = cc.World.current(), cc.world()
        alone = group.subgroup([1, 2], "pair") if group.index else None
        if group.index == 0:
            return world.survivors().size
        while world._job._ranks.ended < 0:
            pass
        with pytest.raises(RankFailed, match=r"rank 0 has called World.survivors.*rank \d calls barrier on 'pair'"):
            alone.barrier()
        return world.survivors().size

    with cc.World("threads", 3, policy="raise") as world:
        assert world.run(program) == [3, 3, 3]
        assert world.failed == {}


@pytest.mark.parametrize("second", [0, 1, 4])
def test_a_rank_that_dies_before_it_agrees_is_left_out(second: int) -> None:
    """The second rank dies when the others may be inside already; later deaths make further epochs."""

    def program() -> Any:
        world, group = cc.World.current(), cc.world()
        if group.index == 3:
            raise Death("was killed")
        if group.index == second:
            while world._job._ranks.ended < 0:
                pass
            raise Death("was killed, too")
        found = world.survivors()
        members = [found.ranks]
        try:
            if found.ranks[found.index] == 2:
                raise Death("was killed at last")
            found.barrier()
        except RankFailed:
            members.append(world.survivors().ranks)
            cc.world().barrier()
        return members, world.epoch, cc.world().name

    with cc.World("threads", 6, policy="raise") as world:
        found = world.run(program)
    first = tuple(rank for rank in range(6) if rank not in (3, second))
    then = tuple(rank for rank in first if rank != 2)
    assert [found[rank] for rank in then] == [([first, then], 2, "survivors 2")] * len(then)
    assert list(world.failed)[-1] == 2


def test_twenty_epochs_leave_no_channels() -> None:
    def program() -> Any:
        world = cc.World.current()
        for _ in range(20):
            with cc.Mesh(world.survivors(), dp=-1) as mesh:
                mesh.axis("dp").group.duplicate("x").barrier()
        return len(world._job._ranks._channels), world.epoch

    with cc.World("threads", 3, policy="raise") as world:
        channels, epoch = world.run(program)[0]
    assert epoch == 20 and channels <= 6


def test_a_rank_that_has_finished_is_named() -> None:
    def program() -> None:
        if cc.world().index:
            with pytest.raises(DeadlockError, match=r"rank 1 waits in World.survivors, .* for rank 0"):
                cc.World.current().survivors()

    with cc.World("threads", 3, policy="raise") as world:
        world.run(program)
        assert not world.failed
