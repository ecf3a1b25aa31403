"""Replay: the rows of a recorded step as one function of its arguments, which makes the same calls in the same order.

The function is generated: each row is a line, each value a local variable, which is deleted after its last use. So the
memory of a replay is that of the operations, without a tape. Decisions on the arguments come first: where one has
another result, or raises, nothing has changed yet, and the step itself can run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ..compiler.memory import Departed
from ..engine.tensor import Tensor
from ..errors import SITES, CaptureError
from ..random.keys import get_state, set_state
from .recorder import Held, Named, Recorder, Row, Slot, accumulate, adopt, read, slots_in

__all__ = ["Departed", "compiled", "in_order"]


_MARK = "  # row "


class _Line(str):
    """A line of the function.

    Attributes
    ----------
    rows : list or None
        Of a table, which can make the call of the line.
    row : int
        The number of the row of the recorder.
    place : int
        Where the line may move, so that the calls around it are made at once: before (-1) or after them (1).
    changes : bool
        Whether it changes something that a second run would change again.
    """

    rows: Sequence[Any] | None = None
    row = -1
    place = 0
    changes = False


def _line(text: str, place: int = 0, rows: Sequence[Any] | None = None) -> _Line:
    found = _Line(text)
    found.place, found.rows = place, rows
    return found


def compiled(recorder: Recorder, results: Sequence[Any], count: int) -> Callable[..., Any]:
    """A function of the arrays of `count` arguments, which makes the calls of all rows; it returns a list of results.

    Each of the `results` is a `Slot`, a `Held` or a constant.
    """
    return _Writer(recorder.rows, results, count).function()


def in_order(rows: Sequence[Row], count: int) -> list[Row]:
    """The rows of a step of `count` arguments. First come decisions on arguments and data, and what they need.

    Raises
    ------
    CaptureError
        Another decision comes after a change.
    """
    chains: dict[int, dict[int, Row]] = {at: {} for at in range(count)}  # by slot: rows that make it of arguments
    first: dict[int, Row] = {}
    has_changed = False
    for row in rows:
        if row.is_early(chains):
            slots = slots_in((row.args, row.words))
            chain = {key: each for at in slots for key, each in chains[at].items()} | {id(row): row}
            chains |= dict.fromkeys((row.slot, *row.parts.values()), chain)
            if row.expected:
                first |= chain
        elif row.expected and has_changed:
            raise CaptureError(
                f"capture: {row.name} at {row.line} decides on a computed value after something has changed, so "
                "that a replay could not go back; needed: decisions on arguments of the step"
            )
        has_changed = has_changed or bool(row.changes and not row.can_be_again)
    return [*first.values(), *(row for row in rows if id(row) not in first)]


class _Writer:
    """Writes the source of the function."""

    def __init__(self, rows: Sequence[Row], results: Sequence[Any], count: int):
        self.count = count
        self.results = results
        self.rows = rows
        self.names: dict[str, Any] = {"Tensor": Tensor, "Departed": Departed}
        self._of: dict[int, str] = {}
        self._last: dict[int, int] = {}  # by slot: the line of its last use
        for i, row in enumerate(self.rows):
            for at in slots_in((row.args, row.words)):
                self._last[at] = i
        self._kept = set(slots_in(list(results)))
        self.alone = self._adopted(self._kept)

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
        """The body of the function. Until something has changed that a second run would change again, errors depart."""
        first = next((i for i, row in enumerate(self.rows) if row.changes and not row.can_be_again), len(self.rows))
        lines = []
        for i, row in enumerate(self.rows):
            for line in self.lines_of(i, row):
                line.changes = i >= first and line.rows is None and line.place >= 0
                line.row = i
                lines.append(line)
        lines = self.joined(lines)
        start = next((k for k, line in enumerate(lines) if line.changes), len(lines))
        head, tail = ([f"{line}{_MARK}{line.row}" for line in part] for part in (lines[:start], lines[start:]))
        if head:
            keys = any(row.changes == "keys" for row in self.rows[:first])
            head = [
                *([f"keys = {self.name(get_state)}()"] if keys else ()), "try:", *(f"    {line}" for line in head),
                "except Exception as error:", *([f"    {self.name(set_state)}(keys)"] if keys else ()),
                "    raise Departed from error",
            ]  # fmt: skip
        return [*head, *tail, f"return [{', '.join(map(self._result, self.results))}]"]

    def joined(self, lines: list[_Line]) -> list[_Line]:
        """The lines in the order in which they are written."""
        return lines

    def lines_of(self, i: int, row: Row) -> list[_Line]:
        """The lines of a row."""
        found: list[str] = []
        last, kept = self._last, self._kept
        call = self._call(row)
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
        over = {at for at in over if self.is_local(at)}
        lines = list(map(_line, found))
        if over:
            lines.append(_line(f"del {', '.join(f'v{at}' for at in sorted(over))}", 1))
        return lines

    def is_local(self, at: int) -> bool:
        """Whether the value of a slot is a local variable."""
        return True

    def _result(self, x: Any) -> str:
        if x.__class__ is Held:
            return f"Tensor({self.text(x.array)}, {self.name(x.layout)}, None, {x.node})"
        return self.text(x)

    def may_adopt(self, at: int) -> bool:
        """Whether a gradient may be the array of a cotangent, which nothing else uses."""
        return at in self.alone

    def _call(self, row: Row) -> str:
        if row.function is read:
            return f"{self.name(row.args[0])}.array"
        function = row.function
        if function is accumulate and row.args[1].__class__ is Slot and self.may_adopt(row.args[1].at):
            function = adopt
        args = [*map(self.text, row.args), *(f"{key}={self.text(x)}" for key, x in row.words.items())]
        return f"{self.name(function)}({', '.join(args)})"

    def _adopted(self, kept: set[int]) -> set[int]:
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
        used = set(re.findall(r"\w+", "\n".join(body)))  # defaults are fast, but each costs a nanosecond a call
        names = ", ".join([*given, *(f"{name}={name}" for name in self.names if name in used)])
        marks = {i: line.rpartition(_MARK)[2] for i, line in enumerate(body, 2) if _MARK in line}
        source = f"def replay({names}):\n" + "\n".join(f"    {line}" for line in body)
        space = {**self.names, SITES: {i: self.rows[int(mark)].site for i, mark in marks.items()}}
        exec(compile(source, "<captured step>", "exec"), space)
        found: Callable[..., Any] = space["replay"]
        return found


def _is_plain(x: Any) -> bool:
    """Whether a container has nothing that needs source of its own."""
    if x.__class__ is tuple:
        return all(map(_is_plain, x))
    return x.__class__ not in (list, dict, Held, Named, Slot, slice)
