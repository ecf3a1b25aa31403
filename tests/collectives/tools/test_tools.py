"""`python -m collectives check` and `doctor`, on one process, on threads and under mpiexec."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autograd import environment
from autograd.errors import OptionError
from collectives.__main__ import main
from collectives.testing.registry_cases import work_and_skips
from collectives.tools import check, diagnosis, doctor, machine

from ...forks import run_program
from ..launch import ROOT, Outcome, find_mpiexec, is_open_mpi, launch, launch_command, program_path

LIMIT_S = 60.0


COMMAND = "import runpy\nrunpy.run_module('collectives', run_name='__main__', alter_sys=True)\n"
"""What `python -m collectives` does."""


def alone(file: str, *arguments: str, **environment: str) -> Outcome:
    """Run a program, or "collectives", the command, with these arguments outside mpiexec."""
    code = COMMAND if file == "collectives" else Path(file).read_text()
    done = run_program(code, file, *arguments, limit_s=LIMIT_S, **environment)
    return Outcome(done.returncode, done.stdout, done.stderr, False)


# -- check -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("arguments", [[], ["--threads", "3"]])
def test_check_passes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--quick", *arguments]) == 0
    shown = capsys.readouterr()
    ranks = arguments[1] if arguments else "1"
    assert re.search(rf"^check: \d+ cases on {ranks} ranks? in .* s: all passed$", shown.out, re.MULTILINE)
    assert re.search(r"^all_reduce +\d+ +0$", shown.out, re.MULTILINE)
    assert "cases" in shown.err  # progress


def test_quick_leaves_out_no_pair() -> None:
    work = work_and_skips(4, processes=True)[0]
    chosen = list(check._quick(work))

    def pairs(some: Any) -> set[Any]:
        return {(c.covers, type(c.takes), repr(c.takes)[:1], type(c.gives), repr(c.gives)[:1]) for c, _ in some}

    assert pairs(chosen) == pairs(work)
    assert len(chosen) < len(work) / 2


@pytest.mark.parametrize("arguments", [["--limit-s", "0"], ["--threads", "0"]])
def test_check_refuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert "must be positive" in capsys.readouterr().err


def named(outcome: Outcome) -> None:
    """A wrong adjoint of permute was found, and nothing else."""
    assert outcome.code == 1, outcome.err
    assert re.search(r"^permute +2 +2  adjoint", outcome.out, re.MULTILINE), outcome.out
    assert re.search(r"^FAILED permute V->V ring .* on a of 3: pairing: <F\* ct, x'> = ", outcome.out, re.MULTILINE)
    assert re.search(r"^check: \d+ cases on 3 ranks in .* s: 2 FAILED$", outcome.out, re.MULTILINE)
    assert len(re.findall(r"^\w.* +\d+ +[1-9]\d*  \w", outcome.out, re.MULTILINE)) == 1


def test_check_names_a_wrong_adjoint_on_threads() -> None:
    named(alone(program_path("check_planted.py"), "wrong adjoint", "--quick", "--threads", "3"))


def test_check_names_a_wrong_adjoint_on_processes() -> None:
    outcome = launch("check_planted.py", 3, "wrong adjoint", "--quick", limit_s=LIMIT_S)
    assert not outcome.is_late
    named(outcome)


def held_up(outcome: Outcome) -> None:
    assert not outcome.is_late and outcome.code != 0
    assert re.search(r"rank (\d )?has waited for 2 s", outcome.err), outcome.err
    case = r"[^;\n]* \(case \d+: permute V->V [^;\n]*\)"
    assert re.search(rf"rank 1 computes at check_planted.py:\d+{case}", outcome.err), outcome.err
    for rank in (0, 2):
        assert re.search(rf"rank {rank} waits in \w+[^;\n]* ranks? [^;\n]*1[^;\n]*{case}", outcome.err), outcome.err


def test_check_names_who_holds_it_up_on_threads() -> None:
    held_up(alone(program_path("check_planted.py"), "hang", "--quick", "--threads", "3", "--limit-s", "2"))


def test_check_names_who_holds_it_up_on_processes() -> None:
    held_up(launch("check_planted.py", 3, "hang", "--quick", "--limit-s", "2", limit_s=LIMIT_S))


# -- doctor ------------------------------------------------------------------------------------------------------------
def diagnosed(outcome: Outcome, code: int = 0) -> dict[str, Any]:
    assert (outcome.code, outcome.is_late) == (code, False), outcome.err
    found: dict[str, Any] = json.loads(outcome.out[outcome.out.index("{") :].splitlines()[0])
    for section, probes in found.items():
        for name, probe in probes.items() if section != "checks" else ():
            assert probe["ok"] in (True, False) and (probe["ok"] or probe["reason"]), (section, name)
    assert any(check["state"] == "fails" for check in found["checks"]) == bool(code)
    assert all(bool(check["fix"]) != (check["state"] == "ok") for check in found["checks"])
    return found


def checked(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The only check of a name."""
    (check,) = (check for check in found["checks"] if check["name"] == name)
    return dict(check)


