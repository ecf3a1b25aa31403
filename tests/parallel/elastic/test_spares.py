"""`elastic.run(..., spares=)`: ranks that wait take the places of the dead, and the mesh stays what it was."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd.errors import OptionError
from collectives.testing import faults

from .test_run import operations
from .training import CASES, on_threads, program


@pytest.mark.parametrize("name", CASES)
def test_a_spare_takes_the_place_at_a_seeded_operation(name: str) -> None:
    rng = Random(f"{name} with a spare")
    ranks = 4 if "pp" in name or "tp" in name else 3
    rank = rng.randrange(ranks)
    most = operations(name, ranks, 2)[rank]
    plan = faults.Kill(rank, rng.randint(most // 3, 2 * most // 3))
    _, report = on_threads(name, ranks + 1, plan, copies=2, spares=1)
    (recovery,) = report.recoveries
    assert tuple(recovery.died) == (rank,) and recovery.joined == (ranks,) and recovery.replaced == ()
    assert np.prod(list(recovery.mesh.values())) == ranks
    assert f"rank {rank} died in step {recovery.reached + 1}, rank {ranks} joined; on from step" in str(report)


def test_the_mesh_becomes_smaller_when_no_spare_is_left() -> None:
    plan = "kill:1@2,of=elastic.step; kill:0@4,of=elastic.step; kill:2@5,of=elastic.step"
    _, report = on_threads("ZeRO-1", 5, plan, copies=2, spares=2)
    assert [(sorted(each.died), each.joined, each.mesh) for each in report.recoveries] == [
        ([1], (3,), {"dp": 3}), ([0], (4,), {"dp": 3}), ([2], (), {"dp": 2})]  # fmt: skip


def test_a_spare_may_die_itself() -> None:
    _, report = on_threads("dp", 4, "kill:3@3", copies=2, spares=1)
    for each in report.recoveries:
        assert sorted(each.died) == [3] and each.joined == () and each.mesh == {"dp": 3}


def test_two_die_at_once_and_the_bits_stay() -> None:
    name = next(name for name, case in CASES.items() if case.get("bits") == "same" and "pp" not in name)
    plan = "kill:0@3,of=elastic.step; kill:2@3,of=elastic.step"
    _, report = on_threads(name, 5, plan, copies=1, spares=2)
    assert sum(len(each.died) for each in report.recoveries) == 2
    assert all(np.prod(list(each.mesh.values())) == 3 for each in report.recoveries[-1:])


@pytest.mark.parametrize("spares", [-1, True, 1.0, "1"])
def test_refused(spares: Any) -> None:
    with cc.World("threads", 2, policy="raise") as world, pytest.raises(OptionError, match="needed: a number of ranks"):
        world.run(lambda: program("dp", spares=spares))


def test_a_rank_has_to_train() -> None:
    with cc.World("threads", 2, policy="raise") as world, pytest.raises(OptionError, match="fix: 3 ranks or more"):
        world.run(lambda: program("dp", spares=2))
    with cc.World("threads", 3, policy="raise") as world:  # the fix
        assert [each is None for each in world.run(lambda: program("dp", spares=2))] == [False, True, True]
