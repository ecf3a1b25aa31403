"""`elastic.run(..., replace=)` on threads: others in the places of the dead, and the numbers of the serial run.

The default tests run a few deaths of each program. More: ``pytest -m slow tests/parallel/elastic/test_replace.py``.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd.errors import CollectiveMismatch, OptionError
from collectives.testing import faults
from collectives.transports.job import Death
from parallel import elastic

from .test_run import POINTS, operations
from .training import CASES, on_threads, program


def in_all(found: list[Any]) -> None:
    """The reports of all ranks that have a place are equal but for the time."""
    reports = [[(each.died, each.reached, each.step, each.source, each.mesh, each.replaced) for each in
                report.recoveries] for _, _, report in filter(None, found)]  # fmt: skip
    assert all(each == reports[0] for each in reports)


@pytest.mark.parametrize("name", CASES)
def test_a_replacement_at_a_seeded_operation(name: str) -> None:
    rng = Random(f"{name} is replaced")
    ranks = 4 if "pp" in name or "tp" in name else 3
    rank = rng.randrange(ranks)
    most = operations(name, ranks, 2)[rank]
    at = rng.randint(most // 2, most - 2)  # the last two are in the agreement to leave, after which nobody is replaced
    found, report = on_threads(name, ranks, faults.Kill(rank, at), copies=2, replace=True)
    in_all(found)
    (recovery,) = report.recoveries
    assert recovery.replaced == (rank,) == tuple(recovery.died) and np.prod(list(recovery.mesh.values())) == ranks


@pytest.mark.parametrize("point", POINTS)
def test_a_second_death_at_each_point(point: str, tmp_path: Path) -> None:
    """It is that of another rank, also in the recovery from the first, or while the first one's replacement joins."""
    number = 1 if point in ("elastic.end", "elastic.survivors") else 2
    plan = faults.Plan(faults.Kill(3, 30), faults.Kill(1, number, of=point))
    found, report = on_threads("ZeRO-1", 4, plan, copies=1, directory=tmp_path, every=2, replace=True)
    in_all(found)
    assert sum(len(each.died) for each in report.recoveries) == 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_replacement_dies_while_it_joins_or_at_the_end(number: int) -> None:
    """At the end nothing is left to do: nobody takes its place."""
    plan = faults.Plan(faults.Kill(1, 3, of="elastic.step"), faults.Kill(1, number, of="elastic.end"))
    found, report = on_threads("dp", 3, plan, replace=True)
    in_all(found)
    assert (found[1] is None) == (number == 2)
    assert [each.mesh for each in report.recoveries] == [{"dp": 3}]


def test_rank_after_rank_is_replaced_until_none_of_the_first_is_left() -> None:
    plan = faults.Plan(*(faults.Kill(rank, 2 + rank, of="elastic.step") for rank in range(3)))
    found, report = on_threads("same bits", 3, plan, replace=True)
    in_all(found)
    assert [(list(each.died), each.mesh, each.source, each.lost) for each in report.recoveries] == [
        ([0], {"dp": 3}, "replicas", 0), ([1], {"dp": 3}, "replicas", 0), ([2], {"dp": 3}, "replicas", 0)
    ]  # fmt: skip


def test_a_number_limits_the_replacements() -> None:
    plan = faults.Plan(*(faults.Kill(rank, 3 + rank, of="elastic.step") for rank in range(2)))
    found, report = on_threads("dp", 3, plan, replace=1)
    assert [each is None for each in found] == [False, True, False]
    assert [(each.replaced, each.mesh) for each in report.recoveries] == [((0,), {"dp": 3}), ((), {"dp": 2})]


def test_faults_find_a_replacement_by_its_number_in_the_world() -> None:
    """Rank 0 has left for good, so that the place of the replacement of rank 2 in its epoch is 1."""
    def before() -> None:
        if cc.world().ranks[cc.world().index] == 0:
            raise OSError("no data")

    found = run_with(before, "kill:2@1,of=elastic.step; kill:2@3,of=elastic.step", replace=True)
    assert found[0] is None and [sorted(each.died)[-1] for each in found[1][2].recoveries][-2:] == [2, 2]


