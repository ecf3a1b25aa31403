"""Collectives of one's own, and code of others wrapped as one: right ones pass every check, each fault is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import LayoutError, MeshError, ShapeError
from collectives import I, P, R, Rooted, Shard, V
from collectives.declaration.call import Call
from collectives.declaration.collective import Collective, collectives

from ..launch import launch
from .wrapped_cases import RIGHT, WRONG, same, shift, total

pytestmark = pytest.mark.usefixtures("registry_as_it_was")


def ring(by: int, use_world_rank: bool = False) -> Callable[[Any, Call], Any]:
    """The forward rule of a shift around the ring, on a transport."""
    def move(x: Any, call: Call) -> Any:
        group = call.group
        rank = group.ranks[group.rank] % group.size if use_world_rank else group.rank
        flat = np.ascontiguousarray(x).reshape(-1)
        parts = group.all_gather(flat, [flat.size] * group.size).reshape(group.size, -1)
        return parts[(rank - by) % group.size].reshape(x.shape).copy()

    return move


def pair(there: Any, back: Any, takes: Any = V, gives: Any = V) -> Collective:
    """A collective and its adjoint, of two forward rules, each the other's adjoint."""
    from autograd.layouts.layout import dual_label

    first = Collective("mine", (takes,), lambda *_: gives)
    second = Collective("mine, back", (dual_label(gives),), lambda *_: dual_label(takes))
    first.forward(there)
    second.forward(back)
    first.adjoint(lambda ct, call: second(ct, call))
    second.adjoint(lambda ct, call: first(ct, call))
    return first


def summed(x: Any, call: Call) -> Any:
    return call.group.all_reduce(np.ascontiguousarray(x).reshape(-1)).reshape(x.shape)


def kept(x: Any, call: Call) -> Any:
    return x * 1.0


def test_a_right_one_passes_everything() -> None:
    report = cc.testing.check(pair(ring(1), ring(-1)))
    assert report.ok, str(report)
    assert report.cases == 5 + 6  # alone on 1 to 5 ranks; along either of two axes, V, R and P on the other
    assert report.require() is report and str(report) == "mine: 11 cases, 0 failures"


@pytest.mark.parametrize(
    ("there", "back", "takes", "gives"),
    [(summed, summed, P, R), (summed, kept, P, I), (kept, summed, I, R), (summed, summed, V, R)],
)
def test_layouts_with_copies_and_addends(there: Any, back: Any, takes: Any, gives: Any) -> None:
    cc.check_collective(pair(there, back, takes, gives), ranks=[1, 3], beside=takes is P).require()


def test_with_a_dense_reference() -> None:
    def forward(xs: list[Any]) -> list[Any]:
        return xs[-1:] + xs[:-1]

    def adjoint(cts: list[Any]) -> list[Any]:
        return cts[1:] + cts[:1]

    mine = pair(ring(1), ring(-1))
    cc.check_collective(mine, forward=forward, ranks=[2, 3]).require()
    alone: dict[str, Any] = {"ranks": [3], "beside": False}
    cc.check_collective(mine, forward=forward, adjoint=adjoint, dtype=np.float32, **alone).require()
    assert cc.check_collective(mine, forward=adjoint, **alone).failed >= {"forward"}
    assert cc.check_collective(mine, forward=forward, adjoint=forward, **alone).failed >= {"adjoint"}


def test_fields_of_the_call_shapes_and_our_own() -> None:
    """What is checked of one's own holds of ringtape's: dimensions, uneven parts, roots."""
    def gathered(x: Any, axis: Any) -> Any:
        return cc.all_gather(x, axis, dim=1)

    shapes = lambda size: [(2, r + 1) for r in range(size)]
    cc.check_collective(collectives["all_gather"], use=gathered, takes=[V], shapes=shapes, ranks=[3]).require()
    cc.check_collective(collectives["all_reduce"], takes=[P, V], ranks=[3], beside=False, to=I).require()
    told = cc.check_collective(collectives["broadcast"], use=lambda x, axis: cc.broadcast(x, axis, 0), ranks=[3])
    assert told.ok and told.cases == 14, str(told)  # Rooted and V
    cut = cc.check_collective(collectives["shard"], use=cc.shard, takes=[R, I], ranks=[3], beside=False)
    assert cut.ok, str(cut)
    assert cc.check_collective(collectives["reduce"], use=cc.reduce, takes=[P, V], ranks=[3], beside=False).ok


