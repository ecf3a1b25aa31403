"""Exercise 1: the adjoint of a broadcast.

`forward` copies the root's array to all ranks. Write `adjoint`: it gets the cotangent of this rank's copy, and returns
the cotangent of the operand, which only rank 0 has: None on the other ranks. `group` is a communicator with
`group.broadcast(x, root)`, `group.reduce(x, root)` (the sum, on the root; None elsewhere), `group.all_reduce(x)`,
`group.rank` and `group.size`. Its arrays have one dimension.

    python examples/exercises/1_broadcast.py

The law: the sum over the ranks of <ct, y> is <F* ct, x>, for every x and every ct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import collectives as cc

Adjoint = Callable[[np.ndarray, Any], np.ndarray | None]


def forward(x: np.ndarray | None, group: Any) -> np.ndarray:
    """Copy the array of rank 0 to all ranks."""
    result: np.ndarray = group.broadcast(np.empty(3) if x is None else x.copy(), 0)
    return result


def adjoint(ct: np.ndarray, group: Any) -> np.ndarray | None:
    """Return the cotangent of x on rank 0, and None on the other ranks."""
    raise NotImplementedError("write the adjoint")


def check(adjoint: Adjoint, ranks: tuple[int, ...] = (1, 2, 3, 5)) -> str:
    """Test an adjoint on several numbers of ranks. Returns what is wrong; "" if nothing is."""

    def program() -> Any:
        group = cc.world()
        random = np.random.default_rng(int(group.rank))
        x, ct = random.normal(size=(2, 3))
        y = forward(x if group.rank == 0 else None, group)
        kept = ct.copy()
        found = adjoint(ct, group)
        return x, y, kept, found, bool((ct == kept).all())

    for n in ranks:
        results = cc.run(program, n)
        x, expected = results[0][0], np.sum([ct for _, _, ct, _, _ in results], axis=0)
        for rank, (_, _, _, found, is_kept) in enumerate(results):
            if not is_kept:
                return f"{n} ranks, rank {rank}: the adjoint has changed the given cotangent\n  fix: ct.copy()"
            if rank and found is not None:
                return f"{n} ranks, rank {rank}: the adjoint returns {found}; needed: None: only rank 0 has the operand"
            if not rank and found is None:
                return f"{n} ranks, rank 0: the adjoint returns None; needed: the cotangent of x"
        found = np.asarray(results[0][3])
        left = float(np.vdot(found, x)) if found.shape == x.shape else float("nan")
        right = sum(float(np.vdot(ct, y)) for _, y, ct, _, _ in results)
        if found.shape != expected.shape or not np.allclose(found, expected):
            hint = ""
            if found.shape == expected.shape and np.allclose(found * n, expected):
                hint = f"\n  it is {n} times too small: a mean in the place of a sum"
            elif np.allclose(found, results[0][2]):
                hint = "\n  it is rank 0's own cotangent: those of the other ranks' copies are missing"
            return (f"{n} ranks, rank 0: the cotangent of x is {found}; needed: {expected}{hint}\n"
                    f"  <F* ct, x> = {left:.6f}, <ct, F x> = {right:.6f}")  # fmt: skip
    return ""


if __name__ == "__main__":
    print(check(adjoint) or "right: the adjoint of a broadcast is the sum on the root")
