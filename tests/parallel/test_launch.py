"""`parallel.launch` starts a job again, on the hosts that are there, and ends it when it is asked to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import WriteError
from parallel import DataParallel, checkpoint
from parallel import launch as launch_module
from parallel.checkpoint import REQUEUE, Preemption
from parallel.launch import Hosts, finished, main

from ..collectives.launch import ROOT, find_mpiexec, open_mpi

STEPS = 8


def shell(*options: str, text: str) -> int:
    """Launch a shell program."""
    return main(["--wait", "0", *options, "--", "sh", "-c", text])


@contextmanager
def sending(number: signal.Signals, when: Callable[[], bool]) -> Iterator[None]:
    """Send this process a signal as soon as a condition holds."""

    over = threading.Event()

    def send() -> None:
        while not when():
            if over.wait(0.01):
                return
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- starts ------------------------------------------------------------------------------------------------------------
def test_a_job_that_ends_well_is_started_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert shell(text=f"echo start >> {tmp_path}/log; test -z $RINGTAPE_DONE") == 0
    assert (tmp_path / "log").read_text() == "start\n"
    out, err = capfd.readouterr()
    assert not out
    assert "start 1 of at most 4: sh -c" in err and "the job is finished\n" in err


def test_it_is_started_again_until_it_ends_well(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = f"echo start >> {tmp_path}/log; case $(wc -l < {tmp_path}/log) in 1) exit 3;; 2) kill -9 $$;; esac"
    assert shell("--restarts", "2", text=text) == 0
    assert (tmp_path / "log").read_text() == "start\n" * 3
    err = capfd.readouterr().err
    assert "the job has failed: exit code 3\n" in err and "the job has failed: signal SIGKILL\n" in err


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [("exit 7", 7, "exit code 7"), ("kill -9 $$", 137, "signal SIGKILL"),
     ("exit 139", 139, "exit code 139, that of signal SIGSEGV")],
)  # fmt: skip
@pytest.mark.parametrize("restarts", [0, 2])
def test_it_is_given_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, code: int, says: str, restarts: int
) -> None:
    assert shell("--restarts", str(restarts), text=f"echo start >> {tmp_path}/log; {text}") == code
    assert (tmp_path / "log").read_text() == "start\n" * (restarts + 1)
    err = capfd.readouterr().err
    assert err.count(f"the job has failed: {says}\n") == restarts + 1 and f"given up after {restarts + 1} start" in err


def test_a_command_that_cannot_be_started_has_failed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--restarts", "0", "--", "/no/such/program"]) == 127
    assert "it cannot be started: " in capfd.readouterr().err


def test_a_job_that_was_asked_to_end_is_started_without_counting(tmp_path: Path) -> None:
    text = f"echo start >> {tmp_path}/log; test $(wc -l < {tmp_path}/log) -lt 4 && exit {REQUEUE}; exit 5"
    assert shell("--restarts", "0", text=text) == 5
    assert (tmp_path / "log").read_text() == "start\n" * 4


def test_faults_of_the_first_start_do_not_happen_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The plan of `RINGTAPE_FAULTS` is in the environment of each start; `start=` says of which its faults are."""
    program = (
        "import numpy as np, collectives as cc\nwith cc.Mesh(dp=1) as mesh:\n"
        "    for _ in range(3): mesh.ranks.barrier()\n"
    )
    plan = "kill:0@2,start=1; kill:0@3,start=2"
    with mock.patch.dict(os.environ, {"RINGTAPE_FAULTS": plan, "RINGTAPE_LAUNCHER": "none"}):
        assert main(["--wait", "0", "--restarts", "2", "--", sys.executable, "-c", program]) == 0
    err = capfd.readouterr().err
    assert err.count("the job has failed: signal SIGKILL\n") == 2 and "start 3 of at most 3" in err


