"""Device arrays that are passed to a GPU-aware MPI library as they are.

MPI knows no streams: it reads and writes device memory at once. So the host waits, before each call, until the current
stream has done the operations on the operand, and those on the memory that the result was allocated in. After the call
the result is there, for every stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd.arrays.runtime import Runtime

from ..protocol import Pending, Request
from ..request import REDUCTIONS, answer

__all__ = ["DeviceBuffers"]

_STAGED = frozenset(("scan", "get", "accumulate", "exchange", "barrier"))  # they compute with the arrays on the host
_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)


class DeviceBuffers:
    """Carries the device arrays of a group through MPI; see the module.

    Parameters
    ----------
    group : MpiCommunicator
    runtime : Runtime
    """

    name = "mpi"

    def __init__(self, group: Any, runtime: Runtime):
        self._group, self._runtime = group, runtime

    @staticmethod
    def carries(request: Request, started: bool) -> bool:
        """Whether a call is passed to MPI with device arrays. The other ranks may pass host arrays to it."""
        return request.call not in _STAGED

    def run(self, request: Request) -> Any:
        """Make a call."""
        x, out, rounds = self._prepared(request, request.call == "send")
        y = self._group._run(request, x, out)
        return self._rounded(request, y) if rounds else y

    def start(self, request: Request) -> Pending[Any]:
        """Start a call."""
        x, out, rounds = self._prepared(request, request.call != "lend")
        pending: Pending[Any] = self._group._start(request, x, out)
        if not rounds:
            return pending
        return Pending(pending.test, lambda: self._rounded(request, pending.wait()))

    def _prepared(self, request: Request, owns: bool) -> tuple[Any, Any, bool]:
        """The operand and the result as the transport takes them, after the operations on them."""
        call, x, out = request.call, request.x, request.out
        in_place = call == "all_reduce" and out is x
        rounds = call in REDUCTIONS and x.dtype == _HALF
        found = answer(request, self._group.index)
        if rounds:  # MPI has no float16
            x = x.astype(_SINGLE)
        elif owns and x is not None and not in_place:
            x = x.copy()
        if call == "broadcast":
            x, out = None, out if x is None else x if owns else x.copy()
        elif in_place:
            out = x
        elif out is None and found is not None:
            out = np.empty_like(x, shape=(found[0],), dtype=_SINGLE if rounds else found[1])
        if call in ("send", "lend"):
            self._group.traffic.count(self._group.ranks[request.peer], x.nbytes)
        self._runtime.current_stream().synchronize()
        if self._group.unsent is not None:
            self._group.unsent(True)
        return x, out, rounds

    def _rounded(self, request: Request, y: Any) -> Any:
        if y is None:
            return None
        half = y.astype(_HALF)
        if request.out is None:
            return half
        request.out[...] = half
        return request.out
