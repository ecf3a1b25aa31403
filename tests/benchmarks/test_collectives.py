"""`benchmarks/collectives.py`: what it prints is complete, its ratios the right way round, a broken peer named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from ..collectives.launch import ROOT, find_mpiexec
from ..forks import run_program
from .scripts import load

bench = load("collectives")
SCRIPT = str(ROOT / "benchmarks" / "collectives.py")
START_S = 100.0


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def _run(*command: str, limit_s: float = START_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@pytest.mark.slow
def test_in_a_world(tmp_path: Path) -> None:
    image = tmp_path / "bench.png"
    tool = (sys.executable, SCRIPT, "--rounds", "3", "--sizes", "4096")  # a batch of 4 MiB has one call
    done = _run(find_mpiexec(), "-n", "2", *tool, "--json", "--plot", str(image))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    for name in ("shared", "shared, in the window"):
        row = figures[f"all_reduce 4 MiB, 2 ranks: {name} beside native"]
        assert row["ours"] > 0 and row["ratio"] == pytest.approx(row["peer"] / row["ours"])
    assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_beside_peers(tmp_path: Path) -> None:
    find_mpiexec()
    image = tmp_path / "bench.png"
    tool = (sys.executable, SCRIPT, "--rounds", "3", "--sizes", "4,256", "--json")
    done = _run(*tool, "--plot", str(image), limit_s=300.0)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert any(name.startswith("all_reduce 256 KiB, 2 ranks: window beside") for name in figures)
    assert any("4 ranks" in name for name in figures)
    assert any("recorded" in name for name in figures) and any("GB/s" in name for name in figures)
    assert all(row["ours"] > 0 and row["peer"] > 0 for name, row in figures.items() if "recorded" not in name)
    assert image.read_bytes().startswith(b"\x89PNG")
    assert "gloo is left out" in done.stderr


def test_a_world_that_does_not_start_is_named() -> None:
    listener = bench.socket.create_server(("127.0.0.1", 0))
    with listener, pytest.raises(SystemExit, match="gloo: its processes ended with status"):
        bench.World("gloo", "nothing", sys.executable, 1, listener)


def test_figures() -> None:
    ours, peer = bench.Series([1e-6, 2e-6, 3e-6], 1e-6), bench.Series([4e-6, 4e-6, 6e-6], 3e-6)
    assert bench.figure(ours, peer) == {
        "ours": pytest.approx(2), "peer": pytest.approx(4), "ratio": pytest.approx(2), "best ratio": pytest.approx(3)
    }  # fmt: skip
    assert [bench.shown(n) for n in (4096, 256 << 10, 1 << 20)] == ["4 KiB", "256 KiB", "1 MiB"]


def test_what_recording_adds_is_of_batches_that_follow_one_another() -> None:
    """A machine that is three times as slow at times changes no median of differences."""

    class Given:
        rounds: ClassVar[list[list[list[float]]]] = [
            [[0.0], [9.0]],  # the round that makes the buffers
            [[5e-6, 5e-6, 15e-6], [7e-6, 7e-6, 18e-6]],
            [[15e-6, 15e-6, 5e-6], [18e-6, 17e-6, 7e-6]],
            [[5e-6, 15e-6, 5e-6], [6e-6, 99e-6, 6e-6]],
        ]

        def measure_in_turn(self, calls: Any, size_bytes: int, batches: int, count: int) -> list[list[float]]:
            assert list(calls) == ["transport", "recorded"] and size_bytes == 4096 and count > 1
            return self.rounds.pop(0)

    (row,) = bench._recorded(cast(bench.World, Given()), 3).values()
    assert row == {"ours": pytest.approx(2), "peer": 5, "ratio": pytest.approx(2.5), "best ratio": pytest.approx(5)}


def test_sums_of_sums_stay_finite() -> None:
    for size in bench.SIZES:
        assert 4.0 ** (bench.calls_per_batch(size) + 2) < 1e38


def test_too_few_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--rounds", "2"]) == 2
    assert "at least 3" in capsys.readouterr().err


def test_the_script_loads_neither_mpi_nor_matplotlib() -> None:
    code = ("import sys, tests.benchmarks.scripts as scripts; scripts.load('collectives');"
            "print([m for m in ('mpi4py', 'matplotlib') if m in sys.modules])")  # fmt: skip
    assert run_program(code, "program.py", limit_s=START_S).stdout.strip() == "[]"


def test_scripts_find_the_package_and_not_the_script_of_that_name() -> None:
    for name in ("collectives", "drift", "algorithms", "overlap"):
        done = _run(sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--help")
        assert done.returncode == 0 and "usage" in done.stdout, done.stderr


def test_comparison_with_another_tree() -> None:
    """Here the other tree is this one. The worker refuses to measure what it was not asked for."""
    find_mpiexec()
    with bench.socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        args = bench.options().parse_args(["--before", str(ROOT), "--starts", "2", "--rounds", "3"])
        calls = [("all_reduce", 4096), ("all_gather, with backward", 4096)]
        figures = bench._compare(args, listener, "operations", 1, calls, "over MPI")
    assert list(figures) == [f"{name}: 4 KiB, over MPI, 1 rank" for name, _ in calls]
    assert all(0 < row["low"] <= row["ratio"] <= row["high"] for row in figures.values())
    with pytest.raises(SystemExit):
        bench.options().parse_args(["--before", str(ROOT / "tests" / "autograd")])


def test_figures_of_a_comparison() -> None:
    now, then = [[1.0, 2.0, 1.0], [1.0, 1.0, 1.0]], [[2.0, 2.0, 3.0], [1.5, 1.5, 9.0]]
    row = bench.before.figure(now, then)
    assert row == {"ours": 1.0, "peer": 2.0, "ratio": 1.75, "low": 1.5, "high": 2.0}
    assert "slower" not in bench.before.table({"a": row})
    assert "slower" in bench.before.table({"a": bench.before.figure(then, now)})
