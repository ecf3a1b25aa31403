"""The supervisor: a small process per host that outlives the ranks it watches, and reports which rank was killed.

docs/jobs.md ("How the supervisor works") has the reasons. In short:

- It knows the order of deaths from the kernel: a rank's connections close, and its pidfd becomes readable; epoll
  reports both in order.
- A rank has three connections. On the first two it sends ``hello``, and later ``ending`` before it ends the job itself,
  with a digest of its error if it has raised one, or ``done`` when it leaves without a failure. On the third one it
  sends ``doing`` with a description of its waits, ``hosts`` once it knows them, and its *stage*.
- It obeys only processes of its own user, opens no network socket, and does not communicate with other supervisors.
- When the job has ended, it ends what the launcher has left running, and a launcher that would return 0 (`status`).

This file is the supervisor's program. It, `processes`, `status` and `checks.reports`, which compares the ranks' latest
calls, import only the standard library. The program loads them without the package (see `command`). The code of the
ranks is `supervisor_client`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections import namedtuple  # not typing's: see `checks.reports`
from collections.abc import Iterable
from contextlib import suppress

from ..checks.reports import MadeCall, first_call_difference
from .processes import Process, age_s, group_of, is_alive, peer_of, shared_memory_of, state_of
from .status import disregards_signals, end_launcher

__all__ = [
    "CALLS", "CAUSES", "ENDED", "EXIT", "FIRST", "LATER", "MPI_CAUSES", "SAME", "WATCHED", "WHERE", "command", "main",
]  # fmt: skip

ENDED = b"e"  # the notification that a rank of this host has died
CALLS = b"c"  # the question for the latest calls
WHERE = b"p"  # the question for the place in the program
EXIT = 1 << 30  # the stage of a rank whose program has ended; odd stages, and this one, wait for all ranks
WATCHED, FIRST, LATER = b"w", b"f", b"l"  # replies to ``hello`` (WATCHED) and to ``ending``
SAME = b"s"  # reply to ``ending``: another rank prints the same error
_COLLECT_S = 0.25  # how long ranks that raise an error wait for others that raise the same one
_COLLECT_EARLY_S = 2.0  # at most, before the world is made
_END_S = 1.0  # how long the launcher may take to end the other ranks
_LAUNCHER_S = 5.0  # and to end after a signal
_ALONE_S = 0.5  # and to end by itself, once all ranks have ended
_ENDING_S = 4.0  # how long a rank that ends the job itself may take
_STDERR_S = 0.1  # how long the supervisor keeps stderr after a death
_LATE_S = 60.0  # after a death, how long the supervisor waits for ranks that are still starting
_START_S = 10.0  # how long it waits for the first rank, and a connection for its first line
_TOGETHER_S = 0.2  # deaths so close to each other may have one cause, and are reported together
_EXIT_S = 1.0  # how long the end of a process may take after its files have closed
_ASK_S = 0.05  # how long it may take to close its files before other ranks are asked for their calls
_CLOSE_S = 0.5  # and before it is clear that a library ends it
_LIBRARY_S = 4.0  # how long the end of a process may take if a library ends it
_LINE_BYTES = 8192  # no valid line is longer
_SHOWN_CHARACTERS = 1000  # of a rank's description of its waits
_SHOWN_RANKS = 16  # in a list
_CONNECTIONS = 3  # of one process
_WATCH_S = 0.25  # between two looks at ranks that wait
_ANSWER_S = 0.7  # how long a rank may take to tell where it is
_KNOWN_S = 5.0  # how long MPI may take to tell the others of a death
_EXITING_S = 10.0  # how long the end of a process may take after a death that the others survive: MPI may not return
_STATES = {
    "R": "runs", "S": "sleeps or waits", "D": "waits for a device", "T": "is stopped (SIGSTOP)",
    "t": "is stopped by a debugger",
}  # fmt: skip
MPI_CAUSES = """\
  If MPI has printed a message above, that tells more, and this rank may be innocent: 'truncated' means different calls
  of the ranks, which RINGTAPE_CHECK=always names"""
CAUSES = f"""\
  cause: a signal (SIGKILL: often the kernel, because memory ran out), os._exit, a crash, or the MPI library
{MPI_CAUSES}"""
_SIGNALS = {
    signal.SIGKILL: "often the kernel, because memory ran out",
    signal.SIGSEGV: "a crash",
    signal.SIGBUS: "a crash, often because /dev/shm is full",
    signal.SIGILL: "a crash",
    signal.SIGFPE: "a crash",
    signal.SIGABRT: "a library called abort",
}
"""What a signal often means."""
_LIBRARY = """\
  cause: C's exit, which MPICH calls for MPI_Abort and after errors inside MPI; its message is above. This rank may be
  innocent: a truncated message means that the ranks have made different calls, which RINGTAPE_CHECK=always names"""
_NEVER = float("inf")
_PR_SET_PDEATHSIG = 1  # of the kernel's prctl
_ACCEPTED = 64  # at a time, so that a flood of connections delays no other event


_StageFields = namedtuple("_StageFields", "number since report_s limit_s import_s limit_by waits_to last")


class _Stage(_StageFields):
    """A stage of a rank, as it has told it: odd ones, and EXIT, wait for all ranks.

    Its wait is reported after `report_s`, and ends the job after `limit_s`, or after `import_s` if others have not
    imported collectives. `limit_by` names the variable of the limit.
    """

    __slots__ = ()


class _Rank(Process):
    """The process of a rank, and what it has told."""

    def __init__(self, pid: int):
        super().__init__(pid)
        self.rank = self.size = -1  # until it has sent ``hello``
        self.connections = 0
        self.is_seen = False  # whether it was watched before it died: then its place in the order of events is known
        # what it does
        self.doing = self.place = ""
        self.calls: dict[str, tuple[str, int, list[MadeCall]]] = {}  # by channel: name, first number, and calls
        self.stage = _Stage(0, time.monotonic(), _NEVER, _NEVER, _NEVER, "", "", "")
        self.is_dispensable = False  # the others go on if it dies
        self.silence_s = 0.0  # if it tells nothing for so long, it is ended; 0: it need not tell anything
        self.told = time.monotonic()  # when it has told last that it runs
        # how it ends
        self.is_done = False  # it leaves without a failure, or it ends the job itself
        self.is_ending = False  # it ends the job itself
        self.has_finished = False  # it has come to the end of its program without a failure
        self.exits_now = False  # it has left, and its process must end
        self.left = time.monotonic()  # when it has left
        self.tells_status = False  # it ends with a status other than 0, which the launcher returns
        self.exits = False  # a library ends it
        self.is_ended = False  # the supervisor has ended it and its child processes

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} (pid {self.pid})"

    def is_present(self) -> bool:
        """Whether it is a rank that is left: it has not left its world, or its process must still end."""
        return self.rank >= 0 and (self.exits_now or not self.is_done) and not self.is_dead()


class _StageWait:
    """A wait at a stage: the rank that waits longest, the ranks that it waits for, all ranks that are left.

    `absent` is how many ranks of this host have never reported: they have not imported the package.
    """

    def __init__(self, first: _Rank, late: list[_Rank], alive: list[_Rank], absent: int, lasts_s: float):
        self.first, self.late, self.alive, self.absent, self.lasts_s = first, late, alive, absent, lasts_s
        stage = first.stage
        self.limit_s, self.limit_by = stage.limit_s, stage.limit_by
        if absent and stage.import_s < stage.limit_s:
            self.limit_s, self.limit_by = stage.import_s, "RINGTAPE_IMPORT_S"
        self.is_over = lasts_s >= self.limit_s


class _Connection:
    """A connection to a process, which becomes a rank with its first valid line."""

    def __init__(self, connection: socket.socket, rank: _Rank):
        self.socket = connection
        self.rank = rank
        self.since = time.monotonic()
        self.text = b""
        self.has_spoken = False
        self.shows_death = False
        self.is_for_status = False
        self.is_watched = False

    def lines(self) -> tuple[list[bytes], bool]:
        """The complete lines that have arrived, and whether the connection has closed or is not usable."""
        found: list[bytes] = []
        while True:
            try:
                data = self.socket.recv(65536)
            except BlockingIOError:
                return found, False
            except OSError:
                return found, True
            *lines, self.text = (self.text + data).split(b"\n")
            found += lines
            if not data or len(self.text) > _LINE_BYTES or any(len(line) > _LINE_BYTES for line in lines):
                return found, True

    def reply(self, reply: bytes) -> None:
        """Send a reply: one byte, and for an error a line with the ranks."""
        with suppress(OSError):
            self.socket.send(reply)


class _Errors:
    """The errors that ranks have raised: each is printed by one rank, for all that have raised the same."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[tuple[_Connection, bytes]]] = {}  # by digest: who waits for a reply, and which
        self.until = _NEVER  # then those that wait get their replies; it is set by the first error
        self._printed: set[str] = set()  # digests

    def take(self, digest: str, connection: _Connection, reply: bytes, collect_s: float) -> None:
        """Note that a rank has raised an error and waits for its reply."""
        self.waiting.setdefault(digest, []).append((connection, reply))
        if self.until == _NEVER:
            self.until = time.monotonic() + collect_s

    def reply(self) -> None:
        """Tell one rank of each error to print it, and for which ranks; and the others that it is printed."""
        for digest, waiting in self.waiting.items():
            waiting = [each for each in waiting if not each[0].rank.is_dead()] or waiting
            if digest not in self._printed:
                (connection, reply), *waiting = waiting
                shown = sorted([connection.rank.rank, *(each.rank.rank for each, _ in waiting)])
                connection.reply(reply + ",".join(map(str, shown)).encode() + b"\n")
            for connection, _ in waiting:
                connection.reply(SAME)
            self._printed.add(digest)
        self.waiting.clear()


