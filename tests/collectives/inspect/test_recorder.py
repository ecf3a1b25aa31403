"""Records of operations, on threads and over MPI: one test for each fact that they tell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from autograd.engine import events
from autograd.engine.recording import op_of, parents_of
from autograd.records.record import OperationRecord, RankRecords
from parallel import DataParallel, Pipeline

from ..launch import launch

RANKS = [1, 2, 3]


def values(rank: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Random values, different on each rank."""
    return np.random.default_rng((seed, rank)).normal(size=shape)


def recorded(program: Callable[[], Any], ranks: int, **options: Any) -> list[RankRecords]:
    """The records of all ranks of a program on an axis "dp"; an error of the program is in its records."""

    def run() -> RankRecords:
        found = None
        with cc.Mesh(dp=ranks):
            try:
                with cc.recording_operations(**options) as found:
                    program()
            except ag.errors.RingtapeError:
                pass
        assert found is not None
        return found

    return cc.run(run, ranks)


def own_rank() -> int:
    return int(cc.world().rank)


def only(records: RankRecords, **facts: Any) -> OperationRecord:
    """The only record with these facts."""
    found = [r for r in records.records if all(getattr(r, name) == fact for name, fact in facts.items())]
    assert len(found) == 1, [(r.id, r.direction, r.name) for r in records.records]
    return found[0]


def cast_and_sum() -> None:
    w = ag.Parameter(values(9, 3), name="w")
    x = ag.tensor(values(own_rank(), 3))
    with ag.Tape() as tape:
        loss = cc.all_reduce((cc.cast(w, "dp", to=cc.R) * x).sum(), "dp", to=cc.I)
    tape.backward(loss)


# -- forward -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", RANKS)
def test_place_line_operands_and_layouts(ranks: int) -> None:
    for found in recorded(cast_and_sum, ranks):
        shown = [
            (r.name, r.place, r.layout, r.operands, r.operand_layouts)
            for r in found.records if r.direction == "forward" and r.cause is None
        ]  # fmt: skip
        assert shown == [
            ("parameter w", 0, "{dp: I}", (), ()), ("cast I->R", 1, "{dp: R}", (0,), ("{dp: I}",)),
            ("leaf x", None, "{dp: V}", (), ()), ("multiply", 2, "{dp: V}", (1, 2), ("{dp: R}", "{dp: V}")),
            ("sum", 3, "{dp: V}", (3,), ("{dp: V}",)), ("all_reduce", 4, "{dp: I}", (4,), ("{dp: V}",)),
        ]  # fmt: skip
        line = cast_and_sum.__code__.co_firstlineno + 4
        assert {(r.file, r.line) for r in found.records if r.name == "multiply"} == {(__file__, line)}
        assert [r.id for r in found.records] == list(range(len(found.records)))
        assert found.mesh == (("dp", ranks),) and found.coordinates == (found.rank,)


@pytest.mark.parametrize("ranks", RANKS)
def test_values_are_those_of_the_program(ranks: int) -> None:
    for rank, found in enumerate(recorded(cast_and_sum, ranks)):
        product = values(9, 3) * values(rank, 3)
        assert only(found, direction="forward", name="multiply").value.values == tuple(product)
        total = sum((values(9, 3) * values(r, 3)).sum() for r in range(ranks))
        assert only(found, direction="forward", name="all_reduce", cause=None).value.values == pytest.approx((total,))


def test_larger_arrays_have_statistics_and_a_digest() -> None:
    x = values(0, 5, 20)
    x[2, 3], x[1, 1] = np.inf, np.nan

    def program() -> None:
        ag.tensor(x) * 1.0

    (found,) = recorded(program, 1)
    value = only(found, name="leaf").value
    finite = x[np.isfinite(x)]
    assert (value.shape, value.dtype, value.values, value.not_finite) == ((5, 20), "float64", None, 2)
    expected = finite.min(), finite.mean(), finite.max(), finite.std()
    assert (value.least, value.mean, value.greatest, value.deviation) == pytest.approx(expected)
    assert value.digest == only(found, name="multiply").value.digest and len(value.digest) == 16
    (without,) = recorded(program, 1, values=False, lines=False)
    assert only(without, name="leaf").value == ag.records.record.Summary((5, 20), "float64")
    assert {(r.file, r.scope) for r in without.records} == {("", ())}


