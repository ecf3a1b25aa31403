"""New files and private folders of one user. Attacks of a second one: tests/parallel/test_two_users.py."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autograd import files
from autograd.errors import FileError, WriteError
from autograd.files import PrivateFolder, is_as_safe, is_firm, replaced, replacing, taking_place, temporary


def test_links_of_this_user_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "one").symlink_to(tmp_path / "real")
    with replacing(tmp_path / "two") as file:
        file.write(b"new")
    assert (tmp_path / "real").read_text() == "new" and (tmp_path / "two").is_symlink()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(WriteError, match="too many levels|Too many levels"):
        with replacing(tmp_path / "circle" / "file"):
            pass


@pytest.mark.parametrize("write", [replacing, replaced, taking_place])
def test_an_error_leaves_the_old_file_and_nothing_else(write: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyError):
        with write(str(tmp_path / "a")) as made:
            if isinstance(made, str):
                Path(made).write_text("new")
            raise KeyError
    assert (tmp_path / "a").read_text() == "old" and os.listdir(tmp_path) == ["a"]


def test_a_folder_is_private_and_goes(tmp_path: Path) -> None:
    path = str(tmp_path / "mine")
    with PrivateFolder.make(path) as folder:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
        folder.write("a", b"12")
        found = PrivateFolder.find(path)
        assert found is not None and found.read("a") == b"12" and found.names() == ["a"]
        found.close()
        with pytest.raises(FileExistsError):
            PrivateFolder.make(path)
        os.symlink("a", os.path.join(path, "link"))
        with pytest.raises(OSError, match="symbolic links|Too many"):
            folder.read("link")
    assert not os.path.exists(path)


def test_a_folder_that_was_renamed_is_still_the_one(tmp_path: Path) -> None:
    """What has its name now is not removed."""
    path = tmp_path / "mine"
    with PrivateFolder.make(str(path)) as folder:
        path.rename(tmp_path / "away")
        path.mkdir()
        (path / "other").touch()
        folder.write("a", b"1")
        assert os.listdir(tmp_path / "away") == ["a"] and os.listdir(path) == ["other"]
    assert os.listdir(path) == ["other"] and os.listdir(tmp_path / "away") == []


FOUND: dict[str, tuple[Callable[[Path], object], bool]] = {
    "none": (lambda path: None, False),
    "private": (lambda path: path.mkdir(0o700), True),
    "open": (lambda path: (path.mkdir(), path.chmod(0o770)), False),
    "a file": (lambda path: path.touch(), False),
    "a link": (lambda path: (path.with_name("real").mkdir(0o700), path.symlink_to("real")), False),
}


@pytest.mark.parametrize("kind", FOUND)
def test_only_private_folders_are_found(kind: str, tmp_path: Path) -> None:
    make, is_found = FOUND[kind]
    make(tmp_path / "it")
    found = PrivateFolder.find(str(tmp_path / "it"))
    assert (found is not None) == is_found
    if found is not None:
        found.close()


def test_a_file_system_without_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All on it has one owner and one mode, as on CIFS: a folder is as private as what is made in it."""
    real = os.fstat

    def fstat(number: int) -> os.stat_result:
        found = list(real(number))
        found[0], found[4] = found[0] | 0o777, 4321
        return os.stat_result(found)

    (tmp_path / "it").mkdir()
    assert PrivateFolder.find(str(tmp_path / "it")) is None
    monkeypatch.setattr(os, "fstat", fstat)
    found = PrivateFolder.find(str(tmp_path / "it"))
    assert found is not None and found.names() == []
    found.close()


def test_the_temporary_folder_is_firm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    shared.mkdir()
    mine.mkdir()
    shared.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(mine))
    assert not is_firm(str(shared)) and temporary() == str(mine)
    shared.chmod(0o1777)
    assert temporary() == str(shared)
    assert is_as_safe(str(mine), str(mine)) and not is_as_safe(str(shared), str(mine))
    monkeypatch.setattr(files, "is_firm", lambda folder: False)
    with pytest.raises(FileError, match=r"other users can rename .*\n  fix: export TMPDIR=\$\(mktemp -d -p ~\)"):
        temporary()


# -- records as data ---------------------------------------------------------------------------------------------------
def test_data_are_the_same_when_they_arrive() -> None:
    from autograd.records.plain import packed, unpacked
    from autograd.records.record import CallOf, OperationRecord, Summary

    kinds = (OperationRecord, CallOf, Summary)
    call = CallOf("send", "dp", "c", 3, (0, 1), 8)
    value = {
        "a": (1, [2.5, None, True], b"\x00\xff", "é\ud800", 1e400, -0.0, 2**70), (1, "b"): 1j, 3: {},
        "r": OperationRecord(0, "forward", "exp", value=Summary((2,), "float64", (1.0, 2j)), calls=[call]),
        "n": [np.float32(0.5).item(), np.arange(6, dtype=">i2").reshape(2, 3), np.array(1j), np.zeros((0, 2), bool)],
    }  # fmt: skip
    found = unpacked(packed(value, kinds), kinds)
    assert str(found) == str(value) and [x.dtype for x in found["n"][1:]] == [x.dtype for x in value["n"][1:]]


@pytest.mark.parametrize("data", [
    b"", b"\x80\x04.", b'{"r":[7]}', b'{"r":["os"]}', b'{"x":1}', b'{"a":["O",[1],""]}', b'{"a":["|V8",[1],"AAAA"]}',
    b'{"t":1}', b"[" * 100_000, b'{"a":["<f8",[9],""]}', b'{"r":[0,1,2,3]}', b'{"d":[1]}', b'{}',
])  # fmt: skip
def test_other_data_are_refused(data: bytes) -> None:
    from autograd.records.plain import unpacked
    from autograd.records.record import Contribution

    with pytest.raises(ValueError, match="it is no data of a rank"):
        unpacked(data, (Contribution,))


def test_what_is_no_data_is_refused() -> None:
    from autograd.records.plain import packed

    with pytest.raises(TypeError, match="a object is no data"):
        packed([object()])
