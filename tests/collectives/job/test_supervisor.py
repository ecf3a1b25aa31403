"""The supervisor, without MPI: it is the program that ranks start; the ranks are simulated."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectives.job import processes, supervisor, supervisor_client
from collectives.job.supervisor import CAUSES, FIRST, LATER, MPI_CAUSES, WATCHED

from ..launch import program_path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's abstract sockets")
SIZE = 4
LIMIT_S = 20.0


class Host:
    """A supervisor, whose launcher is this process."""

    def __init__(self, stack: contextlib.ExitStack):
        self.name = f"ringtape-test-{uuid.uuid4()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"\0{self.name}")
            listener.listen(4096)
            command = supervisor.command(listener.fileno(), launcher=1)
            self.process = stack.enter_context(
                subprocess.Popen(command, pass_fds=[listener.fileno()], stderr=subprocess.PIPE, text=True)
            )
        stack.callback(self.process.kill)

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def said(self) -> str:
        """What it has printed, once it has nothing more to print."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


class Rank:
    """A simulated rank: a process in a group of its own."""

    def __init__(
        self, stack: contextlib.ExitStack, host: Host, rank: int, is_spread: bool = False, on_host: int = 0
    ):
        self.process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-I", "-S", program_path("simulated_rank.py"), host.name],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0,
            )
        )  # fmt: skip
        stack.callback(self.process.kill)
        self.pid = self.process.pid
        assert self.tell(f"life hello {rank} {SIZE} {int(is_spread)} {on_host}") == 2 * WATCHED.decode()

    def tell(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def die(self, how: signal.Signals = signal.SIGKILL, is_collected: bool = False) -> None:
        """End it by a signal. Unless it is collected, the kernel tells how it ended."""
        if is_collected:
            self.process.send_signal(how)
            self.process.wait()
        else:
            os.kill(self.pid, how)  # the process id is its own as long as it is not collected
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


Job = tuple[Host, list[Rank]]


@pytest.fixture
def job() -> Iterator[Job]:
    with contextlib.ExitStack() as stack:
        host = Host(stack)
        yield host, [Rank(stack, host, rank) for rank in range(SIZE)]


KILLED = "was killed by signal 9 (SIGKILL: often the kernel, because memory ran out)"
UNKNOWN = "was killed or left by os._exit"


def named(rank: int, pid: int, how: str = KILLED) -> str:
    return f"ringtape: rank {rank} of 4 (pid {pid}) on host {socket.gethostname()} {how}"


@pytest.mark.parametrize("first", [1, 3])
def test_the_first_death_is_reported_and_those_beside_it(job: Job, first: int) -> None:
    """The launcher ends the others at once, by the signal that the kernel sends where memory has run out."""
    host, ranks = job
    host.process.send_signal(signal.SIGSTOP)  # so that it finds all of them dead, however busy the machine is
    ranks[first].die()
    for rank in ranks:
        rank.die()
    host.process.send_signal(signal.SIGCONT)
    first_line, *rest, head, beside = host.said().splitlines()
    assert first_line == f"{named(first, ranks[first].pid)}; the job ends" and head == "ringtape: beside it:"
    found = re.fullmatch(r"  ranks? ([\d, ]+) ended within 0.2 s: by the same cause, or because .*", beside)
    assert found is not None and str(first) not in found[1]
    assert rest == MPI_CAUSES.splitlines()


def test_deaths_beside_the_first_that_are_not_the_launchers(job: Job) -> None:
    host, ranks = job
    host.process.send_signal(signal.SIGSTOP)
    ranks[1].die(signal.SIGSEGV)
    ranks[3].die(signal.SIGSEGV)
    host.process.send_signal(signal.SIGCONT)
    says = host.said()
    assert {1, 3} == set(map(int, re.findall(r"rank (\d).* was killed by signal 11 [(]SIGSEGV: a crash[)]", says)))


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGSEGV, "was killed by signal 11 (SIGSEGV: a crash)"),
        (signal.SIGTERM, "was killed by signal 15 (SIGTERM)"),
        (signal.SIGRTMIN + 3, f"was killed by signal {signal.SIGRTMIN + 3} (real-time)"),
    ],
)
def test_the_signal_is_named(job: Job, number: signal.Signals, how: str) -> None:
    host, ranks = job
    ranks[2].die(number)
    assert host.said().splitlines() == [f"{named(2, ranks[2].pid, how)}; the job ends", *MPI_CAUSES.splitlines()]


@pytest.mark.parametrize(("status", "how"), [(3, "left by os._exit(3), or by C's exit in a library"), (0, UNKNOWN)])
def test_the_status_is_named(job: Job, status: int, how: str) -> None:
    """0 is also what the kernel tells of a process about which it tells nothing."""
    host, ranks = job
    ranks[2].tell(f"_exit {status}")
    assert host.line() == f"{named(2, ranks[2].pid, how)}; the job ends\n"


