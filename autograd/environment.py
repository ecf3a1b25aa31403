"""The environment variables of ringtape: their names, values and meanings, in one table. They are read here only.

A variable that is misspelt, or that has a value which it does not take, would have no effect, and nobody would know.
The variables that a module reads when it is imported are checked then, and all of them, with the names, when the first
world is made (`problems`).
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["VARIABLES", "Variable", "is_traceback_full", "of_record", "problems", "seconds", "value"]


class Variable(NamedTuple):
    """A variable: its meaning, its values (() for those of a form), and the one that holds if it is not set.

    `is_replayed` is whether a replay takes the value from the record. It changes what a run computes or reports, and is
    one of `values` or a number: a record may come from anybody, so it names no file and no library.
    """

    meaning: str
    values: tuple[str, ...] = ()
    default: str = ""
    form: str = "seconds"  # any other one is checked by its reader
    is_replayed: bool = False

    @property
    def row(self) -> str:
        """The end of its row in the table of docs/checking.md."""
        values = ", ".join(f"`{each}`" for each in self.values) or self.form
        return f"{self.meaning} | {values} | {f'`{self.default}`' if self.default else 'none'} |"


VARIABLES: dict[str, Variable] = {
    "RINGTAPE_CHECK": Variable("the checking mode", ("off", "first", "always", "ranks"), "first", is_replayed=True),
    "RINGTAPE_SCALE": Variable(
        "what becomes of a gradient that is probably a power of the number of ranks too large or too small: "
        "[Scale](guides/scale.md)", ("warn", "error", "off"), "warn",
        is_replayed=True,
    ),
    "RINGTAPE_TIMEOUT_S": Variable(
        "how long a rank may wait for another one, in a call, to make or close a world, or at the end of its program; "
        "if it is not set, 300 s in mode `ranks` (not at the end), otherwise no limit",
        is_replayed=True,
    ),
    "RINGTAPE_REPORT_S": Variable(
        "how long a rank waits before the waits of all ranks are printed, while the job goes on",
        default="60",
    ),
    "RINGTAPE_SHARED_LIMIT_S": Variable(
        'how long a rank waits in shared memory (`algorithm="shared"`) before it raises `RankFailed`',
        default="600",
    ),
    "RINGTAPE_STOPPED_S": Variable(
        "where ranks go on after a death (Open MPI under `--with-ft ulfm`): how long a process may be stopped, or hold "
        "the interpreter's lock, before the supervisor ends it",
        default="30",
    ),
    "RINGTAPE_GUARD": Variable(
        "`0`: importing `collectives` installs no exception hooks and starts no supervisor; [Jobs](jobs.md) states "
        "what is lost", ("0", "1"), "1",
    ),
    "RINGTAPE_LAUNCHER": Variable("`none`: ignore the launcher; each process is a world of its own", ("none",)),
    "RINGTAPE_TRACEBACK": Variable(
        "`full`: show ringtape's own frames in the traceback of its errors, too", ("full",)
    ),
    "RINGTAPE_COMPILED": Variable("`0`: do not use the kernels compiled by Numba", ("0", "1"), "1",
                                  is_replayed=True),
    "RINGTAPE_BLAS": Variable(
        "the library that computes large products of matrices on the processor; if it is not set, NumPy's. The same "
        "for all ranks; `python -m collectives doctor --details` measures what `mkl` would bring",
        form="`mkl`, or the path of a library with CBLAS's functions",
    ),
    "RINGTAPE_DEVICE_TRANSPORT": Variable(
        "what carries arrays of a GPU between ranks; if it is not set, the best that works, as `python -m collectives "
        "doctor` prints", ("staged", "ipc", "nccl", "mpi"),
    ),
    "RINGTAPE_ALGORITHMS": Variable(
        'the file with the tables of `algorithm="auto"`, which `python -m collectives tune` writes; if it is not set, '
        "`ringtape/algorithms.json` in the user's cache directory", form="a path, or `rule` for none",
    ),
    "RINGTAPE_FAULTS": Variable("faults to inject, for tests: [Faults](guides/faults.md)", form="`kill:2@17`, ..."),
    "RINGTAPE_RECORD": Variable(
        "the folder in which each rank records its communication: [Replay](guides/replay.md)", form="a path"
    ),
    "RINGTAPE_RECORD_DATA": Variable("`1`: record the results of the calls, and not only their order", ("0", "1"), "0"),
    "RINGTAPE_START": Variable("the number of this start of the job, by `parallel.launch`", default="1", form="an int"),
    "RINGTAPE_DONE": Variable("the file that `parallel.launch.finished` writes; `--done` sets it", form="a path"),
}  # fmt: skip
"""The variables, in the order of their documentation."""

_OTHERS = (
    "RINGTAPE_RANK_PID",  # a rank sets it, for its child processes
    "RINGTAPE_PYTHON_", "RINGTAPE_CLUSTER", "RINGTAPE_HIPS_", "RINGTAPE_SITE", "RINGTAPE_MARK",  # of the tests
)  # fmt: skip


def value(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the value of a variable, its default if it is not set; ValueError if it does not take that value.

    Examples
    --------
    >>> value("RINGTAPE_GUARD", {"RINGTAPE_GUARD": "0"}), value("RINGTAPE_GUARD", {})
    ('0', '1')
    """
    given = environment.get(name, "") or VARIABLES[name].default
    if problem := _problem(name, given):
        raise ValueError(f"{name}={given!r}: needed {problem}")
    return given


