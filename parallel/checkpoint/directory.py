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
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from autograd.errors import CheckpointError, DamagedCheckpoint, FileError
from autograd.files import PrivateFolder, new_file, refuse_foreign_link

from .disk import (
    NAMES,
    Reader,
    header_of,
    make_durable,
    private,
    refuse_other_size,
    rename,
    running_checksum,
    stored_as,
)  # fmt: skip
from .manifest import Manifest, Value, entry_name
from .pieces import Stretch

__all__ = ["Directory"]

_STEP = re.compile(r"(?:step-|\.replaced-)([0-9]{9,18})")
_locks: dict[tuple[int, int], int] = {}
_making = threading.Lock()


class Directory:
    """The directory of a run.

    Parameters
    ----------
    path : str or path
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = str(Path(path))  # without double or last slashes, to which names are added

    def steps(self) -> list[int]:
        """The steps that have a directory, in order. Whether they are whole is not checked."""
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"checkpoint {self.path}: it cannot be read: {error.strerror}") from None
        found = [each[1] for each in map(_STEP.fullmatch, names) if each]
        return sorted({int(number) for number in found if number == f"{int(number):09d}"})

    def unfinished(self) -> list[str]:
        """The directories of steps that are being written, or whose job has ended."""
        try:
            return sorted(name for name in os.listdir(self.path) if name.startswith(".step-"))
        except OSError:
            return []

    def of_step(self, step: int) -> str:
        """The directory of a step. A job that died while it replaced the step has left it under its other name."""
        named, replaced = self._paths(step)
        return replaced if not os.path.lexists(named) and os.path.lexists(replaced) else named

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
        self._refuse_foreign(folder)
        manifest = Manifest.read(folder)
        if manifest.step != step:
            raise DamagedCheckpoint(f"checkpoint {folder}: its manifest is that of step {manifest.step}")
        for name, size in manifest.files:
            refuse_other_size(folder, name, size)
        return manifest

    def _refuse_foreign(self, folder: str) -> None:
        """Raise DamagedCheckpoint for a link of another user; and for a step, where everyone can make one.

        Those of root, and of the owner of the directory, are taken as this user's own.
        """
        try:
            refuse_foreign_link(folder, "checkpoint")
            run, owner = os.stat(self.path), os.stat(folder).st_uid
        except FileError as error:
            raise DamagedCheckpoint(error.reason) from None
        except OSError:
            return  # reading it tells
        if run.st_mode & 0o002 and owner not in (os.geteuid(), run.st_uid, 0):
            raise DamagedCheckpoint(
                f"checkpoint {folder}: another user (number {owner}) has made it, and everyone can write there\n"
                f"  fix: chmod o-w {self.path}, if the step is to be trusted"
            )

    def verify(
        self, step: int, progress: Callable[[int, int], None] | None = None
    ) -> tuple[list[DamagedCheckpoint], Manifest]:
        """Read all bytes of a step, in blocks, and compare values and the headers of files with the manifest.

        Parameters
        ----------
        step : int
        progress : callable, optional
            It is called with the bytes that were read, and those of all values.

        Returns
        -------
        faults : list of DamagedCheckpoint
            What is wrong, by file and place.
        manifest : Manifest

        Raises
        ------
        DamagedCheckpoint
            There is no manifest that is right, or a file is not there.
        """
        manifest = self.manifest(step)
        folder, faults, done = self.of_step(step), [], 0
        make = running_checksum(manifest.checksum, folder)
        pieces: list[list[tuple[str, Value, Stretch]]] = [[] for _ in manifest.files]
        for key, value in manifest.values.items():
            for p in value.pieces:
                pieces[p.file].append((key, value, p))
        total = sum(p.end - p.begin for of_file in pieces for _, _, p in of_file)
        with Reader(folder, manifest.files) as reader:
            for file, of_file in enumerate(pieces):
                name = manifest.files[file][0]
                try:
                    _check_header(reader, file, of_file)
                except DamagedCheckpoint as error:
                    faults.append(error)
                for key, _, p in sorted(of_file, key=lambda each: each[2].begin):
                    found = make()
                    try:
                        for block in reader.blocks(file, p.begin, p.end):
                            found.update(block)
                            done += len(block)
                            if progress is not None:
                                progress(done, total)
                    except DamagedCheckpoint as error:
                        faults.append(error)
                        continue
                    if found.hexdigest() != p.checksum:
                        faults.append(DamagedCheckpoint(
                            f"checkpoint {folder}, {name}, bytes {p.begin} to {p.end}, of {key}: the checksum is "
                            f"{found.hexdigest()}, and it was {p.checksum} when it was saved"
                        ))  # fmt: skip
        return faults, manifest

    def _paths(self, step: int) -> tuple[str, str]:
        """The directory of a step, and that which it has while another one takes its place."""
        return f"{self.path}/step-{step:09d}", f"{self.path}/.replaced-{step:09d}"

    # -- writing ---------------------------------------------------------------------------------------------------
    def lock(self) -> None:
        """Make the directory, and lock it for this process.

        Raises
        ------
        CheckpointError
            Another process writes into it, or it cannot be made.
        """
        try:
            if not os.path.isdir(self.path):
                os.makedirs(self.path, exist_ok=True)
            with _making:
                number = self._open_lock()
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

    def _open_lock(self) -> int:
        """The descriptor of the file that is locked. Only those may open it, and so lock, who may write beside it."""
        file, folder = f"{self.path}/.lock", os.stat(self.path).st_mode
        try:
            number = new_file(file, mode=0o600)
            with suppress(OSError):  # some file systems have no permissions
                os.fchmod(number, 0o600 | (folder & 0o020) * 3 | (folder & 0o002) * 3)
        except FileExistsError:
            number = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:  # what is written into it is this file's alone
            return number
        os.close(number)
        raise CheckpointError(
            f"checkpoint.save: {file} is no regular file, or has another name, too\n  fix: remove it, or another "
            "directory"
        )

    def begin(self, step: int, overwrite: bool) -> str:
        """Make a directory for what is not finished yet.

        Raises
        ------
        CheckpointError
            The step is there already, or the directory cannot be written.
        """
        self.lock()
        if not overwrite and os.path.exists(self.of_step(step)):
            try:
                faults: list[Any] = self.verify(step)[0]  # a run that has left it out as damaged comes to it again
            except CheckpointError as error:
                faults = [error]
            if not faults:
                raise CheckpointError(
                    f"checkpoint.save: {self.path} has step {step} already; needed: a step that it does not have\n"
                    "  fix: load it before the run goes on; or another directory for another run\n"
                    "  or:  save(..., overwrite=True)"
                )
        self.remove_unfinished()
        found = f"{self.path}/.step-{step:09d}.{os.urandom(8).hex()}"
        try:
            PrivateFolder.make(found).close()  # `publish` gives it the usual permissions
        except OSError as error:
            raise CheckpointError(f"checkpoint.save: {self.path} cannot be written: {error}") from error
        return found

    def publish(self, folder: str, step: int) -> None:
        """Give a directory that is complete the name of its step. What had it is removed afterwards."""
        named, replaced = self._paths(step)
        try:
            with private(folder) as inside:
                inside.share()
            if os.path.lexists(named):
                rename(named, replaced)
            rename(folder, named)
        except OSError as error:
            raise CheckpointError(f"checkpoint.save: {named} cannot be written: {error}") from error
        _remove(replaced)

    def remove_unfinished(self) -> None:
        """Remove what earlier saves have not finished. A step that was about to be replaced gets its name back."""
        for name in os.listdir(self.path):
            found = _STEP.fullmatch(name)
            if found and name.startswith(".replaced-"):
                named, replaced = self._paths(int(found[1]))
                if os.path.lexists(named):
                    _remove(replaced)
                else:
                    rename(replaced, named)
            elif name.startswith((".step-", ".old.")):
                _remove(f"{self.path}/{name}")

    def prune(self, keep: int | None, keep_every: int | None) -> None:
        """Remove all but the last `keep` steps, and but those that `keep_every` divides."""
        if keep is None:
            return
        for step in self.steps()[:-keep]:
            if keep_every is None or step % keep_every:
                gone = f"{self.path}/.old.{os.urandom(8).hex()}"
                with suppress(OSError):
                    os.rename(self.of_step(step), gone)
                    make_durable(self.path)
                    shutil.rmtree(gone, ignore_errors=True)


def _check_header(reader: Reader, file: int, pieces: Sequence[tuple[str, Value, Stretch]]) -> None:
    """Compare the header of a data file, by which it is read without ringtape, with the manifest."""
    name, size = reader.files[file]
    with open(reader.descriptor(file), "rb", closefd=False) as opened:
        opened.seek(0)
        header = header_of(opened, size, f"{reader.folder}/{name}")
    wanted = {}
    for key, value, p in pieces:
        dtype, shape = stored_as(value.numpy_dtype, [b - a for a, b in p.box])
        wanted[entry_name(key, value.shape, p.box)] = NAMES[dtype], shape, p.begin, p.end
    for entry in {**wanted, **header}:
        if header.get(entry) != wanted.get(entry):
            raise DamagedCheckpoint(
                f"checkpoint {reader.folder}, {name}, its header, entry {entry}: it is {header.get(entry)}, and "
                f"{wanted.get(entry)} by the manifest"
            )


def _remove(path: str) -> None:
    """Remove a directory, or what was put in its place."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
