"""Nonblocking forms: the same values and derivatives as the blocking ones, in any order of waits; nothing hangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd.engine.events import listeners
from autograd.engine.state import state
from autograd.errors import CollectiveMismatch, CommunicationError, MeshError, RankFailed, SavedArrayError, TapeError
from collectives import I, P, R, Shard, V
from collectives.declaration.collective import collectives
from collectives.ops import nonblocking
from collectives.testing import Case, Setting, check, mutated
from collectives.testing.registry_cases import cases

from ..launch import launch
from .nonblocking_cases import (
    FORMS,
    PROGRAMS,
    compare,
    compare_here,
    each_its_own_order,
    lose_handles,
    nonblocking_in_place,
    of_every_kind,
    random_program,
)


def work_of(ranks: int, thin: int = 2) -> list[tuple[Case, Setting]]:
    setting = Setting({"a": ranks}, ["a"])
    return [(c, setting) for c in cases(setting, thin) if isinstance(c, Case) and set(c.covers) & {*FORMS, "send"}]


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(p, marks=pytest.mark.slow) for p in (2, 4, 5))])
def test_the_registrys_cases(ranks: int) -> None:
    """Every case of a collective that has a nonblocking form, with that form."""
    with nonblocking_in_place():
        work = work_of(ranks)
        assert {name for case, _ in work for name in case.covers} >= (set(FORMS) if ranks > 1 else set())
        assert check(work, ranks) == []


@pytest.mark.parametrize("others", [R, pytest.param(P, marks=pytest.mark.slow)])
def test_beside_another_axis(others: Any) -> None:
    setting = Setting({"a": 2, "b": 2}, ["b"], {"a": others})
    with nonblocking_in_place():
        found = [c for c in cases(setting, 2) if isinstance(c, Case) and set(c.covers) & set(FORMS)]
        work = [(replace(c, order=1), setting) for c in found]  # second order runs on one axis
        assert work and check(work, 4) == []


@pytest.mark.parametrize("ranks", [3, *(pytest.param(p, marks=pytest.mark.slow) for p in (1, 2, 5))])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program(program: Any, ranks: int) -> None:
    """Several in flight, waited for elsewhere: value, gradient, tangent, second order in both ways."""
    assert max(cc.run(lambda: compare(program, ranks), ranks)) < 1e-12


@pytest.mark.parametrize(
    ("ranks", "seeds"), [(3, range(2)), *(pytest.param(p, range(50), marks=pytest.mark.slow) for p in (2, 3, 5))]
)
def test_random_programs(ranks: int, seeds: range) -> None:
    """Starts, blocking calls and waits at random, each rank waiting in its own order: no deadlock, same derivatives."""
    for seed in seeds:
        difference = max(cc.run(lambda: compare(random_program(seed), ranks), ranks))  # noqa: B023 - called at once
        assert difference < 1e-11, f"seed {seed}: off by {difference}"


def _at_once(node: Any, ct: Any, sweep: Any) -> None:
    """The fault: an adjoint starts when its cotangent arrives, in whatever order that is on this rank."""
    (place,), (collective, call, out, result, _) = node[3], node[4]
    entry = nonblocking._Adjoint(collective, nonblocking.arrived(ct, out, result, call, sweep), call)
    sweep.add(place, entry)
    entry.start()


def test_adjoints_in_the_order_of_arrival_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonblocking.WAIT, "pull", _at_once)
    by_name = {program.__name__: program for program in PROGRAMS}
    assert max(cc.run(lambda: compare(by_name["each_its_own_order"], 3), 3)) > 0.1
    # messages from one rank to another have numbers, so that their order does not matter
    assert max(cc.run(lambda: compare(by_name["around_the_ring"], 3), 3)) < 1e-12
    with pytest.raises((AssertionError, CollectiveMismatch)):  # a wrong value, or calls that do not go together
        for seed in range(4):
            assert max(cc.run(lambda: compare(random_program(seed), 3), 3)) < 1e-11  # noqa: B023 - called at once
    assert max(cc.run(lambda: compare(by_name["in_order"], 3), 3)) < 1e-12  # where all ranks agree it does not show


@pytest.mark.parametrize("name", FORMS)
def test_a_wrong_declaration_is_caught(name: str) -> None:
    """A rule that gives twice what it should fails its own cases, in the blocking form and in the started one."""
    rule: Any = collectives[name]._asks

    def wrong(x: Any, call: Any) -> Any:
        request, finish = rule(x, call)
        return request, lambda y, x, call: finish(y, x, call) * 2.0

    work = [(replace(case, order=1), setting) for case, setting in work_of(3) if name in case.covers]
    with mutated(name):
        collectives[name].asks(wrong)
        assert {failure.check for failure in check(work, 3)} >= {"forward"}
        with nonblocking_in_place():
            assert {failure.check for failure in check(work, 3)} >= {"forward"}


def test_a_single_rank_asks_nothing() -> None:
    """What `alone` declares: a copy of the operand, but for those that say otherwise."""
    with cc.Mesh(a=1):
        x = ag.tensor(np.ones(3))
        assert cc.all_reduce(x, "a").numpy().tolist() == [1, 1, 1] and not cc.exscan(x, "a").numpy().any()
        assert cc.permute(x, "a", [(0, 0)]).numpy().tolist() == [1, 1, 1] and not cc.permute(x, "a", []).numpy().any()


# -- algorithms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "hierarchical:ring,ring", "shared"])
def test_an_algorithm_that_needs_its_ranks_cannot_be_started(algorithm: str) -> None:
    """A ring that was started hung where ranks wait in orders of their own, one of them in a blocking call."""
    def program() -> None:
        with cc.Mesh(a=2, algorithm=algorithm):
            for form in (cc.all_reduce_async, cc.all_gather_async, cc.reduce_scatter_async, cc.reduce_async):
                name = form.__name__
                with pytest.raises(MeshError, match=f"algorithm='{algorithm}'.*\n  fix: {name}.*algorithm='native'"):
                    form(np.ones(3), "a")
                assert not state.pending
            with pytest.raises(MeshError, match="broadcast_async"):
                cc.broadcast_async(np.ones(3), "a", like=np.ones(3))
            assert cc.all_reduce_async(np.ones(3), "a", algorithm="native").numpy().tolist() == [2, 2, 2]
            assert cc.permute_async(np.ones(3), "a", [(0, 1)]).wait().shape == (3,)  # there is no other permute

    cc.run(program, 2)


def test_native_is_started_where_the_mesh_is_free_to_choose() -> None:
    def program() -> float:
        with cc.Mesh(a=3, algorithm="auto"):
            return max(compare_here(program) for program in (of_every_kind, each_its_own_order))

    assert max(cc.run(program, 3)) < 1e-12


def test_the_adjoint_of_a_started_call_is_native_too() -> None:
    def program() -> Any:
        with cc.Mesh(a=2, algorithm="ring") as mesh:
            before = mesh.axis("a").group.traffic.messages
            x = ag.tensor(np.array([cc.world().rank + 1.0]), requires_grad=True)
            with ag.Tape() as tape:
                y = cc.all_reduce_async(x, "a", algorithm="native")
                loss = cc.cast((y * y).sum(), "a", to=I)
            tape.backward(loss)
            return x.grad.item(), mesh.axis("a").group.traffic.messages - before

    assert cc.run(program, 2) == [(6.0, 0)] * 2


# -- the handle --------------------------------------------------------------------------------------------------------


def alone(function: Callable[[], Any], ranks: int = 1) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(a=ranks):
            return function()

    return cc.run(program, ranks)


def test_what_is_known_without_waiting() -> None:
    def program() -> Any:
        x = ag.tensor(np.ones((2, 3), np.float32) * (cc.world().rank + 1))
        handle: Any = cc.reduce_scatter_async(x, "a", dim=1)
        seen = (repr(handle).startswith("Deferred(reduce_scatter of float32[2, 3] on axis 'a', started at "),
                handle.layout["a"] == Shard(1), tuple(map(int, handle.shape)), str(handle.dtype))  # fmt: skip
        (pending,) = state.pending
        assert pending.handle() is handle
        assert handle.wait() is handle and handle.wait() is handle and handle.test()
        assert not state.pending
        return *seen, handle.numpy().tolist()

    first, second = alone(program, 2)
    assert first == (True, True, (2, 2), "float32", [[3.0, 3.0]] * 2)
    assert second == (True, True, (2, 1), "float32", [[3.0]] * 2)


def test_the_operand_may_be_changed_once_it_was_started() -> None:
    def program() -> Any:
        array = np.full(4, cc.world().rank + 1.0)
        handle = cc.all_reduce_async(array, "a")
        array[:] = 100.0
        return handle.numpy().tolist()

    assert alone(program, 3) == [[6.0] * 4] * 3
    assert alone(program, 1) == [[1.0] * 4]


def test_a_tape_keeps_the_operand() -> None:
    def program() -> None:
        x = ag.tensor(np.ones(3), requires_grad=True)
        with ag.Tape():
            handle = cc.all_reduce_async(x * 1.0, "a")
            with pytest.raises(SavedArrayError):
                with ag.no_grad():
                    x.data[0] = 5.0
            handle.wait()

    alone(program, 2)


def test_layouts_are_checked_at_the_start() -> None:
    def program() -> None:
        with pytest.raises(cc.LayoutError, match="all_reduce"):
            cc.all_reduce_async(ag.tensor([1.0], layout={"a": R}), "a")
        assert not state.pending

    alone(program, 2)


def test_not_recorded_under_no_grad() -> None:
    def program() -> Any:
        x = ag.tensor([2.0], requires_grad=True)
        with ag.Tape() as tape:
            with ag.no_grad():
                handle = cc.all_reduce_async(x, "a")
            loss = cc.all_reduce((x * handle).sum(), "a", to=I)
        assert handle.tape is None
        tape.backward(loss)
        return x.grad.item()

    assert alone(program, 2) == [4.0, 4.0]


def test_started_on_one_tape_and_used_under_another() -> None:
    """The cotangent goes to the tape that owns the value; the adjoint runs in that tape's sweep."""
    def program() -> Any:
        x = ag.tensor([cc.world().rank + 1.0], requires_grad=True)
        with ag.Tape() as outer:
            y = cc.all_reduce_async(x * x, "a")
            with ag.no_grad(), ag.Tape() as inner:
                loss = cc.cast((y * y).sum(), "a", to=I)
        inner.backward(loss)
        outer.backward((), None)
        return x.grad.item()

    assert alone(program, 2) == [2 * 5.0 * 2.0, 2 * 5.0 * 4.0]  # d/dx (sum x^2)^2 = 2 (sum x^2) 2x