# -- faults ------------------------------------------------------------------------------------------------------------


def not_linear(x: Any, call: Call) -> Any:
    return x * x


def writes(x: Any, call: Call) -> Any:
    x[...] = 0.0
    return ring(1)(x, call)


def own_rank(x: Any, call: Call) -> Any:
    return x * (call.group.rank + 1.0)


def waits_on_the_last(x: Any, call: Call) -> Any:
    if call.group.rank == call.group.size - 1 and call.group.size > 1:
        call.group.recv(np.empty(1), 0)
    return x * 1.0


def only_of_the_first_addend(x: Any, call: Call) -> Any:
    return call.group.broadcast(np.array(x).reshape(-1), 0).reshape(x.shape)


def to_the_first(ct: Any, call: Call) -> Any:
    """Its true adjoint: the pairing holds, and still it is no function of the one value that the addends make up."""
    return summed(ct, call) * (call.group.rank == 0)


FAULTS = [
    # name, forward, adjoint, takes, gives, the checks that must fail
    ("the identity as adjoint", ring(1), kept, V, V, {"adjoint", "pairing"}),
    ("not turned round", ring(1), ring(1), V, V, {"adjoint", "pairing"}),
    ("a factor", ring(1), lambda x, call: 2 * ring(-1)(x, call), V, V, {"adjoint", "pairing", "second"}),
    ("missing sum", summed, kept, P, R, {"adjoint", "pairing", "copies"}),
    ("missing sum of the uses", kept, kept, I, R, {"pairing", "copies"}),
    ("a sum too many", summed, summed, P, I, {"adjoint", "pairing"}),
    ("not linear", not_linear, lambda ct, call: 2 * ct, V, V, {"linear"}),
    ("the world's rank", ring(1, True), ring(-1, True), V, V, {"linear"}),
    ("the operand is written to", writes, ring(-1), V, V, {"error"}),
    ("said to be copies", own_rank, own_rank, R, R, {"copies"}),
    ("depends on one addend", only_of_the_first_addend, to_the_first, P, R, {"copies"}),
    ("never ends", waits_on_the_last, kept, V, V, {"error"}),
]


