"""Staging of arrays whose device has no runtime (`autograd.arrays.runtime`): whole, and while the host waits.

The operand is copied to the host, the call is made there, and the result is copied back to the operand's device.
`pinned` stages the arrays of devices that have a runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd.arrays.device import move, to_host

from ..protocol import Pending, Request, Wrapper

__all__ = ["Staged"]


class Staged(Wrapper):
    """Wraps a host transport, `base`, so that it accepts arrays of any device.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> Staged(cc.world()).all_reduce(np.ones(2))
    array([1., 1.])
    """

    def run(self, request: Request) -> Any:
        """Make a call; its result is on the device of the operand or the buffer."""
        return _returned(self.base.run(_on_host(request)), request)

    def start(self, request: Request) -> Pending[Any]:
        """Start a call. The operand is copied to the host now; `wait` copies the result back to its device."""
        pending = self.base.start(_on_host(request))
        return Pending(pending.test, lambda: _returned(pending.wait(), request))


def _on_host(request: Request) -> Request:
    """The request with host arrays; its buffer is replaced by a host array of the same size."""
    x, out = request.x, request.out
    x = x if x is None or isinstance(x, bytes) else np.ascontiguousarray(to_host(x))
    if out is not None:
        out = x if out is request.x else np.empty(out.size, out.dtype)
    return request._replace(x=x, out=out)


def _returned(y: Any, request: Request) -> Any:
    """Copy a host result to the device of the request's arrays, into its buffer if it has one."""
    if not isinstance(y, np.ndarray):
        return y
    if request.out is None:
        return move(y, request.x) if request.x is not None else y
    request.out[...] = move(y, request.out)
    return request.out
