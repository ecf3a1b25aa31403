"""Records come from anybody: what they name is not run, damaged ones are typed errors, and no link is followed."""

from __future__ import annotations

import json
import os
import stat
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autograd.digests import blake2b
from autograd.errors import ArgumentError, CommunicationError, OptionError, RingtapeError, WriteError
from collectives.tools.replayed_program import generators_of_ranks, subject_of
from collectives.transports.program_facts import changed_variables
from collectives.transports.record_file import _BODY, _MARK, _SIZE, CALL, TEXT, RecordWriter, read_record
from collectives.transports.replays.recorded import Record

from ...forks import run_python


def digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=16).hexdigest()


def written(here: Path, *lines: dict[str, Any], **facts: Any) -> str:
    """A record of one rank, with these facts in the place of usual ones, and further lines."""
    program = here / "program.py"
    if not program.exists():
        program.write_text("import os, sys\nprint('ran', sys.argv[1:], dict(os.environ))\n")
    usual = {
        "rank": 0, "size": 1, "kind": "threads", "hosts": [0], "domains": [], "data": True, "block": None,
        "program": str(program),
        "module": None, "arguments": ["one"], "folder": str(here), "files": {"program.py": digest(program)},
        "environment": {}, "salt": "00", "variables": {}, "bits": {},
    }  # fmt: skip
    path = here / "run.rtr"
    writer = RecordWriter(str(path / "rank-0"))
    writer.add_text({key: value for key, value in (usual | facts).items() if value != "left out"})
    for line in lines:
        writer.add_text(line)
    writer.close()
    return str(path)


# -- the program ------------------------------------------------------------------------------------------------------
def test_the_program_of_a_record_runs_if_it_is_confirmed(tmp_path: Path) -> None:
    subject = subject_of(Record(written(tmp_path)), None, None, [])
    assert subject.program.path == str(tmp_path / "program.py") and subject.arguments == ["one"]
    assert subject.folder == str(tmp_path) and not subject.changed


def edit(folder: Path) -> dict[str, Any]:
    (folder / "program.py").write_text("print('another')\n")
    return {}


def module(folder: Path) -> dict[str, Any]:
    (folder / "beside.py").write_text("x = 1\n")
    return {"files": {"program.py": digest(folder / "program.py"), "beside.py": "00"}}


def open_to_all(name: str) -> Callable[[Path], dict[str, Any]]:
    def change(folder: Path) -> dict[str, Any]:
        (folder / name).chmod(0o777)
        return {}

    return change


def of_another(name: str) -> Callable[[Path], dict[str, Any]]:
    def change(folder: Path) -> dict[str, Any]:
        if os.getuid():
            pytest.skip("only root can give a file away")
        os.chown(folder / name, 12345, -1)
        return {}

    return change


UNCONFIRMED: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "another text": (edit, "another text than was recorded: program.py"),
    "another module": (module, "another text than was recorded: beside.py"),
    "a module that is gone": (lambda folder: {"files": {"program.py": digest(folder / "program.py"), "no.py": "00"}},
                              r"no.py \(gone\)"),
    "no digest": (lambda _: {"files": {}}, "another text than was recorded: program.py"),
    "no such program": (lambda folder: {"program": f"{folder}/none.py"}, "cannot be read"),
    "a folder": (lambda folder: {"program": str(folder)}, "cannot be read"),
    "a part of the library": (
        lambda _: {"program": timeit.__file__, "arguments": ["-s", "import os; os._exit(3)"],
                   "files": {"timeit.py": digest(Path(timeit.__file__))}}, "a part of a library",
    ),
    "a file that others may write": (open_to_all("run.rtr/rank-0"), "another user may write .*rank-0"),
    "data that others may write": (open_to_all("run.rtr/rank-0.data"), "another user may write .*rank-0.data"),
    "a folder that others may write": (open_to_all("run.rtr"), "another user may write .*run.rtr"),
    "a file of another user": (of_another("run.rtr/rank-0"), "another user may write .*rank-0"),
    "a folder of another user": (of_another("run.rtr"), "another user may write .*run.rtr"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCONFIRMED)
def test_a_program_that_is_not_confirmed_is_named_by_the_user(name: str, tmp_path: Path) -> None:
    change, says = UNCONFIRMED[name]
    written(tmp_path)
    facts = change(tmp_path)
    record = Record(written(tmp_path, **facts) if facts else str(tmp_path / "run.rtr"))
    with pytest.raises(ArgumentError, match=f"names a program that is not run, .*{says}.*\n  fix: --program"):
        subject_of(record, None, None, [])
    named = subject_of(record, str(tmp_path / "program.py"), None, ["two"])  # the fix
    assert named.program.path == str(tmp_path / "program.py") and named.arguments == ["two"]


