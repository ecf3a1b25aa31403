"""Another user of the machine who may write in the folders of a run: attacks, of which none has an effect.

Each attack is a function of a `Place`. It returns what the attacker has reached besides what `has_lost` finds, or "".
Sockets: tests/collectives/job/test_attacks.py.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import collectives as cc
from autograd import nn
from collectives.algorithms import choices
from collectives.inspect.record import RankRecords
from collectives.inspect.timeline_report import Report
from collectives.page import show
from collectives.page.document import Page
from collectives.transports.record_file import RecordWriter
from parallel import checkpoint, launch
from parallel.runs.log import RunLog

from .users import ATTACKER, LIMIT_S, VICTIM, Bomb, Place, meanwhile, place, why_not

pytestmark = pytest.mark.skipif(bool(why := why_not()), reason=why)

Attack = Callable[[Place], str]
ATTACKS: dict[str, tuple[Attack, tuple[str, ...]]] = {}
EVERYWHERE = ("shared by a team", "open to all", "open to all, sticky")
NOT_STICKY = ("shared by a team", "open to all")


def attack(*kinds: str) -> Callable[[Attack], Attack]:
    """Add an attack, in each of these kinds of folders."""

    def added(function: Attack) -> Attack:
        ATTACKS[function.__name__] = function, kinds or EVERYWHERE
        return function

    return added


def link(at: Place, *names: str) -> Callable[[], None]:
    """The attacker makes links to the victim's file."""

    def made() -> None:
        for name in names:
            with suppress(OSError):
                os.symlink(at.precious, at.folder / name)

    return made


@contextmanager
def watching(path: Path, begin: str | tuple[str, ...], found: Callable[[Path], object]) -> Iterator[None]:
    """A process of the attacker that waits for a name in a folder and then acts. The victim's process starts it."""
    child = os.fork()
    if child == 0:
        os.closerange(3, 256)  # the parent waits for the end of a pipe
        os.setresuid(0, 0, 0)
        os.setresuid(ATTACKER, ATTACKER, ATTACKER)
        while True:
            for name in os.listdir(path):
                if name.startswith(begin):
                    with suppress(OSError):
                        found(path / name)
                        os._exit(0)
    try:
        yield
    finally:
        kill(child)


def kill(child: int) -> None:
    os.setresuid(VICTIM, 0, 0)
    os.kill(child, 9)
    os.setresuid(VICTIM, VICTIM, 0)


# -- names that can be guessed -----------------------------------------------------------------------------------------
@attack()
def names_of_new_files(at: Place) -> str:
    """The name under which a page, a timeline or a table of choices is written first."""

    def act() -> None:
        pid, thread = os.getpid(), threading.get_ident()
        names = [f"a.html.{pid}-{thread}.partial", f"a.json.{pid}.part", f"b.json.{pid}", "done.part"]
        meanwhile(link(at, *names))
        Page("<p>", 1).write(at.folder / "a.html")
        Report([], 0.0, [0.0]).write(at.folder / "a.json")
        choices.stored(at.folder / "b.json", "shape", choices.Choices({}))
        with patch.dict(os.environ, RINGTAPE_DONE=str(at.folder / "done")):
            launch.finished()

    return at.victim(act)


@attack()
def links_in_the_place_of_records(at: Place) -> str:
    folder = at.folder / "run.rtr"

    def plant() -> None:
        folder.mkdir()
        folder.chmod(0o777)
        for name in ("rank-0", "rank-0.data"):
            os.symlink(at.precious, folder / name)

    def act() -> None:
        writer = RecordWriter(str(folder / "rank-0"))
        writer.add_result(1, 1, np.ones(3))
        writer.close()

    at.attacker(plant)
    return at.victim(act)


@attack()
def a_pipe_in_the_place_of_a_record(at: Place) -> str:
    folder = at.folder / "run.rtr"

    def plant() -> None:
        folder.mkdir()
        folder.chmod(0o777)
        os.mkfifo(folder / "rank-0", 0o666)

    at.attacker(plant)
    return at.victim(lambda: RecordWriter(str(folder / "rank-0")).close())


