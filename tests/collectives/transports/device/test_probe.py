"""The probe in a process that crashes or hangs, its environment under mpiexec, and the choice from what it finds."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import collectives as cc
from autograd.arrays import cuda
from autograd.errors import OptionError
from collectives.tools import diagnosis, doctor
from collectives.transports.device import choice, probe
from collectives.transports.device.choice import VARIABLE, Place, decide
from collectives.transports.device.probe import MARK, Facts

from ...launch import launch

ALL = {"ipc": "", "nccl": "", "mpi": ""}
TELLS = f"print({MARK!r} + " + "{!r}, flush=True); "


def found(body: str, limit_s: float = 20.0) -> Facts:
    return probe.run([sys.executable, "-c", body], limit_s)


def told(kind: str, name: str, text: str) -> str:
    return TELLS.format(json.dumps([kind, name, text]))


@pytest.mark.parametrize(("body", "reason"), [
    ("import os; os.kill(os.getpid(), 11)", "the probe ended with signal SIGSEGV"),
    ("raise SystemExit('no device')", "the probe ended with status 1: no device"),
    ("pass", "it ended before"),
])  # fmt: skip
def test_a_process_that_dies(body: str, reason: str) -> None:
    facts, works = found(told("fact", "GPU", "one") + told("works", "ipc", "") + body)
    assert facts == {"GPU": "one"} and works == {"ipc": "", "nccl": reason, "mpi": reason}


def test_a_process_that_hangs() -> None:
    body = told("works", "ipc", "") + "import threading; threading.Event().wait()"
    assert found(body, 0.5).works == {"ipc": "", "nccl": "the probe did not end within 0.5 s",
                                      "mpi": "the probe did not end within 0.5 s"}  # fmt: skip


def test_a_probe_of_a_rank_is_no_rank() -> None:
    """Under mpiexec its process has an MPI world of its own."""
    outcome = launch("probes_program.py", 2, limit_s=60)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    assert outcome.out.split() == ["1", "1"]


def test_without_a_gpu_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "why_not", lambda: "CuPy is not installed")
    monkeypatch.setattr(probe, "run", lambda *args: pytest.fail("a process was started"))
    assert set(probe.probe.__wrapped__().works.values()) == {"no GPU: CuPy is not installed"}


# -- the choice --------------------------------------------------------------------------------------------------------


def at(host: int = 0, device: str = "0", asked: str = "", is_process: bool = True) -> Place:
    return Place(asked, host, device, "cuda", is_process)


NONE = dict.fromkeys(ALL, "broken")
CHOICES: dict[str, tuple[list[Place], dict[int, Any], str, str]] = {
    "one GPU": ([at(), at()], {0: ALL}, "ipc", "nccl: ranks share a GPU"),
    "a GPU each": ([at(), at(device="1")], {0: ALL}, "nccl", "it works on all ranks"),
    "a GPU each, without NCCL": ([at(), at(device="1")], {0: {**ALL, "nccl": "no library"}}, "ipc", "nccl: no library"),
    "two hosts": ([at(), at(1)], {0: ALL, 1: ALL}, "nccl", "works"),
    "two hosts, NCCL on one": ([at(), at(1)], {0: ALL, 1: {**ALL, "nccl": "no library"}}, "mpi",
                               "ipc: the ranks are on 2 hosts"),
    "two ranks on each of two hosts": ([at(), at(), at(1), at(1)], {0: ALL, 1: ALL}, "mpi", "ranks share a GPU"),
    "nine ranks": ([at()] * 9, {0: {**ALL, "mpi": "not built"}}, "staged", "ipc: there are 9 ranks, more than 8"),
    "nothing works": ([at(), at()], {0: NONE}, "staged", "mpi: broken"),
    "not probed": ([at(), at()], {}, "staged", "ipc: it was not probed"),
    "threads": ([at(is_process=False)] * 2, {0: {**ALL, "ipc": "broken"}}, "staged", "threads of one process"),
    "asked": ([at(asked="staged")] * 2, {}, "staged", f"{VARIABLE}=staged"),
    "asked, not probed": ([at(asked="ipc")] * 2, {}, "ipc", f"{VARIABLE}=ipc"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_the_choice(name: str) -> None:
    places, works, chosen, why = CHOICES[name]
    made = decide(places, works)
    assert made.name == chosen and why in made.why, made


@pytest.mark.parametrize(("places", "error", "text"), [
    ([at(asked="nvlink")] * 2, OptionError, f"{VARIABLE}=nvlink was given; needed: one of staged, ipc, nccl, mpi"),
    ([at(asked="nccl")] * 2, cc.CommunicationError, f"{VARIABLE}=nccl was given, and ranks share a GPU\n  fix: unset"),
    ([at(asked="ipc"), at(asked="ipc", host=1)], cc.CommunicationError, "the ranks are on 2 hosts"),
    ([at(asked="ipc"), at()], cc.CommunicationError, f"{VARIABLE} differs between the ranks: '', 'ipc'"),
])  # fmt: skip
def test_a_choice_that_cannot_be(places: list[Place], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        decide(places, {})


def test_the_table_of_the_module_has_all_names() -> None:
    assert set(re.findall(r"^(\w+) {3,}\w", Path(choice.__file__).read_text(), re.MULTILINE)) >= set(choice.NAMES)


# -- doctor ------------------------------------------------------------------------------------------------------------


def section(monkeypatch: pytest.MonkeyPatch, why: str, facts: Facts) -> dict[str, Any]:
    monkeypatch.setattr(cuda, "why_not", lambda: why)
    monkeypatch.setattr(doctor, "probe", lambda limit_s: facts)
    monkeypatch.delenv(VARIABLE, raising=False)
    return doctor._gpu(1.0)


def checks(gpu: dict[str, Any], gpus: list[str]) -> dict[str, Any]:
    machine = {"GPUs": {"ok": True, "value": gpus} if gpus else {"ok": False, "reason": "none"}}
    report = {"machine": machine, "GPU": gpu, "MPI": {}, "software": {"cupy-cuda12x": {"ok": bool(gpus)}}}
    return {check.name: check for check in diagnosis._gpus(report, 1)}


def test_doctor_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "CuPy is not installed (extra: gpu)"
    gpu = section(monkeypatch, why, Facts({}, dict.fromkeys(ALL, f"no GPU: {why}")))
    assert gpu["ranks on one GPU"] == {"ok": False, "reason": f"no GPU: {why}"}
    assert checks(gpu, [])["GPU"].text == f"none; arrays are on the CPU (no GPU: {why})"


def test_doctor_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"GPU": "H200", "driver": "CUDA 12.8", "CuPy": "14.2.0", "memory": "130 GiB free", "NCCL": "22703"}
    gpu = section(monkeypatch, "", Facts(facts, {**ALL, "mpi": "the MPI library reports that it takes none"}))
    assert gpu["CUDA IPC"] == {"ok": True, "value": "works"} and not gpu["GPU-aware MPI"]["ok"]
    found = checks(gpu, ["GPU 0"])
    assert found["GPU"].text == ", ".join(f"{name} {text}" for name, text in facts.items())
    assert found["arrays on one GPU"].text.startswith("carried by ipc: it works on all ranks (nccl: ranks share a GPU")
    assert found["arrays on GPUs"].text.startswith("carried by nccl: it works on all ranks")
    monkeypatch.setenv(VARIABLE, "mpi")
    wrong = checks(doctor._gpu(1.0), ["GPU 0"])["arrays on one GPU"]
    assert wrong.state == "warning" and f"{VARIABLE}=mpi was given, and the MPI library reports" in wrong.text