def test_a_folder_that_others_may_write_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    record = Record(written(tmp_path, folder=str(shared)))
    with pytest.raises(ArgumentError, match=f"which another user may write\n  fix: cd {shared}"):
        subject_of(record, None, None, [])
    monkeypatch.chdir(shared)  # the fix
    assert subject_of(record, None, None, []).folder == str(shared)
    assert subject_of(Record(written(tmp_path, folder="/none")), None, None, []).folder == str(shared)


def test_the_module_that_the_user_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package := tmp_path / "replayed_package").mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text("print(1)\n")
    facts = {"program": str(package / "train.py"), "module": "replayed_package.train"}
    files = {"replayed_package/train.py": digest(package / "train.py")}
    record = Record(written(tmp_path, **facts, files=files))
    assert subject_of(record, None, None, []).program.root == str(tmp_path)
    (package / "train.py").write_text("print(2)\n")
    with pytest.raises(ArgumentError, match="fix: --module replayed_package.train"):
        subject_of(record, None, None, [])
    monkeypatch.chdir(tmp_path)
    named = subject_of(record, None, "replayed_package.train", [])
    assert named.changed == ["replayed_package/train.py"] and named.program.module == "replayed_package.train"
    for wrong in ("replayed_none", "replayed_package.none", "replayed_package", "."):
        with pytest.raises(ArgumentError, match="there is no such module"):
            subject_of(record, None, wrong, [])
    with pytest.raises(ArgumentError, match="there is no such file"):
        subject_of(record, "none.py", None, [])


# -- the variables ----------------------------------------------------------------------------------------------------
def test_only_the_variables_of_ringtape_come_from_a_record(tmp_path: Path) -> None:
    given = {
        "RINGTAPE_CHECK": "always", "RINGTAPE_SCALE": "no", "RINGTAPE_BLAS": "/tmp/evil.so",
        "RINGTAPE_ALGORITHMS": "/tmp/evil", "RINGTAPE_DONE": "/tmp/evil", "RINGTAPE_RECORD": "/tmp/evil",
        "RINGTAPE_FAULTS": "kill:0@1", "RINGTAPE_TIMEOUT_S": "-1", "LD_PRELOAD": "/tmp/evil.so", "PATH": "/tmp/evil",
        "PYTHONPATH": "/tmp/evil", "PYTHONSTARTUP": "/tmp/evil", "OMP_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "9" * 30, "MKL_NUM_THREADS": "x; evil",
    }  # fmt: skip
    record = written(tmp_path, environment=given)
    assert Record(record).any["environment"] == {"RINGTAPE_CHECK": "always", "OMP_NUM_THREADS": "3"}
    done = run_python("-m", "collectives", "replay", record, folder=tmp_path)
    assert "ran ['one']" in done.stdout, done.stderr
    assert "'RINGTAPE_CHECK': 'always'" in done.stdout and "'OMP_NUM_THREADS': '3'" in done.stdout
    assert "evil" not in done.stdout.replace(record, "") and "kill" not in done.stdout


def test_a_record_has_no_values_of_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import collectives as cc

    monkeypatch.setenv("A_TOKEN", "the secret")
    monkeypatch.setenv("RINGTAPE_BLAS", "")
    with cc.record(tmp_path / "run"):
        pass
    assert b"the secret" not in (tmp_path / "run" / "rank-0").read_bytes()
    facts = Record(str(tmp_path / "run")).any
    assert "A_TOKEN" in facts["variables"] and changed_variables(facts) == []
    monkeypatch.setenv("A_TOKEN", "another")
    monkeypatch.setenv("NEW", "1")
    monkeypatch.setenv("PMI_RANK", "7")
    assert changed_variables(facts) == ["A_TOKEN", "NEW"]