@pytest.mark.parametrize("ranks", RANKS)
def test_modules_and_named_parts_are_scopes(ranks: int) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Sequential(nn.Linear(3, 3, key=ag.random.Key(1)), nn.Tanh())

        def forward(self, x: Any) -> Any:
            with ag.scope("residual"):
                return x + self.inner(x)

    def program() -> None:
        model = DataParallel(Block(), "dp")
        with ag.Tape() as tape, ag.scope("step"):
            loss = cc.all_reduce((model(ag.tensor(values(own_rank(), 2, 3))) ** 2).sum(), "dp", to=cc.I)
        tape.backward(loss)

    for found in recorded(program, ranks):
        expected = "step", "DataParallel", "module", "residual", "inner", "1"
        assert only(found, direction="forward", name="tanh").scope == expected
        assert only(found, direction="backward", name="tanh").scope == expected
        assert only(found, direction="forward", name="power").scope == ("step",)
        assert not any(r.name in ("step", "residual") or r.direction == "effect" for r in found.records)


@pytest.mark.parametrize("ranks", RANKS)
def test_an_entry_of_parameters_has_a_record_for_each(ranks: int) -> None:
    def program() -> None:
        model = DataParallel(nn.Linear(3, 2, key=ag.random.Key(1)), "dp")
        with ag.Tape() as tape:
            loss = cc.all_reduce((model(ag.tensor(values(own_rank(), 4, 3))) ** 2).sum(), "dp", to=cc.I)
        tape.backward(loss)

    for found in recorded(program, ranks):
        weight, bias = (only(found, direction="forward", name=f"parameter {n}") for n in ("weight", "bias"))
        entry = only(found, direction="forward", name="parameter entry")
        assert (weight.place, bias.place, entry.place, entry.operands) == (0, 1, 2, (weight.id, bias.id))
        assert (weight.layout, weight.operand_layouts) == ("{dp: R}", ("{dp: I}",))
        back = only(found, direction="backward", name="parameter entry")
        assert back.adjoint_of == entry.id and {c.to for c in back.contributions} == {weight.id, bias.id}
        buckets = [r for r in found.records if r.name == "gradient bucket"]
        assert len(buckets) == (ranks > 1)
        for bucket in buckets:
            assert (bucket.adjoint_of, bucket.direction) == (entry.id, "backward")
            assert [call.call for call in bucket.calls if not call.is_control] == ["all_reduce"]
        linear = only(found, direction="backward", name="linear")
        ways = {c.to for c in linear.contributions}
        assert {found.records[to].operands[:1] or (to,) for to in ways} >= {(weight.id,), (bias.id,)}


def test_several_outputs_an_argument_and_a_checkpoint() -> None:
    def program() -> None:
        w = ag.Parameter([3.0, 2.0], name="w")
        with ag.Tape() as tape:
            found, _ = anp.linalg.eigh(anp.outer(w, w))
            y = ag.checkpoint(lambda t: anp.tanh(t) * t)(w)
            loss = (found * y).sum()
        tape.backward(loss)
        ag.grad(lambda t: anp.sum(t**3))(np.array([1.0, 2.0]))

    (found,) = recorded(program, 1)
    eigh = only(found, direction="forward", name="eigh")
    kept = only(found, direction="forward", name="checkpoint")
    product = next(r for r in found.records if r.operands == (eigh.id, kept.id))
    assert kept.value.values == pytest.approx(tuple(np.tanh([3.0, 2.0]) * [3.0, 2.0]))
    back = only(found, direction="backward", adjoint_of=product.id)
    assert [c.to for c in back.contributions] == [eigh.id, kept.id]
    again = only(found, direction="backward", name="checkpoint")
    assert {r.name for r in found.records if r.cause == again.id} >= {"tanh", "multiply"}
    power = only(found, direction="forward", name="power")
    assert found.records[power.operands[0]].name == "leaf argument 0"
    assert found.records[power.operands[0]].value.values == (1.0, 2.0)


