"""Replay: the rows of a recorded step as one function of its arguments, which makes the same calls in the same order.

The function is generated: each row is a line, each value a local variable, which is deleted after its last use. So the
memory of a replay is that of the operations, without a tape. Decisions on the arguments come first: where one has
another result, or raises, nothing has changed yet, and the step itself can run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..engine.recording import UNRECORDED
from ..engine.tensor import Tensor
from ..errors import CaptureError, RingtapeError
from .recorder import Held, Named, Recorder, Row, Slot, accumulate, read

__all__ = ["Departed", "compiled"]


class Departed(Exception):
    """A decision on data has another result than in the recorded step. Nothing has changed."""


def compiled(recorder: Recorder, rows: Sequence[Row], results: Sequence[Any], count: int) -> Callable[..., Any]:
    """A function of the arrays of `count` arguments, which makes the calls of `rows`; it returns a list of results.

    Each of the `results` is a `Slot`, a `Held` or a constant.
    """
    return _Writer(rows, results, count).function()


def slots_in(x: Any) -> list[int]:
    """The slots in the arguments of a row, or in results."""
    kind = x.__class__
    if kind is Slot:
        return [x.at]
    if kind is tuple or kind is list:
        return [at for part in x for at in slots_in(part)]
    if kind is dict:
        return slots_in(list(x.values()))
    if kind is Held:
        return slots_in(x.array)
    if kind is Named:
        return slots_in(x.parts)
    if kind is slice:
        return slots_in((x.start, x.stop, x.step))
    return []


class _Writer:
    """Writes the source of the function."""

    def __init__(self, rows: Sequence[Row], results: Sequence[Any], count: int):
        self.count = count
        self.results = results
        self.rows = self._in_order(rows)
        self.names: dict[str, Any] = {"Tensor": Tensor, "Departed": Departed, "UNRECORDED": UNRECORDED}
        self._of: dict[int, str] = {}

    def _in_order(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, decisions that depend on arguments only first."""
        given = set(range(self.count))
        first: list[Row] = []
        for row in rows:
            if (row.expected or row.function is read) and given.issuperset(slots_in((row.args, row.words))):
                if row.expected:
                    first.append(row)
        chosen = set(map(id, first))
        changed = False
        for row in rows:
            if row.expected and id(row) not in chosen and changed:
                raise CaptureError(
                    f"capture: {row.name} at {row.line} decides on a computed value after something has changed, so "
                    "that a replay could not go back; needed: decisions on arguments of the step"
                )
            changed = changed or row.changes
        return [*first, *(row for row in rows if id(row) not in chosen)]

    def name(self, value: Any) -> str:
        """The name of a constant."""
        found = self._of.get(id(value))
        if found is None:
            found = self._of[id(value)] = f"c{len(self._of)}"
            self.names[found] = value
        return found

    def text(self, x: Any) -> str:
        """An argument as source."""
        kind = x.__class__
        if kind is Slot:
            return f"v{x.at}"
        if kind in (bool, int, type(None)):
            return repr(x)
        if kind is tuple:
            if not slots_in(x) and _is_plain(x):
                return self.name(x)
            return f"({', '.join(map(self.text, x))}{',' if len(x) == 1 else ''})"
        if kind is list:
            return f"[{', '.join(map(self.text, x))}]"
        if kind is dict:
            return f"{{{', '.join(f'{key!r}: {self.text(value)}' for key, value in x.items())}}}"
        if kind is Held:
            return f"Tensor({self.text(x.array)}, {self.name(x.layout)})"
        if kind is Named:
            return f"{self.name(x.kind)}({', '.join(map(self.text, x.parts))})"
        if kind is slice and slots_in(x):
            return f"slice({self.text(x.start)}, {self.text(x.stop)}, {self.text(x.step)})"
        return self.name(x)

    def lines(self) -> list[str]:
        """The body of the function."""
        last: dict[int, int] = {}  # by slot: the line of its last use
        for i, row in enumerate(self.rows):
            for at in slots_in((row.args, row.words)):
                last[at] = i
        kept = set(slots_in(list(self.results)))
        found: list[str] = []
        alone = self._adopted(last, kept)
        for i, row in enumerate(self.rows):
            call = self._call(row, alone)
            used = {path: at for path, at in row.parts.items() if at in last or at in kept}
            if row.expected:
                found += [f"if {call} != {self.name(row.value)}: raise Departed"]
            elif row.slot in last or row.slot in kept or used:
                found.append(f"v{row.slot} = {call}")
                found += [f"v{at} = v{row.slot}{''.join(f'[{k}]' for k in path)}" for path, at in used.items()]
            else:
                found.append(call)
            over = {at for at in slots_in((row.args, row.words)) if last[at] == i and at not in kept}
            if used and row.slot not in last and row.slot not in kept:
                over.add(row.slot)
            if over:
                found.append(f"del {', '.join(f'v{at}' for at in sorted(over))}")
        found.append(f"return [{', '.join(map(self._result, self.results))}]")
        return found

    def _result(self, x: Any) -> str:
        if x.__class__ is Held:
            return f"Tensor({self.text(x.array)}, {self.name(x.layout)}, None, UNRECORDED)"
        return self.text(x)

    def _call(self, row: Row, alone: set[int]) -> str:
        if row.function is read:
            return f"{self.name(row.args[0])}.array"
        function = row.function
        if function is accumulate and row.args[1].__class__ is Slot and row.args[1].at in alone:
            function = _adopt
        args = [*map(self.text, row.args), *(f"{key}={self.text(x)}" for key, x in row.words.items())]
        return f"{self.name(function)}({', '.join(args)})"

    def _adopted(self, last: dict[int, int], kept: set[int]) -> set[int]:
        """The slots of cotangents that only their gradient uses, so that it need not copy them."""
        made = {row.slot: row for row in self.rows}
        uses: dict[int, int] = {}
        for row in self.rows:
            for at in slots_in((row.args, row.words)):
                uses[at] = uses.get(at, 0) + 1
        of_calls: dict[int, int] = {}
        for row in self.rows:
            of_calls[id(row.value)] = of_calls.get(id(row.value), 0) + 1
        return {
            at for at, row in made.items()
            if uses.get(at) == 1 and at not in kept and getattr(row.value, "base", row) is None
            and of_calls[id(row.value)] == 1 and row.function is not read
        }  # fmt: skip

    def function(self) -> Callable[..., Any]:
        given = [f"v{i}" for i in range(self.count)]
        body = self.lines()
        names = ", ".join([*given, *(f"{name}={name}" for name in self.names)])
        source = f"def replay({names}):\n" + "\n".join(f"    {line}" for line in body)
        space = dict(self.names)
        exec(compile(source, "<captured step>", "exec"), space)
        found: Callable[..., Any] = space["replay"]
        return found


def _adopt(leaf: Any, ct: Any) -> Any:
    """`accumulate` of a cotangent that nothing else uses: the first one is the gradient itself."""
    if leaf._grad is None and ct.dtype is leaf.array.dtype:
        leaf.used = None
        leaf._grad = ct
        return ct
    return accumulate(leaf, ct)


def _is_plain(x: Any) -> bool:
    """Whether a container has nothing that needs source of its own."""
    if x.__class__ is tuple:
        return all(map(_is_plain, x))
    return x.__class__ not in (list, dict, Held, Named, Slot, slice)


def departs(error: BaseException) -> bool:
    """Whether an error of a decision ends a replay before anything has changed."""
    return isinstance(error, Departed | RingtapeError)
