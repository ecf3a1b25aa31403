"""Replay: the rows of a recorded step as one function of its arguments, which makes the same calls in the same order.

The function is generated: each row is a line, each value a local variable, which is deleted after its last use. So the
memory of a replay is that of the operations, without a tape. Decisions on the arguments come first: where one has
another result, or raises, nothing has changed yet, and the step itself can run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..compiler.memory import Departed
from ..compiler.text import Text, indented
from ..errors import SITES, CaptureError
from ..random.keys import get_state, set_state
from .recorder import Made, Recorder, Row, Slot, accumulate, adopt, read, slots_in

__all__ = ["Departed", "compiled", "in_order"]


def compiled(recorder: Recorder, results: Sequence[Any], count: int) -> Callable[..., Any]:
    """A function of the arrays of `count` arguments, which makes the calls of all rows; it returns a list of results.

    Each of the `results` is a `Slot`, a `Made` or a constant. The function is written at its first call: where there
    is a program, it is seldom needed.
    """
    writer, made = _Writer(recorder.rows, results, count), list[Callable[..., Any]]()

    def replay(*arrays: Any) -> Any:
        if not made:
            made.append(writer.function())
        return made[0](*arrays)

    return replay


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
                "that a replay could not go back; needed: decisions before parameters, state or sums change\n"
                "  fix: decide before; or return the value, and decide after the call"
            )
        has_changed = has_changed or bool(row.changes and not row.can_be_again)
    return [*first.values(), *(row for row in rows if id(row) not in first)]


class _Writer:
    """Writes the source of the function."""

    def __init__(self, rows: Sequence[Row], results: Sequence[Any], count: int):
        self.rows, self.results, self.count = rows, results, count
        self.names = Text()
        self.name = self.names.name
        self._last: dict[int, int] = {}  # by slot: the row of its last use
        for i, row in enumerate(rows):
            self._last |= dict.fromkeys(slots_in((row.args, row.words)), i)
        self._kept = set(slots_in(list(results)))
        self._alone = self._adopted()

    def text(self, x: Any) -> str:
        """An argument as source."""
        kind = x.__class__
        if kind is Slot:
            return f"v{x.at}"
        if kind in (bool, int, type(None)):
            return repr(x)
        if kind is tuple:
            if _is_plain(x):
                return self.name(x)
            return f"({', '.join(map(self.text, x))}{',' if len(x) == 1 else ''})"
        if kind is list:
            return f"[{', '.join(map(self.text, x))}]"
        if kind is dict:
            return f"{{{', '.join(f'{key!r}: {self.text(value)}' for key, value in x.items())}}}"
        if kind is Made:
            return f"{self.name(x.kind)}({', '.join(map(self.text, x.parts))})"
        return self.name(x)

    def function(self) -> Callable[..., Any]:
        """The function. Until something has changed that a second run would change again, errors depart."""
        first = next((i for i, row in enumerate(self.rows) if row.changes and not row.can_be_again), len(self.rows))
        lines: list[str] = []
        sites: dict[int, Any] = {}  # by line of the function, of which the first is `def`
        keys = self.name(set_state) if any(row.changes == "keys" for row in self.rows[:first]) else ""
        if first:
            lines += [f"keys = {self.name(get_state)}()"] if keys else []
            lines.append("try:")
        for i, row in enumerate(self.rows):
            found = self._lines_of(i, row)
            sites |= {len(lines) + 2 + k: row.site for k in range(len(found))}
            lines += indented(found) if i < first else found
            if i == first - 1:
                lines += ["except Exception as error:", *([f"    {keys}(keys)"] if keys else []),
                          f"    raise {self.name(Departed)} from error"]  # fmt: skip
        lines.append(f"return [{', '.join(map(self.text, self.results))}]")
        given = ", ".join(f"v{i}" for i in range(self.count))
        return self.names.function("replay", given, lines, "<captured step>", {SITES: sites})

    def _lines_of(self, i: int, row: Row) -> list[str]:
        """The lines of a row."""
        found: list[str] = []
        last, kept = self._last, self._kept
        call = self._call(row)
        used = {path: at for path, at in row.parts.items() if at in last or at in kept}
        if row.expected:
            found += [f"if {call} != {self.name(row.value)}: raise {self.name(Departed)}"]
        elif row.slot in last or row.slot in kept or used:
            found.append(f"v{row.slot} = {call}")
            found += [f"v{at} = v{row.slot}{''.join(f'[{k}]' for k in path)}" for path, at in used.items()]
        else:
            found.append(call)
        over = {at for at in slots_in((row.args, row.words)) if last[at] == i and at not in kept}
        if used and row.slot not in last and row.slot not in kept:
            over.add(row.slot)
        return [*found, f"del {', '.join(f'v{at}' for at in sorted(over))}"] if over else found

    def _call(self, row: Row) -> str:
        if row.function is read:
            return f"{self.name(row.args[0])}.array"
        function = row.function
        if function is accumulate and row.args[1].__class__ is Slot and row.args[1].at in self._alone:
            function = adopt
        args = [*map(self.text, row.args), *(f"{key}={self.text(x)}" for key, x in row.words.items())]
        return f"{self.name(function)}({', '.join(args)})"

    def _adopted(self) -> set[int]:
        """The slots of cotangents that only their gradient uses, so that it need not copy them."""
        uses: Counter[int] = Counter(at for row in self.rows for at in slots_in((row.args, row.words)))
        values = Counter(id(row.value) for row in self.rows)
        return {
            row.slot for row in self.rows
            if uses[row.slot] == 1 and row.slot not in self._kept and getattr(row.value, "base", row) is None
            and values[id(row.value)] == 1 and row.function is not read
        }  # fmt: skip


def _is_plain(x: Any) -> bool:
    """Whether a container has nothing that needs source of its own."""
    return all(map(_is_plain, x)) if x.__class__ is tuple else x.__class__ not in (list, dict, Made, Slot)
