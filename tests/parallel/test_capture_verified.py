"""Verification in flight on several ranks: all ranks verify at one call, or none, and each is told what differs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import optim
from autograd.engine.state import state
from autograd.layouts.layout import I, V
from autograd.transforms.verification import Comparison
from parallel import Column, DataParallel, RandomK, Row, parallelize

from ..autograd.transforms.test_capture import bits
from ..collectives.launch import launch_command
from ..tables import some
from .test_capture import batch, network

CALLS = 42
DUE = [12, 20, 36]  # the calls at which the 8th, 16th and 32nd replay is made on ranks that only replay


class Training:
    """A step of data parallelism. What it reads from `hidden`, which belongs to this rank, no guard sees."""

    def __init__(self, zero: int = 0, tp: int = 1, **options: Any):
        n = cc.world().size // tp
        self.mesh = cc.Mesh(dp=n, tp=tp)
        self.hidden = (ctypes.c_double * 2)(1.0, 1.0)
        with self.mesh:
            model: Any = network(ag.nn.ReLU(), ag.nn.Dropout(0.2, along="dp"))
            if tp > 1:
                model = parallelize(network(ag.nn.ReLU()), {"0": Column("tp"), "2": Row("tp")})
            self.model = DataParallel(model, "dp", zero=zero, bucket_bytes=256, **options)
            self.optimizer = optim.Adam(self.model.parameters(), 0.01)
        self.random = numpy.random.default_rng(int(self.mesh.axis("dp").rank))

    def step(self, x: Any, y: Any, weight: float = 1.0) -> Any:
        self.optimizer.zero_grad()
        with self.model.accumulate():
            for rows in (slice(0, 2), slice(2, None)):
                with ag.Tape() as tape:
                    h = self.model(ag.tensor(x[rows], {"tp": I}))
                    mine = ag.nn.cross_entropy(h, ag.tensor(y[rows], {"tp": I}), reduction="sum") * weight
                    loss = cc.all_reduce(mine * self.hidden[0], "dp", to=I) / 24
                tape.backward(loss)
        optim.clip_grad_norm_(self.model.parameters(), 0.3)
        self.optimizer.step()
        return loss, ag.stop_gradient(mine) * self.hidden[1]

    def bits(self) -> Any:
        return bits(list(self.model.parameters())), bits([p.grad for p in self.model.parameters()])


class Noted:
    """The calls at which each rank has run the step beside its replay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.calls: dict[int, list[int]] = {}
        made = Comparison.difference

        def difference(comparison: Any, *args: Any) -> str:
            self.calls.setdefault(int(cc.world().rank), []).append(len(self.done.setdefault(int(cc.world().rank), [])))
            return made(comparison, *args)

        self.done: dict[int, list[Any]] = {}
        monkeypatch.setattr(Comparison, "difference", difference)

    def note(self, found: Any) -> None:
        self.done.setdefault(int(cc.world().rank), []).append(found)

    def at(self) -> list[list[int]]:
        return [[n + 1 for n in self.calls.get(rank, [])] for rank in sorted(self.done)]


def training(make: Callable[[], Training], captures: bool, change: Any = None, note: Any = None) -> Any:
    t = make()
    with t.mesh:
        do = ag.capture(t.step) if captures else t.step
        losses = []
        for k in range(CALLS):
            given = batch(t.random)
            if change is not None and cc.world().rank == 1:
                given = change(k, *given)
            how = given[2] if len(given) == 3 else ""
            words, given = {"weight": 0.5} if how == "by name" else {}, given[:2] if how.__class__ is str else given
            with ag.events.listening(lambda *event: None) if how == "heard" else nullcontext():
                losses.append(bits(do(*given, **words)))
            if captures and note is not None:
                note.note(k)
        return losses, t.bits()


KINDS: dict[str, Callable[[], Training]] = {
    "zero=0": lambda: Training(0),
    "zero=1": lambda: Training(1),
    "zero=2": lambda: Training(2),
    "zero=3": lambda: Training(3),
    "a reduction with a memory": lambda: Training(0, reduction=RandomK(0.3)),
}


