"""The texts of ``tape.show()`` and ``tape.trace()``: the operations of a tape, with values and cotangents.

They read the tape itself. Where a `recorder.Recorder` has heard its operations, its records have the program's lines,
and the values that the tape does not keep.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..engine import events
from ..engine.multi_output import OUTPUT
from ..engine.recording import IMPORT, LEAF, MARK, arrays_of, op_of, options_of, parents_of, result_of, signature_of
from ..engine.state import state
from ..errors import TapeError, short_site
from ..layouts.layout import Layout
from .record import Summary
from .summary import summary

__all__ = ["lines_of", "shown_value", "traced"]

_MOST = 4
"""The number of elements of a value that a line shows."""
_HEADS = ("place", "operation", "operands", "layout", "value", "line")
_SHORT = {"float": "f", "complex": "c", "uint": "u", "int": "i", "bfloat": "bf"}


def shown_value(value: Summary | None) -> str:
    """Return a value in a line: its dtype, its shape, and its first elements or its range.

    Examples
    --------
    >>> import numpy
    >>> from autograd.records.summary import summary
    >>> from autograd.records.text import shown_value
    >>> shown_value(summary(numpy.arange(6.0).reshape(2, 3))), shown_value(summary(numpy.arange(100)))
    ('f64[2,3] 0 1 2 3 ...', 'i64[100] 0 to 99, mean 49.5')
    """
    if value is None:
        return ""
    dtype = value.dtype
    kind = next((short + dtype[len(name) :] for name, short in _SHORT.items() if dtype.startswith(name)), dtype)
    text = f"{kind}[{','.join(map(str, value.shape))}]"
    if value.is_absent:
        return f"{text} on another rank"
    if value.values is not None:
        numbers = [f"{x:.4g}" if not isinstance(x, bool) else str(x) for x in value.values[:_MOST]]
        text += " " + " ".join(numbers) + " ..." * (len(value.values) > _MOST)
    elif value.least is not None:
        text += f" {value.least:.4g} to {value.greatest:.4g}, mean {value.mean:.4g}"
    return text.rstrip() + (f", {value.not_finite} not finite" if value.not_finite and value.values is None else "")


class _Row:
    """One operation of a tape."""

    __slots__ = ("cotangent", "dual", "layout", "line", "name", "operands", "place", "value")

    def __init__(self, place: int, name: str, operands: Sequence[str], layout: Layout | None, value: str, line: str):
        self.place, self.name, self.operands, self.value, self.line = place, name, ", ".join(operands), value, line
        self.layout = "" if layout is None else repr(layout)
        self.dual = "" if layout is None else repr(layout.dual)
        self.cotangent = ""

    def cells(self) -> tuple[str, ...]:
        return str(self.place), self.name, self.operands, self.layout, self.value, self.line


def _rows(tape: Any, outputs: Sequence[Any] = ()) -> list[_Row]:
    """The operations of a tape, in order of execution. The values of `outputs` are known, and those that it keeps."""
    recording = tape.recording
    if recording is None:
        raise TapeError("show of a tape that was never entered; needed: `with Tape() as tape:` first")
    end = len(recording.nodes) if tape.end is None else min(tape.end, len(recording.nodes))
    nodes = {place: recording.nodes[place] for place in range(tape.start, end) if recording.nodes[place] is not None}
    facts = getattr(recording, "records", None)
    found = {} if facts is None else {place: facts.records[i] for place, i in facts.ids.items() if i >= 0}
    recorded = {place: record for place, record in found.items() if record.place == place}  # the tape's own operations
    if nodes or tape.end == tape.start:
        kept = _kept_values(nodes)
        kept.update((y.node, y) for y in outputs if y.tape is recording)
        shown = [p for p, node in nodes.items() if op_of(node) is not MARK and op_of(node) is not OUTPUT]
        return [_row_of_node(p, nodes, kept.get(p), recorded.get(p)) for p in shown]
    if facts is None:
        raise TapeError(
            "show of a tape that backward has released: it holds no operation any more\n"
            "  fix: tape.show() before tape.backward(...), or tape.backward(..., retain=True)"
        )
    rows = []
    for place, record in sorted(recorded.items()):
        if tape.start <= place and (tape.end is None or place < tape.end):
            places = [facts.records[i].place if i >= 0 else None for i in record.operands]
            operands = ["-" if operand is None else f"%{operand}" for operand in places]
            rows.append(_Row(place, record.name, operands, None, shown_value(record.value), _line(record)))
            rows[-1].layout = record.layout
    return rows


def _row_of_node(place: int, nodes: dict[int, Any], value: Any, record: Any) -> _Row:
    node = nodes[place]
    known = None if record is None else record.value
    text = shown_value(summary(value) if known is None else known)
    return _Row(place, _name(node, place), _operands(node, nodes), _layout(node, place), text, _line(record))


def _line(record: Any) -> str:
    return short_site(record.file, record.line) if record is not None and record.file else ""


def _kept_values(nodes: dict[int, Any]) -> dict[int, Any]:
    """By place: the value, where the tape keeps it, as a result or as an operand of a later operation."""
    found: dict[int, Any] = {}
    for place, node in nodes.items():
        op = op_of(node)
        if op is LEAF:
            (found[place],) = arrays_of(node)
            continue
        if getattr(op, "enters", False):
            found.update(zip(range(place - len(arrays_of(node)), place), arrays_of(node), strict=True))
            continue
        y = result_of(node)
        if y is not None and getattr(op, "keeping", None) is None:
            found[place] = y[0] if isinstance(y, tuple) else y
        for parent, x in zip(parents_of(node), arrays_of(node), strict=False):
            if parent >= 0 and x is not None:
                found.setdefault(parent, x)
    return found


def _name(node: Any, place: int) -> str:
    op = op_of(node)
    if op is LEAF:
        (leaf,) = arrays_of(node)
        return f"{'parameter' if type(leaf).__name__ == 'Parameter' else 'leaf'} {leaf.name}".rstrip()
    if (entered := _entered(node, place)) is not None:
        return f"parameter {entered[0].name}".rstrip()
    return "value of another tape" if op is IMPORT else str(op.name)


def _entered(node: Any, place: int) -> tuple[Any, Layout] | None:
    """The parameter and the layout inside, of the node of a parameter that enters a computation."""
    describe = getattr(op_of(node), "entered", None)
    return None if describe is None else describe(node, place)


def _operands(node: Any, nodes: dict[int, Any]) -> list[str]:
    if getattr(op_of(node), "enters", False):
        return []
    found = []
    for place in parents_of(node):
        parent = nodes.get(place)
        if parent is not None and op_of(parent) is OUTPUT:
            found.append(f"%{parents_of(parent)[0]}[{options_of(parent)[0]}]")
        else:
            found.append(f"%{place}" if place >= 0 else "-")
    return found


def _layout(node: Any, place: int) -> Layout | None:
    """The layout of a node's result."""
    op = op_of(node)
    if op is LEAF:
        found: Layout | None = arrays_of(node)[0].layout
        return found
    if (entered := _entered(node, place)) is not None:
        return entered[1]
    out = getattr(signature_of(node), "out", None) or getattr(options_of(node), "out", None)
    return out[0] if isinstance(out, tuple) else out