def test_the_first_death_is_found_afterwards(job: Job) -> None:
    """The supervisor does not run while the ranks die, so it sees all deaths at once, and not how they ended."""
    host, ranks = job
    host.process.send_signal(signal.SIGSTOP)
    for rank in (2, 0, 1, 3):
        ranks[rank].die(is_collected=True)
    host.process.send_signal(signal.SIGCONT)
    first_line, *rest = host.said().splitlines()
    assert first_line == f"{named(2, ranks[2].pid, UNKNOWN)}; the job ends"
    beside = "  ranks 0, 1, 3 ended within 0.2 s: by the same cause, or because the launcher ended them"
    assert rest == [*CAUSES.splitlines(), "ringtape: beside it:", beside]


@pytest.mark.parametrize(
    ("on_host", "says"),
    [(4, ["rank 2 has not imported collectives: it is late, or has ended",
          "rank 3 has not imported collectives: it is late, or has ended"]),
     (3, ["1 rank of this host has not imported collectives"])],
)  # fmt: skip
def test_ranks_that_never_report_end_the_job_of_those_that_wait(on_host: int, says: list[str]) -> None:
    """On one host, and on one of several, whose ranks are not known by number."""
    with contextlib.ExitStack() as stack:
        host = Host(stack)
        ranks = [Rank(stack, host, rank, on_host < SIZE, on_host) for rank in (0, 1)]
        for rank in ranks:
            rank.tell("status stage 1 inf inf 0.3\tRINGTAPE_TIMEOUT_S\tmake a world\timport collectives")
        head, *lines = host.said().splitlines()
        assert re.fullmatch(
            r"ringtape: rank [01] of 4 has waited for 0.3 s \(RINGTAPE_IMPORT_S\) for the other ranks to make a world; "
            "the job ends", head,
        )  # fmt: skip
        assert [line.strip() for line in lines] == [*says, "2 of 4 ranks have reported: 0, 1"]
        assert all(rank.process.wait(LIMIT_S) == -signal.SIGKILL for rank in ranks)


def test_a_host_whose_launcher_tells_no_number_of_ranks_is_waited_for() -> None:
    with contextlib.ExitStack() as stack:
        host = Host(stack)
        ranks = [Rank(stack, host, rank) for rank in (0, 1)]
        for rank in ranks:
            rank.tell("status stage 1 0.3 inf 0.3\tRINGTAPE_TIMEOUT_S\tmake a world\timport collectives")
        assert "the job goes on" in host.line()
        assert all(rank.process.poll() is None for rank in ranks)


def test_ranks_that_the_launcher_leaves_running_are_ended(job: Job) -> None:
    _, ranks = job
    ranks[1].die()
    for rank in ranks:
        assert rank.process.wait(LIMIT_S) == -signal.SIGKILL


def test_a_rank_that_ends_the_job_is_not_blamed_on_another(job: Job) -> None:
    host, ranks = job
    assert ranks[1].tell("life ending") == (FIRST + LATER).decode()
    assert ranks[3].tell("life ending") == 2 * LATER.decode()
    for rank in ranks:
        rank.die()
    assert host.said() == ""


def test_a_rank_that_becomes_another_program_is_no_death(job: Job) -> None:
    host, ranks = job
    ranks[1].tell("leave")  # its process goes on
    time.sleep(1.2)  # for so long a process may be dying
    ranks[0].die()
    assert host.line().startswith(named(0, ranks[0].pid))
    assert ranks[1].process.poll() is None


@pytest.mark.parametrize("has_closed", [False, True])
def test_a_child_process_that_keeps_the_connections_hides_no_death(job: Job, has_closed: bool) -> None:
    host, ranks = job
    child = int(ranks[1].tell("fork"))
    ranks[1].die()
    for rank in (0, 2, 3) if has_closed else ():
        ranks[rank].die()
    assert host.line().startswith(named(1, ranks[1].pid))
    end = time.monotonic() + LIMIT_S
    while processes.is_alive(child):  # it might keep the launcher waiting
        assert time.monotonic() < end
        time.sleep(0.05)
    host.said()


def test_child_processes_of_ranks_that_end_normally_live_on(job: Job) -> None:
    host, ranks = job
    child = int(ranks[1].tell("fork"))
    try:
        for rank in ranks:
            rank.tell("status done")
            rank.die()
        os.kill(child, 0)
        assert processes.is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
    assert host.said() == ""


def test_before_mpi_hosts_say_that_another_one_may_be_the_cause() -> None:
    with contextlib.ExitStack() as stack:
        host = Host(stack)
        rank = Rank(stack, host, 1, is_spread=True)
        rank.die()
        assert "unless its launcher ended it after a failure on another host" in host.line()


