"""The texts of faults of scale: the factor, the lines, the counts of the ranks, and the fixes that fit these counts."""

from __future__ import annotations

from typing import Any

from autograd.engine.recording import op_of
from autograd.errors import short_site
from autograd.layouts.layout import Shard

from .powers import Event, Power
from .sums import Sum
from .walk import Walk

__all__ = ["describe_fault", "describe_meeting"]

_SHOWN_RANKS = 8


def describe_fault(finding: Any, walk: Walk, mesh: Any) -> tuple[str, tuple[str, int] | None]:
    """The text about a fault, and the line of the program that it belongs to, if that is known."""
    if finding.fault is not None:
        return (_function if finding.fault.kind == "function" else _unequal_terms)(finding, walk)
    axis, n, value = finding.axis, finding.size, finding.value
    events = _relevant(value, axis, walk)
    subject = "the objective, and with it every gradient,"
    if value.has_unknown:
        subject = "a term of the objective, and with it its part of every gradient,"
    lines = [
        f"{subject} is {factor_text(value, n)} along axis {axis!r} of {n} ranks",
        *(f"  {line}" for event in events if (line := _step(event, n, axis, walk))),
    ]
    fixes, site = _fixes(value, events, axis, walk)
    lines += [f"  {'fix: ' if not i else 'or:  '}{fix}" for i, fix in enumerate(fixes)]
    return "\n".join(lines), site


def factor_text(value: Power, n: int) -> str:
    """``4 times too large``, from the powers that are possible."""
    assert value.powers is not None
    power = min(value.powers, key=lambda each: (abs(each), -each))
    at_least = "at least " if len(value.powers) > 1 else ""
    shown = f"{float(n) ** float(abs(power)):.4g}"
    return f"{at_least}{shown} times too {'large' if power > 0 else 'small'}"


def _relevant(value: Power, axis: str, walk: Walk) -> list[Event]:
    """The steps that have changed the power, in the order of the tape, each once."""
    return sorted(dict.fromkeys(value.events), key=lambda event: event.place)


def _at(place: int, walk: Walk) -> str:
    site = walk.site(place)
    return f" at {short_site(*site)}" if site is not None else ""


def _step(event: Event, n: int, axis: str, walk: Walk) -> str:
    made = walk.sums.get(event.place)
    at = _at(event.place, walk)
    if event.kind == "mean":
        return f"a mean over {int(event.number)} rows or elements of this rank{at}"
    if event.kind == "own":
        return f"a division by {int(event.number)}, the number of this rank's rows{at}"
    if event.kind == "ratio":
        return f"a ratio of two sums over this rank's rows{at}"
    if event.kind == "weights":
        of = "number" if event.number == int(event.number) else "sum of the weights"
        return f"a division by {event.number:g}, the {of} of this rank's elements that a mask leaves{at}"
    if event.kind == "count":
        return f"a division by {int(event.number)}, the number of one rank's rows, after the sum over all ranks{at}"
    if event.kind == "size":
        verb = "a division by" if event.number < 0 else "a product with"
        return "" if made is not None or _is_mean(event, walk) else f"{verb} the number of ranks{at}"
    if event.kind == "ranks":
        if made is None:
            return f"a sum over the {n} ranks{at}"
        return f"{made.name}({made.shown}, axis {_axes(made.axes)}){at}{_counts(made)}"
    return ""


def _is_mean(event: Event, walk: Walk) -> bool:
    """Whether a division by the number of ranks is that of `cc.mean`, whose sum comes directly before it."""
    made = walk.sums.get(event.place - 1)
    return made is not None and made.name == "mean"


def _axes(axes: tuple[str, ...]) -> str:
    return repr(axes[0] if len(axes) == 1 else axes)


def _counts(made: Sum) -> str:
    if not made.counts or not any(made.counts.values()):
        return ""
    if len(set(made.counts.values())) == 1:
        return f", of {next(iter(made.counts.values()))} on each rank"
    each = ", ".join(f"rank {rank} of {count}" for rank, count in list(made.counts.items())[:_SHOWN_RANKS])
    return f", {each}{', ...' if len(made.counts) > _SHOWN_RANKS else ''}"


def _fixes(value: Power, events: list[Event], axis: str, walk: Walk) -> tuple[list[str], tuple[str, int] | None]:
    """The fixes for a wrong power, and the line that they change."""
    assert value.powers is not None
    sizes = [event for event in events if event.kind == "size" and not _is_mean(event, walk)]
    sums = [event.place for event in events if event.kind == "ranks" and event.place in walk.sums]
    made = walk.sums[sums[-1]] if sums else None
    site, is_large = None if made is None else made.site, min(value.powers) > 0
    x, rows = "loss" if made is None else made.operand, f"rows = cc.from_local(rows, {{{axis!r}: {Shard(0)!r}}})"
    if sizes and is_large == (sizes[-1].number > 0):
        verb = "product with" if is_large else "division by"
        fix = f"leave the {verb} the number of ranks out: the loss is one mean over all rows without it"
        return [fix], walk.site(sizes[-1].place) or site
    if any(event.kind == "count" for event in events):
        divided = f"all_reduce({x}, {axis!r}, to=I) / rows.global_shape[0]"
        return [f"divide by the number of rows of all ranks: {rows}, and {divided}"], site
    if is_large:
        return _fixes_of_means(value, made, x, rows, axis, {event.kind for event in events}), site
    return [
        f"all_reduce({x}, {axis!r}, to=I) in place of the mean over ranks: the values are divided by the rows of all "
        "ranks, or are parts of one sum, so they only have to be added"
    ], site  # fmt: skip


