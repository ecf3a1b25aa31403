"""Dry worlds: the same layouts, errors, shapes, calls and bytes as a real run, at any size, without values."""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim, random
from autograd.arrays.shape_only import DRY, Shaped
from autograd.engine.state import state
from collectives import I, P, R, Rooted, Shard, V
from collectives.testing.proof import Case, Setting, mutated, operand, prepare
from collectives.testing.registry_cases import cases
from parallel import DataParallel

from ...grouped import each, in_groups
from ...proofs.operations import CASES, WITHOUT_DERIVATIVE
from ...proofs.operations import Case as Operation
from .dry_program import Tally, really_run, train

MACHINE = cc.Topology(8, inside=cc.Link(1e-6, 100e9), between=cc.Link(5e-6, 10e9), reduced_bytes_per_s=100e9)


def calls_and_bytes(run: Any) -> Tally:
    """The dry run's traffic as the counters of `dry_program` have it."""
    tally: Tally = Counter()
    for t in run.traffic():
        tally[t.axis, t.operation, "calls"] += t.calls
        tally[t.axis, t.operation, "bytes"] += t.bytes
    return tally


# -- the claim -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)  # the limit that the claim names; it takes a second or two
def test_data_and_tensor_parallel_at_16384_ranks() -> None:
    sizes: dict[str, Any] = {"pairs": 24, "width": 12288, "inner": 49152, "classes": 1024}
    with cc.dry(ranks=16384, rank=9, topology=MACHINE) as run:
        model = train(2048, 8, **sizes)
    shapes = [p.shape for p in model.parameters()]
    assert shapes[:2] == [(12288, 6144), (6144, 12288)] and len(shapes) == 50
    numbers = sum(int(p.size) for p in model.parameters())
    found = {(t.axis, t.direction, t.by): (t.ranks, t.calls, t.bytes) for t in run.traffic()}
    steps, activations = 2, 4 * 12288 * 4
    assert found == {
        # digests of replicas: at the first call of the model, at each backward and step, and at the end of the block
        ("dp", "forward", "exchange"): (2048, 2 + 2 * steps, found["dp", "forward", "exchange"][2]),
        ("tp", "forward", "exchange"): (8, 2 + steps, found["tp", "forward", "exchange"][2]),
        ("tp", "forward", "all_reduce"): (8, steps * 24, steps * 24 * activations),
        ("tp", "backward", "cast I->R"): (8, steps * 24, steps * 24 * activations),
        ("dp", "forward", "all_reduce"): (2048, steps, steps * 4),
        ("dp", "forward", "broadcast"): (2048, 1, 50 * 8),  # the order of the gradients, once
        ("dp", "backward", "gradient bucket"): (2048, steps * 50, steps * (numbers * 4 + 50 * 4)),  # and used-flags
    }
    assert "hierarchical" not in {p.algorithm for p in run.predictions()}, "dp has one rank a host, tp is inside one"
    assert 0 < run.time_s() <= min(run.time_s("ring"), run.time_s("halving_doubling"))


def test_its_bytes_are_those_of_a_real_run() -> None:
    """Every rank of 8: calls and bytes of their operands, by axis and call."""
    real = really_run(lambda: train(4, 2), 8)
    for rank, counted in enumerate(real):
        with cc.dry(ranks=8, rank=rank) as run:
            train(4, 2)
        assert calls_and_bytes(run) == counted
    assert {axis for axis, _, _ in real[0]} == {"dp", "tp"}


