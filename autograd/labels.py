"""Labels: what the ranks along one mesh axis hold of a value, and what that makes of its cotangent.

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
"""

from __future__ import annotations

from typing import Any

__all__ = ["C", "D", "I", "Label", "P", "R", "Rooted", "Shard", "V", "dual_label", "may_relabel"]


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

    `extent` and `offset`, the whole value's extent there and where this rank's part begins, are filled in when a tensor
    takes the label; without them it equals every Shard of the same dimension: ``x.layout["dp"] == Shard(0)``. The parts
    are multiples of `unit`: a reshape that merges dimensions keeps whole rows together, so that the parts of 5 rows of
    2 on 3 ranks are 4, 4 and 2 long, and not 4, 3 and 3.
    """

    __slots__ = ("dim", "extent", "offset", "unit")

    def __init__(self, dim: int, extent: int | None = None, offset: int | None = None, unit: int = 1):
        super().__init__("S", "Shard")
        self.dim, self.extent, self.offset, self.unit = dim, extent, offset, unit

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


def may_relabel(have: Label, need: Label) -> bool:
    """The free relabels a sweep may use: V->P, R->V, Shard<->V, Rooted<->V; a constant serves where copies do."""
    if have is need or have == need or ((have is C or have is D) and need is not P):
        return True
    varying = have is V or have is R or type(have) in (Shard, Rooted)
    return varying and (need is V or type(need) in (Shard, Rooted) or (need is P and have is not R))