@attack()
def reading_a_record(at: Place) -> str:
    def act() -> None:
        writer = RecordWriter(str(at.folder / "run.rtr" / "rank-0"))
        writer.add_result(1, 1, np.arange(3.0))
        writer.close()

    def read() -> str:
        return "it reads values" if (at.folder / "run.rtr" / "rank-0.data").read_bytes() else ""

    found = at.victim(act) or at.attacker(read)
    return "" if "PermissionError" in found else found


@attack()
def a_link_in_the_place_of_a_plan(at: Place) -> str:
    def act() -> None:
        import autograd as ag

        with cc.Mesh(dp=1), ag.Tape() as tape:
            ag.Parameter([1.0]).sum()
        tape.plan().write(at.folder / "plan.json")

    at.attacker(link(at, "plan.json"))
    found = at.victim(act)
    return "" if "symbolic link" in found else found


@attack()
def a_link_in_the_place_of_a_log(at: Place) -> str:
    at.attacker(link(at, "run.jsonl"))
    found = at.victim(lambda: RunLog(at.folder / "run.jsonl").close())
    return "" if "FileError" in found and "another user" in found else f"no refusal: {found}"


@attack()
def a_pipe_in_the_place_of_a_log(at: Place) -> str:
    at.attacker(lambda: os.mkfifo(at.folder / "run.jsonl", 0o666))
    at.attacker(lambda: os.chmod(at.folder / "run.jsonl", 0o666))
    found = at.victim(lambda: RunLog(at.folder / "run.jsonl").close())
    return "" if "FileError" in found and "no regular file" in found else f"no refusal: {found}"


# -- what is swapped between two steps ---------------------------------------------------------------------------------
def swapped(at: Place, begin: str) -> Callable[..., Any]:
    """An `os.open` that lets the attacker put a link in the place of each new file that it makes."""
    real = os.open

    def opened(path: Any, flags: int, *args: Any, **options: Any) -> int:
        number = real(path, flags, *args, **options)
        if flags & os.O_EXCL:
            def act() -> None:
                for name in os.listdir(at.folder):
                    if name.startswith(begin) and name.endswith(".part"):
                        os.rename(at.folder / name, at.folder / "away")
                        os.symlink(at.precious, at.folder / name)

            meanwhile(act)
        return number

    return opened


@attack(*NOT_STICKY)
def the_new_file_of_saved_weights(at: Place) -> str:
    def act() -> None:
        with patch.object(os, "open", swapped(at, "w.npz")):
            nn.save(nn.Linear(2, 1), at.folder / "w.npz")

    found = at.victim(act)
    return "" if "Error" in found else found


@attack(*NOT_STICKY)
def the_new_file_of_a_library(at: Place) -> str:
    pytest.importorskip("safetensors")

    def act() -> None:
        with patch.object(os, "open", swapped(at, "w.safetensors")):
            nn.save(nn.Linear(2, 1), at.folder / "w.safetensors")

    found = at.victim(act)
    return "" if "Error" in found else found


# -- pages of programs that fail ---------------------------------------------------------------------------------------
def exchange(at: Place, written: list[Any], size: int = 2, rank: int = 0) -> Any:
    made: Any = show._Files  # what ranks that are processes use
    return made("token", str(at.folder / "a.html"), RankRecords(rank), size, written.extend)


@attack()
def a_pickle_among_the_records_of_ranks(at: Place) -> str:
    """The attacker gives the records of another rank while the one that failed waits for them."""

    def bomb(folder: Path) -> None:
        (folder / "1.new").write_bytes(pickle.dumps(Bomb(at.ran / "a pickle")))
        (folder / "1.new").rename(folder / "1.records")

    def act() -> str:
        written: list[Any] = []
        with watching(at.folder, ".ringtape-show-", bomb), patch.object(show, "_FILES_S", 1.0):
            exchange(at, written).failed()
        return "" if [each.rank for each in written] == [0] else f"the page has {written}"

    return at.victim(act)


