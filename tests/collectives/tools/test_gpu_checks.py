"""`doctor --gpu`: the checks on the simulated GPU, and rows that are not lost when a check fails, dies or hangs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from autograd.arrays import cuda
from autograd.kernels.cuda import segments
from collectives.__main__ import main
from collectives.tools import gpu_checks

from ...autograd.arrays.fake_device import as_cuda

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
ON_A_GPU = ("GPU", "more than 2**31 elements", "compute-sanitizer")  # these read facts of CuPy, or start processes


@pytest.fixture
def simulated() -> Iterator[None]:
    with as_cuda():
        yield


@pytest.mark.parametrize("name", [name for name in gpu_checks.CHECKS if name not in ON_A_GPU])
def test_checks_on_the_simulated_gpu(name: str, simulated: None) -> None:
    assert gpu_checks.CHECKS[name][0]()


@pytest.mark.gpu
@pytest.mark.skipif(bool(cuda.why_not()), reason=cuda.why_not() or "")
def test_all_checks_on_a_gpu() -> None:
    assert [row for row in gpu_checks.rows(list(gpu_checks.CHECKS)) if not row.is_ok] == []


def test_a_wrong_sum_is_told(simulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds_each_time(xs: Any, places: Any, count: int) -> Any:
        out = numpy.zeros_like(xs, shape=(count, *xs.shape[1:]))
        numpy.add.at(out, places, xs)
        return out

    monkeypatch.setattr(segments, "sum_rows", rounds_each_time)
    with pytest.raises(AssertionError, match="5,000 ones of float16 are 2048"):
        gpu_checks.CHECKS["sums of rows"][0]()


def test_no_row_is_lost() -> None:
    programs = {
        "GPU": f"print('{gpu_checks.MARK}[true, \"all\"]')",
        "CUDA libraries": f"print('{gpu_checks.MARK}[false, \"ImportError: no\"]')",
        "compiler": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "rows": "raise SystemExit('no memory')",
        "NCCL": "import threading; threading.Event().wait()",
    }
    found = list(gpu_checks.rows(list(programs), lambda name: [sys.executable, "-c", programs[name]], 5))
    assert [(row.name, row.is_ok, row.text) for row in found] == [
        ("GPU", True, "all"), ("CUDA libraries", False, "ImportError: no"), ("compiler", False, "signal SIGSEGV"),
        ("rows", False, "status 1; no memory"), ("NCCL", False, "it did not end within 5 s"),
    ]  # fmt: skip


SANITIZER = """#!/bin/sh
[ "$1" = --tool ] && [ "$3" = --error-exitcode ] || exit 1
kind=$2 status=$4
shift 4
"$@"
if [ "$kind" = "$FAULT" ]; then echo "========= ERROR SUMMARY: 1 error"; exit $status; fi
"""


@pytest.mark.parametrize("fault", ["", "racecheck", "the check", "no tool"])
def test_the_sanitizer(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    path = "" if fault == "no tool" else f"{tmp_path}{os.pathsep}"
    monkeypatch.setenv("PATH", path + os.environ["PATH"])
    monkeypatch.setenv("FAULT", fault)
    row = json.dumps([fault != "the check", "some text"])
    monkeypatch.setattr(gpu_checks, "_command", lambda name: ["echo", gpu_checks.MARK + row])
    found = gpu_checks._sanitizer
    if fault == "racecheck":
        with pytest.raises(AssertionError, match="racecheck: status 9; ========= ERROR SUMMARY: 1 error"):
            found()
    elif fault == "the check":
        with pytest.raises(AssertionError, match="memcheck: status 0; some text"):
            found()
    elif not fault or shutil.which("compute-sanitizer") is None:
        assert found().startswith("left out" if fault else "memcheck, racecheck, synccheck: no error")


@pytest.mark.skipif(not cuda.why_not(), reason="there is a GPU")
def test_without_a_gpu_the_reason_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu"]) == 1
    shown = capsys.readouterr().out
    assert cuda.why_not() in shown and "fix: pip install" in shown


def test_rows_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cuda, "why_not", lambda: "")
    rows = [gpu_checks.Row("GPU", True, "one", 1.0), gpu_checks.Row("rows", False, "wrong", 0.5)]
    monkeypatch.setattr(gpu_checks, "rows", lambda names: iter(rows))
    assert main(["doctor", "--gpu"]) == 1
    assert "FAILS    rows" in capsys.readouterr().out
    assert main(["doctor", "--gpu", "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["rows"] == {"ok": False, "text": "wrong", "seconds": 0.5}
    assert "ok       GPU" in shown.err
