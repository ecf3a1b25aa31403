"""Texts of errors about values and labels, and the calls that give values other labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ..arrays.device import mixed_devices, unavailable
from ..errors import DeviceError, DtypeError, RingtapeError, ShapeError, typed
from .layout import C, D, I, Label, Labelled, Layout, P, R, Rooted, Shard, V
from .messages import describe
from .names import name_of

__all__ = [
    "FIXES", "about_origin", "addend", "contradiction", "drawn_leaf", "first_elements_text", "fixes",
    "has_default_label", "in_all", "is_plain", "labelled", "origin_question", "own_part", "raise_unfit",
    "rank_dependent", "unagreed",
]  # fmt: skip


def in_all(label: Shard) -> str:
    """``, 12 in all``: the global extent, where the ranks have agreed on it."""
    return "" if label.extent is None else f", {label.extent} in all"


FIXES = {  # label of an operand -> (label it gets, the call, its cost)
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
_OF_NUMBERS = {  # the V of an array without dimensions, which has no parts
    I: (V, "cast({x}, {a!r}, to=V)", "free forward, all-reduce in backward"),
    P: (V, "cast(all_reduce({x}, {a!r}, to=R), {a!r}, to=V)", "an all-reduce in both directions"),
    R: (V, "cast({x}, {a!r}, to=V)", "free in both directions"),
}
_GATHER = (R, "all_gather({x}, {a!r}, dim={d})", "a gather forward, a reduce-scatter in backward")
_SHARD = (V, "cast({x}, {a!r}, to=V)", "free; treats the parts as separate values")
_BROADCAST = [(R, "broadcast({x}, {a!r}, root={r}, to=R)", "a broadcast forward, a reduce in backward"),
              (I, "broadcast({x}, {a!r}, root={r}, to=I)", "a broadcast forward, free in backward")]  # fmt: skip


def fixes(label: Label, ndim: int = 1) -> list[tuple[Label, str, str]]:
    """The calls that give an operand with so many dimensions another label."""
    if ndim == 0 and label in _OF_NUMBERS:
        return [*(fix for fix in FIXES[label] if fix[0] is not V), _OF_NUMBERS[label]]
    if type(label) is Rooted:
        return [(to, how.replace("{r}", str(label.root)), cost) for to, how, cost in _BROADCAST]
    return [_GATHER, _SHARD] if type(label) is Shard else FIXES.get(label, [])


def is_plain(x: Any) -> bool:
    """Whether an operand was given as a plain array, list or number (see `engine.tensor.Given`)."""
    return type(x).__name__ == "Given"


def has_default_label(x: Any, axis: str) -> bool:
    """Whether an operand is Varying along an axis only because the program gives no label for it."""
    return is_plain(x) or axis in getattr(x, "unstated", ())


def labelled(x: Any, name: str, labels: Mapping[str, Label], axes: Sequence[str]) -> str:
    """A leaf made of the same array with more labels."""
    text = ", ".join(f"{axis!r}: {label!r}" for axis, label in labels.items())
    if is_plain(x):
        return f"ag.tensor({name}, layout={{{text}}})"
    others = "..., " if len(getattr(x, "unstated", ())) < len(axes) else ""
    return f"layout={{{others}{text}}} where {name} is made"


def origin_question(x: Any, name: str, axes: Sequence[str], how: str, is_on_all: bool) -> str:
    """The line of a message about an operand that is Varying by default: what to write if all ranks have the same."""
    if is_plain(x):
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
    by_default = [axis for axis in names if layout[axis] is V and has_default_label(x, axis)]
    on = [axis for axis in by_default if axis in axes]
    label = next((label for label in (C, R, I) if takes(label)), None)
    if not on or label is None:
        return text
    is_on_all = len(by_default) == len(names)
    on = by_default if is_on_all else on
    how = f"ag.constant({name})" if label is C else labelled(x, name, dict.fromkeys(on, label), names)
    first, *rest = text.splitlines()
    return "\n".join([first, origin_question(x, name, on, how, is_on_all), *rest])


def rank_dependent(name: str, layout: Layout, axis: str) -> str:
    """The text of the error for copies of one value with an option that differs between the ranks."""
    label = layout[axis]
    return (
        f"{name}(x: {layout!r}) with an argument that differs between the ranks of axis {axis!r}\n  axis {axis!r}: x "
        f"is {label.word}, and each rank would use it in another way. Needed: Replicated or Varying\n  fix: "
        f"{'cast(x, ' if label is I else 'all_reduce(x, '}{axis!r}, to=R)\n  or:  ag.constant(index), if it is a "
        "plain array, which is Varying by default, and the same on all ranks"
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
    return text


def contradiction(caller: str, x: Any, axis: str, have: Label, need: Label) -> str:
    """The text of the error for a leaf made of the Tensor `x` with a label that contradicts the label of `x`."""
    name, d = x.name or "x", getattr(need, "dim", 0)
    if have is D:
        why = "holds the same random numbers on every rank (Drawn)"
        how = f"{FIXES[D][0][1].format(x=name, a=axis)}   ({FIXES[D][0][2]})"
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
        f"{given}{in_all(need)}\n  axis {axis!r}: all ranks gave the same {int(shape[d])} elements along dimension "
        f"{d} ({have.word}); needed: {need.word}, on each rank its own part\n"
        f"  fix: cc.shard({labelled}, {axis!r}, dim={d}), with v {whole}   (this rank's part)"
    )
    if have is D:
        text += "\n  or:  draw it for that value: pass the value instead of a shape   (its part of one logical draw)"
    return text


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
        array, layout = (x.array, x.layout) if isinstance(x, Labelled) else (x, None)
        shown.append(f"{op.operand_name(i)}: {describe(array, _shape_of(array), layout)}")
    named = ((op.operand_name(i), x) for i, x in enumerate(xs))
    may_be_mixed = isinstance(error, TypeError | AttributeError) or "device" in str(error)
    mixed = mixed_devices(op.name, named) if may_be_mixed else ""
    if mixed:
        raise DeviceError(mixed) from error
    missing = unavailable(error)
    if missing:
        raise DeviceError(
            f"{op.name}({', '.join(shown)}) on a GPU: {missing}\n  fix: {op.operand_name(0)}.to('cpu'), and "
            ".to('cuda') of the result"
        ) from error
    text = f"{op.name}({', '.join(shown)}): {_reason(error, op, xs)}"
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
