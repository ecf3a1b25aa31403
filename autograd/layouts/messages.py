"""The text of layout errors: values as ``f32[8,64] {dp: V, tp: I}``, the reason, and a verified fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import DtypeError, LayoutError, RingtapeError, ShapeError, call_site, typed
from .layout import C, D, I, Label, Layout, P, R, Shard, V
from .rank_values import RankFloat, RankInt

__all__ = ["REJECTED", "Refused", "describe", "explain", "fixes", "rank_dependent", "require_one_number", "unfit"]


def describe(array: Any, shape: Any, layout: Any) -> str:
    """``f32[8,64] {dp: V, tp: I}``

    Examples
    --------
    >>> import numpy
    >>> describe(numpy.zeros((8, 64), "float32"), (8, 64), None)
    'f32[8,64]'
    """
    dtype = getattr(array, "dtype", None)
    where = "" if layout is None else f" {layout!r}"
    if dtype is None and not shape:
        return f"number{'' if array is None else f' {array}'}{where}"
    kind = {"f": "f", "c": "c", "i": "i", "u": "u", "b": "bool"}.get(getattr(dtype, "kind", ""), "")
    short = "bool" if kind == "bool" else f"{kind}{dtype.itemsize * 8}" if kind and dtype is not None else "number"
    return f"{short}[{','.join(str(int(n)) for n in shape)}]{where}"


class Refused(Exception):
    """The reason why labels do not mix: a key of `_REASONS`, and the indices of the operands."""


def _unmatched(op: Any, labels: Sequence[Label], i: int, j: int) -> str:
    return (
        f"{op.operand_name(i)} is sharded on the dimension that {op.name} sums over ({labels[i]!r}), "
        f"{op.operand_name(j)} is {labels[j].word}: the contraction is unmatched"
    )


def _mixes(op: Any, labels: Sequence[Any], i: int) -> str:
    return (
        f"{op.operand_name(i)} is {labels[i]!r}, and {op.name} mixes along dimension {labels[i].dim}: "
        "each rank would use only its own part"
    )


def _splits(op: Any, labels: Sequence[Any], i: int) -> str:
    return (
        f"{op.operand_name(i)} is {labels[i]!r} with extent {labels[i].extent}, which {op.name} splits across a "
        "boundary"
    )


def _cut(op: Any, labels: Sequence[Any], one: Label, two: Label, i: int) -> str:
    return f"the operands are sharded differently: {one!r} does not mix with {two!r} of {op.operand_name(i)}"


def _cut_along_others(op: Any, labels: Sequence[Any], j: int, i: int) -> str:
    return (
        f"the operands are sharded differently: {labels[j]!r} of {op.operand_name(j)} does not mix with "
        f"{labels[i]!r} of {op.operand_name(i)}"
    )


def _spans(op: Any, labels: Sequence[Any], j: int, d: int, i: int) -> str:
    return (
        f"{op.operand_name(j)} is {labels[j].word} and spans dimension {d}, along which {op.operand_name(i)} is "
        "sharded: each rank would combine its own part with the whole"
    )


def _invariant(op: Any, labels: Sequence[Any], i: int, j: int) -> str:
    return (
        f"Invariant ({op.operand_name(i)}) does not mix with {labels[j].word} ({op.operand_name(j)}); "
        f"{op.operand_name(i)}'s gradient would miss the sum over the ranks"
    )


def _added(op: Any, labels: Sequence[Any], i: int, j: int) -> str:
    count = "once per rank" if labels[j] is R or labels[j] is C else "separately"
    return f"{_partial(op, labels, i, j)}, which would be added {count}"


def _partial(op: Any, labels: Sequence[Any], i: int, j: int) -> str:
    return f"Partial ({op.operand_name(i)}) does not mix with {labels[j].word} ({op.operand_name(j)})"


def _not_linear(op: Any, labels: Sequence[Any], j: int) -> str:
    return f"{op.name} is not linear in {op.operand_name(j)}, which is Partial: the sum must be taken first"


def _both_partial(op: Any, labels: Sequence[Any], i: int, j: int) -> str:
    return f"{op.operand_name(i)} and {op.operand_name(j)} are both Partial, and sums do not multiply term by term"


def _drawn(op: Any, labels: Sequence[Any], i: int, j: int) -> str:
    return (
        f"{op.operand_name(i)} holds the same random numbers on every rank (Drawn), and {op.operand_name(j)} has "
        "different values on each rank (Varying)"
    )


_REASONS: dict[str, Callable[..., str]] = {
    "drawn": _drawn,
    "mixes": _mixes,
    "unmatched": _unmatched,
    "splits": _splits,
    "cut differently": _cut,
    "cut along others": _cut_along_others,
    "spans": _spans,
    "contraction": lambda *_: "a contraction over a sharded dimension mixes with operands that are not Replicated",
    "roots": lambda *_: "the operands are rooted on different ranks",
    "invariant": _invariant,
    "partial": _partial,
    "added": _added,
    "not linear": _not_linear,
    "both partial": _both_partial,
}

_FIXES = {  # label of an operand -> (label it gets, the call, its cost)
    I: [(R, "cast({x}, {a!r}, to=R)", "free forward, all-reduce in backward"),
        (P, "cast({x}, {a!r}, to=P)", "kept on the first rank; free in both directions"),
        (V, "shard({x}, {a!r}, dim=...)", "keeps this rank's part; an all-gather in backward")],
    P: [(R, "all_reduce({x}, {a!r}, to=R)", "an all-reduce in both directions"),
        (I, "all_reduce({x}, {a!r}, to=I)", "an all-reduce forward, free in backward"),
        (V, "reduce_scatter({x}, {a!r}, dim=...)", "takes the sum and keeps this rank's part of it")],
    R: [(P, "cast({x}, {a!r}, to=P)", "kept on the first rank; free in both directions"),
        (I, "cast({x}, {a!r}, to=I)", "free in both directions"),
        (V, "shard({x}, {a!r}, dim=...)", "keeps this rank's part; free in both directions")],
    C: [(P, "cast({x}, {a!r}, to=P)", "kept on the first rank; free")],
    D: [(V, "draw {x} from key.along({a!r})", "other numbers on every rank"),
        (C, "constant({x})", "declares that the same numbers are intended")],
    V: [(P, "declare_partial({x}, {a!r})", "free; declares that these are addends"),
        (R, "all_reduce({x}, {a!r}, to=R)", "the sum over the ranks, an all-reduce in both directions")],
}  # fmt: skip
_GATHER = (R, "all_gather({x}, {a!r}, dim={d})", "a gather forward, a reduce-scatter in backward")
_SHARD = (V, "cast({x}, {a!r}, to=V)", "free; treats the parts as separate values")


def fixes(label: Label) -> list[tuple[Label, str, str]]:
    """The calls that give an operand another label."""
    return [_GATHER, _SHARD] if type(label) is Shard else _FIXES.get(label, [])


def explain(
    op: Any,
    layouts: Sequence[Layout],
    shapes: Sequence[tuple[int, ...]],
    maps: Any,
    labels: Sequence[Label],
    axis: str,
    refused: Refused,
    arrays: Sequence[Any],
    combine: Callable[..., Label],
) -> str:
    """The text of a LayoutError: operands, the axis with the reason, a fix that passes inference, the call site."""
    names = [op.operand_name(i) for i in range(len(layouts))]
    shown = ", ".join(f"{n}: {describe(a, s, x)}" for n, a, s, x in zip(names, arrays, shapes, layouts, strict=True))
    word, *at = refused.args
    lines = [f"{op.name}({shown})", f"  axis {axis!r}: {_REASONS[word](op, labels, *at)}"]
    found = None
    size = layouts[0].grid.sizes[layouts[0].grid.axis(axis)]
    if any(isinstance(a, RankInt | RankFloat) for a in arrays):
        found = "  fix: use a number that is the same on every rank, like the global extent x.global_shape[...]"
    sharded = [(i, x) for i, x in enumerate(labels) if isinstance(x, Shard)]
    drawn = [i for i, x in enumerate(labels) if x is D]
    if drawn and sharded:
        found = (f"  fix: draw {names[drawn[0]]} for {names[sharded[0][0]]}: pass it instead of a shape   "
                 "(this rank's part of one logical draw)")  # fmt: skip
    if len(sharded) > 1 and sharded[0][1].dim != sharded[1][1].dim and len(set(map(len, shapes))) == 1:
        (_, one), (j, two) = sharded[:2]
        how = f"all_to_all({names[j]}, {axis!r}, split_dim={one.dim}, concat_dim={two.dim})"
        found = f"  fix: {how}   (shards both alike)"
    # usually the operand that is D, I or P must change: try those first
    order = sorted(range(len(labels)), key=lambda i: [D, I, P].index(labels[i]) if labels[i] in (D, I, P) else 3)
    for only_one in (True, False):
        for i in order:
            for label, how, cost in fixes(labels[i]):
                if label is V and type(labels[i]) is Shard and sum(type(x) is Shard for x in labels) > 1:
                    continue  # it would pass, and combine parts of different places
                trial = list(labels)
                for j in range(len(labels)):
                    if j == i or (not only_one and trial[j] is labels[i]):
                        trial[j] = label
                try:
                    combine(op, trial, shapes, maps, size)
                except Refused:
                    continue
                d = getattr(labels[i], "dim", 0)
                found = found or f"  fix: {how.format(x=names[i], a=axis, d=d)}   ({cost})"
    lines.append(found or "  fix: reduce or gather the operands on this axis first, or set the intended layout")
    return "\n".join(lines) + call_site()


def rank_dependent(name: str, layout: Layout, axis: str) -> str:
    """The text of the error for copies of one value with an option that differs between the ranks."""
    label = layout[axis]
    return (
        f"{name}(x: {layout!r}) with an argument that differs between the ranks of axis {axis!r}\n  axis {axis!r}: x "
        f"is {label.word}, and each rank would use it in another way. Needed: Replicated or Varying\n  fix: "
        f"{'cast(x, ' if label is I else 'all_reduce(x, '}{axis!r}, to=R)\n  or:  ag.constant(index), if it is an "
        "array that is the same on all ranks" + call_site()
    )


def require_one_number(layout: Layout | None, shape: tuple[int, ...], error: type[RingtapeError] = LayoutError) -> None:
    """Raise an error if an objective is not one global number: its label on every axis must be I, P or Rooted."""
    if layout is None:
        return
    for axis, size, label in zip(layout.grid.names, layout.grid.sizes, layout.labels, strict=True):
        if label is R:
            raise error(
                f"backward(loss: {describe(None, shape, layout)})\n  axis {axis!r}: the objective is Replicated: each "
                f"of the {size} ranks would seed its copy, and its cotangent, which is Partial, would count {size} "
                f"times. Needed: Invariant, Partial or Rooted\n  fix: cast(loss, {axis!r}, to=I)   (free in both "
                f"directions), or all_reduce(..., {axis!r}, to=I) where the sum is taken" + call_site()
            )
        if label is V or type(label) is Shard:
            raise error(
                f"backward(loss: {describe(None, shape, layout)})\n  axis {axis!r}: the objective is {label.word}: "
                f"{size} different numbers, and no single one to differentiate. Needed: Invariant, Partial or Rooted\n"
                f"  fix: all_reduce(loss, {axis!r}, to=I)   (the sum over the ranks)\n"
                f"  or:  mean(loss, {axis!r}, to=I)   (their mean)" + call_site()
            )


REJECTED = ValueError, TypeError, IndexError, OverflowError
"""The errors with which NumPy's functions refuse operands."""
_UNFIT: dict[type[Exception], type[RingtapeError]] = {ValueError: ShapeError, TypeError: DtypeError}


def unfit(op: Any, error: Exception, xs: Sequence[Any]) -> Exception:
    """The error for operands that the function itself rejects: their names, shapes, layouts and the call site."""
    if isinstance(error, RingtapeError):
        return error
    shown = []
    for i, x in enumerate(xs):
        array, layout = (x.array, x.layout) if hasattr(x, "tape") else (x, None)
        shown.append(f"{op.operand_name(i)}: {describe(array, np.shape(array), layout)}")
    return typed(error, f"{op.name}({', '.join(shown)}): {error}" + call_site(), _UNFIT)