# -- backward ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", RANKS)
def test_cotangents_have_the_dual_layout_and_every_contribution(ranks: int) -> None:
    def program() -> None:
        w = ag.Parameter(values(9, 3), name="w")
        with ag.Tape() as tape:
            inside = cc.cast(w, "dp", to=cc.R)
            x = ag.tensor(values(own_rank(), 3))
            loss = cc.all_reduce((inside * x + inside * inside).sum(), "dp", to=cc.I)
        tape.backward(loss)

    for rank, found in enumerate(recorded(program, ranks)):
        cast = only(found, direction="forward", name="cast I->R")
        back = only(found, direction="backward", adjoint_of=cast.id)
        assert (cast.layout, back.layout) == ("{dp: R}", "{dp: P}")
        w, x = values(9, 3), values(rank, 3)
        given = [c.value.values for r in found.records for c in r.contributions if c.to == cast.id]
        assert sorted(given) == sorted([tuple(w), tuple(w), tuple(x)])  # each addend alone
        assert back.value.values == pytest.approx(tuple(2 * w + x))
        leaf = only(found, direction="forward", name="parameter w")
        assert only(found, direction="backward", adjoint_of=leaf.id).layout == "{dp: I}"


@pytest.mark.parametrize("ranks", RANKS)
def test_operations_inside_an_adjoint_have_a_cause(ranks: int) -> None:
    for found in recorded(cast_and_sum, ranks):
        back = only(found, direction="backward", name="cast I->R")
        inside = only(found, name="all_reduce", cause=back.id)
        assert inside.operands == (back.id,) and (inside.file, inside.line) == (back.file, back.line)
        assert [r.name for r in found.records if r.cause is not None] == ["all_reduce"]  # no check of a rule
        (call,) = [c for c in inside.calls if not c.is_control] or [None]
        assert (call is None) == (ranks == 1)
        assert [c.to for c in back.contributions] == [only(found, direction="forward", name="parameter w").id]


def test_a_recorded_sweep_and_two_tapes() -> None:
    def program() -> None:
        w = ag.Parameter([1.0, 2.0], name="w")
        with ag.Tape() as outer:
            with ag.Tape() as inner:
                y = (w**3).sum()
            inner.backward(y, record=True)
            z = w.grad.sum()
        w.zero_grad()
        outer.backward(z)
        assert np.array_equal(w.grad.numpy(), [6.0, 12.0])
        with ag.Tape() as first:
            a = w * 2
        with ag.Tape() as second:
            b = (a * a).sum()
        second.backward(b)
        first.backward()

    (found,) = recorded(program, 1)
    assert {r.tape for r in found.records if r.place is not None} == {1, 2, 3}
    last = [r for r in found.records if r.direction == "forward" and r.name == "multiply"][-1]
    made = found.records[last.operands[0]]
    assert (made.name, made.tape, last.tape) == ("multiply", 2, 3)
    assert only(found, direction="backward", adjoint_of=made.id).tape == 2


