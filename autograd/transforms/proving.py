"""Proving: a program is used only if it leaves the bits of the step itself, for the recorded values and for others.

The state before the recorded run is given back, the program runs, and all that the step can reach must be what the
recorded run has left. Then the step itself runs once more from a state with other values, in arguments, parameters,
the state of optimizers and arrays of the program, and the program must leave the same. On several ranks, where the step
may communicate, the program gets what the calls of Python have given in the recorded run, and results and gradients are
compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..compiler.memory import Departed
from ..compiler.nodes import Refused
from ..compiler.trace import owner_of
from ..engine.pytree import flatten
from ..engine.state import state
from ..errors import CaptureError
from ..optim.base import Optimizer
from .guards import Form, others_may_read
from .memory import Beside, Left, Memory, is_large
from .reach import Reach
from .recorder import Recorder
from .tracing import TracedRun, traced_run

__all__ = ["Around", "proved_run"]

_MOST_RUNS, _ROWS = 12, 500  # with other values: a step of few rows is run more often, as each run takes less


class Around(NamedTuple):
    """The memory of what a step can reach, before its recorded run and after it.

    A proof begins with the first, and may leave another state. When all proofs have ended, the second is given back.
    """

    before: Memory
    after: Memory


def proved_run(
    step: Callable[..., Any], form: Form, given: Form, recorder: Recorder, results: Sequence[Any], found: Sequence[Any],
    rows: Callable[..., Any], around: Around, compared: Sequence[Any] = (), anew: Iterable[Any] = (),
) -> tuple[TracedRun | None, str]:  # fmt: skip
    """A recorded step as a program that is proved, or None and why there is none. The state becomes another one.

    Parameters
    ----------
    form, given : Form
        The arguments, and the copies that the recorded run had.
    found : sequence
        The results of the run.
    rows : callable
        Makes the recorded calls.
    around : Around
    compared : sequence of ndarray
        Arrays whose values each replay compares, as constants are computed from them. They keep their values here.
    anew : iterable
        The leaves whose arrays each replay reads anew; see `TracedRun.exchanged`.
    """
    start = perf_counter()
    before, after = around
    left = Left(after.reach, found)
    is_alone = state.distribution.is_alone
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            before.give_back()
            made, why = traced_run(recorder, results, given.arrays, anew)
            if made is not None:
                before.give_back()
                why = _fault(made, form, left)
            if why and is_alone and not others_may_read():  # who may have written meanwhile
                before.give_back()
                _require_rows(rows, form, left)
            runs = min(_MOST_RUNS, max(2, _ROWS // max(1, len(recorder.rows)))) if is_alone else 0
            for seed in range(1, 1 + runs):
                made = None if why else made
                if made is not None:
                    made.program.may_name_rows = seed > 1
                why = _fault_of_others(made, rows, step, form.other(seed, seed > 1), before, compared) or why
            if why or made is None:
                return None, why
            made.seconds = perf_counter() - start
            return made, ""
    except CaptureError:
        raise
    except Refused as error:
        return None, str(error)
    except Exception as error:  # the step has run: a fault in the program leaves the rows
        return None, f"{type(error).__name__}: {error}"


def _require_rows(rows: Callable[..., Any], form: Form, left: Left, of: str = "") -> None:
    """Raise CaptureError if the recorded calls, made once more, leave other values than the step has left."""
    if other := _difference(rows, form, left):
        raise CaptureError(
            f"capture: the recorded calls, made once more{of}, do not leave what the step has left: {other}\n  The "
            "step computes or changes it by NumPy or Python, which is not recorded\n  fix: operations of autograd, "
            "whose result is returned; or call the step itself"
        )


def _difference(run: Callable[..., Any], form: Form, left: Left) -> str:
    """The path of the first value that a run has left other than the step; "" if there is none, or it departs."""
    try:
        return left.difference(run(*form.arrays))
    except Departed:
        return ""


def _fault(made: TracedRun, form: Form, left: Left) -> str:
    """The first difference between the program and the recorded run; "" if there is none."""
    try:
        if state.distribution.is_alone:
            other = left.difference(made(*form.arrays))
        else:
            other = left.difference_of_results(made.without_calls(*form.arrays))
    except Departed:
        return "a decision on data is not the recorded one"
    return other and f"another value: {other}"


def _fault_of_others(
    made: TracedRun | None, rows: Callable[..., Any], step: Callable[..., Any], other: Form, before: Memory,
    compared: Sequence[Any],
) -> str:  # fmt: skip
    """The first difference between the program and the step for other values; "" if there is none.

    Raises
    ------
    CaptureError
        The recorded calls leave other values than the step, too.
    """
    before.give_back()
    _move(made, before, compared)
    start = before.anew(before.reach)
    try:
        with Beside():
            result = step(*other.args)
    except (Exception, SystemExit):  # a check of the program, an index out of range
        return ""
    left = Left(before.reach, flatten(result)[0])
    start.give_back()
    path = "" if made is None else _difference(made, other, left)
    if made is None or path:
        start.give_back()
        _require_rows(rows, other, left, " with other values of arguments and state")
    return path and f"another value where arguments and state have others: {path}"


def _move(made: TracedRun | None, before: Memory, compared: Sequence[Any]) -> None:
    """Give parameters, the state of optimizers, and arrays of the program other values, but for those compared.

    They are given back after the proof. Other threads may read what the step only reads, as that of a server does, so
    that it stays where there are some.
    """
    written = set() if made is None else made.written
    is_shared = others_may_read()
    random = np.random.default_rng(1)
    owners = {id(owner_of(x)) for x in compared}
    for x in _arrays_in(before.reach):
        owner = id(owner_of(x))
        is_free = owner not in owners and before.has(x) and (not is_shared or owner in written)
        if is_free and x.flags.writeable and x.size:
            x *= np.asarray(random.uniform(0.9, 1.1, x.shape), x.dtype)


def _arrays_in(reach: Reach) -> Iterable[Any]:
    """The arrays of floats of parameters, of the state of optimizers and of the program, each once."""
    found = [leaf.array for leaf in reach.leaves.values()]
    found += [x for x in reach.arrays.values() if not is_large(x)]  # others are not given back
    for x in reach.objects:
        if isinstance(x, Optimizer):
            found += [v for values in x.state_lists() for v in values]
    return {id(x): x for x in found if isinstance(x, np.ndarray) and x.dtype.kind == "f"}.values()
