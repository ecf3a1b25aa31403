"""Tensors that `ag.tensor` labels R or I: in every mode but ``off`` the ranks compare some of each line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.extend import defvjp, op, primitive
from collectives import I, P, R, Shard
from collectives.checks import modes

RANKS = 2


@pytest.fixture(params=["first", "ranks"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    before = modes.check_mode()
    cc.check(request.param)
    yield request.param
    cc.check(before)


def on_ranks(body: Callable[[int], Any], ranks: int = RANKS) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(dp=ranks) as mesh:
            return body(int(mesh.axis("dp").rank))

    return cc.run(program, ranks)


def refused(body: Callable[[int], Any], kind: Any = cc.ReplicaMismatch) -> str:
    with pytest.raises(kind) as error:
        on_ranks(body)
    return str(error.value)


def rows(rank: int, step: int = 0) -> Any:
    return numpy.random.default_rng((rank, step)).standard_normal((3, 2))


def loss_of(w: Any, x: Any) -> Any:
    return cc.all_reduce(((x @ cc.cast(w, "dp", to=R)) ** 2).sum(), "dp", to=I)


def test_rows_that_are_labelled_r_and_differ() -> None:
    def body(rank: int) -> Any:
        w = ag.Parameter([1.0, 2.0])
        with ag.Tape() as tape:
            y = cc.cast(ag.tensor(rows(rank), {"dp": R}, name="rows") @ cc.cast(w, "dp", to=R), "dp", to=I)
            loss = (y**2).sum()
        tape.backward(loss)

    text = refused(body)
    assert "test_labelled_data.py:" in text and "rank 0" in text and "rank 1" in text and "rows: f64[3,2]" in text


def test_the_fix_that_the_error_offers_has_the_serial_gradient(mode: str) -> None:
    def wrong(rank: int) -> Any:
        x, w = ag.tensor(rows(rank), {"dp": R}), ag.Parameter([1.0, 2.0])
        return ag.grad(lambda w: cc.cast(((x @ cc.cast(w, "dp", to=R)) ** 2).sum(), "dp", to=I))(w)

    def fixed(rank: int) -> Any:
        x = cc.from_local(rows(rank), {"dp": Shard(0)})
        return ag.grad(lambda w: loss_of(w, x))(ag.Parameter([1.0, 2.0])).numpy()

    text = refused(wrong)
    if mode == "first":
        assert "cc.from_local(x, {'dp': Shard(0)})" in text
    data = numpy.concatenate([rows(rank) for rank in range(RANKS)])
    expected = 2 * data.T @ (data @ numpy.array([1.0, 2.0]))
    for found in on_ranks(fixed):
        numpy.testing.assert_allclose(found, expected, rtol=1e-14)


def test_the_argument_of_a_transform() -> None:
    def body(rank: int) -> Any:
        w = ag.tensor(rows(rank)[0], {"dp": I}, name="w")
        return ag.grad(lambda w: loss_of(w, ag.tensor(rows(rank))))(w)

    assert "w: f64[2] {dp: I}" in refused(body)


def test_evaluation_without_a_tape() -> None:
    text = refused(lambda rank: cc.all_reduce(cc.cast(ag.tensor(rows(rank), {"dp": R}), "dp", to=cc.V).sum(), "dp"))
    assert "should be equal along 'dp" in text


def test_a_later_batch_is_compared_too() -> None:
    def body(rank: int) -> None:
        for step in range(8):
            x = ag.tensor(rows(rank if step == 3 else 0, step), {"dp": R})
            cc.all_reduce(cc.cast(x, "dp", to=cc.V).sum(), "dp")

    assert "differ from those of" in refused(body)


def test_equal_data_and_a_log_of_one_rank_are_legal() -> None:
    def body(rank: int) -> int:
        for step in range(9):
            x = ag.tensor(rows(0, step), {"dp": R})
            if rank == 0:
                ag.tensor(rows(7, step), {"dp": R})
            cc.all_reduce(cc.cast(x, "dp", to=cc.V).sum(), "dp")
        return step

    assert on_ranks(body) == [8] * RANKS


def test_few_batches_are_digested(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mode == "ranks":
        pytest.skip("every batch is compared under ranks")
    from collectives.checks import sanitizer

    seen: list[Any] = []
    digest = sanitizer.digest_of
    monkeypatch.setattr(sanitizer, "digest_of", lambda a: seen.append(a.shape) or digest(a))

    def body(rank: int) -> None:
        for step in range(100):
            ag.tensor(rows(0, step), {"dp": R})
            cc.barrier("dp")

    on_ranks(body)
    assert len(seen) == RANKS * 7  # the 1st, 2nd, 4th, ..., 64th


# -- numbers of users' operations --------------------------------------------------------------------------------------
@primitive
def scaled(x: Any, factor: Any, shift: Any = 0.0, table: Any = None) -> Any:
    return x * factor + shift


defvjp(scaled, lambda ans, x, factor, shift=0.0, table=None: lambda g: g * factor, None)
declared = op("example_scaled", "a", lambda x, k: x * k, (lambda ct, y, x, k: ct * k,))

CALLS: dict[str, Callable[[Any, float], Any]] = {
    "by position": lambda x, k: scaled(x, k),
    "by keyword": lambda x, k: scaled(x, 2.0, shift=k),
    "an integer": lambda x, k: scaled(x, int(k)),
    "in a list": lambda x, k: scaled(x, 2.0, shift=0.0, table=[k, 1.0]),
    "an array by keyword": lambda x, k: scaled(x, 2.0, shift=numpy.array([k, 0.0])),
    "a constant": lambda x, k: scaled(x, ag.constant([k, 1.0])),
    "an option": lambda x, k: declared(x, options=(k,)),
}


def use(call: Callable[[Any, float], Any], label: Any, k: float) -> Any:
    y = call(ag.tensor([1.0, 2.0], {"dp": label}), k)
    cc.barrier("dp")
    return y


@pytest.mark.parametrize("label", [R, I])
@pytest.mark.parametrize("name", CALLS)
def test_numbers_given_to_users_operations(name: str, label: Any) -> None:
    text = refused(lambda rank: use(CALLS[name], label, 1.0 + rank))
    assert ("scaled" in text or "constant at" in text) and "test_labelled_data.py:" in text
    on_ranks(lambda rank: use(CALLS[name], label, 3.0))
    if name != "a constant":  # `constant` itself states that the ranks hold the same numbers
        on_ranks(lambda rank: CALLS[name](ag.tensor([1.0, 2.0]), 1.0 + rank))  # Varying values promise nothing


def test_addends_take_equal_options_only() -> None:
    assert "scaled" in refused(lambda rank: use(CALLS["an option"], P, 5.0 + rank))


# -- independent of input ----------------------------------------------------------------------------------------------
ONES = numpy.ones(2)
LOSSES: dict[str, tuple[Any, Any, bool]] = {
    "ignores an Invariant argument": (I, lambda w, rank: (ag.tensor(ONES) ** 2).sum(), True),
    "uses an Invariant argument": (I, lambda w, rank: (ag.tensor(ONES) * cc.cast(w, "dp", to=R)).sum(), False),
    "uses a V argument on one rank": (cc.V, lambda w, rank: (ag.tensor(ONES) * (w if rank else 1.0)).sum(), False),
}


@pytest.mark.parametrize("ranks", [1, RANKS])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_ends_in_a_sum_over_the_ranks(name: str, ranks: int) -> None:
    label, local, is_warned = LOSSES[name]

    def body(rank: int) -> Any:
        w = ag.tensor(ONES, {"dp": label})
        return ag.grad(lambda w: cc.all_reduce(local(w, rank), "dp", to=I))(w).numpy().tolist()

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = on_ranks(body, ranks)
    is_warned = is_warned or (ranks == 1 and label is cc.V)  # no other rank uses it
    assert any("independent of input" in str(each.message) for each in heard) == is_warned
    assert not is_warned or found == [[0.0, 0.0]] * ranks
