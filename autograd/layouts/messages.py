"""The text of layout errors: values as ``f32[8,64] {dp: V, tp: I}``, the reason, and a verified fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from ..arrays.device import mixed_devices, unavailable
from ..errors import DeviceError, DtypeError, LayoutError, RingtapeError, ShapeError, call_site, short, typed
from .layout import C, D, I, Label, Layout, P, R, Rooted, Shard, V
from .names import name_of, owner_of, parameter_of, parameters_beside, slice_of
from .rank_values import EVERY_AXIS, rank_axes

__all__ = [
    "ABOUT_EXTENTS", "REJECTED", "Refused", "about_origin", "addend", "contradiction", "describe", "drawn_leaf",
    "explain", "first_elements_text", "fixes", "own_part", "raise_unfit", "rank_dependent", "require_one_number",
    "require_same_number", "unagreed",
]  # fmt: skip


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
        shown = array if isinstance(array, bool | int | float | complex | np.generic) else short(array)
        return f"number{'' if array is None else f' {shown}'}{where}"
    kind = {"f": "f", "c": "c", "i": "i", "u": "u", "b": "bool"}.get(getattr(dtype, "kind", ""), "")
    name = "bool" if kind == "bool" else f"{kind}{dtype.itemsize * 8}" if kind and dtype is not None else "number"
    name = "bf16" if getattr(dtype, "name", "") == "bfloat16" else name
    return f"{name}[{','.join(str(int(n)) for n in shape)}]{where}"


class _Named:
    """An operation whose operands have the names that the caller's program gives them."""

    def __init__(self, op: Any, n: int, operands: Sequence[Any]):
        letters = [op.operand_name(i) for i in range(n)]
        self.name = _CALLED.get(op.name, op.name)
        pairs = zip(operands, letters, strict=False)
        found = [name_of(x, letter, i, self.name) for i, (x, letter) in enumerate(pairs)]
        one = dict(zip(found, operands, strict=False))
        is_clear = len(found) == n and all(one[name] is x for name, x in zip(found, operands, strict=True))
        self.names = found if is_clear else letters

    def operand_name(self, i: int) -> str:
        return self.names[i]


class Refused(Exception):
    """The reason why labels do not mix: a key of `_REASONS`, and the indices of the operands."""


