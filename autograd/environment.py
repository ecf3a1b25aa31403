"""The environment variables of ringtape: their names, values and meanings, in one table. They are read here only.

A variable that is misspelt, or that has a value which it does not take, would have no effect, and nobody would know.
The variables that a module reads when it is imported are checked then, and all of them, with the names, when the first
world is made (`problems`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from .errors import OptionError

__all__ = ["FORMS", "VARIABLES", "Variable", "of_record", "problems", "seconds", "value", "whole"]


class Variable(NamedTuple):
    """A variable: its meaning, its values (() for those of a form), and the one that holds if it is not set.

    `is_replayed` is whether a replay takes the value from the record. It changes what a run computes or reports, and is
    one of `values` or a number: a record may come from anybody, so it names no file and no library.
    """

    meaning: str
    values: tuple[str, ...] = ()
    default: str = ""
    form: str = "seconds"  # one of `FORMS`; any other one is checked by its reader
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
    "RINGTAPE_IMPORT_S": Variable(
        "how long ranks wait for others of their host that have not imported `collectives`, and may have ended, before "
        "the job ends", default="300",
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
    "RINGTAPE_COMPILED": Variable("`0`: do not use the kernels compiled by Numba and LLVM", ("0", "1"), "1",
                                  is_replayed=True),
    "RINGTAPE_CODE": Variable(
        "the folder with the machine code of compiled loops; if it is not set, `ringtape/code` in the user's cache "
        "directory. It must be yours alone", form="a path, or `none`: compile in each process",
    ),
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
    "RINGTAPE_PLACE": Variable(
        'where this host is, from the outside inwards, for `algorithm="hierarchical"`; if it is not set, the switches '
        "that Slurm names in `SLURM_TOPOLOGY_ADDR`", form="`rack3`, or `row1/rack3`: the last 4 parts count",
    ),
    "RINGTAPE_FAULTS": Variable("faults to inject, for tests: [Faults](guides/faults.md)", form="`kill:2@17`, ..."),
    "RINGTAPE_RECORD": Variable(
        "the folder in which each rank records its communication: [Replay](guides/replay.md)", form="a path"
    ),
    "RINGTAPE_RECORD_DATA": Variable("`1`: record the results of the calls, and not only their order", ("0", "1"), "0"),
    "RINGTAPE_AUDIT": Variable(
        "what `python -m collectives audit collect` asks of the programs that it runs: [Audit](guides/audit.md)",
        form="JSON",
    ),
    "RINGTAPE_START": Variable(
        "the number of this start of the job, by `parallel.launch`", default="1", form="a whole number"
    ),
    "RINGTAPE_DONE": Variable("the file that `parallel.launch.finished` writes; `--done` sets it", form="a path"),
}  # fmt: skip
"""The variables, in the order of their documentation."""

_MOST = 1e9  # 30 years; the clocks of threads take no more than 292
FORMS: dict[str, tuple[Callable[[str], float], float, str]] = {
    "seconds": (float, 0, f"a positive number of seconds, at most {_MOST:.0e}"),
    "a whole number": (int, 0.5, f"a whole number from 1 to {_MOST:.0e}"),
}
"""By form of a value: its type, the number that it must be above, and the text of an error."""

_SHOWN = 60  # characters of a value, and no number has more

_OTHERS = (
    "RINGTAPE_RANK_PID",  # a rank sets it, for its child processes
    "RINGTAPE_PYTHON_", "RINGTAPE_CLUSTER", "RINGTAPE_HIPS_", "RINGTAPE_SITE", "RINGTAPE_MARK",  # of the tests
)  # fmt: skip


def value(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the value of a variable, its default if it is not set; OptionError if it does not take that value.

    Examples
    --------
    >>> value("RINGTAPE_GUARD", {"RINGTAPE_GUARD": "0"}), value("RINGTAPE_GUARD", {})
    ('0', '1')
    """
    given = environment.get(name, "") or VARIABLES[name].default
    if problem := _problem(name, given):
        raise OptionError("\n  fix: ".join((_text(name, given, problem), _fix(name))))
    return given


def whole(name: str, environment: Mapping[str, str] = os.environ) -> int:
    """Return a whole number; OptionError if it is none."""
    return int(value(name, environment))


def seconds(name: str, environment: Mapping[str, str] = os.environ) -> float | None:
    """Return a number of seconds, None if there is neither a value nor a default; OptionError if it is not positive.

    Examples
    --------
    >>> seconds("RINGTAPE_REPORT_S", {"RINGTAPE_REPORT_S": "5"}), seconds("RINGTAPE_TIMEOUT_S", {})
    (5.0, None)
    """
    given = value(name, environment)
    return float(given) if given else None


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
            found[name] = _text(name, given, problem), _fix(name)
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


def _text(name: str, given: str, problem: str) -> str:
    shown = repr(given) if len(given) <= _SHOWN else f"{given[:_SHOWN]!r}..."
    return f"{name}={shown}: needed {problem}"


def _fix(name: str) -> str:
    variable = VARIABLES[name]
    if variable.default:
        return f"export {name}={variable.default}, or unset {name}"
    return f"unset {name}, or export {name}={variable.values[0] if variable.values else 300}"


def _problem(name: str, given: str) -> str:
    """The values needed in place of a wrong one; "" if it is right."""
    values, form = VARIABLES[name].values, VARIABLES[name].form
    if not given or given in values or form not in FORMS:
        return ""
    if values:
        return "one of " * (len(values) > 2) + (", " if len(values) > 2 else " or ").join(map(repr, values))
    kind, above, needed = FORMS[form]
    try:
        is_right = given.isascii() and "_" not in given and len(given) <= _SHOWN and above < kind(given) <= _MOST
    except ValueError:
        is_right = False
    return "" if is_right else needed
