"""Connects a rank to the supervisor, which reports the rank that was killed: see `supervisor`.

The first rank of a host that binds the socket's name starts the supervisor. The name is in Linux's abstract namespace,
which leaves no file behind. Every rank computes it from its launcher: from the process id, the start time, and the
addresses at which the kernel has loaded the launcher, which are random and which only processes of its user can read.
So no other user can bind the name first. In addition every rank asks the kernel which user listens, and uses the next
of a few names if it is another one. On other platforms there is no supervisor, and a killed rank is not reported.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from autograd.digests import blake2b

from . import library_exit, supervisor
from .launcher import RANK_VARIABLES
from .processes import peer_of, state_of
from .supervisor import CALLS, ENDED, EXIT, LATER, SAME, WATCHED, WHERE

if TYPE_CHECKING:
    import subprocess

__all__ = ["SupervisorClient", "connect", "launcher_process", "names"]

_NAMES = 8
_TRIES = 200  # of a name, 5 ms apart
_CONNECT_S = 5
_LAUNCHERS = ("hydra_pmi_proxy", "prted", "orted", "prterun", "mpiexec", "mpirun", "slurmstepd", "srun", "flux-shell")
_REPLY_S = 3.0  # for a reply to an error; the supervisor waits for other ranks first
_TELL_S = 0.5  # between two messages that a rank runs
_LOOK_S = 1.0  # between two looks whether the supervisor is stopped
_SENT_CHARACTERS = 1000  # of a description of waits


class SupervisorClient:
    """A rank's connections to the supervisor of its host. Its methods never raise an error.

    Parameters
    ----------
    rank, size : int
        The rank and the number of ranks.
    ranks_on_host : int
        The number of ranks on this host according to the launcher; 0 if it does not tell.
    """

    def __init__(self, rank: int, size: int, ranks_on_host: int):
        self._hello = f"hello {rank} {size} {int(0 < ranks_on_host < size)} {ranks_on_host}"
        self._hosts = ""
        self._doing = self._stage = self._survives = ""
        self._tells_s = float("inf")  # when this rank tells next that it runs
        self._number = -1  # of the stage: how often this rank has begun or ended to wait for all others, or EXIT
        self._looks_s = 0.0  # when this rank looks next whether the supervisor is stopped
        self._life: list[socket.socket] = []  # their closing shows the death of this rank
        self._status: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # only one thread connects
        self._exit: library_exit.LibraryExit | None = None
        os.register_at_fork(after_in_child=self._close_in_child)

    def connect(self) -> bool:
        """Connect, and start the supervisor if there is none; False if that is not possible."""
        with suppress(OSError):
            launcher = launcher_process()
            for name in names(launcher):
                for _ in range(_TRIES):
                    connections = self._connected(name, launcher)
                    if connections:
                        self._introduce(connections)
                        return True
                    if connections is None:
                        break  # another user has bound it
                    time.sleep(0.005)  # the supervisor does not listen yet, or is about to exit
        return False

    def _connected(self, name: str, launcher: int) -> list[socket.socket] | None:
        """Three connections; none if nobody listens; None if another user does."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(name)
            listener.listen(4096)
            self._reap()
            self._process = _start(listener, launcher)
        except OSError:
            pass  # it is bound
        finally:
            listener.close()
        connections: list[socket.socket] = []
        for _ in range(3):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connections.append(connection)
            try:  # the limit of a send is that of a connect, too; Python's own time limit would not wait at all
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _CONNECT_S, 0))
                connection.connect(name)
            except OSError:
                _close(connections)
                return []
            if peer_of(connection)[1] != os.geteuid():
                _close(connections)
                return None
        return connections

    def _introduce(self, connections: list[socket.socket]) -> None:
        low, high, self._status = connections
        self._life = [low, _with_high_number(high) if self._exit is None else _with_number(high, self._exit.number)]
        for connection in self._life:
            _send(connection, self._hello)
        self._status.settimeout(0.1)
        _send(self._status, "talk")
        for line in (self._hosts, self._doing, self._stage, self._survives):
            if line:
                _send(self._status, line)

    # -- messages ----------------------------------------------------------------------------------------------
    def report(self, text: str, answer: Callable[[bytes], Iterable[str]] = lambda _: ()) -> bool:
        """Send a description of this rank's waits, which is printed if a rank is killed. It is sent if it has changed.

        If the supervisor has been killed, a new one is started; if it was stopped, it is continued.

        Parameters
        ----------
        text : str
            The waits.
        answer : callable
            Returns the lines that answer a question of the supervisor, `CALLS` or `WHERE`. Those with the latest calls
            are sent, too, if a library ends this process. In that case `report` does not return.

        Returns
        -------
        bool
            Whether the supervisor has notified this rank that another rank of this host has died.
        """
        line = f"doing {text[:_SENT_CHARACTERS]}"
        if line != self._doing:
            self._doing = line
            self._tell(line)
        if time.monotonic() >= self._tells_s:
            self._tells_s = time.monotonic() + _TELL_S
            self._tell("runs")
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._exit is not None and self._exit.has_begun():
                for each in answer(CALLS):
                    self._tell(each)
                threading.Event().wait()  # an error of MPI in this thread would end the process at once
            if time.monotonic() >= self._looks_s:
                self._looks_s = time.monotonic() + _LOOK_S
                self._continue()
            if self._status is None or not _is_readable(self._status):
                return False
            notice = _received(self._status)
            if notice in (CALLS, WHERE):
                for each in answer(notice):
                    self._tell(each)
            elif notice != ENDED:
                self._close_all()
                self.connect()
            return notice == ENDED
        finally:
            self._lock.release()

    def report_hosts(self, hosts: int, ranks_here: int, origin_ns: int) -> None:
        """Send what MPI has told: the numbers of hosts and of ranks on this one, and when the world was made."""
        self._hosts = f"hosts {hosts} {ranks_here} {origin_ns}"
        self._tell(self._hosts)

    def report_survival(self, limit_s: float) -> None:
        """Send that the other ranks go on if this one dies, or with a negative limit that they do not any more.

        From then on `report` tells the supervisor that this process runs. If it does not for `limit_s`, it is ended;
        with 0 nothing is told or expected.
        """
        self._survives = f"survives {limit_s}"
        self._tell(self._survives)
        self._tells_s = 0.0 if limit_s > 0 else float("inf")

    def report_lost(self, rank: int) -> None:
        """Send that MPI has told this rank of the death of another one."""
        self._tell(f"lost {rank}")

    @property
    def exits(self) -> bool:
        """Whether this rank has come to the stage of its end."""
        return self._number == EXIT

    def enter(self, limits_s: list[float], limit_by: str, waits_to: str, last: str, exits: bool) -> None:
        """Send that this rank has come to the next stage, or to that of its end if it `exits`; see `supervisor`.

        `limits_s` says after how long a wait at this stage is reported, ends the job, and ends it if others have not
        even come to their imports; `limit_by` what has set the second limit, `waits_to` for what this rank waits, and
        `last` what it has done before and where.
        """
        self._number = EXIT if exits else self._number + 1
        self._stage = f"stage {self._number} {' '.join(map(str, limits_s))}\t{limit_by}\t{waits_to}\t{last}"
        self._tell(self._stage)

    def report_ending(self) -> bool:
        """Report that this rank ends the job, so that the deaths that follow are not reported as its cause.

        Returns
        -------
        bool
            Whether this rank is the first of its host that ends the job.
        """
        self._disarm()
        if not self._life:
            return True
        _send(self._life[0], "ending")
        while (reply := self._read_reply(0)) == WATCHED:
            pass
        return reply != LATER

    def report_error(self, digest: str) -> tuple[bool, list[int] | None]:
        """Report that this rank ends the job because of an error. It waits a moment for other ranks with the same one.

        Returns
        -------
        is_first : bool
            Whether this rank is the first of its host that ends the job.
        ranks : list of int or None
            The ranks for which this one prints the error. Empty if another one prints it; None without a reply.
        """
        self._disarm()
        if not self._life:
            return True, None
        _send(self._life[0], f"ending {digest}")
        while (reply := self._read_reply(0, _REPLY_S)) == WATCHED:
            pass
        if reply == SAME:
            return False, []
        is_first, ranks = reply != LATER, b""
        while reply and not ranks.endswith(b"\n"):
            reply = self._read_reply(0)
            ranks += reply
        return is_first, [int(rank) for rank in ranks.split(b",")] if ranks.endswith(b"\n") else None

    def wait_until_watched(self) -> None:
        """Return when the supervisor watches this rank, so that it can detect that this rank dies first.

        From then on it also sees that a library ends this rank; see `library_exit`.
        """
        if self._exit is None and self._life:
            self._exit = library_exit.watch(self._life[1].fileno())
        for number in range(len(self._life)):
            self._read_reply(number)

    def _tell(self, line: str) -> None:
        if self._status is not None:
            _send(self._status, line)

    def _read_reply(self, number: int, limit_s: float = 0.5) -> bytes:
        self._life[number].settimeout(limit_s)
        return _received(self._life[number])

    # -- the end -----------------------------------------------------------------------------------------------
    def close(self, exits: bool, how: str = "exit") -> None:
        """Leave without an event for the others. Wait for the supervisor if this rank started it: no zombie is left.

        If this process `exits`, the supervisor stays until it has ended, and init collects it. `how` is then ``exit``
        at the end of the program, otherwise ``failed``, or ``last`` if it ends with a status that the launcher returns.
        """
        self._disarm()
        with self._lock:
            self._continue()
            for connection in self._life:
                _send(connection, f"done {how}" if exits else "done")
            self._close_all()
            if self._process is not None and exits:
                self._process.returncode = 0  # it is not waited for
            elif self._process is not None:
                import subprocess  # this rank has loaded it, in `_start`

                with suppress(subprocess.TimeoutExpired, OSError):
                    self._process.wait(timeout=0.5)

    def _continue(self) -> None:
        """Continue the supervisor, if this rank has started it and it was stopped: it keeps the launcher waiting."""
        if self._process is not None and self._process.returncode is None and state_of(self._process.pid) == "T":
            self._process.send_signal(signal.SIGCONT)

    def _disarm(self) -> None:
        if self._exit is not None:
            self._exit.disarm()

    def _close_all(self) -> None:
        if self._exit is not None and self._life:
            self._exit.reserve()
            self._life.pop().detach()
        _close(self._life)
        if self._status is not None:
            self._status.close()
        self._life, self._status = [], None

    def _close_in_child(self) -> None:
        """In a child process that was forked: it is no rank, and must not keep the rank's connections open."""
        self._disarm()
        self._close_all()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.poll()