@pytest.mark.parametrize(("fault", "there", "back", "takes", "gives", "checks"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_fault_is_named(fault: str, there: Any, back: Any, takes: Any, gives: Any, checks: set[str]) -> None:
    report = cc.check_collective(pair(there, back, takes, gives), ranks=[3], beside="world" in fault)
    assert checks <= report.failed, str(report)
    assert all(failure.case.startswith("mine ") for failure in report.failures)
    with pytest.raises(cc.CheckFailed, match="mine: "):
        report.require()


def test_only_the_adjoint_of_the_adjoint_is_wrong() -> None:
    """First order is right, so nothing but the second shows it."""
    mine = pair(ring(1), ring(-1))
    wrong = Collective("mine, again", (V,))
    wrong.forward(ring(-1))
    wrong.adjoint(lambda ct, call: wrong(ct, call))
    mine.adjoint(lambda ct, call: wrong(ct, call))
    report = cc.check_collective(mine, ranks=[3], beside=False)
    assert "second" in report.failed and not report.failed & {"adjoint", "pairing", "forward", "linear"}, str(report)


def test_an_adjoint_of_another_layout_is_refused() -> None:
    mine = pair(ring(1), ring(-1), V, V)
    mine.adjoint(lambda ct, call: collectives["shard"](ct, call))  # takes R or I, and the cotangent is V
    report = cc.check_collective(mine, ranks=[2])
    assert report.failed & {"layout", "error"}, str(report)


def test_forward_mode() -> None:
    mine = pair(ring(1), ring(-1))
    mine.tangent = lambda t, call, out, record: mine(t * 0.0, call)
    assert {"tangent", "pairing"} <= cc.check_collective(mine, ranks=[3], beside=False).failed


# -- calls -------------------------------------------------------------------------------------------------------------


def test_call_and_apply() -> None:
    mine = pair(ring(1), ring(-1))

    def program() -> Any:
        with cc.Mesh(a=2, b=1):
            x = ag.tensor([float(cc.world().rank)], requires_grad=True)
            with ag.Tape() as tape:
                y = cc.apply(mine, x, "a")
                z = mine(x, cc.call(("a", "b")))
                assert y.tape is not None and z.tape is not None
                loss = cc.all_reduce((y * y + z).sum(), ("a", "b"), to=I)
            tape.backward(loss)
            assert x.grad is not None
            return y.numpy().tolist(), cc.apply(mine, [5.0], "a").numpy().tolist(), x.grad.item()

    assert cc.run(program, 2) == [([1.0], [5.0], 1.0), ([0.0], [5.0], 3.0)]


def test_only_an_axis_with_a_similar_name_is_offered() -> None:
    def program() -> None:
        with cc.Mesh(data=1, stages=2):
            with pytest.raises(MeshError, match="needed: one of them\n  fix: 'stages'"):
                cc.call("stage")
            with pytest.raises(MeshError, match="'pp' was given") as caught:
                cc.call("pp")
            assert "fix" not in str(caught.value)

    cc.run(program, 2)


def test_call_says_what_it_knows() -> None:
    with pytest.raises(MeshError, match="no mesh is current"):
        cc.call("a")
    with cc.Mesh(a=1):
        with pytest.raises(MeshError, match="'b' was given; this mesh has 'a'; needed: one of them\n  fix: 'a'"):
            cc.call("b")
        with pytest.raises(MeshError, match=r"call\('a'\): 'rooot' was given; needed: one of to, source, root"):
            cc.call("a", rooot=1)


def test_labels_are_checked_before_anything_is_sent() -> None:
    mine = pair(summed, summed, P, R)
    with cc.Mesh(a=1), pytest.raises(LayoutError, match="mine takes Partial"):
        cc.apply(mine, ag.tensor([1.0], layout={"a": R}), "a")


def test_it_needs_cases() -> None:
    nothing = Collective("takes nothing", ())
    report = cc.check_collective(nothing)
    assert not report.ok and report.cases == 0
    with pytest.raises(cc.CheckFailed, match="takes nothing: 0 cases"):
        report.require()


# -- code of others ----------------------------------------------------------------------------------------------------


def test_wrapped_on_threads_is_refused() -> None:
    mine = cc.wrap(shift, shift, takes=V, gives=V)

    def program(size: int) -> None:
        with cc.Mesh(a=size, b=2 // size):
            mine(ag.tensor([1.0]), "a")

    for size in (1, 2):
        with pytest.raises(MeshError, match=r"shift: its function needs an mpi4py communicator.*threads.*\n.*mpiexec"):
            cc.run(program, 2, size)


def test_wrapped_labels() -> None:
    for label in (Shard(0), Rooted(0), "V"):
        with pytest.raises(LayoutError, match="needed: R, I, V or P"):
            cc.wrap(shift, shift, takes=V, gives=label)
    mine = cc.wrap(total, total, takes=P, gives=R)
    with cc.Mesh(a=1), pytest.raises(LayoutError, match="total takes Partial"):
        mine(ag.tensor([1.0], layout={"a": R}), "a")


def test_wrapped_on_one_process() -> None:
    """There is nobody else: the functions get a communicator of one rank; only faults that it has show."""
    pytest.importorskip("mpi4py")
    outcome = launch("wrapped_program.py", 1, limit_s=60, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0, outcome
    assert "WRONG twice: " in outcome.out and "WRONG twice: missed" not in outcome.out


def test_a_wrapped_function_cannot_write_to_its_operand() -> None:
    def careless(x: Any, comm: Any) -> Any:
        x *= 2.0
        return x

    mine = cc.wrap(careless, careless, takes=V, gives=V)
    with cc.Mesh(a=1), pytest.raises(ValueError, match="read-only"):
        mine(ag.tensor([1.0]), "a")


def test_an_adjoint_of_the_wrong_shape() -> None:
    mine = cc.wrap(same, lambda ct, comm: ct[:1], takes=V, gives=V, name="mine")
    with cc.Mesh(a=1):
        x = ag.tensor([1.0, 2.0], requires_grad=True)
        with ag.Tape() as tape:
            loss = cc.all_reduce(mine(x, "a").sum(), "a", to=I)
        with pytest.raises(ShapeError, match=r"adjoint of mine returned shape \(1,\); needed: \(2,\)"):
            tape.backward(loss)


@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_wrapped_on_processes(ranks: int) -> None:
    outcome = launch("wrapped_program.py", ranks, limit_s=60, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and not outcome.is_late, outcome
    assert f"WRAPPED ok on {ranks} ranks" in outcome.out
    assert outcome.out.count("RIGHT True") == len(RIGHT)
    for fault, *_ in WRONG:
        assert f"WRONG {fault}: " in outcome.out and f"WRONG {fault}: missed" not in outcome.out, outcome.out


def test_a_rank_that_leaves_while_others_wait_in_raw_calls() -> None:
    outcome = launch("raw_mismatch.py", 2, limit_s=30, OPENBLAS_NUM_THREADS="1")
    assert outcome.code != 0 and not outcome.is_late, outcome
    assert "rank 1 of 2 exited early" in outcome.err and "in their sum #3 on 'a@0/raw'" in outcome.err, outcome.err


def test_a_result_of_another_shape_and_no_tangent() -> None:
    """Forward mode makes up zeros where nothing moves: of the operand's shape, which no declaration tells here."""
    twice = cc.Collective("twice (test)", takes=(V,), gives=lambda *_: V)

    @twice.forward
    def _(x: Any, call: Any) -> Any:
        assert x.shape == (3,)
        return np.concatenate([x, call.group.all_reduce(x)])

    @twice.adjoint
    def _(ct: Any, call: Any) -> Any:
        raise NotImplementedError

    def program() -> Any:
        with cc.Mesh(dp=2):
            still, x = ag.tensor([1.0, 2.0, 3.0]), ag.tensor([2.0])
            moving = ag.jvp(lambda z: z * cc.apply(twice, still, "dp").sum(), (x,), (ag.tensor([1.0]),))
            return [each.numpy().tolist() for each in moving]

    assert cc.run(program, 2) == [[[36.0], [18.0]]] * 2


def test_sizes_that_are_not_tested_are_listed() -> None:
    """On the 2 ranks of a job a shift that is its own adjoint passes, and the report says that it proves nothing."""
    wrong = pair(ring(1), ring(1))
    reports = cc.run(lambda: str(cc.testing.check(wrong, ranks=[1, 2, 3])), 2)
    assert reports[0] == reports[1] and "1 cases, 0 failures" in reports[0]
    assert "skipped: 1 and 3 ranks: the check runs on the 2 of this job; run it without mpiexec" in reports[0]
    assert "skipped: meshes with two axes" in reports[0]
    assert "skipped: 3 or more ranks: on 2 a shift by +1 is one by -1" in reports[0]
    alone = cc.testing.check(wrong, ranks=[2])
    assert alone.ok and "3 or more ranks" in str(alone)
    found = cc.testing.check(wrong, ranks=[1, 2, 3])
    assert not found.ok and "skipped" not in str(found)


def test_help_names_the_calls_of_a_group() -> None:
    assert cc.Collective.__doc__ is not None
    for words in ("flat", "group.size", "group.index", "group.all_reduce(x)", "group.all_gather(x, counts)"):
        assert words in cc.Collective.__doc__, words


@pytest.mark.parametrize("flag", ["silent", "free", "meets", "adds", "rooted", "between_two", "replace", "registered"])
@pytest.mark.parametrize("value", [1, None, np.array([]), "yes"], ids=repr)
def test_a_flag_is_true_or_false(flag: str, value: Any) -> None:
    with pytest.raises(ag.errors.ArgumentError, match=f"{flag}=.*needed: True or False"):
        cc.Collective("flagged", (V,), V, **{flag: value})
