"""Which statements are legal, and the shapes and labels of their results.

This is a second implementation of the layout rules. It follows the tables of `autograd.layouts` and `collectives.ops`
and shares no code with ringtape's inference, so that generated programs test the inference. In doubtful cases it raises
`Illegal`: generated programs contain only statements that are certainly correct.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from autograd.layouts.layout import I, Label, P, R, Rooted, Shard, V

from .form import Program, Statement

__all__ = ["Illegal", "Kind", "kinds", "result"]


class Illegal(Exception):
    """Raised for a statement that the rules do not allow; the text gives the reason."""


class Kind(NamedTuple):
    """The shape and layout of a value.

    Attributes
    ----------
    shape : tuple of int
        Of the whole value; along a V axis, of each rank's own value.
    labels : tuple of Label
        One per mesh axis.
    depends : bool
        Whether the value depends on a leaf that has a gradient.
    """

    shape: tuple[int, ...]
    labels: tuple[Label, ...]
    depends: bool = True


def kinds(program: Program) -> dict[str, Kind]:
    """The kind of every leaf and result of a program; raises `Illegal` if a statement is illegal."""
    known = {x.name: Kind(x.shape, x.labels, x.role != "data") for x in program.leaves}
    for s in program.statements:
        known[s.name] = result(s, known, program.axes, program.sizes)
    return known


def result(s: Statement, known: Mapping[str, Kind], axes: Sequence[str], sizes: Sequence[int]) -> Kind:
    """The kind of a statement's result; raises `Illegal` if the statement is illegal."""
    operands = [known[name] for name in s.operands]
    depends = any(x.depends for x in operands)
    if s.communicates:
        x = operands[0]
        along = [axes.index(a) for a in s.axes]
        shape, labels = _communication(s, x, along, sizes)
        return Kind(shape, labels, depends)
    shape, where = _LOCAL[s.operation](s, [x.shape for x in operands])
    labels = tuple(_local(s.operation, [x.labels[k] for x in operands], [x.shape for x in operands], where)
                   for k in range(len(axes)))  # fmt: skip
    return Kind(shape, labels, depends)


# -- local operations: the shape of the result, and where each dimension of the operands goes ------------------------

MIXED, SUMMED = -1, -2  # not a dimension of the result: elements along it are combined, or summed
Shape = tuple[int, ...]
Where = list[tuple[int, ...]]


def _same(s: Statement, shapes: Sequence[Shape]) -> tuple[Shape, Where]:
    return shapes[0], [tuple(range(len(shapes[0])))]


def _softmax(s: Statement, shapes: Sequence[Shape]) -> tuple[Shape, Where]:
    (x,) = shapes
    if not x:
        raise Illegal("softmax of a 0-d array")
    return x, [(*range(len(x) - 1), MIXED)]


def _transpose(s: Statement, shapes: Sequence[Shape]) -> tuple[Shape, Where]:
    (x,) = shapes
    if len(x) != 2:
        raise Illegal("transpose of other than two dimensions")
    return x[::-1], [(1, 0)]


def _flatten(s: Statement, shapes: Sequence[Shape]) -> tuple[Shape, Where]:
    (x,) = shapes
    if len(x) != 2:
        raise Illegal("flatten of other than two dimensions")
    return (math.prod(x),), [(0, MIXED)]


def _head(s: Statement, shapes: Sequence[Shape]) -> tuple[Shape, Where]:
    (x,) = shapes
    if not x:
        raise Illegal("slice of a 0-d array")
    return (1, *x[1:]), [(MIXED, *range(1, len(x)))]


def _sum(s: Statement, shapes: Sequence[Shape]) -> tuple[Shape, Where]:
    (x,) = shapes
    if s.dim is None:
        return (), [(SUMMED,) * len(x)]
    if not 0 <= s.dim < len(x):
        raise Illegal("no such dimension")
    where = tuple(SUMMED if d == s.dim else d - (d > s.dim) for d in range(len(x)))
    return x[: s.dim] + x[s.dim + 1 :], [where]


def _broadcast(s: Statement, shapes: Sequence[Shape]) -> tuple[Shape, Where]:
    ndim = max(map(len, shapes))
    padded = [(1,) * (ndim - len(x)) + x for x in shapes]
    shape = []
    for extents in zip(*padded, strict=True):
        if len(set(extents) - {1}) > 1:
            raise Illegal("shapes do not broadcast")
        shape.append(max(extents))
    return tuple(shape), [tuple(range(ndim - len(x), ndim)) for x in shapes]


