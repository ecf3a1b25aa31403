"""Two users of one machine: what one of them does, as a process of its own, while the other one attacks.

Only root can become other users. `VICTIM` and `ATTACKER` are members of one group, as in a team; `VICTIM` makes files
that the group may write (umask 002). Their numbers need no accounts. Where other users cannot read Python's library,
the victim is root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ATTACKER, TEAM = 60002, 60003
LIMIT_S = 60
FOLDERS = {"shared by a team": 0o2775, "open to all": 0o777, "open to all, sticky": 0o1777, "readable": 0o755}


def run_as(user: int, function: Callable[[], Any]) -> str:
    """Run a function in a process of a user; the text that it returns, or the error that it raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.alarm(LIMIT_S)  # of a wait that would never end
            become(user)
            try:
                text = str(function() or "")
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode()[:60_000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        text = file.read().decode()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else f"ended by status {status}"


def _victim() -> int:
    """A user who can import modules."""
    if os.geteuid() != 0:
        return os.geteuid()
    return 60001 if run_as(60001, lambda: os.listdir(os.path.dirname(os.__file__)) and "") == "" else 0


def become(user: int) -> None:
    """Become a user in the team, with a way back for `meanwhile`."""
    os.setgroups([TEAM])
    os.setresgid(user, user, user)
    os.umask(0o002)
    os.setresuid(user, user, 0)


VICTIM = _victim()


def meanwhile(function: Callable[[], Any]) -> None:
    """Let the attacker do something at this moment, in the process of another user that `run_as` has made."""
    child = os.fork()
    if child == 0:
        os.setresuid(0, 0, 0)
        become(ATTACKER)
        os.setresuid(ATTACKER, ATTACKER, ATTACKER)
        with contextlib.suppress(OSError):
            function()
        os._exit(0)
    os.waitpid(child, 0)


class Place:
    """A home of the victim, with something that must not be lost, and a folder in which the attacker may write."""

    def __init__(self, folder: Path, kind: str):
        self.home, self.folder, self.precious = folder / "home", folder / "work", folder / "home" / "precious"
        self.home.mkdir(mode=0o700)
        self.precious.write_text("precious")
        for path in (self.home, self.precious):
            os.chown(path, VICTIM, VICTIM)
        self.precious.chmod(0o600)
        self.folder.mkdir()
        os.chown(self.folder, VICTIM, TEAM)
        self.folder.chmod(FOLDERS[kind])  # whatever the mask of the tests is
        self.ran = folder / "ran"
        self.ran.mkdir()
        self.ran.chmod(0o777)

    def victim(self, function: Callable[[], Any]) -> str:
        """What the victim's process returns or raises."""

        def at_home() -> Any:
            os.environ.update(HOME=str(self.home), XDG_CACHE_HOME=str(self.home / ".cache"))
            os.environ.pop("XDG_RUNTIME_DIR", None)
            os.chdir(self.home)
            return function()

        return run_as(VICTIM, at_home)

    def attacker(self, function: Callable[[], Any]) -> str:
        """What the attacker's process returns or raises."""
        return run_as(ATTACKER, function)

    def has_lost(self) -> str:
        """What the victim has lost, or that the attacker's code ran."""
        if not self.precious.exists() or self.precious.read_text() != "precious":
            return "the victim's file is lost"
        if self.precious.stat().st_uid != VICTIM or stat.S_IMODE(self.precious.stat().st_mode) != 0o600:
            return "the victim's file is open to others"
        return f"{sorted(each.name for each in self.ran.iterdir())} ran" if any(self.ran.iterdir()) else ""


class Bomb:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mknod, (str(self.path),)


@contextlib.contextmanager
def place(kind: str) -> Iterator[Place]:
    """A new place. It is below /tmp, because the folders of pytest are root's alone."""
    with contextlib.ExitStack() as done:
        folder = Path(tempfile.mkdtemp(prefix="users-", dir="/tmp"))
        done.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        yield Place(folder, kind)


def why_not() -> str:
    """Why there are no two users here; "" if there are."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs root to become other users"
    return ""