# -- communication -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ["native", "ring", "auto"])
def test_calls_have_group_bytes_algorithm_and_reason(algorithm: str) -> None:
    def program() -> Any:
        with cc.Mesh(dp=3, algorithm=algorithm), cc.recording_operations() as found:
            cc.all_reduce(ag.tensor(values(own_rank(), 5)), "dp", to=cc.R)
            cc.broadcast(ag.tensor(values(own_rank(), 2)), "dp", 1)
        return found

    for found in cc.run(program, 3):
        (call,) = [c for c in only(found, name="all_reduce").calls if not c.is_control]
        assert (call.call, call.axis, call.ranks, call.bytes, call.peer) == ("all_reduce", "dp", (0, 1, 2), 40, None)
        assert 0 < call.begin_ns <= call.end_ns
        if algorithm == "auto":
            assert (call.algorithm, call.reason) == ("native", "by the rule of auto")
        else:
            assert (call.algorithm, call.reason) == (algorithm, "default" if algorithm == "native" else "given")
        header, rooted = [c for c in only(found, name="broadcast").calls if c.call == "broadcast"]
        assert (header.is_control, rooted.is_control, rooted.peer, rooted.bytes) == (True, False, 1, 16)


def test_calls_of_the_ranks_are_aligned_by_channel_and_number() -> None:
    def program() -> None:
        for _ in range(3):
            cast_and_sum()

    def keys(found: RankRecords) -> list[Any]:
        calls = [c for r in found.records for c in r.calls]
        return [(c.channel, c.number, c.call, c.ranks) for c in calls if not c.is_control]

    first, *others = recorded(program, 3)
    assert [number for _, number, _, _ in keys(first)] == [1, 2, 3, 4, 5, 6]
    assert all(keys(other) == keys(first) for other in others)


def test_messages_have_their_peer_and_meet() -> None:
    def program() -> None:
        w = ag.Parameter(values(own_rank(), 2), {"dp": cc.V}, name="w")
        with ag.Tape() as tape:
            y = w.sum() * 0
            if own_rank() == 0:
                cc.send(w * 3, "dp", 2)
            if own_rank() == 2:
                y = (cc.recv("dp", 0) * w).sum()
            loss = cc.all_reduce(y, "dp", to=cc.I)
        tape.backward(loss)

    first, _, last = recorded(program, 3)
    (sent,) = [c for c in only(first, direction="forward", name="send").calls if not c.is_control]
    (received,) = [c for c in only(last, direction="forward", name="recv").calls if not c.is_control]
    assert (sent.peer, received.peer, sent.bytes, received.bytes) == (2, 0, 16, 16)
    assert (sent.channel, sent.number) == (received.channel, received.number)
    back = only(first, direction="backward", name="send")
    (inside,) = [r for r in first.records if r.cause == back.id]
    (answer,) = [c for r in last.records if r.cause is not None for c in r.calls]
    assert (inside.calls[0].channel, inside.calls[0].number) == (answer.channel, answer.number)
    assert [c.to for c in back.contributions] == [only(first, direction="forward", name="multiply", place=3).id]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_nonblocking_call_has_its_start_and_its_wait(ranks: int) -> None:
    def program() -> None:
        w = ag.Parameter(values(9, 2), name="w")
        with ag.Tape() as tape:
            y = cc.all_reduce_async(cc.cast(w, "dp", to=cc.R) * ag.tensor(values(own_rank(), 2)), "dp", to=cc.I)
            z = w * 2
            loss = (y * z).sum()
        tape.backward(loss)

    for found in recorded(program, ranks):
        if ranks == 1:  # it runs at once
            start, wait = (only(found, direction="forward", name=name) for name in ("start", "wait"))
        else:
            start = only(found, direction="forward", name="start of all_reduce")
            wait = only(found, direction="forward", name="wait for all_reduce")
            (call,) = [c for c in start.calls if not c.is_control]
            assert call.is_nonblocking and call.end_ns >= wait.begin_ns > call.begin_ns
        assert wait.operands == (start.id,) and wait.layout == "{dp: I}"
        assert None not in (start.place, wait.place)
        product = next(r for r in found.records if wait.id in r.operands and r.name == "multiply")
        assert found.records[product.operands[1]].name == "multiply"
        back = only(found, direction="backward", adjoint_of=wait.id)
        assert [c.to for c in back.contributions] == [start.id]


