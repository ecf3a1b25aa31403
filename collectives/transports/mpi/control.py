"""The control channel over MPI: a communicator that only the monitors use. See `job.control`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...job.control import Test
from .library import MPI

__all__ = ["MpiControl"]


class MpiControl:
    """Messages between the monitors of all ranks of an epoch.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        A communicator of these ranks that nothing else uses.
    ranks : tuple of int
        Their numbers in the world.
    everyone_leaves : callable, optional
        Where MPI survives the death of a rank: whether all processes that live have come to the ends of their programs.
    """

    def __init__(self, comm: Any, ranks: tuple[int, ...], everyone_leaves: Callable[[], bool] | None = None):
        self.comm = comm
        self.ranks = ranks
        self.rank = ranks[comm.Get_rank()]
        self.is_over = False
        self._everyone_leaves = everyone_leaves
        self._places = {rank: place for place, rank in enumerate(ranks)}

    def send(self, rank: int, tag: int, content: Any, *, is_synchronous: bool = False) -> Test:
        data = bytearray(json.dumps(content).encode())
        start = self.comm.Issend if is_synchronous else self.comm.Isend
        try:
            test = start([data, MPI.BYTE], dest=self._places[rank], tag=tag).Test
        except MPI.Exception:
            if self._everyone_leaves is None:
                raise
            return lambda: True
        return test if self._everyone_leaves is None else lambda: self._tested(test)

    def receive(self, tag: int) -> tuple[int, Any] | None:
        if self.is_over:
            return None
        status = MPI.Status()
        try:
            message = self.comm.Improbe(tag=tag, status=status)
            if message is None:
                return None
            data = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
        except MPI.Exception as error:
            if self._everyone_leaves is None:
                raise
            self._note(error)
            return None
        return self.ranks[status.Get_source()], json.loads(data)

    def barrier(self, number: int) -> Test:
        everyone_leaves = self._everyone_leaves
        if everyone_leaves is None:
            test: Test = self.comm.Ibarrier().Test
            return test
        tests: list[Test] = []
        try:
            tests.append(self.comm.Ibarrier().Test)
        except MPI.Exception as error:
            self._note(error)

        def is_complete() -> bool:
            if tests:
                try:
                    return tests[0]()
                except MPI.Exception as error:
                    self._note(error)
                    tests.clear()
            # A rank has died. Others may have left after the last barrier, so nobody waits for them any more.
            return number == 2 or self.is_over or everyone_leaves()

        return is_complete

    def end(self) -> None:
        """Tell all ranks that the epoch is over, also those that do not know of a death."""
        self.is_over = True
        self.comm.Revoke()

    # -- errors of MPI -----------------------------------------------------------------------------------------
    def _note(self, error: Any) -> None:
        if error.Get_error_class() == MPI.ERR_REVOKED:
            self.is_over = True
        elif not self.is_over:
            self.comm.Ack_failed(self.comm.Get_size())  # without it the next probe of any source fails as well

    def _tested(self, test: Test) -> bool:
        try:
            return test()
        except MPI.Exception:  # the receiver has died, or the epoch is over
            return True
