"""Programs that once gave a wrong value or label without an error, found by `test_label_sweep` and by looking for more.

Each is compared with one process, or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import ops
from autograd.engine.primitive import op, registry
from autograd.layouts.layout import Sum
from collectives import I, P, R, Shard, V

_rng = numpy.random.default_rng(0)


def replicated(x: Any) -> Any:
    return ag.tensor(x, {"tp": R}, requires_grad=True)


def on_ranks(ranks: int, body: Any) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(tp=ranks) as mesh:
            return body(mesh)

    return cc.run(program, ranks)


def test_grouped_attention_of_sharded_heads() -> None:
    """Each rank would use the wrong heads of keys: with 8 query heads on 2 ranks, 0 to 3 belong to head 0 of 2."""
    q, k = _rng.standard_normal((8, 3, 2)), _rng.standard_normal((2, 3, 2))

    def body(mesh: Any) -> Any:
        with pytest.raises(ag.LayoutError, match="spans dimension 0"):
            ops.attention(cc.shard(replicated(q), "tp", dim=0), replicated(k), replicated(k))
        with pytest.raises(ag.LayoutError, match="spans dimension 0"):
            ops.attention(replicated(q), cc.shard(replicated(k), "tp", dim=0), cc.shard(replicated(k), "tp", dim=0))
        parts = [cc.shard(replicated(x), "tp", dim=0) for x in (q, k, k)]
        return ops.attention(*parts).numpy()

    assert numpy.allclose(numpy.concatenate(on_ranks(2, body)), ops.attention(q, k, k))


@pytest.mark.parametrize("heads", [4, 3])
def test_one_head_of_keys_for_sharded_query_heads(heads: int) -> None:
    """Multi-query attention: the single head is Replicated, and its gradient is the sum over the ranks."""
    q, k = _rng.standard_normal((heads, 3, 2)), _rng.standard_normal((1, 3, 2))
    weights = _rng.standard_normal((heads, 3, 2))
    expected = ag.grad(lambda k: np.sum(ops.attention(q, k, k) * weights))(k)

    def body(mesh: Any) -> Any:
        key = replicated(k)
        with ag.Tape() as tape:
            y = ops.attention(cc.shard(replicated(q), "tp", dim=0), key, key)
            loss = (y * cc.shard(replicated(weights), "tp", dim=0)).sum()
        tape.backward(loss)
        return key.grad.local

    assert numpy.allclose(sum(on_ranks(4, body)), expected)


def test_attention_without_query_heads_has_zero_gradients() -> None:
    """The kernel left the cotangents of keys and values as they were in memory."""
    q, k = numpy.zeros((0, 3, 2)), ag.Parameter(_rng.standard_normal((1, 3, 2)))
    for _ in range(3):
        dirty = numpy.full((1, 3, 2), 7.0)
        del dirty
        k.zero_grad()
        with ag.Tape() as tape:
            y = ops.attention(ag.tensor(q), k, k).sum()
        tape.backward(y)
        assert k.grad is not None and not k.grad.numpy().any()


def test_a_reshape_by_the_local_extent_has_the_same_label_on_all_ranks() -> None:
    """On ranks with one row, the first extent of the result looked like a dimension of extent 1 that was inserted."""
    x = _rng.standard_normal((4, 7))

    def body(mesh: Any) -> Any:
        rows = cc.shard(replicated(x), "tp", dim=0)
        flat = rows.reshape(-1)
        return [y.layout["tp"] for y in (flat.reshape(rows.shape[0], 7), np.tile(rows, (1, 2)), np.kron(rows, x[:1]))]

    assert on_ranks(3, body) == [[Shard(0)] * 3] * 3


def test_a_contraction_of_a_sharded_operand_has_the_same_label_on_all_ranks() -> None:
    a, b = _rng.standard_normal((4, 7, 2)), _rng.standard_normal((2, 2, 3))

    def body(mesh: Any) -> Any:
        y = np.tensordot(cc.shard(replicated(a), "tp", dim=0), replicated(b), ((2,), (1,)))
        assert y.layout["tp"] == Shard(0) and y.global_shape == (4, 7, 2, 3)
        return y.numpy()

    assert numpy.allclose(numpy.concatenate(on_ranks(3, body)), np.tensordot(a, b, ((2,), (1,))))


def test_a_vector_times_a_matrix_has_a_gradient_on_ranks_with_one_column() -> None:
    """On such a rank alone, the adjoint was refused: it took the inserted dimension for the sharded one."""
    a, x = _rng.standard_normal((7, 4)), _rng.standard_normal(7)

    def loss(a: Any, x: Any) -> Any:
        return np.sum((x @ a) ** 2)

    expected = ag.grad(loss, (0, 1))(a, x)

    def body(mesh: Any) -> Any:
        whole, vector = replicated(a), replicated(x)
        with ag.Tape() as tape:
            y = loss(cc.shard(whole, "tp", dim=1), vector)
        tape.backward(y)
        return whole.grad.local, vector.grad.local

    for found, e in zip(zip(*on_ranks(3, body), strict=True), expected, strict=True):
        assert numpy.allclose(sum(found), e)


def test_an_array_filled_with_a_row_in_the_shape_of_a_part_is_a_part() -> None:
    """It had the label of the row, Replicated, and as many rows as this rank's part."""
    x, row = _rng.standard_normal((4, 3)), _rng.standard_normal(3)

    def body(mesh: Any) -> Any:
        fill = replicated(row)
        with ag.Tape() as tape:
            y = np.full_like(cc.shard(replicated(x), "tp", dim=0), fill)
            loss = (y**2).sum()
        assert y.layout["tp"] == Shard(0) and y.global_shape == (4, 3)
        tape.backward(loss)
        return fill.grad.local

    assert numpy.allclose(sum(on_ranks(3, body)), 8 * row)


