"""Elastic runs of processes: over Open MPI's fault tolerance the others go on, elsewhere the run is started again.

A seed chooses the program, the ranks that die, and where: by a signal at any moment, or by a fault at an operation or
a point. The default tests run a few seeds. Fifty of them: ``pytest -m slow tests/parallel/elastic/test_processes.py``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from ...collectives.launch import QUIET, ROOT, find_mpiexec, launch_command, open_mpi
from .training import CASES, serial

pytest.importorskip("safetensors", reason="safetensors is not installed")
LIMIT_S = 120
GOES_ON_S = 2.0  # within which the others have the state again
TOLERANT: dict[str, Any] = {"on": "openmpi", "options": ["--with-ft", "ulfm"]}
POINTS = ("elastic.step", "elastic.commit", "elastic.copy", "elastic.copied", "elastic.save", "checkpoint.write_data",
          "checkpoint.rename", "elastic.end", "elastic.finished")  # fmt: skip
IN_A_RECOVERY = ("elastic.survivors", "elastic.restore", "elastic.restored")


class Drawn(NamedTuple):
    """A run: its program, the number of ranks, who is killed by a signal and after how many seconds, and its faults."""

    name: str
    ranks: int
    times: dict[int, float]
    faults: str


@cache
def operations(name: str, ranks: int) -> list[int]:
    """About how many operations each rank makes."""
    import collectives as cc
    from collectives.testing import faults

    from .training import program

    with faults.injected() as injection, cc.World("threads", ranks, policy="raise") as world:
        world.run(lambda: program(name, copies=2))
    return [injection.counts[rank][""] for rank in range(ranks)]


def drawn(seed: int) -> Drawn:
    """The run of a seed. Every fifth has two deaths, often one in the recovery; every seventh one in a window's access.
    """
    rng = Random(seed)
    name = "window" if seed % 7 == 0 else rng.choice([name for name in CASES if name != "window"])
    ranks = rng.choice([3, 4] if seed % 5 == 0 else [2, 3, 4])
    victims = rng.sample(range(ranks), 2 if seed % 5 == 0 else 1)
    times: dict[int, float] = {}
    planned: list[str] = []
    for k, rank in enumerate(victims):
        kind = rng.choice(["signal", "operation", "point"])
        if seed % 7 == 0 and k == 0:
            access = rng.choice(["window.fetch_and_add", "window.get"])
            planned.append(f"kill:{rank}@{rng.randint(1, 3 * ranks)},of={access}")
        elif k == 1 and rng.random() < 0.5:
            planned.append(f"kill:{rank}@1,of={rng.choice(IN_A_RECOVERY)}")
        elif kind == "signal":
            times[rank] = rng.random() * 0.4
        elif kind == "operation":
            planned.append(f"kill:{rank}@{rng.randint(1, operations(name, ranks)[rank])}")
        else:
            planned.append(f"kill:{rank}@{rng.randint(1, 2)},of={rng.choice(POINTS)}")
    return Drawn(name, ranks, times, "; ".join(planned))


def processes_of(folder: Path) -> list[int]:
    """The processes that have a directory among their arguments."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and int(each.name) != os.getpid():
            try:
                if str(folder).encode() in (each / "cmdline").read_bytes():
                    found.append(int(each.name))
            except OSError:
                continue
    return found


def results_of(out: str) -> dict[int, Any]:
    return {int(rank): json.loads(text) for rank, text in re.findall(r"^RESULT (\d+) (.*)$", out, re.M)}


def compare(name: str, results: Sequence[Any], case: str) -> None:
    """The losses are those of the serial run, and with ``bits="same"`` the parameters have its digest."""
    import hashlib

    losses, parameters, _ = serial(name)
    digest = hashlib.sha256()
    for key in sorted(parameters):
        digest.update(np.ascontiguousarray(parameters[key]).tobytes())
    is_same = CASES[name].get("bits") == "same"
    for found, sha, _ in results:
        np.testing.assert_allclose(found, losses, rtol=0 if is_same else 1e-10, err_msg=case)
        if is_same and "pp" not in name:  # else each rank has the parameters of its stage
            assert sha == digest.hexdigest(), case


def run(
    it: Drawn, folder: Path, *, stops: bool = False, spares: int = 0, **environment: str
) -> tuple[dict[int, Any], Any, str]:
    """Run a job, and check what its ranks print. Returns the results, the outcome, and a text for reports."""
    victims = ",".join(f"{rank}@{when:.4f}" for rank, when in it.times.items())
    arguments = [str(Path(__file__).parent / "programs" / "elastic_program.py"), it.name, str(folder), victims]
    if it.faults:
        environment["RINGTAPE_FAULTS"] = it.faults
    outcome = launch_command(
        [*arguments, *["stop"] * stops, f"spares={spares}"], it.ranks + spares, limit_s=LIMIT_S,
        OPENBLAS_NUM_THREADS="1", **environment, **TOLERANT,
    )  # fmt: skip
    case = f"{it}\n{outcome.out}\n{outcome.err}"
    assert not outcome.is_late, case
    assert outcome.code == 0 or "lost" in outcome.err, case
    assert not processes_of(folder), case
    return results_of(outcome.out), outcome, case


