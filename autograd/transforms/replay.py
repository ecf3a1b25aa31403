"""Replay: the rows of a recorded step as one function of its arguments, which makes the same calls in the same order.

The function is generated: each row is a line, each value a local variable, which is deleted after its last use. So the
memory of a replay is that of the operations, without a tape. Decisions on the arguments come first: where one has
another result, or raises, nothing has changed yet, and the step itself can run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import kernels
from ..compiler.program import Departed
from ..engine.tensor import Tensor
from ..errors import SITES, CaptureError
from ..random.keys import get_state, set_state
from .lowering import Lowering, Update
from .recorder import Held, Named, Recorder, Row, Slot, accumulate, adopt, read, slots_in
from .table import Table

__all__ = ["Departed", "compiled", "in_order", "lowered"]


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


def lowered(
    recorder: Recorder, results: Sequence[Any], inputs: Sequence[Any], exact: Callable[..., Any]
) -> tuple[Callable[..., Any], Lowering] | None:
    """The same with lowered rows; None if no row is. Where it does not hold, it calls `exact`."""
    alone = _Writer(recorder.rows, results, len(inputs)).alone
    lowering = Lowering(recorder, inputs, results, alone)
    while lowering.unwritten:
        lowering = Lowering(recorder, inputs, results, alone, lowering.barred | lowering.unwritten)
    if not any(lowering.calls.values()):
        return None
    table = Table(lowering, inputs)
    return _LoweredWriter(recorder.rows, results, len(inputs), lowering, table, exact).function(), lowering


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


class _LoweredWriter(_Writer):
    """Writes the source of a function with lowered rows."""

    def __init__(
        self, rows: Sequence[Row], results: Sequence[Any], count: int, lowering: Lowering, table: Table,
        exact: Callable[..., Any],
    ):  # fmt: skip
        super().__init__(rows, results, count)
        self.lowering, self.table, self.exact = lowering, table, exact
        self._begun = False
        self.name(table)  # a global of the function, which keeps what the addresses in rows are of
        self._locals = {id(token): name for name, token in lowering.gradients.fields.items()}
        done = [row for row in rows if id(row) in lowering.calls or id(row) in lowering.updates]
        self._unmade = {at: (row, path) for row in done for path, at in {(): row.slot, **row.parts}.items()}

    def is_local(self, at: int) -> bool:
        return at not in self.lowering.arrays and at not in self._unmade

    def text(self, x: Any) -> str:
        if x.__class__ is Slot and x.at in self.lowering.arrays:
            array = self.lowering.arrays[x.at]
            name = self._locals.get(id(array)) or self.name(array)
            return name if array.ndim else f"{name}[()]"
        if x.__class__ is Slot and x.at in self._unmade:
            return self._rebuilt(*self._unmade[x.at])
        return self.lowering.gradients.text_of(x) or super().text(x)

    def _rebuilt(self, row: Row, path: tuple[int, ...]) -> str:
        """A container among the results of a lowered row, which does not make it, for a row that is not lowered."""
        value = row.value
        for k in path:
            value = value[k]
        parts = []
        for k, part in enumerate(value):
            at = row.parts.get((*path, k))
            parts.append(self.text(part if at is None else Slot(at)))
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def _result(self, x: Any) -> str:
        slots = slots_in(x)
        if any(at in self.lowering.arrays for at in slots):
            array = self.lowering.arrays[slots[0]]
            text = self.text(Slot(slots[0])) + ("" if array.ndim == 0 else ".copy()")
            return f"Tensor({text}, {self.name(x.layout)}, None, {x.node})" if x.__class__ is Held else text
        if slots and self.lowering.shares(slots[0]):
            text = f"{self.text(Slot(slots[0]))}.copy()"
            return f"Tensor({text}, {self.name(x.layout)}, None, {x.node})" if x.__class__ is Held else text
        return super()._result(x)

    def may_adopt(self, at: int) -> bool:
        return super().may_adopt(at) and at not in self.lowering.arrays and not self.lowering.shares(at)

    def lines(self) -> list[str]:
        body = super().lines()
        guards = []
        seen = set()
        members = [pair for update in self.lowering.updates.values() for pair in update.members]
        for leaf, array in (*self.lowering.leaves, *members):
            if id(leaf) not in seen:
                seen.add(id(leaf))
                guards.append(f"{self.name(leaf)}.array is not {self.name(array)}")
        guards += [f"{self.name(leaf)}.uses" for leaf, _ in members]
        guards += [f"not {self.name(update.holds)}()" for update in self.lowering.updates.values()]
        given = ", ".join(f"v{i}" for i in range(self.count))
        copies = [f"{self.name(np.copyto)}({self.name(own)}, v{at})" for at, own in self.lowering.inputs]
        head = [f"if {' or '.join(guards)}: return {self.name(self.exact)}({given})"] if guards else []
        text = "\n".join(body)
        unused = {f"{name} = gradients[{name!r}]" for name in self._locals.values()
                  if len(re.findall(rf"\b{name}\b", text)) == 2}  # fmt: skip
        return [*head, *copies, *(line for line in body if line.partition(_MARK)[0].strip() not in unused)]

    def lines_of(self, i: int, row: Row) -> list[_Line]:
        lowering = self.lowering
        key = id(row)
        if row.function is read and row.slot in lowering.arrays:
            return []
        if row.function is accumulate and row.args[1].__class__ is Slot and row.args[1].at in lowering.arrays:
            array = lowering.arrays[row.args[1].at]
            if id(array) in self._locals:
                leaf = self.name(row.args[0])
                return [_line(f"{leaf}._grad = {self._locals[id(array)]}; {leaf}.used = None", 1)]
        if key in lowering.updates:
            update = lowering.updates[key]
            return [_line(f"{self.name(update.begin)}()"), *self._lines_of_update(update)]
        return self._lowered_lines(i, row) if key in lowering.calls else super().lines_of(i, row)

    def _lines_of_update(self, update: Update) -> list[_Line]:
        rows = self.table.rows.get(id(update))
        if rows:
            return [_line("", rows=rows)]
        return [_line(self._line(function, args)) for function, args, _, _ in update.calls]

    def _lowered_lines(self, i: int, row: Row) -> list[_Line]:
        """The calls of a lowered row. Before the first that writes a gradient the array of all gradients is made."""
        found, lowering = [], self.lowering
        for call in lowering.calls[id(row)]:
            function, args, word, required = call
            line = self._line(function, args, word)
            if not self._begun and any(map(lowering.gradients.text_of, (*args, word))):
                self._begun = True
                gradients = lowering.gradients
                found.append(_line(f"gradients = {self.name(np.empty)}((), {self.name(gradients.kind)})", -1))
                found += [_line(f"{name} = gradients[{name!r}]", -1) for name in self._locals.values()]
            text = f"if not {line}: raise Departed" if required else line
            found.append(_line(text, rows=self.table.rows.get(id(call))))
        over = {at for at in slots_in((row.args, row.words)) if self._last[at] == i and at not in self._kept}
        over = {at for at in over if self.is_local(at) and at >= self.count}
        if over:
            found.append(_line(f"del {', '.join(f'v{at}' for at in sorted(over))}", 1))
        return found

    def joined(self, lines: list[_Line]) -> list[_Line]:
        """The lines, with one walk of a table for the calls between those that cannot move."""
        found: list[_Line] = []
        parts: dict[int, list[_Line]] = {-1: [], 0: [], 1: []}
        for line in [*lines, None]:
            if line is not None and (line.rows is not None or line.place):
                parts[line.place].append(line)
                continue
            found += [*parts[-1], *self._walk(parts[0]), *parts[1]]
            parts = {-1: [], 0: [], 1: []}
            found += [] if line is None else [line]
        return found

    def _walk(self, calls: list[_Line]) -> list[_Line]:
        """One walk for calls that are rows of a table. For one call alone it is not worth it."""
        if len(calls) < 2 and all(calls):
            return calls
        rows = [row for call in calls for row in call.rows or ()]
        walk, *numbers = self.table.walk(rows)
        given = ", ".join([*map(str, numbers), "id(gradients)" if numbers[-1] else "0"])
        found = _line(f"if faults := {self.name(walk)}({given}): {self.name(_tell)}(faults)")
        found.row = calls[0].row
        return [found]

    def _line(self, function: Any, args: Any, out: Any = None) -> str:
        given = [*map(self.text, args), *([] if out is None else [f"out={self.text(out)}"])]
        return f"{self.name(function)}({', '.join(given)})"


def _tell(faults: int) -> None:
    """Depart where a loop gave up; else report floating-point errors of a walk, as NumPy is told to (`numpy.errstate`).

    An operation with the same error makes NumPy do so.
    """
    if faults < 0:
        raise Departed
    walk = kernels.walker()
    if faults & walk.DIVISION:
        np.divide(1.0, 0.0)
    if faults & walk.OVERFLOW:
        np.multiply(1e300, 1e300)
    if faults & walk.INVALID:
        np.subtract(np.inf, np.inf)


def _is_plain(x: Any) -> bool:
    """Whether a container has nothing that needs source of its own."""
    if x.__class__ is tuple:
        return all(map(_is_plain, x))
    return x.__class__ not in (list, dict, Held, Named, Slot, slice)
