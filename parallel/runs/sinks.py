"""Further places for the lines of a `RunLog`: a table of comma-separated values, and event files of TensorBoard.

A sink is a function of the values of one line, or an object that is called like one and may have a `close`. Rank 0
calls it. `log` has the file of JSON lines itself.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from autograd.doors import optional
from autograd.errors import ArgumentError, check_callable, short, typed_errors
from autograd.files import append_to, opened, replacing, writing

__all__ = ["CSVSink", "Sink", "TensorBoardSink", "require_sinks"]

Sink = Callable[[dict[str, Any]], object]
"""The type of a sink: a function of the values of a line by name, plain numbers, texts, lists and dictionaries."""


def require_sinks(sinks: Any, path: Any) -> list[Sink]:
    """The argument `sinks` of a log; ArgumentError if one is no function, or if the log has no place at all."""
    if isinstance(sinks, str) or callable(sinks) or not hasattr(sinks, "__iter__"):
        raise ArgumentError(
            f"RunLog: sinks={sinks!r} was given; needed: a list of functions, CSVSink and TensorBoardSink\n"
            "  fix: sinks=[CSVSink('run.csv')]"
        )
    found = list(sinks)
    for sink in found:
        check_callable(sink, "RunLog: a sink")
    if path is None and not found:
        raise ArgumentError('RunLog: neither a path nor a sink was given\n  fix: RunLog("run.jsonl")')
    return found


@typed_errors
class CSVSink:
    """Writes the lines of a `RunLog` as rows of comma-separated values, whose first row has the names.

    A file that exists is continued. Where a line has a value that no line before has, the file gets a column, and is
    written again; a line without a value has an empty place. Lists and dictionaries are written as JSON.

    Parameters
    ----------
    path : str or path
        The file. Its folder must exist.

    Raises
    ------
    WriteError, FileError
        The file cannot be written, or no regular file is there; on rank 0, at the first line.

    Examples
    --------
    >>> import os, tempfile
    >>> from parallel import CSVSink, RunLog
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "run.csv")
    >>> with RunLog(sinks=[CSVSink(path)]) as log:
    ...     log.write(step=0, loss=1.0)
    ...     log.write(step=1, loss=0.5, accuracy=0.9)
    >>> [line.split(",")[::3] for line in open(path)]
    [['step', 'accuracy\\n'], ['0', '\\n'], ['1', '0.9\\n']]
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = os.fspath(path)
        self._file: Any = None
        self._names: list[str] = []

    def __call__(self, values: dict[str, Any]) -> None:
        _require_values(values, self)
        with writing("CSVSink", self.path):
            if self._file is None:
                self._open()
            new = [name for name in values if name not in self._names]
            if new:
                self._add_columns(new)
            self._file.write(_row([values.get(name, "") for name in self._names]))
            self._file.flush()

    def _open(self) -> None:
        self._file = os.fdopen(append_to(self.path, "CSVSink"), "a", newline="", encoding="utf-8")
        self._names = next(self._rows(), [])

    def _rows(self) -> Iterator[list[str]]:
        with os.fdopen(opened(self.path), newline="", encoding="utf-8") as file:
            yield from csv.reader(file)

    def _add_columns(self, new: list[str]) -> None:
        rows = self._rows()
        next(rows, None)
        self._names = [*self._names, *new]
        with replacing(self.path, "CSVSink") as file:
            file.write(_row(self._names).encode())
            for row in rows:
                file.write(_row([*row, *[""] * (len(self._names) - len(row))]).encode())
        self._file.close()
        self._file = os.fdopen(append_to(self.path, "CSVSink"), "a", newline="", encoding="utf-8")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __repr__(self) -> str:
        return f"CSVSink({self.path!r})"


def _row(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(
        json.dumps(x) if isinstance(x, list | dict) else x for x in values
    )
    return text.getvalue()


@typed_errors
class TensorBoardSink:
    """Writes the numbers of a `RunLog` as event files of TensorBoard, with the package tensorboardX (the extra "runs").

    The value ``step`` of a line is the step; without one the lines are counted. A dictionary ``losses={"a": 1.0}`` has
    the tag ``losses/a``, an element of a list ``norms/0``. Texts are texts.

    Parameters
    ----------
    directory : str or path
        The folder of the run, which is made if it is not there.

    Raises
    ------
    DependencyError
        tensorboardX is not installed.

    Examples
    --------
    >>> import importlib.util, tempfile
    >>> from parallel import RunLog, TensorBoardSink
    >>> if importlib.util.find_spec("tensorboardX"):
    ...     with tempfile.TemporaryDirectory() as folder, RunLog(sinks=[TensorBoardSink(folder)]) as log:
    ...         log.write(step=0, loss=1.0)
    """

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = os.fspath(directory)
        self._library = optional("tensorboardX", "TensorBoardSink")
        self._writer: Any = None
        self._count = 0

    def __call__(self, values: dict[str, Any]) -> None:
        _require_values(values, self)
        step, time_s = values.get("step", self._count), values.get("time_s")
        if not isinstance(step, int | float):
            raise ArgumentError(f"{self!r}: step={step!r} was given; needed: a number")
        with writing("TensorBoardSink", self.directory):
            if self._writer is None:
                self._writer = self._library.SummaryWriter(logdir=self.directory)
            for tag, value in _flat({k: v for k, v in values.items() if k not in ("step", "time_s")}):
                if isinstance(value, str):
                    self._writer.add_text(tag, value, step, walltime=time_s)
                elif value is not None:
                    self._writer.add_scalar(tag, float(value), step, walltime=time_s)
            self._writer.flush()
        self._count += 1

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __repr__(self) -> str:
        return f"TensorBoardSink({self.directory!r})"


def _require_values(values: Any, sink: Any) -> None:
    if not isinstance(values, dict):
        raise ArgumentError(f"{sink!r}: {short(values)} was given; needed: a dictionary of the values of a line")


def _flat(values: Any, tag: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a tree, each with its tag."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else None
    if items is None:
        yield tag, values
        return
    for key, value in items:
        yield from _flat(value, f"{tag}/{key}" if tag else str(key))