def seconds(name: str, environment: Mapping[str, str] = os.environ) -> float | None:
    """Return a number of seconds, None if there is neither a value nor a default; ValueError if it is not positive.

    Examples
    --------
    >>> seconds("RINGTAPE_REPORT_S", {"RINGTAPE_REPORT_S": "5"}), seconds("RINGTAPE_TIMEOUT_S", {})
    (5.0, None)
    """
    given = value(name, environment)
    return float(given) if given else None


def is_traceback_full() -> bool:
    """Whether tracebacks show all frames. A wrong value is no error here, because one is being reported already."""
    return os.environ.get("RINGTAPE_TRACEBACK") == "full"


def problems(environment: Mapping[str, str] = os.environ) -> dict[str, tuple[str, str]]:
    """Return what is wrong with the variables whose names begin with RINGTAPE: by name the text, and the fix.

    Examples
    --------
    >>> problems({"RINGTAPE_CHEK": "always", "RINGTAPE_GUARD": "0"})
    {'RINGTAPE_CHEK': ("RINGTAPE_CHEK='always': ringtape reads no such variable", 'export RINGTAPE_CHECK=always')}
    """
    found = {}
    for name, given in sorted(environment.items()):
        if not name.upper().startswith("RINGTAPE") or name.startswith(_OTHERS):
            continue
        if name not in VARIABLES:
            names = {known.removeprefix("RINGTAPE_"): known for known in VARIABLES}
            near = [names[each] for each in difflib.get_close_matches(name.upper().removeprefix("RINGTAPE_"), names, 1)]
            fix = f"export {near[0]}={given}" if near else f"unset {name}; there are {', '.join(VARIABLES)}"
            found[name] = f"{name}={given!r}: ringtape reads no such variable", fix
        elif problem := _problem(name, given):
            found[name] = f"{name}={given!r}: needed {problem}", f"export {name}=VALUE with {problem}"
    return found


def of_record(recorded: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a record that its replay takes.

    Examples
    --------
    >>> of_record({"RINGTAPE_CHECK": "always", "RINGTAPE_SCALE": "x", "RINGTAPE_BLAS": "/tmp/a.so", "PATH": "/tmp"})
    {'RINGTAPE_CHECK': 'always'}
    """
    return {
        name: recorded[name] for name, variable in VARIABLES.items()
        if variable.is_replayed and recorded.get(name) and not _problem(name, recorded[name])
    }  # fmt: skip


def _problem(name: str, given: str) -> str:
    """The values needed in place of a wrong one; "" if it is right."""
    values = VARIABLES[name].values
    if not given or given in values or VARIABLES[name].form != "seconds":
        return ""
    if values:
        return "one of " * (len(values) > 2) + (", " if len(values) > 2 else " or ").join(map(repr, values))
    try:
        is_right = 0 < float(given) < math.inf
    except ValueError:
        is_right = False
    return "" if is_right else "a positive number of seconds"
