"""The carriers of one channel's device arrays: one chosen at the first call of all ranks, and staging for the rest.

A `HostTransport` makes its `Carriers` with its first device array.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from autograd.arrays.device import runtime_of
from autograd.errors import CommunicationError

from ..protocol import Request, quietly
from ..request import shown
from .choice import Choice, choose
from .ipc import Arena, DeviceMemory
from .nccl import ROOTED, Nccl
from .pinned import Buffers, PinnedStaging
from .staged import Staged

__all__ = ["Carriers"]

_ON_ALL_RANKS = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "scan"))


@cache  # one for each device, which its channels share
def _buffers(runtime: Any) -> Buffers:
    """The page-locked memory of this process for a device."""
    return Buffers(runtime)


class Carriers:
    """The carriers of a channel's device arrays.

    Parameters
    ----------
    group : HostTransport
        The channel. Staged calls are made on it, in host memory.

    Attributes
    ----------
    staging : dict
        By runtime: the staging of a device's arrays.
    chosen : dict
        By runtime: the carrier that all ranks have chosen, or None for staging.
    """

    def __init__(self, group: Any):
        self.group = group
        self.staging: dict[Any, PinnedStaging] = {}
        self.chosen: dict[Any, Any] = {}

    def carry(self, request: Request, started: bool) -> Any:
        """Make a call whose arrays are on a device, or start it."""
        runtime = runtime_of(type(request.out if request.x is None else request.x))
        if runtime is None:
            carrier: Any = Staged(self.group)
        else:
            carrier = self._carrier(request, started, runtime) or self._staging(runtime)
        return carrier.start(request) if started else carrier.run(request)

    def _staging(self, runtime: Any) -> PinnedStaging:
        found = self.staging.get(runtime)
        if found is None:
            found = self.staging[runtime] = PinnedStaging(self.group, runtime, _buffers(runtime))
        return found

    def _carrier(self, request: Request, started: bool, runtime: Any) -> Any:
        """The carrier of a call that is not staged: the same on all ranks."""
        group = self.group
        state = group.device_state
        if state is None or group.size == 1:
            return None
        if runtime not in self.chosen:
            if request.call not in _ON_ALL_RANKS:
                return None  # the other ranks may have arrays of the host, and would not take part in the choice
            of = f"{shown(request)} of an array on {runtime.name}, not in host memory"
            self.chosen[runtime] = self._choose(runtime, state, of)
        carrier: Any = self.chosen[runtime]
        if group.before_root is not None and request.call in ROOTED and not started and not self._agree(True):
            return None
        if carrier is None or not carrier.carries(request, started):
            return None
        if carrier.name != "mpi":  # MPI's calls are noted by the transport
            carrier.noted = group.note(request)
        return carrier

    def _choose(self, runtime: Any, state: dict[Any, Any], of: str) -> Any:
        group = self.group
        key = group.ranks, runtime.name
        if key not in state:
            state[key] = choose(group, runtime, of)
        choice = group.device_choice = state[key]
        if choice.name == "nccl":
            try:
                made = Nccl(group, runtime, runtime.nccl())
            except CommunicationError as error:  # on all ranks
                group.device_choice = state[key] = Choice("staged", f"nccl: {error.reason}")
                return None
            group.on_close(made.close)
            group.watch(made)
            group.before_root = self._agree
            return made
        if choice.name == "mpi":
            return group.device_buffers(runtime)
        if choice.name == "ipc":
            arena = state.get(("arena", *key))
            if arena is None:
                arena = state["arena", *key] = self._new_arena(runtime, choice)
            if isinstance(arena, Arena):
                return DeviceMemory(group, arena)
            group.device_choice = arena
        return None

    def _new_arena(self, runtime: Any, choice: Choice) -> Arena | Choice:
        group = self.group
        own = quietly(lambda: group.subgroup(range(group.size), f"{group.name}/device memory"))
        try:
            arena = Arena(own, runtime)
        except CommunicationError as error:
            return Choice("staged", f"{choice.name}: {error.reason}")
        group.on_close(arena.close)
        return arena

    def _agree(self, is_on_device: bool = False) -> bool:
        """Whether all ranks have a device array in a call with a root."""
        return all(each == b"d" for each in quietly(lambda: self.group.exchange(b"d" if is_on_device else b"h")))
