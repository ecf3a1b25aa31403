"""What the cases of the registry leave open, on the ranks of mpiexec or of threads: rounding, nan, unasked cotangents.

The counts and values are exact, so the same numbers are expected on every transport.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from collectives import I, Mesh, P, R

F16 = np.float16


def halves(rank: int) -> np.ndarray:
    """2048, 1, 1, ...: in float16 each 1 would be lost, in float32 they count, and one rounding is left."""
    return np.array([2048.0 if rank == 0 else 1.0, 1.0 + rank], F16)


def float16_is_rounded_once() -> None:
    size, rank = cc.world().size, cc.world().rank
    total = F16(2048 + size - 1)
    with Mesh(a=size) as mesh:
        x = ag.tensor(halves(rank), layout={"a": P})
        assert cc.all_reduce(x, "a").numpy()[0] == total
        summed = cc.reduce(x, "a", root=size - 1)
        assert rank < size - 1 or summed.numpy()[0] == total
        parts = cc.reduce_scatter(x, "a").numpy()
        assert rank > 0 or parts[0] == total
        own = ag.tensor(halves(rank))
        assert cc.scan(own, "a").numpy()[0] == F16(2048 + rank)
        assert cc.exscan(own, "a").numpy()[0] == (F16(2048 + rank - 1) if rank else 0)
        # everyone reads what rank 0 has: the cotangents meet there
        x = ag.tensor(np.zeros(2, F16), requires_grad=True)
        with ag.Tape() as tape:
            y = cc.get(x, "a", 0)
        tape.backward([y], [ag.tensor(halves(rank))])
        assert x.grad is not None and x.grad.numpy()[0] == (total if rank == 0 else 0)
        # the only cell of each part is a ghost of both neighbours: three cotangents meet
        x = ag.tensor(np.zeros(1, F16), requires_grad=True)
        with ag.Tape() as tape:
            y = cc.halo_exchange(x, "a", 1, periodic=True)
        tape.backward([y], [ag.tensor(np.array([1.0, 2048.0, 1.0], F16))])
        assert x.grad is not None and x.grad.numpy().tolist() == [2050.0], x.grad
        # 1.0009765625 is the float16 after 1: its powers are between float16 numbers
        near = F16(1.0009765625)
        assert cc.all_prod(np.full(3, near), "a").numpy()[0] == F16(np.float64(near) ** size)
        assert mesh.axis("a").size == size


def extremes_of_all_kinds() -> None:
    size, rank = cc.world().size, cc.world().rank
    inf, nan = np.inf, np.nan
    last = size - 1
    with Mesh(a=size):
        for dtype in (np.float16, np.float32, np.float64, np.longdouble):
            rows = np.array([[-1.5, -0.0, inf, 3.0], [-2.5, 0.0, -inf, -3.0]], dtype)
            mine = rows[0] if rank == 0 else rows[1]
            most, least = cc.all_max(mine, "a").numpy(), cc.all_min(mine, "a").numpy()
            assert most.dtype == least.dtype == dtype
            whole = rows if size > 1 else rows[:1]
            assert np.array_equal(most, whole.max(axis=0)) and np.array_equal(least, whole.min(axis=0)), (most, least)
            if dtype is not np.longdouble:  # where MPI says nothing of nan
                for sign in (1, -1):
                    mine = np.array([sign * nan if rank == last else 1.0, sign * inf, 2.0 + rank], dtype)
                    for found in (cc.all_max(mine, "a").numpy(), cc.all_min(mine, "a").numpy()):
                        assert np.isnan(found[0]) and found[1] == sign * inf and np.isfinite(found[2])
        for kind in (np.int8, np.uint8, np.int64, np.uint64):
            ends = np.array([np.iinfo(kind).min, np.iinfo(kind).max, 5], kind)
            mine = ends if rank == last else np.full(3, 7, kind)
            everyone = [ends] + [np.full(3, 7, kind)] * (size > 1)
            assert np.array_equal(cc.all_max(mine, "a").numpy(), np.max(everyone, axis=0))
            assert np.array_equal(cc.all_min(mine, "a").numpy(), np.min(everyone, axis=0))
        flags = np.array([rank == 0, True, False])
        assert cc.all_max(flags, "a").numpy().tolist() == [True, True, False]
        assert cc.all_min(flags, "a").numpy().tolist() == [size == 1, True, False]
        assert cc.all_prod(flags, "a").numpy().tolist() == [size == 1, True, False]


def nobody_asked() -> None:
    """Results that reach no objective, on some ranks or on all: the ranks still meet, and nothing hangs."""
    size, rank = cc.world().size, cc.world().rank
    for users in ([], [0], [size - 1]):
        with Mesh(a=size):
            x = ag.tensor(1.0 + np.arange(6.0).reshape(3, 2) + rank, requires_grad=True)
            with ag.Tape() as tape:
                found = [
                    cc.get(x, "a", (rank + 1) % size, slice(0, 2)), cc.scan(x, "a"), cc.exscan(x, "a"),
                    cc.all_max(x, "a", to=R), cc.all_min(x, "a", to=R), cc.all_prod(x, "a", to=R),
                    cc.halo_exchange(x, "a", (1, 2), periodic=True),
                ]  # fmt: skip
                cc.barrier("a")
                used = sum((y.sum() for y in found), 0.0) if rank in users else x.sum() * 0.0
                loss = cc.all_reduce(used, "a", to=I)
            tape.backward(loss)
            assert x.grad is not None
            g: Any = x.grad.numpy()
            assert g.shape == (3, 2) and bool(g.any()) == bool(users), (users, rank, g)


def run_all() -> int:
    checks = [float16_is_rounded_once, extremes_of_all_kinds, nobody_asked]
    for check in checks:
        check()
    return len(checks)


if __name__ == "__main__":
    count = run_all()
    if cc.world().rank == 0:
        print(f"{count} checks on {cc.world().size} ranks", flush=True)
