"""Names the rank that was killed: a small process per host that outlives the ranks it watches.

When a rank is killed or leaves by ``os._exit``, the launcher kills the others within a millisecond, so no rank is left
to tell which one was first. The referee is: every rank of a host holds a connection to it, and the kernel closes the
connections in the order of the deaths. epoll reports them in that order, even to a reader that wakes too late to see
them apart, which is why this is one process per host and not one per rank.

A rank has three connections. Two tell of its death, and nothing else must be under way on them: a rank says ``hello``,
and much later ``ending`` before it ends the job itself, or ``done`` when it leaves as it should. They are two because a
kernel closes a dying process's files from the lowest number to the highest or the other way round, and the launcher's,
somewhere between, must not be the first: the launcher could kill another rank before the dying one goes on. On the
third connection a rank says what it is ``doing`` when it waits for long.

This file is the referee's program and is started by its path, so it imports the standard library alone. The side of the
ranks is `referee_client`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

__all__ = ["FIRST", "LATER", "WATCHED"]

WATCHED, FIRST, LATER = b"w", b"f", b"l"  # answers to ``hello``, and to ``ending``
_END_S = 1.0  # how long the launcher has to end the others
_LATE_S = 60.0  # how long ranks that are still starting are waited for, after a death


class _Peer:
    """One connection of a rank."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.text = b""
        self.rank = self.size = -1
        self.pid = 0  # known on the connection that tells of the rank's death
        self.doing = ""
        self.is_seen = False  # watched before it died, so that its place in the order of events counts
        self.is_done = self.is_ending = False

    def read(self) -> bool:
        """Take in what has arrived; True at the end of the connection."""
        while True:
            try:
                data = self.connection.recv(65536)
            except BlockingIOError:
                if self.pid and not self.is_seen:
                    self.is_seen = True
                    self.answer(WATCHED)
                return False
            except OSError:
                return True
            if not data:
                return True
            *lines, self.text = (self.text + data).split(b"\n")
            for line in lines:
                self._hear(line.decode(errors="replace"))

    def answer(self, answer: bytes) -> None:
        """Send one of the three answers."""
        try:
            self.connection.send(answer)
        except OSError:
            pass

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "hello":
            self.rank, self.size, self.pid = map(int, rest.split())
        elif word == "talk":
            self.rank = int(rest)
        elif word == "doing":
            self.doing = rest
        else:
            self.is_done = True
            self.is_ending = self.is_ending or word == "ending"


def _is_alive(pid: int) -> bool:
    """Whether a process goes on although its connection has closed: it has become another program."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


class _Referee:
    """The loop of the referee; `launcher` is the process that started the ranks."""

    def __init__(self, listener: socket.socket, launcher: int):
        listener.setblocking(False)
        self._listener = listener
        self._launcher = launcher
        self._poll = select.epoll()
        self._poll.register(listener.fileno(), select.EPOLLIN)
        self._peers: dict[int, _Peer] = {}
        self._doing: dict[int, str] = {}
        self._ended: float | None = None  # when the job was known to end
        self._has_reported = False

    def run(self) -> None:
        """Watch until all ranks have left."""
        while True:
            events = self._poll.poll(10.0 if self._ended is None else 0.1, 4096)
            dead = [peer for number, _ in events if (peer := self._handle(number)) is not None]
            if dead and self._ended is None:
                self._judge(dead)
            if self._ended is None:
                if not self._peers:
                    return
                continue
            age = time.monotonic() - self._ended
            if age > _END_S:
                # A launcher may not mind, if a rank leaves before MPI is initialised: the others would wait for ever.
                for peer in self._peers.values():
                    if peer.pid:
                        _kill(peer.pid)
            if age > _LATE_S or (not self._peers and (not self._has_reported or not _is_alive(self._launcher))):
                return

    def _handle(self, number: int) -> _Peer | None:
        """Take in one event; the peer if it has died."""
        if number == self._listener.fileno():
            self._accept()
            return None
        peer = self._peers.get(number)
        if peer is None:
            return None
        has_ended = peer.read()
        if peer.doing:
            self._doing[peer.rank] = peer.doing
        if peer.is_ending:
            peer.is_ending = False
            peer.answer(FIRST if self._ended is None else LATER)
            self._ended = self._ended or time.monotonic()
        if not has_ended:
            return None
        self._poll.unregister(number)
        peer.connection.close()
        del self._peers[number]
        return peer if peer.pid and not peer.is_done else None

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setblocking(False)
            self._peers[connection.fileno()] = _Peer(connection)
            # edge-triggered: a connection is queued when something happens to it, in that order
            self._poll.register(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def _judge(self, dead: list[_Peer]) -> None:
        """Report the first of the dead; all that may have been first, if some died before they were watched."""
        time.sleep(0.05)  # the end of a process takes a moment after its files have closed
        by_pid: dict[int, _Peer] = {}
        for peer in dead:
            if not _is_alive(peer.pid):
                by_pid.setdefault(peer.pid, peer)  # a process has two connections: its first event counts
        dead = list(by_pid.values())
        if not dead:
            return
        first = [peer for peer in dead if not peer.is_seen] or dead[:1]
        for peer in self._peers.values():
            peer.read()
            if peer.doing:
                self._doing[peer.rank] = peer.doing
        who = " or ".join(f"rank {peer.rank} of {peer.size} (pid {peer.pid})" for peer in first)
        lines = [f"ringtape: {who} on host {socket.gethostname()} was killed or left by os._exit; the job ends"]
        lines += [f"  rank {rank} was {doing}" for rank, doing in sorted(self._doing.items())]
        os.write(2, ("\n".join(lines) + "\n").encode())
        # The launcher reads stderr to its end before it leaves: do not keep it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self._ended = time.monotonic()
        self._has_reported = True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


if __name__ == "__main__":
    for _signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(_signal, signal.SIG_IGN)
    _Referee(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).run()