# -- files ------------------------------------------------------------------------------------------------------------
FACTS: dict[str, dict[str, Any]] = {
    "a rank that is none": {"rank": 1}, "a size without hosts": {"size": 10**9}, "a text as rank": {"rank": "0"},
    "hosts that are none": {"hosts": [5]}, "hosts of texts": {"hosts": ["a"]}, "another kind": {"kind": "evil"},
    "domains that are none": {"domains": [[5]]}, "domains of no rank": {"domains": [[]]},
    "data that is no bool": {"data": 1}, "a block that is none": {"block": 3}, "a relative program": {"program": "a"},
    "a program with an end": {"program": "/a\0b"}, "a module of a path": {"module": "../a"},
    "a module that is none": {"module": "a; b"}, "a relative folder": {"folder": "a"}, "no folder": {"folder": None},
    "arguments that are none": {"arguments": "-c evil"}, "arguments of numbers": {"arguments": [1]},
    "a file above": {"files": {"../a.py": "00"}}, "an absolute file": {"files": {"/etc/passwd": "00"}},
    "files that are none": {"files": ["a"]}, "a digest that is none": {"files": {"a": 1}},
    "variables that are none": {"variables": [1]}, "an environment of numbers": {"environment": {"A": 1}},
    "a salt that is none": {"salt": "x"}, "a long salt": {"salt": "00" * 99}, "bits that are none": {"bits": 1},
    **{f"no {name}": {name: "left out"} for name in ("rank", "size", "files", "salt", "environment", "block", "bits")},
}  # fmt: skip

