"""Functions in NumPy and raw mpi4py, as other projects write them: right pairs, and pairs with a common fault."""

from __future__ import annotations

from typing import Any

import numpy as np

import collectives as cc
from collectives import I, P, R, V


def shift(x: Any, comm: Any, by: int = 1) -> Any:
    """Send every rank's value `by` ranks further around the ring."""
    p, rank = comm.Get_size(), comm.Get_rank()
    y = np.empty_like(x)
    comm.Sendrecv(np.ascontiguousarray(x), (rank + by) % p, recvbuf=y, source=(rank - by) % p)
    return y


def shift_back(ct: Any, comm: Any) -> Any:
    return shift(ct, comm, -1)


def total(x: Any, comm: Any) -> Any:
    y = np.empty_like(x)
    comm.Allreduce(np.ascontiguousarray(x), y)
    return y


def same(x: Any, comm: Any) -> Any:
    return x


def smooth(x: Any, comm: Any) -> Any:
    """A stencil over rows on several ranks: half of the row and a quarter of each neighbour; zeros outside."""
    p, rank = comm.Get_size(), comm.Get_rank()
    from mpi4py import MPI

    above, below = np.zeros_like(x[0]), np.zeros_like(x[0])
    up, down = (rank - 1 if rank else MPI.PROC_NULL), (rank + 1 if rank < p - 1 else MPI.PROC_NULL)
    comm.Sendrecv(x[-1].copy(), down, recvbuf=above, source=up)
    comm.Sendrecv(x[0].copy(), up, recvbuf=below, source=down)
    wide = np.concatenate([above[None], x, below[None]])
    return 0.5 * wide[1:-1] + 0.25 * wide[:-2] + 0.25 * wide[2:]


def upwind(x: Any, comm: Any) -> Any:
    """The difference to the row above, across ranks."""
    p, rank = comm.Get_size(), comm.Get_rank()
    from mpi4py import MPI

    above = np.zeros_like(x[0])
    comm.Sendrecv(x[-1].copy(), rank + 1 if rank < p - 1 else MPI.PROC_NULL, recvbuf=above,
                  source=rank - 1 if rank else MPI.PROC_NULL)  # fmt: skip
    return x - np.concatenate([above[None], x[:-1]])


def upwind_adjoint(ct: Any, comm: Any) -> Any:
    p, rank = comm.Get_size(), comm.Get_rank()
    from mpi4py import MPI

    below = np.zeros_like(ct[0])
    comm.Sendrecv(ct[0].copy(), rank - 1 if rank else MPI.PROC_NULL, recvbuf=below,
                  source=rank + 1 if rank < p - 1 else MPI.PROC_NULL)  # fmt: skip
    return ct - np.concatenate([ct[1:], below[None]])


def upwind_cropped(ct: Any, comm: Any) -> Any:
    """The fault: the part that belongs to the neighbour is dropped."""
    return ct - np.concatenate([ct[1:], np.zeros_like(ct[:1])])


RIGHT = [
    (shift, shift_back, V, V),
    (total, total, P, R),
    (total, same, P, I),
    (same, total, I, R),
    (smooth, smooth, V, V),
    (upwind, upwind_adjoint, V, V),
]
WRONG = [
    ("not turned round", shift, shift, V, V),
    ("the identity", shift, same, V, V),
    ("no sum", total, same, P, R),
    ("summed once more", total, total, P, I),
    ("no sum over the uses", same, same, I, R),
    ("cropped halo", upwind, upwind_cropped, V, V),
    ("twice", smooth, lambda ct, comm: 2 * smooth(ct, comm), V, V),
]
"""Wrong on more than one rank; "twice" on one as well."""


def reports() -> tuple[list[Any], list[tuple[str, Any]]]:
    """The reports of the check on the right and the wrong pairs; all ranks call it."""
    right = [cc.check_collective(cc.wrap(*pair[:2], takes=pair[2], gives=pair[3])) for pair in RIGHT]
    wrong = [(fault, cc.check_collective(cc.wrap(f, g, takes=takes, gives=gives, name=f"{f.__name__}: {fault}")))
             for fault, f, g, takes, gives in WRONG]  # fmt: skip
    return right, wrong
