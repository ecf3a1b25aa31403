"""The supervisor: a small process per host that outlives the ranks it watches, and names the one that was killed.

When a rank is killed or leaves by ``os._exit``, the launcher kills the others within a millisecond, so no rank is left
to tell which one was first. The supervisor can tell: every rank of a host holds a connection to it, and the kernel
closes the connections in the order of the deaths. epoll reports them in that order, even to a reader that wakes too
late to see them apart. This is why there is one process per host and not one per rank.

A rank has three connections. Two of them tell of its death, and carry nothing else: the rank says ``hello`` at first,
and much later ``ending`` before it ends the job itself, or ``done`` when it leaves in good order. They are two because
a kernel closes a dying process's files in ascending or in descending order, and the launcher's connection, somewhere in
between, must not be the first: the launcher could kill another rank before the dying one closes its next file. On the
third connection a rank says what it is ``doing`` when it waits for long.

On several hosts there are several supervisors, and all but the one where a rank died first see ranks die that only the
launcher has ended. So they are linked once there is a world: the supervisor of rank 0 is the root, and whoever sees a
death or an end asks it, at once, whether that is the first one. The order in which the questions arrive decides; a
launcher needs longer than a question. Then the root tells all of them that the job ends, and ranks that the launcher
leaves running are ended by the supervisor of their host. A supervisor that is not linked yet says that it cannot tell.

This file is the supervisor's program. It is started by its path and imports the standard library alone. The ranks' side
is `supervisor_client`.
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
_END = b"e"  # the root tells the others that the job ends
_END_S = 1.0  # how long the launcher has to end the others
_LATE_S = 60.0  # how long ranks that are still starting are waited for, after a death
_TELL_S = 1.0  # from an end until others are told; a false alarm has been withdrawn by then
_ASK_S = 1.0  # how long the root's answer is waited for
_LINE_BYTES = 65536  # no line of ours is longer
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


class _Peer:
    """One connection of a rank, or of another host's supervisor."""

    def __init__(self, connection: socket.socket, is_far: bool = False):
        self.connection = connection
        self.is_far = is_far
        self.asked: list[list[str]] = []  # requests to the supervisor as a whole
        self.text = b""
        self.rank = self.size = self.near = -1  # near: the ranks on this host, as the launcher says
        self.pid = 0  # known on the connection that tells of the rank's death
        self.doing = ""
        self.is_seen = False  # watched before it died, so that its place in the order of events counts
        self.is_done = self.is_ending = False

    def read(self) -> bool:
        """Read what has arrived; True at the end of the connection."""
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
            if len(self.text) > _LINE_BYTES:
                return True

    def answer(self, answer: bytes) -> None:
        """Send one of the three answers."""
        try:
            self.connection.send(answer)
        except OSError:
            pass

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if self.is_far or word in ("open", "join"):
            self.asked.append(line.split())
        elif word == "hello":
            self.rank, self.size, self.pid, self.near = map(int, rest.split())
        elif word == "talk":
            self.rank = int(rest)
        elif word == "doing":
            self.doing = rest
        else:
            self.is_done = True
            self.is_ending = self.is_ending or word == "ending"


