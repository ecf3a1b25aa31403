"""Regions: the windows, flags and buffers of a set of ranks, which groups of these ranks use one after another.

Making a window is collective and slow, MPI libraries support a limited number of them, and freeing one is collective
too. Ranks may drop a group at different times, when each of them collects garbage. A region is therefore kept when its
group is gone. The next group of the same ranks that needs shared memory exchanges the numbers of the regions that each
rank has dropped, and takes the first one that all of them have dropped. So a program that makes meshes in a loop needs
as many regions as it has meshes at a time. All regions are freed when the world is closed.
"""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any, NoReturn

from autograd.errors import CollectiveMismatch, CommunicationError

from ...checks.reports import MadeCall, mismatch_text
from ...job.activity import forked_text, refuse_in_child
from ..protocol import Array, Communicator, quietly
from .arena import ALIGNMENT_BYTES
from .buffers import DTYPES, Buffers
from .flags import CALL, Flags
from .windows import Host, open_host

__all__ = ["OPERATIONS", "Region", "SLOT_BYTES", "region_of"]

SLOT_BYTES = 256 << 10
_MANY = 16  # regions in use, from which on garbage is collected before another one is made

OPERATIONS = ("barrier", "all_reduce", "all_reduce_in_place", "reduce_scatter", "all_gather", "broadcast")
"""The calls that ranks make in shared memory, by the number that stands for them in the word of a call."""


class Region:
    """The shared memory of a group's ranks. All of them make it together.

    Attributes
    ----------
    flags : Flags
    slots : list of list of array
        Two slots of each rank, by the parity of a synchronization's number and the rank.
    sums : list of array
        Two slots for sums.
    buffers : Buffers
    small, known : dict
        Prepared calls and analysed operands, which hold views of the windows: see `communicator`.
    is_closed : bool
        Whether the windows were freed.
    """

    def __init__(self, host: Host, rank: int, size: int):
        rank = int(rank)  # plain numbers: flags are read at each synchronization, and rank numbers are slow
        self.host = host
        self.small: dict[Any, Any] = {}
        self.known: dict[int, Any] = {}
        self.buffers = Buffers(host, rank, size, self.known.clear)
        first = -(-Flags.bytes(size) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        # two slots per rank, and two for sums
        self._control = host.window(first + 2 * SLOT_BYTES * (size + 1))
        slots = self._control.bytes[first:].reshape(size + 1, 2, SLOT_BYTES)
        self.slots: list[list[Array]] = [[slots[r, parity] for r in range(size)] for parity in (0, 1)]
        self.sums: list[Array] = [slots[size, parity] for parity in (0, 1)]
        self.flags = Flags(host, self._control, rank, size, self._refuse)
        self.is_closed = False
        refuse_in_child(self)
        host.on_close(self.release)
        self._key = host.own(self)

    def refuse_in_child(self) -> None:
        """Refuse a child, which would write to the memory of the ranks."""
        self.flags.refuse(lambda: CommunicationError(forked_text("a collective in shared memory")))

    # -- the end of its epoch ----------------------------------------------------------------------------------
    @property
    def is_unused(self) -> bool:
        """Whether this rank has no array in the windows."""
        return self.buffers.is_unused

    def refuse(self) -> None:
        """Make every further call raise an error: the epoch of its group is over."""
        if not self.is_closed:
            self.flags.refuse_ended()

    def free(self) -> None:
        """Free all windows. All ranks that live call it, and none has an array in them."""
        if not self.is_closed:
            self.is_closed = True
            self._free()

    def _refuse(self, n: int) -> NoReturn:
        group = self.host.group
        calls = zip(group.ranks, self.flags.words_of(n, CALL), strict=True)
        made = {rank: MadeCall(_call_text(call)) for rank, call in calls}
        raise CollectiveMismatch(mismatch_text(group.name.removesuffix("/shared"), made))

    def rename(self, name: str) -> None:
        """Use the name of another group in messages."""
        self.host.rename(f"{name}/shared")
        self.flags.channel.name = self.host.group.name

    def close(self) -> None:
        """Free all windows. All ranks call it. Arrays in the windows must not be used afterwards."""
        if self.is_closed:
            return
        self.is_closed = True
        self.host.forget(self.release)
        self.host.disown(self._key)
        self.host.group.barrier()
        self._free()

    def _free(self) -> None:
        self.small.clear()
        self.known.clear()
        self.buffers.close()
        del self.slots, self.sums
        self.host.remove_channel(self.flags.channel)
        self.flags.words.release()
        self.host.free(self._control)

    def release(self) -> None:
        """Free all windows unless some rank has an array in one. All ranks call it when their world is closed."""
        if self.is_closed:
            return
        self.small.clear()
        self.buffers.agree(0, keep=0)
        if self.buffers.is_empty:
            self.close()


class _Pool:
    """The regions of the groups that a set of ranks makes. Its regions are the same on all these ranks."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}
        self._dropped: list[int] = []  # the numbers of regions whose group is gone on this rank
        self._control: Communicator | None = None  # the channel of the exchanges
        self._next = 0

    def take(self, group: Communicator) -> Region | None:
        """A region for a group, which keeps it until it is dropped; None if the ranks are threads of one process."""
        for closed in [n for n, region in self._regions.items() if region.is_closed]:
            del self._regions[closed]  # on all ranks, because closing is collective
        number = self._unused() if self._regions else None
        if number is None:
            host = open_host(group)
            if host is None:
                return None
            self._control = self._control or host.group
            number, self._next = self._next, self._next + 1
            self._regions[number] = Region(host, group.rank, group.size)
        else:
            self._dropped.remove(number)
            self._regions[number].rename(group.name)
        weakref.finalize(group, self._dropped.append, number).atexit = False
        return self._regions[number]

    def _unused(self) -> int | None:
        """The first region that all ranks have dropped."""
        if len(self._regions) - len(self._dropped) >= _MANY:
            gc.collect()  # groups may be part of cycles
        control = self._control
        assert control is not None
        mine = json.dumps([n for n in self._dropped.copy() if n in self._regions])  # finalizers append at any time
        # no part of the program, which other transports have too
        found = quietly(lambda: control.exchange(mine.encode()))
        common = set.intersection(*(set(json.loads(data)) for data in found))
        return min(common, default=None)


_of_groups: weakref.WeakKeyDictionary[Communicator, Region] = weakref.WeakKeyDictionary()


def region_of(group: Communicator) -> Region | None:
    """The region of a group; None for a single rank, and for threads of one process, which share memory anyway.

    At the first call, and after its region was closed, all ranks of the group call it together.
    """
    found = _of_groups.get(group)
    if found is not None and not found.is_closed:
        return found
    group.agree(lambda: "shared memory")
    pools = group.pools
    pool = _Pool() if pools is None else pools.setdefault(group.ranks, _Pool())
    found = pool.take(group)
    if found is not None:
        _of_groups[group] = found
    return found


def _call_text(call: int) -> str:
    """Decode a call's word, for an error message."""
    if call == 0:
        return "barrier"
    operation, code, more, count = call & 15, call >> 4 & 63, call >> 10 & 0xFFF, call >> 22
    name = OPERATIONS[operation]
    root = f", root={more}" if name == "broadcast" else f", counts #{more:03x}" if more else ""
    return f"{name}({DTYPES[code]}[{count}]{root})"
