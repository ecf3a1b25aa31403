"""`benchmarks/cluster`: hosts on one machine, where that is allowed; what it says where it is not."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..collectives.launch import CANNOT, CLUSTER, can_make_hosts, cluster_lock, find_mpiexec

LIMIT_S = 60.0


def cluster(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, CLUSTER, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture
def hosts() -> Iterator[None]:
    if problem := can_make_hosts():
        pytest.skip(f"no hosts: {problem}")
    with cluster_lock():
        done = cluster("up", "2", "400mbit")
        try:
            assert (done.returncode, done.stdout) == (0, "2 hosts at 400mbit: 10.78.0.1 10.78.0.2\n"), done.stderr
            yield
        finally:
            assert cluster("down").returncode == 0
        assert "ringtape" not in subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["up"], "HOSTS"), (["up", "1"], "from 2 to 16; '1'"), (["up", "2", "fast"], "RATE"), (["mpi", "2"], "COMMAND"),
     (["mpi", "no", "x"], "RANKS_PER_HOST"), (["sent", "x"], "no arguments"), (["go"], "'go' is none of")],
)  # fmt: skip
def test_wrong_arguments(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert runpy.run_path(str(CLUSTER))["main"](arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("cluster: ") and text in shown


def test_needs_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(CLUSTER))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert script["main"](["up", "2"]) == CANNOT
    assert "cluster: needs root to make network namespaces; this is user 1000" in capsys.readouterr().err


def test_needs_iproute2(tmp_path: Path) -> None:
    done = cluster("up", "2", PATH=str(tmp_path))
    assert done.returncode == CANNOT
    assert "needs ip, tc, unshare" in done.stderr


@pytest.mark.usefixtures("hosts")
def test_what_is_sent_is_counted() -> None:
    find_mpiexec()
    code = (
        "from mpi4py import MPI; import numpy as np, socket\n"
        "w = MPI.COMM_WORLD; x = np.zeros(4_000_000, np.uint8)\n"
        "w.Recv(x, 0) if w.rank else w.Send(x, 1)\n"
        "print(f'{socket.gethostname()} {w.rank} {w.size}', flush=True)"
    )

    def sent() -> list[int]:
        lines = cluster("sent").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["10.78.0.1", "10.78.0.2"]
        return [int(line.split()[1]) for line in lines]

    before = sent()
    done = cluster("mpi", "1", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert "node1 0 2" in done.stdout and "node2 1 2" in done.stdout  # in any order, perhaps in one line
    first, second = (after - was for after, was in zip(sent(), before, strict=True))
    assert 4_000_000 < first < 4_600_000  # headers, and the launcher's messages
    assert second < 400_000


@pytest.mark.usefixtures("hosts")
def test_status_is_the_command_s() -> None:
    find_mpiexec()
    assert cluster("mpi", "1", sys.executable, "-c", "raise SystemExit(3)").returncode == 3


@pytest.mark.usefixtures("hosts")
def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    find_mpiexec()
    code = f"import os, threading; open(f'{tmp_path}/{{os.getpid()}}', 'w'); threading.Event().wait()"
    command = [sys.executable, CLUSTER, "mpi", "1", sys.executable, "-c", code]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + LIMIT_S
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < end and job.poll() is None
        time.sleep(0.05)
    assert cluster("up", "3").returncode == 4  # hosts in use are not taken away
    job.send_signal(signal.SIGTERM)
    assert job.wait(LIMIT_S) != 0
    for path in tmp_path.iterdir():
        status = Path("/proc") / path.name / "stat"  # one that nobody has waited for yet is a zombie
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_there_must_be_hosts() -> None:
    if problem := can_make_hosts():
        pytest.skip(f"no hosts: {problem}")
    with cluster_lock():
        done = cluster("mpi", "1", "true")
    assert done.returncode == 4
    assert "there are no hosts. Fix: benchmarks/cluster up" in done.stderr