def _unmatched(op: Any, labels: Sequence[Any], i: int, j: int, d: int) -> str:
    return (
        f"{op.operand_name(i)} is sharded on the dimension that {op.name} sums over "
        f"({labels[i]!r}{_in_all(labels[i])}), {op.operand_name(j)} is {labels[j].word}: the contraction is unmatched"
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


def _cut(op: Any, labels: Sequence[Any], one: Shard, two: Shard, i: int, size: int, *lengths: int) -> str:
    first, second = map(repr, (one, two))
    if one.dim == two.dim:  # the extents make the difference
        first, second = (f"{x!r} of {_extents(x, size, n)}" for x, n in zip((one, two), lengths, strict=True))
    return f"the operands are sharded differently: {first} does not mix with {second} of {op.operand_name(i)}"


def _in_all(label: Shard) -> str:
    """``, 12 in all``: the global extent, where the ranks have agreed on it."""
    return "" if label.extent is None else f", {label.extent} in all"


def _extents(label: Shard, size: int, length: int) -> str:
    """``extents 5, 4, 3``, or this rank's alone where the ranks have not agreed on them."""
    if label.extent is None:
        return f"extent {length} on this rank"
    known = label.extents
    return f"{label.extent} in parts {', '.join(map(str, known))}" if known else f"{label.extent} on {size} ranks"


def _cut_along_others(op: Any, labels: Sequence[Any], j: int, i: int) -> str:
    return (
        f"the operands are sharded differently: {labels[j]!r} of {op.operand_name(j)} does not mix with "
        f"{labels[i]!r} of {op.operand_name(i)}"
    )


def _spans(op: Any, labels: Sequence[Any], j: int, d: int, i: int) -> str:
    return (
        f"{op.operand_name(j)} is {labels[j].word} and spans dimension {d}, along which {op.operand_name(i)} is "
        f"sharded{_in_all(labels[i])}: each rank would combine its own part with the whole"
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


def _rooted(op: Any, labels: Sequence[Any], i: int, j: int) -> str:
    root, other = labels[i].root, op.operand_name(j)
    text = f"{op.operand_name(i)} is on rank {root} only (Rooted), and {other} is "
    if labels[j] is V:
        return (
            f"{text}Varying: the values of the other ranks would be left out   (if the value of rank {root} is meant: "
            f"broadcast of {other} from it, to=R)"
        )
    return f"{text}sharded: the parts of the other ranks would be left out"


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
    "rooted": _rooted,
    "invariant": _invariant,
    "partial": _partial,
    "added": _added,
    "not linear": _not_linear,
    "both partial": _both_partial,
}

ABOUT_EXTENTS = frozenset(("unmatched", "cut differently", "cut along others", "spans"))
"""The reasons that explain, too, why the extents of the operands on this rank do not fit."""

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
_FIXES_OF_NUMBERS = {  # the V of an array without dimensions, which has no parts
    I: (V, "cast({x}, {a!r}, to=V)", "free forward, all-reduce in backward"),
    P: (V, "cast(all_reduce({x}, {a!r}, to=R), {a!r}, to=V)", "an all-reduce in both directions"),
    R: (V, "cast({x}, {a!r}, to=V)", "free in both directions"),
}
_GATHER = (R, "all_gather({x}, {a!r}, dim={d})", "a gather forward, a reduce-scatter in backward")
_SHARD = (V, "cast({x}, {a!r}, to=V)", "free; treats the parts as separate values")
_BROADCAST = [(R, "broadcast({x}, {a!r}, root={r}, to=R)", "a broadcast forward, a reduce in backward"),
              (I, "broadcast({x}, {a!r}, root={r}, to=I)", "a broadcast forward, free in backward")]  # fmt: skip


_INSTEAD = {  # further fixes for an operation that mixes along a sharded dimension
    "getitem": "({x} * mask).sum(), if the index is a mask; halo_exchange({x}, {a!r}, 1), for the neighbours of a part",
    "roll": "halo_exchange({x}, {a!r}, 1, periodic=True), for the neighbours of a part as in a stencil",
    "concatenate": "halo_exchange({x}, {a!r}, 1), if the neighbours of a part are meant, and zeros at the ends",
    "put": "halo_exchange({x}, {a!r}, 1), for the neighbours of a part and zeros at the ends, as in a stencil",
    "diff": "halo_exchange({x}, {a!r}, 1), for the neighbours of a part as in a stencil",
}  # fmt: skip


_CALLED = {"put": "pad", "astype_discrete": "astype"}  # operations that programs call by another name

_OF_EACH_ROW = "numpy.take_along_axis({x}, columns.reshape(-1, 1), 1), for one element of each row"


def fixes(label: Label, ndim: int = 1) -> list[tuple[Label, str, str]]:
    """The calls that give an operand with so many dimensions another label."""
    if ndim == 0 and label in _FIXES_OF_NUMBERS:
        return [*(fix for fix in _FIXES[label] if fix[0] is not V), _FIXES_OF_NUMBERS[label]]
    if type(label) is Rooted:
        return [(to, how.replace("{r}", str(label.root)), cost) for to, how, cost in _BROADCAST]
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
    operands: Sequence[Any] = (),
    options: Sequence[Any] = (),
) -> str:
    """The text of a LayoutError: operands, the axis with the reason, a fix that passes inference, the call site.

    If an operand is Varying only because no label was given for the axis, the text asks whether it is the same on all
    ranks, and says how to state that.
    """
    named = _Named(op, len(layouts), operands)
    names = named.names
    shown = ", ".join(f"{n}: {describe(a, s, x)}" for n, a, s, x in zip(names, arrays, shapes, layouts, strict=True))
    word, *at = refused.args
    if by_hand := _update_by_hand(op, arrays, operands):
        return f"{named.name}({shown})\n  axis {axis!r}: {_mix(names, labels)}\n  fix: {by_hand}" + call_site()
    size = layouts[0].grid.sizes[layouts[0].grid.axis(axis)]

    def passes(trial: Sequence[Label]) -> bool:
        try:
            combine(op, trial, shapes, maps, size)
        except Refused:
            return False
        return True

    def with_label(i: int, label: Label) -> bool:
        return passes([*labels[:i], label, *labels[i + 1 :]])

    grid = layouts[0].grid
    questions = [
        origin_question(x, names[i], [axis], how, len(grid.names) == 1)
        for i, x in enumerate(operands)
        if labels[i] is V and shapes[i] != () and _has_default_label(x, axis)
        for how in _as_equal(x, names[i], axis, grid.names, partial(with_label, i))
    ]
    lines = [f"{named.name}({shown})", *questions, f"  axis {axis!r}: {_REASONS[word](named, labels, *at)}"]
    condition = f", if the ranks of {axis!r} have different data" if questions else ""
    found = None
    if any(labels[i] is V and shapes[i] == () and _is_plain(x) for i, x in enumerate(operands)):
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
    if word == "cut differently" and at[0].dim == at[1].dim:
        wholes = " and ".join(f"all_gather({names[i]}, {axis!r}, dim={x.dim})" for i, x in sharded)
        found = f"  fix: {wholes}   (the wholes), or make them with the same parts"
    if word in ("spans", "unmatched"):
        j, d = (at[0], at[1]) if word == "spans" else (at[1], at[2])
        found = _part(names[j], labels[j], axis, d) or found
    by_rows = None
    if word == "unmatched" and isinstance(labels[j], Shard):
        by_rows = (f"  fix: shard {names[j]} along dimension {d} where it is made, to sum over the parts   "
                   "(row parallel: the result is Partial)")  # fmt: skip
    if word == "unmatched" and (marked := _labelled_whole(operands, names, labels, shapes, axis, grid, *at)):
        lines[-1] += f". {marked[0]}"
        found, by_rows = marked[1], None
    if word == "spans":
        j, d, i = at
        found = _of_another_extent(names[j], shapes[j][d], labels[i].extent, labels[j]) or found
        sliced = _part_of_sliced(operands[j], size, labels[i].extent, axis, d) if j < len(operands) else None
        local = shapes[i][labels[i].dim]
        is_same = labels[j] is R or labels[j] is I or labels[j] is C
        if is_same and shapes[j][d] == local != labels[i].extent and size > 1:
            whole = f"all {labels[i].extent}" if labels[i].extent else "all elements"
            found = (f"  fix: shard(whole, {axis!r}, dim={d}), with whole made for {whole} and labelled {R!r}, in "
                     f"place of {names[j]}, which all ranks have made for the {local} of a part")  # fmt: skip
        if is_same and sliced:
            found = sliced
        if labels[j] is V and shapes[j][d] == labels[i].extent and _has_default_label(operands[j], axis):
            made = _labelled(operands[j], names[j], {axis: R}, grid.names)
            whole = made if _is_plain(operands[j]) else names[j]
            found = f"  fix: shard({whole}, {axis!r}, dim={d})" + ("" if whole == made else f", with {made}")
    # usually the operand that is D, I or P must change: try those first
    order = sorted(range(len(labels)), key=lambda i: [D, I, P].index(labels[i]) if labels[i] in (D, I, P) else 3)
    for only_one in (True, False):
        for i in order:
            for label, how, cost in fixes(labels[i], len(shapes[i])):
                if label is V and type(labels[i]) is Shard and sum(type(x) is Shard for x in labels) > 1:
                    continue  # it would pass, and combine parts of different places
                trial = list(labels)
                for j in range(len(labels)):
                    if j == i or (not only_one and trial[j] is labels[i]):
                        trial[j] = label
                if not passes(trial):
                    continue
                d = getattr(labels[i], "dim", 0)
                found = found or f"  fix: {how.format(x=names[i], a=axis, d=d)}{condition}   ({cost})"
    if by_rows is not None:
        found = by_rows if found is None else by_rows + "\n" + found.replace("  fix:", "  or: ", 1)
    if word == "mixes" and op.name in _INSTEAD:
        instead = _INSTEAD[op.name] if not _takes_of_rows(op, options) else _OF_EACH_ROW
        found = f"{found}\n  or:  {instead.format(x=names[at[0]], a=axis)}" if found else None
        if found and op.name == "getitem" and labels[at[0]].dim > 0:
            found += ("\n  or:  a weight for each slice, each divided by columns, if the columns of a fused weight are "
                      "split here, as in q, k, v = split(x @ w, 3)")  # fmt: skip
    if word == "mixes" and op.name == "reshape" and found and options[2] >= 0:
        d = labels[at[0]].dim
        found += f"\n  or:  {names[at[0]]}.shape[{d}] in the shape, where its number is the extent of this rank's part"
    if word in ("invariant", "added"):
        i, j = at if word == "added" else (at[1], at[0])
        found = _of_common_term(names[i], labels[i], names[j], labels[j], axis, with_label(j, P)) or found
    if word == "invariant" and op.name in ("add", "subtract") and labels[at[1]] is V and found:
        found += (f"\n  or:  add {names[at[0]]} to the result of all_reduce(..., {axis!r}, to=I), if {names[at[1]]} is "
                  f"summed over the ranks later: in the sum it would count once per rank")  # fmt: skip
    if word == "added" and op.name in ("add", "subtract") and found and "all_reduce" in found:
        found += (f"\n  or:  {op.name} {names[at[1]]} after the outer all_reduce, if {names[at[0]]} is summed over the "
                  "ranks later: in the sum it would count once per rank")  # fmt: skip
    if word == "invariant" and found and labels[at[1]] is R:
        found += (f"\n  or:  to=I where {names[at[1]]} is made by all_reduce, all_gather or broadcast, if all ranks "
                  "compute the same from there on")  # fmt: skip
    if word == "invariant" and found and operands and (
        type(operands[at[0]]).__name__ == "Parameter" or parameter_of(operands[at[0]])
    ):
        found += _of_parameter(names[at[0]], labels[at[1]], axis)
    lines.append(found or "  fix: reduce or gather the operands on this axis first, or set the intended layout")
    return "\n".join(lines) + call_site()


