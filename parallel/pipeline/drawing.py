"""Drawings of schedules: a timeline as text or PNG, and the bubble against the memory of activations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from autograd.doors import optional
from autograd.errors import OptionError, typed_errors

from .schedules import SCHEDULES, Schedule, make_schedule
from .simulator import Costs, Simulation, simulate

__all__ = ["draw", "plot", "plot_tradeoff", "tradeoff"]

_COLORS = {"F": "#4878a8", "B": "#6aa56a", "I": "#8fc38f", "W": "#c7a252"}
_WORDS = {"F": "forward", "B": "backward", "I": "cotangents of inputs", "W": "gradients of weights"}
_MOST_COLUMNS = 400


def _simulation(given: Schedule | Simulation) -> Simulation:
    return simulate(given) if isinstance(given, Schedule) else given


@typed_errors
def draw(given: Schedule | Simulation) -> str:
    """A timeline as text: a line for each rank, and a column for each unit of time.

    Parameters
    ----------
    given : Schedule or Simulation
        A schedule is simulated with the same time for F, I and W.

    Returns
    -------
    str
        In each cell the kind of an action and its microbatch, where a rank has several stages with the stage before it;
        ``-`` where an action goes on, ``.`` where the rank is idle.

    Raises
    ------
    OptionError
        The times have no common unit, or the timeline has too many units.

    Examples
    --------
    >>> from parallel.pipeline import one_f_one_b
    >>> print(draw(one_f_one_b(2, 3)))
    rank 0  F0 F1 .  .  B0 -  F2 B1 -  .  B2 -
    rank 1  .  F0 B0 -  F1 B1 -  F2 B2 -  .  .
    """
    found = _simulation(given)
    times = [Fraction(t).limit_denominator(1000) for rank in found.timeline for x in rank for t in (x.begin, x.end)]
    scale = lcm(*(t.denominator for t in times))
    unit = gcd(*(int(t * scale) for t in times)) or 1
    cells = round(found.makespan * scale / unit)
    if cells > _MOST_COLUMNS:
        raise OptionError(
            f"draw: the timeline has {cells} units of time; needed: at most {_MOST_COLUMNS}\n  fix: times that are "
            "small multiples of one unit, or plot(...) for a picture"
        )
    several = found.schedule.stages > found.schedule.ranks
    label = lambda a: f"{a.stage if several else ''}{a.kind}{a.microbatch}"
    width = 1 + max(len(label(a)) for rank in found.schedule.actions for a in rank)
    lines = []
    for r, rank in enumerate(found.timeline):
        row = ["."] * cells
        for action, begin, end in rank:
            a, b = (round(Fraction(t).limit_denominator(1000) * scale / unit) for t in (begin, end))
            row[a:b] = [label(action), *["-"] * (b - a - 1)][: b - a]
        lines.append(f"rank {r}  " + "".join(cell.ljust(width) for cell in row).rstrip())
    return "\n".join(lines)


@typed_errors
def plot(given: Schedule | Simulation | Sequence[Schedule | Simulation], path: str | os.PathLike[str]) -> None:
    """Draw timelines as a PNG, one above the other with the same scale, each with its bubble and peak activations.

    It needs matplotlib, of the extra "runs".

    Parameters
    ----------
    given : Schedule, Simulation, or sequence of these
    path : str or path

    Raises
    ------
    DependencyError
        matplotlib is not installed.
    """
    several = [given] if isinstance(given, Schedule | Simulation) else list(given)
    found = [_simulation(each) for each in several]
    figure_class = optional("matplotlib.figure", "plot").Figure
    ranks = [each.schedule.ranks for each in found]
    figure = figure_class(figsize=(12, 0.9 + sum(0.75 + 0.32 * n for n in ranks)), layout="constrained")
    heights = [1 + n / 2 for n in ranks]
    all_axes = figure.subplots(len(found), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    longest = max(each.makespan for each in found)
    for each, axes in zip(found, all_axes, strict=True):
        _timeline(each, axes, longest)
    kinds = sorted({a.kind for each in found for rank in each.schedule.actions for a in rank}, key="FBIW".index)
    patch = optional("matplotlib.patches", "plot").Patch
    handles = [patch(facecolor=_COLORS[kind], label=_WORDS[kind]) for kind in kinds]
    most = max(each.schedule.stages // each.schedule.ranks for each in found)
    if most > 1:
        pale = _alpha(most - 1, most - 1)
        handles += [patch(facecolor=_COLORS["F"], alpha=pale, label="paler: later stages of a rank")]
    handles += [patch(facecolor="none", label="number: microbatch")]
    figure.legend(handles=handles, ncols=3, loc="outside lower center", frameon=False)
    all_axes[-1].set_xlabel("time, in the unit of the costs")
    figure.get_layout_engine().set(h_pad=0.08)
    figure.savefig(path, dpi=130)


def _alpha(chunk: int, most: int) -> float:
    """The opacity of a stage, the `chunk`-th of its rank, the last of which has number `most`."""
    return 1.0 - 0.45 * chunk / most if most else 1.0


def _timeline(found: Simulation, axes: Any, longest: float) -> None:
    schedule = found.schedule
    chunks = {stage: k for r in range(schedule.ranks) for k, stage in enumerate(schedule.stages_of(r))}
    most = max(chunks.values(), default=0)
    size = 7.0 if longest < 60 * min(x.end - x.begin for rank in found.timeline for x in rank) else 5.0
    for r, rank in enumerate(found.timeline):
        for action, begin, end in rank:
            if end <= begin:
                continue
            alpha = _alpha(chunks[action.stage], most)
            axes.broken_barh(
                [(begin, end - begin)], (r - 0.42, 0.84), facecolors=_COLORS[action.kind], alpha=alpha,
                edgecolor="white", linewidth=0.6,
            )  # fmt: skip
            if end - begin > longest * 0.008:
                axes.text((begin + end) / 2, r, str(action.microbatch), ha="center", va="center", fontsize=size)
    peak = ", ".join(f"{n:g}" for n in found.peak_activations)
    axes.set_title(
        f"{schedule.name}: bubble {found.bubble_fraction:.1%}, peak activations of the ranks {peak}", loc="left",
        fontsize=9,
    )  # fmt: skip
    axes.set_yticks(range(schedule.ranks), [f"rank {r}" for r in range(schedule.ranks)], fontsize=8)
    axes.set_ylim(schedule.ranks - 0.5, -0.5)
    axes.set_xlim(0, longest)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)


@typed_errors
def tradeoff(
    ranks: int, microbatches: Sequence[int], schedules: Sequence[str] = tuple(SCHEDULES), costs: Costs | None = None
) -> dict[str, list[tuple[int, float, float]]]:
    """For each schedule and number of microbatches: that number, the bubble fraction, and the peak of activations.

    The peak is the largest of any rank, in microbatches through all stages of the rank. `costs` are those of all
    stages of a rank together.

    Examples
    --------
    >>> [(m, round(bubble, 3), peak) for m, bubble, peak in tradeoff(2, [2, 4], ["1f1b"])["1f1b"]]
    [(2, 0.333, 2.0), (4, 0.2, 2.0)]
    """
    costs = Costs() if costs is None else costs
    found: dict[str, list[tuple[int, float, float]]] = {}
    for name in schedules:
        for m in microbatches:
            schedule = make_schedule(name, ranks, m)
            v = schedule.stages // ranks
            f, i, w = (_divided(t, v) for t in (costs.forward, costs.input, costs.weight))
            each = Costs(f, i, w, costs.transfer)
            run = simulate(schedule, each)
            found.setdefault(name, []).append((m, run.bubble_fraction, max(run.peak_activations)))
    return found


_APART = 4.0  # percent, between texts that do not overlap


def _divided(times: Any, by: int) -> float:
    if not isinstance(times, int | float):
        raise OptionError("tradeoff: costs of single stages were given; needed: one number for all")
    return times / by


@typed_errors
def plot_tradeoff(found: Mapping[str, Sequence[tuple[int, float, float]]], path: str | os.PathLike[str]) -> None:
    """Draw the result of `tradeoff` as a PNG: the bubble against the peak of activations, a line for each schedule.

    Raises
    ------
    DependencyError
        matplotlib is not installed.
    """
    figure = optional("matplotlib.figure", "plot_tradeoff").Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    texts: dict[tuple[float, float], str] = {}  # of the ends of the lines, several of which may coincide
    for k, (marker, (name, points)) in enumerate(zip("osD^vPX*" * 4, found.items(), strict=False)):
        peaks, bubbles = [peak for _, _, peak in points], [100 * bubble for _, bubble, _ in points]
        # the first lines are wider, and are seen around those that cover them
        width = 1.6 * 1.5 ** (len(found) - 1 - k)
        axes.plot(peaks, bubbles, marker=marker, markersize=3.5 + width, linewidth=width, label=name)
        for end in {points[0], points[-1]}:
            texts.setdefault((end[2], 100 * end[1]), f"m = {end[0]}")
    bubbles_of: dict[float, list[float]] = {}
    for peak, bubble in sorted(texts):
        near = bubbles_of.setdefault(peak, [])
        if all(abs(bubble - other) > _APART for other in near):
            near.append(bubble)
            axes.annotate(
                texts[peak, bubble], (peak, bubble), textcoords="offset points", xytext=(8, 4), fontsize=8
            )
    axes.set_title("Bubble against memory, as the number m of microbatches grows")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("peak activations of a rank, in microbatches")
    axes.set_ylabel("bubble, % of the time")
    axes.margins(x=0.12)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if found:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
