"""Transports of host memory, and how they carry arrays of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autograd.doors import door

from .protocol import Communicator, Request

if TYPE_CHECKING:  # what carries device arrays is loaded with the first of them: programs without any start faster
    from ..job.activity import DeviceCalls

__all__ = ["HostTransport"]


class HostTransport(Communicator):
    """A transport that needs its arrays in host memory. Calls on arrays of a device are staged, or carried otherwise.

    A subclass calls `unsent` before each of its calls if it is not None, so that started calls on device arrays keep
    their place in the order. One that is the ranks' own transport, not an algorithm, has `device_state` too.
    """

    unsent: Callable[[bool], None] | None = None
    """Hands over the started calls on device arrays that were not passed to this transport; None without such calls."""
    device_choice: Any = None
    """What carries device arrays on this channel, and why (`device.choice`); None before the first such call."""
    carriers: Any = None
    """The `carriers.Carriers` of this channel; None before the first device array."""
    _statement: Any = None  # what the next call carries to be compared, for transports that combine the two

    @property
    def device_state(self) -> dict[Any, Any] | None:
        """The state of this rank for device arrays, by ranks; None: they are always staged."""
        return None

    def on_close(self, release: Callable[[], None]) -> None:
        """Register a function that all ranks of this group call when their world is closed."""

    def watch(self, calls: DeviceCalls) -> None:
        """Let the monitor watch calls that wait on a device, where there is a monitor."""

    def note(self, request: Request) -> Any:
        """Note a call that the transport does not make itself, where monitors compare the calls of the ranks.

        Returns the wait for which a monitor can tell whether it ever ends; None where there is no monitor.
        """

    def device_buffers(self, runtime: Any) -> Any:
        """The carrier of device arrays that are passed to the transport as they are."""
        raise NotImplementedError

    def _on_device(self, request: Request, started: bool) -> Any:
        if self.carriers is None:
            self.carriers = door("device").Carriers(self)
        return self.carriers.carry(request, started)