@attack()
def a_folder_of_records_that_another_user_has_made(at: Place) -> str:
    """It has links with the names of the files that ranks write."""
    folder = at.folder / ".ringtape-show-token"

    def plant() -> None:
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "asks").touch()
        for name in ("0.records.partial", "0.records.part"):
            os.symlink(at.precious, folder / name)

    def act() -> str:
        with patch.object(show, "_WRITING_S", 0.2):
            exchange(at, []).failed()
        return ""

    at.attacker(plant)
    return at.victim(act)


@attack(*NOT_STICKY)
def another_folder_of_the_victim_under_the_name_of_the_records(at: Place) -> str:
    """The attacker renames a folder of the victim that lies there, so that ringtape would remove what is in it."""

    def swap(folder: Path) -> None:
        os.rename(folder, folder.with_name("away"))
        os.rename(folder.with_name("private"), folder)

    def act() -> str:
        (at.folder / "private").mkdir(mode=0o700)
        (at.folder / "private" / "data").write_text("data")
        waits = patch.object(show, "_FILES_S", 1.0)
        with watching(at.folder, ".ringtape-show-", swap), waits, suppress(PermissionError):
            exchange(at, []).failed()
        kept = [*at.folder.glob("private/data"), *at.folder.glob(".ringtape-show-token/data")]
        left = [*at.folder.glob(".ringtape-show-token/*.records"), *at.folder.glob("private/*.records")]
        return f"written into the victim's folder: {left}" if left else "" if kept else "the folder's data is lost"

    return at.victim(act)


# -- checkpoints -------------------------------------------------------------------------------------------------------
def saved(at: Place, step: int, value: float = 1.0, folder: Path | None = None) -> None:
    with cc.Mesh(dp=1):
        checkpoint.save(folder or at.folder, {"a": np.full(3, value)}, step)


