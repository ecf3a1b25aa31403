"""Shared memory of the ranks of one host, from MPI-3 (`MPI.Win.Allocate_shared`), and the MPI calls of waits in it.

The first rank allocates the whole window and the others map it, so that the window has the same layout with every MPI
library. This file does not import mpi4py: it uses the ``MPI`` of the group's communicator.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.errors import CommunicationError, MeshError

from ...job.activity import Activity, Channel, Wait
from ..protocol import quietly

__all__ = ["Host", "Window", "is_alive", "open_host", "process_mark"]

_FENCED = platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686")


class Window:
    """Memory that all ranks of a group can access.

    Attributes
    ----------
    bytes : array of uint8
        The whole window. It begins at a cache line.
    """

    __slots__ = ("_window", "bytes")

    def __init__(self, MPI: Any, comm: Any, size_bytes: int):
        window = MPI.Win.Allocate_shared(size_bytes + 64 if comm.Get_rank() == 0 else 0, 1, comm=comm)
        window.Lock_all(MPI.MODE_NOCHECK)  # opens the epoch that Sync needs, for the window's lifetime
        whole = np.frombuffer(window.Shared_query(0)[0], np.uint8)
        # A mapping starts on a page, so the shift is the same on all ranks.
        shift = -whole.__array_interface__["data"][0] % 64
        self.bytes = whole[shift : shift + size_bytes]
        self._window = window

    def sync(self) -> None:
        """Order this rank's memory accesses before it and after it, for processors that reorder them."""
        self._window.Sync()

    def free(self) -> None:
        """Free the memory. All ranks call it, after all arrays in the window are gone."""
        del self.bytes
        self._window.Unlock_all()
        self._window.Free()


class Host(NamedTuple):
    """The functions of a transport that the shared memory of a group needs.

    Attributes
    ----------
    group : MpiCommunicator
        A separate channel with the same ranks.
    is_fenced : bool
        Whether stores must be ordered by `Window.sync`.
    """

    group: Any
    is_fenced: bool

    def window(self, size_bytes: int) -> Window:
        """Allocate a window. All ranks call it.

        Raises
        ------
        CommunicationError
            On all ranks, if the host has too little shared memory left. Otherwise the first write would crash.
        """
        mine = str(_free_bytes()).encode()
        free = min(int(text) for text in quietly(lambda: self.group.exchange(mine)))
        if free < size_bytes:
            raise CommunicationError(
                f"a shared window of {size_bytes >> 20} MiB is needed on '{self.group.name}', but the host has "
                f"{free >> 20} MiB of shared memory left. Fix: smaller buffers, or a larger /dev/shm (in a container: "
                "--shm-size)"
            )
        made: Window = self.group.block("shared window", Window, self.group.library, self.group._comm, size_bytes)
        return made

    def free(self, window: Window) -> None:
        """Free a window. All ranks call it, after all arrays in the window are gone."""
        if self.epoch <= self._activity.ended:
            window.free()  # the ranks that are left have agreed on it
        else:
            self.group.block("free shared window", window.free)

    def rename(self, name: str) -> None:
        """Change the name in messages, when another group of the same ranks takes over the memory."""
        self.group.name = self.group._channel.name = name

    def progress(self) -> None:
        """Let MPI make progress: the rank that this one waits for may be waiting for a message from this rank."""
        MPI = self.group.library
        try:
            self.group._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        except MPI.Exception:  # a rank has died, or the epoch is over: `check` tells
            if self.group._waits.tolerance is None:
                raise

    @property
    def epoch(self) -> int:
        """The epoch of the world that the group belongs to."""
        epoch: int = self.group._channel.epoch
        return epoch

    @property
    def is_alarmed(self) -> bool:
        """Whether `check` may raise an error."""
        return self._activity.is_alarmed

    def own(self, memory: Any) -> str:
        """Register memory, which is freed when its epoch is over; see `transports.mpi.groups.Memory`."""
        key: str = self.group._groups.own(self.group._channel, memory)
        return key

    def disown(self, key: str) -> None:
        """Undo `own`, when the ranks have freed the memory."""
        self.group._groups.disown(key)

    @property
    def channel_key(self) -> str:
        """The key of the channel that counts synchronizations by flags, for the monitor."""
        key: str = self.group._channel.key
        return f"{key}/flags"

    @property
    def _activity(self) -> Activity:
        activity: Activity = self.group._waits.activity
        return activity

    def on_close(self, release: Callable[[], None]) -> None:
        """Register a function that all ranks of the group call when the world is closed."""
        self.group._groups.on_close.append(release)

    def forget(self, release: Callable[[], None]) -> None:
        """Undo `on_close`, so that nothing keeps this host and its communicator until then."""
        self.group._groups.on_close.remove(release)

    def check(self, wait: Wait) -> None:
        """Raise an error if `wait` would never end, because a rank has failed or a deadlock was detected."""
        self.group._waits.check(wait)

    def add_channel(self, channel: Channel) -> None:
        """Register a channel whose count of calls this rank sends to the others when it leaves."""
        self._activity.channels[channel.key] = channel

    def remove_channel(self, channel: Channel) -> None:
        """Undo `add_channel`, after the last call of all ranks."""
        self._activity.channels.pop(channel.key, None)

    @property
    def waiting(self) -> Any:
        """The waits of this process's threads, read by the monitor."""
        return self._activity.waiting

    @property
    def ranks_here(self) -> int:
        """The number of the world's ranks on this host."""
        count: int = self.group._groups.hosts.count(self.group.hosts[0])
        return count


def _free_bytes() -> int:
    try:
        found = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return sys.maxsize
    return found.f_bavail * found.f_frsize


def open_host(group: Any) -> Host | None:
    """The shared memory of a group's host; None for a single rank, or if the ranks are threads of one process.

    Raises
    ------
    MeshError
        The ranks of the group are on several hosts. All of them raise it.
    """
    MPI = group.library
    if group.size == 1 or MPI is None:
        return None
    if len(set(group.hosts)) > 1:
        mine = MPI.Get_processor_name().encode()
        names = [name.decode() for name in quietly(lambda: group.exchange(mine))]
        hosts: dict[int, list[int]] = {}
        for rank, host in enumerate(group.hosts):
            hosts.setdefault(host, []).append(rank)
        shown = "; ".join(
            f"{names[ranks[0]]}: ranks {', '.join(str(group.ranks[rank]) for rank in ranks)}"
            for ranks in hosts.values()
        )
        raise MeshError(
            f"shared memory on '{group.name}', whose ranks do not share a host ({shown}). Needed: a "
            "group on one host. Fix: an axis that lies inside a host, or another algorithm (hierarchical uses shared "
            "memory inside each host)"
        )
    # A channel of its own: if another rank makes another call, MPI does not match it with the calls of shared memory.
    own = group.subgroup(range(group.size), f"{group.name}/shared")
    return Host(own, _FENCED)


# -- whether another process is alive -------------------------------------------------------------------------------
def process_mark() -> tuple[int, int, int]:
    """Identifies this process on its host: its number, its start time, and its process namespace."""
    return os.getpid(), _start_time(os.getpid()) or 0, _namespace()


def is_alive(mark: Sequence[int]) -> bool:
    """Whether the process of a `process_mark` is alive; True where that is unknown."""
    pid, start_time, namespace = mark
    if not start_time or namespace != _namespace():
        return True
    return _start_time(pid) == start_time


def _start_time(pid: int) -> int | None:
    """The start time of a process, in ticks; None if it does not exist or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
