"""Rooted calls that are repeated: every rank uses what it has prepared, and every result is memory of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc

from ..call_counts import entered

SHAPES = [(), (3,), (2, 3)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("given", ["absent", "dropped", "none"])
def test_received_values(ranks: int, shape: tuple[int, ...], given: str) -> None:
    """The k-th call brings the root's k-th value to new memory, and its adjoint sums on the root."""
    root = 1

    def program() -> list[tuple[Any, Any]]:
        found = []
        with cc.Mesh(dp=ranks):
            rank = cc.world().rank
            for k in range(6):
                value = np.full(shape, 10.0 * k + 1)
                x: Any = ag.tensor(value, {"dp": cc.Rooted(root)}, requires_grad=True)
                if rank != root and given == "dropped":
                    x = ag.tensor(value - 1, {"dp": cc.V})
                elif rank != root and given == "none":
                    x = None
                with ag.Tape() as tape:
                    y = cc.broadcast(x, "dp", root=root)
                    loss = cc.reduce((y * (rank + 1.0)).sum(), "dp", root=root)
                tape.backward(loss)
                assert loss.absent == (rank != root)
                found.append((y.array, x.grad.array if rank == root else None))
        return found

    results_of = cc.run(program, ranks=ranks)
    for rank, results in enumerate(results_of):
        for k, (y, grad) in enumerate(results):
            np.testing.assert_array_equal(y, np.full(shape, 10.0 * k + 1))
            if rank == root:
                np.testing.assert_array_equal(grad, np.full(shape, ranks * (ranks + 1) / 2))
        assert not any(np.shares_memory(a, b) for i, (a, _) in enumerate(results) for b, _ in results[:i])


def test_what_is_prepared_is_used_on_every_rank() -> None:
    """A rank that receives, or whose result is elsewhere, calls no more functions than the root does."""

    def program() -> tuple[int, int]:
        with cc.Mesh(dp=2), ag.Tape():
            x = ag.tensor(np.ones(8), {"dp": cc.Rooted(0)}, requires_grad=True)
            p = ag.tensor(np.ones(8), {"dp": cc.P}, requires_grad=True)
            calls = [lambda: cc.broadcast(x, "dp"), lambda: cc.reduce(p, "dp")]
            return tuple(len([1 for file, _ in entered(f) if "/declaration/" in file]) for f in calls)  # type: ignore[return-value]

    cc.check("off")
    try:
        at_root, elsewhere = cc.run(program, ranks=2)
    finally:
        cc.check("first")
    assert elsewhere[0] <= at_root[0] + 2 and elsewhere[1] <= at_root[1] + 1, (at_root, elsewhere)
