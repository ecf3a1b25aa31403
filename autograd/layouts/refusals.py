"""Why operands are refused: for each reason its text and its fixes, in one table.

| column of `REASONS` | |
|---|---|
| text | why the labels do not mix; `layouts.inference` gives the reason and the operands |
| fixes | the first of them that applies is offered, before those of `_ANY`, which are for every reason |
| before | a fix that is offered before that one |
| more | further ones, offered if there is a first |
| is_about_extents | whether the reason explains, too, why the extents of the operands on this rank do not fit |

A fix that belongs to an operation stands in its declaration: see `fixes` of `engine.primitive.Primitive`. A fix that
gives an operand another label is offered if inference accepts the operands with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from .layout import C, D, I, Label, Layout, P, R, Shard, V
from .messages import Refused, describe
from .names import name_of, owner_of, parameter_of, parameters_beside, slice_of
from .texts import FIXES, fixes, has_default_label, in_all, is_plain, labelled, origin_question

__all__ = ["REASONS", "Reason", "Refusal", "explain"]


class _Named:
    """An operation whose operands have the names that the caller's program gives them."""

    def __init__(self, op: Any, n: int, operands: Sequence[Any]):
        letters = [op.operand_name(i) for i in range(n)]
        self.name = getattr(op, "called", "") or op.name
        pairs = zip(operands, letters, strict=False)
        found = [name_of(x, letter, i, self.name) for i, (x, letter) in enumerate(pairs)]
        one = dict(zip(found, operands, strict=False))
        is_clear = len(found) == n and all(one[name] is x for name, x in zip(found, operands, strict=True))
        self.names = found if is_clear else letters

    def operand_name(self, i: int) -> str:
        return self.names[i]


class Refusal:
    """Operands whose labels do not mix along an axis, and the reason.

    Attributes
    ----------
    op : Primitive
    layouts, shapes, arrays, operands, options
        Of the call. `operands` is empty in a trial without values.
    labels : sequence of Label
        The operands' labels on `axis`, C for those without a cotangent.
    axis : str
    reason, at
        A key of `REASONS`, and what goes with it: mostly the indices of operands.
    names : sequence of str
        The operands' names in the caller's program.
    found : str or None
        The fix that is offered so far.
    """

    found: str | None = None

    def __init__(
        self, op: Any, layouts: Sequence[Layout], shapes: Sequence[tuple[int, ...]], maps: Any,
        labels: Sequence[Label], axis: str, refused: Refused, arrays: Sequence[Any], combine: Callable[..., Label],
        operands: Sequence[Any], options: Sequence[Any],
    ):  # fmt: skip
        self.op, self.layouts, self.shapes, self.maps, self.labels = op, layouts, shapes, maps, labels
        self.axis, self.arrays, self.operands, self.options = axis, arrays, operands, options
        self.reason, *self.at = refused.args
        self.grid, self.combine = layouts[0].grid, combine
        self.size = self.grid.sizes[self.grid.axis(axis)]
        self.named = _Named(op, len(layouts), operands)
        self.names = self.named.names

    @property
    def shown(self) -> str:
        """The call with its operands, the first line of the text."""
        rows = zip(self.names, self.arrays, self.shapes, self.layouts, strict=True)
        return f"{self.named.name}({', '.join(f'{n}: {describe(a, s, x)}' for n, a, s, x in rows)})"

    @property
    def questions(self) -> list[str]:
        """Whether operands that are Varying by default are the same on all ranks, and how to state that."""
        return [
            origin_question(x, self.names[i], [self.axis], how, len(self.grid.names) == 1)
            for i, x in enumerate(self.operands)
            if self.labels[i] is V and self.shapes[i] != () and has_default_label(x, self.axis)
            for how in _as_equal(x, self.names[i], self.axis, self.grid.names, partial(self.with_label, i))
        ]

    @property
    def sharded(self) -> list[tuple[int, Shard]]:
        """The operands that are sharded."""
        return [(i, x) for i, x in enumerate(self.labels) if isinstance(x, Shard)]

    @property
    def marked(self) -> str | None:
        """For the reason "unmatched": see `_labelled_whole`."""
        return _labelled_whole(self)

    def operand(self, i: int) -> Any:
        """An operand, or None in a trial without values."""
        return self.operands[i] if i < len(self.operands) else None

    def passes(self, trial: Sequence[Label]) -> bool:
        """Whether inference accepts other labels of the operands."""
        try:
            self.combine(self.op, trial, self.shapes, self.maps, self.size)
        except Refused:
            return False
        return True

    def with_label(self, i: int, label: Label) -> bool:
        """Whether inference accepts another label of operand i."""
        return self.passes([*self.labels[:i], label, *self.labels[i + 1 :]])

    def declared(self, key: str) -> list[str]:
        """The fixes for a reason that stand in the declaration of the operation."""
        given = getattr(self.op, "fixes", {}).get(key, ())
        rules = [given] if isinstance(given, str) else given(self) if callable(given) else given
        if not rules:
            return []
        x, y = self.names[self.at[0]], self.names[self.at[1] if len(self.at) > 1 else self.at[0]]
        return [rule.format(x=x, y=y, a=self.axis) for rule in rules]


