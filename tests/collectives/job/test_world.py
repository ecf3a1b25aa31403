"""Worlds: made and closed one after another, side by side on threads, and with the policy `raise`."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd.engine.state import state
from autograd.errors import CommunicationError, OptionError
from collectives.transports.job import JOBS
from collectives.transports.threads import job as threads_job
from collectives.transports.threads.job import ThreadsJob

from ..launch import Outcome, launch
from .endings import SIGKILL, ended_by

START_S = 60.0


def total(times: int = 1) -> float:
    with cc.Mesh(dp=-1):
        for _ in range(times):
            found = cc.all_reduce(ag.tensor(np.ones(2)), "dp")
    return float(found.numpy()[0])


# -- threads and dry ---------------------------------------------------------------------------------------------------
def test_a_kind_of_world_is_a_job_and_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that names its ranks from 10 on, of a module that `transports` does not have."""

    class Tens(ThreadsJob):
        closed = 0

        def run(self, program: Any, args: Any, begin: Any) -> Any:
            return [10 + value for value in super().run(program, args, begin)]

        def close(self) -> bool:
            Tens.closed += 1
            return True

    monkeypatch.setattr(threads_job, "Tens", Tens, raising=False)
    monkeypatch.setitem(JOBS, "tens", ("threads.job", "Tens"))  # type: ignore[misc]  # a kind of this test
    kind: Any = "tens"
    with cc.World(kind, ranks=2) as world:
        assert world.run(lambda: int(cc.world().rank)) == [10, 11]
        assert repr(world) == "World('tens', ranks=2, policy='end')" and world.failed == {}
    assert Tens.closed == 1
    with pytest.raises(OptionError, match="one of mpi, threads, dry, tens"):
        cc.World("pigeons")  # type: ignore[arg-type]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files are counted in /proc")
def test_worlds_of_threads_one_after_another() -> None:
    counts, alive = [], []

    def one(ranks: int) -> weakref.ref[cc.World]:
        with cc.World("threads", ranks=ranks) as world:
            assert world.size == ranks
            assert world.run(total) == [ranks] * ranks
            assert world.run(lambda: cc.World.current() is world) == [True] * ranks
        return weakref.ref(world)

    for ranks in (1, 2, 3, 5) * 5:
        alive.append(one(ranks))
        counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
    gc.collect()
    assert counts == counts[:1] * 20
    assert not any(reference() for reference in alive)


def test_two_worlds_of_threads_at_once() -> None:
    found: dict[int, Any] = {}

    def one(ranks: int) -> None:
        with cc.World("threads", ranks=ranks) as world:
            found[ranks] = [world.run(total, 20) for _ in range(5)]

    threads = [threading.Thread(target=one, args=(ranks,)) for ranks in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {2: [[2.0] * 2] * 5, 3: [[3.0] * 3] * 5}


def test_a_failure_in_one_world_leaves_the_other_alone() -> None:
    def fails() -> None:
        raise ValueError("planted")

    with cc.World("threads", ranks=2) as one, cc.World("threads", ranks=2) as other:
        with pytest.raises(ValueError, match="planted"):
            one.run(fails)
        assert other.run(total) == [2, 2]
        assert one.run(total) == [2, 2]


def test_worlds_of_this_thread_nest() -> None:
    before = cc.world()
    with cc.Mesh(a=1) as mesh:
        with cc.World("threads") as world:
            assert cc.world() is world.communicator is not before
            assert state.mesh is None
            with cc.World("dry", ranks=8, rank=3):
                assert (cc.world().size, cc.world().rank) == (8, 3) and state.dry
                with cc.Mesh(dp=8):
                    assert cc.all_gather(ag.tensor(np.ones(2)), "dp").shape == (16,)
            assert cc.world() is world.communicator and not state.dry
        assert state.mesh is mesh
    assert cc.world() is before


def test_a_closed_world_is_refused() -> None:
    world = cc.World("threads", ranks=2)
    world.close()
    world.close()
    with pytest.raises(cc.MeshError, match="closed"):
        world.run(total)
    with pytest.raises(cc.MeshError, match="closed"):
        _ = world.communicator
    with pytest.raises(cc.MeshError, match="needed: a new World"), world:
        pass


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"kind": "gpu"}, "needed: one of mpi, threads, dry"),
        ({"policy": "ignore"}, "needed: one of end, raise"),
    ],
)
def test_unknown_words_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ag.OptionError, match=text):
        cc.World(**arguments)


@pytest.mark.parametrize("ranks", [0, -1, 2.5, True])
def test_numbers_of_ranks_are_checked(ranks: Any) -> None:
    with pytest.raises(cc.MeshError, match="one rank or more"):
        cc.World("threads", ranks=ranks)


def test_only_ranks_have_a_communicator() -> None:
    with cc.World("threads", ranks=2) as world, pytest.raises(cc.MeshError, match="this thread is no rank"):
        _ = world.communicator


# -- the policy `raise` on threads -------------------------------------------------------------------------------------
WAITS = {
    "collective": lambda group: group.all_reduce(np.ones(2)),
    "recv": lambda group: group.recv(np.empty(2), 1),
    "send": lambda group: [(group.send(np.ones(2), 1), time.sleep(0.01)) for _ in range(1000)],
}