def test_unwrap_of_parts_is_refused() -> None:
    """Each rank would look for jumps in its own part only."""
    angles = numpy.array([0.0, 3.0, 6.0, 9.0, 12.0, 15.0]) % 6.28

    def body(mesh: Any) -> None:
        with pytest.raises(ag.LayoutError, match="unwrap mixes along dimension 0"):
            np.unwrap(cc.shard(replicated(angles), "tp", dim=0))

    on_ranks(2, body)


OPTIONS: dict[str, Any] = {
    "roll": lambda x, n: np.roll(x, n),
    "tile": lambda x, n: np.tile(x, n),
    "repeat": lambda x, n: np.repeat(x, n),
    "rot90": lambda x, n: np.rot90(x, n),
    "split": lambda x, n: np.split(x, [n])[0],
    "tril": lambda x, n: np.tril(x, n),
    "diagonal": lambda x, n: np.diagonal(x, n),
    "partition": lambda x, n: np.partition(x, n),
    "percentile": lambda x, n: np.percentile(x, n),
    "pad": lambda x, n: np.pad(x, ((n, 1), (0, 0))),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_differs_between_ranks_is_refused_or_makes_the_result_varying(name: str) -> None:
    """Otherwise the result would be labelled Replicated and differ."""
    f, x = OPTIONS[name], _rng.standard_normal((3, 3))

    def body(mesh: Any) -> Any:
        rank = mesh.axis("tp").rank + 1
        for n in (rank, ag.tensor(numpy.array(int(rank)), {"tp": V}), ag.tensor(numpy.array(1), {"tp": P})):
            if name == "percentile" and n.__class__ is not type(rank):
                continue
            for label in (R, I):
                if label is R and n is rank and name not in ("split", "pad"):  # then the result is Varying
                    assert f(ag.tensor(x, {"tp": R}), n).layout["tp"] is V
                    continue
                with pytest.raises(ag.LayoutError, match=r"differs between the ranks|depends on the rank"):
                    f(ag.tensor(x, {"tp": label}), n)
        same = f(replicated(x), ag.tensor(numpy.array(1), {"tp": R})) if name != "percentile" else f(replicated(x), 1)
        assert same.layout["tp"] is R
        varying = f(ag.tensor(x, {"tp": V}), rank)
        assert varying.layout["tp"] is V
        return numpy.allclose(varying.numpy(), f(x, int(rank)))

    assert all(on_ranks(2, body))


def test_functions_on_values_refuse_addends() -> None:
    def body(mesh: Any) -> None:
        x = ag.tensor(numpy.eye(2), {"tp": P})
        for f in (np.argwhere, np.unique, np.where, np.cov, np.nonzero):
            with pytest.raises(ag.LayoutError, match="Partial"):
                f(x)
        assert np.ndim(x) == 2
        with pytest.raises(ag.LayoutError, match="the index is Partial"):
            replicated(numpy.arange(3.0))[ag.tensor(numpy.array([0, 1]), {"tp": P})]

    on_ranks(2, body)


def test_a_part_of_one_row_is_not_broadcast_by_a_longer_array() -> None:
    """On a rank with one row, the sum with three local rows had three rows and the label of one."""

    def body(mesh: Any) -> None:
        rows = cc.shard(replicated(numpy.ones((3, 2))), "tp", dim=0)
        with pytest.raises(ag.LayoutError, match="spans dimension 0"):
            rows + ag.tensor(numpy.ones((3, 2)), {"tp": V})

    on_ranks(3, body)


def test_labels_that_are_invariant_with_replicated_logits() -> None:
    logits, labels = _rng.standard_normal((5, 3)), numpy.array([0, 2, 1, 1, 0])
    expected = ag.grad(lambda x: ops.cross_entropy(x, labels, "sum"))(logits)

    def body(mesh: Any) -> Any:
        x = replicated(logits)
        with ag.Tape() as tape:
            loss = cc.cast(ops.cross_entropy(x, ag.tensor(labels, {"tp": I}), "sum"), "tp", to=I)
        tape.backward(loss)
        return x.grad.local

    assert numpy.allclose(sum(on_ranks(2, body)), expected)


def test_varying_beside_sharded_in_backward() -> None:
    """The gradient of a rank's own row is the sum over its own part."""
    x = _rng.standard_normal((5, 3))

    def body(mesh: Any) -> Any:
        row = ag.tensor(numpy.full(3, 1.0 + mesh.axis("tp").rank), {"tp": V}, requires_grad=True)
        with ag.Tape() as tape:
            loss = (cc.shard(replicated(x), "tp", dim=0) * row).sum()
        tape.backward(loss)
        return row.grad.numpy()

    parts = numpy.array_split(x, 2)
    assert all(numpy.allclose(g, part.sum(0)) for g, part in zip(on_ranks(2, body), parts, strict=True))


def rooted(x: Any, mesh: Any, root: int = 0) -> Any:
    """A value on one rank."""
    return cc.reduce(cc.cast(ag.tensor(x, {"tp": R}), "tp", to=P), "tp", root=root)


SCALED_SUM = op(
    "scaled sum (example)", "a b", lambda x, c: x.sum() * c,
    adjoint=(lambda ct, y, x, c: ct * c + 0 * x, lambda ct, y, x, c: ct * x.sum()), saves="01",
    dims=lambda shapes, options: [(Sum(),), ()],
)  # fmt: skip
del registry[SCALED_SUM.name]

ROOTED: dict[str, Any] = {
    "multiply": lambda x, c: x * c,
    "reflected": lambda x, c: c * x,
    "where": lambda x, c: np.where(c > 0, x, 0.0),
    "outer": lambda x, c: np.outer(x, np.stack([c, c])),
    "einsum": lambda x, c: np.einsum("i,->i", x, c),
    "a contraction": lambda x, c: SCALED_SUM(x, c),
}


@pytest.mark.parametrize("name", ROOTED)
def test_a_value_on_one_rank_is_not_combined_with_parts(name: str) -> None:
    """The result was Rooted, with the root's part only: the other parts had no gradient."""

    def body(mesh: Any) -> None:
        c = rooted(2.0, mesh)
        with pytest.raises(ag.LayoutError, match="the parts of the other ranks would be left out|Rooted"):
            ROOTED[name](cc.shard(replicated(numpy.arange(7.0)), "tp", dim=0), c)

    on_ranks(3, body)


@pytest.mark.parametrize(("name", "fix"), [
    ("multiply", "all_gather(x, 'tp', dim=0)"), ("reflected", "broadcast(c, 'tp', root=0, to=R)"),
])  # fmt: skip
def test_the_fix_for_a_value_on_one_rank_has_the_serial_gradient(name: str, fix: str) -> None:
    x = _rng.standard_normal(7)
    expected = ag.grad(lambda x: np.sum((x * 2.0) ** 3))(x)

    def body(mesh: Any) -> Any:
        leaf = cc.from_local(numpy.array_split(x, 3)[int(mesh.axis("tp").rank)], {"tp": Shard(0)}, requires_grad=True)
        with ag.Tape() as tape:
            c = rooted(2.0, mesh)
            with pytest.raises(ag.LayoutError) as error:
                ROOTED[name](leaf, c)
            assert fix in str(error.value), str(error.value)
            if fix.startswith("all_gather"):
                y = cc.all_gather(leaf, "tp", dim=0) * c
            else:
                y = cc.broadcast(c, "tp", root=0, to=R) * leaf
            loss = (y**3).sum()
        tape.backward(loss)
        return leaf.grad.numpy()

    assert numpy.allclose(numpy.concatenate(on_ranks(3, body)), expected)


@pytest.mark.parametrize("name", [name for name in ROOTED if name != "a contraction"])
def test_a_value_on_one_rank_is_not_combined_with_varying_values(name: str) -> None:
    """The result was Rooted, with the root's values only: those of the other ranks had a gradient of zero."""

    def body(mesh: Any) -> None:
        c = rooted(2.0, mesh)
        for x in (cc.cast(replicated(numpy.arange(7.0)), "tp", to=V), numpy.arange(7.0)):
            with pytest.raises(ag.LayoutError, match="the values of the other ranks would be left out|Rooted"):
                ROOTED[name](x, c)

    on_ranks(3, body)


VARYING_FIXES: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "the values of all ranks": ("broadcast(c, 'tp', root=0, to=R)", lambda c, x: cc.broadcast(c, "tp", 0, to=R) * x),
    "that of the root": ("broadcast of x from it, to=R", lambda c, x: c * cc.broadcast(x, "tp", root=0, to=R)),
}