def _of_common_term(addend: str, of: Label, name: str, label: Label, axis: str, takes_addends: bool) -> str | None:
    """The fixes for a value that all ranks have, such as a penalty, which is added to the addends of a sum."""
    if of is not P or not takes_addends or not (label is R or label is I):
        return None
    return (
        f"  fix: cast({name}, {axis!r}, to=P)   (counted once; kept on the first rank)\n"
        f"  or:  all_reduce({addend}, {axis!r}, to={label!r}) first   (the sum; {name} is added to it)"
    )


def _labelled_whole(
    operands: Sequence[Any], names: Sequence[str], labels: Sequence[Label], shapes: Sequence[Any], axis: str,
    grid: Any, i: int, j: int, d: int,
) -> tuple[str, str] | None:  # fmt: skip
    """The reason and the fix for a leaf that is labelled as a part, and has the extent of the whole."""
    label = labels[i]
    if i >= len(operands):  # a trial without values
        return None
    is_leaf = hasattr(operands[i], "unstated") and not _is_plain(operands[i])
    if not is_leaf or type(label) is not Shard or label.extent is not None or label.dim >= len(shapes[i]):
        return None
    if grid.sizes[grid.names.index(axis)] == 1 or int(shapes[i][label.dim]) != int(shapes[j][d]):
        return None
    maker = "ag.Parameter({})" if type(operands[i]).__name__ == "Parameter" else "{}"
    made = maker.format(f"cc.shard(ag.tensor(A, layout={{{axis!r}: R}}), {axis!r}, dim={label.dim})")
    return (
        f"{names[i]} looks like the whole: on this rank it has all {int(shapes[j][d])} elements along the dimension",
        f"  fix: {names[i]} = {made}, where A is the whole   (this rank's part of it)",
    )