@pytest.mark.parametrize("ranks", some([3, 2], 1))
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_step_is_verified_by_all_ranks_and_not_disturbed(
    kind: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Noted(monkeypatch)

    def program() -> None:
        assert training(KINDS[kind], True, note=note) == training(KINDS[kind], False)

    cc.run(program, ranks=ranks)
    assert note.at() == [DUE] * ranks


def test_a_step_of_tensor_parallelism_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Noted(monkeypatch)

    def program() -> None:
        assert training(lambda: Training(tp=2), True, note=note) == training(lambda: Training(tp=2), False)

    cc.run(program, ranks=4)
    assert note.at() == [DUE] * 4


# -- ranks that do not replay at a call that is due --------------------------------------------------------------------
APART: dict[str, tuple[Callable[[int, Any, Any], tuple[Any, ...]], list[int]]] = {
    "departs": (lambda k, x, y: (x, numpy.where(numpy.arange(6) == 2, -100, y) if k == 11 else y), [13, 22, 40]),
    "gets another form": (lambda k, x, y: (x[:5], y[:5]) if k in (11, 12, 14, 19, 20) else (x, y), [15, 26]),
    "gets a number": (lambda k, x, y: (x, y, 0.5) if k in (5, 11, 19) else (x, y), [13, 22, 40]),
    "gets a keyword": (lambda k, x, y: (x, y, "by name") if k in (11, 12, 19) else (x, y), [15, 26]),
    "is heard": (lambda k, x, y: (x, y, "heard") if k in (9, 11, 12) else (x, y), [15, 26]),
    "is heard while the others record": (lambda k, x, y: (x, y, "heard") if k in (2, 3) else (x, y), DUE),
    "is always heard": (lambda k, x, y: (x, y, "heard"), []),
}  # fmt: skip


@pytest.mark.parametrize("mode", some(["first", "ranks"], 1))
@pytest.mark.parametrize("name", APART)
def test_where_one_rank_does_not_replay_all_skip_the_call(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Noted(monkeypatch)
    change, at = APART[name]

    def program() -> None:
        found = training(lambda: Training(0), True, change, note)
        assert found == training(lambda: Training(0), False, change)

    cc.check(mode)
    try:
        cc.run(program, ranks=3)
    finally:
        cc.check("first")
    assert note.at() == [at] * 3


def test_ranks_that_send_nothing_need_not_call_alike() -> None:
    """A function that does not communicate, which a rank calls more often than another, and each verifies nothing."""

    def program() -> None:
        with cc.Mesh(dp=2):
            rank = int(cc.world().rank)
            w = ag.Parameter(numpy.ones(3, "float32"), {"dp": V})
            do = ag.capture(lambda x: ag.tensor(x) * w)
            for k in range(20 + 20 * rank):
                assert (do(numpy.full(3, k, "float32")).array == k).all()
            cc.all_reduce(ag.tensor(numpy.ones(3)), "dp", to=I)

    cc.run(program, ranks=2)


def test_calls_outside_of_the_mesh_are_not_counted() -> None:
    """Between two blocks of a mesh each rank calls the step as often as it likes."""

    def program() -> None:
        mesh = cc.Mesh(dp=2)

        def step(x: Any) -> Any:
            y = ag.tensor(x) * 2.0
            return cc.all_reduce(y, "dp", to=I) if state.mesh is not None else y

        do = ag.capture(step)
        for _ in range(4):
            with mesh:
                for k in range(9):
                    assert (do(numpy.full(3, k, "float32")).array == 4 * k).all()
            for k in range(7 + 5 * int(cc.world().rank)):
                assert (do(numpy.full(3, k, "float32")).array == 2 * k).all()

    cc.run(program, ranks=2)


def test_ranks_that_train_values_of_their_own_need_not_call_alike() -> None:
    def program() -> None:
        with cc.Mesh(dp=2):
            rank = int(cc.world().rank)
            w = ag.Parameter(numpy.ones(3, "float32") * rank, {"dp": V})
            optimizer = optim.SGD([w], 0.1)

            def step(x: Any) -> Any:
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    y = ag.tensor(x) * w
                tape.backward([y], [ag.tensor(numpy.ones(3, "float32"), {"dp": V})])
                optimizer.step()
                return y

            do = ag.capture(step)
            for k in range(20 + 20 * rank):
                do(numpy.full(3, k, "float32"))
            cc.all_reduce(ag.tensor(numpy.ones(3)), "dp", to=I)

    cc.run(program, ranks=2)


# -- planted faults ----------------------------------------------------------------------------------------------------
def faulty(kind: str, at: int, of: Callable[[], Training]) -> tuple[int, str]:
    """Plant a fault on one rank after the step is captured. Return the calls that were made, and the error."""
    t = of()
    with t.mesh:
        do = ag.capture(t.step)
        for k in range(CALLS):
            given = batch(t.random)
            if k == 8 and cc.world().rank == at:
                plant(kind, t, do)
            try:
                do(*given)
            except ag.CaptureError as error:
                return k + 1, str(error)
    return CALLS, ""


def plant(kind: str, t: Training, do: Any) -> None:
    if kind.startswith("a number"):
        t.hidden["that other ranks see" not in kind] = 2.0
        return
    plan = do._last
    run = plan.run
    p = next(p for p in t.model.parameters() if p.array.size)

    def wrong(*arrays: Any) -> Any:
        found = run(*arrays)
        if kind == "a result":
            found[1] = ag.tensor(numpy.nextafter(found[1].array, numpy.float32(100)))
        else:
            x = {"a parameter": p.array, "a gradient": p.grad.array,
                 "state of the optimizer": t.optimizer.first[0]}[kind]  # fmt: skip
            x.view("u4").flat[0] ^= 1
        return found

    plan.run = wrong


FAULTS = {
    "a number": "result 1",
    "a number that other ranks see": "result 0",
    "a result": "result 1",
    "a parameter": "weight",
    "a gradient": "weight.grad",
    "state of the optimizer": "Adam.first",
}


def told_everywhere(kind: str, at: int, of: Callable[[], Training]) -> None:
    ranks = range(cc.world().size) if "see" in kind else [at]
    n, text = faulty(kind, at, of)
    assert n == DUE[0], text
    assert "replay 8 of the step has left another value than the step itself" in text
    assert [rank for rank in range(4) if f"on rank {rank}, " in text] == list(ranks), text
    assert f"on rank {at}, " in text and FAULTS[kind] in text.split(f"on rank {at}, ")[1]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("kind", ["a number that other ranks see", "a result"])
def test_a_fault_on_one_rank_is_told_on_all(kind: str, ranks: int) -> None:
    cc.run(lambda: told_everywhere(kind, ranks - 1, KINDS["zero=0"]), ranks=ranks)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["a parameter", "a gradient", "state of the optimizer"])
def test_a_fault_in_state_is_told_on_all(kind: str, zero: int) -> None:
    cc.run(lambda: told_everywhere(kind, 0, KINDS[f"zero={zero}"]), ranks=2)


def test_after_a_fault_the_state_is_that_of_the_step() -> None:
    def run(captures: bool) -> Any:
        t = Training(0)
        with t.mesh:
            do = ag.capture(t.step) if captures else t.step
            for k in range(DUE[0]):
                if k == DUE[0] - 1 and cc.world().rank == 1:
                    t.hidden[0] = 2.0
                try:
                    do(*batch(t.random))
                except ag.CaptureError:
                    assert k == DUE[0] - 1
            return t.bits()

    def program() -> None:
        assert run(True) == run(False)

    cc.run(program, ranks=3)


def test_over_mpi() -> None:
    found = launch_command(["-m", __name__], 3, limit_s=90)
    assert found.code == 0, found.err
    assert found.out.count("verified") == 3


if __name__ == "__main__":
    for each in ("zero=0", "zero=3"):
        assert training(KINDS[each], True) == training(KINDS[each], False)
    for how in ("departs", "gets another form", "is always heard"):
        assert training(KINDS["zero=2"], True, APART[how][0]) == training(KINDS["zero=2"], False, APART[how][0])
    for fault in FAULTS:
        told_everywhere(fault, 1, KINDS["zero=0"])
    print("verified", flush=True)
