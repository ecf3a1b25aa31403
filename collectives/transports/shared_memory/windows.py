"""Memory that the ranks of one host share, from MPI-3 (`MPI.Win.Allocate_shared`), and what waiting in it needs of MPI.

The first rank allocates a window whole and the others map it, so that its layout is ours on every MPI library. MPI is
the one of the group's communicator: this file does not import it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.errors import CommunicationError, MeshError

from ...job.activity import Activity, Channel

__all__ = ["Host", "Window", "is_alive", "open_host", "process_mark"]

_FENCED = platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686")


class Window:
    """Bytes that all ranks of a group see.

    Attributes
    ----------
    bytes : array of uint8
        The whole window; it begins on a cache line.
    """

    __slots__ = ("_window", "bytes")

    def __init__(self, MPI: Any, comm: Any, size_bytes: int):
        window = MPI.Win.Allocate_shared(size_bytes + 64 if comm.Get_rank() == 0 else 0, 1, comm=comm)
        window.Lock_all(MPI.MODE_NOCHECK)  # an epoch that lasts: Sync needs one
        whole = np.frombuffer(window.Shared_query(0)[0], np.uint8)
        # A mapping starts on a page, so the shift is the same on all ranks.
        shift = -whole.__array_interface__["data"][0] % 64
        self.bytes = whole[shift : shift + size_bytes]
        self._window = window

    def sync(self) -> None:
        """Order this rank's loads and stores before and after: needed where the processor does not keep their order."""
        self._window.Sync()

    def free(self) -> None:
        """Give the memory back; all ranks call it, and none has an array left that lies there."""
        del self.bytes
        self._window.Unlock_all()
        self._window.Free()


class Host(NamedTuple):
    """What the shared memory of a group needs of its transport.

    Attributes
    ----------
    group : MpiCommunicator
        A channel of its own with the same ranks.
    is_fenced : bool
        Whether stores must be ordered by `Window.sync`.
    """

    group: Any
    is_fenced: bool

    def window(self, size_bytes: int) -> Window:
        """Allocate; all ranks call it.

        Raises
        ------
        CommunicationError
            The host has too little shared memory left: on all ranks, in the place of a crash at the first write.
        """
        free = min(int(text) for text in self.group.exchange(str(_free_bytes()).encode()))
        if free < size_bytes:
            raise CommunicationError(
                f"a shared window of {size_bytes >> 20} MiB was asked for on '{self.group.name}'; the host has "
                f"{free >> 20} MiB of shared memory left. Fix: smaller buffers, or a larger /dev/shm (in a container: "
                "--shm-size)"
            )
        return Window(self.group.library, self.group._comm, size_bytes)

    def progress(self) -> None:
        """Let MPI advance what else is under way: the rank that is waited for may be waiting for a message of ours."""
        self.group._comm.Iprobe(self.group.library.ANY_SOURCE, self.group.library.ANY_TAG)

    @property
    def channel_key(self) -> str:
        """The key of the channel whose calls are meetings by flags, for the monitor."""
        key: str = self.group._channel.key
        return f"{key}/flags"

    @property
    def _activity(self) -> Activity:
        activity: Activity = self.group._waits.activity
        return activity

    def tell_calls_of(self, channel: Channel) -> None:
        """Have a channel's calls told to the others when this rank leaves."""
        self._activity.channels[channel.key] = channel

    @property
    def waiting(self) -> Any:
        """What the threads of this process wait for; read by the monitor."""
        return self._activity.waiting

    @property
    def ranks_here(self) -> int:
        """How many ranks of the job this host runs, as far as the launcher tells."""
        for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
            if os.environ.get(name, "").isdecimal():
                return max(self.group.size, int(os.environ[name]))
        return self.group.size


def _free_bytes() -> int:
    try:
        found = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return sys.maxsize
    return found.f_bavail * found.f_frsize


def open_host(group: Any) -> Host | None:
    """The shared memory of a group's host; None for ranks that are threads of one process, or for a single one.

    Raises
    ------
    MeshError
        The ranks of the group are on several hosts. All of them raise it.
    """
    MPI = group.library
    if group.size == 1 or MPI is None:
        return None
    node = group._comm.Split_type(MPI.COMM_TYPE_SHARED)
    together = node.Get_size()
    node.Free()
    if together != group.size:
        names = [name.decode() for name in group.exchange(MPI.Get_processor_name().encode())]
        hosts = {name: [group.ranks[r] for r, n in enumerate(names) if n == name] for name in dict.fromkeys(names)}
        shown = "; ".join(f"{name}: ranks {', '.join(map(str, ranks))}" for name, ranks in hosts.items())
        raise MeshError(
            f"shared memory was asked for on '{group.name}', whose ranks do not share a host ({shown}). Needed: a "
            "group on one host. Fix: an axis that lies inside a host, or another algorithm (hierarchical uses shared "
            "memory inside each host)"
        )
    own = group._subgroup(list(range(group.size)), f"{group.name}/shared")
    return Host(own, _FENCED)


# -- whether another process lives ----------------------------------------------------------------------------------
def process_mark() -> tuple[int, int, int]:
    """What tells this process from all others of the host: its number, its birth, and the namespace of both."""
    return os.getpid(), _birth(os.getpid()) or 0, _namespace()


def is_alive(mark: Sequence[int]) -> bool:
    """Whether the process of a `process_mark` lives; True where that cannot be known."""
    pid, birth, namespace = mark
    if not birth or namespace != _namespace():
        return True
    return _birth(pid) == birth


def _birth(pid: int) -> int | None:
    """When a process started, in ticks; None if there is none or it is a zombie."""
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
