"""The control channel over MPI: a communicator that only the monitors use. See `job.control`."""

from __future__ import annotations

import json
from typing import Any

from ...job.control import Test
from .library import MPI

__all__ = ["MpiControl"]


class MpiControl:
    """Messages between the monitors of all ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        A duplicate of the world that nothing else uses.
    """

    def __init__(self, comm: Any):
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def send(self, rank: int, tag: int, content: Any, *, is_synchronous: bool = False) -> Test:
        data = bytearray(json.dumps(content).encode())
        start = self.comm.Issend if is_synchronous else self.comm.Isend
        test: Test = start([data, MPI.BYTE], dest=rank, tag=tag).Test
        return test

    def receive(self, tag: int) -> tuple[int, Any] | None:
        status = MPI.Status()
        message = self.comm.Improbe(tag=tag, status=status)
        if message is None:
            return None
        data = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([data, MPI.BYTE])
        return status.Get_source(), json.loads(data)

    def barrier(self) -> Test:
        test: Test = self.comm.Ibarrier().Test
        return test
