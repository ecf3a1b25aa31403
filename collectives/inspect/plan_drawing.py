"""Draw a plan as SVG: a row for each rank; forward above, backward below; communications between the rows.

Consecutive local operations are one box. A new box begins at the first operation of a module, which is known from the
names of the parameters. The tooltip of a box lists its operations. The colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from .graph import Communication, Operation

__all__ = ["drawn"]

Operations = list[list[Operation]]
"""Every rank's, in order of execution."""

_LEFT, _GAP, _BOX, _ROW, _PAD = 78, 22, 34, 66, 8
_CHARACTER = 6.0  # the width of one, at most, in the font of the boxes
_SHOWN = 3  # the most operations of a box that are named
_LEGEND = {
    "parameter": "parameters and other leaves",
    "local": "local operations",
    "communication": "communication",
    "idle": "sends nothing in this direction",
}
_STYLE = """
text{font-family:Helvetica,Arial,sans-serif;font-size:11px;fill:#1f2328}
.title{font-size:13px;font-weight:bold}.faint{fill:#59636e}.problem{fill:#c02f2f}
.page{fill:#ffffff}.row{stroke:#d1d9e0}
.parameter{fill:#cfe2f7;stroke:#4c78a8}.local{fill:#eef0f2;stroke:#a0a8b0}
.communication{fill:#fbd5d2;stroke:#d1443c}.idle{fill:#ffffff;stroke:#d1443c;stroke-dasharray:4 3}
.line{fill:none;stroke:#d1443c;stroke-width:2}.head{fill:#d1443c}
"""
_DARK = """
text{fill:#e6edf3}.faint{fill:#9da7b1}.problem{fill:#ff8f85}.page{fill:#0d1117}.row{stroke:#3d444d}
.parameter{fill:#1c3a5a;stroke:#6ea6dd}.local{fill:#262c34;stroke:#768390}
.communication{fill:#5c2320;stroke:#ff7b72}.idle{fill:#0d1117;stroke:#ff7b72}
.line{stroke:#ff7b72}.head{fill:#ff7b72}
"""


@dataclass
class Box:
    """Consecutive operations of one rank that are drawn together; one operation if it communicates."""

    operations: list[Operation]
    kind: str
    module: str = ""
    communication: int = -1
    unnamed: set[int] = field(default_factory=set)

    @property
    def is_alone(self) -> bool:
        """Whether it has one operation by itself: a communication, or the wait for one."""
        return self.communication >= 0 or self.operations[0].waits_for >= 0

    def names(self) -> list[str]:
        """The operations, repeated ones once."""
        return list(dict.fromkeys(o.name for o in self.operations if o.place not in self.unnamed))


def _boxes(operations: list[Operation]) -> list[Box]:
    """Fold one rank's operations: communications alone, leaves together, and local operations by module."""
    found: list[Box] = []
    modules: dict[int, str] = {}  # of what is computed from parameters only, such as a cast of one
    for o in operations:
        given = [modules[p] for p in o.parents if p in modules]
        if o.communication >= 0 or o.waits_for >= 0:
            found.append(Box([o], "communication" if o.communication >= 0 else "local", "", o.communication))
            if _keeps(o) and given:
                modules[o.place] = given[0]
            continue
        is_leaf = o.parameter != "" or not o.parents
        if is_leaf:
            modules[o.place] = o.parameter.rpartition(".")[0]
        kind, module = "parameter" if is_leaf else "local", ""
        if not is_leaf:
            before = found[-1].module if found and found[-1].kind == "local" else ""
            module = next(filter(None, given), before)
        if not found or found[-1].is_alone or (found[-1].kind, found[-1].module) != (kind, module):
            found.append(Box([], kind, module))
        found[-1].operations.append(o)
        if _keeps(o) and given:
            modules[o.place] = given[0]
            found[-1].unnamed.add(o.place)
    return found


def _keeps(o: Operation) -> bool:
    """Whether the result is still the parameter that was given: a cast or another form of it."""
    return o.name in ("astype", "transpose", "reshape") or o.name.startswith("cast")


def _columns(boxes_of: list[list[Box]], communications: list[Communication]) -> list[list[int]]:
    """The column of every box of every rank: after what the rank did before, and the same for all of an event."""
    at = [0] * len(boxes_of)
    found: list[list[int]] = [[] for _ in boxes_of]
    placed: dict[int, int] = {}

    def waits_at(rank: int) -> int:
        mine = boxes_of[rank]
        return mine[len(found[rank])].communication if len(found[rank]) < len(mine) else -1

    moved = True
    while moved:
        moved = False
        for rank, boxes in enumerate(boxes_of):
            while len(found[rank]) < len(boxes):
                event = boxes[len(found[rank])].communication
                if event >= 0 and event not in placed:
                    ranks = communications[event].ranks
                    if any(waits_at(r) != event for r in ranks):
                        break
                    placed[event] = max(at[r] for r in ranks)
                column = placed[event] if event >= 0 else at[rank]
                found[rank].append(column)
                at[rank] = max(at[rank], column) + 1
                moved = True
    for rank, boxes in enumerate(boxes_of):  # what does not match is drawn all the same
        while len(found[rank]) < len(boxes):
            found[rank].append(at[rank])
            at[rank] += 1
    return found


