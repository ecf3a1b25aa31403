"""Attention over sequences in parts against attention of one process, in float64: values and derivatives."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import ops
from autograd.errors import DtypeError, LayoutError, ShapeError
from autograd.testing import check_adjoint
from parallel import context
from parallel.context import ring

from .sequences import (
    CONTIGUOUS,
    HEADS,
    ROWS,
    ULYSSES,
    UNEVEN,
    WIDTH,
    ZIGZAG,
    assert_parts,
    attention_of,
    derivatives,
    length_of,
    part,
    places,
    random,
    serial,
)

KINDS = [ZIGZAG, CONTIGUOUS, UNEVEN, ULYSSES]
RANKS = [1, 2, 3, pytest.param(4, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]


def run_derivatives(kind: str, causal: bool, ranks: int, given: list[Any]) -> list[list[Any]]:
    """For each rank the four derivatives."""
    order = CONTIGUOUS if kind == ULYSSES else kind

    def program() -> list[Any]:
        with cc.Mesh(cp=-1):
            found = derivatives(attention_of(kind, causal), *[part(a, order) for a in given])
            for y in found[:3]:
                assert y.layout["cp"] is cc.V if order == ZIGZAG else y.layout["cp"] == cc.Shard(1)
            return [y.local for y in found]

    return cc.run(program, ranks)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_process(kind: str, causal: bool, ranks: int) -> None:
    if kind == ULYSSES and ranks > HEADS:
        pytest.skip("there are fewer heads than ranks")
    given, expected = serial(length_of(kind, ranks), causal)
    found = run_derivatives(kind, causal, ranks, given)
    for i, whole in enumerate(expected):
        assert_parts([mine[i] for mine in found], np.asarray(whole), CONTIGUOUS if kind == ULYSSES else kind, 1e-12)


@pytest.mark.parametrize("zigzag", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_grouped_heads(zigzag: bool, causal: bool) -> None:
    """6 heads of queries and 2 of keys; only the latter travel."""
    kind, ranks = (ZIGZAG if zigzag else UNEVEN), 3
    tokens = length_of(kind, ranks)
    q, k, v = random(ROWS, 6, tokens, WIDTH), random(ROWS, 2, tokens, WIDTH), random(ROWS, 2, tokens, WIDTH, seed=3)
    ct = random(ROWS, 6, tokens, WIDTH, seed=4)
    y, pull = ag.vjp(lambda *x: ops.attention(*x, causal=causal), q, k, v)
    expected = [y, *pull(ct)]

    def program() -> Any:
        with cc.Mesh(cp=-1) as mesh:
            mine = [part(a, kind, 2) for a in (q, k, v, ct)]
            traffic = mesh.axis("cp").group.traffic
            before = traffic.bytes
            y, pull = ag.vjp(lambda *x: context.ring_attention(*x, "cp", causal=causal, zigzag=zigzag), *mine[:3])
            sent = traffic.bytes - before
            if zigzag:
                assert sent == (ranks - 1) * 2 * mine[1].array.nbytes
            return [a.local for a in (y, *pull(mine[3]))]

    found = cc.run(program, ranks)
    for i, whole in enumerate(expected):
        assert_parts([mine[i] for mine in found], np.asarray(whole), kind, 1e-12, 2)


@pytest.mark.parametrize("kind", [ZIGZAG, CONTIGUOUS])
def test_sharded_rows_and_heads_on_other_axes(kind: str) -> None:
    """A mesh of 2 x 2 x 2: rows, tokens and heads are divided; the order of the axes does not matter."""
    given, expected = serial(length_of(kind, 2), True)

    def program(sizes: dict[str, int], attend: Any) -> Any:
        with cc.Mesh(**sizes) as mesh:
            at = {name: mesh.axis(name).group.index for name in sizes}

            def mine(a: Any) -> Any:
                heads = a.ndim - 2
                a = np.array_split(np.array_split(a, 2)[at["dp"]], 2, heads)[at["tp"]]
                where = places(kind, a.shape[1], at["cp"], 2)
                label = cc.V if kind == ZIGZAG else cc.Shard(1)
                return cc.from_local(a[:, where], {"dp": cc.Shard(0), "tp": cc.Shard(heads), "cp": label})

            x, ct, _ = map(mine, given)
            y, pull = ag.vjp(attend, x)
            assert y.layout["tp"] == cc.Shard(2) and y.layout["dp"] == cc.Shard(0)
            for found, whole in zip((y, pull(ct)), expected[:2], strict=True):
                np.testing.assert_allclose(found.local, mine(np.asarray(whole)).local, rtol=0, atol=1e-13)

    for sizes in ({"dp": 2, "tp": 2, "cp": 2}, {"cp": 2, "tp": 2, "dp": 2}):
        cc.run(lambda sizes=sizes: program(sizes, attention_of(kind, True)), 8)
        if kind == CONTIGUOUS:
            cc.run(lambda sizes=sizes: program(sizes, attention_of(ULYSSES, True)), 8)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", [ZIGZAG, UNEVEN, ULYSSES])
def test_dot_product(kind: str, causal: bool) -> None:
    """Forward mode is a composition of permutes, so it does not share the code of the adjoint."""
    order = CONTIGUOUS if kind == ULYSSES else kind
    x = random(ROWS, length_of(order, 3), 3, HEADS, WIDTH)

    def program() -> None:
        with cc.Mesh(cp=-1):
            check_adjoint(attention_of(kind, causal), part(x, order))

    cc.run(program, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_large_scores_and_short_dtypes(dtype: Any) -> None:
    """Scores beyond the range of exp, and those of float16 are computed in float32."""
    x = (random(1, 24, 3, 2, WIDTH) * (6 if dtype == np.float32 else 2)).astype(dtype)
    ct = random(1, 24, 2, WIDTH, seed=1).astype(dtype)
    y, pull = ag.vjp(lambda x: ops.self_attention(x, causal=True), x.astype(float))
    expected = y, pull(ct.astype(float))

    def program() -> Any:
        with cc.Mesh(cp=-1):
            y, pull = ag.vjp(attention_of(ZIGZAG, True), part(x, ZIGZAG))
            g = pull(part(ct, ZIGZAG))
            assert y.dtype == g.dtype == dtype
            return y.local, g.local

    found = cc.run(program, 3)
    for i in range(2):
        assert_parts([mine[i].astype(float) for mine in found], np.asarray(expected[i]), ZIGZAG,
                     3e-5 if dtype == np.float32 else 2e-3)  # fmt: skip


def test_the_composition_of_a_block_equals_the_kernel() -> None:
    """Arrays without a kernel, as those of other devices, use plain functions."""
    q, k, v = random(2, 3, 7, WIDTH), random(2, 3, 7, WIDTH, seed=1), random(2, 3, 7, WIDTH, seed=2)
    residuals = random(2, 3, 7, WIDTH, seed=3), random(2, 3, 7), random(2, 3, 7, seed=1) + 3
    for causal in (True, False):
        block = context.Block(slice(None), slice(None), causal)
        long = [a.astype(np.longdouble) for a in (q, k, v)]
        for ours, theirs in zip(ring._attend(*long, block, 0.4), ring._attend(q, k, v, block, 0.4), strict=True):
            np.testing.assert_allclose(ours.astype(float), theirs, rtol=1e-12, atol=1e-14)
        ours = ring._attend_backward([a.astype(np.longdouble) for a in residuals], *long, block, 0.4)
        for a, b in zip(ours, ring._attend_backward(residuals, q, k, v, block, 0.4), strict=True):
            np.testing.assert_allclose(a.astype(float), b, rtol=1e-11, atol=1e-12)


# -- the cost ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("kind", [ZIGZAG, CONTIGUOUS])
def test_bytes_are_those_of_the_formula(kind: str, ranks: int) -> None:
    """Forward p-1 times the keys and values of a rank, backward twice that; half of it, causal and contiguous."""
    x, ct = random(1, 4 * ranks, 3, HEADS, WIDTH), random(1, 4 * ranks, HEADS, WIDTH)

    def program() -> Any:
        with cc.Mesh(cp=-1) as mesh:
            traffic, mine = mesh.axis("cp").group.traffic, part(x, kind)
            start = traffic.bytes
            _, pull = ag.vjp(attention_of(kind, True), mine)
            middle = traffic.bytes
            pull(part(ct, kind))
            return middle - start, traffic.bytes - middle

    each = 2 * 4 * HEADS * WIDTH * 8
    found = cc.run(program, ranks)
    if kind == ZIGZAG:
        assert found == [((ranks - 1) * each, 2 * (ranks - 1) * each)] * ranks
    else:
        assert sum(f for f, _ in found) == ranks * (ranks - 1) // 2 * each
        assert sum(b for _, b in found) == ranks * (ranks - 1) * each


@pytest.mark.parametrize("ranks", [2, 3])
def test_bytes_of_ulysses_are_those_of_the_formula(ranks: int) -> None:
    """Each rank keeps a p-th of its queries, keys and values, and of its result."""
    with cc.dry(ranks) as run, cc.Mesh(cp=ranks):
        x = ag.tensor(np.zeros((1, 12 // ranks, 3, 6, 4)), {"cp": cc.Shard(1)}, global_shape=(1, 12, 3, 6, 4),
                      requires_grad=True)  # fmt: skip
        with ag.Tape() as tape:
            loss = cc.all_reduce(context.ulysses_self_attention(x, "cp").sum(), "cp", to=cc.I)
        tape.backward(loss)
    sent = {p.traffic.direction: p.sent_bytes for p in run.predictions() if p.traffic.operation == "all_to_all"}
    whole = 12 * 3 * 6 * 4 * 8
    assert sent == dict.fromkeys(("forward", "backward"), pytest.approx(4 / 3 * whole * (ranks - 1) / ranks**2))


def test_blocks_of_a_step_are_balanced_in_zigzag_order() -> None:
    """The pairs of query and key of each rank and step, which together are those of the causal mask."""
    ranks, tokens = 5, 60
    for zigzag in (True, False):
        order, n = context.Order(True, zigzag), tokens // ranks
        work = np.zeros((ranks, ranks), int)
        for rank in range(ranks):
            for step in range(ranks):
                block = order.block(rank, (rank - step) % ranks, n)
                if block is not None:
                    rows, keys = (len(range(n)[s]) for s in (block.rows, block.keys))
                    work[rank, step] = rows * (rows + 1) // 2 if block.causal else rows * keys
        assert work.sum() == tokens * (tokens + 1) // 2
        assert (np.ptp(work, axis=0) == 0).all() == zigzag


def test_the_tape_keeps_no_blocks() -> None:
    """Its arrays are the operand and the result, whatever the number of ranks."""

    def program() -> list[str]:
        with cc.Mesh(cp=-1), ag.Tape() as tape:
            context.ring_self_attention(ag.tensor(random(8, 3, 2, 4), requires_grad=True), "cp", zigzag=True)
            return [str(node[0]) for node in tape.recording.nodes if node is not None]

    for names in cc.run(program, 3):
        assert sum("ring_attention" in name for name in names) == 1 and len(names) <= 3, names


def test_plan_timeline_and_dry_run() -> None:
    """They show the messages of the ring in both directions."""
    n = 2 * 4 * 2 * 4 * 8

    def step() -> Any:
        rank = cc.world().index
        x = ag.tensor(random(4, 3, 2, 4, seed=rank), {"cp": cc.V}, requires_grad=True)
        with ag.Tape() as tape:
            y = context.ring_self_attention(x, "cp", zigzag=True)
            loss = cc.all_reduce(y.sum(), "cp", to=cc.I)
        return tape, loss

    def program() -> Any:
        with cc.Mesh(cp=-1):
            tape, loss = step()
            plan = tape.plan()
            with cc.timeline() as timeline:
                tape.backward(loss)
            return plan, str(timeline)

    plan, timeline = cc.run(program, 3)[0]
    (communication,) = [c for c in plan.communications if c.name == "ring_attention"]
    assert not plan.problems and "send" in timeline, plan.problems
    assert [s.bytes for s in communication.forward[0] if s.call == "send"] == [n] * 2
    assert [s.bytes for s in communication.backward[0] if s.call == "send"] == [n] * 4
    with cc.dry(3) as run, cc.Mesh(cp=3):
        tape, loss = step()
        tape.backward(loss)
    sent = {(t.direction, t.operation): t.bytes for t in run.traffic() if t.by == "ring_attention"}
    assert sent["forward", "send"] == 2 * n and sent["backward", "send"] == 4 * n


# -- faults ------------------------------------------------------------------------------------------------------------


def is_equal(kind: str = ZIGZAG, prepare: Any = None, ranks: int = 3) -> bool:
    """Whether the cotangents are those of one process; `prepare` runs between forward and backward."""
    given, expected = serial(length_of(ZIGZAG, ranks), True)

    def program() -> Any:
        with cc.Mesh(cp=-1):
            y, pull = ag.vjp(attention_of(kind, True), part(given[0], kind))
            if prepare is not None:
                prepare()
            return y.local, pull(part(given[1], kind)).local

    found = cc.run(program, ranks)
    try:
        for i in range(2):
            assert_parts([mine[i] for mine in found], np.asarray(expected[i]), kind, 1e-12)
    except AssertionError:
        return False
    return True


def test_row_45_backward_with_the_keys_of_the_first_step(monkeypatch: Any) -> None:
    """diffusers#14265: the backward ring read the keys and values of the first step at every step."""
    assert is_equal()
    state, visits = threading.local(), ring._visits

    def stale(kv: Any, call: Any) -> Any:
        for owner, held in visits(kv, call):
            yield owner, kv if getattr(state, "backward", False) else held

    monkeypatch.setattr(ring, "_visits", stale)
    assert is_equal()
    assert not is_equal(prepare=lambda: setattr(state, "backward", True))