def test_microbatches_inside_one_tape() -> None:
    """Started outside, waited for inside an inner tape, whose sweep leaves the cotangent to the outer one."""
    def program() -> Any:
        x = ag.tensor([cc.world().rank + 1.0], requires_grad=True)
        with ag.Tape() as outer:
            y = cc.all_reduce_async(x * x, "a")
            with ag.Tape() as inner:
                loss = cc.cast((y * y).sum(), "a", to=I)
            inner.backward(loss, retain=True)
            inner.backward(loss)
        outer.backward()
        return x.grad.item()

    assert alone(program, 2) == [2 * 2 * 5.0 * 2.0, 2 * 2 * 5.0 * 4.0]


def test_an_output_of_backward_and_of_grad_counts_as_used() -> None:
    def program() -> Any:
        x = ag.tensor([3.0], requires_grad=True)
        with ag.Tape() as tape:
            handle = cc.all_reduce_async((x * x).sum(), "a", to=I)
            tape.backward(handle)
        return x.grad.item(), ag.grad(lambda x: cc.all_reduce_async((x * x).sum(), "a", to=I))(x).item()

    assert alone(program, 2) == [(6.0, 6.0)] * 2


def test_waited_for_after_its_tape_was_swept() -> None:
    def program() -> None:
        x = ag.tensor([3.0], requires_grad=True)
        with pytest.raises(TapeError, match="waited for after a backward pass"):
            with ag.Tape() as tape:
                handle = cc.all_reduce_async(x, "a")
                tape.backward(cc.all_reduce((x * x).sum(), "a", to=I))
                handle.wait()
        assert not state.pending

    alone(program)


