"""Labels and layouts: how a value is distributed over a mesh axis, and the label of its cotangent.

=============  ==========================  ==================================================  ==========
label          the ranks hold              meaning                                             cotangent
=============  ==========================  ==================================================  ==========
R Replicated   equal copies                one value, used separately by each rank             P
P Partial      addends                     one value, the sum over the ranks, not yet taken    R
I Invariant    equal copies                one value and one computation, repeated             I
V Varying      different values            a separate value on each rank                       V
Shard(d)       parts                       one value, concatenated from parts on dimension d   Shard(d)
Rooted(r)      data on rank r only         one value, absent on the other ranks                Rooted(r)
C Constant     equal copies                one constant without a cotangent                    (none)
D Drawn        equal copies                random numbers from a key without the rank          (none)
=============  ==========================  ==================================================  ==========

Drawn is like Constant, but does not mix with Varying: to apply the same dropout mask to different data on each rank is
an error (see `random`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from threading import RLock
from typing import Any
from weakref import KeyedRef

from ..errors import MeshError, typed_errors

__all__ = [
    "C", "D", "Grid", "I", "Label", "Labelled", "Layout", "Mix", "P", "R", "Rooted", "Shard", "Stated", "Sum",
    "Unagreed", "V", "dual_label", "is_copy_for_part", "may_relabel",
]  # fmt: skip


class Label:
    """The label of a value on one mesh axis. R, I, V, P, C and D are singletons."""

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

    The extents of the parts belong to the label only once the ranks have agreed on them. Agreed extents come from
    ``collectives.from_local``, from a stated ``global_shape=``, or from a collective that made the parts. Then `extent`
    is the whole value's extent along the dimension, and `offset` the index at which this rank's part begins. Without
    agreement both are None, and the value has no global shape.

    There are two forms of agreed extents. By default parts follow the rule of ``numpy.array_split``, in multiples of
    `unit`: a reshape of 5 rows of 2 elements to one dimension keeps rows together, so the parts on 3 ranks have 4, 4
    and 2 elements, not 4, 3 and 3. Parts of any other extents are listed in `extents`, one per rank of the axis. On
    all ranks of the axes that shard the dimension the form is the same.

    A Shard without extents equals every Shard of the same dimension: ``x.layout["dp"] == Shard(0)``.
    """

    __slots__ = ("dim", "extent", "extents", "offset", "unit")

    def __init__(
        self,
        dim: int,
        extent: int | None = None,
        offset: int | None = None,
        unit: int = 1,
        extents: tuple[int, ...] | None = None,
    ):
        super().__init__("S", "Shard")
        self.dim, self.extent, self.offset, self.unit, self.extents = dim, extent, offset, unit, extents

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything that distinguishes this label from other Shards; the arguments of the class."""
        return self.dim, self.extent, self.offset, self.unit, self.extents

    @property
    def is_agreed(self) -> bool:
        """Whether the ranks have agreed on the extents of the parts."""
        return self.extent is not None

    def on(self, dim: int) -> Shard:
        """The same parts along another dimension."""
        return Shard(dim, *self.key[1:])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shard) or self.dim != other.dim:
            return False
        vague = self.extent is None or other.extent is None
        return vague or (self.extent, self.offset, self.extents) == (other.extent, other.offset, other.extents)

    def __hash__(self) -> int:
        return hash(("Shard", self.dim))

    def __repr__(self) -> str:
        return f"Shard({self.dim})"

    def __reduce__(self) -> Any:
        return Shard, self.key


class Rooted(Label):
    """One value whose data is on the rank with coordinate `root` on the axis. The other ranks hold no data."""

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


def may_relabel(have: Label, need: Label) -> bool:
    """Whether a sweep may change a label for free: V->P, R->V, Shard<->V, Rooted<->V, and constants to R, I, V."""
    if have is need or have == need or ((have is C or have is D) and need is not P):
        return True
    varying = have is V or have is R or type(have) in (Shard, Rooted)
    return varying and (need is V or type(need) in (Shard, Rooted) or (need is P and have is not R))


def is_copy_for_part(have: Label, need: Label) -> bool:
    """Whether all ranks hold the same elements where each needs those of its own part."""
    return type(need) is Shard and (have is C or have is R or have is I or have is D)


class Mix:
    """The operation mixes elements along the dimension, so it cannot be sharded."""


class Sum:
    """The operation sums over the dimension. Dimensions that are contracted together have the same key."""

    __slots__ = ("key",)

    def __init__(self, key: object = None):
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and self.key == other.key

    def __hash__(self) -> int:
        return hash(("Sum", self.key))


class Stated(int):
    """A dimension of the result whose extent the program states as a plain number: all parts must have this extent."""

    __slots__ = ()


class Unagreed(int):
    """A dimension of the result along which this rank has a part, whose extents do not follow from the operand's."""

    __slots__ = ()


