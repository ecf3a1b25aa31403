"""docs/guides/files.md lists every file, folder, socket and shared memory that ringtape makes, and its mode."""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import collectives as cc
from autograd.files import PrivateFolder
from collectives.algorithms import choices
from collectives.inspect.record import RankRecords
from collectives.page import show
from collectives.page.document import Page
from parallel import checkpoint, launch
from parallel.runs.log import RunLog

from .test_architecture import PACKAGES, ROOT

PAGE = ROOT / "docs" / "guides" / "files.md"
MAKERS = frozenset((
    "new_file", "replacing", "replaced", "taking_place", "PrivateFolder.make", "mkdir", "makedirs", "mkstemp",
    "mkdtemp", "TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile", "write_text", "write_bytes", "os.symlink",
    "os.link", "symlink_to", "mkfifo", "mknod", "savefig", "save_file", "socket.socket", "socketpair",
    "shared_memory.SharedMemory", "memfd_create", "Allocate_shared", "np.save", "savez", "tofile", "json.dump", "njit",
    "CDLL",
))  # fmt: skip
"""Calls that may leave something on a machine, or load a library from it, by the end of their name."""
RUNNERS = frozenset(("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "joblib"))
"""Modules that run what a file says."""
FOUND: dict[str, str] = {
    "autograd/__main__.py": "",  # `python -m autograd stubs` writes the stubs of this source
    "autograd/arrays/blas.py": "RINGTAPE_BLAS",
    "autograd/arrays/cublas.py": "",  # a library of the system, by its name
    "autograd/compiler/build.py": "machine code of compiled steps",
    "autograd/compiler/machine.py": "",  # the C library of this process
    "autograd/files.py": "unfinished file",
    "autograd/kernels/loops.py": "compiled loops",
    "autograd/kernels/memory.py": "",  # the C library of this process
    "autograd/machine.py": "",  # a library that this process has loaded
    "autograd/nn/saving.py": "file of weights",
    "autograd/nn/weights.py": "file of weights",
    "collectives/algorithms/choices.py": "table of algorithms",
    "collectives/audit/collector.py": "steps of an audit",
    "collectives/inspect/plan.py": "page, timeline, plan",
    "collectives/inspect/timeline_report.py": "page, timeline, plan",
    "collectives/job/library_exit.py": "",  # the C library of this process
    "collectives/job/supervisor.py": "socket of the supervisor",
    "collectives/job/supervisor_client.py": "socket of the supervisor",
    "collectives/page/document.py": "page, timeline, plan",
    "collectives/page/show.py": "records of a failed program's ranks",
    "collectives/tools/mpi_facts.py": "",  # MPI's library, which this process has loaded
    "collectives/transports/record_file.py": "record of communication",
    "collectives/transports/shared_memory/windows.py": "shared memory of ranks",
    "parallel/checkpoint/commands.py": "file of weights",
    "parallel/checkpoint/directory.py": "unfinished checkpoint",
    "parallel/checkpoint/disk.py": "unfinished checkpoint",
    "parallel/checkpoint/saving.py": "unfinished checkpoint",
    "parallel/expert/load.py": "drawing of matplotlib",
    "parallel/launch.py": "hosts of a job",
    "parallel/pipeline/drawing.py": "drawing of matplotlib",
    "parallel/report/drawing.py": "drawing of matplotlib",
    "parallel/runs/log.py": "log of a run",
    "parallel/runs/sinks.py": "log of a run",
}
"""By file of the library: the row of the table, or the word of the page, that has what it makes."""


def made(tree: ast.AST) -> Iterator[str]:
    """What the text of a module makes: calls of `MAKERS`, and files that are opened to be written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"import {name}" for name in names if name.partition(".")[0] in RUNNERS)
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        ends = name.rpartition(".")[2], ".".join(name.split(".")[-2:])
        if name in ("open", "os.fdopen") and len(node.args) > 1 and re.search("[wax+]", ast.unparse(node.args[1])):
            yield name
        if name == "os.open" and "O_CREAT" in ast.unparse(node):
            yield name
        if not MAKERS.isdisjoint(ends):
            yield name


def found_in(root: Path) -> dict[str, list[str]]:
    files = {path: list(made(ast.parse(path.read_text()))) for each in PACKAGES for path in (root / each).rglob("*.py")}
    return {str(path.relative_to(root)): found for path, found in sorted(files.items()) if found}


def test_all_that_makes_files_is_in_the_table() -> None:
    found = found_in(ROOT)
    assert sorted(found) == sorted(FOUND), {name: found.get(name) for name in set(found) ^ set(FOUND)}
    text = PAGE.read_text()
    assert [row for row in FOUND.values() if row and row not in text] == []


def test_nothing_is_pickled() -> None:
    runs = {name: call for name, calls in found_in(ROOT).items() for call in calls if call.startswith("import ")}
    assert runs == {}


def test_a_new_maker_is_found() -> None:
    text = "import pickle\nopen('a', 'w')\nos.open(a, os.O_CREAT)\ntempfile.mkdtemp()\nctypes.CDLL(a)\nopen('a')\n"
    assert list(made(ast.parse(text))) == ["import pickle", "open", "os.open", "tempfile.mkdtemp", "ctypes.CDLL"]


# -- the modes ---------------------------------------------------------------------------------------------------------
def rows() -> dict[str, tuple[str, str]]:
    """By what: where and mode."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {line[0]: (line[1], line[2]) for line in lines if len(line) == 4 and line[0] != "what"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def seen_while(find: Callable[[], list[Path]], owner: Any, name: str, run: Callable[[], Any]) -> list[int]:
    """The modes of files at a call inside a run."""
    seen: list[int] = []
    real = getattr(owner, name)

    def looked(*args: Any, **options: Any) -> Any:
        seen.extend(map(mode, find()))
        return real(*args, **options)

    with mock.patch.object(owner, name, looked):
        run()
    return seen


def save(folder: Path) -> None:
    with cc.Mesh(dp=1):
        checkpoint.save(folder, {"a": np.ones(3)}, 1)


def recorded(folder: Path) -> None:
    with cc.Mesh(dp=1), cc.record(folder / "run.rtr"):
        pass


def exchanged(folder: Path) -> list[int]:
    files: Any = show._Files
    made = files("token", str(folder / "a.html"), RankRecords(0), 1, lambda _: None)
    return seen_while(lambda: list(folder.glob(".ringtape-show-*")), PrivateFolder, "write", made.failed)


def launched(folder: Path) -> list[int]:
    job = launch.Launcher(["true", "{hostfile}"], hosts=launch.Hosts({"a": "a"}, 1, "true {host}"))
    with mock.patch("tempfile.tempdir", str(folder)):
        return seen_while(lambda: list(folder.glob(".ringtape-launch-*")), launch.Launcher, "_start", job.run)


def unfinished(folder: Path) -> list[int]:
    from parallel.checkpoint import disk

    return seen_while(lambda: list(folder.glob(".step-*")), disk, "write_text", lambda: save(folder))


def logged(folder: Path) -> None:
    RunLog(folder / "run.jsonl").close()


def paged(folder: Path) -> None:
    Page("<p>", 1).write(folder / "a.html")


def stored(folder: Path) -> None:
    choices.stored(folder / "algorithms.json", "shape", choices.Choices({}))


MODES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "page, timeline, plan": (paged, "a.html"),
    "records of a failed program's ranks": (exchanged, ""),
    "record of communication": (recorded, "run.rtr"),
    "log of a run": (logged, "run.jsonl"),
    "checkpoint": (save, "step-000000001"),
    "unfinished checkpoint": (unfinished, ""),
    "lock of a directory": (save, ".lock"),
    "table of algorithms": (stored, "algorithms.json"),
    "hosts of a job": (launched, ""),
}


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
@pytest.mark.parametrize("row", MODES)
def test_the_modes_are_those_of_the_table(row: str, mask: int, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    run, name = MODES[row]
    before = os.umask(mask)
    try:
        seen = run(tmp_path)
    finally:
        os.umask(before)
    modes = [mode(tmp_path / name)] if name else seen
    usual = {0o777 & ~mask, 0o666 & ~mask}
    needed = {int(found, 8) for found in re.findall(r"0[0-7]{3}", rows()[row][1])} or usual
    assert modes and set(modes) <= needed
