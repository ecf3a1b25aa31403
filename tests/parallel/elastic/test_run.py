"""`elastic.run` on threads: deaths at seeded operations leave the parameters of the serial run.

The default tests run a few deaths of each program. All of them: ``pytest -m slow tests/parallel/elastic/test_run.py``.
"""

from __future__ import annotations

import gc
import weakref
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import CommunicationError, DtypeError, MeshError, OptionError, RankFailed
from collectives.testing import faults
from parallel import DataParallel, checkpoint, elastic
from parallel.elastic import ElasticError, holdings, loop

from .training import CASES, STEPS, made, on_threads, program

POINTS = ("elastic.step", "elastic.commit", "elastic.copy", "elastic.copied", "elastic.save", "elastic.restore",
          "elastic.restored", "elastic.survivors", "elastic.end", "checkpoint.write_data")  # fmt: skip


@cache
def operations(name: str, ranks: int, copies: int | None) -> list[int]:
    """How many operations each rank makes, without a death. One without a place on the mesh makes few."""
    with faults.injected() as injection, cc.World("threads", ranks, policy="raise") as world:
        world.run(lambda: program(name, copies=copies))
    return [injection.counts[rank][""] for rank in range(ranks)]


# -- one death ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
def test_a_death_at_a_seeded_operation(name: str) -> None:
    rng = Random(f"{name} of the default tests")
    ranks = 4 if "pp" in name or "tp" in name else 3
    rank = rng.randrange(ranks)
    most = operations(name, ranks, 2)[rank]
    report = on_threads(name, ranks, faults.Kill(rank, rng.randint(most // 2, most)), copies=2)[1]
    assert len(report.recoveries) == 1


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("name", CASES)
def test_a_death_of_any_rank_at_many_operations(name: str, ranks: int) -> None:
    rng = Random(f"{name} {ranks}")
    for rank in range(ranks):
        most = operations(name, ranks, 2)[rank]
        for at in rng.sample(range(1, most + 1), min(12, most)):
            on_threads(name, ranks, faults.Kill(rank, at), copies=2)


@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_each_point(point: str, tmp_path: Path) -> None:
    """The second rank to die does so in the recovery from the first, where the point is in one."""
    first = [faults.Kill(3, 30)] if point in ("elastic.restore", "elastic.restored", "elastic.survivors") else []
    number = 1 if point in ("elastic.end", "elastic.survivors") else 2
    plan = faults.Plan(*first, faults.Kill(1, number, of=point))
    report = on_threads("ZeRO-1", 4, plan, copies=1, directory=tmp_path, every=2)[1]
    assert sum(len(each.died) for each in report.recoveries) == 1 + len(first) or point == "elastic.end"


def test_a_death_after_the_optimizers_steps_and_before_the_commit() -> None:
    """The live objects are ahead of the last commit: the state comes from the copies."""
    plan = faults.Kill(1, 1 + STEPS // 2, of="barrier")
    report = on_threads("a loop of its own", 3, plan, copies=1)[1]
    (found,) = report.recoveries
    assert (found.source, found.step, found.lost, list(found.died)) == ("copies", 2, 0, [1])


# -- several deaths ----------------------------------------------------------------------------------------------------
def deaths(seed: int, folder: Path) -> None:
    """Two deaths of a program that is drawn from a seed. With a directory nothing is lost for good."""
    rng = Random(seed)
    name, ranks, copies = rng.choice(list(CASES)), rng.randint(3, 5), rng.choice([1, 2, 3])
    plan = []
    for rank in rng.sample(range(ranks), 2):
        at = rng.randint(1, operations(name, ranks, copies)[rank])
        of = rng.choice(POINTS) if rng.random() < 0.4 else ""
        plan.append(faults.Kill(rank, rng.randint(1, 3) if of else at, of=of))
    on_threads(name, ranks, faults.Plan(*plan), copies=copies, directory=folder, every=2)


@pytest.mark.filterwarnings("ignore:the fault")
@pytest.mark.parametrize("seed", range(4))
def test_two_deaths(seed: int, tmp_path: Path) -> None:
    deaths(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the fault")
def test_two_deaths_of_many_seeds(tmp_path: Path) -> None:
    for seed in range(100, 220):
        deaths(seed, tmp_path / str(seed))


def test_a_second_death_in_the_recovery() -> None:
    """The others have restored objects by then, which are a state at once, plain values too."""
    plan = "kill:1@3,of=elastic.step; kill:2@2,of=elastic.restored"
    report = on_threads("dp", 4, plan)[1]
    assert [(sorted(each.died), each.step) for each in report.recoveries] == [([1, 2], 2)]


def test_one_rank_is_left() -> None:
    plan = faults.Plan(*(faults.Kill(rank, 2 + k, of="elastic.step") for k, rank in enumerate((2, 0, 3))))
    found, report = on_threads("same bits", 4, plan)
    assert [each is None for each in found] == [True, False, True, True]
    assert [(list(each.died), each.mesh, each.source, each.lost) for each in report.recoveries] == [
        ([2], {"dp": 3}, "replicas", 0), ([0], {"dp": 2}, "replicas", 0), ([3], {"dp": 1}, "replicas", 0)
    ]  # fmt: skip


def test_a_rank_without_a_place_gets_one_after_the_next_death() -> None:
    """Of five ranks the last one waits; it takes part when another one has died, and gets its state from those."""
    report = on_threads("dp, tp", 5, "kill:1@3,of=elastic.step; kill:0@4,of=elastic.step", copies=1)[1]
    assert [each.mesh for each in report.recoveries] == [{"dp": 2, "tp": 2}, {"dp": 1, "tp": 2}]


# -- the state ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["dp", "ZeRO-1", "ZeRO-3", "pp, dp", "dp, tp"])
def test_it_is_that_of_a_checkpoint_of_the_step(name: str, tmp_path: Path) -> None:
    case = CASES[name]

    def train(run: elastic.Run) -> Any:
        trainer = made(run.mesh, case)
        run.restore({"trainer": trainer})
        other = None
        if run.starts > 1:
            other = made(run.mesh, case)
            checkpoint.load(tmp_path, {"trainer": other}, run.step)
            for part in ("pipeline", "optimizer"):
                mine, loaded = getattr(trainer, part).state_dict(), getattr(other, part).state_dict()
                assert repr(mine) == repr(loaded)
        for _ in run.steps(STEPS):
            trainer.step(np.ones((12, 4)), np.arange(12) % 2)
        return run.starts

    plan, sizes = "kill:2@4,of=elastic.step", case.get("mesh", {"dp": -1})
    with np.printoptions(floatmode="unique", threshold=10**6), faults.injected(plan), cc.World(
        "threads", 4, policy="raise"
    ) as world:  # fmt: skip
        found = world.run(lambda: elastic.run(train, mesh=sizes, copies=1, directory=tmp_path, every=1))
    assert 2 in found


def test_objects_that_the_program_does_not_make_again() -> None:
    """They are made once on each rank, so that a restore writes into the arrays from which it reads."""

    def outer() -> Any:
        net = nn.Linear(2, 3, key=random.Key(0), dtype=float)
        sgd = optim.SGD(net.parameters(), lr=0.1)

        def train(run: elastic.Run) -> Any:
            run.restore({"net": net, "sgd": sgd})
            before = net.weight.numpy().copy()
            for _ in run.steps(4):
                net.weight.grad = ag.tensor(net.weight.numpy() * 0.5, {"dp": cc.I})
                run.mesh.ranks.barrier()
                sgd.step()
            return before, net.weight.numpy()

        return elastic.run(train, mesh={"dp": -1})

    with cc.World("threads", 1, policy="raise") as world:
        alone = world.run(outer)[0][1]
    with faults.injected("kill:0@3,of=elastic.step"), cc.World("threads", 3, policy="raise") as world:
        found = world.run(outer)
    assert all(np.array_equal(each[1], alone) for each in found[1:])


def test_what_no_optimizer_changes_is_that_of_the_last_commit() -> None:
    """A buffer, a frozen parameter that the program averages, and a plain value change before the death."""

    def train(run: elastic.Run) -> Any:
        net = nn.Linear(2, 1, key=random.Key(0), dtype=float)
        average = nn.Linear(2, 1, key=random.Key(0), dtype=float).requires_grad_(False)
        sgd = optim.SGD(net.parameters(), lr=0.1)
        state: dict[str, Any] = {"net": net, "average": average, "sgd": sgd, "seen": [], "random": random}
        run.restore(state)
        for step in run.steps(4):
            average.weight.data = average.weight.numpy() + 1.0
            state["seen"].append(step)
            state["random"].seed(step)
            run.mesh.ranks.barrier()
        return average.weight.numpy()[0, 0] - net.weight.numpy()[0, 0], state["seen"]

    with faults.injected("kill:1@3,of=barrier"), cc.World("threads", 3, policy="raise") as world:
        found = world.run(lambda: elastic.run(train, mesh={"dp": -1}))
    assert found[0] == found[2] and found[0][1] == [0, 1, 2, 3] and found[0][0] == pytest.approx(4.0)


def test_the_program_begins_with_the_same_random_state() -> None:
    def train(run: elastic.Run) -> Any:
        drawn = nn.Linear(2, 2).weight.numpy().tolist()
        run.restore({"drawn": list(drawn)})
        for _ in run.steps(2):
            run.mesh.ranks.barrier()
        return drawn

    with faults.injected("kill:0@2,of=barrier"), cc.World("threads", 3, policy="raise") as world:
        found = world.run(lambda: elastic.run(train, mesh={"dp": -1}))
    assert found[1] == found[2] == cc.run(lambda: nn.Linear(2, 2).weight.numpy().tolist(), 1)[0]


def test_the_objects_of_earlier_starts_are_freed() -> None:
    made_here: list[Any] = []

    def train(run: elastic.Run) -> Any:
        net = nn.Linear(2, 1, key=random.Key(0), dtype=float)
        model = DataParallel(net, "dp", zero=1)
        adam = optim.Adam(net.parameters())
        run.restore({"net": net, "adam": adam})
        gc.collect()
        made_here.append((cc.world().ranks[cc.world().index], weakref.ref(net), weakref.ref(adam)))
        for _ in run.steps(12):
            model.whole_arrays()
        return [(each[1]() is not None) + (each[2]() is not None) for each in made_here if each[0] == 7]

    plan = "; ".join(f"kill:{rank}@{2 + rank},of=elastic.step" for rank in range(7))
    with faults.injected(plan), cc.World("threads", 8, policy="raise") as world:
        found = world.run(lambda: elastic.run(train, mesh={"dp": -1}, copies=1))
    assert found[7] == [0] * 7 + [2]


# -- starts, ends and errors -------------------------------------------------------------------------------------------
def test_the_next_job_goes_on_from_the_directory(tmp_path: Path) -> None:
    """Where MPI cannot go on without a rank, the job ends, and is started again on what is left."""
    with pytest.raises(RankFailed), faults.injected("kill:0@4,of=elastic.step; kill:1@4,of=elastic.step"), cc.World(
        "threads", 2, policy="raise"
    ) as world:  # fmt: skip
        world.run(lambda: program("same bits", directory=tmp_path, every=1))
    assert checkpoint.latest(tmp_path) == 3
    report = on_threads("same bits", 3, "", directory=tmp_path, every=1)[1]
    assert not report.recoveries and checkpoint.latest(tmp_path) == STEPS


def test_an_error_of_the_program_ends_the_run_on_all_ranks() -> None:
    def train(run: elastic.Run) -> None:
        run.restore({})
        for step in run.steps(5):
            if step == 2 and cc.world().index == 1:
                raise DtypeError("no such data")
            run.mesh.ranks.barrier()

    def outer() -> str:
        with pytest.raises((DtypeError, RankFailed)) as caught:
            elastic.run(train, mesh={"dp": 2})
        return f"{caught.type.__name__}: {caught.value}"

    with cc.World("threads", 3, policy="raise") as world:
        found = world.run(outer)
        assert not world.failed
    assert found[1].startswith("DtypeError: no such data")
    for text in found[::2]:
        assert text.startswith("RankFailed: elastic.run: the program has raised on rank 1, which ends the run: ")


def test_the_first_error_is_that_of_the_program() -> None:
    def train(run: elastic.Run) -> None:
        run.restore({})
        raise DtypeError("no such data")

    with cc.World("threads", 3, policy="raise") as world, pytest.raises(DtypeError, match="raised on ranks 0-2 of 3"):
        world.run(lambda: elastic.run(train, mesh={"dp": -1}))


def test_lost_state_is_an_error_that_names_it() -> None:
    with pytest.raises(ElasticError, match=r"rank 1 died after step 2, .*: trainer/model/0.bias of step 2 was lost"):
        on_threads("ZeRO-1", 3, "kill:1@3,of=elastic.step")
    with pytest.raises(ElasticError, match=r"rank 1 died after step 2, .* had begun the next step of the optimizer"):
        on_threads("a loop of its own", 3, "kill:1@3,of=barrier")


def test_too_few_ranks_are_an_error() -> None:
    with pytest.raises(ElasticError, match=r"the mesh \{'dp': 3\} needs 3 ranks, and 2 are left"):
        with faults.injected("kill:1@1,of=barrier"), cc.World("threads", 3, policy="raise") as world:
            world.run(lambda: elastic.run(lambda run: run.mesh.ranks.barrier(), mesh={"dp": 3}))


given: Any = elastic.run  # with arguments of any type
WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "no function": (lambda: given(None, mesh={"dp": -1}), OptionError, "program=None"),
    "copies=0": (lambda: given(len, mesh={"dp": -1}, copies=0), OptionError, "copies=0"),
    "every alone": (lambda: given(len, mesh={"dp": -1}, every=2), OptionError, "without directory="),
    "no mesh": (lambda: given(len, mesh={}), MeshError, "mesh="),
    "steps first": (lambda: given(lambda run: list(run.steps(2)), mesh={"dp": -1}), OptionError, "before Run"),
    "restore twice": (
        lambda: given(lambda run: [run.restore({}), run.restore({})], mesh={"dp": -1}), OptionError, "twice"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named(name: str) -> None:
    call, kind, says = WRONG[name]
    with cc.World("threads", 2, policy="raise") as world, pytest.raises(kind, match=says):
        world.run(call)


def by_hand(optimizer: Any, keeps: tuple[str, ...], catches: bool = False) -> Any:
    """A program whose loop is its own; `keeps` are the objects that it restores."""

    def train(run: elastic.Run) -> Any:
        net = nn.Linear(3, 1, dtype=float, key=random.Key(0))
        objects = {"net": net, "optimizer": optimizer(net.parameters())}
        model = DataParallel(net, "dp")
        run.restore({name: objects[name] for name in keeps})
        for _ in run.steps(6):
            try:
                objects["optimizer"].zero_grad()
                rows = cc.shard(ag.tensor(np.arange(36.0).reshape(12, 3) / 36, layout={"dp": cc.R}), "dp")
                with ag.Tape() as tape:
                    loss = cc.all_reduce((model(rows) ** 2).sum(), "dp", to=cc.I)
                tape.backward(loss)
                objects["optimizer"].step()
            except RankFailed:
                if not catches:
                    raise
        return net.weight.numpy().copy()

    with faults.injected("kill:1@3,of=elastic.step"), cc.World("threads", 3, policy="raise") as world:
        return world.run(lambda: elastic.run(train, mesh={"dp": -1}))


def _adam(parameters: Any) -> Any:
    return optim.AdamW(parameters, lr=0.1)


def test_an_optimizer_that_is_not_in_the_state_is_refused() -> None:
    with pytest.raises(OptionError, match=r"AdamW of 2 parameters, the first of them weight, .* Run.restore"):
        by_hand(_adam, ("net",))


@pytest.mark.parametrize("optimizer", [
    lambda p: optim.SGD(p, lr=0.1), lambda p: optim.Offload(optim.AdamW, p, lr=0.1),
])  # fmt: skip
def test_optimizers_that_need_no_place_of_their_own_in_the_state(optimizer: Any) -> None:
    """One without a state, and the one inside another."""
    keeps = ("net",) if "SGD" in repr(optimizer([ag.Parameter(np.ones(2))])) else ("net", "optimizer")
    assert by_hand(optimizer, keeps)[0] is not None


def test_a_failure_that_the_program_catches_does_not_end_a_step() -> None:
    assert np.array_equal(by_hand(_adam, ("net", "optimizer"), True)[0], by_hand(_adam, ("net", "optimizer"))[0])


def test_a_world_that_ends_with_a_rank_is_refused() -> None:
    with pytest.raises(OptionError, match="policy 'raise'"):
        cc.run(lambda: elastic.run(lambda run: None, mesh={"dp": -1}), 2)


# -- the end -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("heard", [(), (0,), (0, 2), (0, 2, 3)])
def test_a_death_in_the_last_exchange_is_seen_by_some(heard: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks have come to the end of the program: they leave together, whoever has heard that from all others."""
    original = loop._Loop._end

    def end(self: Any, status: str, text: str = "") -> Any:
        found = original(self, status, text)
        if status == "done" and self.group.ranks[self.group.index] not in (1, *heard):
            raise RankFailed("rank 1 has died")
        return found

    def train(run: elastic.Run) -> Any:
        state: dict[str, Any] = {"seen": []}
        run.restore(state)
        for step in run.steps(3):
            state["seen"].append(step)
            run.mesh.ranks.barrier()
        return state["seen"], run.starts

    monkeypatch.setattr(loop._Loop, "_end", end)
    with faults.injected("kill:1@1,of=elastic.finished"), cc.World("threads", 4, policy="raise") as world:
        found = world.run(lambda: elastic.run(train, mesh={"dp": -1}))
    assert found == [([0, 1, 2], 1), None, ([0, 1, 2], 1), ([0, 1, 2], 1)]


def test_all_go_on_if_one_has_not_come_to_the_end() -> None:
    """The rank without a place is at the end from the beginning on; it goes on with the others after a death."""
    ends: list[tuple[int, bool]] = []

    def train(run: elastic.Run) -> Any:
        run.restore({})
        for _ in run.steps(3):
            run.mesh.ranks.barrier()
        return run.starts

    with faults.injected("kill:1@2,of=elastic.step"), cc.World("threads", 4, policy="raise") as world:
        found = world.run(lambda: elastic.run(train, mesh={"dp": 3}))
        ends.append((world.epoch, len(world.failed) == 1))
    assert found == [2, None, 2, 2] and ends == [(2, True)]


def test_a_death_when_all_have_agreed_to_leave_changes_nothing() -> None:
    with faults.injected("kill:1@1,of=elastic.finished"), cc.World("threads", 3, policy="raise") as world:
        found = world.run(lambda: elastic.run(lambda run: run.starts, mesh={"dp": -1}))
        assert world.failed.keys() == {1}
    assert found == [1, None, 1]


# -- planted faults ----------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:the fault")
def test_planted_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    after_steps = ("a loop of its own", 3, faults.Kill(1, 3, of="barrier"))
    with monkeypatch.context() as patched:  # an optimizer that has gone on is not noticed
        patched.setattr(holdings, "_count", lambda x: 0 if isinstance(x, optim.Optimizer) else None)
        with pytest.raises(AssertionError):
            on_threads(*after_steps, copies=1)
    with monkeypatch.context() as patched:  # what is copied at a commit is not copied
        patched.setattr(holdings.Live, "_others", lambda self, module: ())
        with pytest.raises(AssertionError):
            test_what_no_optimizer_changes_is_that_of_the_last_commit()
    with monkeypatch.context() as patched:  # the partner gets nothing
        patched.setattr(holdings.Copies, "_partners", lambda self, group, entries, values: [])
        with pytest.raises(ElasticError, match="was lost with it"):
            on_threads("ZeRO-1", 3, "kill:1@4,of=elastic.step", copies=1)
    with monkeypatch.context() as patched:  # the random state goes on
        patched.setattr(loop, "random", SimpleNamespace(get_state=random.get_state, set_state=lambda state: None))
        with pytest.raises(AssertionError):
            test_the_program_begins_with_the_same_random_state()
    with monkeypatch.context() as patched:  # a rank that has heard from all others leaves
        patched.setattr(loop._Loop, "_agree_on_the_end", lambda self: (self.group.index == 0, False))
        with pytest.raises((AssertionError, RankFailed, CommunicationError)):
            test_a_death_in_the_last_exchange_is_seen_by_some((0,), patched)
