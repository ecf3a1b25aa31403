"""Elastic runs with every object that has a state, and with the options of other layers.

What a run computes after a death is what it computes if it is saved before, and resumed on the ranks that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import CheckpointError, LayoutError, ReplicaMismatch
from collectives.testing import faults
from parallel import DataParallel, RunLog, Trainer, checkpoint, elastic, read_log
from parallel.elastic import ElasticError, holdings, loop, restoring

from ..checkpoint import layouts
from ..test_resume import RUNS, made, on, same
from .training import STEPS, X, Y, program
from .training import model as network

pytest.importorskip("safetensors", reason="safetensors is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
LAST, DEATH = 5, 3  # steps of a run, and those before the death


def steps_of(run: elastic.Run, name: str) -> Any:
    """What the steps of this start compute. Each start has other weights, which the state replaces."""
    it = made(name, run.mesh, run.starts)
    with it.block():
        run.restore(it.objects)
        return [it.step(k) for k in run.steps(LAST)], run.report


def survived(name: str, ranks: int = 3, **options: Any) -> Any:
    """What the ranks compute that are left, after a death of rank 1, and where the state came from."""
    plan = faults.Kill(1, DEATH + 1, of="elastic.step")
    with faults.injected(plan), cc.World("threads", ranks, policy="raise") as world:
        found = world.run(lambda: elastic.run(lambda run: steps_of(run, name), mesh={"dp": -1}, **options))
    left = [each for each in found if each is not None]
    (recovery,) = left[0][1].recoveries
    assert recovery.step == DEATH
    return [each[0] for each in left], recovery.source


def resumed(name: str, path: Path, ranks: int = 3) -> Any:
    """The same of a run that is saved, and resumed on one rank less."""

    def first(mesh: cc.Mesh) -> None:
        it = made(name, mesh, 1)
        with it.block():
            for k in range(DEATH):
                it.step(k)
            checkpoint.save(path, it.objects, DEATH)

    def second(mesh: cc.Mesh) -> list[Any]:
        it = made(name, mesh, 2)
        with it.block():
            checkpoint.load(path, it.objects)
            return [it.step(k) for k in range(DEATH, LAST)]

    on(ranks, first)
    return on(ranks - 1, second)


# -- objects with a state ----------------------------------------------------------------------------------------------
OF_ONE_MESH = ("LocalSGD", "DiLoCo", "ParameterServer")
DIVIDED = ("zero 1", "zero 2", "zero 3", "Pipeline", "Trainer tp", "Trainer pp", "Trainer zero")
REMEMBERING = ("Int8", "OneBit", "OneBit momentum", "TopK", "TopK momentum", "RandomK", "PowerSGD",
               "NoiseScale of PowerSGD", "CompressedAdam")  # fmt: skip


@pytest.mark.parametrize("name", [name for name in RUNS if name not in OF_ONE_MESH])
def test_what_goes_on_is_the_run_that_is_resumed(name: str, tmp_path: Path) -> None:
    found, source = survived(name, copies=1)
    assert source == ("copies" if name in (*DIVIDED, *REMEMBERING) else "replicas")
    assert same(found, resumed(name, tmp_path))


@pytest.mark.parametrize("name", ["TopK", "OneBit", "CompressedAdam"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_memory_of_a_reduction_is_lost_with_its_rank(name: str, ranks: int) -> None:
    """Only the dead rank had its residual: without copies it is an error, and not a run with less gradient."""
    with pytest.raises(ElasticError, match=r"model/attached/reduction/ranks/\w+/\d.weight(/1)? of step 3 was lost"):
        survived(name, ranks)


def test_values_of_one_mesh_are_refused_on_another() -> None:
    with pytest.raises(LayoutError, match="each rank has a value of its own"):
        survived("LocalSGD", copies=1)
    with pytest.raises(ElasticError, match=r"model/0.\w+@dp=1 of step 3 was lost"):
        survived("DiLoCo")


def test_replicas_that_differ_are_no_state() -> None:
    """The optimizer's state of a parameter server is that of the parameters which a rank serves."""
    says = r"optimizer/velocity/\w+ of step 3 is one value, and ranks \d and \d have different ones"
    with pytest.raises(ElasticError, match=says):
        survived("ParameterServer")
    with pytest.raises(ReplicaMismatch, match="copies of elastic.run: optimizer/velocity/.* is one value for ranks"):
        survived("ParameterServer", copies=1)


# -- options of other layers -------------------------------------------------------------------------------------------
def gpt(run: elastic.Run, experts: bool) -> Any:
    trainer = Trainer(
        partial(layouts.model, 4 if experts else 0), layouts.gpt.Loss(), run.mesh,
        layouts.EXPERTS if experts else layouts.PLAN, optimizer=lambda p: optim.AdamW(p, lr=1e-2), clip=0.5,
        microbatches=2, zero=1,
    )  # fmt: skip
    state: dict[str, Any] = {"trainer": trainer, "losses": []}
    run.restore(state)
    for step in run.steps(3):
        state["losses"].append(trainer.step(*layouts.batch(step)))
    return state["losses"]


