"""Layouts: what the ranks along each mesh axis hold of one value, and what that makes of its cotangent.

=============  ==========================  ==================================================  ==========
label          the ranks hold              it means                                            cotangent
=============  ==========================  ==================================================  ==========
R Replicated   equal copies                one value, used separately by each rank             P
P Partial      addends                     one value, the sum over the ranks, not yet taken    R
I Invariant    equal copies                one value and one computation, repeated             I
V Varying      own values                  as many values as ranks; no promise                 V
Shard(d)       parts                       V that knows "concatenate on dimension d"           Shard(d)
Rooted(r)      data on rank r only         one value; absent elsewhere                         Rooted(r)
C Constant     equal copies                equal everywhere, and without a cotangent           (none)
D Drawn        equal copies                random numbers from a key that knows not the rank   (none)
=============  ==========================  ==================================================  ==========

A draw is a constant that does not mix with Varying: the same random numbers on values that differ is how dropout goes
wrong (see `random`).

Labels are known without communication. `infer` gives the layout of a local operation's result from what the
operation's declaration says (its word and its `dims`), axis by axis, or raises `LayoutError` with a fix that was found
by substituting one operand's layout and inferring again.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .errors import LayoutError, MeshError, RingtapeError, ShapeError
from .sites import call_site

__all__ = ["C", "D", "Grid", "I", "Label", "Layout", "P", "R", "RankInt", "Rooted", "Shard", "V", "dual_label"]


class Label:
    """One label; the four plain ones and the constant are singletons."""

    __slots__ = ("letter", "word")

    def __init__(self, letter: str, word: str):
        self.letter = letter
        self.word = word

    def __repr__(self) -> str:
        return self.letter

    def __reduce__(self) -> Any:  # copies and pickles stay the singleton
        return self.letter


R = Label("R", "Replicated")
I = Label("I", "Invariant")  # noqa: E741 - the field's letter
V = Label("V", "Varying")
P = Label("P", "Partial")
C = Label("C", "Constant")
D = Label("D", "Drawn")


class Shard(Label):
    """Parts of one value, concatenated on dimension `dim`.

    Parameters
    ----------
    dim : int
        The dimension along which the parts lie.
    extent, offset : int, optional
        The whole value's extent there and where this rank's part begins. Filled in when a tensor takes the label.
        A Shard without them equals every Shard of the same dimension, so ``x.layout["dp"] == Shard(0)`` reads well.
    unit : int, optional
        What the parts are multiples of: a reshape that merges dimensions keeps whole rows together, so that the parts
        of 5 rows of 2 on 3 ranks are 4, 4 and 2 long, and not 4, 3 and 3.
    """

    __slots__ = ("dim", "extent", "offset", "unit")

    def __init__(self, dim: int, extent: int | None = None, offset: int | None = None, unit: int = 1):
        super().__init__("S", "Shard")
        self.dim = dim
        self.extent = extent
        self.offset = offset
        self.unit = unit

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shard) or self.dim != other.dim:
            return False
        vague = self.extent is None or other.extent is None
        return vague or (self.extent == other.extent and self.offset == other.offset)

    def __hash__(self) -> int:
        return hash(("Shard", self.dim))

    def __repr__(self) -> str:
        return f"Shard({self.dim})"

    def __reduce__(self) -> Any:
        return Shard, (self.dim, self.extent, self.offset, self.unit)


class Rooted(Label):
    """One value whose data is on the rank with coordinate `root` of the axis; the others hold no data."""

    __slots__ = ("root",)

    def __init__(self, root: int):
        super().__init__("O", "Rooted")
        self.root = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rooted) and self.root == other.root

    def __hash__(self) -> int:
        return hash(("Rooted", self.root))

    def __repr__(self) -> str:
        return f"Rooted({self.root})"

    def __reduce__(self) -> Any:
        return Rooted, (self.root,)


def dual_label(label: Label) -> Label:
    """The label of the cotangent."""
    return P if label is R else R if label is P else label


class RankInt(int):
    """An integer that differs between the ranks of some axes and knows them (a rank, the extent of a local part).

    Arithmetic with it gives a RankInt again, an operation that it enters gives V on those axes.
    """

    axes: frozenset[str]

    def __new__(cls, value: int, axes: Sequence[str] | frozenset[str]) -> RankInt:
        self = super().__new__(cls, value)
        self.axes = frozenset(axes)
        return self

    def __reduce__(self) -> Any:
        return RankInt, (int(self), self.axes)

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **options: Any) -> Any:
        # a plain int to NumPy, which alone is weak in promotion; the array that results is V, as every array is
        return getattr(ufunc, method)(*(int(x) if isinstance(x, RankInt) else x for x in xs), **options)


def _keeping_axes(name: str) -> Any:
    plain = getattr(int, name)

    def method(self: RankInt, *others: Any) -> Any:
        result = plain(self, *others)
        if result is NotImplemented and others and isinstance(others[0], float):
            return getattr(RankFloat(float(self), self.axes), name)(*others)
        if type(result) is int:
            return RankInt(result, self.axes.union(*(o.axes for o in others if isinstance(o, RankInt))))
        if type(result) is float:
            return RankFloat(result, self.axes.union(*(o.axes for o in others if isinstance(o, RankInt | RankFloat))))
        return result

    method.__name__ = name
    return method


_ARITHMETIC = [f"__{s}{n}__" for n in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow") for s in ("", "r")]
for _name in (*_ARITHMETIC, "__neg__", "__abs__", "__lshift__", "__rshift__", "__and__", "__or__", "__xor__"):
    setattr(RankInt, _name, _keeping_axes(_name))


class RankFloat(float):
    """What a division of `RankInt`s gives: a float that knows on which axes it differs."""

    axes: frozenset[str]

    def __new__(cls, value: float, axes: Sequence[str] | frozenset[str]) -> RankFloat:
        self = super().__new__(cls, value)
        self.axes = frozenset(axes)
        return self


def _float_keeping_axes(name: str) -> Any:
    plain = getattr(float, name)

    def method(self: RankFloat, *others: Any) -> Any:
        result = plain(self, *others)
        if type(result) is float:
            return RankFloat(result, self.axes.union(*(o.axes for o in others if isinstance(o, RankInt | RankFloat))))
        return result

    method.__name__ = name
    return method


for _name in (*_ARITHMETIC, "__neg__", "__abs__"):
    setattr(RankFloat, _name, _float_keeping_axes(_name))


class Grid:
    """The names and sizes of a mesh's axes and this rank's place on each; what labels need to know of a mesh."""

    __slots__ = ("_layouts", "index", "names", "place", "sizes")
    _interned: dict[tuple[Any, ...], Grid] = {}

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    place: tuple[int, ...]
    index: dict[str, int]
    _layouts: dict[tuple[Any, ...], Layout]

    @classmethod
    def of(cls, names: Sequence[str], sizes: Sequence[int], place: Sequence[int]) -> Grid:
        """The one Grid of these names, sizes and place."""
        key = (tuple(names), tuple(sizes), tuple(place))
        grid = cls._interned.get(key)
        if grid is None:
            grid = cls()
            grid.names, grid.sizes, grid.place = key
            grid.index = {name: i for i, name in enumerate(grid.names)}
            grid._layouts = {}
            grid = cls._interned.setdefault(key, grid)
        return grid

    def layout(self, labels: Sequence[Label]) -> Layout:
        """The one Layout of these labels, in order of the axes."""
        key = tuple((x.dim, x.extent, x.offset, x.unit) if type(x) is Shard else x for x in labels)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts.setdefault(key, Layout(self, tuple(labels)))
        return found

    def uniform(self, label: Label) -> Layout:
        """The layout with one label on every axis."""
        return self.layout([label] * len(self.names))

    def axis(self, name: str) -> int:
        """The axis' place in the mesh; MeshError if there is none of this name."""
        try:
            return self.index[name]
        except (KeyError, TypeError):
            raise MeshError(f"axis {name!r} was given; this mesh has {', '.join(map(repr, self.names))}") from None

    def __reduce__(self) -> Any:
        return Grid.of, (self.names, self.sizes, self.place)


