"""A full disk, and folders where files were expected: typed errors, and what was there before stays.

With root the disk is a file system of half a megabyte in memory. Otherwise the size of files is limited.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn
from autograd.errors import ArgumentError, FileError, MeshError, OptionError, RingtapeError, WriteError
from collectives.algorithms import choices
from collectives.inspect.timeline import timeline
from collectives.page.document import Page
from parallel import checkpoint
from parallel.launch import finished
from parallel.runs.log import RunLog, read_log

BYTES = 1 << 19


def shown(path: Path) -> None:
    def program() -> None:
        with cc.Mesh(dp=2), cc.show(path):
            cc.all_reduce(ag.tensor([1.0, 2.0]), "dp", to=cc.R)

    cc.run(program, 2)


def drawn(path: Path) -> None:
    with cc.Mesh(dp=1), ag.Tape() as tape:
        ag.Parameter([1.0]).sum()
    tape.plan().write(path)


def timed(path: Path) -> None:
    with cc.Mesh(dp=1), timeline(path):
        pass


def recorded(path: Path) -> None:
    def program() -> None:
        with cc.Mesh(dp=2), cc.record(path, data=True):
            for _ in range(9):
                cc.all_reduce(ag.tensor(np.ones(1 << 12)), "dp", to=cc.R)

    cc.run(program, 2)


def logged(path: Path) -> None:
    with RunLog(path) as log:
        for step in range(3):
            log.write(step=step, text="x" * 9000)


def marked(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGTAPE_DONE", str(path))
        finished()


def kept(path: Path) -> None:
    with cc.Mesh(dp=1):
        checkpoint.save(path, {"a": np.ones(100)}, len(list(path.glob("step-*"))) if path.is_dir() else 0)


WRITERS: dict[str, tuple[Callable[[Path], None], type[RingtapeError]]] = {
    "page.html": (lambda path: Page("<p>" * 9000, 1).write(path), WriteError),
    "show.html": (shown, WriteError),
    "plan.json": (drawn, WriteError),
    "timeline.json": (timed, WriteError),
    "choices.json": (lambda path: choices.stored(path, "shape", choices.Choices({})), MeshError),
    "run.jsonl": (logged, WriteError),
    "run.rtr": (recorded, OptionError),
    "w.npz": (lambda path: nn.save(nn.Linear(99, 99), path), WriteError),
    "done": (marked, FileError),
    "checkpoints": (kept, FileError),
}  # fmt: skip
"""By name of a file or folder: what writes it, and the error on a full disk."""


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """A disk at a folder, and what fills it for the length of a block."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={BYTES * 4},mode=755", "tmpfs", str(folder)]
    has_mount = shutil.which("mount") is not None
    is_mounted = has_mount and subprocess.run(command, capture_output=True, check=False).returncode == 0

    @contextlib.contextmanager
    def filled() -> Iterator[None]:
        if is_mounted:
            with open(folder / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1 << 12)):
                    pass
            yield
            (folder / "filler").unlink()
            return
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    try:
        yield filled
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_a_typed_error_and_loses_nothing(name: str, tmp_path: Path) -> None:
    write, kind = WRITERS[name]
    with disk(tmp_path) as filled:
        path = tmp_path / name
        write(path)
        before = content(tmp_path)
        with filled():
            with pytest.raises(kind) as caught:
                write(path)
            (tmp_path / "filler").unlink(missing_ok=True)
            assert str(path) in str(caught.value)
            after = content(tmp_path)
            if name == "run.jsonl":  # what fits is there
                assert after[name].startswith(before[name])
            else:
                assert after == before or (name == "checkpoints" and before.items() <= after.items())
            (tmp_path / "filler").touch()
        write(path)  # and it goes on, once there is space
        if name == "run.jsonl":
            assert [row["step"] for row in read_log(path)] == [0, 1, 2]


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("run.rtr", "checkpoints")])
def test_a_folder_where_a_file_was_expected(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    (path / "inside").mkdir(parents=True)
    with pytest.raises((FileError, MeshError, ArgumentError)) as caught:
        WRITERS[name][0](path)
    assert str(path) in str(caught.value) and [each.name for each in tmp_path.iterdir()] == [name]
    assert (path / "inside").is_dir()


@pytest.mark.parametrize("name", ["rank-0", "rank-0.data"])
def test_a_folder_in_the_place_of_a_record(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.rtr" / name / "inside").mkdir(parents=True)
    with pytest.raises(OptionError, match="cannot be written: .*directory"):
        recorded(tmp_path / "run.rtr")
    assert (tmp_path / "run.rtr" / name / "inside").is_dir() and not list(tmp_path.rglob("*.part"))


def test_a_record_that_cannot_grow_keeps_the_calls_before(tmp_path: Path) -> None:
    from collectives.transports.record_file import CALL, RecordWriter, read_record

    with disk(tmp_path) as filled:
        writer = RecordWriter(str(tmp_path / "rank-0"))
        with filled(), pytest.raises(RingtapeError, match="cannot grow: .*\n  fix: free space"):
            for k in range(1 << 20):
                writer.add(CALL, 1, k, 0)
        writer.close()
        assert len(read_record(str(tmp_path / "rank-0"))) > 3600  # of 18 bytes, in 64 kB


def test_a_missing_folder_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"page\('.*no/a.html'\): it cannot be written: No such file.*\n  fix: os"):
        Page("<p>", 1).write(tmp_path / "no" / "a.html")
    assert not os.listdir(tmp_path)
