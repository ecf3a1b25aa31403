"""The communicators of a world: made by MPI for the ranks of a group, and freed together.

MPI libraries support about 2,000 communicators at a time, and freeing one is a collective call. A communicator that
nothing refers to any more on this rank is therefore kept at first. Each time that the same ranks have made `_FREEING`
further communicators, they exchange lists of those that they have dropped, and free the ones that all of them have
dropped. So the ranks may collect garbage at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import finalize

from autograd.errors import CommunicationError

from ...job.activity import Channel
from ..protocol import Communicator
from .library import MPI
from .waiting import Waits

__all__ = ["Groups", "Handle"]

_FREEING = 16  # communicators that the same ranks make between two exchanges of what they have dropped


class Handle:
    """An MPI communicator that several `MpiCommunicator` share. It may be freed once the last of them is gone."""

    __slots__ = ("__weakref__", "comm")

    def __init__(self, comm: Any):
        self.comm = comm


class Groups:
    """The communicators of one rank of a world.

    Parameters
    ----------
    waits : Waits
        Makes the rank wait for the others, also while a communicator is made.

    Attributes
    ----------
    hosts : tuple of int
        For each rank of the world, the lowest rank on its host; see `Communicator.hosts`.
    """

    def __init__(self, waits: Waits):
        self.waits = waits
        self.hosts: tuple[int, ...] = (0,)
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
        handle = Handle(comm)
        finalize(handle, self._drop, comm, channel.ranks, channel.key).atexit = False
        return handle

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
            return self.keep(self.waits.block(wait, comm.Create_group, chosen, tag), channel)
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
            self._free_dropped(group)

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
            del self._comms[key]
            for known in [k for k in channels.copy() if k.partition("/")[0] == key]:  # and those of its lanes
                del channels[known]

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