class Layout(Mapping[str, Label]):
    """The labels of one value, one per mesh axis: a read-only mapping. Equal layouts are one object."""

    __slots__ = ("__weakref__", "drawn", "dual", "grid", "has_copies", "labels", "one_number", "rooted", "special")

    dual: Layout
    """The layout of the cotangent."""

    def __init__(self, grid: Grid, labels: tuple[Label, ...]):
        self.grid = grid
        self.labels = labels
        self.special = any(type(x) is Shard for x in labels)  # if so, inference depends on shapes
        self.rooted = any(type(x) is Rooted for x in labels)  # if so, the value may be absent on this rank
        self.has_copies = any(x is R or x is I for x in labels)  # if so, the ranks must hold equal values
        self.one_number = all(x is I for x in labels)  # if so, a number can be an objective
        self.drawn = D in labels

    def __getitem__(self, axis: str) -> Label:
        return self.labels[self.grid.axis(axis)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.grid.names)

    def __len__(self) -> int:
        return len(self.labels)

    __hash__ = object.__hash__  # equal layouts are one object

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping) and not isinstance(other, Layout):
            return dict(self) == dict(other)
        return self is other

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{n}: {x!r}" for n, x in zip(self.grid.names, self.labels, strict=True)) + "}"

    def __reduce__(self) -> Any:
        return self.grid.layout, (self.labels,)

    def __getattr__(self, name: str) -> Layout:
        """Compute `dual` at its first use and store it as an attribute."""
        if name != "dual":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.dual = self.grid.layout([dual_label(x) for x in self.labels])
        return self.dual

    @typed_errors
    def replace(self, axes: Sequence[str], label: Label) -> Layout:
        """This layout with another label on the given axes."""
        at = {self.grid.axis(axis) for axis in axes}
        return self.grid.layout([label if k in at else x for k, x in enumerate(self.labels)])

    def absent_beyond(self, axes: Sequence[str]) -> bool:
        """Whether the value is rooted on another rank of an axis outside `axes`, so no rank along `axes` has it."""
        return self.rooted and any(
            type(x) is Rooted and x.root != at and name not in axes
            for name, x, at in zip(self.grid.names, self.labels, self.grid.place, strict=True)
        )


class _Interned(dict[Any, "KeyedRef[Any, Any]"]):
    """By key the one object of it, as long as it lives: a program may label values of ever new extents."""

    __slots__ = ("_gone",)

    def __init__(self) -> None:
        self._gone: deque[Any] = deque()  # references to what is gone; the collector may append at any time

    def made(self, key: Any, make: Callable[[], Any]) -> Any:
        """The object of a key, which is made if there is none that lives."""
        with _interning:  # or two threads would make two
            while self._gone:
                reference = self._gone.popleft()
                gone = reference.key
                if self.get(gone) is reference:  # and no new object has its key
                    del self[gone]
            known = self.get(key)
            found = None if known is None else known()
            if found is None:
                found = make()
                self[key] = KeyedRef(found, self._gone.append, key)
            return found


_interning = RLock()


class Grid:
    """The part of a mesh that layouts need: the names and sizes of its axes, and this rank's coordinates."""

    __slots__ = ("__weakref__", "_layouts", "index", "names", "place", "sizes")
    _interned = _Interned()

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    place: tuple[int, ...]
    index: dict[str, int]
    _layouts: _Interned

    @classmethod
    def of(cls, names: Sequence[str], sizes: Sequence[int], place: Sequence[int]) -> Grid:
        """The one Grid of these names, sizes and place."""
        key = (tuple(names), tuple(sizes), tuple(place))

        def make() -> Grid:
            grid = cls()
            grid.names, grid.sizes, grid.place = key
            grid.index = {name: i for i, name in enumerate(grid.names)}
            grid._layouts = _Interned()
            return grid

        found: Grid = cls._interned.made(key, make)
        return found

    def layout(self, labels: Sequence[Label]) -> Layout:
        """The one Layout of these labels, in order of the axes."""
        key = tuple(x.key if type(x) is Shard else x for x in labels)
        known = self._layouts.get(key)
        found: Layout | None = None if known is None else known()
        return self._layouts.made(key, lambda: Layout(self, tuple(labels))) if found is None else found

    def uniform(self, label: Label) -> Layout:
        """The layout with one label on every axis."""
        known = self._layouts.get((label,) * len(self.names))  # of plain arrays, at each use
        found: Layout | None = None if known is None else known()
        return self.layout([label] * len(self.names)) if found is None else found

    def axis(self, name: str) -> int:
        """The index of an axis in the mesh. Raises MeshError if the mesh has no axis of this name."""
        try:
            return self.index[name]
        except (KeyError, TypeError):
            near = get_close_matches(str(name), self.names, 1, 0.3) or (self.names if len(self.names) == 1 else ())
            raise MeshError(
                f"axis {name!r} was given; this mesh has {', '.join(map(repr, self.names))}; needed: one of them"
                + (f"\n  fix: {near[0]!r}" if near else "")
            ) from None

    def __reduce__(self) -> Any:
        return Grid.of, (self.names, self.sizes, self.place)


class Labelled:
    """Base of Tensors: values whose array, layout and name messages read."""

    __slots__ = ()
    array: Any
    layout: Any
    _waits = False
    """Whether the array may still have to arrive, so that no message reads it."""