def explain(*given: Any) -> str:
    """The text of a LayoutError: operands, the axis with the reason, a fix that passes inference, the call site.

    If an operand is Varying only because no label was given for the axis, the text asks whether it is the same on all
    ranks, and says how to state that. The parameters are those of `Refusal`.
    """
    refusal = Refusal(*given)
    axis, reason = f"  axis {refusal.axis!r}: ", REASONS[refusal.reason]
    if update := _update_by_hand(refusal):
        return f"{refusal.shown}\n{axis}{_mix(refusal.names, refusal.labels)}\n  fix: {update}"
    why = reason.text(refusal.named, refusal.labels, *refusal.at) + reason.note(refusal)
    lines = [refusal.shown, *refusal.questions, axis + why]
    first = (fix(refusal) for fix in (*reason.fixes, *_ANY))
    refusal.found = next(filter(None, first), None)
    if reason.before is not None and (before := reason.before(refusal)):
        others = "" if refusal.found is None else "\n" + refusal.found.replace("  fix:", "  or: ", 1)
        refusal.found = before + others
    if refusal.found:
        refusal.found += "".join(f"\n  or:  {how}" for how in refusal.declared(refusal.reason))
        refusal.found += "".join(f"\n  or:  {how}" for more in reason.more for how in more(refusal))
    lines.append(refusal.found or "  fix: reduce or gather the operands on this axis first, or set the intended layout")
    return "\n".join(lines)


# -- fixes of every reason -------------------------------------------------------------------------------------------
def _all_to_all(refusal: Refusal) -> str | None:
    """The fix for operands that are sharded along different dimensions: both alike."""
    if len(refusal.sharded) < 2 or len(set(map(len, refusal.shapes))) != 1:
        return None
    (_, one), (j, two) = refusal.sharded[:2]
    if one.dim == two.dim:
        return None
    how = f"all_to_all({refusal.names[j]}, {refusal.axis!r}, split_dim={one.dim}, concat_dim={two.dim})"
    return f"  fix: {how}   (shards both alike)"


def _part_of_draw(refusal: Refusal) -> str | None:
    """The fix for random numbers that meet the parts of a value."""
    drawn = [name for name, x in zip(refusal.names, refusal.labels, strict=True) if x is D]
    if not drawn or not refusal.sharded:
        return None
    return (f"  fix: draw {drawn[0]} for {refusal.names[refusal.sharded[0][0]]}: pass it instead of a shape   "
            "(this rank's part of one logical draw)")  # fmt: skip


def _one_number(refusal: Refusal) -> str | None:
    """The fix for a plain number that differs between ranks."""
    for x, label, shape in zip(refusal.operands, refusal.labels, refusal.shapes, strict=False):
        if label is V and shape == () and is_plain(x):
            return "  fix: use a number that is the same on every rank, like the global extent x.global_shape[...]"
    return None


def _another_label(refusal: Refusal) -> str | None:
    """The first call that gives an operand, or all with its label, a label with which inference accepts them."""
    condition = f", if the ranks of {refusal.axis!r} have different data" if refusal.questions else ""
    for i, how, cost in _other_labels(refusal):
        d = getattr(refusal.labels[i], "dim", 0)
        return f"  fix: {how.format(x=refusal.names[i], a=refusal.axis, d=d)}{condition}   ({cost})"
    return None