@pytest.mark.parametrize("name", VARYING_FIXES)
def test_the_fixes_for_varying_values_have_the_serial_gradient(name: str) -> None:
    says, fixed = VARYING_FIXES[name]
    values = _rng.standard_normal((3, 4))
    used = values if name == "the values of all ranks" else values[:1]
    of_c, of_x = ag.grad(lambda c, x: np.sum((c * x) ** 3), (0, 1))(numpy.array(2.0), used)

    def body(mesh: Any) -> Any:
        x, w = ag.Parameter(values[int(mesh.axis("tp").rank)], {"tp": V}), ag.Parameter(2.0)
        with ag.Tape() as tape:
            c = cc.reduce(cc.cast(w, "tp", to=P), "tp", root=0)
            with pytest.raises(ag.LayoutError) as error:
                c * x
            assert says in str(error.value), str(error.value)
            loss = (fixed(c, x) ** 3).sum()
            loss = cc.all_reduce(loss, "tp", to=I) if loss.layout["tp"] is V else loss
        tape.backward(loss)
        return w.grad.numpy(), x.grad.numpy()

    found = on_ranks(3, body)
    assert all(numpy.allclose(w, of_c) for w, _ in found)
    expected = numpy.zeros((3, 4))
    expected[: len(used)] = of_x
    assert numpy.allclose(numpy.stack([x for _, x in found]), expected)


