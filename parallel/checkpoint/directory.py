"""The directory of a run: a directory for each step, what is not finished, and who writes into it.

``step-000000120/`` is a checkpoint: it has a manifest, and data files. It is made under another name, which begins with
a dot, and gets its own when it is complete; so a step that can be seen is whole. ``.lock`` is locked by the process
that writes, as long as it lives.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import threading
from contextlib import suppress
from pathlib import Path

from autograd.errors import CheckpointError, DamagedCheckpoint

from .disk import make_durable, refuse_other_size, rename
from .manifest import Manifest

__all__ = ["Directory"]

_STEP = re.compile(r"step-([0-9]{9,18})")
_locks: dict[tuple[int, int], int] = {}
_making = threading.Lock()


class Directory:
    """The directory of a run.

    Parameters
    ----------
    path : str or path
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def steps(self) -> list[int]:
        """The steps that have a directory, in order. Whether they are whole is not checked."""
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"checkpoint {self.path}: it cannot be read: {error.strerror}") from None
        found = sorted((int(m[1]), name) for name in names if (m := _STEP.fullmatch(name)))
        return [step for step, name in found if name == self.of_step(step).name]

    def unfinished(self) -> list[str]:
        """The directories of steps that are being written, or whose job has ended."""
        try:
            return sorted(name for name in os.listdir(self.path) if name.startswith(".step-"))
        except OSError:
            return []

    def of_step(self, step: int) -> Path:
        """The directory of a step."""
        return self.path / f"step-{step:09d}"

    def manifest(self, step: int) -> Manifest:
        """The manifest of a step, and a check that its files are there with their sizes.

        Raises
        ------
        CheckpointError
            There is no such step, or it is not whole.
        """
        folder = self.of_step(step)
        known = self.steps()
        if step not in known:
            raise CheckpointError(
                f"checkpoint {self.path}: there is no step {step}; it has "
                + (f"{', '.join(map(str, known[-8:]))}" if known else "none")
            )
        manifest = Manifest.read(folder)
        if manifest.step != step:
            raise DamagedCheckpoint(f"checkpoint {folder}: its manifest is that of step {manifest.step}")
        for name, size in manifest.files:
            refuse_other_size(folder, name, size)
        return manifest

    # -- writing ---------------------------------------------------------------------------------------------------
    def lock(self) -> None:
        """Make the directory, and lock it for this process.

        Raises
        ------
        CheckpointError
            Another process writes into it, or it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.path / ".lock"
            with _making:
                number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                status = os.fstat(number)
                if (status.st_dev, status.st_ino) in _locks:
                    os.close(number)
                    return
                try:
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    owner = os.pread(number, 200, 0).decode(errors="replace") or "another process"
                    os.close(number)
                    if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                        raise CheckpointError(
                            f"checkpoint.save: {self.path} is written by another job: {owner}; needed: a directory for "
                            "each job\n  fix: another directory; or end that job"
                        ) from None
                    return  # a file system without locks
                os.ftruncate(number, 0)
                os.pwrite(number, json.dumps({"host": socket.gethostname(), "process": os.getpid()}).encode(), 0)
                _locks[status.st_dev, status.st_ino] = number
        except OSError as error:
            raise CheckpointError(f"checkpoint.save: {self.path} cannot be written: {error}") from error

    def begin(self, step: int, overwrite: bool) -> Path:
        """Make a directory for what is not finished yet.

        Raises
        ------
        CheckpointError
            The step is there already, or the directory cannot be written.
        """
        self.lock()
        if not overwrite and self.of_step(step).exists():
            whole = True
            try:
                self.manifest(step)
            except CheckpointError:
                whole = False
            if whole:
                raise CheckpointError(
                    f"checkpoint.save: {self.path} has step {step} already; needed: a step that it does not have\n"
                    "  fix: load it before the run goes on; or another directory for another run\n"
                    "  or:  save(..., overwrite=True)"
                )
        self.remove_unfinished()
        found = self.path / f".step-{step:09d}.{os.urandom(8).hex()}"
        try:
            found.mkdir()
        except OSError as error:
            raise CheckpointError(f"checkpoint.save: {self.path} cannot be written: {error}") from error
        return found

    def publish(self, folder: Path, step: int) -> None:
        """Give a directory that is complete the name of its step. What had it is removed afterwards."""
        target, old = self.of_step(step), self.path / f".old.{os.urandom(8).hex()}"
        try:
            if target.exists():
                rename(target, old)
            rename(folder, target)
        except OSError as error:
            raise CheckpointError(f"checkpoint.save: {target} cannot be written: {error}") from error
        shutil.rmtree(old, ignore_errors=True)

    def remove_unfinished(self) -> None:
        """Remove what earlier saves have not finished. A step that was about to be replaced gets its name back."""
        for name in os.listdir(self.path):
            if name.startswith((".step-", ".old.")):
                shutil.rmtree(self.path / name, ignore_errors=True)

    def prune(self, keep: int | None, keep_every: int | None) -> None:
        """Remove all but the last `keep` steps, and but those that `keep_every` divides."""
        if keep is None:
            return
        for step in self.steps()[:-keep]:
            if keep_every is None or step % keep_every:
                gone = self.path / f".old.{os.urandom(8).hex()}"
                with suppress(OSError):
                    os.rename(self.of_step(step), gone)
                    make_durable(self.path)
                    shutil.rmtree(gone, ignore_errors=True)