def loaded(at: Place) -> float:
    with cc.Mesh(dp=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a step is left out
        return float(checkpoint.load(at.folder, {"a": np.zeros(3)}).values["a"][0])


@attack()
def a_link_in_the_place_of_the_lock(at: Place) -> str:
    at.attacker(link(at, ".lock"))
    found = at.victim(lambda: saved(at, 1))
    return "" if "CheckpointError" in found else f"no refusal: {found}"


@attack("readable")
def holding_the_lock(at: Place) -> str:
    """Who may only read can lock a file, too, and no job could save."""
    at.victim(lambda: saved(at, 1))

    def hold_and_save() -> str:
        holder = os.fork()
        if holder == 0:
            os.setresuid(0, 0, 0)
            os.setresuid(ATTACKER, ATTACKER, ATTACKER)
            with suppress(OSError):
                number = os.open(at.folder / ".lock", os.O_RDONLY)
                fcntl.flock(number, fcntl.LOCK_EX)
            (at.ran / "held").touch()
            time.sleep(LIMIT_S)
            os._exit(0)
        while not (at.ran / "held").exists():
            time.sleep(0.01)
        try:
            saved(at, 2)
        finally:
            kill(holder)
            os.remove(at.ran / "held")
        return ""

    return at.victim(hold_and_save)


@attack()
def links_in_an_unfinished_checkpoint(at: Place) -> str:
    """The folder of a step that is being written is full of links, as soon as it can be seen."""
    pytest.importorskip("safetensors")
    from parallel.checkpoint import disk

    real = disk.point

    def point(name: str, path: Any = None) -> None:
        def plant() -> None:
            for folder in at.folder.glob(".step-*"):
                for each in ("rank-00000.safetensors", "rank-00000.json.part", "manifest.json.part"):
                    with suppress(OSError):
                        os.symlink(at.precious, folder / each)

        meanwhile(plant)
        real(name, path)

    def act() -> str:
        with patch.object(disk, "point", point):
            saved(at, 1)
        return "" if loaded(at) == 1.0 else "other values"

    return at.victim(act)


@attack(*NOT_STICKY)
def the_folder_of_an_unfinished_checkpoint(at: Place) -> str:
    """Another folder is put in its place, in which the name of the data file is a link."""
    pytest.importorskip("safetensors")
    from parallel.checkpoint import disk

    real = disk.point

    def point(name: str, path: Any = None) -> None:
        def swap() -> None:
            for folder in at.folder.glob(".step-*"):
                folder.rename(folder.with_name("away"))
                folder.mkdir()
                folder.chmod(0o777)
                os.symlink(at.precious, folder / "rank-00000.safetensors")

        if name == "write data":
            meanwhile(swap)
        real(name, path)

    def act() -> None:
        with patch.object(disk, "point", point):
            saved(at, 1)

    found = at.victim(act)
    return "" if "DamagedCheckpoint" in found else f"no refusal: {found}"


@attack("open to all", "open to all, sticky")
def a_step_of_another_user(at: Place) -> str:
    """It is the newest, and the run would go on from it."""

    at.victim(lambda: saved(at, 1))
    at.victim(lambda: saved(at, 9, 9.0, at.home / "other"))
    theirs = at.folder / "step-000000009"
    os.rename(at.home / "other" / theirs.name, theirs)
    for path in (theirs, *theirs.iterdir()):
        os.chown(path, ATTACKER, ATTACKER)
        path.chmod(0o755)
    return at.victim(lambda: "" if loaded(at) == 1.0 else "the run goes on from the attacker's state")


@attack()
def a_step_that_is_a_link(at: Place) -> str:
    """It leads to another run of the victim."""
    at.victim(lambda: saved(at, 1))
    at.victim(lambda: saved(at, 9, 9.0, at.home / "other"))
    at.attacker(lambda: os.symlink(at.home / "other" / "step-000000009", at.folder / "step-000000009"))

    return at.victim(lambda: "" if loaded(at) == 1.0 else "the run goes on from another one")


# -- orders, and what is run -------------------------------------------------------------------------------------------
@attack()
def a_marker_that_the_job_is_finished(at: Place) -> str:
    at.attacker((at.folder / "done").touch)

    def act() -> str:
        command = [sys.executable, "-c", f"open({str(at.home / 'worked')!r}, 'w')"]
        launch.Launcher(command, done=str(at.folder / "done"), restarts=0, wait_s=0.0).run()
        return "" if (at.home / "worked").exists() else "the job was not started"

    return at.victim(act)


@attack(*NOT_STICKY)
def the_file_of_hosts(at: Place) -> str:
    """The folder of the launcher's host file is swapped, so that the job would start on the attacker's hosts."""

    def swap(folder: Path) -> None:
        time.sleep(0.5)  # until the file is there
        folder.rename(folder.with_name("away"))
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "hosts").write_text("evil")

    def act() -> str:
        command = ["sh", "-c", f"sleep 1; cp $0 {at.home}/seen", "{hostfile}", "{ranks}"]
        import tempfile

        names = "ringtape-launch", ".ringtape-launch"
        with watching(at.folder, names, swap), patch.object(tempfile, "tempdir", str(at.folder)):
            launch.Launcher(command, hosts=launch.Hosts({"good": "good"}, 1, "true {host}")).run()
        return "the job gets the attacker's hosts" if (at.home / "seen").read_text() != "good\n" else ""

    return at.victim(act)