@pytest.mark.parametrize("kind", [ZIGZAG, CONTIGUOUS])
def test_missing_weights_of_the_blocks(kind: str, monkeypatch: Any) -> None:
    """The outputs of blocks are averaged with equal weights."""

    def merge(out: Any, o: Any, log_sums: Any, is_first: bool) -> None:
        out[..., :-1] = o if is_first else (out[..., :-1] + o) / 2
        out[..., -1] = log_sums if is_first else np.logaddexp(out[..., -1], log_sums)

    monkeypatch.setattr(ring, "_merge", merge)
    assert not is_equal(kind)


def test_cotangents_with_the_sums_of_the_block_alone(monkeypatch: Any) -> None:
    """Backward takes the logarithms of one block in place of those of all keys."""
    backward = ring._attend_backward

    def of_the_block(residuals: Any, q: Any, k: Any, v: Any, block: Any, scale: float) -> Any:
        log_sums = ring._attend(q, k, v, block, scale)[1]
        return backward((*residuals[:2], log_sums), q, k, v, block, scale)

    monkeypatch.setattr(ring, "_attend_backward", of_the_block)
    assert not is_equal()


def test_a_ring_in_the_other_direction(monkeypatch: Any) -> None:
    """Forward, keys are taken for those of the rank after."""
    state, visits = threading.local(), ring._visits

    def other(kv: Any, call: Any) -> Any:
        me, ranks = call.group.index, call.group.size
        for owner, held in visits(kv, call):
            yield owner if getattr(state, "backward", False) else (2 * me - owner) % ranks, held

    monkeypatch.setattr(ring, "_visits", other)
    assert not is_equal(prepare=lambda: setattr(state, "backward", True))


