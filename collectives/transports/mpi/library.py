"""What is done once in a process of mpiexec: mpi4py is loaded, hosts find each other, and the end is prepared.

This is the transport's one import of mpi4py, made only when there is a world of processes (`mpi.mpi_world`).
"""

from __future__ import annotations

from typing import Any

from ...job import failure
from .calls import fill_kinds

__all__ = ["MPI", "leave_before_finalize", "link_hosts", "load"]

MPI: Any = None
"""``mpi4py.MPI`` once `load` was called; to be read from this module."""


def load() -> Any:
    """Import mpi4py, fill in the datatypes of `calls`, and return ``mpi4py.MPI``."""
    global MPI
    from mpi4py import MPI as loaded

    MPI = loaded
    fill_kinds(loaded)
    return MPI


def link_hosts(control: Any) -> None:
    """Make the referees of several hosts known to one another. No rank leaves the next collective call before."""
    here = control.Split_type(MPI.COMM_TYPE_SHARED)
    is_spread = here.Get_size() < control.Get_size()  # the same on all ranks
    here.Free()
    if not is_spread:
        return
    where = bytearray(4096)
    if control.Get_rank() == 0:
        text = failure.open_to_hosts().encode()
        where[: len(text)] = text[: len(where)]
    control.Bcast([where, MPI.BYTE], 0)
    failure.join_hosts(where.rstrip(b"\0").decode())


def leave_before_finalize() -> None:
    """A program that calls ``MPI.Finalize`` itself leaves there: the attributes of COMM_SELF go first."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: failure.leave())
    MPI.COMM_SELF.Set_attr(keyval, True)