def _is_alive(pid: int) -> bool:
    """Whether a process lives although its connection has closed, because it has become another program by exec."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


class _Supervisor:
    """The loop of the supervisor; `launcher` is the process that started the ranks."""

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
        self._is_silent = False
        self._dead: list[_Peer] = []  # not reported yet
        self._sees_death = False  # in this batch of events
        # the root listens, and accepts those that send the secret; others have a connection to it
        self._far_listener: socket.socket | None = None
        self._secret = ""
        self._root: socket.socket | None = None
        self._is_spread = False  # over several hosts, as the launcher says

    def run(self) -> None:
        """Watch until all ranks have left."""
        while True:
            events = self._poll.poll(10.0 if self._ended is None else 0.1, 4096)
            self._sees_death = False
            # kept while the job seems to end, as that may be withdrawn
            self._dead += [peer for number, _ in events if (peer := self._handle(number)) is not None]
            if self._dead and self._ended is None:
                dead, self._dead = self._dead, []
                self._report(dead)
            if self._ended is None:
                if all(peer.is_far for peer in self._peers.values()):
                    return
                continue
            age = time.monotonic() - self._ended
            if age > _TELL_S:
                self._tell_others()
                self._drop_stderr()
            if age > _END_S:
                # A launcher may ignore a rank that leaves before MPI is initialised: the others would wait for ever.
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
            self._hear_root()
            return None
        peer = self._peers.get(number)
        if peer is None:
            return None
        has_ended = peer.read()
        self._is_spread = self._is_spread or 0 < peer.near < peer.size
        if peer.doing:
            self._doing[peer.rank] = peer.doing
        while peer.asked:
            has_ended = not self._serve(peer, *peer.asked.pop(0)) or has_ended
        if peer.is_ending:
            peer.is_ending = False
            peer.answer(LATER if self._ended is not None or self._claim() == LATER else FIRST)
        if not has_ended:
            return None
        self._poll.unregister(number)
        peer.connection.close()
        del self._peers[number]
        if not peer.pid or peer.is_done:
            return None
        self._sees_death = True
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
        """Report the first of the dead; all that may have been first, if some died before they were watched."""
        verdict = self._claim()  # at once: the order of questions counts
        time.sleep(0.05)  # the end of a process takes a moment after its files have closed
        by_pid: dict[int, _Peer] = {}
        for peer in dead:
            if not _is_alive(peer.pid):
                by_pid.setdefault(peer.pid, peer)  # a process has two connections: its first event counts
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
        """Do what a rank or a linked supervisor asks; False if it has no right to."""
        if word == "open" and not peer.is_far:
            peer.connection.send((self._open() + "\n").encode())
        elif word == "join" and not peer.is_far:
            if self._far_listener is None and self._root is None:
                self._join(rest)
            peer.answer(WATCHED)
        elif word == "link" and rest == (self._secret,):
            peer.near = 0  # it may ask
            peer.answer(WATCHED)
        elif word == "claim" and peer.near >= 0:
            is_first = self._ended is None and not self._sees_death
            peer.answer(FIRST if is_first else LATER)
            if is_first:
                self._ended = time.monotonic()
        elif word == "unclaim" and peer.near >= 0:
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
                root = socket.create_connection((address, int(port)), timeout=_ASK_S)
                root.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                root.settimeout(_ASK_S)
                root.sendall(f"link {secret}\n".encode())
                if root.recv(1) == WATCHED:
                    self._root = root
                    self._poll.register(root.fileno(), select.EPOLLIN)
                    return
            except OSError:
                pass

    def _claim(self) -> bytes:
        """Note that the job ends: FIRST if nobody knew, LATER if somebody did, b"" if that is not known."""
        self._ended = time.monotonic()
        if self._root is not None:
            try:
                self._root.sendall(b"claim\n")
                answer = self._root.recv(1)
            except OSError:
                return b""
            return LATER if answer == _END else answer
        return b"" if self._is_spread and self._far_listener is None else FIRST

    def _drop_stderr(self) -> None:
        """Close stderr once all is said: the launcher reads it to its end before it leaves."""
        if not self._is_silent:
            self._is_silent = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    def _tell_others(self) -> None:
        """Tell the supervisors that are linked to this one that the job ends."""
        for peer in self._peers.values():
            if peer.is_far and peer.near == 0:
                peer.near = 1  # told
                peer.answer(_END)

    def _hear_root(self) -> None:
        """The root has said that the job ends, or is gone."""
        assert self._root is not None
        try:
            said = self._root.recv(1)
        except OSError:
            said = b""
        if said == _END and self._ended is None:
            self._ended = time.monotonic()
        elif not said:
            self._poll.unregister(self._root.fileno())
            self._root.close()
            self._root = None

    def _unclaim(self) -> None:
        """Withdraw the claim: there was no death."""
        self._ended = None
        if self._root is not None:
            try:
                self._root.sendall(b"unclaim\n")
            except OSError:
                pass


def _addresses() -> list[str]:
    """The IPv4 addresses of this host at which others may reach it."""
    import fcntl
    import struct

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            address = socket.inet_ntoa(answer[20:24])
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