def test_its_bytes_are_those_that_a_ring_sends() -> None:
    """The transport's own counters under a ring, on 8 ranks: bytes of every rank along tp, of all together along dp.

    Along tp every array falls into equal chunks, so every rank sends the same; along dp one number and some biases do
    not, and the ranks' shares differ by a chunk.
    """
    def sent() -> dict[str, tuple[int, int]]:
        with cc.Mesh(dp=4, tp=2, algorithm="ring") as mesh:
            model = train(4, 2, mesh=mesh)
            channels = {"dp": [model._entries[0]._plan.call.runs.group.traffic], "tp": []}  # of the gradients
            for axis in mesh.names:
                channels[axis].append(mesh.axis(axis).group.traffic)
            return {a: (sum(t.messages for t in of), sum(t.bytes for t in of)) for a, of in channels.items()}

    real = cc.run(sent, 8)
    predicted: Counter[str] = Counter()
    for rank in range(8):
        with cc.dry(ranks=8, rank=rank) as run:
            train(4, 2)
        ring = [p for p in run.predictions() if p.algorithm == "ring" and p.traffic.operation == "all_reduce"]
        along_tp = [p for p in ring if p.traffic.axis == "tp"]
        assert real[rank]["tp"] == (sum(p.messages for p in along_tp), sum(p.sent_bytes for p in along_tp))
        predicted["dp"] += sum(p.sent_bytes for p in ring if p.traffic.axis == "dp")
    assert predicted["dp"] == sum(of_rank["dp"][1] for of_rank in real) > 0


# -- every operation and every collective ------------------------------------------------------------------------------

def on_a_rank(c: Operation, args: list[Any]) -> list[Any]:
    """Shape and dtype of the result and of every gradient."""
    leaves = [ag.tensor(a, requires_grad=True) for a in args]
    with ag.Tape() as tape, numpy.errstate(all="ignore"):
        y = c.f(*leaves)
        tape.backward(y, numpy.full(y.shape, 0.5, y.dtype))
    found = [y, *(x.grad for x in leaves)]
    return [None if x is None else (x.array.shape, x.array.dtype, x.layout, type(x.array) is Shaped) for x in found]


@each(
    [c for c in CASES if (c.operation, c.label) != ("where", "number")],  # below: its condition comes from the operand
    lambda c: f"operations in {c.operation[0]}",
    lambda c: f"{c.operation} {c.label}",
)
def test_every_operation_runs_on_shapes(c: Operation) -> None:
    args = c.draw()
    with cc.Mesh(a=1):
        real = on_a_rank(c, args)
    with cc.dry(1, mesh={"a": 1}):
        dry = on_a_rank(c, args)
    assert dry == [None if x is None else (*x[:3], True) for x in real]


@in_groups()
@pytest.mark.parametrize("name", sorted(WITHOUT_DERIVATIVE))
def test_operations_without_a_derivative_run_on_shapes(name: str) -> None:
    primitive = ag.registry[name]
    operation = getattr(np, name, primitive)
    if name == "argpartition":
        operation = functools.partial(operation, kth=1)
    if name == "astype_discrete":
        operation = lambda x: x.astype(int)
    dtype = int if name in _BITS else float
    args = [numpy.ones((2, 3), dtype), numpy.ones(3, dtype)][: len(primitive.words)]
    real = operation(*map(ag.tensor, args))
    with cc.dry(4, mesh={"a": 4}):
        y = operation(*map(ag.tensor, args))
        assert type(y.array) is Shaped and not y.absent and y.layout == {"a": V}
    assert (y.array.shape, y.array.dtype) == (numpy.shape(real.array), real.array.dtype)


_BITS = {"invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"}


def test_conditions_and_indices_may_be_shapes_themselves() -> None:
    with cc.dry(2, mesh={"a": 2}):
        x = ag.tensor(numpy.ones((4, 3)), requires_grad=True)
        at = ag.tensor(numpy.array([1, 0, 1]))
        with ag.Tape() as tape:
            y = (np.where(x > 0, x, 0.0)[at] * 2.0).sum()
            y = y + nn.cross_entropy(x, ag.tensor(numpy.zeros(4, int)), reduction="sum")
            loss = cc.all_reduce(y, "a", to=I)
        tape.backward(loss)
        assert x.grad.shape == (4, 3)
        with pytest.raises(ag.AbsentError, match="dry run"):
            x[x > 0]  # how many there are is in the values


SETTINGS = [
    (Setting({"a": 1}, ["a"]), 2), (Setting({"a": 3}, ["a"]), 1), (Setting({"a": 2, "b": 2}, ["a", "b"]), 2),
    (Setting({"a": 2, "b": 2}, ["a"], {"b": R}), 2), (Setting({"a": 2, "b": 2}, ["b"], {"a": Rooted(1)}), 2),
    (Setting({"a": 2, "b": 2}, ["b"], {"a": P}), 2), (Setting({"a": 2, "b": 3}, ["b"], {"a": V}), 2),
]  # fmt: skip


