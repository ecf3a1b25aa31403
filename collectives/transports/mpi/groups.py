"""The communicators of a world: made by MPI for the ranks of a group, and freed together.

MPI libraries support about 2,000 communicators at a time, and freeing one is a collective call. A communicator that
nothing refers to any more on this rank is therefore kept at first. Each time that the same ranks have made `_FREEING`
further communicators, they exchange lists of those that they have dropped, and free the ones that all of them have
dropped. So the ranks may collect garbage at different times.

Each epoch of a world has `Groups` of its own. When it is over, its communicators and memory are freed, but not the
memory that a rank still has arrays in (`retire`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import finalize

from autograd.errors import CommunicationError

from ...job.activity import Channel
from ..protocol import Communicator, quietly
from .library import MPI
from .waiting import Waits

__all__ = ["Groups", "Handle", "Memory"]

_FREEING = 16  # communicators that the same ranks make between two exchanges of what they have dropped


class Handle:
    """An MPI communicator that several `MpiCommunicator` share. It may be freed once the last of them is gone."""

    __slots__ = ("__weakref__", "comm")

    def __init__(self, comm: Any):
        self.comm = comm


class Memory(Protocol):
    """Memory that the ranks of a group have made together."""

    @property
    def is_unused(self) -> bool:
        """Whether this rank has no array in it."""
        ...

    def refuse(self) -> None:
        """Make every further use raise an error: its epoch is over."""
        ...

    def free(self) -> None:
        """Free it. All ranks of the group that live call it, and none uses it."""
        ...


class Groups:
    """The communicators of one rank of a world, in one of its epochs.

    Parameters
    ----------
    waits : Waits
        Makes the rank wait for the others, also while a communicator is made.
    hosts : tuple of int
        For each rank of the world, the lowest rank on its host; see `Communicator.hosts`.
    domains : tuple of tuple of int
        See `Communicator.domains`.
    """

    def __init__(self, waits: Waits, hosts: tuple[int, ...] = (0,), domains: tuple[tuple[int, ...], ...] = ()):
        self.waits = waits
        self.hosts, self.domains = hosts, domains
        self._ranks: dict[str, tuple[int, ...]] = {}  # of communicators and memory, by key
        self._memories: dict[str, Memory] = {}  # by key
        self._numbers: dict[str, int] = {}  # of the memory of each channel
        self._made: dict[tuple[int, ...], int] = {}  # how many communicators were made of these ranks
        self._dropped: dict[tuple[int, ...], dict[str, Any]] = {}  # unreferenced communicators, by key
        self._comms: dict[str, Any] = {}  # all communicators that exist in MPI, by key, in order of creation
        self.on_close: list[Callable[[], None]] = []  # collective functions that free the groups' shared memory
        self.pools: dict[tuple[int, ...], Any] = {}  # the shared memory of each set of ranks: see `Communicator.pools`
        self.devices: dict[Any, Any] = {}  # what carries device arrays: see `HostTransport.device_state`
        self._is_closed = False

    def keep(self, comm: Any, channel: Channel) -> Handle:
        """Register an MPI communicator, so that it is freed when it is no longer used."""
        self._comms[channel.key] = comm
        self._ranks[channel.key] = channel.ranks
        handle = Handle(comm)
        finalize(handle, self._drop, comm, channel.ranks, channel.key).atexit = False
        return handle

    def own(self, channel: Channel, memory: Memory) -> str:
        """Register memory of a channel's ranks, so that it is freed when its epoch is over. Returns its key."""
        number = self._numbers[channel.key] = self._numbers.get(channel.key, 0) + 1
        key = f"{channel.key}/memory {number}"
        self._memories[key], self._ranks[key] = memory, channel.ranks
        return key

    def disown(self, key: str) -> None:
        """Undo `own`, when the ranks have freed the memory."""
        self._memories.pop(key, None)
        self._ranks.pop(key, None)

    def create(self, parent: Communicator, comm: Any, channel: Channel, members: Sequence[int], digest: int) -> Handle:
        """Make a communicator for `channel` from some members of `parent`, whose communicator is `comm`. All call it.

        Raises
        ------
        CommunicationError
            MPI cannot make another communicator.
        """
        wait = (channel, "subgroup", 1, None)
        self.waits.check(wait)
        group = comm.Get_group()
        chosen = group.Incl(members)
        tag_limit: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        tag = digest % (tag_limit + 1)
        channels = self.waits.activity.channels
        channels[channel.key] = channel
        channel.calls = 1
        try:
            self.waits.meet(wait, comm, members, tag)
            made = self.waits.block_apart(wait, comm.Create_group, chosen, tag)
            self.waits.meet(wait, comm, members, tag)  # nobody ends the epoch while others are inside that call
            return self.keep(made, channel)
        except CommunicationError as error:
            channels.pop(channel.key)
            if type(error) is not CommunicationError:
                raise  # another rank has failed, or the world is closed
            raise CommunicationError(self._too_many(channel.name, parent.name, error.reason)) from error
        finally:
            chosen.Free()
            group.Free()

    def _too_many(self, name: str, parent: str, reason: str) -> str:
        """The message for a communicator that MPI cannot make, usually because there are too many."""
        alive = len(self._comms) - sum(map(len, self._dropped.values())) - 1  # without the world's own
        return (
            f"'{name}' could not be made on '{parent}' ({reason}). This rank holds {alive} communicators; MPI "
            f"libraries support about 2,000 at a time\n  needed: meshes that are made once and used again, or dropped "
            f"(a tape keeps the meshes that it recorded)"
        )

    def count_made(self, group: Communicator) -> None:
        """Count a new communicator of several ranks, and regularly free dropped ones. All of its ranks call it."""
        self._made[group.ranks] = count = self._made.get(group.ranks, 0) + 1
        if count % _FREEING == 0:
            quietly(lambda: self._free_dropped(group))  # no part of the program, which other transports have too

    def _drop(self, comm: Any, ranks: tuple[int, ...], key: str) -> None:
        if not self._is_closed:
            self._dropped.setdefault(ranks, {})[key] = comm

    def _free_dropped(self, group: Communicator) -> None:
        """Free the communicators that all of the group's ranks have dropped, in the same order on every rank."""
        mine = self._dropped.get(group.ranks, {})
        dropped_keys = [set(data.decode().split()) for data in group.exchange(" ".join(mine.copy()).encode())]
        channels = self.waits.activity.channels
        for key in sorted(set.intersection(*dropped_keys)):
            mine.pop(key).Free()
            del self._comms[key], self._ranks[key]
            for known in [k for k in channels.copy() if k.partition("/")[0] == key]:  # and those of its lanes
                del channels[known]

    # -- the end of an epoch -----------------------------------------------------------------------------------
    def refuse(self, revokes: bool) -> None:
        """Make every use of the memory raise an error, and with `revokes` every MPI call on the communicators."""
        for memory in list(self._memories.values()):
            memory.refuse()
        for comm in list(self._comms.values()) if revokes else ():
            comm.Revoke()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of it."""
        return not (self._comms or self._memories)

    def unused(self, frees_comms: bool) -> list[str]:
        """The keys of what is left of an epoch that is over, and not in use on this rank."""
        self._is_closed = True  # what is dropped from now on is not counted
        keys = [key for key, memory in self._memories.items() if memory.is_unused]
        return keys + list(self._comms) * frees_comms

    def free_unused(self, keys: dict[int, frozenset[str]], is_local: bool) -> None:
        """Free what is left of an epoch that is over. All ranks of the present epoch call it.

        Parameters
        ----------
        keys : dict of int to frozenset of str
            For each of these ranks, what it does not use: see `unused`.
        is_local : bool
            Whether freeing needs no rank that has failed: otherwise what such a rank had a part in is kept.
        """
        for key in sorted(self._ranks, key=lambda key: (key in self._comms, key)):  # memory first
            ranks = self._ranks[key]
            is_free = all(key in keys[rank] for rank in ranks if rank in keys)
            if not (is_free and (is_local or keys.keys() >= set(ranks))):
                continue
            del self._ranks[key]
            try:
                self._comms.pop(key).Free() if key in self._comms else self._memories.pop(key).free()
            except MPI.Exception:
                if not is_local:
                    raise  # a rank has died just now, and the memory is free nevertheless

    def free_all(self) -> None:
        """Free shared memory and all communicators when all ranks close the world; further calls raise an error."""
        for release in self.on_close[::-1]:  # a function that is called may remove itself
            release()
        self.waits.activity.close()
        self._is_closed = True
        # In order of creation, which is the same on all ranks that share a communicator.
        for comm in self._comms.values():
            comm.Free()
        self._comms.clear()
        self._dropped.clear()