def _mix(names: Sequence[str], labels: Sequence[Label]) -> str:
    """The reason without a word on gradients, which an update by hand does not need."""
    return " does not mix with ".join(f"{x.word} ({name})" for name, x in zip(names, labels, strict=True))


def _update_by_hand(op: Any, arrays: Sequence[Any], operands: Sequence[Any]) -> str | None:
    """The fix for ``p.data - lr * p.grad``."""
    if op.name in ("subtract", "add"):
        for x, array in zip(operands, arrays, strict=False):
            if _is_plain(x) and (name := owner_of(array)):
                return f"{name}.data = {name}.numpy() - lr * {name}.grad.numpy()   (an update by hand)"
    return None


def _takes_of_rows(op: Any, options: Sequence[Any]) -> bool:
    """Whether an index takes one element of each row: it has an array for the rows and one for the columns."""
    key = options[0] if options else None
    return op.name == "getitem" and type(key) is tuple and sum(np.ndim(k) > 0 for k in key if k is not None) > 1


def _of_parameter(name: str, other: Label, axis: str) -> str:
    """More fixes for a parameter that meets different data: it may belong to a module, or to this rank alone."""
    text = ""
    beside = [p.layout for p in parameters_beside(name) if p.layout is not None and axis in p.layout.grid.names]
    if "." in name and other is not P and not any(type(layout[axis]) is Shard for layout in beside):
        text = f"\n  or:  call the model through DataParallel(model, {axis!r}), which makes the casts"
        text += f", if the ranks of {axis!r} have different data" if other is V else ""
    if other is V:
        text += (f"\n  or:  {name} = ag.Parameter({name}.numpy(), {{{axis!r}: V}}), if it belongs to this rank alone, "
                 "as in a stage of a pipeline")  # fmt: skip
    return text