def known_here(case: Case) -> str:
    """Why a dry rank cannot know what a case needs; empty where it can."""
    if "send" in case.covers or "recv" in case.covers:
        return "recv needs like= (below)"
    if "None elsewhere" in case.name:
        return "off the root there is no header (below)"
    if "reproducible_sum" in case.covers:
        return "its ranks send each other parts by an algorithm of its own; dry it counts as an all-reduce"
    if case.takes is V and len(set(case.shapes)) > 1:
        return "extents that differ between ranks, and no Shard that says so (below)"
    if " sent=" in case.name:
        return "what the other ranks send here, of their own choice; dry, all send alike (below)"
    return ""


def seen_on_a_rank(case: Case, setting: Setting, plan: Any) -> Any:
    """What a rank sees of a case's value and gradient, its communication included."""
    with cc.Mesh(**setting.sizes) as mesh:
        x = operand(case, setting, plan, mesh)
        with ag.Tape() as tape:
            y = case.call(x, setting.axes)
        ct = plan.ct[mesh.ranks.rank]
        array = Shaped(y.shape, y.dtype, "elsewhere") if ct is None else numpy.array(ct)
        tape.backward([y] if y.tape is not None else (), [ag.Tensor(array, y.layout.dual)] if y.tape else None)
        return [None if z is None else
                (z.array.shape, z.array.dtype, z.layout, [(s.extent, s.offset) for s in z.layout.labels
                                                           if isinstance(s, Shard)], z.absent)
                for z in (y, x.grad)]  # fmt: skip


def test_dry_all_ranks_send_alike_along_one_dimension() -> None:
    with cc.dry(4, 1, mesh={"ep": 4}) as run:
        x = ag.tensor(numpy.ones((6, 2)), requires_grad=True)
        with ag.Tape() as tape:
            y = cc.all_to_all(x, "ep", 0, 0, counts=[0, 3, 2, 1])
            assert y.shape == (12, 2)  # three from each rank
            loss = cc.all_reduce(y.sum(), "ep", to=I)
        tape.backward(loss)
        assert x.grad is not None and x.grad.shape == (6, 2)
    assert "all_to_all" in str(run)


@pytest.mark.parametrize(("setting", "thin"), SETTINGS, ids=lambda x: str(x))
def test_every_collective_is_the_same_dry(setting: Setting, thin: int) -> None:
    """Shapes, dtypes, labels, who holds what, and calls and bytes, on every rank: of the value and of the gradient."""
    work = [(c, prepare(c, setting)) for c in cases(setting, thin) if isinstance(c, Case) and not known_here(c)]
    assert len(work) > 20
    real: dict[tuple[int, int], Any] = {}
    tallies: dict[tuple[int, int], Tally] = {}

    def program() -> None:
        world: Any = cc.world()
        for i, (case, plan) in enumerate(work):
            world.tally.clear()
            real[i, world.rank] = seen_on_a_rank(case, setting, plan)
            tallies[i, world.rank] = Counter(world.tally)

    really_run(program, setting.ranks)
    for (i, rank), expected in real.items():
        case, plan = work[i]
        with cc.dry(setting.ranks, rank) as run:
            found = seen_on_a_rank(case, setting, plan)
        assert found == expected, f"{case.name} on rank {rank}"
        assert calls_and_bytes(run) == tallies[i, rank], f"{case.name} on rank {rank}"


def test_a_wrong_adjoint_is_seen_dry_too() -> None:
    """The comparison above can fail: an all-reduce that forgets its adjoint has other traffic."""
    def program() -> None:
        with cc.Mesh(a=3):
            x = ag.tensor([1.0], requires_grad=True)
            with ag.Tape() as tape:
                y = cc.all_reduce(x, "a")
            tape.backward([y], [ag.tensor([1.0], layout={"a": P})])

    (real, *_) = really_run(program, 3)
    with cc.dry(3) as run:
        program()
    assert calls_and_bytes(run) == real
    with mutated("all_reduce", adjoint=lambda ct, call: ct), cc.dry(3) as run:
        program()
    assert calls_and_bytes(run) != real