# -- tables ----------------------------------------------------------------------------------------------------------
def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with columns; the first is aligned to the right. Empty columns are left out."""
    every = [list(row) for row in rows]
    columns = [k for k in range(len(heads)) if any(row[k] for row in every)] or [0]
    width = {k: max(len(heads[k]), *(len(row[k]) for row in every)) if every else len(heads[k]) for k in columns}
    lines = []
    for row in [list(heads), *every]:
        cells = [row[k].rjust(width[k]) if k == 0 else row[k].ljust(width[k]) for k in columns]
        lines.append("  ".join(cells).rstrip())
    return lines


def lines_of(tape: Any) -> list[str]:
    """The lines of ``tape.show()``."""
    return _table(_HEADS, [row.cells() for row in _rows(tape)])


# -- backward ----------------------------------------------------------------------------------------------------------
class _Cotangents:
    """The listener that collects the cotangents of a sweep over one recording."""

    whole = True

    def __init__(self, recording: Any):
        self._recording = recording
        self.arrived: dict[int, Any] = {}
        self.sums: dict[int, Any] = {}

    def __call__(self, phase: str, direction: str, name: str) -> None:
        """Nothing is collected without facts."""

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        if (phase, direction) == ("begin", "backward") and isinstance(facts[0], tuple):
            _, ct, sweep = facts
            if sweep.recording is self._recording:
                self.arrived[sweep.place] = _summary(ct)

    def added(self, place: int, ct: Any, sweep: Any) -> None:
        if sweep.recording is self._recording:
            known = self.sums.get(place)
            self.sums[place] = ct if known is None else known + ct

    def shown(self, place: int) -> str:
        return shown_value(self.arrived.get(place) or _summary(self.sums.get(place)))


def _summary(ct: Any) -> Summary | None:
    found = getattr(ct, "found", None)  # the cotangents of several outputs
    ct = ct if found is None else next((each for each in found.values() if each is not None), None)
    return summary(getattr(ct, "ct", ct))


def traced(tape: Any, outputs: Any, cotangents: Any, retain: bool) -> list[str]:
    """Run backward, and return the lines of ``tape.trace()`` on the first rank; on the others there are none."""
    rows = _rows(tape, outputs if isinstance(outputs, list | tuple) else (outputs,))
    leaves = tape.recording.inputs()
    seen = _Cotangents(tape.recording)
    with events.listening(seen):
        tape.backward(outputs, cotangents, retain=retain)
    for row in rows:
        row.cotangent = " ".join(x for x in (row.dual, seen.shown(row.place)) if x) if seen.shown(row.place) else ""
    gradients = [
        (x.name or "a leaf", "" if x.layout is None else repr(x.layout.dual), shown_value(summary(x.grad)) or "None")
        for x in leaves
    ]  # fmt: skip
    group = state.distribution.group()
    mine = json.dumps(([(*row.cells(), row.cotangent) for row in rows], gradients)).encode()
    told = [json.loads(data) for data in group.exchange(mine, "trace")]
    return [] if group.index else _merged(told)


def _merged(told: list[Any]) -> list[str]:
    """The table of all ranks: the operations by place, with a line for each rank."""
    places = sorted({int(row[0]) for rows, _ in told for row in rows})
    by_rank = [{int(row[0]): row for row in rows} for rows, _ in told]
    several = len(told) > 1
    cells: list[Sequence[str]] = []
    for place in places:
        before: Sequence[str] | None = None
        for rank, rows in enumerate(by_rank):
            if place not in rows:
                continue
            _, name, operands, layout, value, line, ct = rows[place]
            same = (name, operands, layout, line)
            facts = (str(place), *same) if same != before else ("",) * 5
            before = same
            cells.append((*facts, str(rank) if several else "", value, ct))
    lines = _table(("place", "operation", "operands", "layout", "line", "rank", "value", "cotangent"), cells)
    gradients: dict[str, list[tuple[int, str, str]]] = {}
    for rank, (_, found) in enumerate(told):
        for name, layout, value in found:
            gradients.setdefault(name, []).append((rank, layout, value))
    after = [
        (name if k == 0 else "", layout, str(rank) if several else "", value)
        for name, found in gradients.items() for k, (rank, layout, value) in enumerate(found)
    ]  # fmt: skip
    return lines + ["", *_table(("gradient", "layout", "rank", "value"), after)] if after else lines