def test_the_fix_for_a_plain_array_beside_a_value_on_one_rank() -> None:
    target = _rng.standard_normal(4)

    def body(mesh: Any) -> Any:
        w = ag.Parameter(numpy.ones(4))
        with ag.Tape() as tape:
            c = cc.reduce(cc.cast(w, "tp", to=P), "tp", root=0)
            with pytest.raises(ag.LayoutError, match=r"The same on all ranks\? fix: ag.constant\(target\)"):
                c - target
            loss = ((c - ag.constant(target)) ** 2).sum()
        tape.backward(loss)
        return w.grad.numpy()

    assert all(numpy.allclose(g, 2 * (1 - target)) for g in on_ranks(3, body))


def test_compress_by_a_sharded_condition() -> None:
    """Each rank applied its part of the condition to the first rows of the whole."""
    x, keep = _rng.standard_normal((7, 2)), numpy.array([1.0, 0, 1, 1, 0, 1, 1])

    def body(mesh: Any) -> None:
        condition = cc.shard(ag.tensor(keep, {"tp": R}), "tp", dim=0)
        for f in (lambda: np.compress(condition, replicated(x), 0), lambda: np.extract(condition, replicated(x[:, 0]))):
            with pytest.raises(ag.RingtapeError, match="boolean index"):
                f()
        same = np.compress(ag.tensor(keep, {"tp": R}), replicated(x), 0)
        assert same.layout["tp"] is R and numpy.array_equal(same.local, x[keep > 0])

    on_ranks(2, body)