class Layout(Mapping[str, Label]):
    """The labels of one value, one per mesh axis: a read-only mapping, one object per content.

    Attributes
    ----------
    grid : Grid
    labels : tuple of Label
        In order of the mesh's axes.
    special : bool
        Whether a Shard is among them, so that shapes take part in inference.
    one_number : bool
        Whether it is I on every axis, and so a plain objective.
    rooted : bool
        Whether a Rooted is among them, so that the value may be absent here.
    drawn : bool
        Whether a D is among them.
    """

    __slots__ = ("_dual", "drawn", "grid", "labels", "one_number", "rooted", "special")

    def __init__(self, grid: Grid, labels: tuple[Label, ...]):
        self.grid = grid
        self.labels = labels
        self.special = any(type(x) is Shard for x in labels)
        self.rooted = any(type(x) is Rooted for x in labels)
        self.one_number = all(x is I for x in labels)
        self.drawn = any(x is D for x in labels)
        self._dual: Layout | None = None

    def __getitem__(self, axis: str) -> Label:
        return self.labels[self.grid.axis(axis)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.grid.names)

    def __len__(self) -> int:
        return len(self.labels)

    __hash__ = object.__hash__  # one object per content, and this one needs no Python

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping) and not isinstance(other, Layout):
            return dict(self) == dict(other)
        return self is other

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{n}: {x!r}" for n, x in zip(self.grid.names, self.labels, strict=True)) + "}"

    def __reduce__(self) -> Any:
        return _layout_again, (self.grid, self.labels)

    @property
    def dual(self) -> Layout:
        """The layout of the cotangent."""
        if self._dual is None:
            self._dual = self.grid.layout([dual_label(x) for x in self.labels])
        return self._dual

    def replace(self, axes: Sequence[str], label: Label) -> Layout:
        """This layout with another label on the axes named."""
        labels = list(self.labels)
        for axis in axes:
            labels[self.grid.axis(axis)] = label
        return self.grid.layout(labels)

    def absent_beyond(self, axes: Sequence[str]) -> bool:
        """Whether an axis not named roots the value on another rank, so that a whole line of `axes` is without data."""
        return self.rooted and any(
            type(x) is Rooted and x.root != at and name not in axes
            for name, x, at in zip(self.grid.names, self.labels, self.grid.place, strict=True)
        )

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """`shape` with the extents of sharded dimensions as integers that know their axes."""
        result = list(shape)
        for name, x in zip(self.grid.names, self.labels, strict=True):
            if type(x) is Shard and x.dim < len(result):
                known = result[x.dim]
                more = known.axes if isinstance(known, RankInt) else frozenset()
                result[x.dim] = RankInt(known, more | {name})
        return tuple(result)

    def global_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The whole value's shape: sharded dimensions at their extents, the outermost axis' counting."""
        for axis, x in zip(self.grid.names, self.labels, strict=True):
            if x is V:
                raise LayoutError(
                    f"global_shape({describe(None, shape, self)})\n  axis {axis!r}: the ranks hold values of their own "
                    f"(Varying), which have no one shape\n  fix: layout={{{axis!r}: Shard(0)}} where it is "
                    f"made, if the "
                    "ranks hold parts of one value" + call_site()
                )
        result = [int(n) for n in shape]
        for x in reversed(self.labels):  # an earlier axis is the outer one, so its extent is the larger
            if isinstance(x, Shard) and x.extent is not None:
                result[x.dim] = x.extent
        return tuple(result)


def _layout_again(grid: Grid, labels: tuple[Label, ...]) -> Layout:
    return grid.layout(labels)


def parts(extent: int, size: int) -> tuple[list[int], list[int]]:
    """Extents and offsets of `size` parts by numpy's array_split rule: the first ``extent % size`` are one longer."""
    small, longer = divmod(extent, size)
    extents = [small + (i < longer) for i in range(size)]
    return extents, [i * small + min(i, longer) for i in range(size)]


