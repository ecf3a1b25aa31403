"""Backup workers against a serial program of the rows that were used, and plain `DataParallel`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.errors import (
    ArgumentError,
    CollectiveMismatch,
    GradientWarning,
    LayoutError,
    MeshError,
    OptionError,
    RankFailed,
    ReplicaMismatch,
)  # fmt: skip
from collectives.algorithms.members import Members
from collectives.testing import faults
from parallel import BackupWorkers, CompressedAdam, DataParallel, OneBit, Trainer
from parallel.approximate import backup_workers

from ...collectives.launch import launch_command
from .backup_cases import OPTIMIZERS, Net, is_late, late, loss_of, run_and_compare, serial, train, values

PROGRAM = str(Path(__file__).parent / "programs" / "backup_program.py")
pytestmark = pytest.mark.filterwarnings("ignore:.*used in none of:autograd.errors.GradientWarning")


def scripts(seed: int, ranks: int, needed: int, steps: int) -> list[tuple[int, ...]]:
    generator = np.random.default_rng(seed)
    return [tuple(generator.choice(ranks, needed, replace=False).tolist()) for _ in range(steps)]


# -- the numbers -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ranks, needed", [(2, 1), (3, 2), (5, 3), (5, 4), (7, 1)])
def test_a_script_gives_the_serial_run_of_the_rows_that_were_used(ranks: int, needed: int, name: str) -> None:
    script = scripts(ranks, ranks, needed, 6)
    found = cc.run(run_and_compare, ranks, needed, 6, name, script)
    again = cc.run(run_and_compare, ranks, needed, 6, name, script)
    for (mine, report), (other, _) in zip(found, again, strict=True):
        assert np.array_equal(mine, other)
        assert report == found[0][1] and report.members == tuple(tuple(sorted(each)) for each in script)


@pytest.mark.parametrize("ranks, needed", [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_the_first_ranks_are_used_and_a_run_can_be_repeated(ranks: int, needed: int) -> None:
    mine, report = cc.run(run_and_compare, ranks, needed, 12)[0]
    repeated, again = cc.run(run_and_compare, ranks, needed, 12, "Adam", report.members)[0]
    assert np.array_equal(mine, repeated) and again.members == report.members


@pytest.mark.parametrize("of", ["the rows", "a sum"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_with_all_ranks_the_bits_are_those_of_data_parallel(ranks: int, of: str) -> None:
    rows = ranks * (ranks + 1) / 2

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            rank = int(mesh.axis("dp").rank)
            model, plain = Net(), DataParallel(Net(), "dp")
            backup = BackupWorkers(model, "dp", OPTIMIZERS["Adam"](model.parameters()), needed=ranks, steps=5)
            with backup:
                train(backup, model, rank, rows if of == "the rows" else 1.0)
            optimizer = OPTIMIZERS["Adam"](plain.parameters())
            for step in range(5):
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.all_reduce(loss_of(plain, rank, step, rows), "dp", to=cc.I)
                tape.backward(loss)
                optimizer.step()
            assert backup.report().is_serial and "they are those of the serial run" in str(backup.report())
            return values(model), values(plain)

    for mine, expected in cc.run(program, ranks):
        if of == "the rows":
            assert np.array_equal(mine, expected)
        else:
            assert np.allclose(mine, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("float16", 0.1)])
def test_other_dtypes(dtype: str, tolerance: float) -> None:
    kind = np.dtype(dtype).type
    cc.run(run_and_compare, 3, 2, 5, "momentum", scripts(1, 3, 2, 5), None, 4.0, kind, tolerance)


@pytest.mark.parametrize("at, by", [(0, 0), (0, 1), (2, 7), (3, 17)])
def test_a_rank_that_is_late_by_many_steps_goes_on_after_the_newest(at: int, by: int) -> None:
    for mine, report in cc.run(run_and_compare, 4, 3, 24, "Adam", None, late(2, at, by)):
        assert is_late(report, 2, at, by)
        assert "rank 2 was dropped in steps " in str(report) and "not those of the serial run" in str(report)
        assert mine.shape == values(Net()).shape


def test_a_large_state_is_left_in_slices(monkeypatch: Any) -> None:
    monkeypatch.setattr(backup_workers, "_SLICE_BYTES", 64)
    for needed in (2, 3):
        cc.run(run_and_compare, 4, needed, 20, "groups", None, late(1, 2, 5))


def test_two_blocks_of_one_object_and_a_delay() -> None:
    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            rank, model = int(mesh.axis("dp").rank), Net()
            backup = BackupWorkers(model, "dp", OPTIMIZERS["momentum"](model.parameters()), needed=2, steps=4)
            members: list[Any] = []
            for _ in range(2):
                with backup:
                    train(backup, model, rank, 1.0)
                members += backup.report().members
            return values(model), members

    with faults.injected(faults.Delay(1, at=2, of="arrivals.take", seconds=0.05)) as injection:
        found = cc.run(program, 3)
    assert injection.happened
    model = Net()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    for k, ranks in enumerate(found[0][1]):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = sum(loss_of(model, rank, k % 4, 1.0) for rank in ranks) / float(sum(rank + 1 for rank in ranks))
        tape.backward(loss)
        optimizer.step()
    for mine, _ in found:
        assert np.linalg.norm(mine - values(model)) <= 1e-10 * np.linalg.norm(values(model))
        assert np.array_equal(mine, found[0][0])


# -- faults of the method, which the comparison with the serial program must notice -----------------------------------
def _without_a_member(monkeypatch: Any) -> None:
    whole = Members.all_reduce
    monkeypatch.setattr(Members, "all_reduce", lambda self, x, op="sum": whole(
        self, x * (self.index > 0) if x.size > 3 else x))  # fmt: skip


def _without_the_rows(monkeypatch: Any) -> None:
    monkeypatch.setattr(backup_workers, "_scale", lambda values, factor: None)


def _without_the_state(monkeypatch: Any) -> None:
    monkeypatch.setattr(optim.Optimizer, "load_state_dict", lambda self, state: None)


def _of_another_step(monkeypatch: Any) -> None:
    leave = backup_workers._Store.leave
    kept: dict[int, list[Any]] = {}

    def stale(self: Any, step: int, members: Any) -> None:
        parts = self._parts
        kept.setdefault(id(self), []).append([np.array(part) for part in parts()])
        self._parts = lambda: kept[id(self)][-2 if len(kept[id(self)]) > 1 else -1]
        leave(self, step, members)
        self._parts = parts

    monkeypatch.setattr(backup_workers._Store, "leave", stale)


@pytest.mark.parametrize("fault", [_without_a_member, _without_the_rows, _without_the_state, _of_another_step])
def test_the_comparison_notices(fault: Callable[[Any], None], monkeypatch: Any) -> None:
    script = [(0, 1), (0, 2), (1, 2), (0, 1), (0, 2)]
    cc.run(run_and_compare, 3, 2, 5, "momentum", script)
    fault(monkeypatch)
    with pytest.raises((AssertionError, ReplicaMismatch)):
        cc.run(run_and_compare, 3, 2, 5, "momentum", script)


# -- what ranks are told ---------------------------------------------------------------------------------------------
def test_a_rank_that_is_never_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # A rank that is late goes on after the newest step, so nobody knows how often this one is dropped: once at least.
    monkeypatch.setattr(backup_workers, "_PATIENCE", 1)
    # Warnings are those of a process: caught by a rank's thread, those of the ranks that return later would be lost.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cc.run(run_and_compare, 3, 2, 12, "SGD", [(0, 1)] * 12)
    told = {str(each.message) for each in caught if each.category is GradientWarning}
    assert any("rank 2 were used in none of 12 steps" in text for text in told), told
    assert any("rank 2 were dropped 1 times in a row and never used" in text for text in told), told


def _trained(mesh: Any, model: Any = None) -> Any:
    model = Net() if model is None else model
    return model, "dp", optim.SGD(model.parameters(), lr=0.1)


REFUSED: dict[str, tuple[Callable[[Any, int], Any], type[Exception], str]] = {
    "needed": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=0, steps=1), OptionError, "needed=0"),
    "steps": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=1, steps=0), OptionError, "steps=0"),
    "too many": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=3, steps=1).__enter__(), OptionError,
                 "from 1 to 2, the ranks of the axis"),
    "differs": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=1 + rank, steps=1).__enter__(),
                CollectiveMismatch, "needed=1"),
    "data parallel": (lambda mesh, rank: BackupWorkers(*_trained(mesh, DataParallel(Net(), "dp")), needed=1, steps=1),
                      OptionError, "BackupWorkers\\(model.module"),
    "zero": (lambda mesh, rank: BackupWorkers(*_trained(mesh, DataParallel(Net(), "dp", zero=1)), needed=1, steps=1),
             OptionError, "DataParallel with zero=1"),
    "compressed": (lambda mesh, rank: BackupWorkers(
        model := Net(), "dp", CompressedAdam(model.parameters(), OneBit(momentum=0.9, start_step=1)), needed=1,
        steps=1), OptionError, "CompressedAdam was given"),
    "trainer": (lambda mesh, rank: BackupWorkers(
        Trainer(lambda: nn.Sequential(nn.Linear(3, 2)), nn.MSELoss(reduction="sum"), mesh, bits="same",
                optimizer=lambda p: optim.SGD(p, lr=0.1)), "dp", optim.SGD(Net().parameters(), lr=0.1), needed=1,
        steps=1), ArgumentError, "Trainer was given; needed: a Module"),
    "script rank": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=1, steps=1, script=[(2,)]).__enter__(),
                    OptionError, r"script\[0\]=\(2,\)"),
    "script count": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=1, steps=1, script=[(0, 1)]),
                     OptionError, "needed: 1 different ranks"),
    "script steps": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=1, steps=2, script=[(0,)]), OptionError,
                     "a script of 1 steps"),
    "script kind": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=1, steps=1, script=[0]), ArgumentError,
                    r"script\[0\]=0"),
    "outside": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=1, steps=1).step(), OptionError,
                "step outside of the block"),
    "report": (lambda mesh, rank: BackupWorkers(*_trained(mesh), needed=1, steps=1).report(), OptionError,
               "before the end of its block"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    make, error, text = REFUSED[what]

    def program() -> None:
        with cc.Mesh(dp=2) as mesh:
            with pytest.raises(error, match=text):
                make(mesh, int(mesh.axis("dp").rank))

    cc.run(program, 2)


IN_THE_BLOCK: dict[str, tuple[Callable[[Any, Any, int], Any], str]] = {
    "no step": (lambda backup, model, rank: [None for _ in backup], "has not called step"),
    "twice": (lambda backup, model, rank: [(backup.step(), backup.step()) for _ in backup], "outside of an iteration"),
    "no iteration": (lambda backup, model, rank: backup.step(), "outside of an iteration"),
    "optimizer": (lambda backup, model, rank: [backup.optimizer.step() or backup.step() for _ in backup],
                  "in the place of optimizer.step"),
    "rows": (lambda backup, model, rank: [backup.step(rows=-1) for _ in backup], "rows=-1"),
    "of": (lambda backup, model, rank: [backup.step(of=0) for _ in backup], "of=0"),
    "of differs": (lambda backup, model, rank: [backup.step(of=1 + rank) for _ in backup], "needed: the same number"),
    "no rows": (lambda backup, model, rank: [
        (setattr(model.scale, "grad", ag.tensor(1.0, model.scale.layout.dual)), backup.step(rows=0))
        for _ in backup], "have gradients and rows=0"),
    "left": (lambda backup, model, rank: None, "has left the block at step 0 of 2"),
}  # fmt: skip


@pytest.mark.parametrize("needed", [2, 3])
@pytest.mark.parametrize("what", IN_THE_BLOCK)
def test_refusals_in_the_block(what: str, needed: int) -> None:
    use, text = IN_THE_BLOCK[what]

    def program() -> None:
        with cc.Mesh(dp=-1) as mesh:
            model = Net()
            with BackupWorkers(*_trained(mesh, model), needed=needed, steps=2) as backup:
                use(backup, model, int(mesh.axis("dp").rank))

    with pytest.raises(OptionError, match=text):
        cc.run(program, 3)


def test_other_meshes_and_models_are_refused() -> None:
    def program() -> None:
        with cc.Mesh(dp=2, tp=2):
            with pytest.raises(MeshError, match="2 of the mesh's 4 ranks"):
                BackupWorkers(*_trained(None), needed=1, steps=1).__enter__()
        with cc.Mesh(hosts=2, dp=2) as mesh:
            model = Net()
            axes, optimizer = ("hosts", "dp"), optim.SGD(model.parameters(), lr=0.1)
            with BackupWorkers(model, axes, optimizer, needed=3, steps=3, script=[(0, 1, 3)] * 3) as backup:
                for step in backup:
                    with ag.Tape() as tape:
                        loss = cc.declare_partial(loss_of(model, int(mesh.ranks.rank), step, 1.0), axes)
                    tape.backward(loss)
                    backup.step(rows=1 + int(mesh.ranks.rank))
        expected = serial("SGD", [(0, 1, 3)] * 3)[-1]
        assert np.linalg.norm(values(model) - expected) <= 1e-10 * np.linalg.norm(expected)

    cc.run(program, 4)

    def wrapped() -> None:
        with cc.Mesh(dp=2):
            inside = nn.Sequential(DataParallel(nn.Linear(3, 2), "dp"))
            with BackupWorkers(inside, "dp", optim.SGD(inside.parameters(), lr=0.1), needed=1, steps=1) as backup:
                for _ in backup:
                    inside(np.ones((1, 3), "float32"))

    with pytest.raises(LayoutError, match="Varying; needed: Invariant"):
        cc.run(wrapped, 2)


@pytest.mark.parametrize("needed", [2, 3])
def test_clipping(needed: int) -> None:
    """The norm is that of the mean over the rows that were used, on all ranks that were used."""
    script = [(0, 2, 1)[:needed]] * 3

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            rank, model = int(mesh.axis("dp").rank), Net()
            norms: list[float] = []
            with BackupWorkers(*_trained(mesh, model), needed=needed, steps=3, script=script) as backup:
                for step in backup:
                    with ag.Tape() as tape:
                        loss = cc.declare_partial(loss_of(model, rank, step, 1.0), "dp")
                    tape.backward(loss)
                    backup.step(1 + rank, before=lambda: norms.append(optim.clip_grad_norm_(model.parameters(), 0.1)))
        return values(model), norms

    found = cc.run(program, 3)
    model, norms = Net(), []
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step, ranks in enumerate(script):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = sum(loss_of(model, rank, step, 1.0) for rank in ranks) / float(sum(rank + 1 for rank in ranks))
        tape.backward(loss)
        norms.append(optim.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
    for rank, (mine, of_rank) in enumerate(found):
        assert np.allclose(mine, values(model), rtol=1e-12)
        assert np.allclose(of_rank, norms if rank in script[0] else [], rtol=1e-12)


def test_buffers_are_averaged() -> None:
    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            model: Any = nn.Sequential(nn.BatchNorm1d(2))
            with BackupWorkers(*_trained(mesh, model), needed=2, steps=1, script=[(0, 2)]) as backup:
                for _ in backup:
                    x = np.full((4, 2), float(mesh.axis("dp").rank), "float32")
                    with ag.Tape() as tape:
                        loss = cc.declare_partial(model(x).sum(), "dp")
                    tape.backward(loss)
                    backup.step(rows=4)
            return np.array(model[0].running_mean)

    assert all(np.allclose(mean, 0.1 * (0 + 1 + 2) / 3) for mean in cc.run(program, 3))


# -- failures ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("needed", [2, 3])
@pytest.mark.parametrize("fault", [
    faults.Kill(1, at=3, of="arrivals.take"), faults.Kill(1, at=2, of="arrivals.finish"),
    faults.Kill(0, at=2, of="window.put"), faults.Kill(0, at=2, of="arrivals.members"),
])  # fmt: skip
def test_a_death_is_told_to_all(fault: Any, needed: int) -> None:
    """Rank 1 is a member of steps that the script gives; the others raise, also where it is not needed any more."""
    script = [(0, 1, 2)[:needed]] * 40

    def program() -> str:
        try:
            run_and_compare(needed, 40, "SGD", script)
        except RankFailed as error:
            return str(error)
        return "went on"

    with faults.injected(fault), cc.World("threads", ranks=4, policy="raise") as world:
        found = world.run(program)
    assert found[fault.rank] is None
    assert all("Failed" in text or "failed" in text or "killed" in text for text in found if text is not None), found


def test_too_few_ranks_are_a_deadlock() -> None:
    def program() -> None:
        with cc.Mesh(dp=-1) as mesh:
            rank, model = int(mesh.axis("dp").rank), Net()
            with BackupWorkers(*_trained(mesh, model), needed=2, steps=9) as backup:
                train(backup, model, rank, 1.0, lambda step: rank and mesh.axis("dp").group.barrier())

    with pytest.raises(cc.DeadlockError, match=r"until 2 ranks have arrived at step 0, for any of ranks 1, 2"):
        cc.run(program, 3)


@pytest.mark.parametrize("on, ranks", [
    ("here", 3), *[pytest.param(on, ranks, marks=pytest.mark.slow)
                   for on, ranks in (("openmpi", 3), ("hosts", 4), ("hosts openmpi", 4))],
])  # fmt: skip
def test_over_mpi(on: str, ranks: int) -> None:
    outcome = launch_command([PROGRAM, "train"], ranks, limit_s=120, on=on)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("as the serial program") == ranks


@pytest.mark.parametrize("how, text", [
    ("raise", "rank 1 of 3 raised ValueError: no data"),
    pytest.param("kill", "rank 1", marks=pytest.mark.slow),
    pytest.param("deadlock", "arrivals of step 2 #5 on 'dp@0/arrivals' for ranks 1, 2", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_failure_ends_the_job(how: str, text: str) -> None:
    outcome = launch_command([PROGRAM, how], 3, limit_s=60)
    assert outcome.code != 0 and not outcome.is_late
    assert text in outcome.err, outcome.err


def test_under_the_policy_raise_a_failure_is_told_to_the_others() -> None:
    outcome = launch_command([PROGRAM, "policy"], 3, limit_s=60)
    assert not outcome.is_late
    # One of them may have noticed it first, and the other one may wait for that one.
    assert outcome.out.count("RankFailed: rank") == 2, outcome
    assert "RankFailed: rank 1 of 3 raised ValueError: no data" in outcome.out
