"""The program that a replay runs: one that the user names, or the one of the record, if that is confirmed.

A record may come from anybody. So the program that it names runs only if all of these hold, and a refusal says which
one does not:

- Nobody else may write the record.
- The files of the program have the digests of the record. The text that was read for that is the text that runs.
- The program is none of the library: ``timeit`` would run its arguments.

The folder of the record is entered only if nobody else may write it, or if the user is there.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from autograd.digests import blake2b
from autograd.errors import ArgumentError, is_file_of_program, printable

from ..transports.program_facts import Program, changed_files, changed_variables, is_others, program_of
from ..transports.replays.recorded import Record

__all__ = ["Subject", "generators_of_ranks", "subject_of"]


class Subject(NamedTuple):
    """A program with its text, its arguments and its folder, and the names of the files that have changed."""

    program: Program
    text: bytes
    arguments: list[str]
    folder: str
    changed: list[str]

    def changes(self, record: Record) -> list[str]:
        """The changes since the record was made, in words."""
        found = [f"the text of {', '.join(self.changed)}"] if self.changed else []
        if self.arguments != record.any["arguments"]:
            found.append("the arguments")
        if self.folder != record.any["folder"]:
            found.append("the folder")
        if names := changed_variables(record.any):
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            found.append(f"the variable{'s' * (len(names) > 1)} {', '.join(map(printable, names[:8]))}{more}")
        return found

    @property
    def code(self) -> CodeType:
        return compile(self.text, self.program.path, "exec", dont_inherit=True)

    @property
    def first_line(self) -> int:
        """The first line that runs."""
        return min((line for _, _, line in self.code.co_lines() if line), default=1)

    def run(self, code: CodeType, is_main: bool) -> None:
        """Run the program as ``__main__``. Only where `is_main` it has the module of this name for itself.

        An exit without an error is its end.
        """
        main = ModuleType("__main__")
        package = self.program.module.rpartition(".")[0] if self.program.module else None
        vars(main).update(__file__=self.program.path, __package__=package)
        before = sys.modules["__main__"]
        if is_main:
            sys.modules["__main__"] = main
        try:
            exec(code, vars(main))
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        finally:
            sys.modules["__main__"] = before

    @contextmanager
    def as_recorded(self) -> Iterator[None]:
        """Give the program its arguments and its folders."""
        before, path, folder = sys.argv, sys.path[:], os.getcwd()
        sys.argv = [self.program.path, *self.arguments]
        sys.path.insert(0, self.program.root)
        os.chdir(self.folder)
        try:
            yield
        finally:
            sys.argv, sys.path[:] = before, path
            os.chdir(folder)


def subject_of(record: Record, file: str | None, module: str | None, arguments: list[str]) -> Subject:
    """The program that the user names by its file or its module, or the confirmed one of the record.

    Raises
    ------
    ArgumentError
        There is no such program, or the program of the record is not confirmed.
    """
    is_named = file is not None or module is not None
    program = _named(file, module) if is_named else _of_record(record)
    try:
        with open(program.path, "rb") as opened:
            text = opened.read()
    except OSError as error:
        raise _unconfirmed(record, f"it cannot be read: {error}") from error
    changed = changed_files(record.files, program.root)
    if not is_named:
        name = os.path.relpath(program.path, program.root)
        if record.files.get(name) != blake2b(text, digest_size=16).hexdigest() and name not in changed:
            changed.append(name)
        if changed:
            module = program.module and program.module.removesuffix(".__main__")
            named = f"--program {program.path}" if module is None else f"--module {module}"
            raise _unconfirmed(
                record, f"it has another text than was recorded: {', '.join(map(printable, changed))}",
                f"{printable(named)} runs it as it is now, and tells the first difference",
            )
    return Subject(program, text, arguments or record.any["arguments"], _folder(record), changed)


def _named(file: str | None, module: str | None) -> Program:
    if file is not None:
        if not os.path.isfile(file):
            raise ArgumentError(f"--program {file}: there is no such file")
        return program_of(file)
    assert module is not None
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = importlib.util.find_spec(module)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{module}.__main__")
    except (ImportError, ValueError):
        found = None
    finally:
        sys.path.pop(0)
    if found is None or not found.origin or not os.path.isfile(found.origin):
        raise ArgumentError(f"--module {module}: there is no such module in {os.getcwd()}")
    return program_of(found.origin, found.name)


def _of_record(record: Record) -> Program:
    """The program that a record names, if the record and the place of the program may be trusted."""
    program = program_of(record.any["program"], record.any["module"])
    for path in [record.folder, *record.paths, *(f"{path}.data" for path in record.paths)]:
        if is_others(path):
            raise _unconfirmed(record, f"another user may write {path}")
    if not is_file_of_program(program.path):
        raise _unconfirmed(record, "it is a part of a library, which may do anything with the arguments of the record")
    return program


def _unconfirmed(record: Record, why: str, fix: str = "") -> ArgumentError:
    fix = fix or "--program FILE or --module NAME names the program that you want to run"
    named = printable(record.any["program"])
    return ArgumentError(
        f"the record {record.folder} names a program that is not run, {named}: {printable(why)}\n  fix: {fix}"
    )


def _folder(record: Record) -> str:
    """The folder in which the program runs: that of the record, if it is here."""
    recorded, here = record.any["folder"], os.getcwd()
    if not os.path.isdir(recorded) or os.path.samefile(recorded, here):
        return here
    if is_others(recorded):
        raise ArgumentError(
            f"the program ran in the folder {printable(recorded)}, which another user may write\n"
            f"  fix: cd {printable(recorded)}, and replay there, if you trust what is in it"
        )
    return str(recorded)


@contextmanager
def generators_of_ranks() -> Iterator[None]:
    """Give each thread generators of its own behind the functions of ``numpy.random`` and ``random``.

    Ranks that were processes had theirs. A name is looked up by the module's ``__getattr__``, so a program gets what
    it would get: a method of a generator.
    """
    own = threading.local()
    of_numpy, of_python = np.random.mtrand._rand, getattr(random, "_inst")  # noqa: B009
    modules = {np.random: (of_numpy, np.random.RandomState), random: (of_python, random.Random)}
    before: dict[ModuleType, dict[str, Any]] = {}

    def look_up(module: ModuleType, kind: Any, name: str) -> Any:
        if name not in before[module]:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        generator = vars(own).get(module.__name__)
        if generator is None:
            generator = vars(own)[module.__name__] = kind()
        return getattr(generator, name if hasattr(generator, name) else _METHODS[name])

    for module, (shared, kind) in modules.items():
        names = vars(module)
        before[module] = {
            name: names[name] for name in list(names)
            if getattr(names[name], "__self__", None) is shared or (module is np.random and name in _FUNCTIONS)
        }  # fmt: skip
        for name in before[module]:
            del names[name]
        names["__getattr__"] = lambda name, module=module, kind=kind: look_up(module, kind, name)
    try:
        yield
    finally:
        for module, names in before.items():
            del vars(module)["__getattr__"]
            vars(module).update(names)


_METHODS = {"ranf": "random_sample", "sample": "random_sample"}  # of numpy.random
_FUNCTIONS = frozenset(("seed", *_METHODS))  # of numpy.random, which are no methods there
