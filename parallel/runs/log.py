"""`RunLog` writes the numbers of a training run as JSON lines; `read_log` reads them, and `plot_log` draws them.

The last entry of each line is "crc32", a checksum of the line before it and of the checksum of the line above, so that
a changed line is found, and a line that is missing too. The first line of a run begins anew.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self
from weakref import finalize
from zlib import crc32

from autograd.doors import optional
from autograd.errors import FileError, OptionError, RingtapeError, printable, typed_errors
from autograd.files import append_to, opened, writing
from autograd.nn.archive import json_of
from collectives.world import world

from .sinks import Sink, require_sinks
from .values import plain_value, writes

__all__ = ["RunLog", "plot_log", "read_log"]

_STARTED = "started"
_RESERVED = {"RunLog": (_STARTED, "ranks", "crc32"), "RunLog.write": (_STARTED, "time_s", "crc32")}
"""The names that the log itself uses in a line, by the method that writes it."""
_BEGIN = b'{"started"'
_SUM = re.compile(r', "crc32": "([0-9a-f]{8})"\}$')
_END = re.compile(rb'\}$|"crc32": ".{8}..')
"""Of a line that no crash has cut off, also where it is damaged."""
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@typed_errors
class RunLog:
    """A log of a run: a file with one JSON object a line. All ranks call its methods; rank 0 writes.

    Each line is on disk, as far as the program is concerned, when `write` returns, so a run that fails has its log. An
    existing file is continued, as a resumed run does: `read_log` leaves out the steps that a resumed run has repeated.

    Parameters
    ----------
    path : str or path, optional
        The file. Its folder must exist. It may be left out where there are sinks.
    sinks : sequence of functions
        Rank 0 calls each with a dictionary of the values of every line, plain numbers, texts, lists and dictionaries:
        `CSVSink`, `TensorBoardSink`, or a function of yours. They do not get the facts.
    **facts
        What the run is, such as ``lr=0.1``; numbers and texts of the line that each start of a run writes. The log
        itself uses the names ``started``, ``ranks`` and ``crc32``.

    Raises
    ------
    LayoutError
        A fact depends on the rank.
    OptionError
        A fact has a name that the log uses.
    FileError
        Something is there that is no file, or a symbolic link that another user has made; on rank 0.
    WriteError
        The file cannot be written, as by a full disk; on rank 0. It is an OSError, too. The lines before are there.

    Examples
    --------
    >>> import os, tempfile
    >>> from parallel import RunLog, read_log
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "run.jsonl")
    >>> with RunLog(path, lr=0.1) as log:
    ...     for step in range(3):
    ...         log.write(step=step, loss=1 / (step + 1))
    >>> with RunLog(path, lr=0.1) as log:               # resumed after step 1
    ...     log.write(step=2, loss=float("nan"))
    >>> [(row["step"], row["loss"]) for row in read_log(path)]
    [(0, 1.0), (1, 0.5), (2, nan)]
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, sinks: Sequence[Sink] = (), **facts: Any
    ):  # fmt: skip
        self.sinks = require_sinks(sinks, path)
        self.path = None if path is None else os.fspath(path)
        _refuse_reserved("RunLog", facts)
        facts = {name: plain_value(x, name, "RunLog") for name, x in facts.items()}
        self._file: Any = None
        self._is_closed = False
        self._sum = 0  # the checksum of the last line
        if self.path is not None and writes():
            with writing("RunLog", self.path):
                number = append_to(self.path, "RunLog")
                size = os.fstat(number).st_size
                is_torn = size > 0 and os.pread(number, 1, size - 1) != b"\n"  # as after a crash
            self._file = os.fdopen(number, "a", encoding="utf-8")  # closed by `close`
            finalize(self, self._file.close)  # a log that is dropped has written all its lines
            if is_torn:
                self._file.write("\n")
            started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._line({_STARTED: started, "ranks": world().size, **facts})

    def write(self, **values: Any) -> None:
        """Add a line with these values, and the time.

        Parameters
        ----------
        **values
            Numbers, texts, Tensors and arrays, and lists and dictionaries of them; a ``step`` among them says which
            lines a resumed run repeats. A Tensor must be the same on all ranks. Of a plain number, that of rank 0 is
            written. The log itself uses the names ``started``, ``time_s`` and ``crc32``.

        Raises
        ------
        OptionError
            A value has a name that the log uses.
        LayoutError
            A Tensor is an addend (P), another value on each rank (V), a part (Shard) or on one rank only, or a number
            depends on the rank. Raised on all ranks; the message has the collective that makes one value of it.
        ArgumentError, DtypeError
            A value is of another kind.
        RingtapeError
            The log is closed.
        """
        if self._is_closed:
            raise RingtapeError(f"RunLog.write: the log {self.path!r} is closed")
        _refuse_reserved("RunLog.write", values)
        found = {name: plain_value(x, name, "RunLog.write") for name, x in values.items()}
        found["time_s"] = round(time.time(), 3)
        if self._file is not None:
            self._line(found)
        if self.sinks and writes():
            for sink in self.sinks:
                sink(dict(found))

    def _line(self, values: dict[str, Any]) -> None:
        text = json.dumps(_finite(values), allow_nan=False).removesuffix("}")
        self._sum = crc32(text.encode(), self._sum)
        with writing("RunLog", self.path):
            self._file.write(f'{text}, "crc32": "{self._sum:08x}"}}\n')
            self._file.flush()

    def close(self) -> None:
        """Close the file, and the sinks that have a `close`."""
        if not self._is_closed and writes():
            for sink in self.sinks:
                getattr(sink, "close", lambda: None)()
        self._is_closed = True
        if self._file is not None:
            with writing("RunLog", self.path):
                self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RunLog({'' if self.path is None else repr(self.path)}{f', sinks={self.sinks}' * bool(self.sinks)})"