def accumulated(run: elastic.Run, zero: int) -> Any:
    """Two backward passes for each step; a death may come between them."""
    net = network()
    parallel, adam = DataParallel(net, "dp", zero=zero), optim.Adam(net.parameters(), lr=0.05)
    state: dict[str, Any] = {"net": net, "adam": adam, "losses": []}
    run.restore(state)
    for step in run.steps(3):
        adam.zero_grad()
        total = 0.0
        with parallel.accumulate():
            for rows in (slice(0, 7), slice(7, 12)):
                with ag.Tape() as tape:
                    place = int(run.mesh.ranks.index), run.mesh.ranks.size
                    x, y = (np.array_split(each[step][rows], place[1])[place[0]] for each in (X, Y))
                    x, y = (cc.from_local(each, {"dp": cc.Shard(0)}) for each in (x, y))
                    loss = cc.all_reduce(nn.cross_entropy(parallel(x), y, reduction="sum") / 12, "dp", to=cc.I)
                tape.backward(loss)
                total += loss.item()
        adam.step()
        state["losses"].append(total)
    return state["losses"]


def small(run: elastic.Run) -> tuple[Trainer, dict[str, Any]]:
    trainer = Trainer(network, nn.CrossEntropyLoss(reduction="sum"), run.mesh,
                      optimizer=lambda p: optim.SGD(p, lr=0.1, momentum=0.9))  # fmt: skip
    return trainer, {"trainer": trainer, "losses": []}


def in_phases(run: elastic.Run) -> Any:
    """The steps in two loops, with other work between them."""
    trainer, state = small(run)
    run.restore(state)
    for step in run.steps(2):
        state["losses"].append(trainer.step(X[step], Y[step]))
    run.mesh.ranks.barrier()
    for step in run.steps(4):
        state["losses"].append(trainer.step(X[step], -1 * Y[step] + 1))
    return state["losses"]


def stopped_early(run: elastic.Run) -> Any:
    """A break leaves the loop, and the steps go on from the one that it has left."""
    trainer, state = small(run)
    run.restore(state)
    for step in run.steps(9):
        if step >= 2:
            break
        state["losses"].append(trainer.step(X[step], Y[step]))
    run.mesh.ranks.barrier()
    for step in run.steps(4):
        state["losses"].append(trainer.step(X[step], Y[step]))
    return state["losses"]


def in_containers(run: elastic.Run) -> Any:
    trainer, own = small(run)
    run.restore({"a": {"b": trainer.pipeline, "c": [trainer.optimizer, own["losses"]]}, "random": random, "n": {}})
    for step in run.steps(4):
        own["losses"].append(trainer.step(X[step], Y[step]))
    return own["losses"]