@pytest.mark.parametrize("late_s", [0.0, 0.2])
@pytest.mark.parametrize("where", WAITS)
def test_survivors_on_threads_go_on(where: str, late_s: float) -> None:
    told = {}

    def program() -> float:
        group = cc.world()
        if group.rank == 1:
            time.sleep(late_s)
            raise ValueError("planted")
        pair = group.subgroup([0, 2], "pair")
        with pytest.raises(cc.RankFailed) as caught:
            WAITS[where](group)
        told[group.rank] = str(caught.value)
        with pytest.raises(cc.RankFailed):
            group.barrier()
        assert pair.all_reduce(np.ones(1))[0] == 2
        with cc.Mesh(cc.World.current().survivors(), dp=-1):
            return float(cc.all_reduce(np.ones(1), "dp").numpy()[0])

    with cc.World("threads", ranks=3, policy="raise") as world:
        assert world.run(program) == [2.0, None, 2.0]
        assert list(world.failed) == [1] and "ValueError: planted" in world.failed[1]
    assert all("rank 1 of 3 raised ValueError: planted" in told[rank] for rank in (0, 2)), told


def test_ranks_that_do_not_need_the_failed_one_are_not_told() -> None:
    def program() -> float:
        group = cc.world()
        if group.rank == 1:
            raise ValueError("planted")
        pair = group.subgroup([0, 2], "pair")
        time.sleep(0.1)
        return float(sum(pair.all_reduce(np.ones(1))[0] for _ in range(100)))

    with cc.World("threads", ranks=3, policy="raise") as world:
        assert world.run(program) == [200.0, None, 200.0]


def test_a_wait_for_a_survivor_that_gave_up_is_a_deadlock() -> None:
    def program() -> str:
        group = cc.world()
        if group.rank == 1:
            raise ValueError("planted")
        try:
            group.recv(np.empty(1), 1 if group.rank == 0 else 0)
        except (cc.RankFailed, cc.DeadlockError) as error:
            return type(error).__name__
        return "nothing"

    with cc.World("threads", ranks=3, policy="raise") as world:
        assert world.run(program) == ["RankFailed", None, "DeadlockError"]


def test_all_ranks_fail() -> None:
    def program() -> None:
        raise ValueError(f"planted on {cc.world().rank}")

    with cc.World("threads", ranks=3, policy="raise") as world, pytest.raises(ValueError, match="planted on 0"):
        world.run(program)


# -- processes ---------------------------------------------------------------------------------------------------------
def test_worlds_over_mpi() -> None:
    """All in one job, since a process can make and close worlds as often as it likes."""
    tests = "misuse", "caught", "one_after_another"
    outcome = launch("worlds.py", 3, *tests, limit_s=100, OPENBLAS_NUM_THREADS="1")
    assert (outcome.code, outcome.err, outcome.is_late) == (0, "", False), outcome
    assert all(f"DONE with {test} on rank {rank}" in outcome.out for rank in range(3) for test in tests), outcome


def survived(outcome: Outcome, text: str) -> None:
    assert not outcome.is_late, outcome
    for rank in (0, 2):
        told = rf"^RANK {rank} TOLD .rank 1 of 3 {text}.* while rank {rank} waits"
        assert re.search(told, outcome.out, re.MULTILINE), outcome
        assert f"RANK {rank} did its work" in outcome.out, outcome
    assert "WENT ON" not in outcome.out


@pytest.mark.parametrize(
    ("how", "where"),
    [("raise", "all_reduce"), ("raise late", "recv"), ("raise", "test"),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in (("raise", "send"), ("raise late", "lend")))],
)
def test_survivors_over_mpi_go_on(how: str, where: str) -> None:
    outcome = launch("goes_on.py", 3, how, where, limit_s=START_S)
    survived(outcome, "raised ValueError: planted")
    assert outcome.code == 1, outcome  # rank 1's
    assert "ringtape: rank 1 of 3 raised ValueError: planted; the job continues without it" in outcome.err
    assert "[rank 1] Traceback" in outcome.err


@pytest.mark.parametrize(("how", "text", "code"), [
    ("tell", "lost its disk", 0), ("sys.exit 3", "exited early", 3),
    pytest.param("sys.exit 0", "exited early", 0, marks=pytest.mark.slow),  # the same path, with another status
])  # fmt: skip
def test_survivors_of_a_rank_that_leaves_go_on(how: str, text: str, code: int) -> None:
    outcome = launch("goes_on.py", 3, how, "all_reduce", limit_s=START_S)
    survived(outcome, text)
    assert outcome.code == code, outcome


def test_a_rank_that_closes_the_world_early() -> None:
    """It waits in the end of its block, and the others are told that it has closed the world."""
    outcome = launch("goes_on.py", 3, "close", "all_reduce", limit_s=START_S)
    survived(outcome, "closed the world")


def test_a_killed_process_ends_the_job() -> None:
    """The launcher ends the others, whatever the policy; the one that was killed is named."""
    outcome = launch("fails.py", 3, "kill", "barrier", "elastic", limit_s=START_S)
    assert outcome.code != 0 and not outcome.is_late
    assert re.search(rf"^ringtape: rank 1 of 3 .*{ended_by(SIGKILL)}; the job ends$", outcome.err, re.M)


@pytest.mark.parametrize(
    "use", [lambda g: g.barrier(), lambda g: g.all_reduce(np.ones(2)), lambda g: g.recv(np.ones(1), 1)]
)
def test_a_communicator_of_threads_that_have_ended_is_refused(use: Callable[[cc.Communicator], object]) -> None:
    with cc.World("threads", ranks=2) as world:
        group = world.run(cc.world)[0]
    with pytest.raises(CommunicationError, match="after its program has ended"):
        use(group)