# -- mistakes ----------------------------------------------------------------------------------------------------------

QKV = random(2, 8, 3, 2, 4)


def test_row_34_and_labels_that_do_not_fit_are_refused() -> None:
    """Each error names the axis and a fix that fits."""

    def refused(label: Any, zigzag: bool = False, dim: int = 1, causal: bool = True, shape: Any = QKV) -> str:
        with pytest.raises(LayoutError) as error:
            x = cc.from_local(shape, {"cp": label})
            context.ring_self_attention(x, "cp", causal=causal, zigzag=zigzag)
        return str(error.value)

    with cc.Mesh(cp=1):  # on one rank too
        assert "cc.shard(tokens, 'cp', 1)" in refused(cc.I)
        assert "context.zigzag(tokens, 'cp')" in refused(cc.R, zigzag=True)
        assert "zigzag=False here" in refused(cc.Shard(1), zigzag=True)
        assert "zigzag=True" in refused(cc.V)
        assert "along dimension 1" in refused(cc.Shard(0), causal=False)
        assert "same tokens" in refused(cc.P)
        context.ring_self_attention(ag.tensor(QKV), "cp", causal=False)  # without a mask the order does not matter
        with pytest.raises(LayoutError, match="Shard of the tokens"):
            context.ulysses_self_attention(ag.tensor(QKV), "cp")
    with cc.Mesh(cp=1, tp=1):
        for label in (cc.Shard(1), cc.Shard(4), cc.P):
            x = cc.from_local(QKV, {"cp": cc.V, "tp": label})
            with pytest.raises(LayoutError, match="axis 'tp'"):
                context.ring_self_attention(x, "cp", zigzag=True)