def test_all_that_know_the_state_die_before_the_replacement_has_it(tmp_path: Path) -> None:
    """Rank 1 dies in step 3; rank 0 dies when the replacement of rank 1 is in the epoch, and knows nothing yet."""
    plan = faults.Plan(faults.Kill(1, 4, of="elastic.step"), faults.Kill(0, 1, of="elastic.end"))
    found, report = on_threads("dp", 2, plan, replace=True, directory=tmp_path, every=2)
    in_all(found)
    assert report.recoveries[-1].source == "checkpoint" and report.recoveries[-1].step == 2
    with pytest.raises(elastic.ElasticError, match=r"all ranks have died that had a state.*\n.*directory="):
        on_threads("dp", 2, plan, replace=True)


# -- mistakes ----------------------------------------------------------------------------------------------------------
def run_with(before: Any, plan: str, policy: Any = "raise", **options: Any) -> Any:
    def rank() -> Any:
        before()
        return program("dp", **options)

    with faults.injected(plan), cc.World("threads", 3, policy=policy) as world:
        return world.run(rank)


def test_communication_before_the_run_is_refused() -> None:
    with pytest.raises(CollectiveMismatch, match=r"barrier"):
        run_with(lambda: cc.world().barrier(), "kill:1@3,of=elastic.step", replace=True)


def test_a_replacement_in_another_run_of_the_program_is_refused() -> None:
    for first in (True, False):
        def before(first: bool = first) -> None:
            program("dp", replace=first)

        with pytest.raises(elastic.ElasticError, match=r"another elastic.run.*\{0: 2, 1: 1, 2: 2\}"):
            run_with(before, "kill:1@8,of=elastic.step", replace=True)


def test_a_rank_that_has_been_replaced_takes_part_in_a_later_run() -> None:
    def rank() -> Any:
        return program("dp", replace=True)[0], program("dp", replace=True)[0]

    with faults.injected("kill:1@3,of=elastic.step"), cc.World("threads", 3, policy="raise") as world:
        found = world.run(rank)
    np.testing.assert_allclose(found, found[0][0] * np.ones((3, 2, 1)), rtol=1e-10)


def test_an_error_of_the_program_starts_no_replacement() -> None:
    """Rank 2 dies, and rank 1 raises an error, which ends the run."""
    starts: list[int] = []

    def train(run: elastic.Run) -> None:
        run.restore({"x": 1})
        if run.mesh.ranks.index == 2:
            raise Death("was killed")
        while not run.world.failed:
            pass
        if run.mesh.ranks.index == 1:
            raise OSError("no data")
        run.mesh.ranks.barrier()

    def rank() -> None:
        starts.append(cc.world().index)
        elastic.run(train, mesh={"dp": -1}, replace=True)

    with cc.World("threads", 3, policy="raise") as world, pytest.raises(OSError, match="no data"):
        world.run(rank)
    assert sorted(starts) == [0, 1, 2]


@pytest.mark.parametrize("replace", [-1, 0.5, "yes", None])
def test_wrong_numbers(replace: Any) -> None:
    with pytest.raises(OptionError, match=r"replace=.*needed: True, False or a number"):
        program("dp", replace=replace)


def test_a_world_that_cannot_replace() -> None:
    with pytest.raises(OptionError, match=r"needed: the policy 'raise'"):
        run_with(lambda: None, "", "end", replace=True)
    with cc.World("dry", 4, policy="raise"):
        with pytest.raises(OptionError, match=r"replace=True.*cannot start ranks again; needed: a world of threads"):
            program("dp", replace=True)
        with pytest.raises(OptionError, match=r"survivors\(replace=2\).*needed: World\('threads'"):
            cc.World.current().survivors(replace=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the fault")
def test_deaths_of_many_seeds(tmp_path: Path) -> None:
    for seed in range(100):
        rng = Random(seed)
        name, ranks, copies = rng.choice(list(CASES)), rng.randint(3, 5), rng.choice([1, 2, 3])
        plan = []
        for rank in rng.sample(range(ranks), 2):
            at, of = rng.randint(1, operations(name, ranks, copies)[rank]), ""
            if rng.random() < 0.4:
                at, of = rng.randint(1, 3), rng.choice(POINTS)
            plan.append(faults.Kill(rank, at, of=of))
        folder = tmp_path / str(seed)
        in_all(on_threads(name, ranks, faults.Plan(*plan), copies=copies, directory=folder, every=2, replace=True)[0])


def test_a_rank_that_raised_before_the_run_is_not_replaced() -> None:
    def before() -> None:
        if cc.world().ranks[cc.world().index] == 2:
            raise OSError("no data")

    found = run_with(before, "", replace=True)
    assert found[2] is None and [list(each.died) for each in found[0][2].recoveries] == [[2]]
