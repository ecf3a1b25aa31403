"""Run programs in forks of a Python that has already imported NumPy and more: by themselves, or as ranks of an MPI job.

A start of Python takes a fifth of a second, nearly all of it imports, and most programs of the tests are shorter. The
parent of the forks, `parent.py`, is a process of its own: it has one thread and no ranks.

A rank of a job must be a child of the MPI launcher, which a fork is not. So the launcher starts `rank.py`, which loads
nothing. It passes its environment, its standard streams and its connection to the launcher to a fork, and ends as the
fork does. Each job has a parent of its own, a fork of the first one: to its ranks it is the process that has launched
them. What forks cannot show stays with programs that are started as usual: all ranks have the same hash seed here.
"""

from __future__ import annotations

import atexit
import functools
import marshal
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A program must import a name to use it, and none of these packages adds a public name to another one: a program that
# forgets an import is still seen. `parallel` would hide it, because it loads modules of the other packages.
_OF_PROGRAMS = ("autograd.numpy", "collectives")

# Those of ranks have the layers, too, whose imports take 0.2 s: each of them also runs by itself, or is of the tests.
# mpi4py loads MPI only when `mpi4py.MPI` is imported.
_OF_RANKS = (*_OF_PROGRAMS, "autograd.nn", "autograd.optim", "collectives.job.supervisor_client", "mpi4py",
             "parallel.trainer", "parallel.checkpoint", "pytest")  # fmt: skip


def run_program(
    code: str, name: str, *arguments: str, limit_s: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the text of a program to its end, as `python -W error` does.

    Parameters
    ----------
    code : str
    name : str
        The file that errors name. The program imports from its folder.
    *arguments : str
        What follows the name in `sys.argv`.
    limit_s : float
        After so many seconds the program is killed.
    **environment : str
        Variables beside those of this process. The library and Python have read theirs if they do so at their import.

    Raises
    ------
    subprocess.TimeoutExpired
    """
    parent = _parent("-W", "error", modules=_OF_PROGRAMS)
    return _run(parent, code, [name, *arguments], os.getcwd(), "", limit_s, environment)


def run_file(path: Path, *arguments: str, limit_s: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a file to its end; see `run_program`."""
    return run_program(path.read_text(), str(path), *arguments, limit_s=limit_s, **environment)


def run_python(
    *arguments: str, folder: Path = ROOT, typed: str = "", limit_s: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module ...``, ``python -c code ...`` or ``python file ...`` to its end; see `run_program`.

    It runs in `folder` and reads `typed`. ringtape's variables are read anew.
    """
    code, command = (arguments[1], ["-c", *arguments[2:]]) if arguments[0] == "-c" else (None, list(arguments))
    environment.setdefault("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    return _run(_parent(modules=_OF_RANKS), code, command, str(folder), typed, limit_s, environment)


def _run(
    parent: _Parent, code: str | None, command: list[str], cwd: str, typed: str, limit_s: float,
    environment: dict[str, str],
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        read, out, err = Path(folder, "in"), Path(folder, "out"), Path(folder, "err")
        read.write_text(typed)
        with open(read) as in_file, open(out, "w") as out_file, open(err, "w") as err_file:
            files = [file.fileno() for file in (in_file, out_file, err_file)]
            variables = {os.fsencode(key): os.fsencode(value) for key, value in {**os.environ, **environment}.items()}
            connection = parent.ask((code, command, variables, cwd), files)
        with connection:
            connection.settimeout(limit_s)
            try:
                answer = connection.recv(4)
            except TimeoutError:
                connection.settimeout(None)
                connection.shutdown(socket.SHUT_WR)  # the parent kills the program, and answers when it has ended
                connection.recv(4)
                raise subprocess.TimeoutExpired(command, limit_s) from None
        if not answer:
            raise RuntimeError("the parent of the forks has ended, before a program or with it; stderr says why")
        status = os.waitstatus_to_exitcode(int.from_bytes(answer, "little"))
        return subprocess.CompletedProcess(command, status, out.read_text(), err.read_text())


@contextmanager
def ranks() -> Iterator[list[str]]:
    """Give the command in the place of ``python``, with which MPI's launcher starts the ranks of one job as forks.

    Ranks that are left at the end of the block are killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "socket"))
        with _listening(path) as listening:
            connection = _parent(modules=_OF_RANKS).ask((None, [], {}, ""), [listening.fileno()])
        with connection:
            yield [sys.executable, "-I", "-S", str(Path(__file__).with_name("rank.py")), path]
            connection.shutdown(socket.SHUT_WR)
            connection.recv(4)


def _listening(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    return listening


class _Parent:
    """A process that forks. It ends when its input is closed."""

    def __init__(self, options: Sequence[str], modules: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = str(Path(self._folder.name, "socket"))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with _listening(self._path) as listening:
            self._process = subprocess.Popen(
                [sys.executable, *options, Path(__file__).with_name("parent.py"), str(listening.fileno()), *modules],
                env={**os.environ, "PYTHONPATH": path}, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True,
                pass_fds=[listening.fileno()],
            )  # fmt: skip
        atexit.register(self._process.communicate)  # close its input and wait for its end

    def ask(self, given: tuple[str | None, list[str], dict[bytes, bytes], str], files: list[int]) -> socket.socket:
        """Send a program, or a socket for the ranks of a job. The connection returns the status at the end."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        data = marshal.dumps(given)
        socket.send_fds(connection, [len(data).to_bytes(4, "little")], files)
        connection.sendall(data)
        return connection


@functools.cache
def _parent(*options: str, modules: Sequence[str]) -> _Parent:
    return _Parent(options, modules)
