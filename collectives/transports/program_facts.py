"""The facts of a recorded program: how it is run again, its text, and on what its bits depend.

A record has digests of the files of the program, and the names and digests of all variables of its environment, but not
their values. So a replay can say which of them have changed. It may come from anybody: `checked` refuses facts of
another form, and `Origin` says whether the program that it names is one that this user has.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from autograd import environment
from autograd.digests import blake2b
from autograd.errors import is_file_of_program
from autograd.machine import environment_of_bits, processor

from .job import JOBS, job_of
from .protocol import Communicator

__all__ = [
    "NUMBERS_OF_THREADS", "Program", "bits", "changed_files", "changed_variables", "checked", "facts", "is_others",
    "new_files", "program_of",
]  # fmt: skip

NUMBERS_OF_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables of BLAS on which bits depend: beside ringtape's own, the only ones whose values a record has."""

_MOST_THREADS = 4096
_OF_LAUNCHERS = ("PMI", "OMPI_", "MPI", "HYDI_", "HYDRA_", "MV2_", "FLUX_", "JSM_", "SLURM_", "PALS_", "ALPS_", "PRTE_",
                 "UCX_", "GFORTRAN_UNBUFFERED_", "RINGTAPE_RECORD", "RINGTAPE_RANK_PID")  # fmt: skip
_OF_SHELLS = ("_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST")


class Program(NamedTuple):
    """A program that can be run: its file, its module if it was run as ``python -m``, and the folder of its files."""

    path: str
    module: str | None
    root: str

    @property
    def shown(self) -> str:
        """As the command line names it."""
        return self.path if self.module is None else f"-m {self.module.removesuffix('.__main__')}"


def program_of(path: str, module: str | None = None) -> Program:
    """A program whose files lie in the folder of its file, or, of a module, of its outermost package."""
    path = os.path.abspath(os.path.realpath(path) if os.path.islink(path) else path)  # as Python finds its modules
    root = os.path.dirname(path)
    for _ in range(module.count(".") if module else 0):
        root = os.path.dirname(root)
    return Program(path, module, root)


def _main() -> Program | None:
    """The program of this process; None in an interactive session."""
    main = sys.modules.get("__main__")
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return None if path is None else program_of(path, spec.name if spec else None)


def facts(everyone: Communicator, kind: str, data: bool, block: str | None) -> dict[str, Any]:
    """The facts of a rank's program."""
    program, salt = _main(), os.urandom(8).hex()
    given = os.environ
    threads = {name: given[name] for name in NUMBERS_OF_THREADS if name in given}
    return {
        "rank": int(everyone.index), "size": int(everyone.size), "kind": kind, "hosts": list(map(int, everyone.hosts)),
        "domains": [list(map(int, level)) for level in everyone.domains],
        "data": data, "block": block, "program": None if program is None else program.path,
        "module": None if program is None else program.module, "arguments": sys.argv[1:], "folder": os.getcwd(),
        "files": new_files({}),
        "environment": environment.of_record(given) | threads,
        "salt": salt, "variables": {name: _digest_of_value(salt, value) for name, value in given.items()},
        "bits": bits(),
    }  # fmt: skip


def bits() -> dict[str, Any]:
    """Facts on which the bits of a computation depend beside the program."""
    return {"processor": processor(), "python": platform.python_version(), **environment_of_bits()}


# -- text --------------------------------------------------------------------------------------------------------------
def new_files(known: Iterable[str]) -> dict[str, str]:
    """The digests of the files of this program that are imported and not yet known, by their places in its folder."""
    program = _main()
    if program is None:
        return {}
    inside, known, found = os.path.join(program.root, ""), set(known), {}
    paths = [program.path, *(getattr(module, "__file__", None) for module in sys.modules.copy().values())]
    for path in paths:
        if not isinstance(path, str) or not path.startswith(inside) or not is_file_of_program(path):
            continue
        name = path.removeprefix(inside)
        if name not in known and (digest := _digest_of_file(path)):
            found[name] = digest
    return found


@cache  # by the path, as the file was first
def _digest_of_file(path: str) -> str:
    """The digest of a file when a record has first seen it, as it was imported; a later edit does not change that."""
    return _present_digest(path)


def _present_digest(path: str) -> str:
    """The digest of a file; "" if there is none."""
    try:
        with open(path, "rb") as file:
            return blake2b(file.read(), digest_size=16).hexdigest()
    except OSError:
        return ""


