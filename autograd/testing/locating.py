"""Finds the operation whose derivative is wrong, after the check of a function that calls it has failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..arrays.device import is_array, is_inexact
from ..engine.primitive import Primitive
from ..engine.state import outside_mesh
from ..engine.tensor import TENSORS, Tensor
from ..errors import short_site
from ..records.record import OperationRecord
from ..records.recorder import Recorder
from .coordinates import Function, OnAllRanks, from_any_rank, raw
from .report import GradientMismatch

__all__ = ["locate"]

Check = Callable[[OnAllRanks, list[np.ndarray]], None]

_MOST = 3
"""The number of operations that a message names."""


class _Call(NamedTuple):
    """A call of an operation, with the values of its operands."""

    operation: Any
    operands: list[Any]
    options: Any
    record: OperationRecord

    @property
    def name(self) -> str:
        return str(self.operation.name)

    @property
    def title(self) -> str:
        declared = getattr(self.operation, "declared", None)
        where = ""
        if declared is not None and not declared.is_own:
            where = f", declared at {short_site(declared.file, declared.line)}"
        within = f" in {'.'.join(self.record.scope)}" if self.record.scope else ""
        return f"the derivative of operation {self.name!r}, called at {_site(self.record)}{within}{where}"

    def differentiable(self) -> list[int]:
        """The operands that have derivatives."""
        n = len(self.operands)
        letters = self.operation.letters(n) if isinstance(self.operation, Primitive) else "N" * n
        return [i for i, x in enumerate(self.operands) if letters[i] != "S" and is_array(x) and is_inexact(x.dtype)]

    def alone(self) -> tuple[Function, list[Any]]:
        """The operation as a function of these operands, which returns one array, and the operands."""
        at = self.differentiable()

        def function(*xs: Any) -> Any:
            full = list(self.operands)
            for i, x in zip(at, xs, strict=True):
                full[i] = x
            if isinstance(self.operation, Primitive):
                y = self.operation(*full, options=self.options)
            else:
                y = self.operation(*full, **self.options)
            if not isinstance(y, tuple | list):
                return y
            return ops.concatenate([ops.ravel(part) for part in y if is_inexact(raw(part).dtype)])

        return function, [np.asarray(self.operands[i]) for i in at]


class _Calls(Recorder):
    """Collects the calls of operations, and the names of the collectives, which other ranks would have to call, too."""

    whole = False  # an operation that can be computed by several simpler ones is: each is checked

    def __init__(self) -> None:
        super().__init__(values=False)
        self.calls: list[_Call] = []
        self.untested: dict[str, None] = {}

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        super().see(phase, direction, name, facts)
        if phase != "end" or direction != "forward":
            return
        assert self.ended is not None
        if len(facts) == 4 and all(x.__class__ in TENSORS or not isinstance(x, tuple | list | dict) for x in facts[1]):
            self.calls.append(_Call(facts[0], [raw(x) for x in facts[1]], facts[3], self.ended))
        else:
            self.untested[f"{name} at {_site(self.ended)}"] = None


def _site(record: OperationRecord) -> str:
    return short_site(record.file, record.line)


def locate(error: GradientMismatch, f: OnAllRanks, xs: Sequence[np.ndarray], check: Check) -> None:
    """Add to the error of a function the operations whose derivatives are wrong, in order. Each is checked by itself.

    Under a mesh all ranks call it. Each checks its own calls, and all get the text of the first rank that finds one.

    Parameters
    ----------
    error : GradientMismatch
    f, xs
        The function that was checked, and its arguments.
    check : callable
        The check that failed, of another function and arguments.
    """
    if isinstance(f.f, Primitive):
        return
    calls = _Calls()
    with calls.listening():
        f.f(*[x if x.__class__ in TENSORS else Tensor(x.copy()) for x in f.spread(xs)])
    faults: dict[str, str] = {}
    with outside_mesh(), np.errstate(all="ignore"):
        for call in calls.calls:
            if call.title not in faults and (fault := _fault(call, check)) is not None:
                faults[call.title] = fault
    first = list(faults.items())[:_MOST]
    text = from_any_rank("".join(f"\n  wrong: {title}\n    {fault}" for title, fault in first))
    if not text:
        text = f"\n  the derivative of each of the {len(calls.calls)} operations that it calls is right by itself"
        if calls.untested:
            text += f"; not tested: {', '.join(list(calls.untested)[:_MOST])} (a collective: collectives.testing.check)"
        else:
            text += ": is a value used without its gradient, as by stop_gradient?"
    error.extend(text)


def _fault(call: _Call, check: Check) -> str | None:
    """The finding of the check of an operation's derivative alone; None if it is right."""
    function, operands = call.alone()
    if not operands:
        return None
    try:
        check(*OnAllRanks.at(function, operands, call.name))
    except GradientMismatch as error:
        names = [call.operation.operand_name(i) if isinstance(call.operation, Primitive) else f"argument {i}"
                 for i in call.differentiable()]  # fmt: skip
        lines = re.sub(r"\bargument (\d+)", lambda found: names[int(found[1])], error.reason).splitlines()
        size = f"; the largest error is {error.size:.2g} of the largest element" if error.size else ""
        return "\n    ".join([lines[0] + size, *lines[1:3]])
    except Exception:  # the operation cannot be checked by itself at these values
        return None
    return None