def survive(seed: int, folder: Path, spares: int = 0) -> str:
    """Run the job of a seed, in which ranks are killed. Returns "crash" if Open MPI has crashed."""
    it = drawn(seed)
    results, outcome, case = run(it, folder, spares=spares)
    if "Segmentation fault" in outcome.err:  # if a death is told while it makes a communicator
        return "crash"
    assert outcome.code == 0, case
    left = [each for each in results.values() if each is not None]
    assert left and len(results) >= it.ranks + spares - len(it.times) - it.faults.count("kill"), case
    compare(it.name, left, case)
    if spares and "mesh" not in CASES[it.name]:  # all along dp
        meshes = [json.loads(text) for text in re.findall(r"^MESHES \d+ (.*)$", outcome.out, re.M)]
        gone = np.cumsum([len(each[0]) for each in max((each[2] for each in left), key=len)])
        expected = [min(it.ranks, it.ranks + spares - int(n)) for n in gone]
        assert [mesh["dp"] for mesh in max(meshes, key=len)] == expected, case
    died = [float(when) for when in re.findall(r"^DIES \d+ ([\d.]+)", outcome.out, re.M)]
    again = [float(when) for when in re.findall(r"^RESTORED \d+ \d+ ([\d.]+)", outcome.out, re.M)]
    for each in left:
        assert all(seconds < GOES_ON_S for *_, seconds in each[2]), case
    if died and len(died) == it.ranks + spares - len(results) and again and not it.faults:
        assert max(again) - max(died) < GOES_ON_S, case
    return ""


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 7])
def test_others_go_on_after_a_death(seed: int, tmp_path: Path) -> None:
    survive(seed, tmp_path)


@pytest.mark.parametrize("seed", [4, 5])
def test_a_spare_takes_the_place_of_a_rank_that_dies(seed: int, tmp_path: Path) -> None:
    survive(seed, tmp_path, spares=1)


@pytest.mark.slow
def test_spares_take_places_in_thirty_seeds(tmp_path: Path) -> None:
    wrong = [survive(seed, tmp_path / str(seed), spares=1 + seed % 2) for seed in range(10, 40)]
    assert len([text for text in wrong if text]) <= 3


@pytest.mark.slow
def test_others_go_on_after_deaths_of_fifty_seeds(tmp_path: Path) -> None:
    wrong = [survive(seed, tmp_path / str(seed)) for seed in range(10, 60)]
    assert len([text for text in wrong if text]) <= 3


@pytest.mark.slow
def test_others_go_on_without_a_rank_that_is_stopped(tmp_path: Path) -> None:
    results, outcome, case = run(Drawn("dp", 3, {1: 0.02}, ""), tmp_path, stops=True, RINGTAPE_STOPPED_S="2")
    assert outcome.code == 0 and results.keys() == {0, 2}, case
    compare("dp", [*results.values()], case)
    (died,) = (float(when) for when in re.findall(r"^DIES 1 ([\d.]+)", outcome.out, re.M))
    again = [float(when) for when in re.findall(r"^RESTORED \d 2 ([\d.]+)", outcome.out, re.M)]
    assert len(again) == 2 and max(again) - died < 2 + 2 * GOES_ON_S, case


@pytest.mark.slow
@pytest.mark.parametrize("on", ["mpich", "openmpi"])
def test_where_a_death_ends_the_job_it_is_started_again(on: str, tmp_path: Path) -> None:
    """The same program, without fault tolerance: it goes on from its directory."""
    if on == "openmpi":
        python, options = open_mpi(), ["--oversubscribe", "--bind-to", "none"]
        mpiexec = str(Path(python).parent / "mpiexec")
    else:
        python, options, mpiexec = sys.executable, [], find_mpiexec()
    done = tmp_path / "done"
    launcher = ["-m", "parallel.launch", "--restarts", "2", "--done", str(done)]
    program = [str(Path(__file__).parent / "programs" / "elastic_program.py"), "ZeRO-1", str(tmp_path / "run"), ""]
    found = subprocess.run(
        [sys.executable, *launcher, "--", mpiexec, *options, "-n", "3", python, *program], capture_output=True,
        text=True, timeout=LIMIT_S, check=False, env={
            **os.environ, **QUIET, "PYTHONPATH": str(ROOT), "RINGTAPE_FAULTS": "kill:1@4,of=elastic.step,start=1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OPENBLAS_NUM_THREADS": "1",
        },
    )  # fmt: skip
    case = found.stdout + found.stderr
    assert found.returncode == 0 and done.exists() and not processes_of(tmp_path), case
    results = results_of(found.stdout)
    assert len(results) == 3, case
    compare("ZeRO-1", [*results.values()], case)


@pytest.mark.parametrize("on", ["threads", pytest.param("openmpi", marks=pytest.mark.slow)])
def test_twenty_rebuilds_do_not_grow(on: str) -> None:
    """Errors that look like deaths, of which nobody dies, make epochs; the last ones take no more than early ones."""
    if on == "openmpi":
        program = str(Path(__file__).parent / "programs" / "elastic_rebuilds.py")
        outcome = launch_command([program, "24"], 3, limit_s=LIMIT_S, **TOLERANT)
        text = outcome.out + outcome.err
        assert outcome.code == 0, text
    else:
        command = [sys.executable, "-m", f"{__package__}.programs.elastic_rebuilds", "24", "threads"]
        text = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=LIMIT_S, check=True).stdout
    found = [tuple(map(int, each)) for each in re.findall(r"^START (\d+) (\d+) (\d+) (\d+)$", text, re.M)]
    assert len(found) >= 20, text
    early, last = found[6], found[-1]
    assert last[1] <= early[1] and last[2] <= early[2] + 8 and last[3] <= early[3], text
