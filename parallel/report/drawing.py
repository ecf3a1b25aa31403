"""Draw a step of every rank: its phases above, its communication below."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from collectives.inspect.timeline_report import RankRecord

from .phases import windows

__all__ = ["plot_last_step"]

_VISIBLE = 0.002  # of the width: what is shorter is drawn as long
_MIDDLE = 0.01  # of the bars of a rank above its number
_COLORS = {"input": "tab:purple", "forward": "0.80", "backward": "0.55", "optimizer": "tab:orange"}


def plot_last_step(records: Sequence[RankRecord], path: str | os.PathLike[str]) -> None:
    """Draw the last step of all ranks as a PNG, one row per rank. Nothing of the steps before and after is drawn."""
    from matplotlib.figure import Figure  # optional; pyplot is not thread-safe and needs a display

    last = [steps[-1] if (steps := windows(record)) else None for record in records]
    begin, end = min((s[0] for s in last if s), default=0.0), max((s[2] for s in last if s), default=1.0)
    figure = Figure(figsize=(11, 1.6 + 0.8 * len(records)), layout="constrained")
    axes = figure.subplots()
    least = (end - begin) * _VISIBLE
    for k, (record, step) in enumerate(zip(records, last, strict=True)):
        first, until = (begin, end) if step is None else (step[0], step[2])  # of this rank
        for spans, where, color, name in _bars(k, record, first, until):
            shown = [((max(a, first) - begin) / 1e6, max(min(b, until) - max(a, first), least) / 1e6)
                     for a, b in spans if b > a and b > first and a < until]  # fmt: skip
            axes.broken_barh(shown, where, facecolors=color, label=name or None)
    axes.set_yticks([k - _MIDDLE for k in range(len(records))], [f"rank {r.rank}" for r in records])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set(xlabel="ms by rank 0's clock", title="The last step: phases above, communication below")
    axes.set_xlim(0, (end - begin) / 1e6 * 1.01)
    axes.spines[["top", "right", "left"]].set_visible(False)
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(handles.values(), handles, frameon=False, ncols=8, loc="outside lower center")
    figure.savefig(path, dpi=150)


_Bars = tuple[list[Any], tuple[float, float], str, str]


def _bars(k: int, record: RankRecord, begin: float, end: float) -> list[_Bars]:
    """The bars of a rank in row k: their spans of time, their lower edge and height, color, and name, "" for none."""
    bars = [([(s.begin, s.end) for s in record.spans if s.name == name], (k - 0.40, 0.36), color, name)
            for name, color in _COLORS.items()]  # fmt: skip
    calls = [c for c in record.calls if c.end is not None]
    flying = [c for c in calls if c.pending]
    for row, c in enumerate(c for c in flying if c.begin < end and c.wait > begin):  # one line for each of them
        at = (k + 0.04 + 0.14 * (row % 8) / 8, 0.14 / 8)
        bars.append(([(c.begin, max(c.end or 0, c.wait))], at, "tab:green", "in flight" if row == 0 else ""))
    bars += [
        ([(c.begin, c.returned) for c in flying], (k + 0.20, 0.18), "tab:cyan", "starting"),
        ([(c.wait, c.wait + c.waited_ns) for c in calls], (k + 0.20, 0.18), "tab:red", "waiting for another rank"),
        ([((c.end or 0) - c.transferred_ns, c.end or 0) for c in calls], (k + 0.20, 0.18), "tab:blue", "transfer"),
    ]
    return bars
