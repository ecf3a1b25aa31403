"""The HTML by which notebooks show Tensors, modules, tapes, meshes and optimizers (``_repr_html_``).

It has no colours of its own for text and background, so it can be read in light and dark themes. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["branch", "code", "escaped", "sheet", "table"]

_FRAME = "border:1px solid rgba(128,128,128,.45);border-radius:4px;padding:4px 8px;display:inline-block;margin:2px 0"
_CELL = "text-align:left;padding:1px 10px 1px 0;border:0;vertical-align:top"
_HEAD = _CELL + ";font-weight:normal;opacity:.7"
_CODE = "margin:4px 0 0 0;padding:4px 6px;background:rgba(128,128,128,.12);color:inherit;overflow-x:auto"
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


def escaped(x: object) -> str:
    """Return the text of `x` with the characters escaped that have a meaning in HTML.

    Examples
    --------
    >>> from autograd.notebook import escaped
    >>> escaped("<b>")
    '&lt;b&gt;'
    """
    return str(x).translate(_ENTITIES)


def sheet(title: str, note: str, *parts: str) -> str:
    """Return a frame with a title, a short note beside it, and parts that are HTML already."""
    note = f' <span style="opacity:.7">{escaped(note)}</span>' if note else ""
    return f'<div style="{_FRAME}"><b>{escaped(title)}</b>{note}{"".join(parts)}</div>'


def table(rows: Iterable[Sequence[object]], heads: Sequence[object] = ()) -> str:
    """Return a table. Without heads the first cell of each row is its head."""
    lines = []
    if heads:
        lines.append("".join(f'<th style="{_HEAD}">{escaped(x)}</th>' for x in heads))
    for row in rows:
        styles = [_CELL] * len(row) if heads else [_HEAD] + [_CELL] * (len(row) - 1)
        lines.append("".join(f'<td style="{s}">{escaped(x)}</td>' for s, x in zip(styles, row, strict=True)))
    body = "".join(f'<tr style="background:transparent">{line}</tr>' for line in lines)
    return f'<table style="border:0;margin:2px 0;font-size:inherit;color:inherit">{body}</table>'


def code(text: str) -> str:
    """Return text in a fixed font, as it is."""
    return f'<pre style="{_CODE}">{escaped(text)}</pre>'


def branch(label: str, note: str, inner: Sequence[str] = (), is_open: bool = True) -> str:
    """Return an entry of a tree, which can be folded where it has inner ones."""
    line = f'<code style="background:transparent;color:inherit">{escaped(label)}</code>'
    line += f' <span style="opacity:.7">{escaped(note)}</span>' if note else ""
    if not inner:
        return f'<div style="margin-left:1.2em">{line}</div>'
    summary = f'<summary style="cursor:pointer">{line}</summary>'
    return f'<details style="margin-left:1em"{" open" if is_open else ""}>{summary}{"".join(inner)}</details>'
