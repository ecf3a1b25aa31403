"""Transports of host memory, and the ways in which they carry arrays of a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from autograd.arrays.device import runtime_of

from ..protocol import Communicator, Request
from .pinned import Buffers, PinnedStaging
from .staged import Staged

__all__ = ["HostTransport"]


@cache
def _buffers(runtime: Any) -> Buffers:
    """The page-locked memory of this process for a device."""
    return Buffers(runtime)


class HostTransport(Communicator):
    """A transport that needs its arrays in host memory: calls on arrays of a device are staged.

    A subclass calls `unsent` before each of its calls if it is not None, so that started calls on device arrays keep
    their place in the order.
    """

    unsent: Callable[[bool], None] | None = None
    """Hands over the started calls on device arrays that were not passed to this transport; None without such calls."""
    _statement: Any = None  # what the next call carries to be compared, for transports that combine the two
    _staging: dict[Any, PinnedStaging] | None = None

    def staging(self, runtime: Any) -> PinnedStaging:
        """The staging of a device's arrays for this channel."""
        if self._staging is None:
            self._staging = {}
        found = self._staging.get(runtime)
        if found is None:
            found = self._staging[runtime] = PinnedStaging(self, runtime, _buffers(runtime))
        return found

    def _on_device(self, request: Request, started: bool) -> Any:
        runtime = runtime_of(type(request.out if request.x is None else request.x))
        carrier: Any = Staged(self) if runtime is None else self.staging(runtime)
        return carrier.start(request) if started else carrier.run(request)