def _of_another_extent(name: str, size: int, extent: int | None, label: Label) -> str | None:
    """The fix for a whole whose dimension does not fit that of the other whole: a reduction has lost a dimension."""
    if extent is None or size in (1, extent) or (label is not R and label is not I):
        return None
    return (
        f"  fix: keepdims=True where {name} is reduced, or {name}.reshape(...): it has {size} elements where the whole "
        f"of the other operand has {extent}"
    )


def _part(name: str, label: Label, axis: str, dim: int) -> str | None:
    """The fix for a whole that meets the parts of another value: this rank's part of it."""
    if label is P:
        return f"  fix: reduce_scatter({name}, {axis!r}, dim={dim})   (this rank's part of the sum)"
    if label is C:
        return f"  fix: shard(ag.tensor({name}, layout={{{axis!r}: R}}), {axis!r}, dim={dim})   (this rank's part)"
    if label is R or label is I:
        cost = "free in both directions" if label is R else "an all-gather in backward"
        return f"  fix: shard({name}, {axis!r}, dim={dim})   (this rank's part; {cost})"
    return None


def _part_of_sliced(x: Any, size: int, extent: int | None, axis: str, dim: int) -> str | None:
    """The fix for a slice of a variable that has the extent of the whole: the variable's own part on this rank."""
    name, value = slice_of(x, dim, extent)
    if not name or (size > 1 and x.array.shape[dim] == extent):
        return None
    found = _part(name, value.layout[axis], axis, dim)
    return found and found.replace("   (", f" in place of the slice of {name}   (", 1)


def _is_plain(x: Any) -> bool:
    """Whether an operand was given as a plain array, list or number (see `engine.tensor.Given`)."""
    return type(x).__name__ == "Given"


def _has_default_label(x: Any, axis: str) -> bool:
    """Whether an operand is Varying along an axis only because the program gives no label for it."""
    return _is_plain(x) or axis in getattr(x, "unstated", ())


def _as_equal(x: Any, name: str, axis: str, axes: Sequence[str], passes: Callable[[Label], bool]) -> list[str]:
    """The fix that states that a value is the same on all ranks, in a list; empty if it would be refused too."""
    is_alone = len(axes) == 1 and not getattr(x, "requires_grad", False)  # then a constant is meant
    constant = f"ag.constant({name})"
    if is_alone and passes(C):
        return [constant]
    for label in (R, I):
        if passes(label):
            return [_labelled(x, name, dict.fromkeys([axis], label), axes)]
    return [how.format(x=constant, a=axis) for label, how, _ in _FIXES[C] if is_alone and passes(label)][:1]


def _labelled(x: Any, name: str, labels: Mapping[str, Label], axes: Sequence[str]) -> str:
    """A leaf made of the same array with more labels."""
    text = ", ".join(f"{axis!r}: {label!r}" for axis, label in labels.items())
    if _is_plain(x):
        return f"ag.tensor({name}, layout={{{text}}})"
    others = "..., " if len(getattr(x, "unstated", ())) < len(axes) else ""
    return f"layout={{{others}{text}}} where {name} is made"


def origin_question(x: Any, name: str, axes: Sequence[str], how: str, is_on_all: bool) -> str:
    """The line of a message about an operand that is Varying by default: what to write if all ranks have the same."""
    if _is_plain(x):
        return (
            f"  {name} is a plain array, which counts as Varying. The same on all ranks"
            f"{'' if is_on_all else f' of {axes[0]!r}'}? fix: {how}"
        )
    shown = "axis " + ", ".join(map(repr, axes)) if len(axes) == 1 else "axes " + ", ".join(map(repr, axes))
    return (
        f"  {name} was made without a label for {shown}, so it is Varying there. The same on all ranks"
        f"{'' if is_on_all else f' of {axes[0]!r}'}? fix: {how}"
    )


def about_origin(text: str, x: Any, name: str, axes: Sequence[str], takes: Callable[[Label], bool]) -> str:
    """The text of a collective's refusal, with the question whether its operand is Varying by default only.

    An operand without any label may be the same on the other axes, too.
    """
    layout, names = x.layout, x.layout.grid.names
    by_default = [axis for axis in names if layout[axis] is V and _has_default_label(x, axis)]
    on = [axis for axis in by_default if axis in axes]
    label = next((label for label in (C, R, I) if takes(label)), None)
    if not on or label is None:
        return text
    is_on_all = len(by_default) == len(names)
    on = by_default if is_on_all else on
    how = f"ag.constant({name})" if label is C else _labelled(x, name, dict.fromkeys(on, label), names)
    first, *rest = text.splitlines()
    return "\n".join([first, origin_question(x, name, on, how, is_on_all), *rest])