# -- what comes from one other rank --------------------------------------------------------------------------------


def pipeline() -> None:
    """Three stages; the sizes that a stage receives are known beforehand, and said."""
    with cc.Mesh(pp=3) as mesh:
        stage = int(mesh.axis("pp").rank)
        w = ag.Parameter(numpy.ones((4, 4)), layout={"pp": V})
        with ag.Tape() as tape:
            x = ag.tensor(numpy.ones((2, 4))) if stage == 0 else cc.recv("pp", stage - 1, like=ag.tensor(_BATCH))
            y = x @ w
            if stage < 2:
                cc.send(y, "pp", stage + 1)
            loss = cc.declare_partial(y.sum() * float(stage == 2), "pp")
        tape.backward(loss)
        assert w.grad is not None and w.grad.shape == (4, 4)


_BATCH = numpy.zeros((2, 4))


def test_send_and_recv_with_like() -> None:
    for rank, real in enumerate(really_run(pipeline, 3)):
        with cc.dry(3, rank) as run:
            pipeline()
        assert calls_and_bytes(run) == real


@pytest.mark.parametrize("call", ["broadcast", "scatter"])
def test_what_the_root_alone_has_needs_like_elsewhere(call: str) -> None:
    def program(like: bool) -> Any:
        with cc.Mesh(a=3) as mesh:
            x = ag.tensor(numpy.ones((6, 2), "float32")) if int(mesh.axis("a").rank) == 1 else None
            given = {"like": numpy.zeros((6, 2), "float32")} if like else {}
            return getattr(cc, call)(x, "a", root=1, **given)

    for like in (True, False):
        real = really_run(lambda like=like: program(like), 3)
        for rank in range(3):
            with cc.dry(3, rank) as run:
                if rank != 1 and not like:
                    with pytest.raises(ag.AbsentError, match=rf"{call}: rank 1 would send .*\n?.*like=") as error:
                        program(like)
                    assert "test_dry.py" in str(error.value)
                    continue
                y = program(like)
            assert y.shape == ((6, 2) if call == "broadcast" else (2, 2)) and y.dtype == numpy.float32
            assert calls_and_bytes(run) == real[rank]


def test_recv_without_like_says_what_is_missing() -> None:
    with cc.dry(2, 1, mesh={"pp": 2}), pytest.raises(ag.AbsentError, match=r"recv\(\.\.\., like="):
        cc.recv("pp", 0)


def test_uneven_parts_by_shard() -> None:
    """13 rows on 3 ranks: a Shard knows every rank's extent, so that no rank must tell its own."""
    for rank in range(3):
        with cc.dry(3, rank, mesh={"a": 3}) as run:
            rows = 5 if rank == 0 else 4
            x = ag.tensor(numpy.ones((rows, 2)), layout={"a": Shard(0)}, global_shape=(13, 2))
            assert cc.all_gather(x, "a").shape == (13, 2)
        assert [t.operation for t in run.traffic()] == ["all_gather"]


# -- errors are those of a real run --------------------------------------------------------------------------------


def wrong_programs() -> Iterator[Callable[[], None]]:
    def weight() -> Any:
        return ag.Parameter(numpy.ones((2, 2)), name="w")

    def forgets_the_cast() -> None:
        with cc.Mesh(a=2), ag.Tape():
            ag.tensor(numpy.ones((3, 2))) @ weight()

    def objective_is_replicated() -> None:
        with cc.Mesh(a=2):
            w = weight()
            with ag.Tape() as tape:
                loss = cc.all_reduce((ag.tensor(numpy.ones((3, 2))) @ cc.cast(w, "a", to=R)).sum(), "a")
            tape.backward(loss)

    def objective_is_varying() -> None:
        with cc.Mesh(a=2):
            w = weight()
            with ag.Tape() as tape:
                loss = (ag.tensor(numpy.ones((3, 2))) @ cc.cast(w, "a", to=R)).sum()
            tape.backward(loss)

    def steps_with_an_open_sum() -> None:
        with cc.Mesh(a=2):
            w = ag.Parameter(numpy.ones((2, 2)), layout={"a": R}, name="w")
            optimizer = optim.SGD([w], lr=0.1)
            with ag.Tape() as tape:
                loss = cc.all_reduce((ag.tensor(numpy.ones((3, 2))) @ w).sum(), "a", to=I)
            tape.backward(loss)
            optimizer.step()

    def sums_twice() -> None:
        with cc.Mesh(a=2):
            cc.all_reduce(cc.all_reduce(ag.tensor([1.0]), "a"), "a")

    def shapes_do_not_fit() -> None:
        with cc.Mesh(a=2):
            ag.tensor(numpy.ones((3, 2))) @ ag.tensor(numpy.ones((3, 2)))

    def root_is_no_rank() -> None:
        with cc.Mesh(a=2):
            cc.reduce(ag.tensor([1.0]), "a", root=2)

    yield from (forgets_the_cast, objective_is_replicated, objective_is_varying, steps_with_an_open_sum, sums_twice,
                shapes_do_not_fit, root_is_no_rank)  # fmt: skip