def test_backward_overlaps_too() -> None:
    """The sweep starts the adjoint before what stood between, and waits for it behind that."""
    def program() -> Any:
        x = ag.tensor(np.ones(3), requires_grad=True)
        heard: list[str] = []
        with ag.Tape() as tape:
            handle = cc.all_reduce_async(x * 2.0, "a")
            meanwhile = anp.tanh(x)
            loss = cc.all_reduce((handle * meanwhile).sum(), "a", to=I)
        with ag.events.listening(lambda phase, way, name: heard.append(name) if phase == "begin" else None):
            tape.backward(loss)
        return [name for name in heard if name in ("start of all_reduce", "tanh", "wait for all_reduce")]

    assert alone(program, 2) == [["start of all_reduce", "tanh", "wait for all_reduce"]] * 2


def test_pokes_in_the_forward_pass_only_while_something_is_pending() -> None:
    pokes: list[int] = []

    def program() -> Any:
        cc.current_mesh().progress = lambda: pokes.append(1)
        x = ag.tensor(np.ones(3))
        anp.tanh(x)
        before = len(pokes)
        handle = cc.all_reduce_async(x, "a")
        for _ in range(5):
            x = anp.tanh(x)
        during = len(pokes)
        handle.wait()
        anp.tanh(x)
        after = len(pokes)
        anp.tanh(x)
        return before, during, after, len(pokes)

    before, during, after, end = alone(program)[0]
    assert before == 0 and during >= 5 and after == during == end
    assert not listeners