def rank_dependent(name: str, layout: Layout, axis: str) -> str:
    """The text of the error for copies of one value with an option that differs between the ranks."""
    label = layout[axis]
    return (
        f"{name}(x: {layout!r}) with an argument that differs between the ranks of axis {axis!r}\n  axis {axis!r}: x "
        f"is {label.word}, and each rank would use it in another way. Needed: Replicated or Varying\n  fix: "
        f"{'cast(x, ' if label is I else 'all_reduce(x, '}{axis!r}, to=R)\n  or:  ag.constant(index), if it is a "
        "plain array, which is Varying by default, and the same on all ranks" + call_site()
    )


def first_elements_text(op: Any, x: Any, layout: Layout, array: Any, key: Any, place: int, axis: str) -> str:
    """The text of the error for copies of one value of which each rank would take as many elements as its part has."""
    entries = key if isinstance(key, tuple) else (key,)
    before = [each for each in entries[:place] if each is not None]
    dim = len(before)
    if any(each is Ellipsis for each in before):
        dim = len(array.shape) - sum(each is not None for each in entries[place:])
    name, label = name_of(x, op.operand_name(0), 0, op.name), layout[axis]
    how = "reduce_scatter" if label is P else "shard"
    text = (
        f"{op.name}({name}: {describe(array, array.shape, layout)})\n  axis {axis!r}: {name} is {label.word}, and the "
        f"bound of the slice [:{entries[place].stop!r}] of dimension {dim} is the local extent of a sharded dimension: "
        f"each rank would take the first elements of {name}, not those of its part\n"
        f"  fix: {how}({name}, {axis!r}, dim={dim})   (this rank's part; if {name} is longer than the whole of the "
        f"sharded value, {how} of {name} cut to its global extent)"
    )
    if label is R or label is C:
        text += f"\n  or:  cast({name}, {axis!r}, to=V) first, if each rank is meant to use the first elements"
    return text + call_site()


def contradiction(caller: str, x: Any, axis: str, have: Label, need: Label) -> str:
    """The text of the error for a leaf made of the Tensor `x` with a label that contradicts the label of `x`."""
    name, d = x.name or "x", getattr(need, "dim", 0)
    if have is D:
        why = "holds the same random numbers on every rank (Drawn)"
        how = f"{_FIXES[D][0][1].format(x=name, a=axis)}   ({_FIXES[D][0][2]})"
        if type(need) is Shard:
            how = (
                f"shard({name}, {axis!r}, dim={d})   (this rank's part of the draw)\n  or:  draw it for a Tensor of "
                "that layout: pass the Tensor instead of a shape   (its part of one logical draw)"
            )
        elif need is P:
            how = f"cast({name}, {axis!r}, to=P)   (one copy, kept on the first rank)"
    elif have is P:
        why = "is an addend of a sum that is not taken yet (Partial)"
        how = f"all_reduce({name}, {axis!r}, to=R)   (the sum)"
    elif type(have) is Shard:
        why = f"is {have!r}: the ranks hold parts"
        how = f"all_gather({name}, {axis!r}, dim={have.dim})   (the whole)"
    else:
        why = f"is {have.word}: the ranks hold equal copies"
        how = f"shard({name}, {axis!r}, dim={d})   (this rank's part)" if type(need) is Shard else (
            f"cast({name}, {axis!r}, to=P)   (one copy, kept on the first rank)")  # fmt: skip
    shown = f"{name}: {describe(x.array, x.array.shape, x.layout)}"
    return (
        f"{caller}({shown}, layout={{{axis!r}: {need!r}}})\n  axis {axis!r}: {name} {why}, which {need.word} "
        f"contradicts\n  fix: {how}"
    )


def drawn_leaf(caller: str, x: Any) -> str:
    """The text of the error for a leaf that is to have a gradient and is made of the random draw `x`."""
    axis = next(name for name, label in x.layout.items() if label is D)
    return (
        f"{caller}({x.name or 'x'}: {describe(x.array, x.array.shape, x.layout)}), which needs a gradient\n"
        f"  axis {axis!r}: {x.name or 'x'} holds the same random numbers on every rank (Drawn), a label without a "
        f"cotangent\n  fix: ag.Parameter({x.name or 'x'})   (Invariant: one value that is learned)\n"
        f"  or:  layout={{{axis!r}: R}}   (equal copies, which the ranks use separately)"
    )