@pytest.mark.parametrize("program", list(wrong_programs()), ids=lambda p: p.__name__)
def test_a_wrong_program_is_refused_with_the_same_words(program: Callable[[], None]) -> None:
    with pytest.raises(ag.RingtapeError) as real:
        cc.run(program, 2)
    with pytest.raises(ag.RingtapeError) as found, cc.dry(2):
        program()
    assert type(found.value) is type(real.value)
    words = [re.sub("matmul: Input operand .*|matmul of shapes .*", "(numpy's own words)", str(e.value))
             for e in (real, found)]  # fmt: skip
    assert words[0] == words[1]
    assert state.mesh is None and state.grid is None and not state.dry and cc.world().size == 1


def test_reading_a_value_says_why_not() -> None:
    with cc.dry(2, mesh={"a": 2}):
        x = ag.tensor(numpy.ones(3), requires_grad=True)
        with ag.Tape() as tape:
            loss = cc.all_reduce((x * 2).sum(), "a", to=I)
        tape.backward(loss)
        assert x.grad is not None and not x.absent and not loss.absent and x.data.shape == (3,)
        for read in (lambda: float(loss), loss.item, x.numpy, x.grad.numpy, lambda: bool(loss > 0),
                     lambda: int((x.data + 1.0)[0]), lambda: numpy.asarray(x), nn.Linear(2, 2).state_dict):
            with pytest.raises(ag.AbsentError, match="this is a dry run"):
                read()
        assert "dry" in repr(x) and "absent" not in repr(x)


def test_a_rooted_value_is_absent_as_in_a_real_run() -> None:
    for rank in range(3):
        with cc.dry(3, rank, mesh={"a": 3}):
            y = cc.reduce(ag.tensor([1.0]), "a", root=1)
            assert y.absent == (rank != 1) and (y.data is None) == (rank != 1)
            with pytest.raises(ag.AbsentError, match="dry run" if rank == 1 else "rooted on rank 1"):
                y.numpy()


# -- leaves, random numbers, optimizers ----------------------------------------------------------------------------


def test_nothing_takes_memory() -> None:
    huge = (10**6, 10**6)
    with cc.dry(4, mesh={"a": 4}):
        for drawn in (random.normal(random.Key(0), huge), random.uniform(random.Key(0), huge, dtype="float32"),
                      random.bernoulli(random.Key(0), huge, 0.5)):
            assert type(drawn.array) is Shaped and drawn.shape == huge and not drawn.absent
        part = random.normal(random.Key(0), huge, part=(slice(0, 10), slice(5, 7)))
        assert part.shape == (10, 2)
        w = ag.Parameter(random.normal(random.Key(0), huge))
        frozen = ag.Parameter(Shaped(huge, "float32"))
        assert not frozen.absent
        with ag.Tape() as tape:
            inside = cc.cast(w, "a", to=R)
            loss = cc.all_reduce((inside @ inside).sum() + 0 * nn.cross_entropy(inside, ag.tensor(
                numpy.zeros(10**6, int)), reduction="sum"), "a", to=I)  # fmt: skip
        tape.backward(loss)
        optim.Adam([w, frozen]).step()
        assert type(w.array) is Shaped and w.grad.array.nbytes == 8 * 10**12