def _fixes_of_means(
    value: Power, made: Sum | None, x: str, rows: str, axis: str, kinds: set[str]
) -> list[str]:  # fmt: skip
    """The fixes for a sum over ranks of means; `cc.mean` only if they are means of equal numbers of rows.

    `kinds` are those of the steps: "own" says that they are sums that the program divides by a number, which a Shard
    would refuse, and "weights" that the number is that of the elements which a mask leaves.
    """
    in_place = " in place of the sum by the number of this rank's rows" if "own" in kinds else ""
    if "ratio" in kinds:
        return [f"all_reduce of each of the two sums along {axis!r}, to=I, and the ratio of the results"]
    if not value.plain:
        return ["take the mean of the Shard itself, in place of that of its cast to V: mean() of a Shard divides by "
                "the elements of all ranks, and their sum over the ranks is the mean of the whole"]  # fmt: skip
    equal = f"cc.mean({x}, {axis!r}, to=I) in place of the sum: right while all ranks have equally many rows"
    if "weights" in kinds:
        return [
            f"all_reduce({x} * n, {axis!r}, to=I) / all_reduce(ag.tensor(float(n)), {axis!r}, to=I), where n is the "
            "number of elements that this rank's mask leaves, or the sum of its weights",
            f"all_reduce(cc.declare_partial({x}, {axis!r}), {axis!r}, to=I), if the sum of different losses is meant, "
            "one of each rank",
        ]  # fmt: skip
    return [
        f"{rows}, whose mean(){in_place} divides by the rows of all ranks; then all_reduce(loss, {axis!r}, to=I) is "
        "right for any numbers of rows",
        *([equal] if made is not None and len(set(made.counts.values())) == 1 else []),
        f"all_reduce(cc.declare_partial({x}, {axis!r}), {axis!r}, to=I), if the sum of different losses is meant, one "
        "of each rank",
    ]  # fmt: skip


def describe_meeting(axis: str, place: int, walk: Walk, mesh: Any) -> tuple[str, tuple[str, int] | None]:
    """The text about rows of a rank that meet each other, and the line of the program, if it is known."""
    node, n, site = walk.node(place), mesh.grid.sizes[mesh.grid.axis(axis)], walk.site(place)
    name = walk.number(place)
    if isinstance(name, str):
        return (
            f"{name}{_at(place, walk)}: the rows are Varying along axis {axis!r}, so each of the {n} ranks normalises "
            "with the mean and the variance of its own rows: the result depends on the number of ranks\n"
            f"  fix: rows = cc.all_gather(x, {axis!r}), and cc.shard(norm(rows), {axis!r}): the statistics of the rows "
            "of all ranks\n"
            "  or:  LayerNorm, RMSNorm or GroupNorm, in which the rows do not meet"
        ), site
    return (
        f"{op_of(node).name}{_at(place, walk)}: the rows are Varying along axis {axis!r}, and each is compared with "
        f"the rows of its own rank alone: it has 1/{n} of the negatives, and the loss depends on the number of ranks\n"
        f"  fix: label the rows, cc.from_local(rows, {{{axis!r}: {Shard(0)!r}}}); for z of them, logits = cc.cast(z, "
        f"{axis!r}, to=V) @ cc.all_gather(z, {axis!r}).T, and the labels rank * len(z) + numpy.arange(len(z)), where "
        "rank is this rank's number"
    ), site


def _function(finding: Any, walk: Walk) -> tuple[str, tuple[str, int] | None]:
    """The text about a function of a value of a wrong power."""
    axis, n, (value,) = finding.axis, finding.size, finding.fault.values
    events = _relevant(value, axis, walk)
    fixes, site = _fixes(value, events, axis, walk)
    if any(event.kind == "size" for event in events):
        fixes.append(f"int(size) in place of the size of axis {axis!r}, if the function is meant to depend on it")
    node: Any = walk.node(finding.fault.place)
    text = "\n".join([
        f"{op_of(node).name} in the objective is a function of a value that is {factor_text(value, n)} along axis "
        f"{axis!r} of {n} ranks: the result is that of another function for each number of ranks",
        *(f"  {line}" for event in events if (line := _step(event, n, axis, walk))),
        *(f"  {'fix: ' if not i else 'or:  '}{fix}" for i, fix in enumerate(fixes)),
    ])  # fmt: skip
    return text, site


def _unequal_terms(finding: Any, walk: Walk) -> tuple[str, tuple[str, int] | None]:
    """The text about terms of unequal powers that were added."""
    axis, n, fault = finding.axis, finding.size, finding.fault
    lines, site = [], None
    values = [value for value in fault.values if value.powers is not None]
    for i, value in enumerate(values):
        sums = [walk.sums[event.place] for event in value.events if event.kind == "ranks" and event.place in walk.sums]
        if sums and site is None and value.is_fault:
            site = sums[-1].site
        of = f", {sums[-1].name}({sums[-1].operand}) at {short_site(*sums[-1].site)}{_counts(sums[-1])}" if sums else ""
        scale = "as large as on one process" if not value.is_fault else factor_text(value, n)
        lines.append(f"  term {i + 1} is {scale}{of}")
    wrong = next((value for value in values if value.is_fault), values[0])
    fixes, of_fix = _fixes(wrong, _relevant(wrong, axis, walk), axis, walk)
    node: Any = walk.node(fault.place)
    name = op_of(node).name if node is not None else "add"
    text = "\n".join([
        f"{name} in the objective adds terms of unequal scale along axis {axis!r} of {n} ranks: the weight of one term "
        "beside the other depends on the number of ranks",
        *lines,
        *(f"  {'fix: ' if not i else 'or:  '}{fix}" for i, fix in enumerate(fixes)),
    ])  # fmt: skip
    return text, site or of_fix
