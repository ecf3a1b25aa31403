"""A plan as a picture: a lane for each rank, forward and then backward to the right, communications across lanes."""

from __future__ import annotations

from html import escape
from itertools import pairwise

from .graph import Communication, Operation

__all__ = ["drawn"]

Operations = list[list[Operation]]
"""Every rank's, in order of execution."""

_LANE, _STEP, _LEFT, _TOP, _BOX = 64, 26, 84, 70, 18
_COLOURS = {
    "leaf": "#4c78a8", "local": "#b8bcc2", "silent": "#e0d6f2", "communication": "#e45756",
    "ink": "#24292f", "faint": "#d8dee4",
}  # fmt: skip
_LEGEND = [
    ("leaf", "leaf"), ("local", "local operation"), ("communication", "communication"),
    ("silent", "communication that is silent in this direction"),
]  # fmt: skip


def columns(operations_of: Operations, communications: list[Communication]) -> list[list[int]]:
    """The column of every operation of every rank: after what the rank did before, and the same for all of an event."""
    at = [0] * len(operations_of)
    found: list[list[int]] = [[] for _ in operations_of]
    placed: dict[int, int] = {}
    moved = True
    while moved:
        moved = False
        for rank, operations in enumerate(operations_of):
            while len(found[rank]) < len(operations):
                o = operations[len(found[rank])]
                if o.communication >= 0 and o.communication not in placed:
                    c = communications[o.communication]
                    ready = [r for r in c.ranks if _next(operations_of, found, r) is not None
                             and _next(operations_of, found, r).communication == o.communication]  # type: ignore[union-attr]
                    if len(ready) < len(c.ranks):
                        break
                    placed[o.communication] = max(at[r] for r in c.ranks)
                column = placed[o.communication] if o.communication >= 0 else at[rank]
                found[rank].append(column)
                at[rank] = max(at[rank], column) + 1
                moved = True
    for rank, operations in enumerate(operations_of):  # what does not match is drawn all the same
        while len(found[rank]) < len(operations):
            found[rank].append(at[rank])
            at[rank] += 1
    return found


def _next(operations_of: Operations, found: list[list[int]], rank: int) -> Operation | None:
    operations = operations_of[rank]
    return operations[len(found[rank])] if len(found[rank]) < len(operations) else None