def test_what_nothing_uses_is_communicated_all_the_same() -> None:
    """Backward runs every communication, on zeros where no cotangent came: dry they take no memory either."""
    def program(shape: tuple[int, ...]) -> None:
        with cc.Mesh(a=3):
            make: Any = Shaped if state.dry else numpy.ones
            x, w = ag.tensor(make(shape), requires_grad=True), ag.Parameter(numpy.ones(3))
            with ag.Tape() as tape:
                cc.all_reduce(x, "a")
                cc.all_gather(cc.shard(cc.cast(w, "a", to=R), "a"), "a")
                cc.reduce(x, "a", root=1)
                loss = cc.all_reduce(cc.cast(w, "a", to=R).sum() / 3 * ag.tensor(1.0), "a", to=I)
            tape.backward(loss)

    for rank, real in enumerate(really_run(lambda: program((4, 2)), 3)):
        with cc.dry(3, rank) as run:
            program((4, 2))
        assert calls_and_bytes(run) == real
    with cc.dry(3) as run:
        program((10**6, 10**6))
    assert max(t.bytes for t in run.traffic() if t.direction == "backward") == 8 * 10**12


def test_integers_are_real() -> None:
    with cc.dry(4):
        order = random.permutation(random.Key(0), 10)
        assert sorted(order.tolist()) == list(range(10))
        assert numpy.arange(10)[order].shape == (10,)
        assert int(random.integers(random.Key(0), (3,), 0, 5)[0]) in range(5)
        dry = order
    assert (random.permutation(random.Key(0), 10) == dry).all()


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, lr=0.1), lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
                                  lambda p: optim.SGD(p, lr=0.1, weight_decay=0.1), optim.Adam])
