"""Proving: a program is used only if it leaves the bits of the step itself, for the recorded values and for others.

The state before the recorded run is given back, the program runs, and all that the step can reach must be what the
recorded run has left. Then the step itself runs once more from a state with other values, in arguments, parameters,
the state of optimizers and arrays of the program, and the program must leave the same. On several ranks, where the step
may communicate, the program gets what the calls of Python have given in the recorded run, and results and gradients are
compared.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..compiler.nodes import Refused
from ..compiler.program import Departed
from ..compiler.trace import owner_of
from ..engine.pytree import flatten
from ..engine.state import state
from ..optim.base import Optimizer
from .guards import Form
from .memory import Memory, bits
from .reach import Reach
from .recorder import Recorder
from .tracing import TracedRun, traced_run

__all__ = ["proved_run"]


def proved_run(
    step: Callable[..., Any], form: Form, given: Form, recorder: Recorder, results: Sequence[Any], found: Sequence[Any],
    before: Memory, roots: Sequence[tuple[str, Any]],
) -> tuple[TracedRun | None, str]:  # fmt: skip
    """A recorded step as a program that is proved, or None and why there is none. The state stays as it is.

    Parameters
    ----------
    form, given : Form
        The arguments, and the copies that the recorded run had.
    found : sequence
        The results of the run.
    before : Memory
        Taken before it.
    roots : sequence
        Of the step; see `Reach`.
    """
    reach = Reach(roots)
    left = bits(reach, found, state.distribution.is_alone)
    after = Memory(reach)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            before.give_back()
            made, why = traced_run(recorder, results, given.arrays)
            if made is None:
                return None, why
            before.give_back()
            why = _fault(made, form, reach, left, found)
            if not why and state.distribution.is_alone:
                why = _fault_of_others(made, step, form, before, roots)
            return (None, why) if why else (made, "")
    except Refused as error:
        return None, str(error)
    finally:
        after.give_back()


def _fault(made: TracedRun, form: Form, reach: Reach, left: dict[str, Any], found: Sequence[Any]) -> str:
    """The first difference between the program and the recorded run; "" if there is none."""
    is_alone = state.distribution.is_alone
    try:
        own = bits(reach, made(*form.arrays) if is_alone else made.without_calls(*form.arrays), is_alone)
    except Departed:
        return "a decision on data is not the recorded one"
    if not is_alone:
        names = {f"result {i}" for i in range(len(found))} | {f"{path}.grad" for path in reach.leaves}
        own = {path: x for path, x in own.items() if path in names}
    return next((f"another value: {path}" for path, x in own.items() if left.get(path) != x), "")


def _fault_of_others(
    made: TracedRun, step: Callable[..., Any], form: Form, before: Memory, roots: Sequence[tuple[str, Any]]
) -> str:
    """The first difference between the program and the step for other values; "" if there is none."""
    other = form.other()
    before.give_back()
    reach = Reach(roots)
    _move(reach, made)
    start = Memory(reach)
    try:
        with Recorder(Form(other.structure.rebuild(other.leaves)).arrays, threading.get_ident()):
            result = step(*other.structure.rebuild(other.leaves))
    except Exception:  # a check of the program, an index out of range
        return ""
    left = bits(reach, flatten(result)[0])
    start.give_back()
    try:
        own = bits(reach, made(*other.arrays))
    except Departed:
        return ""
    return next((f"another value where arguments and state have others: {path}" for path, x in own.items()
                 if left.get(path) != x), "")  # fmt: skip


def _move(reach: Reach, made: TracedRun) -> None:
    """Give parameters, the state of optimizers, and arrays of the program other values.

    Other threads may read what the step only reads, as that of a server does, so that it stays where there are some.
    """
    written = {id(out.buffer.array) for node in made.program.nodes for out in node.outs if out.buffer.kind == "state"}
    is_shared = threading.active_count() > 1
    random = np.random.default_rng(1)
    arrays = [leaf.array for leaf in reach.leaves.values()] + list(reach.arrays.values())
    for x in reach.objects:
        if isinstance(x, Optimizer):
            arrays += [v for values in x.state_lists() for v in values]
    for x in {id(x): x for x in arrays if isinstance(x, np.ndarray) and x.dtype.kind == "f"}.values():
        if x.flags.writeable and x.size and (not is_shared or id(owner_of(x)) in written):
            x *= np.asarray(random.uniform(0.9, 1.1, x.shape), x.dtype)