# -- never waited for --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["tape", "mesh"])
def test_never_waited_for(end: str) -> None:
    """An error on the rank that forgot, with the call's place; the others are told which rank failed."""
    told: dict[int, str] = {}

    def program() -> None:
        rank = cc.world().rank
        try:
            with cc.Mesh(a=3):
                x = ag.tensor([1.0])
                if end == "tape":
                    with ag.Tape():
                        handle = cc.all_reduce_async(x, "a")
                        if rank != 1:
                            handle.wait()
                else:
                    handle = cc.all_reduce_async(x, "a")
                    if rank != 1:
                        handle.wait()
                cc.world().barrier()
            cc.world().barrier()
        except CommunicationError as error:
            told[rank] = f"{type(error).__name__}: {error}"
            raise

    with pytest.raises((CommunicationError, RankFailed)):
        cc.run(program, 3)
    assert told[1].startswith("CommunicationError: the tape's block ends" if end == "tape" else
                              "CommunicationError: the block of Mesh(a=3) ends")  # fmt: skip
    assert "all_reduce of float64[1] on axis 'a' started at " in told[1] and "test_nonblocking.py:" in told[1]
    assert "fix: handle.wait()" in told[1]
    assert {rank: text.split(":")[0] for rank, text in told.items() if rank != 1} == {0: "RankFailed", 2: "RankFailed"}


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_lost_handles_leave_nothing(ranks: int) -> None:
    cc.run(lose_handles, ranks)