def _refuse_reserved(caller: str, values: Mapping[str, Any]) -> None:
    for name in values:
        if name in _RESERVED[caller]:
            raise OptionError(
                f"{caller}: {name}={values[name]!r} was given; the log itself uses this name: {_RESERVED[caller]}\n"
                f"  fix: another name, such as run_{name}="
            )


def _finite(x: Any) -> Any:
    """A value with texts in the place of NaN and infinities, which JSON does not have."""
    if isinstance(x, float) and not math.isfinite(x):
        return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    return [_finite(value) for value in x] if isinstance(x, list) else x


def _restored(x: Any) -> Any:
    if isinstance(x, str):
        return _NOT_FINITE.get(x, x)
    if isinstance(x, dict):
        return {key: _restored(value) for key, value in x.items()}
    return [_restored(value) for value in x] if isinstance(x, list) else x


def _checked(line: str, before: int | None) -> tuple[dict[str, Any], int | None]:
    """The values of a line, and its checksum, None if it has none.

    `before` is the checksum of the line above, 0 for the first line of a run. Raises ValueError if they do not match.
    """
    row = json_of(line)
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    given = _SUM.search(line)
    if given is None:
        if before:
            raise ValueError("it has no checksum")
        return row, None
    row.pop("crc32", None)
    if before is None or f"{crc32(line[: given.start()].encode(), before):08x}" != given[1]:
        raise ValueError("its checksum is that of another line, or a line before it is missing")
    return row, int(given[1], 16)


@typed_errors
def read_log(path: str | os.PathLike[str], *, repeated: bool = False) -> list[dict[str, Any]]:
    """Read the lines of a `RunLog`, also while the run is going on.

    Parameters
    ----------
    path : str or path
    repeated : bool
        Whether to return all lines. By default, where a run was started again and its first line has a step s, the
        earlier lines of the steps from s on are left out: the run has repeated these steps. Lines without a step stay.

    Returns
    -------
    list of dict
        The values of each line, without those that say that a run has started. "NaN", "Infinity" and "-Infinity" are
        numbers. A line that a crash has cut off is left out.

    Raises
    ------
    FileError
        A line is damaged or missing, or no JSON object.
    """
    rows: list[dict[str, Any]] = []
    has_started = False
    shown = os.fspath(path)
    try:
        with os.fdopen(opened(path), "rb") as file:
            data = file.read()
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EINVAL):
            raise
        raise FileError(f"read_log({shown!r}): {error.strerror}; needed: a file of RunLog") from None
    lines = [(i, line) for i, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    known: int | None = 0  # the checksum of the line above; None if that line has none
    for k, (i, line) in enumerate(lines):
        is_last, begins = k + 1 == len(lines), line.startswith(_BEGIN)
        is_torn = not data.endswith(b"\n") if is_last else lines[k + 1][1].startswith(_BEGIN)
        try:
            row, known = _checked(line.decode(), 0 if begins else known)
        except ValueError as error:
            if is_torn and _END.search(line) is None:
                continue
            raise FileError(
                f"read_log({shown!r}), line {i}: it is damaged, or RunLog has not written it: {error}\n"
                f"  {printable(line[:60].decode(errors='replace'))!r}"
            ) from None
        if _STARTED in row:
            has_started = True
            continue
        if has_started and not repeated and "step" in row:
            rows = [old for old in rows if "step" not in old or old["step"] < row["step"]]
            has_started = False
        rows.append(_restored(row))
    return rows


@typed_errors
def plot_log(
    runs: Any, y: str | Sequence[str] = "loss", *, x: str = "step", file: str | os.PathLike[str] | None = None,
    logarithmic: bool = False,
) -> Any:  # fmt: skip
    """Draw values of one or several logs as curves, with matplotlib, of the extra "runs".

    Parameters
    ----------
    runs : path, list of dict, or mapping of str to these
        A log, the rows of `read_log`, or several of them by the names that the legend shows.
    y : str or sequence of str
        The names of the values. Lines without one are left out of its curve, and a NaN interrupts it.
    x : str
        The name of the value along the horizontal axis.
    file : str or path, optional
        Where to write the picture; its name ends with the format, as ".png" or ".svg".
    logarithmic : bool
        Whether the vertical axis is logarithmic.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    DependencyError
        matplotlib is not installed.
    OptionError
        No line has the values `x` and y.
    """
    figure = optional("matplotlib.figure", "plot_log").Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    names = [y] if isinstance(y, str) else list(y)
    by_run = runs if isinstance(runs, Mapping) else {"": runs}
    for run, given in by_run.items():
        rows = given if isinstance(given, list) else read_log(given)
        for name in names:
            points = [(row[x], row[name]) for row in rows if x in row and name in row]
            if not points:
                has = sorted({key for row in rows for key in row})
                raise OptionError(f"plot_log: no line has {x!r} and {name!r}; the lines have {has}")
            label = ", ".join(text for text in (run, name if len(names) > 1 or not run else "") if text)
            axes.plot(*zip(*points, strict=True), label=label, linewidth=1.2, marker="." if len(points) < 50 else None)
    axes.set(xlabel=x, ylabel=", ".join(names), yscale="log" if logarithmic else "linear")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(by_run) * len(names) > 1:
        axes.legend(frameon=False)
    if file is not None:
        figure.savefig(file, dpi=150)
    return figure
