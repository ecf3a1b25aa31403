"""The page of an audit: its verdicts in one HTML file, without a program, with nothing to load from elsewhere.

Parameters stand in the order of the model. Each has its cause, the distance of each rank's gradient from the right one,
in tolerances, and the place of the ranks on a logarithmic scale whose line is the tolerance.
"""

from __future__ import annotations

import math
from html import escape
from importlib import resources

from autograd.errors import typed_errors

from ..page.document import Page
from .report import CONSEQUENCE, RIGHT, Report, Verdict

__all__ = ["page"]

_MOST_RANKS = 8
"""Ranks that have a column each; more ranks are marks on the scale alone."""
_LEFT, _RIGHT, _WIDTH = -3.0, 15.0, 360
"""The ends of the scale, as powers of ten of a tolerance, and its width in pixels."""
_STYLE = """
html, body { height: auto; overflow: visible; display: block; }
main { display: block; max-width: 1200px; margin: 0 auto; padding: 14px; }
h1 { font-size: 18px; margin: 0 0 6px; } section { margin: 0 0 16px; }
.fix { color: var(--quiet); } .right td { color: var(--quiet); } .table { overflow-x: auto; }
td { vertical-align: middle; border-top: 1px solid var(--line); } circle { fill: var(--focus); }
.wrong circle { fill: var(--alarm); } .scale { stroke: var(--line); }
.one { stroke: var(--text); stroke-dasharray: 3 2; }
.consequence td.cause { color: var(--quiet); } .wrong td.cause { color: var(--alarm); font-weight: 700; }
@media (prefers-color-scheme: dark) { :root { --ground: #0f1318; --text: #e4e9ee; --quiet: #93a0ad; --line: #2d343c;
  --panel: #171c22; --alarm: #ff7a85; --focus: #8ab4f8; color-scheme: dark; } }
"""


@typed_errors
def page(report: Report, title: str = "") -> Page:
    """Return the page of a report.

    Parameters
    ----------
    report : Report
    title : str
        Of the document, such as the job's folder.

    Returns
    -------
    Page
        ``page(report).write("audit.html")`` writes it; a notebook shows it in place.

    Examples
    --------
    >>> from collectives.audit.report import Finding
    >>> verdict = Verdict("w", Finding("factor", "2 times right"), {0: 3e8, 1: 3e8})
    >>> page(Report(0, 3, [verdict]))
    <page of 1 records, ... bytes>
    """
    ranks = sorted({rank for each in report.verdicts for rank in each.distances})
    shown = ranks if len(ranks) <= _MOST_RANKS else []
    head = "".join(f'<th style="text-align: right">rank {rank}</th>' for rank in shown)
    rows = "".join(_row(each, shown) for each in report.verdicts)
    style = resources.files("collectives.page").joinpath("page.css").read_text() + _STYLE
    lines = str(report).splitlines()
    findings = ""
    for each, names in report.findings:
        text = escape(": ".join(filter(None, (", ".join(names), each.text))))
        fix = f"<br>fix: {escape(each.fix)}" if each.fix else ""
        findings += f'<p class="error"><b>{escape(each.cause)}</b>: {text}{fix}</p>'
    notes = "".join(f"<p>{escape(note)}</p>" for note in report.notes)
    html = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title or 'audit')}</title><style>{style}</style><main><h1>{escape(title or 'audit')}: "
        f'{escape(lines[0])}</h1><section>{findings}{notes}</section><div class="table"><table><tr><th>parameter</th>'
        f"<th>cause</th>{head}<th>distance from the right gradient, in tolerances; the line is 1</th></tr>{rows}"
        "</table></div></main></html>"
    )
    return Page(html, len(report.verdicts))


def _row(verdict: Verdict, shown: list[int]) -> str:
    kind = "right" if verdict.finding is RIGHT else "consequence" if verdict.finding is CONSEQUENCE else "wrong"
    cells = "".join(f'<td class="number">{_distance(verdict.distances.get(rank, math.inf))}</td>' for rank in shown)
    return (f'<tr class="{kind}"><td>{escape(verdict.name)}</td><td class="cause">{escape(verdict.finding.cause)}</td>'
            f"{cells}<td>{_scale(verdict)}</td></tr>")  # fmt: skip


def _distance(x: float) -> str:
    return "none" if math.isinf(x) else f"{x:.2g}"


def _at(x: float) -> float:
    """The place of a distance on the scale, in pixels."""
    power = _LEFT if x <= 0 else min(max(math.log10(x), _LEFT), _RIGHT) if math.isfinite(x) else _RIGHT
    return 6 + (power - _LEFT) / (_RIGHT - _LEFT) * (_WIDTH - 12)


def _scale(verdict: Verdict) -> str:
    marks = "".join(f'<circle cx="{_at(x):.1f}" cy="9" r="4"><title>rank {rank}: {_distance(x)}</title></circle>'
                    for rank, x in verdict.distances.items())  # fmt: skip
    ticks = "".join(f'<line class="scale" x1="{_at(10.0**p):.1f}" x2="{_at(10.0**p):.1f}" y1="6" y2="12"/>'
                    for p in range(int(_LEFT), int(_RIGHT) + 1, 3))  # fmt: skip
    line = f'<line class="scale" x1="6" x2="{_WIDTH - 6}" y1="9" y2="9"/>'
    return (f'<svg width="{_WIDTH}" height="18" role="img" aria-label="distances">{line}{ticks}'
            f'<line class="one" x1="{_at(1):.1f}" x2="{_at(1):.1f}" y1="0" y2="18"/>{marks}</svg>')  # fmt: skip