class _Panel:
    """One direction: the place of every box, and the text in it."""

    def __init__(
        self, boxes_of: list[list[Box]], columns: list[list[int]], communications: list[Communication], way: str,
        top: float,
    ):  # fmt: skip
        self.boxes_of, self.columns, self.way, self.top = boxes_of, columns, way, top
        self.communications = communications
        count = 1 + max((max(c) for c in columns if c), default=0)
        widths = [0.0] * count
        for rank, boxes in enumerate(boxes_of):
            for box, column in zip(boxes, columns[rank], strict=True):
                widths[column] = max(widths[column], *(len(line) * _CHARACTER for line in self.label(rank, box)))
        order = range(count) if way == "forward" else range(count - 1, -1, -1)
        self.x, x = [0.0] * count, float(_LEFT)
        for column in order:
            self.x[column] = x
            x += widths[column] + 2 * _PAD + _GAP
        self.widths = [width + 2 * _PAD for width in widths]
        self.right = x - _GAP

    def sent(self, rank: int, box: Box) -> list[tuple[str, int]]:
        """The calls of a rank in this direction, and their bytes; equal calls together."""
        if box.communication < 0:
            return []
        c = self.communications[box.communication]
        total: Counter[str] = Counter()
        for s in (c.forward if self.way == "forward" else c.backward)[c.ranks.index(rank)]:
            total[s.call] += s.bytes
        return list(total.items())

    def kind(self, rank: int, box: Box) -> str:
        return "idle" if box.kind == "communication" and not self.sent(rank, box) else box.kind

    def label(self, rank: int, box: Box) -> list[str]:
        """The two lines of text in a box."""
        names = box.names()
        if box.kind == "communication":
            sent, c = self.sent(rank, box), self.communications[box.communication]
            calls = " ".join(f"{call} {_bytes(n)}" for call, n in sent)
            return [c.name if c.is_nonblocking else names[0], calls or "nothing sent"]
        if box.is_alone:
            start = next(b for b in self.boxes_of[rank] if b.operations[0].place == box.operations[0].waits_for)
            c = self.communications[start.communication]
            return ["wait", c.name.removesuffix(" (nonblocking)")]
        if box.kind == "parameter":
            named = [o.parameter for o in box.operations if o.parameter]
            if len(box.operations) == 1:
                return [named[0] if named else names[0], _state(box.operations[0])]
            kind = "parameters" if len(named) == len(box.operations) else "leaves"
            return [f"{len(box.operations)} {kind}", _listed(named or names)]
        if not names:  # such as casts of parameters
            names = list(dict.fromkeys(o.name for o in box.operations))
        counted = _state(box.operations[0]) if len(box.operations) == 1 else f"{len(box.operations)} operations"
        return [f"module {box.module}" if box.module else counted, _listed(names)]

    def place(self, rank: int, box: Box) -> tuple[float, float, float]:
        """The left and right edge and the middle of a box's height."""
        column = self.columns[rank][next(i for i, each in enumerate(self.boxes_of[rank]) if each is box)]
        return self.x[column], self.x[column] + self.widths[column], self.top + rank * _ROW