# -- effects, updates, memory, time, failures ------------------------------------------------------------------------
def test_effects() -> None:
    def gather() -> None:
        pass

    def free() -> None:
        pass

    def program() -> None:
        w = ag.Parameter([1.0], name="w")
        with ag.Tape() as tape:
            tape.effect(gather, free)
            loss = (w * w).sum()
        tape.backward(loss)

    (found,) = recorded(program, 1)
    done, undone = only(found, name="do gather"), only(found, name="undo free")
    assert (done.direction, undone.direction, undone.adjoint_of) == ("effect", "effect", done.id)
    assert done.place == 0 and done.id < undone.id


@pytest.mark.parametrize("ranks", RANKS)
def test_updates_and_steps(ranks: int) -> None:
    def program() -> None:
        model = DataParallel(nn.Linear(2, 1, key=ag.random.Key(1)), "dp")
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            with ag.Tape() as tape:
                x = ag.tensor(values(own_rank(), 3, 2, seed=step))
                loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    for found in recorded(program, ranks):
        updates = [r for r in found.records if r.direction == "update"]
        assert [r.name for r in updates] == ["SGD weight", "SGD bias"] * 2
        assert all(found.records[r.operands[0]].name == "parameter entry" for r in updates)
        entered = [r for r in found.records if r.name == "parameter weight" and r.direction == "forward"]
        assert updates[0].value.digest == entered[1].value.digest != entered[0].value.digest
        assert found.steps == [(0, updates[1].id + 1), (updates[1].id + 1, len(found.records))]


def test_bytes_of_the_tape() -> None:
    def program() -> None:
        w = ag.Parameter(values(0, 100), name="w")
        with ag.Tape() as tape:
            y = anp.exp(w)  # keeps its result, 800 bytes
            z = anp.sin(y)  # keeps its operand, which is the same memory
            loss = (z * z).sum()  # keeps z
        tape.backward(loss, retain=True)
        tape.backward(loss)

    (found,) = recorded(program, 1)
    forward = {r.name: r.tape_bytes for r in found.records if r.direction == "forward" and r.cause is None}
    assert forward == {"parameter w": 0, "exp": 800, "sin": 800, "multiply": 1600, "sum": 1600}
    back = [(r.name, r.tape_bytes) for r in found.records if r.direction == "backward"]
    assert [n for _, n in back[:5]] == [1600] * 5
    assert back[5:] == [("sum", 1600), ("multiply", 800), ("sin", 800), ("exp", 0), ("parameter w", 0)]


def test_bytes_of_a_part_of_a_tape_are_released_as_the_sweep_goes_on() -> None:
    def program() -> None:
        w = ag.Parameter(values(0, 100), name="w")
        with ag.Tape():
            first = anp.exp(w)  # 800 bytes of the outer tape
            with ag.Tape() as inner:
                loss = (anp.exp(first) * 2).sum()
            inner.backward(loss)
            (first * 3).sum()

    (found,) = recorded(program, 1)
    back = [(r.name, r.tape_bytes) for r in found.records if r.direction == "backward"]
    assert back == [("sum", 1600), ("multiply", 1600), ("exp", 800)]


def test_one_clock() -> None:
    ticks = iter(range(10_000))
    (found,) = recorded(cast_and_sum, 1, clock=lambda: next(ticks))
    own = [r for r in found.records if r.cause is None]
    assert all(a.begin_ns <= a.end_ns < b.begin_ns for a, b in zip(own, own[1:], strict=False))