def resolve(
    given: Mapping[str, Label] | Layout | None,
    default: Label,
    shape: tuple[int, ...],
    grid: Grid,
    global_shape: Sequence[int] | None = None,
) -> Layout:
    """A user's labels as a Layout: axes not named take `default`, every Shard gets its extent and offset.

    Without `global_shape` the parts of a sharded dimension are taken to be equal on all ranks.
    """
    if isinstance(given, Layout) and given.grid is grid and global_shape is None:
        return given
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise LayoutError(f"layout={given!r} was given; needed: a mapping from axis to label, like {{'dp': R}}")
    for axis, label in given.items():
        grid.axis(axis)
        if not isinstance(label, Label):
            raise LayoutError(
                f"axis {axis!r}: {label!r} was given; needed: one of R, I, V, P, Shard(dim), Rooted(root)"
            )
    labels = [given.get(name, default) for name in grid.names]
    outer: dict[int, int] = {} if global_shape is None else dict(enumerate(int(n) for n in global_shape))
    if global_shape is not None and len(tuple(global_shape)) != len(shape):
        raise ShapeError(f"global_shape={tuple(global_shape)} was given for a part of shape {shape}: ranks differ")
    for i, label in enumerate(labels):
        if not isinstance(label, Shard):
            continue
        dim = label.dim + len(shape) if label.dim < 0 else label.dim
        if not 0 <= dim < len(shape):
            raise ShapeError(f"axis {grid.names[i]!r}: Shard({label.dim}) was given for an array of shape {shape}")
        inner = math.prod(
            s for j, s in enumerate(grid.sizes) if j > i and isinstance(labels[j], Shard) and _same_dim(labels[j], dim)
        )
        extent = outer.get(dim, shape[dim] * grid.sizes[i] * inner)
        extents, offsets = parts(extent, grid.sizes[i])
        outer[dim] = extents[grid.place[i]]
        labels[i] = Shard(dim, extent, offsets[grid.place[i]])
    for dim, n in outer.items():
        if n != shape[dim]:
            raise ShapeError(
                f"dimension {dim}: this rank's part has {shape[dim]}, but by the array_split rule of "
                f"global_shape={None if global_shape is None else tuple(global_shape)} it must have {n}"
            )
    return grid.layout(labels)