@attack("shared by a team")
def compiled_loops(at: Place) -> str:
    """Numba's cache has pickles."""
    pytest.importorskip("numba")
    code = (
        "import warnings; warnings.simplefilter('ignore'); from autograd.kernels import loops; "
        "loops.compiled('momentum', 'float64')"
    )

    def act() -> None:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(at.folder / "numba")}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)

    def plant() -> None:
        cache = at.folder / "numba"
        cache.rename(cache.with_name("away"))
        shutil.copytree(cache.with_name("away"), cache)
        for folder in (cache, *cache.rglob("*/")):
            folder.chmod(0o777)
        for path in [*cache.rglob("*.nbi")]:
            content = path.read_bytes()
            path.unlink()
            version = pickle.dumps(pickle.loads(content))  # Numba's, which it reads first
            path.write_bytes(version + pickle.dumps(Bomb(at.ran / "a pickle")))

    for _ in range(2):
        found = at.victim(act)
        if found:
            return found
        at.attacker(plant)
    return ""


@attack()
def modules_in_the_current_folder(at: Place) -> str:
    """A check of the MPI library starts a Python of its own."""
    from collectives.tools import doctor

    def plant() -> None:
        for name in ("numpy", "mpi4py", "json"):
            path = at.folder / f"{name}.py"
            path.write_text(f"open({str(at.ran / name)!r}, 'w')")
            path.chmod(0o644)

    def act() -> None:
        os.chdir(at.folder)
        with suppress(LookupError):
            doctor._child([], 30.0)

    at.attacker(plant)
    return at.victim(act)


@attack()
def a_library_for_products(at: Place) -> str:
    """It is writable for everyone."""
    from autograd.arrays.blas import Library

    def plant() -> None:
        source = at.folder / "evil.c"
        begin = "#include <fcntl.h>\n__attribute__((constructor)) void f() "
        source.write_text(f'{begin}{{ creat("{at.ran / "library"}", 0666); }}')
        subprocess.run(["cc", "-shared", "-fPIC", "-o", at.folder / "evil.so", source], check=True)
        (at.folder / "evil.so").chmod(0o777)

    if "Error" in at.attacker(plant):
        pytest.skip("no C compiler")
    found = at.victim(lambda: Library(str(at.folder / "evil.so")) and None)
    return "" if "OptionError" in found and "every user can write" in found else f"no refusal: {found}"


# -- files that are no files -------------------------------------------------------------------------------------------
@attack()
def a_pipe_and_an_endless_file_of_choices(at: Place) -> str:
    def plant() -> None:
        os.mkfifo(at.folder / "pipe", 0o666)
        with open(at.folder / "endless", "w") as file:
            file.truncate(1 << 40)
        for name in ("pipe", "endless"):
            (at.folder / name).chmod(0o666)

    def act() -> str:
        found = []
        for name in ("pipe", "endless"):
            try:
                choices.tables(at.folder / name)
            except Exception as error:
                found.append(type(error).__name__)
        return "" if found == ["MeshError"] * 2 else str(found)

    at.attacker(plant)
    return at.victim(act)


@attack()
def a_second_name_of_a_file(at: Place) -> str:
    """A hard link to a file that the team may write: it is the victim's file itself."""

    def act() -> None:
        (at.folder / "notes").write_text("notes")

    at.victim(act)
    at.attacker(lambda: os.link(at.folder / "notes", at.folder / ".lock"))
    at.attacker(lambda: os.link(at.folder / "notes", at.folder / "a.html"))
    found = at.victim(lambda: saved(at, 1)) if (at.folder / ".lock").exists() else "CheckpointError"
    at.victim(lambda: Page("<p>", 1).write(at.folder / "a.html"))
    if (at.folder / "notes").read_text() != "notes":
        return "the victim's notes are lost"
    return "" if "CheckpointError" in found else f"no refusal: {found}"


CASES = [(name, kind) for name, (_, kinds) in ATTACKS.items() for kind in kinds]


@pytest.mark.parametrize("name, kind", CASES, ids=[f"{name}-{kind}" for name, kind in CASES])
def test_no_attack_has_an_effect(name: str, kind: str) -> None:
    with place(kind) as at:
        found = ATTACKS[name][0](at)
        assert (found, at.has_lost()) == ("", "")