@pytest.mark.parametrize("ranks", RANKS)
def test_a_refused_operation_is_the_last_record(ranks: int) -> None:
    def multiply() -> None:
        ag.Parameter(values(9, 2), name="w") * ag.tensor(values(own_rank(), 2))

    def cast() -> None:
        cc.all_reduce(ag.constant(np.ones(2)) * cc.cast(ag.Parameter(np.ones(2), name="w"), "dp", to=cc.R), "dp")

    for program, name in ((multiply, "multiply"), (cast, "all_reduce")):
        for found in recorded(program, ranks):
            last = found.records[-1]
            assert last.name == name and "fix:" in last.error and found.error == last.error
            assert last.value is None and all(0 <= x < last.id for x in last.operands)
            assert last.line == program.__code__.co_firstlineno + 1
            assert [r.error for r in found.records[:-1]] == [""] * last.id


def test_an_objective_that_is_refused_is_the_last_record() -> None:
    def program() -> None:
        w = ag.Parameter(values(9, 2), name="w")
        with ag.Tape() as tape:
            loss = (cc.cast(w, "dp", to=cc.R) * ag.tensor(values(own_rank(), 2))).sum()
        tape.backward(loss)

    for found in recorded(program, 3):
        last = found.records[-1]
        assert (last.name, last.operand_layouts) == ("backward", ("{dp: V}",))
        assert found.records[last.operands[0]].name == "sum"
        assert "fix:" in last.error and last.error == found.error


def test_an_adjoint_that_raises_has_the_error() -> None:
    def program() -> None:
        failing = ag.extend.primitive(lambda x: x * 2)
        ag.extend.defvjp(failing, lambda ans, x: lambda g: 1 / 0)
        w = ag.Parameter([1.0], name="w")
        with ag.Tape() as tape:
            loss = failing(w).sum()
        with pytest.raises(ZeroDivisionError):
            tape.backward(loss)
        (w * 3).sum()  # the records go on

    (found,) = recorded(program, 1)
    (failed,) = [r for r in found.records if r.error]
    assert failed.direction == "backward" and "division" in failed.error and found.error == ""
    assert found.records[-1].name == "sum" and found.records[-1].cause is None


# -- what the program does is the same ------------------------------------------------------------------------------
def linear_layers(dtype: Any) -> Callable[[], list[np.ndarray]]:
    """Two steps of a model with a mixed product, a fused one, a checkpoint and a half-precision layer."""

    def program() -> list[np.ndarray]:
        model = nn.Sequential(
            nn.Linear(3, 4, key=ag.random.Key(0)), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 1, key=ag.random.Key(1))
        )
        for p in model.parameters():
            p.data = p.numpy()
        entered = DataParallel(model, "dp")
        optimizer = optim.AdamW(entered.parameters(), lr=0.1)
        found = []
        for step in range(2):
            with ag.Tape() as tape:
                x = ag.tensor(values(own_rank(), 5, 3, seed=step).astype(dtype))
                y = ag.checkpoint(entered)(x)
                loss = cc.all_reduce((y * y + y).sum(), "dp", to=cc.I)
            names = [(op_of(node).name, tuple(parents_of(node))) for node in tape.recording.nodes if node is not None]
            tape.backward(loss)
            found += [loss.numpy(), *(p.grad.numpy() for p in model.parameters())]
            optimizer.step()
            optimizer.zero_grad()
            found += [p.numpy() for p in model.parameters()]
        return [*found, np.array(str(names))]

    return program


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_bits_and_the_tape_are_the_same(ranks: int, dtype: str) -> None:
    program = linear_layers(dtype)

    def run(is_recorded: bool) -> list[np.ndarray]:
        with cc.Mesh(dp=ranks):
            if not is_recorded:
                return program()
            with cc.recording_operations():
                return program()

    plain, told = cc.run(run, ranks, False), cc.run(run, ranks, True)
    for a, b in zip(plain, told, strict=True):
        assert all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def test_leaves_of_a_mixed_product_enter_in_the_same_order() -> None:
    def names(is_recorded: bool) -> list[Any]:
        layer, x = nn.Linear(3, 2, key=ag.random.Key(1)), ag.tensor(values(0, 4, 3), requires_grad=True)
        with contextlib.ExitStack() as stack:
            if is_recorded:
                stack.enter_context(cc.recording_operations())
            with ag.Tape() as tape:
                layer(x)
                ag.Parameter(np.ones(3, "float32")) * x  # two operands
        return [(op_of(node).name, tuple(parents_of(node))) for node in tape.recording.nodes if node is not None]

    assert names(True) == names(False)
    assert [name for name, _ in names(False)].count("astype") == 3