def _matmul(s: Statement, shapes: Sequence[Shape]) -> tuple[Shape, Where]:
    x, w = shapes
    if len(x) != 2 or len(w) != 2 or x[1] != w[0]:
        raise Illegal("matmul of other than two matrices whose shapes match")
    return (x[0], w[1]), [(0, SUMMED), (SUMMED, 1)]


def _concatenate(s: Statement, shapes: Sequence[Shape]) -> tuple[Shape, Where]:
    x, y = shapes
    d = s.dim
    if d is None or len(x) != len(y) or not 0 <= d < len(x) or x[:d] + x[d + 1 :] != y[:d] + y[d + 1 :]:
        raise Illegal("shapes do not match")
    where = tuple(MIXED if i == d else i for i in range(len(x)))
    return (*x[:d], x[d] + y[d], *x[d + 1 :]), [where, where]


_LOCAL = {
    "negative": _same, "scale": _same, "tanh": _same, "sin": _same, "softmax": _softmax, "transpose": _transpose,
    "flatten": _flatten, "head": _head, "sum": _sum, "add": _broadcast, "subtract": _broadcast,
    "multiply": _broadcast, "matmul": _matmul, "concatenate": _concatenate,
}  # fmt: skip
_JOINTLY_LINEAR = {"negative", "scale", "transpose", "flatten", "head", "sum", "add", "subtract", "concatenate"}
_LINEAR_IN_EACH = {"multiply", "matmul"}


def _local(operation: str, labels: list[Label], shapes: Sequence[Shape], where: Where) -> Label:
    """The label of a local operation's result on one axis."""
    sharded = [i for i, x in enumerate(labels) if isinstance(x, Shard)]
    if sharded:
        return _shard(operation, labels, shapes, where, sharded)
    if any(x is I for x in labels):
        if not all(x is I for x in labels):
            raise Illegal("Invariant with another layout")
        return I
    if any(x is P for x in labels):
        partial = sum(x is P for x in labels)
        if operation in _JOINTLY_LINEAR and partial == len(labels):
            return P
        if operation in _LINEAR_IN_EACH and partial == 1 and all(x is P or x is R for x in labels):
            return P
        raise Illegal("an operation that is not linear in a Partial operand")
    rooted = [x for x in labels if isinstance(x, Rooted)]
    if rooted:
        if any(x != rooted[0] and x is not R for x in labels):
            raise Illegal("Rooted with another root, or with Varying")
        return rooted[0]
    return V if any(x is V for x in labels) else R


def _shard(operation: str, labels: list[Label], shapes: Sequence[Shape], where: Where, sharded: list[int]) -> Label:
    shards = [(i, x) for i in sharded if isinstance(x := labels[i], Shard)]
    goes = {where[i][x.dim] for i, x in shards}
    extents = {shapes[i][x.dim] for i, x in shards}
    units = {x.unit for _, x in shards}
    if MIXED in goes:
        raise Illegal("sharded along a dimension whose elements the operation combines")
    if len(goes) > 1 or len(extents) > 1 or len(units) > 1:
        raise Illegal("sharded differently")
    (to,), (unit,) = goes, units
    if any(x is not R for i, x in enumerate(labels) if i not in sharded):
        raise Illegal("Shard with other than Shard or Replicated")
    if to == SUMMED:
        if operation == "matmul" and len(sharded) < 2:
            raise Illegal("an unmatched contraction")
        return P
    one = extents == {1}  # an extent of 1 of the other operand could be broadcast or whole, which no rank can tell
    for i in range(len(labels)):
        if i not in sharded and any(at == to and (one or shapes[i][d] != 1) for d, at in enumerate(where[i])):
            raise Illegal("Replicated spans the sharded dimension")
    return Shard(to, unit=unit * (shapes[0][1] if operation == "flatten" else 1))  # rows are not split


# -- collectives and casts ---------------------------------------------------------------------------------------