def _same_dim(label: Label, dim: int) -> bool:
    return isinstance(label, Shard) and label.dim == dim


# -- how dimensions travel through an operation: what a declaration's `dims` returns ------------------------------


class Mix:
    """The operation mixes along this dimension, so it cannot be sharded."""


class Sum:
    """The operation sums over this dimension; dimensions of one contraction share the object's key."""

    __slots__ = ("key",)

    def __init__(self, key: object = None):
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and self.key == other.key

    def __hash__(self) -> int:
        return hash(("Sum", self.key))


Entry = Any  # an output dimension (int), (output dimension, Fraction) where extents scale, Mix or Sum


class Refused(Exception):
    """Why labels do not go together; `infer` makes the LayoutError of it."""


def combine(op: Any, labels: Sequence[Label], shapes: Sequence[tuple[int, ...]], maps: Any, size: int) -> Label:
    """The result's label on one axis of a size. `labels` holds C for operands whose cotangent does not exist."""
    letters = op.letters(len(labels))
    name = op.operand_name
    shard = None
    contracted = None
    drawn = [i for i, x in enumerate(labels) if x is D]
    if drawn:
        for i, x in enumerate(labels):
            if x is V:
                raise Refused(
                    f"{name(drawn[0])} holds the same random numbers on every rank (Drawn), and {name(i)} values of "
                    "each rank's own (Varying)"
                )
    for i, label in enumerate(labels):
        if type(label) is not Shard:
            continue
        entry = Mix if maps is None else maps[i][label.dim]
        if entry is Mix:
            raise Refused(
                f"{name(i)} is {label!r}, and {op.name} mixes along dimension {label.dim}: "
                "each rank would see its own part only"
            )
        if isinstance(entry, Sum):
            contracted = entry
            for j, other in enumerate(labels):
                for d, e in enumerate(maps[j]):
                    if e == entry and not (type(other) is Shard and other.dim == d and _same_parts(other, label, size)):
                        raise Refused(
                            f"{name(i)} is sharded on the dimension that {op.name} sums over ({label!r}), "
                            f"{name(j)} is {other.word}: the contraction is unmatched"
                        )
            continue
        out, factor = entry if isinstance(entry, tuple) else (entry, 1)
        extent, offset = (label.extent or 0) * factor, (label.offset or 0) * factor
        if extent.denominator != 1 or offset.denominator != 1:
            raise Refused(
                f"{name(i)} is {label!r} with extent {label.extent}, which {op.name} splits across a boundary"
            )
        unit = label.unit * factor
        target = Shard(out, int(extent), int(offset), int(unit) if unit.denominator == 1 else 1)
        if shard is not None and not (shard.dim == out and _same_parts(shard, target, size)):
            raise Refused(f"the operands are sharded differently: {shard!r} does not mix with {target!r} of {name(i)}")
        shard = target
        for j, other in enumerate(labels):
            for d, e in enumerate(maps[j]):
                spans = e == entry and shapes[j][d] != 1 and j != i
                if spans and other is not V and type(other) is not Shard:
                    raise Refused(
                        f"{name(j)} is {other.word} and spans dimension {d}, along which {name(i)} is sharded: "
                        "each rank would use its own part with the whole"
                    )
                if spans and type(other) is Shard and other.dim != d:
                    raise Refused(
                        f"the operands are sharded differently: {other!r} of {name(j)} does not mix with {label!r} "
                        f"of {name(i)}"
                    )
    if contracted is not None:
        if shard is not None or any(x is V or x is P or x is I for x in labels):
            raise Refused("a contraction over a sharded dimension mixes with operands that are not Replicated")
        return P
    kinds = [V if type(x) is Shard else C if x is D else x for x in labels]
    if any(x is I for x in kinds):
        at = next(i for i, x in enumerate(kinds) if x is I)
        for j, x in enumerate(kinds):
            if x is not I and x is not C:
                raise Refused(
                    f"Invariant ({name(at)}) does not mix with {labels[j].word} ({name(j)}); "
                    f"{name(at)}'s gradient would miss the sum over the ranks"
                )
        return I
    if any(x is P for x in kinds):
        return _combine_partial(op, kinds, labels, letters)
    rooted = [x for x in kinds if type(x) is Rooted]
    if rooted:
        if any(x != rooted[0] for x in rooted):
            raise Refused("the operands live on different roots")
        return rooted[0]
    if any(x is V for x in kinds):
        return V if shard is None else shard
    return R if any(x is R for x in kinds) else D if drawn else C