@pytest.mark.parametrize("call", ["", "gather", "broadcast"])
def test_a_rank_that_a_library_ends(job: Job, call: str) -> None:
    """The calls of the ranks are reported in place of the death, if they differ."""
    host, ranks = job
    for rank in ranks:
        rank.tell("status talk")
    for rank, name in ((0, "gather"), (2, call)) if call else ():
        calls = "\t".join(["calls 7", "k", "dp", "reduce", "a.py:1", name, f"a.py:{rank}\n"])
        ranks[rank].tell("raw " + calls.encode().hex())
    ranks[2].tell("exit")
    time.sleep(supervisor._CLOSE_S + 0.5)
    ranks[2].die()
    said = host.line()
    if call == "broadcast":
        head = "ringtape: CollectiveMismatch: the 2 ranks of 'dp' made 2 different calls; MPI then ended rank 2 of 4"
        assert said.startswith(head)
        shown = [host.line().strip() for _ in range(4)]
        assert shown == ["rank 0: gather", "at a.py:0", "rank 2: broadcast", "at a.py:2"]
    else:
        assert re.match(rf"ringtape: rank 2 of 4 \(pid {ranks[2].pid}\) on host .* was ended by a library", said)


def test_hosts_report_times_that_can_be_compared() -> None:
    times = []
    with contextlib.ExitStack() as stack:
        hosts = [Host(stack), Host(stack)]
        ranks = [Rank(stack, host, number) for number, host in enumerate(hosts)]
        origin = time.monotonic_ns()
        for rank in ranks:
            rank.tell(f"status hosts 2 1 {origin}")
        for rank in reversed(ranks):
            rank.die()
            time.sleep(0.1)  # a launcher needs longer than the supervisors of busy hosts
        for number, host in enumerate(hosts):
            who = re.escape(named(number, ranks[number].pid))
            found = re.match(rf"{who} ([\d.]+) s after .* smallest", host.line())
            assert found is not None
            times.append(float(found[1]))
    assert 0 < times[1] < times[0] < LIMIT_S


def test_nobody_can_connect_once_all_ranks_have(job: Job) -> None:
    host, ranks = job
    ranks[0].tell(f"status hosts 1 {SIZE} 0")
    end = time.monotonic() + LIMIT_S
    while f"@{host.name}\n" in _listening():
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(f"\0{host.name}")


def _listening() -> str:
    """The sockets that listen: their flags are those of accepting ones."""
    return "".join(line + "\n" for line in Path("/proc/net/unix").read_text().splitlines() if " 00010000 " in line)


@pytest.mark.parametrize(
    "line",
    ["hello", "hello 4 4 0", "hello 0 4 0 4 4", "stage 1 inf inf\tX\tmake a world\timport",
     "hello -1 4 0", "hello 0 4", "hello x y z", "hosts 1", "talk\nnonsense",
     "doing " + "x" * 9000],
    ids=lambda line: line[:16],
)  # fmt: skip
def test_an_invalid_line_closes_the_connection_and_nothing_else(job: Job, line: str) -> None:
    """Even from a process of the same user. No death is concluded from it."""
    host, ranks = job
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(f"\0{host.name}")
        stranger.settimeout(LIMIT_S)
        stranger.sendall(f"{line}\n".encode() + b"\xff\xfe\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    ranks[2].die()
    assert host.line().startswith(named(2, ranks[2].pid))


def test_control_characters_are_not_printed(job: Job) -> None:
    host, ranks = job
    ranks[0].tell("raw " + "doing \x1b]0;owned\x07 \x1b[2J \u202e waiting\n".encode().hex())
    ranks[1].die()
    host.line()
    line = host.line()
    assert line == "  rank 0 was ?]0;owned? ?[2J ? waiting\n"


def test_a_wait_that_is_over_is_not_reported(job: Job) -> None:
    host, ranks = job
    for rank, line in ((0, "doing waiting in send"), (2, "doing waiting in recv"), (0, "doing ")):
        ranks[rank].tell("raw " + f"{line}\n".encode().hex())
    time.sleep(0.2)
    ranks[1].die()
    host.line()
    assert host.line() == "  rank 2 was waiting in recv\n"


def test_the_name_depends_on_what_only_its_user_can_read() -> None:
    launcher = subprocess.Popen(["sleep", "60"])
    other = subprocess.Popen(["sleep", "60"])
    try:
        time.sleep(0.1)  # until exec
        found = supervisor_client.names(launcher.pid)
        assert found == supervisor_client.names(launcher.pid)
        assert len(set(found)) == len(found)
        assert not set(found) & set(supervisor_client.names(other.pid))
        if os.geteuid() == 0:
            done = subprocess.run(
                ["cat", f"/proc/{launcher.pid}/auxv"], user=65534, capture_output=True, text=True, check=False
            )
            assert "Permission denied" in done.stderr
    finally:
        launcher.kill()
        other.kill()
        launcher.wait()
        other.wait()


def test_a_process_that_has_died_before_it_is_known_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process id may be another one's by then."""
    with subprocess.Popen(["true"]) as gone:
        pass
    rank = supervisor._Rank(gone.pid)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    monkeypatch.setattr(processes, "is_alive", lambda pid: True)  # another process has its id
    assert rank.is_dead()
    rank.kill()
    assert (killed, rank.group) == ([], 0)


def test_a_supervisor_that_was_killed_ends_no_rank_that_has_default_signals() -> None:
    """As a program whose output may be cut by `| head`."""
    rank, supervisor_end = socket.socketpair()
    supervisor_end.close()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        supervisor_client._send(rank, "doing nothing")
        os._exit(0)
    rank.close()
    assert os.waitpid(child, 0)[1] == 0
