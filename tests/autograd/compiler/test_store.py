"""The store of machine code: who may write it, files that are not whole, and several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autograd.compiler import build
from autograd.compiler.loops import Loop, Pointer, pointer_of
from autograd.compiler.machine import Table

from .running import forget, run

pytestmark = pytest.mark.skipif(not build.is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the store, which nobody else may write; it is not made, and the walker is compiled before."""
    Table().finish()
    monkeypatch.setenv("RINGTAPE_CODE", str(tmp_path / "above" / "code"))
    monkeypatch.setattr(build, "is_as_safe", lambda path, program: True)  # of the folder for temporary files
    return tmp_path / "above" / "code"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that LLVM compiles, after the walker's."""
    Table().finish()
    texts: list[str] = []
    compile_ = build._compiled
    monkeypatch.setattr(build, "_compiled", lambda text: (texts.append(text), compile_(text))[1])
    return texts


def _works(n: int = 5) -> bool:
    x, y = np.arange(float(n)), np.zeros(n)
    loop = Loop((n,), (pointer_of(x), pointer_of(y)), (("load", 0), ("square", 0), ("add", 1, 0), ("store", 1, 2)))
    return run(loop, [x, y]) == 0 and bool((y == x * x + x).all())


def test_code_is_kept_and_loaded(folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    assert _works() and len(compiled) == 1
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and file.stat().st_mode & 0o777 == 0o600
    forget(monkeypatch)
    assert _works() and len(compiled) == 1
    assert _works() and [*folder.iterdir()] == [file]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other format", "folder", "link", "pipe"])
def test_a_damaged_file_counts_as_missing(
    folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch, damage: str, tmp_path: Path
) -> None:
    forget(monkeypatch)
    assert _works()
    (file,) = folder.iterdir()
    data = file.read_bytes()
    if damage in ("folder", "link", "pipe"):
        file.unlink()
        (tmp_path / "elsewhere").write_bytes(data)
        {"folder": file.mkdir, "link": lambda: file.symlink_to(tmp_path / "elsewhere"),
         "pipe": lambda: os.mkfifo(file)}[damage]()  # fmt: skip
    else:
        at = len(data) // 2
        file.write_bytes({"cut": data[:at], "changed": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "empty": b"",
                          "other format": b"ringtape code 0\n" + data[len(build._FORMAT) :]}[damage])  # fmt: skip
    forget(monkeypatch)
    assert _works() and len(compiled) == 2
    if damage != "folder":
        assert file.read_bytes() == data and not file.is_symlink()
    assert (damage in ("link", "folder", "pipe")) == (tmp_path / "elsewhere").exists()


def test_other_code_has_another_name(folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For other features of the processor, or another version, code is compiled again."""
    forget(monkeypatch)
    assert _works() and _works(6)
    made = build._machine()
    other = made._replace(identity=made.identity + b"+future")
    monkeypatch.setattr(build, "_machine", lambda: other)
    forget(monkeypatch)
    assert _works() and len(compiled) == 3 == len([*folder.iterdir()])


def test_other_sources_are_another_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a loop is not written where its code is kept, so what writes texts is part of the name."""
    make = build._machine.__wrapped__
    known = make().identity
    assert make().identity == known
    read = Path.read_bytes
    changed = "reductions.py"
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == changed))
    assert make().identity != known
    monkeypatch.setattr(Path, "glob", lambda path, pattern: iter(()))  # sources in an archive
    assert make().identity != make().identity


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_a_folder_that_is_not_private_is_not_used(
    folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    forget(monkeypatch)
    assert _works() and len(compiled) == 1 and not [*folder.iterdir()]


def test_a_folder_of_another_user_is_not_used(
    folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(monkeypatch)
    assert _works()
    forget(monkeypatch)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert _works() and len(compiled) == 2


def test_a_folder_below_one_that_others_may_write_is_not_used(
    folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("RINGTAPE_CODE", str(folder))
    folder.parent.mkdir()
    folder.parent.chmod(0o777)
    forget(monkeypatch)
    assert _works() and not [*folder.iterdir()]


def test_a_folder_that_cannot_be_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.write_text("a file")
    forget(monkeypatch)
    assert _works()


def test_no_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTAPE_CODE", "none")
    forget(monkeypatch)
    assert _works() and not folder.exists()


def test_the_usual_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGTAPE_CODE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build._path() == str(tmp_path / "ringtape" / "code")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert build._path() == ""


def test_a_full_disk_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    forget(monkeypatch)
    monkeypatch.setattr(build, "new_file", fail)
    assert _works() and not [*folder.iterdir()]


def test_the_oldest_files_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_MOST_FILES", 4)
    forget(monkeypatch)
    for n in range(1, 5):
        assert _works(n)
    before = {*folder.iterdir()}
    for age, file in enumerate(sorted(before)):
        os.utime(file, ns=(age, age))
    assert _works(5)
    left = {*folder.iterdir()}
    assert left & before == {*sorted(before)[2:]} and len(left) == 3


def test_processes_that_write_at_the_same_time(tmp_path: Path) -> None:
    text = """
import numpy as np
from autograd.compiler import build
from autograd.compiler.loops import Loop, Pointer
from autograd.compiler.machine import Row, Table, compile_loops
build.is_as_safe = lambda path, program: True
p = Pointer("f8", (8,))
loops = [Loop((n,), (p, p), (("load", 0), ("square", 0), ("store", 1, 1))) for n in range(1, 9)]
for n, address in zip(range(1, 9), compile_loops(loops)):
    x, y, table = np.arange(float(n)), np.zeros(n), Table()
    table.add(Row(address), [x.ctypes.data, y.ctypes.data])
    assert table.finish()() == 0 and (y == x * x).all()
"""
    environment = {**os.environ, "RINGTAPE_CODE": str(tmp_path / "code")}
    processes = [subprocess.Popen([sys.executable, "-c", text], env=environment) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len([*(tmp_path / "code").iterdir()]) == 9  # eight loops and the walker, and nothing half written


def test_equal_texts_share_their_code() -> None:
    """Two loops that differ in what has no effect."""
    x = Pointer("f4", (0, 4))
    steps = (("load", 0), ("reduce", "maximum", 1, 0, (0, 1)))
    a, b = (Loop((3, 8), (x, Pointer("f4", (0, 0))), (*steps[:1], (*steps[1], each))) for each in (None, (32, 4)))
    assert len(build.compile_loops([a, b])) == 2
