"""Processes as the kernel knows them: whether they live, how they have ended, and what they hold.

The supervisor imports this file, which imports only the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from contextlib import suppress

__all__ = ["Process", "age_s", "group_of", "is_alive", "peer_of", "shared_memory_of", "state_of"]

# the files that MPICH removes only where MPI is finalized, and those that Open MPI leaves where ranks are killed
_SHARED_MEMORY = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.", "/dev/shm/osc_sm.", "/dev/shm/vader_segment.")


class Process:
    """A process that is known by its id, and by a descriptor that never means another one with that id."""

    def __init__(self, pid: int):
        self.pid = pid
        self.wait_status = 0  # how it ended, as for `os.waitstatus_to_exitcode`; 0 if unknown
        self.group, self.descriptor = 0, -1
        self.is_gone = False  # it had died before it was known: the process id may be another one's
        try:
            self.descriptor = os.pidfd_open(pid)
            group = os.getpgid(pid)
            signal.pidfd_send_signal(self.descriptor, 0)  # as long as this finds it, the process id is its own
            self.group = group
        except ProcessLookupError:
            self.is_gone = self.descriptor < 0
        except OSError:  # a kernel before Linux 5.3, which has no pidfd
            self.group = group_of(pid)

    def is_dead(self) -> bool:
        if self.descriptor < 0:
            return self.is_gone or not is_alive(self.pid)
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def note_end(self) -> None:
        """Read how the process ended. That is possible until its launcher has collected it."""
        status = 0 if self.is_gone else _wait_status_of(self.pid)
        try:
            if self.descriptor >= 0:
                signal.pidfd_send_signal(self.descriptor, 0)  # as in `__init__`
        except OSError:
            return
        self.wait_status = status or self.wait_status

    def kill(self) -> None:
        with suppress(OSError):
            if self.descriptor >= 0:
                signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
            elif not self.is_gone:
                os.kill(self.pid, signal.SIGKILL)

    def kill_group(self, shared: set[int]) -> None:
        """End its child processes, which are in its process group unless that is shared with others."""
        if self.group not in shared:
            with suppress(OSError):
                os.killpg(self.group, signal.SIGKILL)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process id and the effective user of the other end, from the kernel; (-1, -1) if unknown."""
    try:
        pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except (OSError, AttributeError):
        return -1, -1
    return pid, user


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return state_of(pid) not in "ZX"


def state_of(pid: int) -> str:
    """The kernel's letter for the state of a process: "X" if there is none, "?" if it is unknown."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return "X"
    except OSError:  # too many open files, for example: not known to be dead
        return "?"


def _wait_status_of(pid: int) -> int:
    """The status of a process that ends or is a zombie, as `os.wait` returns it; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[49])
    except (OSError, IndexError, ValueError):
        return 0


def age_s(pid: int) -> float:
    """The age of a process, from the kernel; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):  # it has ended, or there is no /proc
        return 0.0


def group_of(pid: int) -> int:
    """The process group of a process; 0 if there is no such process."""
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def shared_memory_of(pid: int) -> dict[str, int]:
    """The paths and inodes of the MPI library's shared memory that a process has mapped, from the kernel."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            lines = [line.split(None, 5) for line in file if "/dev/shm/" in line]
    except OSError:
        return {}
    return {path.rstrip("\n"): int(inode) for *_, inode, path in lines if path.startswith(_SHARED_MEMORY)}