def _communication(
    s: Statement, x: Kind, along: list[int], sizes: Sequence[int]
) -> tuple[Shape, tuple[Label, ...]]:
    have = [x.labels[k] for k in along]
    one = have[0]
    size = math.prod(sizes[k] for k in along)
    places = _unravel(s.root, [sizes[k] for k in along])
    shape = list(x.shape)

    def need(fits: bool, why: str) -> None:
        if not fits:
            raise Illegal(f"{s.operation}: {why}")

    def given(label: Label) -> tuple[Shape, tuple[Label, ...]]:
        labels = list(x.labels)
        for k in along:
            labels[k] = label
        return tuple(shape), tuple(labels)

    def rooted() -> tuple[Shape, tuple[Label, ...]]:
        labels = list(x.labels)
        for k, place in zip(along, places, strict=True):
            labels[k] = Rooted(place)
        return tuple(shape), tuple(labels)

    def all_are(*allowed: Label) -> bool:
        return all(label is one for label in have) and any(one is a for a in allowed)

    def all_shard(dim: int | None) -> bool:
        return all(isinstance(label, Shard) and label.dim == dim for label in have)

    def at_root() -> bool:
        return all(isinstance(label, Rooted) and label.root == at for label, at in zip(have, places, strict=True))

    def other_sharding_axes(dim: int | None) -> list[int]:
        """The axes outside `along` that shard a dimension."""
        return [k for k, label in enumerate(x.labels)
                if k not in along and isinstance(label, Shard) and label.dim == dim]  # fmt: skip

    def may_split(dim: int | None) -> None:
        need(dim is not None and 0 <= dim < len(shape), "no such dimension")
        need(not any(k > along[0] for k in other_sharding_axes(dim)), "an inner axis shards the dimension already")

    def may_concatenate(dim: int | None) -> None:
        need(dim is not None and 0 <= dim < len(shape), "no such dimension")
        if all_shard(dim):
            need(not any(k > along[0] for k in other_sharding_axes(dim)), "an inner axis still shards the dimension")
        else:
            need(all_are(V), "neither Shard along the dimension nor Varying")
            need(not other_sharding_axes(dim), "another axis shards the Varying values along the dimension")

    def equal_parts() -> None:
        assert isinstance(one, Shard)
        need(len(along) == 1, "needed parts on one axis")
        need(not other_sharding_axes(one.dim), "another axis shards the dimension too")
        need(shape[one.dim] // one.unit % size == 0, "uneven parts")
        shape[one.dim] //= size

    operation = s.operation
    dim: Any = s.dim  # as `dim2` and `to`, None where the operation has none
    dim2: Any = s.dim2
    to: Any = s.to
    if operation in ("all_reduce", "mean"):
        need(to is R or to is I, "to")
        need(all_are(V) or (operation == "all_reduce" and all_are(P, V)), "neither Partial nor Varying")
        return given(to)
    if operation in ("all_gather", "gather"):
        may_concatenate(dim)
        if all_are(V):
            shape[dim] *= size
        if operation == "gather":
            return rooted()
        need(to is R or to is I, "to")
        return given(to)
    if operation in ("reduce_scatter", "shard"):
        need(all_are(P, V) if operation == "reduce_scatter" else all_are(R, I), "label")
        may_split(dim)
        return given(Shard(dim))
    if operation == "all_to_all":
        need(dim != dim2 and dim2 is not None, "dimensions")
        may_split(dim)
        may_concatenate(dim2)
        if all_shard(dim2):
            return given(Shard(dim))
        need(not other_sharding_axes(dim), "another axis shards the Varying values along the dimension")
        need(shape[dim] % size == 0, "uneven parts")
        shape[dim] //= size
        shape[dim2] *= size
        return given(V)
    if operation in ("permute", "hand_over"):
        need(all_are(V), "label")
        need(all(i < size and j < size for i, j in s.pairs), "rank")
        need(operation == "permute" or s.pairs[0][0] != s.pairs[0][1], "to itself")
        return given(V)
    if operation in ("broadcast", "scatter"):
        need(at_root() or all_are(V), "label")
        if operation == "scatter":
            may_split(dim)
            return given(Shard(dim))
        need(to is R or to is I, "to")
        return given(to)
    if operation == "reduce":
        need(all_are(P, V), "label")
        return rooted()
    if operation == "declare_partial":
        if isinstance(one, Shard):
            equal_parts()
        else:
            need(all_are(V), "label")
        return given(P)
    assert operation == "cast", operation
    need(len(along) == 1, "one axis at a time")
    if isinstance(one, Shard):
        need(to is V, "Shard to other than V")
        equal_parts()
        return given(V)
    if isinstance(to, Shard):
        need(one is V and 0 <= to.dim < len(shape) and not other_sharding_axes(to.dim), "to Shard")
        shape[to.dim] *= size
        return given(to)
    need((one, to) in _CASTS, "no such cast")
    return given(to)


_CASTS = {(I, R), (R, I), (I, P), (R, P), (V, P), (R, V), (I, V)}


def _unravel(rank: int, sizes: Sequence[int]) -> list[int]:
    places = []
    for n in reversed(sizes):
        rank, at = divmod(rank, n)
        places.append(at)
    if rank:
        raise Illegal("no such root")
    return places[::-1]
