"""Communicators for the ranks of a group: made by MPI, and freed together.

MPI knows about 2,000 communicators at a time, and freeing one is collective. One that its rank has dropped is therefore
kept until the same ranks make another: every so many times they tell each other what they have dropped, and free what
all of them have. When garbage is collected on a rank so decides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from weakref import finalize

from autograd.errors import CommunicationError

from ...job.shutdown import Channel
from ..protocol import Communicator
from . import library
from .waiting import process, while_waiting

__all__ = ["Handle", "count_made", "create", "digest_of"]

_FREEING = 16  # so many communicators of the same ranks are made between two looks at what was dropped


class _Known:
    """The communicators of this process."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, ...], int] = {}  # how many there were of these ranks
        self.dropped: dict[tuple[int, ...], dict[str, Any]] = {}  # those that nothing refers to, by their keys
        self.freed = 0


_known = _Known()


def digest_of(text: str) -> int:
    """64 bits of a text, the same on every rank.

    Examples
    --------
    >>> digest_of("dp") == digest_of("dp") != digest_of("tp")
    True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def create(parent: Communicator, comm: Any, channel: Channel, members: Sequence[int], digest: int) -> Any:
    """MPI's communicator for `channel`, of some members of `parent`, whose own is `comm`. All of them call it.

    Raises
    ------
    CommunicationError
        MPI makes no further communicator.
    """
    MPI = library.MPI
    group = comm.Get_group()
    chosen = group.Incl(members)
    tag = digest % (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1)
    process.channels[channel.key] = channel
    channel.calls = 1
    try:
        return while_waiting((channel, "subgroup", 1, None), comm.Create_group, chosen, tag)
    except CommunicationError as error:
        process.channels.pop(channel.key)
        raise CommunicationError(_too_many(channel.name, parent.name, error)) from error
    finally:
        chosen.Free()
        group.Free()


def _too_many(name: str, parent: str, error: Exception) -> str:
    """What to say when MPI makes no further communicator, which is mostly for want of room."""
    alive = sum(_known.made.values()) - sum(map(len, _known.dropped.values())) - _known.freed
    return (
        f"'{name}' could not be made on '{parent}' ({error}). This rank holds {alive} communicators; MPI "
        f"libraries know about 2,000 at a time\n  needed: meshes that are made once and used again, or dropped "
        f"(a tape keeps the meshes of what it recorded)"
    )


def count_made(group: Communicator) -> None:
    """Count a new communicator of several ranks; now and then, free what they have dropped. All of them call it."""
    _known.made[group.ranks] = count = _known.made.get(group.ranks, 0) + 1
    if count % _FREEING == 0:
        _free_dropped(group)


class Handle:
    """What the communicators share that are one for MPI; when the last of them is gone, it may be freed."""

    __slots__ = ("__weakref__", "comm")

    def __init__(self, comm: Any, channel: Channel):
        self.comm = comm
        finalize(self, _drop, comm, channel.ranks, channel.key).atexit = False


def _drop(comm: Any, ranks: tuple[int, ...], key: str) -> None:
    _known.dropped.setdefault(ranks, {})[key] = comm


def _free_dropped(group: Communicator) -> None:
    """Free the communicators of the group's ranks that all of them have dropped, on all of them in one order."""
    mine = _known.dropped.get(group.ranks, {})
    told = [set(data.decode().split()) for data in group.exchange(" ".join(mine.copy()).encode())]
    for key in sorted(set.intersection(*told)):
        mine.pop(key).Free()
        _known.freed += 1
        for known in [k for k in process.channels.copy() if k.partition("/")[0] == key]:  # its lanes', too
            del process.channels[known]