class _Supervisor:
    """The supervisor's event loop; `launcher` is the process id of the ranks' launcher."""

    def __init__(self, listener: socket.socket, launcher: int):
        listener.setblocking(False)
        self._listener: socket.socket | None = listener
        self._launcher = launcher
        self._poll = select.epoll()
        self._poll.register(listener.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}  # by descriptor
        self._ranks: dict[int, _Rank] = {}  # by process id
        self._ends: dict[int, _Rank] = {}  # the ranks, by the descriptor of their process
        self._suspects: dict[_Rank, int] = {}  # may have died; the time of the first event; in order of the events
        self._doing: dict[int, str] = {}
        self._start = time.monotonic()
        self._ended: float | None = None  # when the supervisor learned that the job ends
        self._has_asked = False  # for the latest calls
        self._files: dict[str, int] = {}  # the shared memory of this job's MPI library: the paths and inodes
        self._is_ending = False  # whether a rank has sent that it ends the job
        self._has_reported = False
        self._first: list[_Rank] = []  # those that have died first
        self._beside_until: float | None = None  # when those that have died soon after them are reported
        self._has_closed_stderr = self._has_ended_launcher = False
        self._is_spread = False  # whether the job runs on several hosts, according to the launcher or MPI
        self._origin_ns: int | None = None  # when the world was made, on this host's clock
        self._launched_here = 0  # ranks of this host, according to the launcher; 0: not known
        self._ranks_here = 0  # according to MPI; 0: not known yet
        self._errors = _Errors()
        self._asked: float | None = None  # when ranks were asked where they are
        self._told: set[int] = set()  # the stages of the waits that were reported
        self._survived: dict[int, float] = {}  # ranks that others go on without; when each has died, or inf once known
        self._looked = time.monotonic()  # when this process looked last for ranks that tell nothing
        self._takes = {
            "hello": self._take_hello, "doing": self._take_doing, "hosts": self._take_hosts, "calls": self._take_calls,
            "ending": self._take_ending, "done": self._take_done, "stage": self._take_stage, "at": self._take_place,
            "talk": self._take_talk, "survives": self._take_survival, "runs": self._take_sign, "lost": self._take_loss,
        }  # fmt: skip

    def run(self) -> None:
        """Watch until all ranks have left."""
        while True:
            for number, _ in self._poll.poll(self._pause(), 4096):
                self._handle(number)
            now = time.monotonic()
            for connection in list(self._connections.values()):
                if not connection.has_spoken and now - connection.since > _START_S:  # its first line does not come
                    self._close(connection)
            self._resolve()
            self._reply_to_errors(now)
            if self._ended is None:
                if self._have_all_left(now):
                    self._end_launcher_unless_finished()
                    return
                self._watch(now)
                self._end_silent(now)
                self._end_unless_known()
            elif self._is_cleared(now):
                return

    def _pause(self) -> float:
        """The seconds until the next look, if nothing happens."""
        if self._suspects or self._errors.waiting or self._beside_until is not None:
            return 0.02
        if self._ended is not None:
            return 0.1
        if self._waiting() or any(rank.silence_s > 0 and not rank.is_dead() for rank in self._ranks.values()):
            return _WATCH_S  # so that those that tell nothing are seen
        return _START_S

    def _have_all_left(self, now: float) -> bool:
        if self._connections or self._suspects or not (self._ranks or now - self._start > _START_S):
            return False
        return not any(rank.exits_now and not rank.is_dead() for rank in self._ranks.values())

    # -- events ------------------------------------------------------------------------------------------------
    def _handle(self, number: int) -> None:
        if self._listener is not None and number == self._listener.fileno():
            self._accept(self._listener)
        elif number in self._ends:
            rank = self._ends.pop(number)
            self._poll.unregister(number)
            self._suspect(rank)
        elif number in self._connections:
            self._read(self._connections[number])

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # most likely too many open files
                time.sleep(0.01)
                return
            pid, user = peer_of(connection)
            if user != os.geteuid() or pid <= 0:
                connection.close()
                continue
            rank = self._ranks.get(pid)
            if rank is None or (rank.is_dead() and rank.connections == 0):
                rank = self._ranks[pid] = _Rank(pid)
                if rank.descriptor >= 0:
                    self._ends[rank.descriptor] = rank
                    self._poll.register(rank.descriptor, select.EPOLLIN | select.EPOLLET)
            if rank.connections >= _CONNECTIONS:
                connection.close()
                continue
            rank.connections += 1
            connection.setblocking(False)
            self._connections[connection.fileno()] = _Connection(connection, rank)
            # edge-triggered: a connection is queued when something happens to it, in that order
            self._poll.register(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def _read(self, connection: _Connection) -> None:
        lines, has_closed = connection.lines()
        for line in lines:
            try:
                self._take(connection, line.decode(errors="replace"))
            except ValueError:  # no valid line
                has_closed = True
                break
        if not has_closed:
            if connection.shows_death and not connection.is_watched:
                connection.is_watched = connection.rank.is_seen = True
                connection.reply(WATCHED)
            return
        self._close(connection)
        if connection.shows_death:
            self._suspect(connection.rank)

    def _take(self, connection: _Connection, line: str) -> None:
        """Handle a line of a rank; ValueError if it is not valid."""
        word, _, rest = line.partition(" ")
        take = self._takes.get(word)
        if take is None:
            raise ValueError(line)
        take(connection, rest)
        connection.has_spoken = True
        self._stop_listening()
        rank = connection.rank
        if rank.rank < 0 or word not in ("hello", "doing"):
            return
        if rank.doing:
            self._doing[rank.rank] = rank.doing
        else:  # its wait is over
            self._doing.pop(rank.rank, None)

    def _take_hello(self, connection: _Connection, rest: str) -> None:
        number, size, is_spread, *here = map(int, rest.split())
        if not 0 <= number < size < 1 << 31 or len(here) > 1:
            raise ValueError(rest)
        self._launched_here = here[0] if here else 0
        rank = connection.rank
        rank.rank, rank.size = number, size
        self._suspects.pop(rank, None)  # it has called exec, and the new program is a rank again
        self._is_spread = self._is_spread or bool(is_spread)
        connection.shows_death = True

    def _take_doing(self, connection: _Connection, rest: str) -> None:
        connection.rank.doing = _printable(rest)

    def _take_hosts(self, connection: _Connection, rest: str) -> None:
        hosts, self._ranks_here, self._origin_ns = map(int, rest.split())
        self._is_spread = hosts > 1
        _continue_with_parent()
        self._files |= shared_memory_of(connection.rank.pid)

    def _take_calls(self, connection: _Connection, rest: str) -> None:
        first, key, name, *calls = map(_printable, rest.split("\t"))
        connection.rank.calls[key] = name, int(first), list(map(MadeCall, calls[::2], calls[1::2]))

    def _take_ending(self, connection: _Connection, digest: str) -> None:
        rank = connection.rank
        rank.is_done = rank.is_ending = rank.tells_status = self._is_ending = True
        # If a rank has died before, that is the cause, and it is reported once the death is certain.
        reply = LATER if self._ended is not None or self._suspects else FIRST
        if digest:
            early = 0.0 if self._ranks_here else min(age_s(rank.pid), _COLLECT_EARLY_S)
            self._errors.take(digest, connection, reply, max(_COLLECT_S, early))
        else:
            connection.reply(reply)
        if self._ended is None and not self._suspects:
            self._ended = time.monotonic()

    def _take_done(self, connection: _Connection, rest: str) -> None:
        rank = connection.rank
        rank.is_done, rank.exits_now, rank.has_finished = True, rest != "", rest not in ("failed", "last")
        rank.tells_status = rest == "last"
        rank.left = time.monotonic()

    def _take_stage(self, connection: _Connection, rest: str) -> None:
        given, *texts = rest.split("\t")
        number, report_s, limit_s, import_s = given.split()
        limits_s = float(report_s), float(limit_s), float(import_s)
        limit_by, waits_to, last = map(_printable, texts)
        connection.rank.stage = _Stage(int(number), time.monotonic(), *limits_s, limit_by, waits_to, last)
        connection.rank.place = ""

    def _take_place(self, connection: _Connection, rest: str) -> None:
        connection.rank.place = _printable(rest)

    def _take_talk(self, connection: _Connection, rest: str) -> None:
        connection.is_for_status = True

    def _take_survival(self, connection: _Connection, rest: str) -> None:
        rank = connection.rank
        rank.silence_s, rank.told = float(rest), time.monotonic()
        rank.is_dispensable = rank.silence_s >= 0

    def _take_sign(self, connection: _Connection, rest: str) -> None:
        connection.rank.told = time.monotonic()

    def _take_loss(self, connection: _Connection, rest: str) -> None:
        self._survived[int(rest)] = float("inf")

    def _reply_to_errors(self, now: float) -> None:
        """Tell the first rank of each error for which ranks it prints, once the others have had time to raise it."""
        if not self._errors.waiting:
            return
        ranks = [rank for rank in self._ranks.values() if rank.rank >= 0]
        expected = self._ranks_here or (ranks[0].size if ranks and not self._is_spread else 0)
        is_complete = 0 < expected <= len(ranks) and all(rank.is_ending or rank.is_dead() for rank in ranks)
        if is_complete or now >= self._errors.until:
            self._errors.reply()

    def _close(self, connection: _Connection) -> None:
        number = connection.socket.fileno()
        self._poll.unregister(number)
        del self._connections[number]
        connection.socket.close()
        connection.rank.connections -= 1

    def _stop_listening(self) -> None:
        """Stop when all ranks of this host have all their connections: nobody else has to say anything."""
        if self._listener is None or self._ranks_here == 0:
            return
        complete = sum(rank.rank >= 0 and rank.connections == _CONNECTIONS for rank in self._ranks.values())
        if complete >= self._ranks_here:
            self._poll.unregister(self._listener.fileno())
            self._listener.close()
            self._listener = None

    # -- deaths ------------------------------------------------------------------------------------------------
    def _suspect(self, rank: _Rank) -> None:
        """Note the place of a rank in the order of deaths, if it has not left without a failure."""
        if rank.rank >= 0 and not rank.is_done and self._ended is None:
            self._suspects.setdefault(rank, time.monotonic_ns())
            rank.note_end()
        elif self._beside_until is not None:
            rank.note_end()

    def _resolve(self) -> None:
        """Report the first death once it is certain. A process that has called exec closes its files and lives on."""
        while self._suspects:
            first, since_ns = next(iter(self._suspects.items()))
            if first.is_dead():
                self._report()
                return
            age = (time.monotonic_ns() - since_ns) / 1e9
            if first.connections and age > _ASK_S:  # exec would have closed them all
                first.exits = first.exits or age > _CLOSE_S
                self._ask()
            if age < (_LIBRARY_S if first.exits else _EXIT_S):
                return
            del self._suspects[first]
            if not first.connections:
                self._forget(first)
        if self._is_ending and self._ended is None:
            self._ended = time.monotonic()

    # -- ranks that others wait for ----------------------------------------------------------------------------
    def _waiting(self) -> list[_Rank]:
        return [rank for rank in self._ranks.values() if rank.stage.number % 2 or rank.stage.number == EXIT]

    def _watch(self, now: float) -> None:
        """Report that ranks wait for others at a stage, and end the job if the limit is over."""
        wait = None if self._suspects else self._longest_wait(now)
        if wait is None:
            return
        is_new = wait.lasts_s >= wait.first.stage.report_s and wait.first.stage.number not in self._told
        if not (wait.is_over or is_new) or not self._know_places(wait.late, now):
            return
        self._told.add(wait.first.stage.number)
        _print("\n  ".join(self._wait_lines(wait)))
        if wait.is_over:
            self._ended, self._has_reported = now - _END_S, True
            self._notify_first([each for each in self._connections.values() if each.rank not in wait.late])
            for rank in wait.alive:
                rank.is_done = False  # so that it is ended

    def _longest_wait(self, now: float) -> _StageWait | None:
        """The wait of the rank that waits longest for the other ranks at a stage; None if nobody waits for others."""
        waiting = self._waiting()
        alive = [rank for rank in self._ranks.values() if waiting and rank.is_present()]
        waiting = [rank for rank in waiting if rank in alive]
        if not waiting:
            return None
        first = min(waiting, key=lambda rank: rank.stage.since)
        # before MPI is initialised
        absent = 0 if self._ranks_here else max(self._launched_here - len(self._reported()), 0)
        if len(alive) == 1 and not self._is_spread and first.stage.number == EXIT and not absent:
            return None
        late = [rank for rank in alive if rank.stage.number < first.stage.number]
        since = first.stage.since if late or absent else max(rank.stage.since for rank in alive)
        return _StageWait(first, late or [rank for rank in alive if rank.exits_now], alive, absent, now - since)

    def _reported(self) -> set[int]:
        """The ranks that have reported."""
        return {rank.rank for rank in self._ranks.values() if rank.rank >= 0}

    def _know_places(self, late: list[_Rank], now: float) -> bool:
        """Ask ranks where they are. Whether they have replied, or had the time to do so."""
        if self._asked is None:
            self._asked = now
            self._put([each for each in self._connections.values() if each.rank in late], WHERE)
        if now - self._asked < _ANSWER_S and any(not rank.place and rank.connections for rank in late):
            return False
        self._asked = None
        return True

    def _wait_lines(self, wait: _StageWait) -> list[str]:
        first = wait.first
        if wait.is_over:
            for_s, then = f"{wait.limit_s:g} s ({wait.limit_by})", "the job ends"
        else:
            for_s, then = f"{wait.lasts_s:.0f} s", "the job goes on (RINGTAPE_TIMEOUT_S limits waits)"
        who = f"rank {first.rank} of {first.size}"
        lines = [f"{who} has waited for {for_s} for the other ranks to {first.stage.waits_to}; {then}"]
        lines += [_late_text(rank) for rank in sorted(wait.late, key=lambda rank: rank.rank)]
        reported = self._reported()
        names = [] if self._is_spread else sorted(set(range(first.size)) - reported)
        shown = names[:_SHOWN_RANKS]
        lines += [f"rank {rank} has not imported collectives: it is late, or has ended" for rank in shown]
        if (more := max(wait.absent, len(names)) - len(shown)) > 0:
            who = f"{more} {'more ' * bool(shown)}{'ranks' if more > 1 else 'rank'} of this host"
            lines.append(f"{who} {'have' if more > 1 else 'has'} not imported collectives")
        if wait.absent:
            known = sorted(reported)
            shown_ranks = ", ".join(map(str, known[:_SHOWN_RANKS])) + ", ..." * (len(known) > _SHOWN_RANKS)
            lines.append(f"{len(known)} of {first.size} ranks have reported: {shown_ranks}")
        elif not wait.late and not names:
            lines.append("a rank of another host is late" if self._is_spread else "all ranks wait, inside MPI")
        return lines

    # -- questions and notifications ---------------------------------------------------------------------------
    def _put(self, connections: Iterable[_Connection], question: bytes) -> None:
        """Ask ranks, or notify them, by those of the connections that are for that."""
        for connection in connections:
            if connection.is_for_status:
                connection.reply(question)

    def _notify_first(self, connections: Iterable[_Connection]) -> None:
        """Notify the lowest rank of some connections that a rank of this host has died or is ended."""
        able = [each for each in connections if each.is_for_status]
        self._put(sorted(able, key=lambda each: each.rank.rank)[:1], ENDED)

    def _ask(self) -> None:
        """Ask all ranks for their latest calls."""
        if not self._has_asked:
            self._has_asked = True
            self._put(self._connections.values(), CALLS)

    def _forget(self, rank: _Rank) -> None:
        """No longer watch a process that has become another program."""
        self._ranks.pop(rank.pid, None)
        if self._ends.pop(rank.descriptor, None) is not None:
            self._poll.unregister(rank.descriptor)
        if rank.descriptor >= 0:
            os.close(rank.descriptor)
        for connection in [each for each in self._connections.values() if each.rank is rank]:
            self._close(connection)

    def _report(self) -> None:
        """Report the first dead rank, or all that may have been first if some died before they were watched."""
        dead = [rank for rank in self._suspects if rank.is_dead()]
        if dead[0].is_dispensable:
            self._report_survived(dead[0])
            return
        first = [rank for rank in dead if not rank.is_seen] or dead[:1]
        since_ns = self._suspects[first[0]]
        self._suspects.clear()
        self._ended = time.monotonic()
        for connection in list(self._connections.values()):
            self._read(connection)  # what the other ranks wait for
        self._notify_first([each for each in self._connections.values() if each.rank not in dead])
        who = " or ".join(str(rank) for rank in first)
        where, exits = f" on host {socket.gethostname()}", first[0].exits
        different = _different_calls(list(self._ranks.values())) if exits else None
        if exits and self._is_ending:  # another rank reports the cause
            lines = []
        elif different:
            head, *lines = different.splitlines()
            lines.insert(0, f"CollectiveMismatch: {head}; MPI then ended {who}{where}{self._when(since_ns)}")
        else:
            how, causes = ("was ended by a library", _LIBRARY) if exits else _end_of(first)
            lines = [f"{who}{where} {how}{self._when(since_ns)}"]
            lines += [f"  rank {rank} was {doing}" for rank, doing in sorted(self._doing.items())]
            lines.append(causes)
        if lines:
            _print("\n".join(lines))
        self._has_reported = True
        if not exits:
            self._first, self._beside_until = first, time.monotonic() + _TOGETHER_S

    def _report_beside(self) -> None:
        """Report the ranks that have died so soon after the first one that they may have had the same cause."""
        is_over = all(rank.is_dead() for rank in self._ranks.values())
        if self._beside_until is None or (time.monotonic() < self._beside_until and not is_over):
            return
        self._beside_until = None
        ranks = [rank for rank in self._ranks.values() if rank.rank >= 0 and not rank.is_done and rank.is_dead()]
        beside = [rank for rank in ranks if rank not in self._first]
        for rank in beside:
            rank.note_end()
        if lines := _ends_beside(beside):
            _print("\n".join(["beside it:", *lines]))

    def _report_survived(self, rank: _Rank) -> None:
        """Report a death that the other ranks survive, and end only the child processes of that rank."""
        del self._suspects[rank]
        rank.is_done = rank.is_ended = True
        how, causes = ("was ended by a library", _LIBRARY) if rank.exits else _end_of([rank])
        name = f"{rank} on host {socket.gethostname()}"
        _print(f"{name} {how}; the job continues without it" + (f"\n{causes}" if not rank.wait_status else ""))
        self._survived.setdefault(rank.rank, time.monotonic())
        self._doing.pop(rank.rank, None)
        others = {other.group for other in self._ranks.values() if other is not rank}
        rank.kill_group(_groups_of(self._launcher) | others)

    # -- ranks that tell nothing -------------------------------------------------------------------------------
    def _end_silent(self, now: float) -> None:
        """End the ranks that do not run and that others can go on without, and those that do not come to an end."""
        if now - self._looked > 4 * _WATCH_S + 1.0:  # this process itself was stopped
            for rank in self._ranks.values():
                rank.told += now - self._looked
        self._looked = now
        for rank in self._ranks.values():
            if rank.is_ended or rank.rank < 0 or rank.is_dead():
                continue
            if rank.exits_now and self._survived and now - rank.left > _EXITING_S:
                rank.is_ended = True
                _print(f"{rank} has left, and its process has not ended for {_EXITING_S:g} s; it is ended")
                rank.kill()
            elif rank.silence_s > 0 and not rank.is_done and now - rank.told > rank.silence_s:
                rank.told = float("inf")
                state = _STATES.get(state_of(rank.pid), "has another state")
                _print(
                    f"{rank} has told nothing for {rank.silence_s:g} s (RINGTAPE_STOPPED_S): its process {state}. It "
                    "is ended by SIGKILL, so that the others can go on"
                )
                rank.kill()

    def _end_unless_known(self) -> None:
        """End the job if MPI does not tell the others that a rank has died: they would wait for it for ever."""
        alive = [rank for rank in self._ranks.values() if rank.is_dispensable and not rank.is_done]
        told = max((rank.told for rank in alive if rank.silence_s > 0), default=0.0)  # it runs, and its monitor too
        unknown = [rank for rank, since in self._survived.items() if told - since > _KNOWN_S]
        if not unknown:
            return
        _print(
            f"MPI has not told the other ranks that rank {unknown[0]} has ended, as Open MPI does not after os._exit "
            "with a status other than 0; the job ends"
        )
        self._ended, self._has_reported = time.monotonic() - _END_S, True

    def _when(self, since_ns: int) -> str:
        if not self._is_spread:
            return "; the job ends"
        if self._origin_ns is None:
            return (
                "; the job ends, unless its launcher ended it after a failure on another host, which is named beside "
                "this one"
            )
        return (
            f" {(since_ns - self._origin_ns) / 1e9:.6f} s after the world was made; the job ends. If other hosts print "
            "this too: the smallest time shows the cause, and the launcher ended the ranks of the other hosts"
        )

    # -- the end -----------------------------------------------------------------------------------------------
    def _is_cleared(self, now: float) -> bool:
        """After the end of the job: end what is left once its time is over. Whether nothing is left to do."""
        assert self._ended is not None
        if self._errors.waiting:  # the ranks that print them must outlive the wait for others
            self._ended = now
        self._report_beside()
        age = now - self._ended
        is_last = age > _LATE_S or (
            not self._connections and (not self._has_reported or not is_alive(self._launcher))
        )
        is_over = all(rank.is_dead() for rank in self._ranks.values())
        if disregards_signals():  # a launcher that is ended ends the ranks, of which some may still print
            if is_over or is_last or age > _ENDING_S:
                self._end_launcher()
                self._drop_stderr()
        elif age > _END_S or (age > _STDERR_S and is_over):
            # If it is closed earlier, MPICH's launcher more often exits with 0 after a rank that did so.
            self._drop_stderr()
        if is_last or age > _END_S:
            self._end_processes()
        if is_last:
            self._remove_files()
        return is_last

    def _end_processes(self) -> None:
        """End the ranks that have not left, and the child processes of ranks that have failed.

        A launcher may ignore a rank that exits before MPI is initialised, or wait for the output of a child process. A
        rank that ends the job itself may need longer, to print its error and to tell the other hosts.
        """
        assert self._ended is not None
        age = time.monotonic() - self._ended
        shared = _groups_of(self._launcher)
        if not any(rank.is_ending and not rank.is_dead() for rank in self._ranks.values()):
            self._end_launcher()  # first: it may return 0 once all ranks are killed
        for rank in self._ranks.values():
            is_late = rank.exits_now and time.monotonic() - rank.left > _EXITING_S  # it may be inside MPI
            has_failed = rank.rank >= 0 and (not rank.is_done or rank.is_ending or is_late)
            if rank.is_ended or not has_failed or (rank.is_ending and age < _ENDING_S and not rank.is_dead()):
                continue
            rank.is_ended = True
            self._files |= shared_memory_of(rank.pid)  # also of a rank that has not told that MPI is initialised
            rank.tells_status = False
            rank.kill()
            rank.kill_group(shared)

    def _end_launcher(self) -> None:
        """End a launcher that disregards signals; once, because it would crash at a second signal.

        If this process closed stderr first, the launcher could find that all ranks have ended, and return 0.
        """
        is_told = any(rank.tells_status or rank.wait_status >> 8 for rank in self._ranks.values())
        if self._has_ended_launcher or (is_told and (self._ranks_here or not self._is_spread)):
            return  # without a world, ranks of other hosts do not know
        self._has_ended_launcher = True
        alone = time.monotonic() + _ALONE_S  # it ends without us if a rank has told it a status that is not known here
        while all(rank.is_dead() for rank in self._ranks.values()) and time.monotonic() < alone:
            if not is_alive(self._launcher):
                return
            time.sleep(0.01)
        until = time.monotonic() + _LAUNCHER_S
        is_sent = end_launcher(self._launcher)
        while is_sent and is_alive(self._launcher):
            if time.monotonic() > until:  # Open MPI's may wait for itself, if it was about to end
                end_launcher(self._launcher, signal.SIGKILL)
                return
            time.sleep(0.01)

    def _end_launcher_unless_finished(self) -> None:
        """End a launcher that would return 0 though no rank of the job has come to the end of its program.

        The ranks of other hosts count as living unless MPI has told of their deaths.
        """
        ranks = [rank for rank in self._ranks.values() if rank.rank >= 0]
        gone = {rank.rank for rank in ranks if not rank.has_finished} | self._survived.keys()
        if ranks and gone >= set(range(ranks[0].size)):
            self._end_launcher()

    def _remove_files(self) -> None:
        """Remove the MPI library's shared memory, once all ranks have ended."""
        end = time.monotonic() + _EXIT_S
        while not all(rank.is_dead() for rank in self._ranks.values()):
            if time.monotonic() > end:
                return
            time.sleep(0.01)
        for path, inode in self._files.items():
            with suppress(OSError):  # MPI was finalized
                if os.lstat(path).st_ino == inode:
                    os.unlink(path)

    def _drop_stderr(self) -> None:
        """Close stderr after the last message, because the launcher reads it to its end before it exits."""
        if not self._has_closed_stderr:
            self._has_closed_stderr = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _print(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"ringtape: {text}\n".encode())


def _late_text(rank: _Rank) -> str:
    """The state of a rank that others wait for."""
    is_stopped = (state := state_of(rank.pid)) in "Tt"
    how = f"its process (pid {rank.pid}) {_STATES.get(state, 'has another state')}"
    if rank.stage.number == EXIT:
        return f"rank {rank.rank} has left its world: {how}, in an exit handler or in MPI's finalization"
    if rank.place and not is_stopped:
        return f"rank {rank.rank} has not come so far: it is at {rank.place}"
    last = rank.stage.last
    return f"rank {rank.rank} has not come so far: {how}" + (f"; its last step: {last}" if last else "")


def _end_of(ranks: list[_Rank]) -> tuple[str, str]:
    """The end of a rank, and the lines about the causes. The kernel tells it in time in most cases, but not in all."""
    status = ranks[0].wait_status if len(ranks) == 1 else 0
    number = status & 0x7F
    if number:
        try:
            name, means = signal.Signals(number).name, _SIGNALS.get(signal.Signals(number), "")
        except ValueError:
            name, means = "real-time", ""
        return f"was killed by signal {number} ({name}{means and f': {means}'})", MPI_CAUSES
    if status:
        code = status >> 8
        zero = " or os._exit(0)" * (code == 1)  # which counts as 1: see `RankProcess`
        return f"left by os._exit({code}){zero}, or by C's exit in a library", MPI_CAUSES
    return "was killed or left by os._exit", CAUSES


def _ends_beside(ranks: list[_Rank]) -> list[str]:
    """The lines about ranks that have died beside the first one: by the same cause, or because the launcher ended them.

    Open MPI's launcher sends SIGTERM first, that of MPICH SIGKILL. One that disregards signals ends nobody.
    """
    kills = set() if disregards_signals() else {signal.SIGTERM}
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        kills.add(signal.SIGKILL)
    own = [rank for rank in ranks if rank.wait_status and rank.wait_status & 0x7F not in kills]
    lines = [f"  rank {rank.rank} (pid {rank.pid}), too, {_end_of([rank])[0]}" for rank in own]
    others = ", ".join(map(str, sorted(rank.rank for rank in ranks if rank not in own)))
    if others:
        many = "," in others
        lines.append(
            f"  rank{'s' * many} {others} ended within {_TOGETHER_S:g} s: by the same cause, or because the launcher "
            f"ended {'them' if many else 'it'}"
        )
    return lines


def _groups_of(launcher: int) -> set[int]:
    """The process groups that contain more than one rank and its child processes."""
    return {0, 1, os.getpgid(0), group_of(launcher)}


def _different_calls(ranks: list[_Rank]) -> str | None:
    """The text about the first call that differs between ranks, as far as their latest calls tell."""
    for key in dict.fromkeys(key for rank in ranks for key in rank.calls):
        made = {rank.rank: rank.calls[key] for rank in sorted(ranks, key=lambda each: each.rank) if key in rank.calls}
        name = next(iter(made.values()))[0]
        text = first_call_difference(name, {rank: (first, calls) for rank, (_, first, calls) in made.items()})
        if text is not None:
            return text
    return None


def _printable(text: str) -> str:
    """A text without the control characters that change a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text[:_SHOWN_CHARACTERS])


def _continue_with_parent() -> None:
    """Let the kernel continue this process, if it was stopped, when the rank that has started it ends.

    A stopped supervisor would keep stderr open, and the launcher would wait for it.
    """
    import ctypes  # takes as long to load as the rest, so the ranks do not wait for it

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def _raise_limit_of_files() -> None:
    """A rank takes four descriptors; a host may have hundreds of ranks."""
    import resource  # not on every platform; ranks import this module, too

    with suppress(OSError, ValueError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def command(listener: int, launcher: int) -> list[str]:
    """The command that starts the supervisor, with the descriptor of its socket and the process id of the launcher.

    It imports this file, so that the bytecode is used that the rank's own import has left: to compile the file takes
    longer than the rest of the start. An empty module takes the place of the package, whose own file would load NumPy.
    """
    start = (
        "import sys, types; package = sys.modules['collectives'] = types.ModuleType('collectives'); "
        "package.__path__ = [sys.argv[1]]; from collectives.job import supervisor; supervisor.main()"
    )
    cache = ["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [sys.executable, "-I", "-S", "-B", *cache, "-c", start, folder, str(listener), str(launcher)]


def main() -> None:
    """Run the supervisor, in its own process."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    _raise_limit_of_files()
    listener, launcher = map(int, sys.argv[2:])
    _Supervisor(socket.socket(fileno=listener), launcher).run()
    os._exit(0)  # nothing is left to write, and the interpreter's own end takes a tenth of the supervisor's time