def drawn(operations_of: Operations, communications: list[Communication], problems: list[str]) -> str:
    """The picture as the text of an SVG file."""
    where = columns(operations_of, communications)
    width = 1 + max((max(c) for c in where if c), default=0)
    ranks = len(operations_of)
    span = width * _STEP
    middle = _LEFT + span + 30
    total, height = middle + span + 40, _TOP + ranks * _LANE + 40 + 16 * len(problems)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" viewBox="0 0 {total} {height}" '
        f'font-family="Helvetica,Arial,sans-serif" font-size="11" fill="{_COLOURS["ink"]}">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#24292f"/></marker></defs>',
        f'<rect width="{total}" height="{height}" fill="white"/>',
    ]
    x = _LEFT
    for kind, text in _LEGEND:
        parts.append(f'<rect x="{x}" y="10" width="12" height="12" rx="2" fill="{_COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 17}" y="20">{text}</text>')
        x += 34 + 6 * len(text)
    for start, title in ((_LEFT, "forward"), (middle, "backward")):
        parts.append(f'<text x="{start}" y="{_TOP - 24}" font-weight="bold">{title} &#8594;</text>')
    for rank in range(ranks):
        y = _TOP + rank * _LANE
        parts.append(f'<text x="10" y="{y + 4}">rank {rank}</text>')
        for start in (_LEFT, middle):
            parts.append(f'<line x1="{start - 8}" y1="{y}" x2="{start + span}" y2="{y}" stroke="{_COLOURS["faint"]}"/>')
    for way in ("forward", "backward"):
        xs = [[(_LEFT + c * _STEP) if way == "forward" else middle + (width - 1 - c) * _STEP for c in mine]
              for mine in where]  # fmt: skip
        for communication in communications:
            parts += _event(operations_of, communication, way, xs)
        for rank, operations in enumerate(operations_of):
            for o, x in zip(operations, xs[rank], strict=True):
                parts += _operation(communications, o, rank, x, way)
    for i, problem in enumerate(problems):
        y = _TOP + ranks * _LANE + 16 * (i + 1)
        parts.append(f'<text x="10" y="{y}" fill="{_COLOURS["communication"]}">{escape(problem)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _event(operations_of: Operations, c: Communication, way: str, xs: list[list[int]]) -> list[str]:
    """What joins the ranks of a communication: a line, an arrow where the data has one direction, and its name."""
    sent = c.forward if way == "forward" else c.backward
    if not any(sent):
        return []
    points = []
    for rank, place in zip(c.ranks, c.places, strict=True):
        index = place - operations_of[rank][0].place
        points.append((rank, xs[rank][index] + _BOX / 2, _TOP + rank * _LANE))
    points.sort()
    (_, x0, y0) = points[0]
    lines = []
    at = {rank: (x, y) for rank, x, y in points}
    messages = [(r, s.peer) for (r, mine) in zip(c.ranks, sent, strict=True) for s in mine if s.call == "send"]
    for source, target in messages:
        if target in at:
            (xa, ya), (xb, yb) = at[source], at[target]
            bow, edge = (10 if ya < yb else -10), (10 if ya < yb else -10)  # there and back do not lie on each other
            lines.append(f'<path d="M{xa},{ya + edge} Q{(xa + xb) / 2 + bow},{(ya + yb) / 2} {xb},{yb - edge}" '
                         f'fill="none" stroke="{_COLOURS["ink"]}" marker-end="url(#head)"/>')  # fmt: skip
    if not messages:
        for (ra, xa, ya), (rb, xb, yb) in pairwise(points):
            bow = 0 if rb == ra + 1 else 16  # around the ranks between them, which have no part in it
            lines.append(f'<path d="M{xa},{ya} Q{(xa + xb) / 2 + bow},{(ya + yb) / 2} {xb},{yb}" fill="none" '
                         f'stroke="{_COLOURS["communication"]}" stroke-width="3"/>')  # fmt: skip
    calls = " ".join(dict.fromkeys(s.call for mine in sent for s in mine))
    x, y = x0 - 4, y0 - 13
    lines.append(f'<text x="{x}" y="{y}" font-size="9" transform="rotate(-28 {x} {y})">{escape(calls)}</text>')
    return lines


def _operation(communications: list[Communication], o: Operation, rank: int, x: float, way: str) -> list[str]:
    y = _TOP + rank * _LANE
    kind, said = "local", [o.name]
    if o.communication >= 0:
        c = communications[o.communication]
        sent = (c.forward if way == "forward" else c.backward)[c.ranks.index(rank)]
        kind = "communication" if sent else "silent"
        said[0] += f" along {'*'.join(c.axes)}"
        said += [f"{s.call}{'' if s.peer is None else f' with rank {s.peer}'}: {s.bytes} bytes" for s in sent]
    elif o.name in ("leaf", "import"):
        kind = "leaf"
    if o.parameter:
        said.append(f"parameter {o.parameter}")
    if o.shape is not None:
        said.append(f"{o.dtype}{o.shape} {o.layout}")
    elif o.layout:
        said.append(o.layout)
    shape = (
        f'<circle cx="{x + _BOX / 2}" cy="{y}" r="7" fill="{_COLOURS[kind]}">' if kind == "leaf" else
        f'<rect x="{x + 1}" y="{y - _BOX / 2}" width="{_BOX - 2}" height="{_BOX}" rx="3" fill="{_COLOURS[kind]}">'
    )  # fmt: skip
    closing = "</circle>" if kind == "leaf" else "</rect>"
    lines = [f"{shape}<title>{escape(chr(10).join(said))}</title>{closing}"]
    if way == "forward":
        text = o.parameter or o.name
        lines.append(f'<text x="{x + 2}" y="{y + 21}" font-size="8" transform="rotate(24 {x + 2} {y + 21})">'
                     f'{escape(text[:14])}</text>')  # fmt: skip
    return lines