def test_shapes_and_dtypes_that_are_refused() -> None:
    with pytest.raises(Exception, match="Mesh"):
        context.ring_self_attention(QKV, "cp")
    with cc.Mesh(cp=1):
        with pytest.raises(ShapeError, match="tokens, 3, heads, width"):
            context.ring_self_attention(QKV[:, :, :2], "cp", zigzag=True)
        with pytest.raises(DtypeError, match="complex128"):
            context.ring_self_attention(QKV + 0j, "cp", zigzag=True)
        with pytest.raises(ShapeError, match="own a divisor of heads"):
            context.ring_attention(random(3, 8, 4), random(2, 8, 4), random(2, 8, 4), "cp", zigzag=True)
        with pytest.raises(cc.MeshError):
            context.ring_self_attention(QKV, "sp", zigzag=True)

    def odd() -> None:
        with cc.Mesh(cp=2):
            with pytest.raises(ShapeError, match="multiple of 4"):
                context.ring_self_attention(QKV[:, :3], "cp", zigzag=True)
            with pytest.raises(ShapeError, match=r"Ring\(axis\)"):
                context.ulysses_self_attention(part(QKV[:, :, :, :1], CONTIGUOUS), "cp")

    cc.run(odd, 2)


def test_ranks_with_other_orders_are_named() -> None:
    def program() -> None:
        with cc.Mesh(cp=2) as mesh:
            context.ring_self_attention(QKV, "cp", causal=mesh.ranks.index == 0, zigzag=True)

    with pytest.raises(cc.CollectiveMismatch, match="ring_attention"):
        cc.run(program, 2)


def test_without_gradients_and_twice() -> None:
    """Outside of a tape nothing is kept, and a second call gives the same bits."""

    def program() -> None:
        with cc.Mesh(cp=-1):
            x = part(random(2, 12, 3, 2, 4), ZIGZAG)
            first, second = (context.ring_self_attention(x, "cp", zigzag=True) for _ in range(2))
            assert first.tape is None and first.local.tobytes() == second.local.tobytes()

    cc.run(program, 3)