def own_part(given: str, shape: Sequence[int], axis: str, have: Label, need: Any) -> str:
    """The text of the error for equal copies that were given for the parts of a sharded value.

    Parameters
    ----------
    given : str
        What was given, and for what: the start of the text.
    shape : sequence of int
        The shape of what was given.
    have, need : Label
        The label of what was given, and the Shard that is needed; see `layout.is_copy_for_part`.
    """
    d, extent = need.dim, need.extent
    whole = "the whole" if extent is None else f"the whole one, of {extent} elements along dimension {d}"
    labelled = "v" if have is R or have is I else f"ag.tensor(v, layout={{{axis!r}: R}})"
    text = (
        f"{given}{_in_all(need)}\n  axis {axis!r}: all ranks gave the same {int(shape[d])} elements along dimension "
        f"{d} ({have.word}); needed: {need.word}, on each rank its own part\n"
        f"  fix: cc.shard({labelled}, {axis!r}, dim={d}), with v {whole}   (this rank's part)"
    )
    if have is D:
        text += "\n  or:  draw it for that value: pass the value instead of a shape   (its part of one logical draw)"
    return text + call_site()


def addend(caller: str, x: Any, name: str) -> str:
    """The text of the error for a Partial value of which plain data are to be made."""
    axis = next(axis for axis, label in x.layout.items() if label is P)
    then = "" if caller not in ("numpy", "data") else f".{caller}{'()' * (caller == 'numpy')}"
    return (
        f"{caller}({name}: {describe(x.array, x.array.shape, x.layout)})\n  axis {axis!r}: {name} is Partial: this "
        "rank holds an addend of the value, not the value\n"
        f"  fix: all_reduce({name}, {axis!r}, to=I){then}   (the sum)\n"
        f"  or:  {name}.local   (this rank's addend)"
    )


def unagreed(caller: str, layout: Layout, shape: Sequence[int], axis: str, label: Shard) -> str:
    """The text of the error for a Shard whose extents the ranks have not agreed on, where a caller needs them."""
    labels = "{" + ", ".join(f"{name!r}: {x!r}" for name, x in layout.items()) + "}"
    along = ", ".join("..." if d == label.dim else str(int(n)) for d, n in enumerate(shape))
    return (
        f"{caller}(x: {describe(None, shape, layout)})\n  axis {axis!r}: x is {label!r}, and the ranks have not agreed "
        f"on the extents of its parts along dimension {label.dim}, so the shape of the whole is not known\n"
        f"  fix: cc.from_local(x, {labels}) where x is made   (any extents; one small message)\n"
        f"  or:  global_shape=({along}{',' if len(shape) == 1 else ''}) where x is made   (the parts are those of "
        f"numpy.array_split)\n  or:  cast(x, {axis!r}, to=y.layout[{axis!r}]), if x is computed and y is divided "
        "alike\n"
        f"  or:  cc.shard(ag.tensor(whole, layout={{{axis!r}: R}}), {axis!r}, dim={label.dim}), if every rank has the "
        "whole"
    )


def require_same_number(value: Any, what: str) -> None:
    """Raise LayoutError if a number that all ranks share, such as a learning rate, differs between ranks."""
    axes = sorted(rank_axes(value))
    if axes:
        where = "the ranks" if EVERY_AXIS in axes else f"the ranks of axis {', '.join(map(repr, axes))}"
        raise LayoutError(
            f"{what}={value!r} differs between {where}; needed: one number for all ranks\n  fix: a number that does "
            "not depend on the rank, such as a global extent (x.global_shape[...])" + call_site()
        )