LINES: dict[str, dict[str, Any]] = {
    "an unknown line": {"evil": 1}, "a call without a name": {"id": 1}, "a file above": {"files": {"a/../../b": "00"}},
    "an error that is none": {"error": 1}, "an error of an unknown call": {"of": 9, "error": ["a", "b"]},
    "a list": {"error": [["a"]]},
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
def test_hostile_facts(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, **FACTS[name])
    with pytest.raises(CommunicationError, match=r"is damaged: .*\n  fix: record the program again"):
        Record(path)


@pytest.mark.parametrize("name", LINES)
def test_hostile_lines(name: str, tmp_path: Path) -> None:
    with pytest.raises(CommunicationError, match="is damaged"):
        Record(written(tmp_path, LINES[name]))


def raw(folder: Path, content: bytes) -> None:
    (folder / "run.rtr" / "rank-0").write_bytes(content)


def entry(kind: int, text: bytes = b"", size: int | None = None, of: int = 0) -> bytes:
    """The bytes of an entry, which says that its text has another size."""
    import struct
    import zlib

    body = _BODY.pack(kind, of, 1, 0, 0)
    sized = struct.pack("<II", len(text) if size is None else size, zlib.crc32(text)) + text if text else b""
    return body + bytes([zlib.crc32(body) & 255]) + sized


def replaced(folder: Path, name: str, make: Callable[[Path], Any]) -> None:
    path = folder / "run.rtr" / name
    path.unlink()
    make(path)


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(_MARK)
        file.truncate(1 << 42)  # 4 TB that take no room


FILES: dict[str, Callable[[Path], Any]] = {
    "a link": lambda folder: replaced(folder, "rank-0", lambda path: path.symlink_to("/etc/passwd")),
    "a link to data": lambda folder: replaced(folder, "rank-0.data", lambda path: path.symlink_to("/etc/passwd")),
    "a pipe": lambda folder: replaced(folder, "rank-0", os.mkfifo),
    "a pipe of data": lambda folder: replaced(folder, "rank-0.data", os.mkfifo),
    "a folder": lambda folder: replaced(folder, "rank-0", Path.mkdir),
    "no data": lambda folder: (folder / "run.rtr" / "rank-0.data").unlink(),
    "terabytes of nothing": lambda folder: replaced(folder, "rank-0", sparse),
    "no JSON": lambda folder: raw(folder, _MARK + entry(TEXT, b"\xff\xfe")),
    "deep JSON": lambda folder: raw(folder, _MARK + entry(TEXT, b"[" * 100_000)),
    "a long number": lambda folder: raw(folder, _MARK + entry(TEXT, b"9" * 100_000)),
    "JSON of another form": lambda folder: raw(folder, _MARK + entry(TEXT, b"[1]")),
    "no facts first": lambda folder: raw(folder, _MARK + entry(CALL) * 2),
    "an array of huge extents": lambda folder: raw(folder, _MARK + entry(5, b"d" + b"\xff" * 16)),
    "a list of huge lengths": lambda folder: raw(folder, _MARK + entry(6, b"\xff" * 16)),
    "an array of objects": lambda folder: raw(folder, _MARK + entry(5, b"O" + b"\1" + b"\0" * 7)),
    "a form that is not there": lambda folder: raw(folder, _MARK + entry(7)),
    "another version": lambda folder: raw(folder, b"ringtape record 3\n" + entry(CALL)),
    "nothing": lambda folder: raw(folder, b""),
    "another rank's": lambda folder: (folder / "run.rtr" / "rank-7").write_bytes(
        (folder / "run.rtr" / "rank-0").read_bytes()) and (folder / "run.rtr" / "rank-7.data").write_bytes(b""),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    FILES[name](tmp_path)
    with pytest.raises(CommunicationError, match="is damaged|is no record|holds no record"):
        Record(path)


def test_a_record_of_another_user_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    for name in ("open", "listdir"):  # root may read everything
        says = pytest.raises(CommunicationError, match="cannot be read.*\n  fix: read it")
        with monkeypatch.context() as patch, says:
            patch.setattr(os, name, refused)
            Record(path)


def test_every_byte_of_facts(tmp_path: Path) -> None:
    """A record with any byte changed is a typed error, or has the facts that it had."""
    path = Path(written(tmp_path), "rank-0")
    whole, facts = path.read_bytes(), Record(str(path.parent)).any
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert Record(str(path.parent)).any == facts
        except RingtapeError:
            pass


def test_what_a_record_says_does_not_reach_the_terminal(tmp_path: Path) -> None:
    written(tmp_path)
    facts = read_record(str(tmp_path / "run.rtr" / "rank-0"))[0].text
    writer = RecordWriter(str(tmp_path / "run.rtr" / "rank-0"))
    writer.add_text(json.loads(facts))
    writer.add_text({"id": 0, "call": "\x1b[2Jcall", "channel": "a\x07"})
    writer.add(CALL, 0, 1, 0)
    writer.add_text({"end": "\x1b]0;title\x07"})
    writer.close()
    record = Record(str(tmp_path / "run.rtr"))
    (key, found), *_ = record.calls[0].items()
    assert (key[0] + found.call + record.ends[0]).isprintable()


# -- writing ----------------------------------------------------------------------------------------------------------
def test_a_record_is_its_user_alone_and_follows_no_link(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "run.rtr"
    victim.write_text("mine")
    before = os.umask(0)
    try:
        RecordWriter(str(folder / "rank-0")).close()
        modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == {0o600} and stat.S_IMODE(folder.stat().st_mode) == 0o700
        for name in ("rank-1", "rank-1.data"):
            (folder / name).symlink_to(victim)
        (folder / "rank-2").hardlink_to(victim)
        for rank in (1, 2):
            RecordWriter(str(folder / f"rank-{rank}")).close()
    finally:
        os.umask(before)
    assert victim.read_text() == "mine"
    assert not any(path.is_symlink() or path.stat().st_nlink > 1 for path in folder.iterdir())


def test_a_folder_in_the_place_of_a_file_is_a_typed_error(tmp_path: Path) -> None:
    import collectives as cc

    (tmp_path / "file").write_text("")
    (tmp_path / "run" / "rank-0").mkdir(parents=True)
    for name in ("file", "run"):
        with pytest.raises(OptionError, match="cannot be written.*\n  fix: a folder"), cc.record(tmp_path / name):
            pass


def test_a_full_disk_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordWriter(str(tmp_path / "rank-0"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WriteError, match="cannot grow: No space left.*\n  fix: free space"):
        for k in range(1 << 13):
            writer.add(CALL, 0, k, 0)
    with pytest.raises(WriteError, match="cannot grow"):
        writer.add_result(0, 1, np.ones(3))
    assert len(read_record(str(tmp_path / "rank-0"))) == ((1 << 16) - len(_MARK)) // _SIZE


def test_a_full_disk_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import collectives as cc

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OptionError, match="cannot grow"), cc.record(tmp_path / "run"):
        pass


# -- generators -------------------------------------------------------------------------------------------------------
def test_ranks_that_were_processes_have_generators_of_their_own() -> None:
    import random
    import threading

    def drawn(seed: int, found: dict[int, Any], meet: Any) -> None:
        np.random.seed(seed)
        random.seed(seed)
        meet()
        from numpy.random import normal

        found[seed] = normal(), np.random.rand(), np.random.ranf(), random.random(), random.sample(range(9), 2)

    alone: dict[int, Any] = {}
    for seed in range(3):
        drawn(seed, alone, lambda: None)
    state = np.random.get_state()[1].tolist()
    with generators_of_ranks():
        found: dict[int, Any] = {}
        barrier = threading.Barrier(3)
        threads = [threading.Thread(target=drawn, args=(seed, found, barrier.wait)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(AttributeError, match="no attribute 'none'"):
            np.random.none  # noqa: B018
    assert found == alone and np.random.get_state()[1].tolist() == state
    assert np.random.normal.__self__ is np.random.mtrand._rand and not hasattr(random, "__getattr__")


