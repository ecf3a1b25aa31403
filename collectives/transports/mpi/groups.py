"""The communicators of a world: made by MPI for the ranks of a group, and freed together.

MPI knows about 2,000 communicators at a time, and freeing one is collective. One that its rank has dropped is therefore
kept until the same ranks make another: every so many times they tell each other what they have dropped, and free what
all of them have. So it does not matter when garbage is collected on a rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from weakref import finalize

from autograd.errors import CommunicationError

from ...job.activity import Channel
from ..protocol import Communicator
from .library import MPI
from .waiting import Waits

__all__ = ["Groups", "Handle", "digest_of"]

_FREEING = 16  # so many communicators of the same ranks are made between two looks at what was dropped


def digest_of(text: str) -> int:
    """64 bits of a text, the same on every rank.

    Examples
    --------
    >>> digest_of("dp") == digest_of("dp") != digest_of("tp")
    True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Handle:
    """One communicator of MPI, which several of ours share; when the last of them is gone, it may be freed."""

    __slots__ = ("__weakref__", "comm")

    def __init__(self, comm: Any):
        self.comm = comm


class Groups:
    """The communicators of one rank of a world.

    Parameters
    ----------
    waits : Waits
        How the rank waits for the others, in the making of a communicator too.
    """

    def __init__(self, waits: Waits):
        self.waits = waits
        self._made: dict[tuple[int, ...], int] = {}  # how many there were of these ranks
        self._dropped: dict[tuple[int, ...], dict[str, Any]] = {}  # those that nothing refers to, by their keys
        self._comms: dict[str, Any] = {}  # those that MPI knows, by their keys in the order in which they were made
        self._is_closed = False

    def keep(self, comm: Any, channel: Channel) -> Handle:
        """Take charge of a communicator of MPI."""
        self._comms[channel.key] = comm
        handle = Handle(comm)
        finalize(handle, self._drop, comm, channel.ranks, channel.key).atexit = False
        return handle

    def create(self, parent: Communicator, comm: Any, channel: Channel, members: Sequence[int], digest: int) -> Handle:
        """Make a communicator for `channel`, of some members of `parent`, whose own is `comm`. All of them call it.

        Raises
        ------
        CommunicationError
            MPI makes no further communicator.
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
            raise CommunicationError(self._too_many(channel.name, parent.name, error)) from error
        finally:
            chosen.Free()
            group.Free()

    def _too_many(self, name: str, parent: str, error: Exception) -> str:
        """The message for a communicator that MPI refuses to make, mostly because it has no room."""
        alive = len(self._comms) - sum(map(len, self._dropped.values())) - 1  # without the world's own
        return (
            f"'{name}' could not be made on '{parent}' ({error}). This rank holds {alive} communicators; MPI "
            f"libraries know about 2,000 at a time\n  needed: meshes that are made once and used again, or dropped "
            f"(a tape keeps the meshes of what it recorded)"
        )

    def count_made(self, group: Communicator) -> None:
        """Count a new communicator of several ranks; now and then, free what they have dropped. All of them call it."""
        self._made[group.ranks] = count = self._made.get(group.ranks, 0) + 1
        if count % _FREEING == 0:
            self._free_dropped(group)

    def _drop(self, comm: Any, ranks: tuple[int, ...], key: str) -> None:
        if not self._is_closed:
            self._dropped.setdefault(ranks, {})[key] = comm

    def _free_dropped(self, group: Communicator) -> None:
        """Free the communicators of the group's ranks that all of them have dropped, on all of them in one order."""
        mine = self._dropped.get(group.ranks, {})
        told = [set(data.decode().split()) for data in group.exchange(" ".join(mine.copy()).encode())]
        channels = self.waits.activity.channels
        for key in sorted(set.intersection(*told)):
            mine.pop(key).Free()
            del self._comms[key]
            for known in [k for k in channels.copy() if k.partition("/")[0] == key]:  # its lanes', too
                del channels[known]

    def free_all(self) -> None:
        """Free all communicators, when the world is closed and no rank of it communicates any more."""
        self._is_closed = True
        # In the order in which they were made, which is the same on all ranks that share some of them.
        for comm in self._comms.values():
            comm.Free()
        self._comms.clear()
        self._dropped.clear()