def test_optimizers_step(make: Any) -> None:
    with cc.dry(4, mesh={"a": 4}):
        model = DataParallel(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), "a")
        optimizer = make(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce(model(ag.tensor(numpy.ones((5, 3), "float32"))).sum(), "a", to=I)
            tape.backward(loss)
            optimizer.step()
        for p in model.parameters():
            assert type(p.array) is Shaped and not p.absent and p.dtype == numpy.float32
            p.data = p.data - 0.1 * p.grad.data
            assert type(p.array) is Shaped
        model.load_state_dict({k: numpy.zeros(p.shape) for k, p in model.named_parameters()})
        assert all(type(p.array) is Shaped and p.dtype == numpy.float32 for p in model.parameters())


def test_leaves_from_outside_are_refused_and_kept() -> None:
    w = ag.Parameter([1.0, 2.0], name="w")
    with cc.dry(2, mesh={"a": 2}), pytest.raises(ag.AbsentError, match="w of shape .* outside the dry run"):
        cc.cast(w, "a", to=R)
    assert w.layout is None and w.numpy().tolist() == [1.0, 2.0]
    real = numpy.ones(3)
    shaped = Shaped((3,))
    for write in (lambda: numpy.add(real, shaped, out=real), lambda: numpy.add.at(real, [0], shaped),
                  lambda: real.__iadd__(shaped)):  # fmt: skip
        with pytest.raises(ag.AbsentError, match="real array"):
            write()
    assert (real == 1).all()


def test_second_order_and_forward_mode() -> None:
    with cc.dry(3, mesh={"a": 3}):
        def f(x: Any) -> Any:
            return cc.all_reduce((np.tanh(x) ** 2).sum(), "a", to=I)

        x = ag.tensor(numpy.ones((2, 2)))
        hv = ag.grad(lambda x: cc.all_reduce((ag.grad(f)(x) * 2.0).sum(), "a", to=I))(x)
        assert hv.shape == (2, 2) and type(hv.array) is Shaped
        y, dy = ag.jvp(f, (x,), (x,))
        assert y.shape == dy.shape == () and type(dy.array) is Shaped


# -- the world -----------------------------------------------------------------------------------------------------


def test_calls_of_the_wider_protocol() -> None:
    """Shapes go through, and what ranks tell each other is what this one says."""
    with cc.dry(4, 1) as run:
        group: Any = cc.world()
        x = Shaped((6,), "float32", DRY)
        found = group.all_reduce(x, "max"), group.all_reduce(x, "prod"), group.scan(x, True, False)
        assert all(y.shape == (6,) and not y.absent for y in found)
        assert group.get(x, [(0, 2, 3), (1, 0, 2)]).shape == (5,)
        assert group.accumulate(x, [(0, 2, 6)], 9).shape == (9,)
        real = numpy.array([3, 2])
        assert group.all_reduce(real, "max").tolist() == [3, 2] and group.all_reduce(real, "prod").tolist() == [81, 16]
        assert group.scan(real, False, False).tolist() == [6, 4] and group.scan(real, True, True).tolist() == [6, 4]
        with pytest.raises(cc.MeshError, match="source 4"):
            group.get(x, [(4, 0, 1)])
    sent = {p.traffic.operation: p.sent_bytes for p in run.predictions()}
    assert sent["get"] == 12 and sent["accumulate"] == 24, "what is another rank's"
    assert x.view("uint8").shape == (24,) and x.view("int32").dtype == numpy.int32 and x.ravel().shape == (6,)
    with pytest.raises(ValueError, match="does not fit"):
        Shaped((3,), "float32").view("float64")


def test_any_rank_of_any_world() -> None:
    for rank in (0, 1, 8, 16383):
        with cc.dry(ranks=16384, rank=rank, mesh={"dp": 2048, "tp": 8}) as run:
            mesh = cc.current_mesh()
            assert cc.world().size == 16384 and cc.world().rank == rank == run.rank
            assert mesh.place == divmod(rank, 8)
            assert mesh.axis("tp").group.ranks == tuple(range(rank // 8 * 8, rank // 8 * 8 + 8))
            assert mesh.axis("dp").group.ranks[1] == rank % 8 + 8
            assert mesh.axis(("dp", "tp")).size == 16384
            own = mesh.axis("dp").group.duplicate("bucket")
            assert own.name.endswith("/bucket") and own.ranks == mesh.axis("dp").group.ranks
        assert cc.world().size == 1


def test_a_dry_world_leaves_nothing_behind() -> None:
    with cc.Mesh(a=1) as mesh:
        x = ag.tensor([1.0])
        with cc.dry(4, mesh={"b": 4}):
            assert cc.current_mesh().names == ("b",)
        assert cc.current_mesh() is mesh and x.numpy().tolist() == [1.0]
        with pytest.raises(ZeroDivisionError), cc.dry(4, mesh={"b": 4}) as run:
            cc.all_reduce(ag.tensor([1.0]), "b")
            raise ZeroDivisionError
        assert cc.current_mesh() is mesh and not state.dry and len(run.traffic()) == 1
        with pytest.raises(cc.MeshError), cc.dry(4, mesh={"b": 3}):
            pass
        assert cc.current_mesh() is mesh and not state.dry
        assert ag.tensor([2.0]).numpy().tolist() == [2.0]
        with pytest.raises(cc.MeshError, match="entered before"), run:
            pass


def test_worlds_of_threads_are_untouched() -> None:
    """A dry world belongs to its thread: ranks that are threads of the same process stay real."""
    with cc.dry(4):
        assert cc.run(lambda: float(ag.tensor(3.0)) + cc.world().size, 2) == [5.0, 5.0]
        assert type(ag.tensor(3.0).array) is Shaped


def test_what_cannot_be_a_dry_world() -> None:
    for wrong in ({"ranks": 0}, {"ranks": 4, "rank": 4}, {"ranks": 4, "rank": -1}, {"ranks": 2.0}, {"ranks": True},
                  {"ranks": 4, "topology": 8}):
        with pytest.raises(cc.MeshError, match="dry: "):
            cc.dry(**wrong)
    with ag.Tape(), pytest.raises(ag.TapeError), cc.dry(2):
        pass


def test_in_order_speaks_once(capsys: pytest.CaptureFixture[str]) -> None:
    with cc.dry(16384):
        cc.in_order("here")
    assert capsys.readouterr().out == "[rank 0] here\n"


# -- machines and costs --------------------------------------------------------------------------------------------


def test_topology_is_validated() -> None:
    link = cc.Link(1e-6, 1e9)
    for wrong in ((-1e-6, 1e9), (1e-6, 0), (math.nan, 1e9), (1e-6, math.inf), ("1", 1e9), (True, 1e9)):
        with pytest.raises(cc.MeshError, match="needed"):
            cc.Link(*wrong)
    for ranks_per_host in (0, -1, 2.0, True):
        with pytest.raises(cc.MeshError, match="ranks_per_host"):
            cc.Topology(ranks_per_host, link, link)
    with pytest.raises(cc.MeshError, match="between"):
        cc.Topology(2, link, 3)
    with pytest.raises(cc.MeshError, match="reduced_bytes_per_s"):
        cc.Topology(2, link, link, 0)


def test_the_link_of_an_axis_and_hierarchical() -> None:
    """dp=4 outside of tp=4 on hosts of 8: tp inside, dp two ranks a host on two hosts."""
    machine = cc.Topology(8, cc.Link(1.0, 1.0), cc.Link(100.0, 0.01))
    with cc.dry(16, 3, mesh={"dp": 4, "tp": 4}, topology=machine) as run:
        for axis in ("tp", "dp"):
            cc.all_reduce(ag.tensor(numpy.ones(4, "float32")), axis)
    time_s = {(p.traffic.axis, p.algorithm): p.time_s for p in run.predictions()}
    assert time_s["tp", "ring"] == 6 * 1 + 2 * 16 * 3 / 4
    assert time_s["dp", "ring"] == 6 * 100 + 2 * 16 * 3 / 4 * 100
    # inside, in shared memory: 2 meetings and all 16 bytes in and out, both ways; between the 2 hosts: 2 messages and 8
    # bytes in all
    assert time_s["dp", "hierarchical"] == 2 * (2 * 1 + 2 * 16) + 2 * 100 + 8 * 100
    assert ("tp", "hierarchical") not in time_s
    assert run.time_s() < run.time_s("ring")
    with pytest.raises(cc.MeshError, match="'rign' was given; the calls have ring, "):
        run.time_s("rign")
    text = str(run)
    assert "rank 3 of 16 on hosts of 8" in text and "hierarchical" in text and "fastest of each" in text
    found = json.loads(run.to_json())
    assert found["traffic"][0] == {"axis": "tp", "direction": "forward", "operation": "all_reduce", "by": "all_reduce",
                                   "ranks": 4, "calls": 1, "bytes": 16}  # fmt: skip
    with cc.dry(2) as bare, pytest.raises(cc.MeshError, match="without a topology"):
        bare.time_s()
    assert "no communication" in str(bare)


def test_what_travels_follows_from_the_whole() -> None:
    """Bytes sent by the busiest of 4 ranks, for a whole of 96 bytes: of the call that every collective makes."""
    whole = numpy.zeros((12, 1))
    part = {"layout": {"a": Shard(0)}, "global_shape": (12, 1)}
    made: dict[str, tuple[Callable[[], Any], float]] = {
        "all_gather": (lambda: cc.all_gather(ag.tensor(whole[:3], **part), "a"), 72),
        "reduce_scatter": (lambda: cc.reduce_scatter(ag.tensor(whole), "a"), 72),
        "all_to_all": (lambda: cc.all_to_all(ag.tensor(whole.reshape(12, 1)[:, :1]), "a"), 72),
        "gather": (lambda: cc.gather(ag.tensor(whole[:3], **part), "a"), 72),
        "scatter": (lambda: cc.scatter(ag.tensor(whole), "a", root=1, like=whole), 72),
        "broadcast": (lambda: cc.broadcast(ag.tensor(whole), "a", root=1, like=whole), 192),
        "reduce": (lambda: cc.reduce(ag.tensor(whole), "a"), 96),
        "send": (lambda: cc.permute(ag.tensor(whole), "a", [(0, 1), (1, 0)]), 96),
    }
    for call, (make, sent) in made.items():
        with cc.dry(4, 0, mesh={"a": 4}) as run:
            make()
        found = [p.sent_bytes for p in run.predictions() if p.traffic.operation == call]
        assert found[0] == sent, call
