"""Files that cannot be written or read: full disks, limits, folders for files, and files for folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.errors import CheckpointError, FileError
from parallel import checkpoint

pytest.importorskip("safetensors", reason="safetensors is not installed")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 200 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("this user may not mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def model(width: int) -> Any:
    return nn.Linear(width, width)


def run(width: int) -> Any:
    made = model(width)
    return {"model": made, "optimizer": optim.SGD(made.parameters(), lr=0.1)}


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "run.npz"])
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_full_disk_leaves_the_old_file_alone(small_disk: Path, name: str, ranks: int) -> None:
    make = run if name == "run.npz" else model
    path = small_disk / name

    def save(width: int) -> None:
        nn.save(make(width), path)

    def on_ranks() -> None:
        with cc.Mesh(dp=-1):
            save(300)

    save(2)
    before = path.read_bytes()
    with pytest.raises(FileError, match=rf"{name}'.*(No space left)") as error:
        cc.run(on_ranks, ranks) if ranks else save(300)
    assert os.listdir(small_disk) == [name] and path.read_bytes() == before
    assert "test_unwritable.py" in str(error.value)
    nn.load(make(2), path)
    save(3)  # there is room for it


def test_a_full_disk_leaves_the_old_checkpoints_alone(small_disk: Path) -> None:
    checkpoint.save(small_disk, {"m": model(2)}, 1)

    def on_ranks() -> None:
        with cc.Mesh(dp=-1):
            checkpoint.save(small_disk, {"m": model(300)}, 2)

    with pytest.raises(CheckpointError, match="No space left"):
        cc.run(on_ranks, 2)
    assert sorted(os.listdir(small_disk)) == [".lock", "step-000000001"]
    assert checkpoint.load(small_disk, {"m": model(2)}).step == 1
    checkpoint.save(small_disk, {"m": model(3)}, 2)


LIMITED = """
import os, resource, signal, sys
from autograd import nn
from autograd.errors import FileError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for path in sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, resource.RLIM_INFINITY))
    nn.save(nn.Linear(2, 2), path)
    before = open(path, "rb").read()
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    try:
        nn.save(nn.Linear(100, 100), path)
    except FileError as error:
        assert path in str(error), error
        print(str(error).splitlines()[0])
    assert before == open(path, "rb").read() and len(os.listdir(os.path.dirname(path))) <= 2
"""


def test_a_limit_of_the_system(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("x.npz", "x.safetensors")]
    done = subprocess.run([sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("too large") == 2, done.stdout + done.stderr


SAVE = lambda path: nn.save(model(2), path)
LOAD = lambda path: nn.load(model(2), path)
WRONG: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "a folder, to save": (SAVE, "folder", "a directory is there"),
    "a folder, to load": (LOAD, "folder", "it is a directory"),
    "a folder, to list": (nn.contents, "folder", "it is a directory"),
    "below a file, to save": (SAVE, "file/x.npz", r"Not a directory\n  fix: a path below a folder"),
    "below a file, to save safetensors": (SAVE, "file/x.safetensors", "Not a directory"),
    "below a file, to load": (LOAD, "file/x.npz", "Not a directory; needed: a file"),
    "below a file, to list": (nn.contents, "file/x.npz", "Not a directory"),
    "no folder, to save": (SAVE, "no/x.npz", r"No such file or directory\n  fix: os.makedirs"),
    "a long name, to save": (SAVE, "n" * 300 + ".npz", "name too long"),
    "a long name, to load": (LOAD, "n" * 300 + ".npz", "name too long"),
    "a checkpoint in a file": (lambda path: checkpoint.save(path, {"m": model(2)}, 1), "file", "cannot be written"),
    "a checkpoint below a file": (lambda path: checkpoint.save(path, {"m": model(2)}, 1), "file/x", "Not a directory"),
    "a checkpoint of a file": (lambda path: checkpoint.load(path, {"m": model(2)}), "file", "is no directory"),
    "to resume a file": (lambda path: checkpoint.resume(path, {"m": model(2)}), "file", r"is no directory.*\n  fix"),
    "to resume below a file": (lambda path: checkpoint.resume(path, {"m": model(2)}), "file/x", "is no directory"),
    "checkpoints in a file": (lambda path: checkpoint.Checkpoints(path).resume({"m": model(2)}), "file", "directory"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_file_for_a_folder_and_a_folder_for_a_file(tmp_path: Path, kind: str) -> None:
    call, name, text = WRONG[kind]
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ag.RingtapeError, match=text) as error:
        call(tmp_path / name)
    assert name in str(error.value) and "test_unwritable.py" in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"] and (tmp_path / "file").read_text() == "mine"


def test_the_fix_for_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "no" / "such" / "x.npz")
    with pytest.raises(FileError) as error:
        SAVE(path)
    code = str(error.value).partition("fix: ")[2].partition(" first")[0]
    exec(code, {"os": os, "path": path})
    SAVE(path)
    LOAD(path)
    assert checkpoint.resume(tmp_path / "new", {"m": model(2)}) is None