def test_doctor_alone() -> None:
    find_mpiexec()
    found = diagnosed(alone("collectives", "doctor", "--json", RINGTAPE_CHEK="always"), 1)
    assert found["MPI"]["ranks"]["value"] == 2  # it has started two
    assert found["MPI"]["shared windows"] == {"ok": True, "value": "work"} == found["transports"]["shared windows"]
    assert found["MPI"]["vendor"]["value"].startswith(found["launcher"]["mpiexec"]["value"]["kind"])
    assert found["MPI"]["thread level"]["value"] == "multiple"
    assert found["transports"]["threads"]["ok"] and found["transports"]["mpi"]["ok"]
    assert found["software"]["numpy"]["ok"]
    for name in ("Python", "NumPy", "MPI", "mpiexec", "hosts", "messages", "all_reduce", "cores", "shared memory"):
        assert checked(found, name)["state"] in ("ok", "warning")
    assert checked(found, "all_reduce")["text"].startswith("the right sum on all ranks")
    assert "export RINGTAPE_CHECK=always" in checked(found, "RINGTAPE_CHEK")["fix"]


@pytest.mark.parametrize(
    ("on", "ranks"), [("here", 3), ("openmpi", 2), pytest.param("hosts", 4, marks=pytest.mark.slow)]
)
def test_doctor_in_a_job(on: str, ranks: int) -> None:
    found = diagnosed(launch_command(["-m", "collectives", "doctor", "--json"], ranks, limit_s=LIMIT_S, on=on))
    assert sum(found["MPI"]["hosts"]["value"].values()) == ranks == found["MPI"]["ranks"]["value"]
    if on == "hosts":
        assert found["MPI"]["hosts"]["value"] == {"node1": 2, "node2": 2}
        assert found["machine node2"]["links"]["value"][0]["link"] == "eth0"
    assert found["ranks"] == {"software": {"ok": True, "value": []}, "variables": {"ok": True, "value": []}}
    assert checked(found, "messages")["text"].startswith("8 bytes from rank 0 to rank ")


HANGS = "import threading\nthreading.Event().wait()\n"
DIES = "import os\nos.abort()\n"
RAISES = "raise RuntimeError('cannot load MPI library\\nlibmpi.so: No such file')\n"