def require_one_number(layout: Layout | None, shape: tuple[int, ...], unstated: Mapping[str, Any]) -> None:
    """Raise LayoutError if an objective is not one global number: its label on every axis must be I, P or Rooted.

    `unstated` is `state.unstated`: leaves that may be the reason why the objective is Varying along an axis.
    """
    if layout is None:
        return
    for axis, size, label in zip(layout.grid.names, layout.grid.sizes, layout.labels, strict=True):
        if label is R:
            raise LayoutError(
                f"backward(loss: {describe(None, shape, layout)})\n  axis {axis!r}: the objective is Replicated: each "
                f"rank would seed its copy, and its cotangent, which is Partial, would count once per rank"
                f"{f', {size} times' if size > 1 else ''}. Needed: Invariant, Partial or Rooted\n"
                f"  fix: cast(loss, {axis!r}, to=I)   (inside the tape's block; free in both directions), or "
                f"all_reduce(..., {axis!r}, to=I) where the sum is taken" + call_site()
            )
        if label is V or type(label) is Shard:
            question, fix, condition = "", "fix: ", ""
            if axis in unstated:
                name, dtype, own_shape, own = unstated[axis]
                question = (
                    f"  {name or 'a tensor'}: {describe(np.empty(0, dtype), own_shape, own)} was made without a label "
                    f"for axis {axis!r}, so it is Varying there. The same on all ranks of {axis!r}?\n"
                    f"  fix: layout={{..., {axis!r}: R}} where it is made\n"
                )
                fix, condition = "or:  ", f", if the ranks of {axis!r} have different data"
            raise LayoutError(
                f"backward(loss: {describe(None, shape, layout)})\n  axis {axis!r}: the objective is {label.word}: "
                f"{f'{size} different numbers' if size > 1 else 'a number of each rank'}, and no single one to "
                f"differentiate. Needed: Invariant, Partial or Rooted\n"
                f"{question}  {fix}all_reduce(loss, {axis!r}, to=I){condition}   (if each rank holds a part "
                f"of the loss)\n"
                f"  or:  broadcast(loss, {axis!r}, 0, to=I)   (if the loss is the same on all ranks)\n"
                f"  If all ranks compute the same number, label the data: ag.constant(a) for a plain array a, "
                f"layout={{{axis!r}: R}} for a tensor without a label" + call_site()
            )


REJECTED = ValueError, TypeError, IndexError, OverflowError, AttributeError
"""The errors with which NumPy's functions refuse operands."""
_UNFIT: dict[type[Exception], type[RingtapeError]] = {ValueError: ShapeError, TypeError: DtypeError}


def _shape_of(x: Any) -> tuple[int, ...]:
    try:
        shape = np.shape(x)
    except Exception:  # nested lists of different lengths, and objects of the program that fail
        return ()
    return shape if isinstance(shape, tuple) else ()  # a module's `shape` is a function


def raise_unfit(op: Any, error: Exception, xs: Sequence[Any]) -> NoReturn:
    """Raise the error for operands that the function itself rejects: their names, shapes, layouts and the call site.

    A `RingtapeError`, as of an operation inside the function, is raised again unchanged.
    """
    if isinstance(error, RingtapeError):
        raise error
    shown = []
    for i, x in enumerate(xs):
        array, layout = (x.array, x.layout) if hasattr(x, "tape") else (x, None)
        shown.append(f"{op.operand_name(i)}: {describe(array, _shape_of(array), layout)}")
    named = ((op.operand_name(i), x) for i, x in enumerate(xs))
    mixed = mixed_devices(op.name, named) if isinstance(error, TypeError) or "device" in str(error) else ""
    if mixed:
        raise DeviceError(mixed + call_site()) from error
    missing = unavailable(error)
    if missing:
        raise DeviceError(
            f"{op.name}({', '.join(shown)}) on a GPU: {missing}\n  fix: {op.operand_name(0)}.to('cpu'), and "
            ".to('cuda') of the result" + call_site()
        ) from error
    text = f"{op.name}({', '.join(shown)}): {_reason(error, op, xs)}" + call_site()
    raise typed(error, text, _UNFIT) from error


_INNER_EXTENTS = (  # NumPy's text, and that of arrays with a shape only; compiled at the first error
    r"core dimension 0, with gufunc signature \(n\?,k\),\(k,m\?\)|matmul of shapes .* inner extents do not fit"
)


def _reason(error: Exception, op: Any, xs: Sequence[Any]) -> str:
    """The text of NumPy's error, or, of a matrix product whose extents differ, which extents these are."""
    if len(xs) != 2 or not re.search(_INNER_EXTENTS, str(error)):
        return str(error)
    (a, b), (x, y) = map(_shape_of, xs), map(op.operand_name, (0, 1))
    first = "dimension" if len(b) == 1 else "first dimension" if len(b) == 2 else "second last dimension"
    turned = f"\n  fix: {y}.T" if len(b) == 2 and a[-1] == b[-1] else ""
    return (
        f"the {'last ' if len(a) > 1 else ''}dimension of {x} is {a[-1]}, the {first} of {y} {b[-min(2, len(b))]}; "
        f"needed: the same{turned}"
    )