def test_it_is_given_up_if_it_asks_for_a_start_twice_at_a_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It used to be started again and again. The exit code is not that of a job that wants another start."""
    text = f"echo start >> {tmp_path}/log; n=$(wc -l < {tmp_path}/log); test $n -lt 4 && mkdir -p "
    text += f"{tmp_path}/steps/step-00000000$n; test $n -lt 20 || exit 9; exit {REQUEUE}"
    assert shell("--restarts", "0", "--progress", f"{tmp_path}/steps", text=text) == 1
    assert (tmp_path / "log").read_text() == "start\n" * 4
    assert "asked for another start twice without a step after 3\n" in capfd.readouterr().err


def test_failures_and_requeues_in_turn_come_to_an_end(tmp_path: Path) -> None:
    text = f"echo start >> {tmp_path}/log; n=$(wc -l < {tmp_path}/log); test $n -lt 20 || exit 9; "
    text += f"test $((n % 2)) -eq 0 && exit 3; exit {REQUEUE}"
    assert shell("--restarts", "9", "--progress", f"{tmp_path}/steps", text=text) == 1
    assert (tmp_path / "log").read_text() == "start\n" * 3


@pytest.mark.parametrize("given", [(), ("--requeues", "7")])
def test_without_the_directory_the_starts_that_it_asks_for_are_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_module.Launcher, "_start", lambda self, *_: (starts.append(1), (REQUEUE, "code"))[1])
    starts: list[int] = []
    assert shell(*given, text="") == 1
    assert len(starts) == (8 if given else 101)
    assert "fix: --progress DIR" in capfd.readouterr().err


def test_it_is_given_up_if_it_fails_twice_at_a_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = f"echo start >> {tmp_path}/log; n=$(wc -l < {tmp_path}/log); test $n -lt 4 && mkdir -p "
    text += f"{tmp_path}/steps/step-00000000$n; exit 4"
    assert shell("--restarts", "9", "--progress", f"{tmp_path}/steps", text=text) == 4
    assert (tmp_path / "log").read_text() == "start\n" * 4
    err = capfd.readouterr().err
    assert "start 3 of at most 10, after step 2" in err and "failed twice without a step after 3\n" in err


def test_the_wait_is_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(launch_module.Launcher, "_sleep", lambda self, seconds: waits.append(seconds))
    assert main(["--restarts", "5", "--wait", "4", "--", "false"]) == 1
    assert waits == [4, 8, 16, 32, 60]


# -- the end -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("code", [REQUEUE, 3, 0])
def test_a_signal_is_passed_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    ready, name = tmp_path / "ready", number.name.removeprefix("SIG")
    before = signal.getsignal(number)
    with sending(number, ready.exists):
        got = shell(text=f"trap 'exit {code}' {name}; touch {ready}; while :; do sleep 0.05; done")
    by_user = number in (signal.SIGINT, signal.SIGHUP)
    assert got == (0 if code == 0 else 130 if by_user else REQUEUE)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, REQUEUE), (signal.SIGINT, 130)])
def test_a_job_that_does_not_end_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    ready = tmp_path / "ready"
    with sending(number, ready.exists):
        text = f"trap '' TERM INT; touch {ready}; while :; do sleep 0.05; done"
        assert shell("--grace", "0.2", text=text) == code
    err = capfd.readouterr().err
    assert "it has not ended within 0.2 s, and is killed" in err and err.count("start 1") == 1 and "start 2" not in err


def test_a_signal_while_it_waits_ends_it(tmp_path: Path) -> None:
    with sending(signal.SIGTERM, (tmp_path / "log").exists):
        assert main(["--wait", "1000", "--", "sh", "-c", f"touch {tmp_path}/log; exit 1"]) == REQUEUE


def test_open_mpi_gets_sigusr1_for_sigterm(tmp_path: Path) -> None:
    """Its mpiexec kills the ranks within a second of SIGTERM."""
    mpiexec, ready = tmp_path / "mpiexec", tmp_path / "ready"
    for first_line, code in (("mpiexec (Open MPI) 5.0.11", REQUEUE), ("HYDRA build details:", 6)):
        ready.unlink(missing_ok=True)
        mpiexec.write_text(
            f"#!/bin/sh\ntest $1 = --version && {{ echo '{first_line}'; exit; }}\n"
            f"trap 'touch {tmp_path}/usr1; exit 75' USR1; trap 'touch {tmp_path}/term; exit 75' TERM\n"
            f"touch {ready}; while :; do sleep 0.05; done\n"
        )
        mpiexec.chmod(0o755)
        with sending(signal.SIGTERM, ready.exists):
            assert main(["--", str(mpiexec), "-n", "2", "x"]) == REQUEUE
        found = {each.name for each in tmp_path.iterdir()} & {"usr1", "term"}
        assert found == ({"usr1"} if code == REQUEUE else {"usr1", "term"})


# -- the marker --------------------------------------------------------------------------------------------------------
def test_the_marker_decides_whether_the_job_is_finished(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done, log = tmp_path / "done", tmp_path / "log"
    text = f"echo start >> {log}; test $(wc -l < {log}) -lt 3 && exit 0; touch $RINGTAPE_DONE; exit 9"
    assert shell("--done", str(done), text=text) == 0
    assert log.read_text() == "start\n" * 3
    assert "the job is finished, though it ended with exit code 9\n" in capfd.readouterr().err
    assert shell("--done", str(done), text=text) == 0  # as after a requeue
    assert log.read_text() == "start\n" * 3
    done.unlink()
    assert shell("--done", str(done), "--restarts", "0", text="exit 0") == 1  # no marker


def test_a_finished_job_that_hangs_is_killed(tmp_path: Path) -> None:
    text = "touch $RINGTAPE_DONE; while :; do sleep 0.05; done"
    assert shell("--done", str(tmp_path / "done"), "--grace", "0.1", text=text) == 0


def test_finished_writes_the_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGTAPE_DONE", raising=False)
    finished()
    monkeypatch.setenv("RINGTAPE_DONE", str(tmp_path / "done"))
    finished()
    assert [each.name for each in tmp_path.iterdir()] == ["done"]
    monkeypatch.setenv("RINGTAPE_DONE", str(tmp_path / "none" / "done"))
    with pytest.raises(WriteError, match="cannot be written"):
        finished()


# -- hosts -------------------------------------------------------------------------------------------------------------
def test_it_starts_on_the_hosts_that_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for host in "abc":
        (tmp_path / host).touch()
    text = f"cat {{hostfile}} >> {tmp_path}/log; echo {{hosts}} {{ranks}} >> {tmp_path}/log; "
    text += f"rm {tmp_path}/$(echo {{hosts}} | cut -c 1)"
    options = "--hosts", "a,b,c", "--ranks-per-host", "2", "--probe", f"test -e {tmp_path}/{{host}}"
    assert shell(*options, "--restarts", "4", text=f"{text}; exit 1") == 1
    lines = (tmp_path / "log").read_text().split("\n")
    assert lines == ["a", "a", "b", "b", "c", "c", "a,b,c 6", "b", "b", "c", "c", "b,c 4", "c", "c", "c 2", ""]
    err = capfd.readouterr().err
    assert "no answer from a, b\n" in err and err.count("the job has failed: no host has answered\n") == 2


def test_a_host_file_keeps_its_lines(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# the cluster\na slots=4\n\nb:2  # small\nc\n")
    options = "--hostfile", str(tmp_path / "hosts"), "--probe", "test {host} != c"
    assert shell(*options, text=f"cat {{hostfile}} > {tmp_path}/log; echo {{hosts}} >> {tmp_path}/log") == 0
    assert (tmp_path / "log").read_text() == "a slots=4\nb:2  # small\na,b\n"


def test_a_probe_that_hangs_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "_PROBE_LIMIT_S", 0.3)
    hosts = Hosts({"a": "a", "b": "b"}, 1, "sh -c 'test {host} = b || sleep 100'")
    assert hosts.present() == ["b"]
    assert Hosts({"localhost": "localhost"}).present() == ["localhost"]  # is not asked


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no command was given; needed: -- COMMAND"), (["--"], "no command was given"),
        (["--restarts", "-1", "--", "true"], "number of at least 0"), (["--grace", "nan", "--", "true"], "--grace"),
        (["--hosts", "a", "--hostfile", "b", "--", "true"], "not allowed with"),
        (["--hosts", "a", "--", "true"], "needed: a command with {hosts}"),
        (["--hosts", ",", "--", "true", "{hosts}"], "no host was given"),
        (["--hostfile", "/no/file", "--", "true", "{hosts}"], "No such file"),
        (["--hosts", "a", "--probe", "true", "--", "true", "{hosts}"], "needed: a command with {host}"),
        (["--hosts", "a", "--probe", "no-such-program {host}", "--", "true", "{hosts}"], "is not installed here"),
        (["--hosts", "a", "--probe", "true '{host}", "--", "true", "{hosts}"], "No closing quotation"),
        (["--", "true", "{ranks}"], "needed: --hosts or --hostfile"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and says in capsys.readouterr().err


# -- training ----------------------------------------------------------------------------------------------------------
def train(folder: str, deaths: int, death_at: int) -> None:
    """Train and save each step, and in the first starts die by SIGKILL at a step. Writes the final parameters."""
    path = Path(folder)
    with cc.Mesh(dp=-1) as mesh, Preemption() as preemption:
        rank = int(mesh.ranks.rank)
        mesh.ranks.barrier()
        starts = len(list(path.glob("start-*")))
        mesh.ranks.barrier()
        if rank == 0:
            (path / f"start-{starts}").touch()
        net = DataParallel(nn.Linear(3, 2, key=random.Key(0), dtype=float), "dp")
        adam = optim.Adam(net.parameters(), lr=0.1)
        found = checkpoint.resume(path / "steps", {"net": net, "adam": adam})
        for step in range(0 if found is None else found.step, STEPS):
            rows = np.random.default_rng([1, step]).standard_normal((4, 3))[rank :: int(mesh.ranks.size)]
            net.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce((net(rows) ** 2).sum(), "dp", to=cc.I)
            tape.backward(loss)
            adam.step()
            if starts < deaths and step == death_at + starts and rank == starts % mesh.ranks.size:
                (path / "b").unlink(missing_ok=True)  # its host is gone, too
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 0:
                (path / "at").write_text(str(step))
            asked = preemption.asked()
            checkpoint.save(path / "steps", {"net": net, "adam": adam}, step + 1)
            if asked:
                preemption.exit()
            if deaths < 0 and starts == 0:
                time.sleep(0.2)  # a signal is sent meanwhile
        if rank == 0:
            (path / "end").write_text(json.dumps([each.tolist() for each in net.state_dict().values()]))
            finished()


def job(python: str, mpiexec: str, folder: Path, deaths: int, death_at: int) -> list[str]:
    """The command of a job of two ranks."""
    folder.mkdir()
    options = ["--oversubscribe", "--bind-to", "none"] if python != sys.executable else []
    return [mpiexec, *options, "-n", "2", python, "-m", __name__, str(folder), str(deaths), str(death_at)]


@pytest.fixture(params=["mpich", "openmpi"])
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The interpreter and the mpiexec of an MPI library."""
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    for name, value in (("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
                        ("OMPI_MCA_osc", "^ucx"), ("UCX_TLS", "self,posix")):  # fmt: skip
        monkeypatch.setenv(name, value)
    if request.param == "mpich":
        return sys.executable, find_mpiexec()
    python = open_mpi()
    if subprocess.run([python, "-c", "import safetensors"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} cannot import safetensors")
    return python, str(Path(python).parent / "mpiexec")


def test_a_job_that_dies_ends_with_the_same_numbers(
    tmp_path: Path, library: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    done = subprocess.run(job(*library, calm, 0, 0), timeout=120, check=False)
    assert done.returncode == 0
    options = ["--wait", "0.1", "--progress", str(hit / "steps"), "--done", str(hit / "done")]
    assert main([*options, "--", *job(*library, hit, 2, 3)]) == 0, capfd.readouterr().err
    assert len(list(hit.glob("start-*"))) == 3
    assert (hit / "end").read_text() == (calm / "end").read_text()
    assert "start 2 of at most 4, after step 3: " in capfd.readouterr().err


def test_a_job_goes_on_with_fewer_ranks(
    tmp_path: Path, library: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    assert subprocess.run(job(*library, calm, 0, 0), timeout=120, check=False).returncode == 0
    command = ["{ranks}" if word == "2" else word for word in job(*library, hit, 1, 3)]
    for host in "ab":
        (hit / host).touch()
    # The names stand for hosts, and the ranks of all of them are here.
    options = ["--wait", "0.1", "--hosts", "a,b", "--probe", f"test -e {hit}/{{host}}"]
    assert main([*options, "--", *command]) == 0, capfd.readouterr().err
    err = capfd.readouterr().err
    assert "no answer from b" in err and " -n 1 " in err.partition("no answer from b")[2]
    for a, b in zip(*(json.loads((folder / "end").read_text()) for folder in (calm, hit)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_a_job_that_is_preempted_ends_with_the_same_numbers(
    tmp_path: Path, library: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    command = job(*library, hit, -1, 0)
    with sending(signal.SIGTERM, (hit / "at").exists):
        assert main(["--restarts", "0", "--", *command]) == REQUEUE, capfd.readouterr().err
    saved = checkpoint.latest(hit / "steps")
    assert saved is not None and 0 < saved < STEPS and int((hit / "at").read_text()) == saved - 1
    assert not (hit / "end").exists()
    assert main(["--restarts", "0", "--", *command]) == 0, capfd.readouterr().err
    assert subprocess.run(job(*library, calm, 0, 0), timeout=120, check=False).returncode == 0
    assert (hit / "end").read_text() == (calm / "end").read_text()


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
