"""The core imports no extra: by its text, by the table of doors, and by a run in which every extra is absent."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograd import doors
from autograd.doors import DOORS
from autograd.errors import DependencyError

from .core import EXTRAS, ROOT, copy_core, is_extra, run_tests
from .test_architecture import Library
from .without_extras import absent_extra


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library and its examples without the extras."""
    folder = tmp_path_factory.mktemp("core")
    assert len(copy_core(folder)) >= sum(map(len, EXTRAS.values()))
    return folder


def imports_of_extras(library: Library) -> list[str]:
    """Imports of an extra by the core, but for those that only type checkers follow."""
    return [str(found) for found in library.imports
            if not is_extra(found.importer) and is_extra(found.imported)
            and found.condition != " (for type checkers)"]  # fmt: skip


def test_the_core_imports_no_extra(library: Library) -> None:
    assert imports_of_extras(library) == []


@pytest.mark.parametrize("line", ["from .scale import walk", "def f():\n    from collectives.scale.walk import Walk"])
def test_an_import_of_an_extra_is_found(tmp_path: Path, line: str) -> None:
    for package in ("autograd", "collectives", "parallel"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "collectives" / "scale").mkdir()
    for name, text in (("scale/__init__.py", ""), ("scale/walk.py", ""), ("mesh.py", line)):
        (tmp_path / "collectives" / name).write_text(text)
    assert len(imports_of_extras(Library(tmp_path))) == 1


def test_every_door_leads_to_an_extra_and_is_used(library: Library) -> None:
    assert list(DOORS) == sorted(DOORS)
    used = set()
    for module in {found.importer for found in library.imports if found.imported == "autograd.doors"}:
        for node in ast.walk(ast.parse(library.files[module].read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("door", "is_there"):
                (name,) = node.args
                assert isinstance(name, ast.Constant)
                used.add(name.value)
    assert used == set(DOORS)
    for name, at in DOORS.items():
        assert at.module in library.files and is_extra(at.module), name
        assert doors.is_there(name)


def test_extras_exist(library: Library) -> None:
    names = [name for names in EXTRAS.values() for name in names]
    assert [name for name in names if name not in library.files] == []
    assert len(names) == len(set(names))


def test_an_absent_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOORS, "plans", doors.Door("collectives.of_nothing.plan", "plans"))
    doors.is_there.cache_clear()
    try:
        assert not doors.is_there("plans")
        with pytest.raises(DependencyError, match="collectives.of_nothing.plan is absent: the room that has plans"):
            doors.door("plans")
    finally:
        monkeypatch.undo()
        doors.is_there.cache_clear()


def run(core: Path, *command: str) -> str:
    environment = dict(os.environ, PYTHONPATH=str(core), OPENBLAS_NUM_THREADS="1", MPLBACKEND="agg")
    environment.pop("COVERAGE_PROCESS_START", None)
    found = subprocess.run(
        command, cwd=core / "examples", env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize("name", ["00_core", "01_adjoints", "03_tensor_parallel", "04_pipeline"])
def test_an_example_runs_without_extras(core: Path, name: str) -> None:
    assert len(run(core, sys.executable, f"{name}.py").splitlines()) > 3


def test_a_job_runs_without_extras(core: Path) -> None:
    mpiexec = Path(sys.executable).parent / "mpiexec"
    found = str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec beside the interpreter or on PATH")
    assert "test accuracy" in run(core, found, "-n", "4", sys.executable, "02_digits.py", "--epochs", "1")


def test_no_extra_is_loaded_without_its_room(core: Path) -> None:
    """The modules come from the copied core, and a program that asks for an extra is told."""
    text = (
        "import sys, collectives as cc, autograd as ag\n"
        "try:\n    cc.run(lambda: cc.Mesh(dp=2, algorithm='ring').axis('dp').group, 2)\n"
        "except ag.DependencyError as error:\n    print(error)\n"
        "print(cc.__file__)\n"
    )
    out = run(core, sys.executable, "-c", text)
    assert "collectives.algorithms.table is absent" in out and str(core) in out


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_core_passes_its_tests_without_extras(core: Path) -> None:
    assert run_tests(core, "-q", "-n", "2", "tests/autograd", "tests/collectives", "tests/parallel") == 0


@pytest.mark.parametrize(
    "text, extra",
    [
        ("ModuleNotFoundError: No module named 'autograd.extend'", "autograd.extend"),
        ("DependencyError: collectives.algorithms.table is absent: the room that", "collectives.algorithms.table"),
        ("ImportError: cannot import name 'inspect' from 'collectives' (unknown)", "collectives.inspect"),
        ("FileNotFoundError: No such file or directory: '/a/collectives/transports/device/nccl.py'",
         "collectives.transports.device.nccl"),
        ("ModuleNotFoundError: No module named 'autograd.engine.tape'", None),
        ("assert 3 == 4", None),
    ],
)
def test_only_an_absent_extra_excuses_a_failure(text: str, extra: str | None) -> None:
    assert absent_extra(text) == extra


def test_the_reading_order_names_the_core_and_its_lengths() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (\d+) \|", text, re.MULTILINE)
    assert len(rows) == 12
    for path, lines in rows:
        assert not is_extra(path.removesuffix(".py").replace("/", "."))
        found = len((ROOT / path).read_text().splitlines())
        assert abs(int(lines) - found) <= 0.15 * found, f"{path} has {found} lines"


def test_the_drawing_has_the_extras_in_their_colour() -> None:
    drawing = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))
    for package, (_, rows) in drawing["ROOMS"].items():
        for names in (names for row in rows for names, *_ in row):
            paths = [name.strip("/").removesuffix(".py") for name in names.split(", ")]
            modules = [f"{package}.{path.replace('/', '.')}" for path in paths]
            assert all(map(is_extra, modules)) == (names in drawing["EXTRAS"]), names
