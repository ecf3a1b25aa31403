"""Audits of jobs of PyTorch: in the styles of their writers, as reported to public projects, and those of the guide."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectives.__main__ import main
from collectives.audit import Judge, Report, read_steps

from . import planted, public
from .planted import ROOT, Bench

STYLES = {
    "closure": 2, "lbfgs": 2, "two_optimizers": 2, "groups": 2, "halves": 2, "sparse": 2, "compiled": 2, "no_sync": 2,
    "children": 2, "ends_early": 2, "elsewhere": 2, "sharded_optimizer": 2, "lazy": 2, "no_module": 2, "hooks": 2,
    "scaler": 2, "two_axes": 4,
}  # fmt: skip
"""The jobs of `styles.py`, and their ranks."""
GUIDE = ROOT / "docs" / "guides" / "audit.md"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    python = os.environ.get("RINGTAPE_PYTHON_TORCH")
    if not python:
        pytest.skip("RINGTAPE_PYTHON_TORCH names no interpreter that has torch")
    bench = Bench(tmp_path_factory.mktemp("jobs"), python)
    yield bench
    bench.close()


@pytest.mark.parametrize("style", STYLES)
def test_a_style_of_writing_is_collected(bench: Bench, style: str) -> None:
    """The right job is silent, and the wrong one has one gradient that is twice right."""
    bench.program = Path(__file__).with_name("styles.py")

    def judged(fault: str) -> Report:
        kinds = ((f"job{fault}", STYLES[style], fault), ("ref", 1, ""))
        runs = [read_steps(bench.collect(f"{style} {kind}", ranks, [style], of)) for kind, ranks, of in kinds]
        moved = [] if style == "no_module" else [read_steps(bench.collect(f"{style} ulp", 1, [style], ulp=1))]
        return Judge(*runs, moved).report()

    right, wrong = judged(""), judged("twice")
    assert right.status == 0 and right.verdicts, right
    ((finding, names),) = wrong.findings
    assert finding.cause == "factor" and "2 times right" in finding.text and len(names) == 1, wrong


def test_a_job_begins_each_step_with_the_parameters_of_the_reference(bench: Bench) -> None:
    """So a later step of a wrong job can be judged by itself."""
    bench.program = Path(__file__).with_name("styles.py")
    reference = bench.collect("closure ref", 1, ["closure"])
    job = read_steps(bench.collect("reset", 2, ["closure"], "twice", reset=str(reference), boxes={}))
    moved = read_steps(bench.collect("closure ulp", 1, ["closure"], ulp=1))
    report = Judge(job, read_steps(reference), [moved], first=2).report()
    assert report.step == 2 and [finding.cause for finding, _ in report.findings] == ["factor"], report


@pytest.mark.parametrize("each", public.TABLE, ids=lambda each: each.name)
def test_a_public_fault_is_named(bench: Bench, each: public.Public) -> None:
    bench.program = public.JOBS
    right, wrong = public.reports(bench, each.name)
    assert public.told(each, right, wrong) == "named", f"{right}\n{wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("job", planted.TABLE, ids=lambda job: job.name)
def test_a_planted_fault_is_named(bench: Bench, job: planted.Planted) -> None:
    bench.program = planted.JOB
    report = bench.judge(job)
    assert planted.verdict(job, report) in ("right", "named"), report


@pytest.mark.parametrize("name", ("ddp", "tensor_parallel", "sequence_parallel"))
def test_the_jobs_of_the_guide(bench: Bench, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench.program = ROOT / "examples" / "audit" / f"{name}.py"
    job, fixed = (str(bench.collect(f"{name} 2 {given}", 2, given)) for given in ([], ["--fixed"]))
    reference, moved = str(bench.collect(f"{name} ref", 1, [])), str(bench.collect(f"{name} ulp", 1, [], ulp=1))
    arguments = ["--against", reference, "--ulp", moved]
    if name != "ddp":
        arguments += ["--mesh", "tp=2"]
    if name == "tensor_parallel":
        arguments += ["--map", str(bench.program.with_name("shards.toml"))]
    assert main(["audit", "judge", fixed, *arguments]) == 0
    capsys.readouterr()
    assert main(["audit", "judge", job, *arguments]) == 1
    words = re.sub(r"\s+", " ", re.sub(r"\d\.\d+", "#", capsys.readouterr().out)).strip()
    assert words in re.sub(r"\s+", " ", re.sub(r"\d\.\d+", "#", GUIDE.read_text())), words


def test_the_command_collects_a_script_and_a_module(bench: Bench, tmp_path: Path) -> None:
    """By its path and by -m, into a relative folder though it goes elsewhere, and over the files of a longer run."""
    (tmp_path / "job.py").write_text(
        "import os, sys, torch\n"
        "os.chdir('/')\n"
        "net = torch.nn.Linear(3, 2)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(int(sys.argv[1])):\n"
        "    net(torch.ones(1, 3)).sum().backward()\n"
        "    optimizer.step()\n"
        "sys.exit(3)\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    for steps, program in ((2, ["job.py"]), (1, ["-m", "job"])):
        given = ["-o", "out", "--", os.environ["RINGTAPE_PYTHON_TORCH"], *program, str(steps)]
        command = [sys.executable, "-m", "collectives", "audit", "collect", *given]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 3, done.stderr
        assert f"audit: out: {steps} steps of 1 ranks, 2 parameters" in done.stderr, done.stderr
        assert len(read_steps(tmp_path / "out")) == steps