def _other_labels(refusal: Refusal) -> Iterator[tuple[int, str, str]]:
    """The calls with which inference accepts the operands: the operand, the call and its cost."""
    labels = refusal.labels
    # usually the operand that is D, I or P must change: try those first
    order = sorted(range(len(labels)), key=lambda i: [D, I, P].index(labels[i]) if labels[i] in (D, I, P) else 3)
    for only_one in (True, False):
        for i in order:
            for label, how, cost in fixes(labels[i], len(refusal.shapes[i])):
                if label is V and type(labels[i]) is Shard and len(refusal.sharded) > 1:
                    continue  # it would pass, and combine parts of different places
                alike = [j == i or (not only_one and x is labels[i]) for j, x in enumerate(labels)]
                if refusal.passes([label if is_alike else x for x, is_alike in zip(labels, alike, strict=True)]):
                    yield i, how, cost


_ANY = (_all_to_all, _part_of_draw, _one_number, _another_label)


# -- parts that differ -----------------------------------------------------------------------------------------------
def _wholes(refusal: Refusal) -> str | None:
    """The fix for parts along one dimension that have other extents."""
    one, two = refusal.at[:2]
    if one.dim != two.dim:
        return None
    wholes = " and ".join(f"all_gather({refusal.names[i]}, {refusal.axis!r}, dim={x.dim})" for i, x in refusal.sharded)
    return f"  fix: {wholes}   (the wholes), or make them with the same parts"


# -- a whole that meets parts ----------------------------------------------------------------------------------------
def _labelled_whole(refusal: Refusal) -> str | None:
    """A leaf that is labelled as a part, and has the extent of the whole: the text that makes it of an array."""
    i, j, d = refusal.at
    label, shape, x = refusal.labels[i], refusal.shapes[i], refusal.operand(i)
    is_leaf = hasattr(x, "unstated") and not is_plain(x)
    if not is_leaf or type(label) is not Shard or label.extent is not None or label.dim >= len(shape):
        return None
    if refusal.size == 1 or int(shape[label.dim]) != int(refusal.shapes[j][d]):
        return None
    return "ag.Parameter({})" if type(x).__name__ == "Parameter" else "{}"


def _looks_like_whole(refusal: Refusal) -> str:
    """More of the reason for a leaf that is labelled as a part, and has the extent of the whole."""
    i, j, d = refusal.at
    if refusal.marked is None:
        return ""
    return (f". {refusal.names[i]} looks like the whole: on this rank it has all {int(refusal.shapes[j][d])} elements "
            "along the dimension")  # fmt: skip


def _whole_of_leaf(refusal: Refusal) -> str | None:
    """The fix for a leaf that is labelled as a part, and has the extent of the whole."""
    i = refusal.at[0]
    if refusal.marked is None:
        return None
    label: Any = refusal.labels[i]
    axis = refusal.axis
    made = refusal.marked.format(f"cc.shard(ag.tensor(A, layout={{{axis!r}: R}}), {axis!r}, dim={label.dim})")
    return f"  fix: {refusal.names[i]} = {made}, where A is the whole   (this rank's part of it)"


def _divided(refusal: Refusal) -> str | None:
    """The fix for a whole of plain data, or without a label, that meets parts."""
    j, d, i = refusal.at
    x = refusal.operand(j)
    is_whole = refusal.labels[j] is V and refusal.shapes[j][d] == refusal.labels[i].extent
    if not is_whole or not has_default_label(x, refusal.axis):
        return None
    made = labelled(x, refusal.names[j], {refusal.axis: R}, refusal.grid.names)
    whole = made if is_plain(x) else refusal.names[j]
    return f"  fix: shard({whole}, {refusal.axis!r}, dim={d})" + ("" if whole == made else f", with {made}")


def _is_same(label: Label) -> bool:
    return label is R or label is I or label is C


def _own_of_sliced(refusal: Refusal) -> str | None:
    """The fix for a slice of a whole that meets parts."""
    j, d, i = refusal.at
    extent = refusal.labels[i].extent
    if j >= len(refusal.operands) or not _is_same(refusal.labels[j]):
        return None
    return _part_of_sliced(refusal.operands[j], refusal.size, extent, refusal.axis, d)


def _made_for_part(refusal: Refusal) -> str | None:
    """The fix for copies that all ranks have made with the extent of a part."""
    j, d, i = refusal.at
    of: Any = refusal.labels[i]
    local = refusal.shapes[i][of.dim]
    if not _is_same(refusal.labels[j]) or not refusal.shapes[j][d] == local != of.extent or refusal.size == 1:
        return None
    whole = f"all {of.extent}" if of.extent else "all elements"
    return (f"  fix: shard(whole, {refusal.axis!r}, dim={d}), with whole made for {whole} and labelled {R!r}, in "
            f"place of {refusal.names[j]}, which all ranks have made for the {local} of a part")  # fmt: skip