def connect(rank: int, size: int, ranks_on_host: int) -> SupervisorClient | None:
    """Connect to this host's supervisor, which the first rank starts; None if that is not possible."""
    if not sys.platform.startswith("linux"):
        return None
    client = SupervisorClient(rank, size, ranks_on_host)
    return client if client.connect() else None


def _close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def _send(connection: socket.socket, line: str) -> None:
    with suppress(OSError):
        # without a signal: a program may have SIGPIPE's default, and would end with a supervisor that was killed
        connection.sendall((line.replace("\n", " ") + "\n").encode(), socket.MSG_NOSIGNAL)


def _is_readable(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _received(connection: socket.socket) -> bytes:
    """The next byte; none if the connection has closed or nothing arrives within its time limit."""
    try:
        return connection.recv(1)
    except OSError:
        return b""


# -- the name of the socket ----------------------------------------------------------------------------------------
def names(launcher: int) -> list[str]:
    """The names of the supervisor's socket for the ranks of a launcher, in the order in which they try them."""
    try:
        with open(f"/proc/{launcher}/auxv", "rb") as file:
            addresses = file.read()
    except OSError:
        addresses = b""  # the launcher belongs to another user, as Slurm's does
    text = f"{os.geteuid()} {launcher} {_fields(launcher)[19:20]}".encode()
    digest = blake2b(text + addresses, digest_size=16).hexdigest()
    return [f"\0ringtape-{digest}-{number}" for number in range(_NAMES)]


def launcher_process() -> int:
    """The process that launched this rank: its parent, or an ancestor if the ranks are started by a script."""
    mine = {f"{name}={os.environ[name]}".encode() for name in RANK_VARIABLES if name in os.environ}
    process = os.getppid()
    while process > 1:
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                is_wrapper = bool(mine) and mine <= set(file.read().split(b"\0"))
            with open(f"/proc/{process}/comm") as comm:
                is_wrapper = is_wrapper and comm.read().strip() not in _LAUNCHERS
        except OSError:
            break
        if not is_wrapper:
            break
        process = int(_fields(process)[1])
    return process


def _fields(process: int) -> list[str]:
    """The fields of a process's ``stat`` after its name: its state, its parent and so on."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["X", "1"]


def _with_high_number(connection: socket.socket) -> socket.socket:
    import fcntl  # not on every platform, like abstract sockets

    try:
        number = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 240)
    except OSError:
        return connection  # the process may open only few files
    connection.close()
    return socket.socket(fileno=number)


def _with_number(connection: socket.socket, number: int) -> socket.socket:
    os.dup2(connection.fileno(), number, inheritable=False)
    connection.close()
    return socket.socket(fileno=number)


def _start(listener: socket.socket, launcher: int) -> subprocess.Popen[bytes]:
    # In a new session, so that it receives no signals to the rank's process group. Of the open files it keeps stderr.
    import subprocess  # only the rank that starts the supervisor needs it

    number = listener.fileno()
    return subprocess.Popen(
        supervisor.command(number, launcher),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(number,),
        start_new_session=True,
        cwd="/",
    )
