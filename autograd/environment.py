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

__all__ = ["VARIABLES", "Variable", "is_traceback_full", "problems", "seconds", "value"]


class Variable(NamedTuple):
    """A variable: what it does, its values (() for a number of seconds), and those that its documentation shows."""

    meaning: str
    values: tuple[str, ...] = ()
    shown: str = ""


VARIABLES: dict[str, Variable] = {
    "RINGTAPE_CHECK": Variable("the checking mode", ("off", "first", "always", "ranks")),
    "RINGTAPE_TIMEOUT_S": Variable(
        "how long a rank may wait for another one, in a call, to make or close a world, or at the end of its program; "
        "default: 300 s in mode `ranks` (not at the end), otherwise no limit"
    ),
    "RINGTAPE_REPORT_S": Variable(
        "how long a rank waits before the waits of all ranks are printed, while the job goes on; default: 60 s"
    ),
    "RINGTAPE_SHARED_LIMIT_S": Variable(
        'how long a rank waits in shared memory (`algorithm="shared"`) before it raises `RankFailed`; default: 600 s'
    ),
    "RINGTAPE_GUARD": Variable(
        "importing `collectives` installs no exception hooks and starts no supervisor; [Jobs](jobs.md) states what is "
        "lost", ("0", "1"), "0",
    ),
    "RINGTAPE_LAUNCHER": Variable("ignore the launcher: each process is a world of its own", ("none",), "none"),
    "RINGTAPE_TRACEBACK": Variable(
        "show ringtape's own frames in the traceback of its errors, too", ("full",), "full"
    ),
    "RINGTAPE_COMPILED": Variable("do not use the kernels compiled by Numba", ("0", "1"), "0"),
    "RINGTAPE_DEVICE_TRANSPORT": Variable(
        "what carries arrays of a GPU between ranks: `staged`, `ipc`, `nccl` or `mpi`; default: the best that works, "
        "as `python -m collectives doctor` prints", ("staged", "ipc", "nccl", "mpi"),
    ),
}  # fmt: skip
"""The variables, in the order of their documentation."""

_OTHERS = (
    "RINGTAPE_RANK_PID",  # a rank sets it, for its child processes
    "RINGTAPE_PYTHON_", "RINGTAPE_CLUSTER", "RINGTAPE_HIPS_", "RINGTAPE_SITE", "RINGTAPE_FAULT",  # of the tests
)  # fmt: skip


def value(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the value of a variable, "" if it is not set; ValueError if it does not take that value.

    Examples
    --------
    >>> value("RINGTAPE_GUARD", {"RINGTAPE_GUARD": "0"}), value("RINGTAPE_GUARD", {})
    ('0', '')
    """
    given = environment.get(name, "")
    if problem := _problem(name, given):
        raise ValueError(f"{name}={given!r}: needed {problem}")
    return given


def seconds(name: str, default_s: float | None, environment: Mapping[str, str] = os.environ) -> float | None:
    """Return a number of seconds, `default_s` if the variable is not set; ValueError if it is no positive number.

    Examples
    --------
    >>> seconds("RINGTAPE_REPORT_S", 60.0, {"RINGTAPE_REPORT_S": "5"}), seconds("RINGTAPE_REPORT_S", 60.0, {})
    (5.0, 60.0)
    """
    given = value(name, environment)
    return float(given) if given else default_s


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
            near = difflib.get_close_matches(name.upper(), VARIABLES, 1, 0.8)
            fix = f"export {near[0]}={given}" if near else f"unset {name}; there are {', '.join(VARIABLES)}"
            found[name] = f"{name}={given!r}: ringtape reads no such variable", fix
        elif problem := _problem(name, given):
            found[name] = f"{name}={given!r}: needed {problem}", f"export {name}=VALUE with {problem}"
    return found


def _problem(name: str, given: str) -> str:
    """What is needed in place of a value; "" if it is right."""
    values = VARIABLES[name].values
    if not given or given in values:
        return ""
    if values:
        return "one of " * (len(values) > 2) + (", " if len(values) > 2 else " or ").join(map(repr, values))
    try:
        is_right = 0 < float(given) < math.inf
    except ValueError:
        is_right = False
    return "" if is_right else "a positive number of seconds"