def _by_rows(refusal: Refusal) -> str | None:
    """The fix for a matrix that is sharded along another dimension than the one that is summed over."""
    _, j, d = refusal.at
    if not isinstance(refusal.labels[j], Shard) or refusal.marked is not None:
        return None
    return (f"  fix: shard {refusal.names[j]} along dimension {d} where it is made, to sum over the parts   "
            "(row parallel: the result is Partial)")  # fmt: skip


def _lost_dimension(refusal: Refusal) -> str | None:
    """The fix for a whole whose dimension does not fit that of the other whole: a reduction has lost a dimension."""
    j, d, i = refusal.at
    name, size, extent, label = refusal.names[j], refusal.shapes[j][d], refusal.labels[i].extent, refusal.labels[j]
    if extent is None or size in (1, extent) or (label is not R and label is not I):
        return None
    return (
        f"  fix: keepdims=True where {name} is reduced, or {name}.reshape(...): it has {size} elements where the whole "
        f"of the other operand has {extent}"
    )


def _own_part(refusal: Refusal, j: int, dim: int) -> str | None:
    return _part(refusal.names[j], refusal.labels[j], refusal.axis, dim)


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


# -- copies that meet other values -----------------------------------------------------------------------------------
def _common_term(refusal: Refusal, i: int, j: int) -> str | None:
    """The fixes for a value that all ranks have, such as a penalty, which is added to the addends of a sum."""
    label, name, axis = refusal.labels[j], refusal.names[j], refusal.axis
    if refusal.labels[i] is not P or not (label is R or label is I) or not refusal.with_label(j, P):
        return None
    return (
        f"  fix: cast({name}, {axis!r}, to=P)   (counted once; kept on the first rank)\n"
        f"  or:  all_reduce({refusal.names[i]}, {axis!r}, to={label!r}) first   (the sum; {name} is added to it)"
    )


def _invariant_too(refusal: Refusal) -> Iterator[str]:
    """A further fix for copies that are used separately: to make them Invariant."""
    j = refusal.at[1]
    if refusal.labels[j] is R:
        yield (f"to=I where {refusal.names[j]} is made by all_reduce, all_gather or broadcast, if all ranks "
               "compute the same from there on")  # fmt: skip


def _of_parameter(refusal: Refusal) -> Iterator[str]:
    """Further fixes for a parameter that meets different data: it may belong to a module, or to this rank alone."""
    i, j = refusal.at
    x, name, other, axis = refusal.operand(i), refusal.names[i], refusal.labels[j], refusal.axis
    if x is None or not (type(x).__name__ == "Parameter" or parameter_of(x)):
        return
    beside = [p.layout for p in parameters_beside(name) if p.layout is not None and axis in p.layout.grid.names]
    if "." in name and other is not P and not any(type(layout[axis]) is Shard for layout in beside):
        condition = f", if the ranks of {axis!r} have different data" if other is V else ""
        yield f"call the model through DataParallel(model, {axis!r}), which makes the casts{condition}"
    if other is V:
        yield (f"{name} = ag.Parameter({name}.numpy(), {{{axis!r}: V}}), if it belongs to this rank alone, "
               "as in a stage of a pipeline")  # fmt: skip


def _update_by_hand(refusal: Refusal) -> str | None:
    """The fix for ``p.data - lr * p.grad``."""
    if getattr(refusal.op, "number", "") != "shifts":  # no sum and no difference
        return None
    for x, array in zip(refusal.operands, refusal.arrays, strict=False):
        if is_plain(x) and (name := owner_of(array)):
            return f"{name}.data = {name}.numpy() - lr * {name}.grad.numpy()   (an update by hand)"
    return None


def _mix(names: Sequence[str], labels: Sequence[Label]) -> str:
    """The reason without a word on gradients, which an update by hand does not need."""
    return " does not mix with ".join(f"{x.word} ({name})" for name, x in zip(names, labels, strict=True))


def _as_equal(x: Any, name: str, axis: str, axes: Sequence[str], passes: Callable[[Label], bool]) -> list[str]:
    """The fix that states that a value is the same on all ranks, in a list; empty if it would be refused too."""
    is_alone = len(axes) == 1 and not getattr(x, "requires_grad", False)  # then a constant is meant
    constant = f"ag.constant({name})"
    if is_alone and passes(C):
        return [constant]
    for label in (R, I):
        if passes(label):
            return [labelled(x, name, dict.fromkeys([axis], label), axes)]
    return [how.format(x=constant, a=axis) for label, how, _ in FIXES[C] if is_alone and passes(label)][:1]


