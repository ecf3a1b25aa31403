"""The supervisor: a small process per host that outlives the ranks it watches, and reports which rank was killed.

When a rank is killed or calls ``os._exit``, the launcher kills the other ranks within a millisecond, so no rank is left
to report which one died first. The supervisor knows the order. Every rank of a host has connections to it, and the
kernel closes them in the order of the deaths. epoll reports the closed connections in that order, even if several have
closed before the supervisor runs. For this reason there is one supervisor per host and not one per rank.

A rank has three connections. The closing of the first two shows its death. On each of them the rank sends ``hello`` at
the start. Later it sends ``ending`` before it ends the job itself, or ``done`` when it leaves without a failure. Two
connections are needed because a kernel closes a dying process's files in ascending or in descending order of their
numbers. The launcher's connection, which has a number in between, must not be closed first: the launcher could kill
another rank before the kernel closes the next file. On the third connection a rank sends ``doing`` with a description
of its waits, when they last long.

A job on several hosts has several supervisors. On the hosts where no rank died by itself, supervisors also see ranks
die, because the launcher ends them. So the supervisors are linked when a world is made, and the supervisor of rank 0 is
the root. A supervisor that sees a death or an end claims at once, in a message to the root, that it is the first. The
first claim to arrive is accepted: a message is faster than the launcher. Then the root notifies all supervisors that
the job ends, and each of them ends the ranks of its host that the launcher has left running. A supervisor that is not
linked yet reports that its death may not be the first.

This file is the supervisor's program. It is started by its path and imports only the standard library. The code of the
ranks is `supervisor_client`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

__all__ = ["FIRST", "LATER", "WATCHED"]

WATCHED, FIRST, LATER = b"w", b"f", b"l"  # replies to ``hello`` (WATCHED) and to ``ending``
_END = b"e"  # the root's notification that the job ends
_END_S = 1.0  # how long the launcher may take to end the other ranks
_LATE_S = 60.0  # after a death, how long the supervisor waits for ranks that are still starting
_NOTIFY_S = 1.0  # from a claim to the notification of the others; a wrong claim is withdrawn earlier
_REPLY_S = 1.0  # how long a supervisor waits for the root's reply
_LINE_BYTES = 65536  # no valid line is longer
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


class _Peer:
    """A connection to a rank or to another host's supervisor."""

    def __init__(self, connection: socket.socket, is_supervisor: bool = False):
        self.connection = connection
        self.is_supervisor = is_supervisor
        self.requests: list[list[str]] = []  # requests that `_Supervisor._serve` handles
        self.text = b""
        # -1: unknown. For a supervisor, `ranks_on_host` is 0 once it is linked and 1 once it is notified.
        self.rank = self.size = self.ranks_on_host = -1
        self.pid = 0  # known on the connections that show the rank's death
        self.doing = ""
        self.is_seen = False  # whether it was watched before it died: then its place in the order of events is known
        self.is_done = self.is_ending = False

    def read(self) -> bool:
        """Read the data that has arrived; True if the connection has closed."""
        while True:
            try:
                data = self.connection.recv(65536)
            except BlockingIOError:
                if self.pid and not self.is_seen:
                    self.is_seen = True
                    self.reply(WATCHED)
                return False
            except OSError:
                return True
            if not data:
                return True
            *lines, self.text = (self.text + data).split(b"\n")
            for line in lines:
                self._parse(line.decode(errors="replace"))
            if len(self.text) > _LINE_BYTES:
                return True

    def reply(self, reply: bytes) -> None:
        """Send a reply of one byte."""
        try:
            self.connection.send(reply)
        except OSError:
            pass

    def _parse(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if self.is_supervisor or word in ("open", "join"):
            self.requests.append(line.split())
        elif word == "hello":
            self.rank, self.size, self.pid, self.ranks_on_host = map(int, rest.split())
        elif word == "talk":
            self.rank = int(rest)
        elif word == "doing":
            self.doing = rest
        else:
            self.is_done = True
            self.is_ending = self.is_ending or word == "ending"


def _is_alive(pid: int) -> bool:
    """Whether a process is alive although its connection has closed, because it has called exec."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


class _Supervisor:
    """The supervisor's event loop; `launcher` is the process id of the ranks' launcher."""

    def __init__(self, listener: socket.socket, launcher: int):
        listener.setblocking(False)
        self._listener = listener
        self._launcher = launcher
        self._poll = select.epoll()
        self._poll.register(listener.fileno(), select.EPOLLIN)
        self._peers: dict[int, _Peer] = {}
        self._doing: dict[int, str] = {}
        self._ended: float | None = None  # when the supervisor learned that the job ends
        self._has_reported = False
        self._has_closed_stderr = False
        self._dead: list[_Peer] = []  # dead and not reported yet
        self._has_seen_death = False  # whether this batch of events has shown a death
        # the root listens, and accepts supervisors that send the secret; the others have a connection to it
        self._far_listener: socket.socket | None = None
        self._secret = ""
        self._root: socket.socket | None = None
        self._is_spread = False  # whether the job runs on several hosts, according to the launcher

    def run(self) -> None:
        """Watch until all ranks have left."""
        while True:
            events = self._poll.poll(10.0 if self._ended is None else 0.1, 4096)
            self._has_seen_death = False
            # kept while the job seems to end, because a claim may be withdrawn
            self._dead += [peer for number, _ in events if (peer := self._handle(number)) is not None]
            if self._dead and self._ended is None:
                dead, self._dead = self._dead, []
                self._report(dead)
            if self._ended is None:
                if all(peer.is_supervisor for peer in self._peers.values()):
                    return
                continue
            age = time.monotonic() - self._ended
            if age > _NOTIFY_S:
                self._notify_others()
                self._drop_stderr()
            if age > _END_S:
                # A launcher may ignore a rank that exits before MPI is initialised: the others would wait for ever.
                for peer in self._peers.values():
                    if peer.pid:
                        _kill(peer.pid)
            if age > _LATE_S or (not self._peers and (not self._has_reported or not _is_alive(self._launcher))):
                return

    def _handle(self, number: int) -> _Peer | None:
        """Handle one event; returns the peer if it has died."""
        if number == self._listener.fileno():
            self._accept(self._listener)
            return None
        if self._far_listener is not None and number == self._far_listener.fileno():
            self._accept(self._far_listener)
            return None
        if self._root is not None and number == self._root.fileno():
            self._read_root()
            return None
        peer = self._peers.get(number)
        if peer is None:
            return None
        has_ended = peer.read()
        self._is_spread = self._is_spread or 0 < peer.ranks_on_host < peer.size
        if peer.doing:
            self._doing[peer.rank] = peer.doing
        while peer.requests:
            has_ended = not self._serve(peer, *peer.requests.pop(0)) or has_ended
        if peer.is_ending:
            peer.is_ending = False
            peer.reply(LATER if self._ended is not None or self._claim() == LATER else FIRST)
        if not has_ended:
            return None
        self._poll.unregister(number)
        peer.connection.close()
        del self._peers[number]
        if not peer.pid or peer.is_done:
            return None
        self._has_seen_death = True
        return peer

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setblocking(False)
            self._peers[connection.fileno()] = _Peer(connection, listener is self._far_listener)
            # edge-triggered: a connection is queued when something happens to it, in that order
            self._poll.register(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def _report(self, dead: list[_Peer]) -> None:
        """Report the first dead rank, or all that may have been first if some died before they were watched."""
        verdict = self._claim()  # at once, because the first claim is accepted
        time.sleep(0.05)  # the end of a process takes a moment after its files have closed
        by_pid: dict[int, _Peer] = {}
        for peer in dead:
            if not _is_alive(peer.pid):
                by_pid.setdefault(peer.pid, peer)  # a process has two connections; its first event determines the order
        dead = list(by_pid.values())
        if not dead or verdict == LATER:
            if not dead:
                self._unclaim()
            return
        first = [peer for peer in dead if not peer.is_seen] or dead[:1]
        for peer in self._peers.values():
            peer.read()
            if peer.doing:
                self._doing[peer.rank] = peer.doing
        who = " or ".join(f"rank {peer.rank} of {peer.size} (pid {peer.pid})" for peer in first)
        what = "was killed or left by os._exit; the job ends"
        if verdict != FIRST:
            what += ", unless its launcher ended it after a failure on another host, which is named beside this one"
        lines = [f"ringtape: {who} on host {socket.gethostname()} {what}"]
        lines += [f"  rank {rank} was {doing}" for rank, doing in sorted(self._doing.items())]
        os.write(2, ("\n".join(lines) + "\n").encode())
        self._drop_stderr()
        self._has_reported = True

    # -- several hosts -----------------------------------------------------------------------------------------
    def _serve(self, peer: _Peer, word: str = "", *rest: str) -> bool:
        """Handle a request of a rank or a supervisor; False if the sender may not make it."""
        if word == "open" and not peer.is_supervisor:
            peer.connection.send((self._open() + "\n").encode())
        elif word == "join" and not peer.is_supervisor:
            if self._far_listener is None and self._root is None:
                self._join(rest)
            peer.reply(WATCHED)
        elif word == "link" and rest == (self._secret,):
            peer.ranks_on_host = 0  # linked: it may claim
            peer.reply(WATCHED)
        elif word == "claim" and peer.ranks_on_host >= 0:
            is_first = self._ended is None and not self._has_seen_death
            peer.reply(FIRST if is_first else LATER)
            if is_first:
                self._ended = time.monotonic()
        elif word == "unclaim" and peer.ranks_on_host >= 0:
            self._ended = None
        else:
            return False
        return True

    def _open(self) -> str:
        """Listen for the supervisors of other hosts; returns addresses, port and secret."""
        if self._far_listener is None:
            self._secret = os.urandom(16).hex()
            self._far_listener = socket.create_server(("", 0), backlog=1024)
            self._far_listener.setblocking(False)
            self._poll.register(self._far_listener.fileno(), select.EPOLLIN)
        return f"{','.join(_addresses())} {self._far_listener.getsockname()[1]} {self._secret}"

    def _join(self, where: tuple[str, ...]) -> None:
        """Link to the root, over the first of its addresses that answers."""
        addresses, port, secret = where
        for address in addresses.split(","):
            try:
                root = socket.create_connection((address, int(port)), timeout=_REPLY_S)
                root.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                root.settimeout(_REPLY_S)
                root.sendall(f"link {secret}\n".encode())
                if root.recv(1) == WATCHED:
                    self._root = root
                    self._poll.register(root.fileno(), select.EPOLLIN)
                    return
            except OSError:
                pass

    def _claim(self) -> bytes:
        """Claim that the job ends: returns FIRST or LATER, or b"" if that cannot be determined."""
        self._ended = time.monotonic()
        if self._root is not None:
            try:
                self._root.sendall(b"claim\n")
                reply = self._root.recv(1)
            except OSError:
                return b""
            return LATER if reply == _END else reply
        return b"" if self._is_spread and self._far_listener is None else FIRST

    def _drop_stderr(self) -> None:
        """Close stderr after the last message, because the launcher reads it to its end before it exits."""
        if not self._has_closed_stderr:
            self._has_closed_stderr = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    def _notify_others(self) -> None:
        """Notify the supervisors that are linked to this one that the job ends."""
        for peer in self._peers.values():
            if peer.is_supervisor and peer.ranks_on_host == 0:
                peer.ranks_on_host = 1  # notified
                peer.reply(_END)

    def _read_root(self) -> None:
        """Handle the root's notification that the job ends, or the end of the connection to it."""
        assert self._root is not None
        try:
            data = self._root.recv(1)
        except OSError:
            data = b""
        if data == _END and self._ended is None:
            self._ended = time.monotonic()
        elif not data:
            self._poll.unregister(self._root.fileno())
            self._root.close()
            self._root = None

    def _unclaim(self) -> None:
        """Withdraw a claim after a false alarm."""
        self._ended = None
        if self._root is not None:
            try:
                self._root.sendall(b"unclaim\n")
            except OSError:
                pass


def _addresses() -> list[str]:
    """The IPv4 addresses of this host, except for the loopback."""
    import fcntl
    import struct

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            address = socket.inet_ntoa(reply[20:24])
            if not address.startswith("127."):
                found.append(address)
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


if __name__ == "__main__":
    for _signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(_signal, signal.SIG_IGN)
    _Supervisor(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).run()
