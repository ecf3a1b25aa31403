"""Files that no other user can redirect, replace or read: the one way in which ringtape makes and opens files.

=====================  ===============================================================================================
`replacing`            a new file in the place of a path, whole or not at all; it never writes into what is there
`PrivateFolder`        a folder that only its user can enter, reached by its descriptor and never again by its name
`opened`               a regular file to read: a pipe is not waited for
`refuse_foreign_link`  a symbolic link at the end of a path is followed if this user or root has made it
`is_as_safe`           whether what is in a file may be run: nobody can write it who cannot write the program itself
`temporary`            a folder for temporary files in which no other user can rename what this one makes
=====================  ===============================================================================================

A path that a user names is where the user wants it, as with other programs: its folders are not judged. Other users
may then write beside the file, and in its place, as far as they may write in the folder. They cannot make this process
write elsewhere, wait, or take what they have made for its own. docs/guides/files.md lists all files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Self

from .errors import FileError, WriteError

__all__ = [
    "PrivateFolder", "append_to", "is_as_safe", "is_firm", "is_for_everyone", "new_file", "opened",
    "refuse_foreign_link", "replaced", "replacing", "taking_place", "temporary", "writing",
]  # fmt: skip

_CLOEXEC, _NOFOLLOW = getattr(os, "O_CLOEXEC", 0), getattr(os, "O_NOFOLLOW", 0)  # not on every platform
_NEW = os.O_CREAT | os.O_EXCL | _CLOEXEC | _NOFOLLOW
_READ = os.O_RDONLY | _CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # the end of a pipe would be waited for
_FOLDER = getattr(os, "O_DIRECTORY", 0) | _CLOEXEC
_BY_NUMBER = getattr(os, "O_PATH", os.O_RDONLY)  # a folder that may not be listed
_LINKS = 40  # as the kernel


# -- files that users name ---------------------------------------------------------------------------------------------
@contextmanager
def writing(caller: str, path: Any) -> Iterator[None]:
    """A block that writes a file. The errors of the system become a `WriteError` that names the file."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        why, fix = error.strerror or str(error), _FIXES.get(error.errno or 0, "a path that this user may write")
        made = WriteError(f"{caller}({os.fsdecode(path)!r}): it cannot be written: {why}\n  fix: {fix}")
        made.errno, made.strerror, made.filename = error.errno, error.strerror, error.filename
        raise made from error


_ROOM = "more room, or another disk; a file that was there is as it was"
_FIXES = {
    errno.ENOENT: "os.makedirs(os.path.dirname(path), exist_ok=True) first",
    errno.ENOTDIR: "a path below a folder; what stands before the last '/' is a file",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "a larger limit of the size of files, ulimit -f; a file that was there is as it was",
}


def refuse_foreign_link(path: str | os.PathLike[str], caller: str) -> str:
    """The path of what is meant, with symbolic links at its end followed that this user or root has made.

    Raises
    ------
    FileError
        Another user has made one: it may lead to any file of this user.

    Examples
    --------
    >>> refuse_foreign_link("no such file", "save")
    'no such file'
    """
    at = os.fsdecode(path)
    for _ in range(_LINKS):
        try:
            status = os.lstat(at)
        except OSError:
            return at  # what opens it says what is wrong
        if not stat.S_ISLNK(status.st_mode):
            return at
        if status.st_uid not in (os.geteuid(), 0):
            raise FileError(
                f"{caller}: {at!r} is a symbolic link to {os.readlink(at)!r}, made by another user (number "
                f"{status.st_uid}); needed: a file, or a link of your own\n  fix: another path, or remove the link"
            )
        at = os.path.join(os.path.dirname(at), os.readlink(at))
    return at  # the system says that these are too many


def new_file(name: str | os.PathLike[str], *, folder: int | None = None, mode: int = 0o666) -> int:
    """The descriptor of a file that was not there: links are not followed, and nothing is written over."""
    return os.open(name, _NEW | os.O_RDWR, mode, dir_fd=folder)