# -- the texts of the reasons ------------------------------------------------------------------------------------------
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


def _extents(label: Shard, size: int, length: int) -> str:
    """``extents 5, 4, 3``, or this rank's alone where the ranks have not agreed on them."""
    if label.extent is None:
        return f"extent {length} on this rank"
    known = label.extents
    return f"{label.extent} in parts {', '.join(map(str, known))}" if known else f"{label.extent} on {size} ranks"


def _spans(op: Any, labels: Sequence[Any], j: int, d: int, i: int) -> str:
    return (
        f"{op.operand_name(j)} is {labels[j].word} and spans dimension {d}, along which {op.operand_name(i)} is "
        f"sharded{in_all(labels[i])}: each rank would combine its own part with the whole"
    )


def _added(op: Any, labels: Sequence[Any], i: int, j: int) -> str:
    count = "once per rank" if labels[j] is R or labels[j] is C else "separately"
    return f"{_partial(op, labels, i, j)}, which would be added {count}"


def _partial(op: Any, labels: Sequence[Any], i: int, j: int) -> str:
    return f"Partial ({op.operand_name(i)}) does not mix with {labels[j].word} ({op.operand_name(j)})"


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


# -- the table -------------------------------------------------------------------------------------------------------
Fix = Callable[[Refusal], str | None]


class Reason(NamedTuple):
    """A reason why labels do not mix, and its fixes: a row of `REASONS`."""

    text: Callable[..., str]
    fixes: tuple[Fix, ...] = ()
    before: Fix | None = None
    more: tuple[Callable[[Refusal], Iterator[str]], ...] = ()
    note: Callable[[Refusal], str] = lambda _: ""
    is_about_extents: bool = False


REASONS = {
    "drawn": Reason(_drawn),
    "mixes": Reason(
        lambda op, labels, i: f"{op.operand_name(i)} is {labels[i]!r}, and {op.name} mixes along dimension "
        f"{labels[i].dim}: each rank would use only its own part"),
    "unmatched": Reason(
        lambda op, labels, i, j, d: f"{op.operand_name(i)} is sharded on the dimension that {op.name} sums over "
        f"({labels[i]!r}{in_all(labels[i])}), {op.operand_name(j)} is {labels[j].word}: the contraction is unmatched",
        (_whole_of_leaf, lambda refusal: _own_part(refusal, *refusal.at[1:])), before=_by_rows, note=_looks_like_whole,
        is_about_extents=True),
    "splits": Reason(_splits),
    "cut differently": Reason(_cut, (_wholes,), is_about_extents=True),
    "cut along others": Reason(
        lambda op, labels, j, i: f"the operands are sharded differently: {labels[j]!r} of {op.operand_name(j)} "
        f"does not mix with {labels[i]!r} of {op.operand_name(i)}", is_about_extents=True),
    "spans": Reason(
        _spans, (_divided, _own_of_sliced, _made_for_part, _lost_dimension,
                 lambda refusal: _own_part(refusal, *refusal.at[:2])), is_about_extents=True),
    "contraction": Reason(
        lambda *_: "a contraction over a sharded dimension mixes with operands that are not Replicated"),
    "roots": Reason(lambda *_: "the operands are rooted on different ranks"),
    "rooted": Reason(_rooted),
    "invariant": Reason(
        lambda op, labels, i, j: f"Invariant ({op.operand_name(i)}) does not mix with {labels[j].word} "
        f"({op.operand_name(j)}); {op.operand_name(i)}'s gradient would miss the sum over the ranks",
        (lambda refusal: _common_term(refusal, *reversed(refusal.at)),), more=(_invariant_too, _of_parameter)),
    "partial": Reason(_partial),
    "added": Reason(_added, (lambda refusal: _common_term(refusal, *refusal.at),)),
    "not linear": Reason(
        lambda op, labels, j: f"{op.name} is not linear in {op.operand_name(j)}, which is Partial: the sum must be "
        "taken first"),
    "both partial": Reason(
        lambda op, labels, i, j: f"{op.operand_name(i)} and {op.operand_name(j)} are both Partial, and sums do not "
        "multiply term by term"),
}  # fmt: skip