@pytest.mark.parametrize(
    ("body", "reason"), [(HANGS, "within 1 s"), (DIES, "status -6"), (RAISES, "mpi4py finds no MPI library in ")]
)
def test_doctor_survives_a_broken_mpi(body: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    (tmp_path / "mpi4py" / "MPI.py").write_text(body)
    limit_s = "1" if body is HANGS else "30"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    found = diagnosed(alone("collectives", "doctor", "--json", "--limit-s", limit_s, PYTHONPATH=path), 1)
    assert not found["transports"]["mpi"]["ok"]
    assert reason in found["MPI"]["one process"]["reason"]
    assert found["transports"]["threads"]["ok"]
    check = checked(found, "MPI")
    assert check["state"] == "fails" and reason in check["text"]
    assert body is not RAISES or check["fix"].startswith('pip install "ringtape[mpich]"')


def test_doctor_knows_a_launcher_of_another_kind() -> None:
    """As if the other library's mpiexec had started this: initialising would end the process."""
    is_open = is_open_mpi(find_mpiexec())
    other = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    if is_open:
        other = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    outcome = alone("collectives", "doctor", **other)
    assert outcome.code == 1
    assert "python -m collectives doctor" not in outcome.out  # it is running
    kinds = ("MPICH", "Open MPI") if is_open else ("Open MPI", "MPICH")
    assert re.search(rf"^FAILS    MPI +the launcher has started 2 ranks with {kinds[0]}'s mpiexec, and mpi4py "
                     rf"loads {kinds[1]} .*\n +fix: use the mpiexec that belongs to the library: /", outcome.out,
                     re.MULTILINE), outcome.out  # fmt: skip
    # the machine may have warnings of its own
    assert re.search(r"^doctor: 1 will fail(, \d warnings?)?   \(--details prints all findings\)\n\Z", outcome.out,
                     re.MULTILINE), outcome.out  # fmt: skip


def report_of(**changed: Any) -> dict[str, Any]:
    """Findings of a job of four ranks on two hosts, all of them well."""

    def ok(value: Any) -> dict[str, Any]:
        return {"ok": True, "value": value}

    no = {"ok": False, "reason": "none"}
    host = {"cores": ok({"usable": 4, "unbound": 4, "all": 4, "of this rank": [0, 1, 2, 3]}), "GPUs": no,
            "/dev/shm": ok({"total_bytes": 1 << 32, "free_bytes": 1 << 32})}  # fmt: skip
    report = {
        "software": {"python": ok("3.11"), "numpy": ok("2.4"), "cupy-cuda12x": no},
        "environment": {"user": ok("root"), "variables": ok({"OPENBLAS_NUM_THREADS": "1"})},
        "launcher": {"mpiexec": ok({"path": "/e/bin/mpiexec", "kind": "MPICH", "version": "5",
                                    "on PATH": {"path": "/e/bin/mpiexec", "kind": "MPICH", "version": "5"}})},
        "MPI": {"vendor": ok("MPICH 5.0.2"), "thread level": ok("multiple"), "ranks": ok(4),
                "hosts": ok({"a": 2, "b": 2}), "ping": ok({"slowest": 3, "slowest_s": 1e-5, "fastest_s": 1e-6}),
                "all_reduce": ok({"1 MiB_s": 1e-3}), "shared windows": ok("work"), "GPU-aware": ok(False)},
        "machine a": dict(host), "machine b": dict(host),
        "ranks": {"software": ok([]), "variables": ok([])},
    }  # fmt: skip
    for path, value in changed.items():
        *sections, last = path.split("__")
        at: Any = report
        for section in sections:
            at = at[section.replace("_", " ")]
        at[last.replace("_", " ").replace("shm", "/dev/shm")] = {"ok": True, "value": value}
    return report


OPEN_MPI = {"path": "/e/bin/mpiexec", "kind": "Open MPI", "version": "5", "on PATH": None}


@pytest.mark.parametrize(
    ("changed", "state", "name", "text", "fix"),
    [
        ({"machine_b__cores": {"usable": 1, "unbound": 1, "of this rank": [0]}}, "warning", "cores",
         "2 ranks share 1 core on b", "at most 1 rank per host"),
        ({"machine_b__cores": {"usable": 1, "unbound": 2, "of this rank": [0]}}, "warning", "cores",
         "2 ranks are bound to 1 core of 2 on b", "mpiexec --bind-to none"),
        ({"environment__variables": {}}, "warning", "BLAS threads", "not set: each rank starts 4", "THREADS=2"),
        ({"environment__variables": {"OMP_NUM_THREADS": "4"}}, "warning", "BLAS threads",
         "2 ranks with 4 threads each on a; the same on 1 further host", "OPENBLAS_NUM_THREADS=2"),
        ({"machine_b__shm": {"total_bytes": 1 << 26, "free_bytes": 1 << 26}}, "warning", "shared memory",
         "/dev/shm on b has 64 MiB free of 64 MiB", "docker run --shm-size=2g"),
        ({"machine_b__shm": {"total_bytes": 1 << 26, "free_bytes": 1 << 22}}, "fails", "shared memory",
         "4 MiB", "docker run --shm-size=2g"),
        ({"machine_b__GPUs": ["GPU 0"]}, "warning", "GPU", "1 GPU, but no CuPy", "ringtape[gpu]"),
        ({"MPI__ping": {"slowest": 3, "slowest_s": 5e-3, "fastest_s": 1e-6}}, "warning",
         "messages", "rank 3", "mpiexec -iface"),
        ({"launcher__mpiexec": {**OPEN_MPI, "on PATH": OPEN_MPI}}, "fails", "root", "refuses to run as root",
         "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
        ({"launcher__mpiexec": {**OPEN_MPI, "kind": "MPICH"}}, "warning", "mpiexec", "is not on PATH", "PATH=/e/bin:"),
        ({"launcher__mpiexec": {**OPEN_MPI, "kind": "MPICH", "on PATH": {**OPEN_MPI, "path": "/usr/bin/mpiexec"}}},
         "fails", "mpiexec", "`mpiexec` is Open MPI's /usr/bin/mpiexec, but MPICH 5.0.2 needs", "/e/bin/mpiexec -n 4"),
        ({"ranks__software": ["numpy is 2.4 on rank 0 and 2.3 on rank 2"]}, "fails",
         "environments", "numpy is 2.4", "the same environment"),
        ({"ranks__variables": ["RINGTAPE_CHECK is off on rank 0 and missing on rank 2"]}, "fails",
         "variables", "RINGTAPE_CHECK is off", "mpiexec -x NAME"),
        ({"environment__variables": {"OMP_NUM_THREADS": "1", "RINGTAPE_COMPILED": "no"}}, "fails",
         "RINGTAPE_COMPILED", "needed '0' or '1'", "export RINGTAPE_COMPILED="),
        ({"MPI__thread_level": "single"}, "warning", "MPI", "thread level 'single'", "MPI_THREAD_MULTIPLE"),
    ],
)  # fmt: skip
def test_diagnosis(changed: dict[str, Any], state: str, name: str, text: str, fix: str) -> None:
    assert all(check.state == "ok" for check in diagnosis.diagnose(report_of(), 4))
    (found,) = (check for check in diagnosis.diagnose(report_of(**changed), 4) if check.state != "ok")
    assert (found.state, found.name) == (state, name)
    assert text in found.text and fix in found.fix, found


# -- variables ---------------------------------------------------------------------------------------------------------
def test_all_variables_are_read_in_one_place_and_documented() -> None:
    sources = {path: path.read_text() for package in ("autograd", "collectives", "parallel")
               for path in (ROOT / package).rglob("*.py") if path.name != "environment.py"}  # fmt: skip
    read = set(re.findall(r"\"(RINGTAPE_[A-Z_]*[A-Z])\"", "\n".join(sources.values())))
    assert read - {"RINGTAPE_RANK_PID"} <= set(environment.VARIABLES)
    for path, text in sources.items():
        if path == ROOT / "autograd" / "errors.py":  # below `environment`, which raises its errors
            continue
        if path.parent == ROOT / "collectives" / "audit" / "hook":  # of an interpreter that has no ringtape
            continue
        assert not re.search(r"environ(\.get)?[\[(](\"RINGTAPE|VARIABLE\b|IGNORED\b)", text), path
    page = (ROOT / "docs" / "checking.md").read_text()
    rows = [f"| `{name}` | {each.row}" for name, each in environment.VARIABLES.items()]
    assert "\n".join(rows) in page, "the table of docs/checking.md has to be:\n" + "\n".join(rows)


WRONG = {
    "RINGTAPE_CHEK": ("always", "reads no such variable", "export RINGTAPE_CHECK=always"),
    "ringtape_timeout_s": ("9", "reads no such variable", "export RINGTAPE_TIMEOUT_S=9"),
    "RINGTAPE_ZEBRA": ("1", "reads no such variable", "there are RINGTAPE_CHECK, "),
    "RINGTAPE_CHECK": ("none", "needed one of 'off', 'first', 'always', 'ranks'", ""),
    "RINGTAPE_TIMEOUT_S": ("-3", "needed a positive number of seconds", ""),
    "RINGTAPE_REPORT_S": ("inf", "needed a positive number of seconds", ""),
    "RINGTAPE_SHARED_LIMIT_S": ("ten", "needed a positive number of seconds", ""),
    "RINGTAPE_GUARD": ("off", "needed '0' or '1'", ""),
    "RINGTAPE_LAUNCHER": ("no", "needed 'none'", ""),
    "RINGTAPE_TRACEBACK": ("all", "needed 'full'", ""),
    "RINGTAPE_COMPILED": ("no", "needed '0' or '1'", ""),
    "RINGTAPE_DEVICE_TRANSPORT": ("gpu", "needed one of 'staged', ", ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variable_is_an_error(name: str) -> None:
    given, text, fix = WRONG[name]
    ((problem, instead),) = environment.problems({name: given, "RINGTAPE_PYTHON_TORCH": "x", "HOME": "y"}).values()
    assert problem.startswith(f"{name}={given!r}: ") and text in problem and fix in instead
    if name in environment.VARIABLES:
        with pytest.raises(OptionError, match=re.escape(f"{name}={given!r}: {text}")):
            environment.value(name, {name: given})


WRONG_TEXTS = (
    "text", "-1", "0", "nan", "inf", "1e400", f"1{'0' * 23}", "9" * 5000, "1_0", "\u0663", "\u00fc", " ", "1\n2",
)  # fmt: skip
"""Wrong for every variable that takes numbers or one of a few words, but for those that take them, `TAKES`."""
TAKES = {("RINGTAPE_GUARD", "0"), ("RINGTAPE_COMPILED", "0"), ("RINGTAPE_RECORD_DATA", "0")}
CHECKED = [name for name, each in environment.VARIABLES.items() if each.values or each.form in environment.FORMS]
OF_READERS = (
    "RINGTAPE_BLAS", "RINGTAPE_CODE", "RINGTAPE_ALGORITHMS", "RINGTAPE_FAULTS", "RINGTAPE_RECORD", "RINGTAPE_AUDIT",
    "RINGTAPE_DONE", "RINGTAPE_PLACE",
)  # fmt: skip


@pytest.mark.parametrize("name", environment.VARIABLES)
def test_every_variable_refuses_wrong_values(name: str) -> None:
    """With a typed error that names the variable, the value and what it takes. An empty value is none."""
    assert (name in CHECKED) != (name in OF_READERS)
    assert environment.value(name, {name: ""}) == environment.VARIABLES[name].default
    assert not environment.problems({name: ""})
    for given in WRONG_TEXTS if name in CHECKED else ():
        if (name, given) in TAKES:
            continue
        for read in (environment.value, environment.seconds, environment.whole):
            with pytest.raises(OptionError, match=rf"^{name}='.*: needed .*\n  fix: .*(unset|export) {name}.*, or "):
                read(name, {name: given})
        (problem, fix), = environment.problems({name: given}).values()
        assert problem.startswith(f"{name}=") and "needed" in problem and len(problem) < 250
        right = re.search(rf"export {name}=([^,]+)", fix)
        assert right is not None and environment.value(name, {name: right[1]}) == right[1]


@pytest.mark.parametrize("name", ["RINGTAPE_CHEK", "RINGTAPE_SHARED_LIMIT_S"])
def test_the_first_world_refuses_a_wrong_variable(name: str) -> None:
    given, text, fix = WRONG[name]
    outcome = run_program("import collectives as cc\ncc.world()", "world.py", limit_s=LIMIT_S, **{name: given})
    assert outcome.returncode == 1 and text in outcome.stderr and fix in outcome.stderr


def test_doctor_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(machine_a__cores={"usable": 1, "unbound": 1, "of this rank": [0]})
    report["MPI"]["library"] = {"ok": False, "reason": "first\nsecond"}
    options = argparse.Namespace(json=False, details=True, limit_s=30.0)
    monkeypatch.setattr(doctor, "launched_size", lambda: 4)
    assert doctor._finish(report, options) == 0
    shown = capsys.readouterr().out
    assert "warning  cores          2 ranks share 1 core on a: they wait for each other\n" in shown
    assert "\n                        fix: at most 1 rank per host" in shown
    assert "  library          no: first\n                   second\n" in shown
    assert shown.endswith("doctor: 1 warning\n")


def test_cores_of_a_limited_container(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert machine.cores(tmp_path / "cpu.max")["usable"] == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cores(tmp_path / "cpu.max") == machine.cores(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's binding to cores")
def test_a_binding_does_not_hide_the_cores_of_the_machine(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    own = min(before)
    os.sched_setaffinity(0, {own})
    try:
        found = machine.cores(tmp_path / "nowhere")
        assert (found["usable"], found["of this rank"]) == (1, [own])
        assert found["unbound"] >= len(before)
        assert os.sched_getaffinity(0) == {own}  # it is left as it was
    finally:
        os.sched_setaffinity(0, before)


def test_cores_to_which_a_launcher_has_bound_the_ranks() -> None:
    bound = [{"usable": 1, "of this rank": [core], "limit": 8, "all": 8} for core in (0, 1)]
    assert machine.cores_of_ranks(bound)["usable"] == 2
    assert machine.cores_of_ranks([{**each, "limit": 1} for each in bound])["usable"] == 1


def test_machine_is_read_from_sys(tmp_path: Path) -> None:
    node, link = tmp_path / "numa" / "node1", tmp_path / "net" / "ib0"
    for folder in (node, link / "device", tmp_path / "net" / "lo"):
        folder.mkdir(parents=True)
    (node / "cpulist").write_text("4-7\n")
    (node / "distance").write_text("21 10\n")
    (node / "meminfo").write_text("Node 1 MemTotal:  1024 kB\nNode 1 MemFree:  512 kB\n")
    (link / "operstate").write_text("up\n")
    (link / "speed").write_text("100000\n")
    (link / "mtu").write_text("4096\n")
    nodes, links = machine.numa(tmp_path / "numa"), machine.links(tmp_path / "net")
    assert nodes == [{"node": "node1", "cores": "4-7", "memory_bytes": 1 << 20, "distances": [21, 10]}]
    assert links == [{"link": "ib0", "state": "up", "mtu_bytes": 4096, "speed_mbit_per_s": 100000, "is_virtual": False}]
    for probe in (machine.numa, machine.links, machine.fabrics):
        with pytest.raises((LookupError, OSError)):
            probe(tmp_path / "nowhere")


# -- the command -------------------------------------------------------------------------------------------------------
def test_help_lists_the_tools() -> None:
    command = [sys.executable, "-m", "collectives", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd="/",
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 0 and "doctor" in done.stdout and "check" in done.stdout