def test_nothing_listens_after_the_block_and_nothing_is_kept() -> None:
    import gc
    from weakref import ref

    def program() -> Any:
        with cc.recording_operations() as found:
            y = ag.tensor(values(0, 100)) * 2
            seen = ref(y.array)
            del y
            gc.collect()
            return seen() is None, found

    (released, found), = cc.run(program, 1)
    assert released and len(found.records) == 2
    assert not events.listeners and not events.spans


def test_over_mpi() -> None:
    outcome = launch("records_program.py", 3, limit_s=60)
    assert outcome.code == 0 and "RECORDS 3 ranks agree" in outcome.out, f"{outcome.out}\n{outcome.err}"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_of_a_pipeline_are_pairs_with_layouts(ranks: int, schedule: str) -> None:
    """Each activation has a layout, and its cotangent, which travels the other way, is its adjoint, also in step 2."""
    x, y = values(0, 6, 3), values(1, 6, 3)

    def program() -> RankRecords:
        with cc.Mesh(pp=ranks):
            layers = [nn.Linear(3, 3, dtype=float) for _ in range(ranks)]
            model = Pipeline(layers, nn.MSELoss(reduction="sum"), schedule=schedule, microbatches=3)
            with cc.recording_operations() as found:
                for _ in range(2):
                    model.zero_grad()
                    model.step(x, y, scale=1 / 6)
        return found

    found = cc.run(program, ranks)
    ends: dict[str, dict[tuple[Any, ...], str]] = {"forward": {}, "backward": {}}
    for r, of in enumerate(found):
        messages = [m for m in of.records if m.name in ("send", "recv") and m.value is not None]
        forward = [m for m in messages if m.direction == "forward"]
        assert len(forward) == 2 * 3 * ((r > 0) + (r < ranks - 1)) and all(m.layout == "{pp: V}" for m in forward)
        assert sorted(m.adjoint_of for m in messages if m.direction == "backward") == [m.id for m in forward]
        assert all(of.records[m.operands[0]].value == m.value for m in forward if m.name == "send")
        for m in messages:
            (call,) = m.calls
            pair = (r, call.peer) if call.call == "send" else (call.peer, r)
            assert m.value is not None
            ends[m.direction].setdefault((*pair, call.channel, call.call), m.value.digest)
            assert (m.direction == "forward") == (pair[0] < pair[1])
    for of_way in ends.values():  # both ends of each message have the same value
        for (source, target, channel, call), digest in of_way.items():
            assert of_way[source, target, channel, "recv" if call == "send" else "send"] == digest


def test_a_gathered_parameter_has_its_whole_value() -> None:
    """With ZeRO 3 a rank holds a part; what enters the computation is the whole, the same on all ranks."""
    def program() -> list[tuple[str, tuple[int, ...], str]]:
        random.seed(0)
        with cc.recording_operations() as found, cc.Mesh(dp=-1) as mesh:
            x = cc.from_local(np.full((2, 3), 1.0 + int(mesh.ranks.rank), np.float32), {"dp": cc.Shard(0)})
            model = DataParallel(nn.Linear(3, 2), "dp", zero=3)
            with ag.Tape() as tape:
                loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=cc.I)
            tape.backward(loss)
        entered = [record for record in found.records if record.name.startswith("parameter ")]
        return [(each.name, each.value.shape, each.value.digest) for each in entered if each.value is not None]

    first, *others = cc.run(program, 3)
    assert [shape for _, shape, _ in first] == [(3, 2), (2,)] and all(each == first for each in others)
