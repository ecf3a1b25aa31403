"""Connects a rank to the supervisor, which reports the rank that was killed: see `supervisor`.

The first rank of a host that binds the socket's name starts the supervisor. The name is in Linux's abstract namespace,
which leaves no file behind. On other platforms there is no supervisor, and a killed rank is not reported.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from . import supervisor
from .supervisor import LATER, WATCHED

__all__ = ["SupervisorClient", "connect"]


class SupervisorClient:
    """A rank's connections to the supervisor of its host. Its methods never raise an error."""

    def __init__(
        self,
        life_connections: list[socket.socket],
        status_connection: socket.socket,
        process: subprocess.Popen[bytes] | None,
    ):
        self._life_connections = life_connections
        self._status_connection = status_connection
        self._process = process

    def report(self, text: str) -> None:
        """Send a description of this rank's waits, which is printed if a rank is killed."""
        _send(self._status_connection, f"doing {text}")

    def report_ending(self) -> bool:
        """Report that this rank ends the job, so that the deaths that follow are not reported as its cause.

        Returns
        -------
        bool
            Whether this rank is the first of its host that ends the job.
        """
        _send(self._life_connections[0], "ending")
        while (reply := self._read_reply(0)) == WATCHED:
            pass
        return reply != LATER

    def wait_until_watched(self) -> None:
        """Return when the supervisor watches this rank, so that it can detect that this rank dies first."""
        for number in range(len(self._life_connections)):
            self._read_reply(number)

    def open_to_hosts(self) -> str:
        """Make this host's supervisor listen for the supervisors of the other hosts.

        Returns
        -------
        str
            The address at which it listens, for `join`; "" if it does not listen.
        """
        _send(self._status_connection, "open")
        text = b""
        try:
            self._status_connection.settimeout(1.0)
            while not text.endswith(b"\n") and (data := self._status_connection.recv(4096)):
                text += data
        except OSError:
            return ""
        return text.decode().strip()

    def join(self, where: str) -> None:
        """Link this host's supervisor to the one at that address; returns after success and after failure."""
        _send(self._status_connection, f"join {where}")
        try:
            self._status_connection.settimeout(5.0)
            self._status_connection.recv(1)
            self._status_connection.settimeout(0.1)
        except OSError:
            pass

    def _read_reply(self, number: int) -> bytes:
        try:
            self._life_connections[number].settimeout(0.5)
            return self._life_connections[number].recv(1)
        except OSError:
            return b""

    def close(self) -> None:
        """Leave without a failure. Wait for the supervisor if this rank started it, so that no zombie is left."""
        for connection in self._life_connections:
            _send(connection, "done")
            connection.close()
        self._status_connection.close()
        if self._process is not None:
            try:
                self._process.wait(timeout=0.5)
            except (subprocess.TimeoutExpired, OSError):
                pass


def _send(connection: socket.socket, line: str) -> None:
    try:
        connection.sendall((line.replace("\n", " ") + "\n").encode())
    except OSError:
        pass


def _job_address() -> str:
    """The socket name of the job on this host, made of the id of the ranks' parent process and its start time."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat") as file:
            start_time = file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        start_time = "0"
    return f"\0ringtape-{os.getuid()}-{parent}-{start_time}"


def connect(rank: int, size: int, ranks_on_host: int) -> SupervisorClient | None:
    """Connect to this host's supervisor, which the first rank starts; None on platforms without one."""
    if not sys.platform.startswith("linux"):
        return None
    address = _job_address()
    process = None
    try:
        for _ in range(100):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(address)
                listener.listen(1024)
                process = _start(listener)
            except OSError:
                pass  # another rank has bound it
            finally:
                listener.close()
            connections = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
            try:
                for connection in connections:
                    connection.connect(address)
            except OSError:
                for connection in connections:
                    connection.close()  # the supervisor does not listen yet, or is about to exit
                time.sleep(0.005)
                continue
            low, high, status_connection = connections
            high = _with_high_number(high)
            for connection in (low, high):
                _send(connection, f"hello {rank} {size} {os.getpid()} {ranks_on_host}")
            status_connection.settimeout(0.1)
            _send(status_connection, f"talk {rank}")
            return SupervisorClient([low, high], status_connection, process)
    except (OSError, subprocess.SubprocessError):
        pass
    return None


def _with_high_number(connection: socket.socket) -> socket.socket:
    import fcntl  # not on every platform, like abstract sockets

    try:
        number = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 240)
    except OSError:
        return connection  # the process may open only few files
    connection.close()
    return socket.socket(fileno=number)


def _start(listener: socket.socket) -> subprocess.Popen[bytes]:
    # In a new session, so that it receives no signals to the rank's process group. Of the open files it keeps stderr.
    number = listener.fileno()
    return subprocess.Popen(
        [sys.executable, "-I", "-S", os.path.abspath(supervisor.__file__), str(number), str(os.getppid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(number,),
        start_new_session=True,
        cwd="/",
    )
