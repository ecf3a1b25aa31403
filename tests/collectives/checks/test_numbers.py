"""Constants that ranks compare: plain numbers that meet R, I or P, and plain arrays, which count as Varying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, P, R, Shard, V
from collectives.checks import modes

from ..launch import launch

MASKS = [[True, True, False], [True, False, False], [True, True, True], [True, True, False]]


@pytest.fixture(params=["first", "ranks"])
def mode(request: pytest.FixtureRequest) -> Any:
    before = modes.check_mode()
    cc.check(request.param)
    yield request.param
    cc.check(before)


def count(rank: int) -> Any:
    """A local count: the sum of a NumPy mask."""
    return numpy.array(MASKS[int(rank)]).sum()


def on_ranks(body: Callable[..., Any], ranks: int = 3) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(dp=ranks) as mesh:
            return body(mesh.axis("dp").rank)

    return cc.run(program, ranks=ranks)


def refused(body: Callable[..., Any], ranks: int = 3) -> str:
    def with_a_call(rank: Any) -> None:
        body(rank)
        cc.barrier("dp")
        cc.all_reduce(ag.tensor(1.0), "dp")

    with pytest.raises(cc.ReplicaMismatch) as error:
        on_ranks(with_a_call, ranks)
    return str(error.value)


def value(label: Any, shape: tuple[int, ...] = (3,)) -> Any:
    return ag.tensor(numpy.ones(shape), {"dp": label})


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "I / numpy.int64": lambda rank: value(I) / count(rank),
    "R * int": lambda rank: value(R) * int(count(rank)),
    "P / 0-d array": lambda rank: value(P) / numpy.array(count(rank), float),
    "int * I": lambda rank: int(rank) * value(I),
    "I + int, of which one is 0": lambda rank: value(I) + int(rank),
    "sum of I and int": lambda rank: int(rank) + value(I),
    "float * rank": lambda rank: value(R) * (0.1 * (rank + 1)),
    "an index": lambda rank: value(R)[: int(count(rank))],
    "where": lambda rank: np.where(value(R) > 0, value(R), float(rank)),
    "maximum": lambda rank: np.maximum(value(I), float(rank)),
    "clip": lambda rank: np.clip(value(I), 0.0, int(rank) + 1),
    "stack": lambda rank: np.stack([value(I)[0], float(rank)]),
    "a constant Tensor of one element": lambda rank: value(I) * ag.constant(float(rank)),
    "a constant array": lambda rank: value(I) * np.full(3, float(rank)),
    "a constant computed from numbers": lambda rank: value(R) + np.arange(3) * int(rank),
    "the number of rows": lambda rank: value(I) / np.ones(int(count(rank))).sum(),
    "a local count beside a Shard": lambda rank: value(Shard(0)) / int(count(rank)),
    "a seed": lambda rank: value(R) * ag.random.normal(ag.random.Key(int(rank)), 3),
    "the bounds of a draw": lambda rank: value(R) * ag.random.uniform(ag.random.Key(0), 3, high=1.0 + int(rank)),
    "the bounds of a draw for a Tensor": lambda rank: ag.random.uniform(
        ag.random.Key(0), value(R), high=1.0 + int(rank)
    ),
    "dropout": lambda rank: ag.nn.dropout(value(R), 0.1 * (int(rank) + 1), key=ag.random.Key(0)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_plain_number_that_differs_between_ranks_is_told(name: str, mode: str) -> None:
    text = refused(NUMBERS[name])
    assert "test_numbers.py:" in text and ("rank 1" in text or "ranks 1" in text), text


def test_the_message_has_the_operation_the_line_the_numbers_and_the_fix(mode: str) -> None:
    text = refused(lambda rank: value(I) / count(rank))
    assert "the plain numbers of ranks 1, 2 differ from those of rank 0" in text, text
    assert "divide at test_numbers.py:" in text
    for rank, number in enumerate((2, 1, 3)):
        assert f"rank {rank}: divide with the number {number}" in text
    assert "cc.all_reduce(n, 'dp', to=I).item()" in text and "ag.tensor(n)" in text


def test_the_offered_fix_has_the_serial_gradient(mode: str) -> None:
    """A masked mean: divided by the local count it is refused, by the count of all ranks it is right."""
    rows = numpy.arange(9.0).reshape(3, 3) + 1
    w0 = numpy.array([0.5, -1.0, 2.0])
    masks = numpy.array(MASKS[:3])

    def program(rank: Any, is_global: bool) -> Any:
        w, mask = ag.Parameter(w0), masks[int(rank)]
        n = mask.sum()
        n = cc.all_reduce(n, "dp", to=I).item() if is_global else n
        x = ag.tensor(rows[int(rank)])
        with ag.Tape() as tape:
            y = (x * cc.cast(w, "dp", to=R)) ** 2
            loss = cc.all_reduce((y * mask).sum(), "dp", to=I) / n
        tape.backward(loss)
        assert w.grad is not None
        return w.grad.numpy()

    with pytest.raises(cc.ReplicaMismatch):
        on_ranks(lambda rank: program(rank, False))
    serial = (2 * rows**2 * w0 * masks).sum(axis=0) / masks.sum()
    for gradient in on_ranks(lambda rank: program(rank, True)):
        assert numpy.allclose(gradient, serial, rtol=1e-12)


LEGAL: dict[str, Callable[[Any], Any]] = {
    "V with a local count": lambda rank: value(V) / count(rank),
    "Shard with a tensor of each rank": lambda rank: value(Shard(0)) * ag.tensor(float(int(rank))),
    "a rank number with R": lambda rank: value(R) * rank,
    "a constant of each rank with V": lambda rank: value(V) * np.full(3, float(rank)) + np.arange(3) * int(rank),
    "arrays of local extents": lambda rank: (np.zeros(int(rank) + 1) + 1).sum() * value(V),
    "the same number": lambda rank: (value(I) * 2, value(R) / 3.0),
    "logging on one rank": lambda rank: print(2 * value(I)) if rank == 0 else None,
    "a helper used more often on one rank": lambda rank: [scaled(value(I), k) for k in (100, 2)[rank != 0 :]],
    "an own seed along the axis": lambda rank: ag.random.normal(ag.random.Key(0).along("dp"), 3),
}


def scaled(x: Any, k: int) -> Any:
    return x * k


@pytest.mark.parametrize("name", LEGAL)
def test_legal_programs_are_not_disturbed(name: str, mode: str) -> None:
    def body(rank: Any) -> Any:
        for _ in range(3):
            LEGAL[name](rank)
            y = cc.all_reduce(ag.tensor(1.0), "dp")
        return float(y)

    assert on_ranks(body) == [3.0] * 3


def test_numbers_in_backward_rules_are_not_compared(mode: str) -> None:
    """Rank 0 has checked the rules of an operation before; the others check them now."""

    def body(rank: Any) -> Any:
        def gradient(w: Any, k: int) -> Any:
            with ag.Tape() as tape:
                y = (np.mean(w) ** 3) * (w**2).sum()
            tape.backward(y)

        for n in (5, 7) if rank == 0 else (7,):
            gradient(ag.Parameter(numpy.ones(n)), n)
        return float(cc.all_reduce(ag.tensor(1.0), "dp"))

    assert on_ranks(body) == [3.0] * 3


def test_on_two_axes_only_the_ranks_of_the_axis_must_agree() -> None:
    def program(along: str) -> float:
        with cc.Mesh(dp=2, tp=2) as mesh:
            x = ag.tensor(numpy.ones(3), {"dp": V, "tp": R})
            _ = x * int(mesh.axis(along).rank)
            return float(cc.all_reduce(cc.all_reduce(ag.tensor(1.0), "tp"), "dp"))

    assert cc.run(program, 4, "dp") == [4.0] * 4
    with pytest.raises(cc.ReplicaMismatch, match="'tp@"):
        cc.run(program, 4, "tp")


def test_learning_rates_that_differ_are_told(mode: str) -> None:
    def body(rank: Any) -> None:
        w = ag.Parameter(numpy.ones(2))
        w.grad = ag.tensor(numpy.ones(2), {"dp": I})
        ag.optim.SGD([w], lr=0.1 * (int(rank) + 1)).step()

    assert "SGD(lr=" in refused(body)


def test_with_checks_off_nothing_is_compared() -> None:
    before = modes.check_mode()
    cc.check("off")
    try:
        assert on_ranks(lambda rank: (value(I) * int(rank), float(cc.all_reduce(ag.tensor(1.0), "dp")))[1]) == [3.0] * 3
    finally:
        cc.check(before)


@pytest.mark.parametrize("mode", ["first", "ranks"])
def test_over_mpi(mode: str) -> None:
    outcome = launch("plain_numbers.py", 3, limit_s=60, RINGTAPE_CHECK=mode)
    assert outcome.out.count("told: ") == 3, outcome
    for rank in range(3):
        assert f"rank {rank}: divide with the number {rank + 1}" in outcome.out


# -- plain arrays ----------------------------------------------------------------------------------------------------
REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "multiply": lambda w, y: w * y,
    "reflected": lambda w, y: y * w,
    "where, a list as condition": lambda w, y: np.where([True, False], w, 0.0),
    "where, the other value": lambda w, y: np.where(w > 0, w, y),
    "stack": lambda w, y: np.stack([w, y]),
    "concatenate": lambda w, y: np.concatenate([w, y]),
    "matmul": lambda w, y: w @ y,
    "einsum": lambda w, y: np.einsum("i,i->i", w, y),
    "maximum": lambda w, y: np.maximum(w, y),
    "clip": lambda w, y: np.clip(w, y, 2.0),
    "a list": lambda w, y: w + [1, 2],
    "append": lambda w, y: np.append(w, y),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plain_array_that_leads_to_a_refusal_is_named_first(name: str) -> None:
    with cc.Mesh(dp=1):
        w, y = ag.Parameter([1.0, 2.0]), numpy.ones(2)
        with pytest.raises(ag.LayoutError) as error:
            REFUSED[name](w, y)
    second = str(error.value).splitlines()[1]
    told = "is a plain array, which counts as Varying. The same on all ranks? fix: ag.constant("
    assert told in second, str(error.value)


def test_a_plain_array_beside_addends_or_in_a_collective() -> None:
    with cc.Mesh(dp=1):
        y, p = numpy.ones(2), ag.tensor(numpy.ones(2), {"dp": P})
        for wrong, how in (
            (lambda: p + y, "cast(ag.constant(y), 'dp', to=P)"),
            (lambda: p * y, "ag.constant(y)"),
            (lambda: cc.cast(y, "dp", to=R), "ag.tensor(y, layout={'dp': R})"),
            (lambda: cc.shard(y, "dp"), "ag.tensor(y, layout={'dp': R})"),
        ):
            with pytest.raises(ag.LayoutError) as error:
                wrong()
            assert str(error.value).splitlines()[1].endswith(f"The same on all ranks? fix: {how}"), str(error.value)
        assert (p + cc.cast(ag.constant(y), "dp", to=P)).layout == {"dp": P}
        assert cc.cast(ag.constant(y), "dp", to=R).layout == {"dp": R}
        assert cc.shard(ag.tensor(y, layout={"dp": R}), "dp").layout == {"dp": Shard(0)}


def test_the_constant_that_the_message_offers_has_the_serial_gradient(mode: str) -> None:
    scale, w0 = numpy.array([1.0, 3.0]), numpy.array([0.5, -1.0])

    def program(rank: Any, fixed: bool) -> Any:
        w = ag.Parameter(w0)
        y = ag.constant(scale) if fixed else scale
        with ag.Tape() as tape:
            x = ag.tensor(numpy.ones(2) * (int(rank) + 1))
            loss = cc.all_reduce((x * cc.cast(w * y, "dp", to=R) ** 2).sum(), "dp", to=I)
        tape.backward(loss)
        assert w.grad is not None
        return w.grad.numpy()

    with pytest.raises(ag.LayoutError, match=r"ag.constant\(scale\)"):
        on_ranks(lambda rank: program(rank, False))
    for gradient in on_ranks(lambda rank: program(rank, True)):
        assert numpy.allclose(gradient, 6 * 2 * scale**2 * w0, rtol=1e-12)


def test_a_constant_that_differs_between_ranks_is_found() -> None:
    before = modes.check_mode()
    cc.check("ranks")
    try:
        assert "constant" in refused(lambda rank: ag.constant(numpy.ones(2) * int(rank)))
    finally:
        cc.check(before)
    assert "the constants of" in refused(lambda rank: value(I, (2,)) * ag.constant(numpy.ones(2) * int(rank)))


def test_one_rule_for_numbers_and_lists() -> None:
    """Numbers (Python's, NumPy's, arrays without dimensions) are constants; lists and arrays are Varying."""
    with cc.Mesh(dp=1):
        w = ag.tensor([1.0, 2.0], {"dp": I})
        for number in (2, 2.0, True, 1j, numpy.float64(2), numpy.int32(2), numpy.array(2.0), numpy.bool_(True)):
            for y in (w * number, np.where(w > 0, w, number), np.stack([w[0], number]), np.append(w, number)):
                assert y.layout == {"dp": I}, number
        r = ag.tensor([1.0, 2.0], {"dp": R})
        for array in ([1.0, 2.0], (1.0, 2.0), numpy.ones(2), [numpy.float64(1), 2]):
            for y in (r * array, np.where(r > 0, r, array), np.concatenate([r, array]), np.maximum(r, array)):
                assert y.layout == {"dp": V}, array


MADE = [
    "np.zeros(2)", "np.ones(2)", "np.eye(2)", "np.identity(2)", "np.full(2,1.5)", "np.arange(2)",
    "np.linspace(0,1,2)", "np.tri(2)", "np.zeros_like(w)", "np.ones_like(w)", "np.full_like(w,3.0)",
    "np.arange(2.0).reshape(2)*2",
]  # fmt: skip


@pytest.mark.parametrize("call", MADE)
def test_arrays_made_of_equal_numbers_are_constants(call: str) -> None:
    w0 = numpy.array([1.0, 2.0])
    plain = eval(call, {"np": numpy, "w": w0})
    assert type(eval(call, {"np": np, "w": w0})) is numpy.ndarray, "without a mesh they are NumPy's own arrays"
    with cc.Mesh(dp=1):
        w = ag.Parameter(w0)
        made = eval(call, {"np": np, "w": w})
        assert made.layout == {"dp": cc.C} and made.dtype == plain.dtype
        assert numpy.array_equal(made.numpy(), plain)
        assert (w * made).layout == {"dp": I}


def test_what_is_made_like_a_part_is_one() -> None:
    with cc.Mesh(dp=1):
        x = ag.tensor(numpy.ones((3, 2)), {"dp": Shard(0)})
        for y in (np.zeros_like(x), np.ones_like(x), np.full_like(x, 2.0)):
            assert y.layout == {"dp": Shard(0)} and (x + y).layout == {"dp": Shard(0)}
        assert np.zeros_like(ag.tensor(numpy.ones(2))).layout == {"dp": V}
        assert np.zeros(x.shape).layout == {"dp": V}


def test_writing_to_such_a_constant_names_numpy() -> None:
    with cc.Mesh(dp=1):
        u = np.zeros(3)
        with pytest.raises(ag.errors.SavedArrayError, match="numpy.zeros"):
            u[0] = 1.0


# -- class weights, and constants that are meant to differ -------------------------------------------------------------
ROWS, LABELS = numpy.random.default_rng(0).standard_normal((6, 3)), numpy.array([0, 2, 1, 2, 0, 2])
WEIGHTED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "CrossEntropyLoss": lambda x, y, w: ag.nn.CrossEntropyLoss(w, reduction="sum")(x, y),
    "NLLLoss": lambda x, y, w: ag.nn.NLLLoss(w, reduction="sum")(ag.nn.log_softmax(x), y),
    "nll_loss of a Tensor": lambda x, y, w: ag.nn.nll_loss(x, y, ag.tensor(w), reduction="sum"),
    "weight": lambda x, y, w: ag.nn.BCEWithLogitsLoss(w, reduction="sum")(x, 0.5 + 0 * x),
    "pos_weight": lambda x, y, w: ag.nn.BCEWithLogitsLoss(reduction="sum", pos_weight=w)(x, 0.5 + 0 * x),
}


def weighted(use: Callable[..., Any], counted: Callable[[Any], Any]) -> list[Any]:
    """The gradient of a loss whose weights come from counts of labels."""

    def body(rank: Any) -> Any:
        x, y = (cc.shard(ag.tensor(a, {"dp": R}), "dp") for a in (ROWS, LABELS))
        w = ag.Parameter(numpy.eye(3))
        with ag.Tape() as tape:
            counts = counted(numpy.bincount(y.numpy(), minlength=3))
            loss = cc.all_reduce(use(x @ cc.cast(w, "dp", to=R), y, 1 / (1 + counts)), "dp", to=I)
        tape.backward(loss)
        return w.grad.numpy()

    return on_ranks(body)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_classes_are_compared(name: str, mode: str) -> None:
    with pytest.raises(cc.ReplicaMismatch, match="the counts of all ranks, cc.all_reduce") as caught:
        weighted(WEIGHTED[name], lambda counts: counts)
    assert "test_numbers.py" in str(caught.value)
    weights = 1 / (1 + numpy.bincount(LABELS))
    serial = ag.grad(lambda w: WEIGHTED[name](ROWS @ w, LABELS, weights))(numpy.eye(3))
    for found in weighted(WEIGHTED[name], lambda counts: cc.all_reduce(counts, "dp").numpy()):
        numpy.testing.assert_allclose(found, serial, rtol=1e-12, atol=1e-14)


def test_the_fix_for_constants_that_are_meant_to_differ(mode: str) -> None:
    """Each rank pads its rows to their own length, and looks up the positions."""

    def program(positions: Callable[[int], Any]) -> list[Any]:
        def body(rank: Any) -> Any:
            w = ag.Parameter(numpy.arange(1.0, 5.0).reshape(4, 1))
            with ag.Tape() as tape:
                n = int(rank) + 2
                own = ag.nn.embedding(positions(n), cc.cast(w, "dp", to=R)) * numpy.ones((n, 1))
                loss = cc.all_reduce((own * own).sum(), "dp", to=I)
            tape.backward(loss)
            return w.grad.numpy()[:, 0]

        return on_ranks(body)

    with pytest.raises(cc.ReplicaMismatch, match=r"numpy.arange in place of .* or cast\(x, 'dp', to=V\)"):
        program(np.arange)
    for fixed in (numpy.arange, lambda n: cc.cast(np.arange(n), "dp", to=V)):
        for found in program(fixed):
            numpy.testing.assert_allclose(found, 2 * numpy.arange(1.0, 5.0) * [3, 3, 2, 1])