def by_twos(n: int, axis: str) -> dict[str, int]:
    return {"dp": n // 2, axis: 2} if n > 1 else {"dp": 1, axis: 1}


OTHERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "context parallelism": (partial(gpt, experts=False), {"mesh": partial(by_twos, axis="cp"), "copies": 1}),
    "expert parallelism": (partial(gpt, experts=True), {"mesh": partial(by_twos, axis="ep"), "copies": 1}),
    "accumulate": (partial(accumulated, zero=0), {}),
    "accumulate, ZeRO-2": (partial(accumulated, zero=2), {"copies": 1}),
    "two loops": (in_phases, {}), "break": (stopped_early, {}), "containers": (in_containers, {}),
    "spares": (in_phases, {"mesh": lambda n: {"dp": max(n // 2, 1)}}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_options_of_other_layers(name: str) -> None:
    train, options = OTHERS[name]
    options = {"mesh": {"dp": -1}, **options}

    def job(ranks: int, plan: Any) -> Any:
        with faults.injected(plan) as injection, cc.World("threads", ranks, policy="raise") as world:
            return world.run(lambda: elastic.run(train, **options)), injection.counts

    alone = job(1, "")[0][0]
    counts = job(4, "")[1]
    rng = np.random.default_rng(7)
    for victim in (0, 1):
        at = int(rng.integers(counts[victim][""] // 3, counts[victim][""] + 1))
        found = [each for each in job(4, faults.Kill(victim, at))[0] if each is not None]
        assert found
        for each in found:
            np.testing.assert_allclose(each, alone, rtol=1e-10)


# -- saves in the background, logs -------------------------------------------------------------------------------------
def saving(run: elastic.Run, folder: Path) -> Any:
    trainer, state = small(run)
    run.restore(state)
    with RunLog(folder / "run.jsonl") as log:
        for step in run.steps(STEPS):
            state["losses"].append(trainer.step(X[step], Y[step]))
            log.write(step=step, loss=state["losses"][-1])
    return state["losses"]


def in_the_background(plan: Any, ranks: int, folder: Path) -> Any:
    folder.mkdir()

    def job() -> Any:
        saves = checkpoint.Checkpoints(folder / "saves", keep=2, background=True)
        return elastic.run(lambda run: saving(run, folder), mesh={"dp": -1}, directory=saves, every=1)

    with faults.injected(plan), cc.World("threads", ranks, policy="raise") as world:
        return [each for each in world.run(job) if each is not None]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("point", ["write_data", "sync_data", "write_text", "rename"])
def test_a_death_while_a_save_is_written(victim: int, point: str, tmp_path: Path) -> None:
    """The others go on, and save; the log of the run has each step once, though another rank writes it now."""
    (alone,) = in_the_background("", 1, tmp_path / "alone")
    found = in_the_background(faults.Kill(victim, 3, of=f"checkpoint.{point}"), 3, tmp_path / "run")
    assert len(found) == 2
    for each in found:
        np.testing.assert_allclose(each, alone, rtol=1e-10)
    rows = read_log(tmp_path / "run" / "run.jsonl")
    assert [row["step"] for row in rows] == list(range(STEPS))
    np.testing.assert_allclose([row["loss"] for row in rows], alone, rtol=1e-10)
    assert checkpoint.latest(tmp_path / "run" / "saves") == STEPS


# -- what programs do with restore and steps ---------------------------------------------------------------------------
def test_lists_and_arrays_of_the_state_keep_their_identity() -> None:
    """A program may have them under other names."""

    def train(run: elastic.Run) -> Any:
        losses: list[int] = []
        table, best = {"a": [0]}, np.zeros(2)
        state = {"losses": losses, "table": table, "best": best, "count": 0}
        run.restore(state)
        for step in run.steps(4):
            losses.append(step)
            table["a"][0] += 1
            best += step
            state["count"] += 1
            run.mesh.ranks.barrier()
        return losses, table, best.tolist(), state["count"]

    with faults.injected("kill:1@3,of=barrier"), cc.World("threads", 3, policy="raise") as world:
        found = world.run(lambda: elastic.run(train, mesh={"dp": -1}))
    assert found[0] == found[2] == ([0, 1, 2, 3], {"a": [4]}, [6.0, 6.0], 4)


def test_without_restore_the_program_begins_again() -> None:
    def train(run: elastic.Run) -> Any:
        run.mesh.ranks.barrier()
        return run.starts

    with faults.injected("kill:2@1,of=barrier"), cc.World("threads", 3, policy="raise") as world:
        assert world.run(lambda: elastic.run(train, mesh={"dp": -1})) == [2, 2, None]


# -- costs -------------------------------------------------------------------------------------------------------------
def test_explain_counts_what_a_restore_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    costs: list[Any] = []
    restore = loop._Loop.restore

    def counted(self: Any, objects: Any) -> Any:
        def count() -> tuple[int, int]:
            mine = injection.counts[rank]
            return mine["exchange"], mine["all_to_all"]

        rank = self.group.ranks[self.group.index]
        before = count()
        found = restore(self, objects)
        if rank == 0 and self.starts > 1:
            seen.append((count()[0] - before[0], count()[1] - before[1]))
            costs.append((elastic.explain(objects), self.copies.bytes))
        return found

    monkeypatch.setattr(loop._Loop, "restore", counted)
    with faults.injected("kill:1@4,of=elastic.step") as injection, cc.World("threads", 3, policy="raise") as world:
        world.run(lambda: program("dp", copies=1))
    ((cost, sent),) = costs
    assert seen == [(cost.exchanges, cost.all_to_alls)] and "a rank receives" in str(cost)
    assert cost.copy_bytes == pytest.approx(sent, rel=0.5)


# -- planted faults ----------------------------------------------------------------------------------------------------
def test_planted_faults_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patched:  # the residuals of all ranks are taken for one value
        patched.setattr(holdings, "value_digest", lambda array: "")
        with pytest.raises(AssertionError):
            test_what_goes_on_is_the_run_that_is_resumed("TopK", tmp_path)
    with monkeypatch.context() as patched:  # a lost residual is not noticed
        patched.setattr(restoring, "values_of_ranks", lambda tree: [])
        with pytest.raises((AssertionError, CheckpointError)):
            test_the_memory_of_a_reduction_is_lost_with_its_rank("TopK", 3)
    with monkeypatch.context() as patched:  # replicas are not compared
        patched.setattr(holdings.Holding, "boxes", lambda self: {e.key: [[e.box, ""]] for e in self.entries})
        with pytest.raises(pytest.fail.Exception):
            test_replicas_that_differ_are_no_state()
    with monkeypatch.context() as patched:  # lists are replaced
        patched.setattr(loop, "_in_place", lambda have, restored: restored)
        with pytest.raises(AssertionError):
            test_lists_and_arrays_of_the_state_keep_their_identity()