def changed_files(files: Mapping[str, str], root: str) -> list[str]:
    """The recorded files whose text in a folder is another one, and those that are gone."""
    found = []
    for name, digest in sorted(files.items()):
        present = _present_digest(os.path.join(root, name))
        if present != digest:
            found.append(name if present else f"{name} (gone)")
    return found


# -- variables ---------------------------------------------------------------------------------------------------------
def _digest_of_value(salt: str, value: str) -> str:
    """Tells whether a value has changed; 32 bits, which do not tell the value."""
    return blake2b(os.fsencode(value), digest_size=4, salt=bytes.fromhex(salt)).hexdigest()


def changed_variables(of: Mapping[str, Any], present: Mapping[str, str] = os.environ) -> list[str]:
    """The names of the variables that have another value than in a record, without those of launchers and shells."""
    recorded, salt = of["variables"], of["salt"]
    return sorted(
        name for name in {*recorded, *present}
        if not name.startswith(_OF_LAUNCHERS) and name not in _OF_SHELLS
        and recorded.get(name) != (_digest_of_value(salt, present[name]) if name in present else None)
    )  # fmt: skip


# -- facts of a record -------------------------------------------------------------------------------------------------
def checked(line: Any) -> dict[str, Any]:
    """The facts in the first line of a rank's record, of which each has its form; a ValueError says which has not.

    Variables that a replay does not take from a record are left out.
    """
    _check_job(line)
    _check_program(line)
    for name in ("environment", "variables", "bits"):
        if type(line[name]) is not dict:
            raise ValueError(f"{name} that are no table")
    for name in ("environment", "variables"):
        if not all(_is_text(k) and _is_text(v) for k, v in line[name].items()):
            raise ValueError(f"{name} that are no texts")
    if len(bytes.fromhex(line["salt"])) > blake2b.SALT_SIZE:
        raise ValueError("a salt of another length")
    given = line["environment"]
    threads = {k: given[k] for k in NUMBERS_OF_THREADS if k in given and _is_number_of_threads(given[k])}
    return line | {"files": checked_files(line["files"]), "environment": environment.of_record(given) | threads}


def _check_job(line: Any) -> None:
    rank, size, hosts = line["rank"], line["size"], line["hosts"]
    if not (_is_int(rank) and _is_int(size) and 0 <= rank < size == len(hosts)):
        raise ValueError(f"rank {rank!r} of {size!r}")
    if not all(_is_int(host) and 0 <= host < size for host in hosts):
        raise ValueError("hosts that are no ranks")
    if not all(len(level) == size and all(_is_int(each) and 0 <= each <= size for each in level)
               for level in line["domains"]):  # fmt: skip
        raise ValueError("domains that are no ranks")
    kinds = [kind for kind in JOBS if job_of(kind).has_processes or job_of(kind).runs_programs]
    if line["kind"] not in kinds or type(line["data"]) is not bool:
        raise ValueError(f"data {line['data']!r}, kind {line['kind']!r}")
    if line["block"] is not None and not _is_text(line["block"]):
        raise ValueError(f"block {line['block']!r}")


def _check_program(line: Any) -> None:
    program, module, folder = line["program"], line["module"], line["folder"]
    if program is not None and not (_is_text(program) and os.path.isabs(program)):
        raise ValueError("a program that is no path")
    if module is not None and not (_is_text(module) and all(part.isidentifier() for part in module.split("."))):
        raise ValueError("a module that is no name")
    if not (_is_text(folder) and os.path.isabs(folder)):
        raise ValueError("a folder that is no path")
    if type(line["arguments"]) is not list or not all(map(_is_text, line["arguments"])):
        raise ValueError("arguments that are no texts")


def checked_files(files: Any) -> dict[str, str]:
    """The digests of files inside of a folder."""
    for name, digest in files.items():
        parts = name.split(os.sep)
        if not (_is_text(name) and _is_text(digest) and digest) or ".." in parts or "" in parts:
            raise ValueError("a file that is not inside of the program's folder")
    return dict(files)


def _is_int(x: Any) -> bool:
    return type(x) is int


def _is_text(x: Any) -> bool:
    return isinstance(x, str) and "\0" not in x


def _is_number_of_threads(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 5 and 0 < int(text) <= _MOST_THREADS


# -- trust -------------------------------------------------------------------------------------------------------------
def is_others(path: str) -> bool:
    """Whether another user than this one and root owns a file or a folder, or may write it."""
    found = os.stat(path)
    return found.st_uid not in (0, os.getuid()) or bool(stat.S_IMODE(found.st_mode) & 0o022)
