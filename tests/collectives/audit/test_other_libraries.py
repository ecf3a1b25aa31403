"""Jobs of mpi4py, ringtape and JAX that write their gradients: right ones are silent, and wrong ones are named."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from collectives.audit import Judge, read_steps

from ..launch import ROOT, launch_command

JOBS = ROOT / "examples" / "audit"


def causes(folder: Path) -> list[tuple[str, str, list[str]]]:
    """What is said of the wrong job; the right one is silent."""
    reference, right, wrong = (read_steps(folder / name) for name in ("ref", "job", "wrong"))
    report = Judge(right, reference).report()
    assert report.status == 0 and report.steps == 3 and report.verdicts, report
    report = Judge(wrong, reference).report()
    return [(finding.cause, finding.text, sorted(names)) for finding, names in report.findings]


@pytest.mark.parametrize("library", ("mpi4py", "ringtape"))
def test_jobs_of_mpi(library: str, tmp_path: Path) -> None:
    for name, ranks, more in (("ref", 1, []), ("job", 2, []), ("wrong", 2, ["--wrong"])):
        program = [str(JOBS / f"with_{library}.py"), str(tmp_path / name), *more]
        ended = launch_command(program, ranks, limit_s=120, RINGTAPE_COMPILED="0")
        assert ended.code == 0, ended.out + ended.err
    ((cause, text, names),) = causes(tmp_path)
    if library == "mpi4py":
        assert (cause, names) == ("factor", ["bias", "weight"]) and "1 / the 2 ranks of 'ranks'" in text
    else:
        assert (cause, names) == ("factor", ["0.weight"]) and "1 on rank 0, 2 on rank 1" in text


def test_a_job_of_jax(tmp_path: Path) -> None:
    python = os.environ.get("RINGTAPE_PYTHON_JAX")
    if not python:
        pytest.skip("RINGTAPE_PYTHON_JAX names no interpreter that has JAX")
    for name, more in (("ref", ["1"]), ("job", ["2"]), ("wrong", ["2", "--wrong"])):
        command = [python, str(JOBS / "with_jax.py"), str(tmp_path / name), *more]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    ((cause, text, names),) = causes(tmp_path)
    assert (cause, names) == ("missing sum", ["first.bias"]) and "their sum is right" in text
