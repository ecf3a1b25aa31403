"""The supervisors of two hosts, without hosts or MPI: each is the program that ranks start; the ranks are simulated."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from collectives.job import supervisor
from collectives.job.supervisor import FIRST, LATER, WATCHED

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's abstract sockets")
SIZE, NEAR = 4, 2
LIMIT_S = 20.0


class Host:
    """A supervisor."""

    def __init__(self, stack: contextlib.ExitStack):
        self.address = f"\0ringtape-test-{uuid.uuid4()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.address)
            listener.listen()
            command = [sys.executable, "-I", "-S", supervisor.__file__, str(listener.fileno()), "1"]
            self.process = stack.enter_context(
                subprocess.Popen(command, pass_fds=[listener.fileno()], stderr=subprocess.PIPE, text=True)
            )
        stack.callback(self.process.kill)

    def said(self) -> str:
        """What it has reported, once it has nothing more to say."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


class Rank:
    """The two connections of a rank that matter here, and a process for its pid."""

    def __init__(self, stack: contextlib.ExitStack, host: Host, rank: int, size: int = SIZE):
        self.process = stack.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
        stack.callback(self.process.kill)
        self.life, self.talk = (
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(2)
        )
        for connection in (self.life, self.talk):
            connection.connect(host.address)
            connection.settimeout(LIMIT_S)
        self.life.sendall(f"hello {rank} {size} {self.process.pid} {NEAR}\n".encode())
        assert self.life.recv(1) == WATCHED

    def ask(self, line: str) -> str:
        self.talk.sendall(f"{line}\n".encode())
        return self.talk.recv(4096).decode().strip()

    def die(self) -> None:
        self.process.kill()
        self.process.wait()
        self.leave()

    def leave(self) -> None:
        self.life.close()
        self.talk.close()


Job = tuple[list[Host], list[Rank]]


def job(stack: contextlib.ExitStack, is_linked: bool) -> Job:
    hosts = [Host(stack), Host(stack)]
    ranks = [Rank(stack, hosts[rank // NEAR], rank) for rank in range(SIZE)]
    if is_linked:
        _, port, secret = ranks[0].ask("open").rsplit(" ", 2)
        for rank in ranks:
            assert rank.ask(f"join 127.0.0.1 {port} {secret}") == WATCHED.decode()
    return hosts, ranks


@pytest.fixture
def linked() -> Iterator[Job]:
    with contextlib.ExitStack() as stack:
        yield job(stack, True)


@pytest.mark.parametrize("first", [1, 3])
def test_only_the_first_death_is_reported(linked: Job, first: int) -> None:
    hosts, ranks = linked
    home = hosts[first // NEAR]
    ranks[first].die()
    assert home.process.stderr is not None
    line = home.process.stderr.readline()
    assert line.startswith(f"ringtape: rank {first} of 4 (pid {ranks[first].process.pid}) on host ")
    assert line.endswith(" was killed or left by os._exit; the job ends\n")
    for rank in ranks:  # the launcher ends the others
        if rank is not ranks[first]:
            rank.die()
    assert [host.said() for host in hosts] == ["", ""]


@pytest.mark.parametrize("first", [1, 3])
def test_ranks_that_the_launcher_leaves_running_are_ended(linked: Job, first: int) -> None:
    _, ranks = linked
    ranks[first].die()
    for rank in ranks:
        assert rank.process.wait(LIMIT_S) != 0
        rank.leave()


@pytest.mark.parametrize("first", [1, 3])
def test_a_rank_that_ends_the_job_is_not_blamed_on_another(linked: Job, first: int) -> None:
    hosts, ranks = linked
    ranks[first].life.sendall(b"ending\n")
    assert ranks[first].life.recv(1) == FIRST
    other = ranks[(first + 2) % 4]  # on the other host
    other.life.sendall(b"ending\n")
    assert other.life.recv(1) == LATER
    for rank in ranks:
        rank.die()
    assert [host.said() for host in hosts] == ["", ""]


@pytest.mark.parametrize("first", [1, 3])
def test_a_rank_that_becomes_another_program_is_no_death(linked: Job, first: int) -> None:
    hosts, ranks = linked
    ranks[first].leave()  # its process goes on
    ranks[0].die()
    assert hosts[0].process.stderr is not None
    assert "rank 0 of 4" in hosts[0].process.stderr.readline()


def test_supervisors_that_are_not_linked_say_so() -> None:
    with contextlib.ExitStack() as stack:
        hosts, ranks = job(stack, False)
        for rank in (1, 3):
            ranks[rank].die()
            stderr = hosts[rank // NEAR].process.stderr
            assert stderr is not None
            line = stderr.readline()
            assert f"rank {rank} of 4" in line
            assert "unless its launcher ended it after a failure on another host" in line


def test_a_stranger_is_not_answered(linked: Job) -> None:
    hosts, ranks = linked
    _, port, _ = ranks[0].ask("open").rsplit(" ", 2)
    for word in ("claim", "link 0123", "hello 0 4 1 2", "open"):
        with socket.create_connection(("127.0.0.1", int(port)), timeout=LIMIT_S) as stranger:
            stranger.sendall(f"{word}\n".encode())
            assert stranger.recv(1) == b""
    ranks[1].die()
    assert hosts[0].process.stderr is not None
    assert "rank 1 of 4" in hosts[0].process.stderr.readline()