def append_to(path: str | os.PathLike[str], caller: str) -> int:
    """The descriptor of a file to append to: a file, or a device such as /dev/null. A pipe without a reader would be
    waited for.

    Raises
    ------
    FileError
        Something else is there, or a symbolic link that another user has made.
    """
    target = refuse_foreign_link(path, caller)
    number = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT | _CLOEXEC | os.O_NONBLOCK | _NOFOLLOW, 0o666)
    mode = os.fstat(number).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        os.close(number)
        raise FileError(f"{caller}({os.fspath(path)!r}): no regular file is there; needed: the path of a file")
    return number


def opened(path: str | os.PathLike[str], *, folder: int | None = None, follow: bool = True) -> int:
    """The descriptor of a regular file, for reading.

    Raises
    ------
    OSError
        It is not there, may not be read, or is no regular file: then the number is ``EISDIR`` or ``EINVAL``. Without
        `follow`, a symbolic link gives ``ELOOP``.
    """
    number = os.open(path, _READ | (0 if follow else _NOFOLLOW), dir_fd=folder)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        text = "it is a directory" if stat.S_ISDIR(mode) else "it is no regular file"
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, text, os.fsdecode(path))
    return number


@contextmanager
def replacing(path: str | bytes | os.PathLike[str], caller: str = "save") -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` at the end of the block, if there was no error.

    If `path` is a symbolic link of this user or root, it is its target that is replaced. A file that exists keeps its
    permissions. The new file is on the disk before it gets the name, and so is the name when the block has ended.

    Raises
    ------
    FileError
        Something is there that is no file, or a link that another user has made.
    WriteError
        The disk is full, or the folder is missing or may not be written.
    """
    with _Place(path, caller) as place, writing(caller, path):
        with os.fdopen(new_file(place.part, folder=place.folder, mode=place.mode), "wb") as file:
            yield file
            file.flush()
            place.take(file.fileno())
        place.publish(place.part, place.folder)


@contextmanager
def replaced(path: str | bytes | os.PathLike[str], caller: str = "save") -> Iterator[str]:
    """As `replacing`, for a library that writes a file by its name: the name that it may write.

    It is in a folder of its own, so that nobody else can put a link there.
    """
    with _Place(path, caller) as place, writing(caller, path):
        with PrivateFolder.make(place.part, place.folder) as inside:
            yield inside.path_of(place.name)
            number = inside.opened(place.name)
            try:
                os.fchmod(number, inside.usual_mode())  # whatever the library has chosen
                place.take(number)
            finally:
                os.close(number)
            place.publish(place.name, inside.number)


@contextmanager
def taking_place(path: str, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new file, to be written and read for long. At the end of the block it takes the place of `path`.

    It stays open then. After an error it is closed and removed, and what was at `path` is still there.
    """
    part = f"{path}.{os.urandom(16).hex()}.part"
    file = os.fdopen(new_file(part, mode=mode), "w+b", buffering=0)
    try:
        yield file
        if os.path.isdir(path) and not os.path.islink(path):
            raise OSError(errno.EISDIR, "it is a directory", path)
        os.replace(part, path)  # a link at `path` is replaced, and not followed
    except BaseException:
        file.close()
        with suppress(OSError):
            os.unlink(part)
        raise


class _Place:
    """The place of a new file: its folder, its name, and the status of the file that it replaces."""

    def __init__(self, path: Any, caller: str):
        self.target = refuse_foreign_link(path, caller)
        self.known: os.stat_result | None = None
        with suppress(OSError):  # the new file will meet the error, too
            self.known = os.stat(self.target)
        if self.known is not None:
            if not stat.S_ISREG(self.known.st_mode):
                kind = "a directory" if stat.S_ISDIR(self.known.st_mode) else "no regular file"
                raise FileError(f"{caller}({os.fsdecode(path)!r}): {kind} is there; needed: the path of a file")
        self.mode = 0o666 if self.known is None else 0o600
        above, self.name = os.path.split(self.target)
        # A name of its own: ranks may be threads of a process, or processes of many hosts.
        self.part = f"{self.name}.{os.urandom(16).hex()}.part"
        with writing(caller, path):
            self.folder = os.open(above or ".", _BY_NUMBER | _FOLDER)

    def __enter__(self) -> Self:
        return self

    def take(self, number: int) -> None:
        """Give the new file the permissions of the old one, and write it to the disk."""
        if self.known is not None:
            with suppress(OSError):  # only root may give a file away, and some file systems have no owners
                os.fchown(number, self.known.st_uid, self.known.st_gid)
            os.fchmod(number, stat.S_IMODE(self.known.st_mode))
        os.fsync(number)

    def publish(self, name: str, folder: int) -> None:
        """Give the new file its name."""
        os.replace(name, self.name, src_dir_fd=folder, dst_dir_fd=self.folder)
        with suppress(OSError):  # a folder may not be listed, and some file systems of networks refuse it
            number = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=self.folder)
            try:
                os.fsync(number)
            finally:
                os.close(number)

    def __exit__(self, *_: Any) -> None:
        with suppress(OSError):
            os.unlink(self.part, dir_fd=self.folder)
        os.close(self.folder)


# -- folders of this user alone ----------------------------------------------------------------------------------------
class PrivateFolder:
    """A folder that only this user can enter. It is opened once; all in it is reached through its descriptor.

    So another user who may write in the folder above can rename it, and put another one in its place, and has no effect
    on what is written and read here. It is left with ``with``; then what `remove` knows of is removed if it was made
    here.

    Attributes
    ----------
    path : str
        Its name, for messages.
    number : int
        Its descriptor.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as above, PrivateFolder.make(os.path.join(above, "mine")) as folder:
    ...     folder.write("a", b"123")
    ...     folder.read("a"), PrivateFolder.find(folder.path) is not None
    (b'123', True)
    """

    def __init__(self, path: str, number: int, above: int | None, is_made: bool):
        self.path, self.number = path, number
        self._above, self._is_made = above, is_made

    @classmethod
    def make(cls, path: str, above: int | None = None) -> PrivateFolder:
        """Make it; FileExistsError if its name is taken. A relative path begins at the folder `above`."""
        os.mkdir(path, 0o700, dir_fd=above)
        found = cls._opened(path, above, True)
        if found is not None and not found.names():  # another folder of this user, renamed by another one, has files
            return found
        if found is not None:
            found.close()
        raise OSError(errno.EPERM, "another user has put a folder in its place", path)

    @classmethod
    def find(cls, path: str) -> PrivateFolder | None:
        """Open one that a process of this user has made; None if there is none, or it is not private."""
        try:
            return cls._opened(path, None, False)
        except OSError:
            return None

    @classmethod
    def _opened(cls, path: str, above: int | None, is_made: bool) -> PrivateFolder | None:
        number = os.open(path, os.O_RDONLY | _NOFOLLOW | _FOLDER, dir_fd=above)
        if _is_private(number):
            return cls(path, number, above, is_made)
        os.close(number)
        return None

    def path_of(self, name: str) -> str:
        """A path to a file in it that leads through the descriptor, for libraries; by its name where there is none."""
        by_number = f"/proc/self/fd/{self.number}"
        return os.path.join(by_number if os.path.isdir(by_number) else self.path, name)

    def names(self) -> list[str]:
        """The names of the files in it."""
        return os.listdir(self.number)

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        try:
            os.stat(name, dir_fd=self.number, follow_symlinks=False)
        except OSError:
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a new file. It has its name once it is whole."""
        part = f"{name}.part"
        with os.fdopen(new_file(part, folder=self.number, mode=0o600), "wb") as file:
            file.write(data)
        os.rename(part, name, src_dir_fd=self.number, dst_dir_fd=self.number)

    def usual_mode(self) -> int:
        """The permissions of a new file as programs make it, from the mask of this process."""
        name = f".{os.urandom(8).hex()}"
        number = new_file(name, folder=self.number)
        try:
            return stat.S_IMODE(os.fstat(number).st_mode)
        finally:
            os.close(number)
            os.unlink(name, dir_fd=self.number)

    def share(self) -> None:
        """Give the folder the permissions of a new folder as programs make it: it is private no more."""
        mode = self.usual_mode()
        with suppress(OSError):  # some file systems have no permissions
            os.fchmod(self.number, stat.S_IMODE(os.fstat(self.number).st_mode) | mode | (mode & 0o444) >> 2)

    def opened(self, name: str) -> int:
        """The descriptor of a regular file in it, for reading."""
        return opened(name, folder=self.number, follow=False)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with os.fdopen(self.opened(name), "rb") as file:
            return file.read()

    def remove(self) -> None:
        """Remove the files in it, and the folder if its name is still its own."""
        with suppress(OSError):
            for name in self.names():
                with suppress(OSError):
                    os.unlink(name, dir_fd=self.number)
            if os.path.samestat(os.stat(self.path, dir_fd=self._above, follow_symlinks=False), os.fstat(self.number)):
                os.rmdir(self.path, dir_fd=self._above)

    def close(self) -> None:
        """Close the descriptor; the folder stays."""
        os.close(self.number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._is_made:
            self.remove()
        self.close()


def _is_private(number: int) -> bool:
    """Whether a folder is this user's, and nobody else may enter it."""
    status = os.fstat(number)
    if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return True
    # A file system may map users (NFS's root_squash) or have no permissions (CIFS): what is made on it shows that.
    name = f".{os.urandom(8).hex()}"
    try:
        made = new_file(name, folder=number, mode=0o600)
    except OSError:
        return False
    try:
        seen = os.fstat(made)
    finally:
        os.close(made)
        with suppress(OSError):
            os.unlink(name, dir_fd=number)
    return seen.st_uid == status.st_uid and bool(not status.st_mode & 0o077 or seen.st_mode & 0o077)


def temporary() -> str:
    """The folder for temporary files: that of ``TMPDIR``, or another one if others could rename what is made there.

    Raises
    ------
    FileError
        There is none.
    """
    import tempfile  # loads ten modules; few programs need it

    given = tempfile.gettempdir()
    home = os.path.expanduser("~")
    for folder in (given, os.environ.get("XDG_RUNTIME_DIR", ""), home):
        if folder and os.access(folder, os.W_OK | os.X_OK) and is_firm(folder):
            return folder
    raise FileError(
        f"temporary files: other users can rename what is made in {given!r}; needed: a folder with the sticky bit, or "
        "one that only you may write\n  fix: export TMPDIR=$(mktemp -d -p ~)"
    )


def is_firm(folder: str) -> bool:
    """Whether no other user can rename what this one makes in a folder, or any of the folders above it.

    Examples
    --------
    >>> is_firm("/"), is_firm("/no such folder")
    (True, False)
    """
    try:
        return not _others(folder, is_sticky=True)
    except OSError:
        return False


def is_as_safe(path: str, program: str) -> bool:
    """Whether nobody can write a file, or in a folder, who cannot write in the folder of the program anyway.

    Examples
    --------
    >>> is_as_safe(os.__file__, os.path.dirname(os.__file__))
    True
    """
    try:
        return _others(path, is_sticky=False) <= _others(program, is_sticky=False)
    except OSError:
        return False


def is_for_everyone(path: str) -> bool:
    """Whether every user can write a file, or in a folder, or put another one in its place."""
    return "everyone" in _others(path, is_sticky=False)


def _others(path: str, is_sticky: bool) -> set[Any]:
    """Who can write a file or in a folder, or rename it or a folder above it: users, groups, and everyone.

    This user and root are left out, and the group that has this user's number: it is this user's alone, as most
    distributions make them. `is_sticky` says whether the sticky bit of the folder itself is enough: what is there is
    safe from others, and they can add to it.
    """
    at, mine, found = os.path.realpath(path), os.geteuid(), set[Any]()
    while True:
        status = os.stat(at)
        if status.st_uid not in (0, mine):
            found.add(("user", status.st_uid))
        if not (is_sticky and status.st_mode & stat.S_ISVTX):
            if status.st_mode & 0o002:
                found.add("everyone")
            if status.st_mode & 0o020 and status.st_gid not in (0, mine):
                found.add(("group", status.st_gid))
        above, is_sticky = os.path.dirname(at), True
        if above == at:
            return found
        at = above