def _same_parts(a: Shard, b: Shard, size: int) -> bool:
    """Whether two sharded dimensions are cut in the same places, on every rank."""
    if a.extent != b.extent or a.offset != b.offset:
        return False
    return a.unit == b.unit or a.extent is None or level(a.extent, size, a.unit) == level(a.extent, size, b.unit)


def level(extent: int, size: int, unit: int) -> list[int]:
    """The extents of `size` parts that are multiples of a unit."""
    return [n * unit for n in parts(extent // unit, size)[0]]


def _combine_partial(op: Any, kinds: Sequence[Label], labels: Sequence[Label], letters: str) -> Label:
    """P is legal exactly where it fills one letter and the rest is R or constant."""
    name = op.operand_name
    at = next(i for i, x in enumerate(kinds) if x is P)
    for j, x in enumerate(kinds):
        if x is P and letters[j] in "NS":
            raise Refused(f"{op.name} is not linear in {name(j)}, which is Partial: the sum must be taken first")
        if x is P and letters[j] != letters[at]:
            raise Refused(f"{name(at)} and {name(j)} are both Partial, and sums do not multiply term by term")
        if x is not P and letters[j] == letters[at]:
            count = "once per rank" if x is R or x is C else "on its own"
            raise Refused(
                f"Partial ({name(at)}) does not mix with {labels[j].word} ({name(j)}), which would be added {count}"
            )
        if x is not P and x is not R and x is not C:
            raise Refused(f"Partial ({name(at)}) does not mix with {labels[j].word} ({name(j)})")
    return P


# -- inference and its errors --------------------------------------------------------------------------------------


def infer(
    op: Any,
    layouts: Sequence[Layout],
    shapes: Sequence[tuple[int, ...]],
    real: Sequence[bool],
    options: Any,
    arrays: Sequence[Any],
) -> Layout:
    """The layout of a local operation's result.

    Parameters
    ----------
    op : Primitive
    layouts, shapes : sequences
        Of the operands.
    real : sequence of bool
        Whether each operand has a cotangent; R and I of one that has none are C.
    arrays : sequence
        The operands' arrays, for the error's text only.
    """
    grid = layouts[0].grid
    for layout in layouts:
        if layout.grid is not grid:
            raise LayoutError(f"{op.name}: operands of two meshes, {layouts[0]!r} and {layout!r}; needed: one mesh")
    letters = op.letters(len(layouts))
    maps = op.dims(shapes, options) if op.dims is not None else None
    result = []
    for k, axis in enumerate(grid.names):
        labels = [
            C if (x.labels[k] is R or x.labels[k] is I) and (letters[i] == "S" or not real[i]) else x.labels[k]
            for i, x in enumerate(layouts)
        ]
        try:
            result.append(combine(op, labels, shapes, maps, grid.sizes[k]))
        except Refused as refused:
            raise LayoutError(_explain(op, layouts, shapes, maps, labels, axis, str(refused), arrays)) from None
    return grid.layout(result)


_FIXES = {  # what may be written for an operand: label it has -> (label it gets, how, what that costs)
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
        (C, "constant({x})", "says that the same numbers are meant")],
    V: [(P, "declare_partial({x}, {a!r})", "free; says that these are addends"),
        (R, "all_reduce({x}, {a!r}, to=R)", "the sum over the ranks, an all-reduce in both directions")],
}  # fmt: skip
_GATHER = (R, "all_gather({x}, {a!r}, dim={d})", "a gather forward, a reduce-scatter in backward")
_SHARD = (V, "cast({x}, {a!r}, to=V)", "free; says that the parts are values of their own")


def fixes(label: Label) -> list[tuple[Label, str, str]]:
    """What a user may write to give an operand another label."""
    return [_GATHER, _SHARD] if type(label) is Shard else _FIXES.get(label, [])


def _explain(op: Any, layouts: Any, shapes: Any, maps: Any, labels: Any, axis: str, reason: str, arrays: Any) -> str:
    """The text of a LayoutError: operands, the axis with the reason, a fix that was tried, the call site."""
    names = [op.operand_name(i) for i in range(len(layouts))]
    shown = ", ".join(f"{n}: {describe(a, s, x)}" for n, a, s, x in zip(names, arrays, shapes, layouts, strict=True))
    lines = [f"{op.name}({shown})", f"  axis {axis!r}: {reason}"]
    found = None
    size = layouts[0].grid.sizes[layouts[0].grid.axis(axis)]
    if any(isinstance(a, RankInt | RankFloat) for a in arrays):
        found = "  fix: use a number that is the same on every rank, like the global extent x.global_shape[...]"
    sharded = [(i, x) for i, x in enumerate(labels) if isinstance(x, Shard)]
    drawn = [i for i, x in enumerate(labels) if x is D]
    if drawn and sharded:
        found = (f"  fix: draw {names[drawn[0]]} for {names[sharded[0][0]]}: give that in the place of a shape   "
                 "(this rank's part of one logical draw)")  # fmt: skip
    if len(sharded) > 1 and sharded[0][1].dim != sharded[1][1].dim and len(set(map(len, shapes))) == 1:
        (_, one), (j, two) = sharded[:2]
        how = f"all_to_all({names[j]}, {axis!r}, split_dim={one.dim}, concat_dim={two.dim})"
        found = f"  fix: {how}   (cuts both alike)"
    # the operand whose label is the odd one out is usually I, P or Shard: try those before the others
    order = sorted(range(len(labels)), key=lambda i: [D, I, P].index(labels[i]) if labels[i] in (D, I, P) else 3)
    for only_one in (True, False):
        for i in order:
            for label, how, cost in fixes(labels[i]):
                if label is V and type(labels[i]) is Shard and sum(type(x) is Shard for x in labels) > 1:
                    continue  # it would run, and add parts that do not belong together
                trial = list(labels)
                for j in range(len(labels)):
                    if j == i or (not only_one and trial[j] is labels[i]):
                        trial[j] = label
                try:
                    combine(op, trial, shapes, maps, size)
                except Refused:
                    continue
                d = labels[i].dim if type(labels[i]) is Shard else 0
                found = found or f"  fix: {how.format(x=names[i], a=axis, d=d)}   ({cost})"
    lines.append(found or "  fix: reduce or gather the operands on this axis first, or name the layout that is meant")
    return "\n".join(lines) + call_site()


def describe(array: Any, shape: Any, layout: Layout | None) -> str:
    """``f32[8,64] {dp: V, tp: I}``"""
    dtype = getattr(array, "dtype", None)
    if dtype is None and not shape:
        return f"number {array}" + ("" if layout is None else f" {layout!r}")
    kind = {"f": "f", "c": "c", "i": "i", "u": "u", "b": "bool"}.get(getattr(dtype, "kind", ""), "")
    short = "bool" if kind == "bool" else f"{kind}{dtype.itemsize * 8}" if kind and dtype is not None else "number"
    where = "" if layout is None else f" {layout!r}"
    return f"{short}[{','.join(str(int(n)) for n in shape)}]{where}"


def layout_of(x: Any, grid: Grid) -> Layout:
    """The layout of an operand that is no Tensor: numbers are constants, arrays V, rank-dependent numbers V there."""
    if isinstance(x, RankInt | RankFloat):
        return grid.layout([V if name in x.axes else C for name in grid.names])
    if isinstance(x, numbers.Number | bool) or getattr(x, "shape", None) == ():
        return grid.uniform(C)
    return grid.uniform(V)


def require_one_number(layout: Layout | None, shape: tuple[int, ...], error: type[RingtapeError] = LayoutError) -> None:
    """Refuse an objective that is not one global number: every axis must be I, P or Rooted."""
    if layout is None:
        return
    for axis, size, label in zip(layout.grid.names, layout.grid.sizes, layout.labels, strict=True):
        if label is R:
            raise error(
                f"backward(loss: {describe(None, shape, layout)})\n  axis {axis!r}: the objective is "
                f"Replicated: each of "
                f"the {size} ranks would seed its copy, and its cotangent, which is Partial, would count {size} times. "
                f"Needed: Invariant, Partial or Rooted\n  fix: cast(loss, {axis!r}, to=I)   (free in both directions), "
                f"or all_reduce(..., {axis!r}, to=I) where the sum is taken" + call_site()
            )
        if label is V or type(label) is Shard:
            raise error(
                f"backward(loss: {describe(None, shape, layout)})\n  axis {axis!r}: the objective is {label.word}: "
                f"{size} different numbers, and no single one to differentiate. Needed: Invariant, Partial or Rooted\n"
                f"  fix: all_reduce(loss, {axis!r}, to=I)   (the sum over the ranks)\n"
                f"  or:  mean(loss, {axis!r}, to=I)   (their mean)" + call_site()
            )