def test_an_error_on_its_way_is_not_hidden() -> None:
    def program() -> None:
        kept: list[Any] = []
        with pytest.raises(ZeroDivisionError), cc.Mesh(a=1), ag.Tape():
            kept.append(cc.all_reduce_async(ag.tensor([1.0]), "a"))
            raise ZeroDivisionError
        assert not state.pending
        with pytest.raises(CommunicationError, match="has no value, because an error ended the communication"):
            kept[0].numpy()

    cc.run(program, 1)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_like_must_be_what_comes() -> None:
    def program(shape: tuple[int, ...], dtype: Any) -> Any:
        with cc.Mesh(a=2) as mesh:
            if mesh.axis("a").rank == 0:
                return cc.isend(ag.tensor(np.ones((2, 3))), "a", 1).wait().shape
            return cc.irecv("a", 0, like=np.empty(shape, dtype)).wait().shape

    assert cc.run(program, 2, (2, 3), np.float64) == [(0,), (2, 3)]
    for shape, dtype in (((6,), np.float64), ((2, 3), np.float32)):
        with pytest.raises(CollectiveMismatch, match="irecv from rank 0 of axis 'a'.*was given like="):
            cc.run(program, 2, shape, dtype)


def test_one_side_recorded() -> None:
    def program() -> None:
        with cc.Mesh(a=2) as mesh:
            if mesh.axis("a").rank == 0:
                cc.isend(ag.tensor([1.0]), "a", 1).wait()
            else:
                with ag.Tape():
                    cc.irecv("a", 0).wait()

    told = r".not recorded. at test_\w+.py:\d+ and this rank isend/irecv .recorded."
    with pytest.raises(CollectiveMismatch, match=told):
        cc.run(program, 2)


def test_integers_and_labels_travel() -> None:
    def program() -> Any:
        with cc.Mesh(a=2, b=1) as mesh:
            other = 1 - mesh.axis("a").group.rank
            with ag.Tape():
                numbers, values = cc.irecv("a", other), cc.irecv("a", other)
                cc.isend(np.arange(3), "a", other).wait()
                cc.isend(ag.tensor([1.0], layout={"b": P}), "a", other).wait()
                return numbers.numpy().tolist(), numbers.tape is None, repr(values.layout), values.tape is not None

    assert cc.run(program, 2) == [([0, 1, 2], True, "{a: V, b: P}", True)] * 2


def test_to_itself() -> None:
    def program() -> None:
        with cc.Mesh(a=1):
            with pytest.raises(MeshError, match="isend: dst=0 is this rank itself"):
                cc.isend(np.ones(1), "a", 0)
            with pytest.raises(MeshError, match="irecv: src=3 was given"):
                cc.irecv("a", 3)

    cc.run(program, 1)


def test_isend_with_recv_is_a_deadlock_with_a_name() -> None:
    def program() -> None:
        with cc.Mesh(a=2) as mesh:
            if mesh.axis("a").rank == 0:
                cc.isend(np.ones(1), "a", 1).wait()
            else:
                cc.recv("a", 0)

    with pytest.raises(cc.DeadlockError, match="recv from rank 0 on 'a@0'"):
        cc.run(program, 2)


def test_order_of_layout_labels() -> None:
    """A started gather of Varying parts is labelled as the blocking one."""
    def program() -> Any:
        x = ag.tensor(np.ones((cc.world().rank + 1, 2)), layout={"a": V})
        return cc.all_gather_async(x, "a").wait().shape, cc.all_gather(x, "a").shape

    assert alone(program, 2) == [((3, 2), (3, 2))] * 2


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_on_processes(ranks: int) -> None:
    outcome = launch("nonblocking_program.py", ranks, limit_s=60, OPENBLAS_NUM_THREADS="1")
    assert f"NONBLOCKING {len(PROGRAMS)} programs, 0 failures on {ranks} ranks" in outcome.out, outcome
    assert outcome.code == 0 and not outcome.is_late


@pytest.mark.parametrize("end", ["tape", "mesh"])
def test_never_waited_for_on_processes(end: str) -> None:
    outcome = launch("forgets_to_wait.py", 2, end, limit_s=30, OPENBLAS_NUM_THREADS="1")
    assert outcome.code != 0 and not outcome.is_late, outcome
    assert "was started and never waited for" in outcome.err and "forgets_to_wait.py:" in outcome.err, outcome.err