def drawn(operations_of: Operations, communications: list[Communication], problems: list[str]) -> str:
    """The picture as the text of an SVG file."""
    boxes_of = [_boxes(operations) for operations in operations_of]
    columns = _columns(boxes_of, communications)
    ranks = len(boxes_of)
    height_of_panel = ranks * _ROW + 40
    panels = [_Panel(boxes_of, columns, communications, way, 104 + i * height_of_panel)
              for i, way in enumerate(("forward", "backward"))]  # fmt: skip
    total = max(*(panel.right for panel in panels), 640) + 20
    lines = [line for problem in problems for line in textwrap.wrap(problem, int((total - 30) / 5.6))]
    height = 104 + height_of_panel + ranks * _ROW - 22 + 18 * len(lines) + 8 * bool(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total:g}" height="{height:g}" '
        f'viewBox="0 0 {total:g} {height:g}">',
        f"<style>{_STYLE}@media (prefers-color-scheme: dark){{{_DARK}}}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        f'<rect class="page" width="{total:g}" height="{height:g}"/>',
        _text(12, 24, _title(operations_of, communications), "title"),
    ]
    present = {panel.kind(rank, box) for panel in panels for rank, boxes in enumerate(boxes_of) for box in boxes}
    x = 12.0
    for kind, text in _LEGEND.items():
        if kind in present:
            parts.append(f'<rect class="{kind}" x="{x:g}" y="38" width="14" height="12" rx="2"/>')
            parts.append(_text(x + 20, 48, text, "faint"))
            x += 38 + 5.4 * len(text)
    for panel in panels:
        title = "forward" if panel.way == "forward" else "backward: the tape in reverse, first the loss"
        parts.append(_text(_LEFT, panel.top - 28, f"{title} \u2192", "title"))
        for rank in range(ranks):
            y = panel.top + rank * _ROW
            parts.append(_text(12, y + 4, f"rank {rank}", ""))
            parts.append(f'<line class="row" x1="{_LEFT - 12}" y1="{y:g}" x2="{panel.right:g}" y2="{y:g}"/>')
        for number in range(len(communications)):
            parts += _lines(panel, number)
        for rank, boxes in enumerate(boxes_of):
            for box in boxes:
                parts += _drawn_box(panel, rank, box)
    for i, line in enumerate(lines):
        parts.append(_text(12, height - 18 * (len(lines) - i) + 4, line, "problem"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _lines(panel: _Panel, number: int) -> list[str]:
    """Lines between the ranks of a communication; arrows where the data has one direction."""
    c = panel.communications[number]
    sent = c.forward if panel.way == "forward" else c.backward
    if not any(sent):
        return []
    boxes = {rank: next(b for b in panel.boxes_of[rank] if b.communication == number) for rank in c.ranks}
    messages = [(rank, s.peer) for rank, mine in zip(c.ranks, sent, strict=True) for s in mine if s.call == "send"]
    pairs: Sequence[tuple[int, int | None]] = messages or list(pairwise(sorted(boxes)))
    found, lane = [], min(boxes)
    for source, target in pairs:
        if target in boxes and target != source:
            ends = panel.place(source, boxes[source]), panel.place(target, boxes[target])
            path = _path(*ends, bool(messages), lane)
            head = ' marker-end="url(#head)"' if messages else ""
            found.append(f'<path class="line" d="{path}"{head}/>')
    return found


def _path(
    source: tuple[float, float, float], target: tuple[float, float, float], is_directed: bool, lane: int
) -> str:
    """From one box to another of the same column, beside the boxes between them. Groups have lanes of their own."""
    (left, right, y0), (_, _, y1) = source, target
    way = 1 if y1 > y0 else -1
    x = (left + right) / 2 + (10 * way if is_directed else 0)  # opposite messages are beside each other
    start, end = y0 + way * _BOX / 2, y1 - way * _BOX / 2
    if abs(y1 - y0) <= _ROW:
        return f"M{x:g},{start:g} L{x:g},{end:g}"
    step = 5 + 4 * (lane // 2 % 4)
    edge = left - step if (lane % 2 == 0) == (way > 0) else right + step
    return f"M{x:g},{start:g} L{x:g},{start + 7 * way:g} L{edge:g},{start + 7 * way:g} " \
           f"L{edge:g},{end - 9 * way:g} L{x:g},{end - 9 * way:g} L{x:g},{end:g}"  # fmt: skip


def _drawn_box(panel: _Panel, rank: int, box: Box) -> list[str]:
    left, right, y = panel.place(rank, box)
    said = [_said(o, panel.communications, rank, panel.way) for o in box.operations]
    first, second = panel.label(rank, box)
    middle = (left + right) / 2
    return [
        f'<rect class="{panel.kind(rank, box)}" x="{left:g}" y="{y - _BOX / 2:g}" width="{right - left:g}" '
        f'height="{_BOX}" rx="4"><title>{escape(chr(10).join(said))}</title></rect>',
        _text(middle, y - 3, first, "", "middle"),
        _text(middle, y + 11, second, "faint", "middle"),
    ]


def _said(o: Operation, communications: list[Communication], rank: int, way: str) -> str:
    """One line about an operation, for the tooltip."""
    words = [o.name, o.parameter]
    if o.communication >= 0:
        c = communications[o.communication]
        words.append(f"along {'*'.join(c.axes)}")
        for s in (c.forward if way == "forward" else c.backward)[c.ranks.index(rank)]:
            words.append(f"{s.call}{'' if s.peer is None else f' with rank {s.peer}'}: {s.bytes} bytes")
    words += [_state(o), o.layout]
    return ", ".join(filter(None, words))


def _state(o: Operation) -> str:
    return "" if o.shape is None else f"{o.dtype}[{','.join(map(str, o.shape))}]"


def _listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" + {more} more" if more > 0 else "")


def _bytes(count: int) -> str:
    """A number of bytes with a unit: ``864 B``, ``12.5 KB``, ``3.2 MB``."""
    size, units = float(count), ["B", "KB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" or size >= 100 else f"{size:.1f} {units[0]}"


def _title(operations_of: Operations, communications: list[Communication]) -> str:
    ranks, count = len(operations_of), len(communications)
    forward, backward = (
        sum(s.bytes for c in communications for mine in getattr(c, way) for s in mine if s.call != "recv")
        for way in ("forward", "backward")
    )
    return (
        f"{ranks} rank{'s' * (ranks != 1)}, {count} communication{'s' * (count != 1)}: {_bytes(forward)} forward, "
        f"{_bytes(backward)} backward, over all ranks"
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    how = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}"{f" class={chr(34)}{kind}{chr(34)}" * bool(kind)}{how}>{escape(text)}</text>'
