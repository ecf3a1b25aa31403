"""Transports of host memory, and how they carry arrays of a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from autograd.arrays.device import runtime_of
from autograd.errors import CommunicationError

from ..protocol import Communicator, Request, quietly
from .choice import Choice, choose
from .ipc import Arena, DeviceMemory
from .nccl import ROOTED, Nccl
from .pinned import Buffers, PinnedStaging
from .staged import Staged

__all__ = ["HostTransport"]

_ON_ALL_RANKS = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "scan"))


@cache
def _buffers(runtime: Any) -> Buffers:
    """The page-locked memory of this process for a device."""
    return Buffers(runtime)


class HostTransport(Communicator):
    """A transport that needs its arrays in host memory. Calls on arrays of a device are staged, or carried otherwise.

    A subclass calls `unsent` before each of its calls if it is not None, so that started calls on device arrays keep
    their place in the order. One that is the ranks' own transport, not an algorithm, has `device_state` too.
    """

    unsent: Callable[[bool], None] | None = None
    """Hands over the started calls on device arrays that were not passed to this transport; None without such calls."""
    _statement: Any = None  # what the next call carries to be compared, for transports that combine the two
    _staging: dict[Any, PinnedStaging] | None = None
    _carriers: dict[Any, Any] | None = None  # by runtime; None for staging
    device_choice: Choice | None = None
    """What carries device arrays on this channel, and why; None before the first call that needs it."""

    @property
    def device_state(self) -> dict[Any, Any] | None:
        """What this rank of the world keeps for device arrays, by ranks; None: they are always staged."""
        return None

    def _on_close(self, release: Callable[[], None]) -> None:
        """Register a function that all ranks of this group call when their world is closed."""

    def _note(self, request: Request) -> None:
        """Note a call that the transport does not make itself, where monitors compare the calls of the ranks."""

    def _device_buffers(self, runtime: Any) -> Any:
        """The carrier of device arrays that are passed to the transport as they are."""
        raise NotImplementedError

    # -- calls -------------------------------------------------------------------------------------------------
    def _on_device(self, request: Request, started: bool) -> Any:
        runtime = runtime_of(type(request.out if request.x is None else request.x))
        if runtime is None:
            carrier: Any = Staged(self)
        else:
            carrier = self._carrier(request, started, runtime) or self.staging(runtime)
        return carrier.start(request) if started else carrier.run(request)

    def staging(self, runtime: Any) -> PinnedStaging:
        """The staging of a device's arrays for this channel."""
        if self._staging is None:
            self._staging = {}
        found = self._staging.get(runtime)
        if found is None:
            found = self._staging[runtime] = PinnedStaging(self, runtime, _buffers(runtime))
        return found

    # -- what carries them otherwise ---------------------------------------------------------------------------
    def _carrier(self, request: Request, started: bool, runtime: Any) -> Any:
        """What carries a call, if it is not staged: the same on all ranks."""
        state = self.device_state
        if state is None or self.size == 1:
            return None
        if self._carriers is None:
            self._carriers = {}
        if runtime not in self._carriers:
            if request.call not in _ON_ALL_RANKS:
                return None  # the other ranks may have arrays of the host, and would not take part in the choice
            self._carriers[runtime] = self._choose(runtime, state)
        carrier: Any = self._carriers[runtime]
        if self.before_root is not None and request.call in ROOTED and not started and not self._agree_on_device(True):
            return None
        if carrier is None or not carrier.carries(request, started):
            return None
        if carrier.name != "mpi":  # MPI's calls are noted by the transport
            self._note(request)
        return carrier

    def _choose(self, runtime: Any, state: dict[Any, Any]) -> Any:
        key = self.ranks, runtime.name
        if key not in state:
            state[key] = choose(self, runtime)
        choice = self.device_choice = state[key]
        if choice.name == "nccl":
            made = Nccl(self, runtime, runtime.nccl())
            self._on_close(made.close)
            self.before_root = self._agree_on_device
            return made
        if choice.name == "mpi":
            return self._device_buffers(runtime)
        if choice.name == "ipc":
            arena = state.get(("arena", *key))
            if arena is None:
                arena = state["arena", *key] = self._new_arena(runtime, choice)
            if isinstance(arena, Arena):
                return DeviceMemory(self, arena)
            self.device_choice = arena
        return None

    def _new_arena(self, runtime: Any, choice: Choice) -> Arena | Choice:
        own = quietly(lambda: self.subgroup(range(self.size), f"{self.name}/device memory"))
        try:
            arena = Arena(own, runtime)
        except CommunicationError as error:
            return Choice("staged", f"{choice.name}: {error}")
        self._on_close(arena.close)
        return arena

    def _agree_on_device(self, is_on_device: bool = False) -> bool:
        """Whether all ranks have a device array in a call with a root."""
        return all(each == b"d" for each in quietly(lambda: self.exchange(b"d" if is_on_device else b"h")))
