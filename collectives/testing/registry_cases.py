"""Test cases for every collective on every pair of layouts, with serial references of the call and of its adjoint.

The references are NumPy functions on lists with one array per rank (None where a value is absent). They share no code
with `collectives`.
"""

# mypy: disable-error-code="misc"
# (lambdas hold the values of loop variables as default arguments; their types cannot be inferred)
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import collectives as cc
from autograd.arrays.device import dtype_name

from .. import I, P, R, Rooted, Shard, V
from ..ops import reproducible as reproducible  # registers reproducible_sum
from . import primitive_cases
from .proof import Case, Setting, Skip

HELPERS = {
    **primitive_cases.HELPERS,
    "pad": "shard R->V reaches it as its adjoint",
    "keep on the root": "broadcast to=I reaches it as its adjoint",
    "equal copies": "from_local of the copies of an R or I, which to_local has made V",
    "own addend": "to_local of a P whose cotangent is declared R",
}
"""Internal collectives that users cannot call, and the case that tests each."""

F64, F32, F16, C128 = np.float64, np.float32, np.float16, np.complex128
Values = list[Any]


# -- the references ----------------------------------------------------------------------------------------------------


def same(xs: Values) -> Values:
    return list(xs)


def total(xs: Values) -> Values:
    return [np.sum(np.stack(xs), axis=0)] * len(xs)


def average(xs: Values) -> Values:
    return [(np.sum(np.stack(xs), axis=0) / len(xs)).astype(xs[0].dtype)] * len(xs)


def on_rank_0(xs: Values) -> Values:
    return [x if r == 0 else np.zeros_like(x) for r, x in enumerate(xs)]


def gathered(dim: int) -> Any:
    return lambda xs: [np.concatenate(xs, axis=dim)] * len(xs)


def split_indices(extent: int, sizes: Sequence[int]) -> list[list[int]]:
    """The indices that each rank keeps: numpy.array_split for every axis, the outer axis first."""
    found = [np.arange(extent)]
    for n in sizes:
        found = [part for whole in found for part in np.array_split(whole, n)]
    return [[int(i) for i in part] for part in found]


def split_sum(dim: int, sizes: Sequence[int]) -> Any:
    def cut(xs: Values) -> Values:
        whole = np.sum(np.stack(xs), axis=0)
        return [np.take(whole, keep, axis=dim) for keep in split_indices(whole.shape[dim], sizes)]

    return cut


def split_own(dim: int, sizes: Sequence[int]) -> Any:
    """Every rank keeps its part of its own array."""
    def cut(xs: Values) -> Values:
        return [np.take(x, keep, axis=dim) for x, keep in zip(xs, split_indices(xs[0].shape[dim], sizes), strict=True)]

    return cut


def padded(dim: int, extents: Sequence[int]) -> Any:
    """Every rank's part at its offset in the whole array, padded with zeros."""
    def place(parts: Values) -> Values:
        starts = np.concatenate([[0], np.cumsum(extents)])
        result = []
        for r, part in enumerate(parts):
            pieces = [np.zeros((*part.shape[:dim], n, *part.shape[dim + 1 :]), part.dtype)
                      for n in (starts[r], starts[-1] - starts[r + 1])]
            result.append(np.concatenate([pieces[0], part, pieces[1]], axis=dim))
        return result

    return place


def part_of_sum(dim: int, extents: Sequence[int]) -> Any:
    """Every rank gets its part of the sum; the parts have the given extents."""
    starts = np.concatenate([[0], np.cumsum(extents)]).astype(int)

    def cut(xs: Values) -> Values:
        whole = np.sum(np.stack(xs), axis=0)
        return [np.take(whole, range(starts[r], starts[r + 1]), axis=dim) for r in range(len(xs))]

    return cut


def own_part(dim: int, extents: Sequence[int]) -> Any:
    starts = np.concatenate([[0], np.cumsum(extents)]).astype(int)
    return lambda xs: [np.take(x, range(starts[r], starts[r + 1]), axis=dim) for r, x in enumerate(xs)]


def exchanged(split: int, cuts: Sequence[int], join: int) -> Any:
    """Rank s gets part s along `split` (of extents `cuts`) from every rank, concatenated along `join`."""
    starts = np.concatenate([[0], np.cumsum(cuts)]).astype(int)
    return lambda xs: [
        np.concatenate([np.take(x, range(starts[s], starts[s + 1]), axis=split) for x in xs], axis=join)
        for s in range(len(xs))
    ]


def dispatched(dim: int, sent: Sequence[Sequence[int]]) -> Any:
    """Rank s gets ``sent[r][s]`` elements along `dim` from every rank r, in order of rank."""
    def exchange(xs: Values) -> Values:
        cut = [np.split(x, np.cumsum(row)[:-1], axis=dim) for x, row in zip(xs, sent, strict=True)]
        return [np.concatenate([parts[s] for parts in cut], axis=dim) for s in range(len(xs))]

    return exchange


def permuted(pairs: Sequence[tuple[int, int]]) -> Any:
    def move(xs: Values) -> Values:
        source = {t: s for s, t in pairs}
        return [xs[source[r]] if r in source else np.zeros_like(x) for r, x in enumerate(xs)]

    return move


def inverse(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(t, s) for s, t in pairs]


def from_root(root: int) -> Any:
    return lambda xs: [xs[root]] * len(xs)


def at_root(root: int, function: Any, rest_is_zero: bool = False) -> Any:
    """The result of `function` on the root; other ranks get None, or zeros if the operand was V."""
    def keep(xs: Values) -> Values:
        ys = function(xs)
        return [y if r == root else np.zeros_like(y) if rest_is_zero else None for r, y in enumerate(ys)]

    return keep


def sent_to(source: int, target: int) -> Any:
    """Every rank keeps its own value, and the target adds the value that the source sent."""
    return lambda xs: [x + xs[source] if r == target else x for r, x in enumerate(xs)]


def mean(x: Any, on: Any, to: Any = R) -> Any:
    return cc.mean(x, on, to)  # looked up at the call, so that a test can replace it


def to_shard(x: Any, on: Any) -> Any:
    for axis in reversed(on):  # the inner axis first
        x = cc.cast(x, axis, to=Shard(0))
    return x


def out_and_back(x: Any, on: Any, cotangent: Any) -> Any:
    """A value with the labels that it had, after a time as each rank's own."""
    labels = {axis: x.layout[axis] for axis in on}
    return cc.from_local(cc.to_local(x, dict.fromkeys(on, cotangent)), labels)


def on_root(axis: Any, root: int) -> bool:
    return int(cc.current_mesh().axis(axis).rank) == root


# -- the cases ---------------------------------------------------------------------------------------------------------

SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((2, 3), F64), ((2, 3), F32), ((2, 3), C128), ((), F64), ((), F32), ((5,), F64), ((0, 2), F64), ((0, 2), F32),
    ((2, 3), F16),
]  # fmt: skip


def cases(setting: Setting, thin: int = 0, processes: bool = False) -> Iterator[Case | Skip]:
    """All cases for a group of this setting's size.

    `thin` leaves out repetitions, never a pair of layouts: 1 uses fewer shapes and dtypes, 2 also only the last root.
    The cases of `primitive_cases` are thinned more. On `processes` they are always thinned, and left out if `thin` is 2
    (another label than V on the other axis). float16 runs on at most 3 processes.
    """
    p, sizes = setting.size, setting.extents
    all_shapes = SHAPES[:-1] if processes and setting.ranks > 3 else SHAPES
    shapes = [all_shapes, [SHAPES[0], SHAPES[4], SHAPES[6]], SHAPES[:1]][thin]
    roots = [p - 1] if thin == 2 else list(range(p))
    yield from _whole(p, shapes)
    yield from _moves(p, shapes)
    yield from _rooted_whole(p, shapes, roots)
    yield from _cut(p, sizes, thin, roots)
    yield from _join(p, sizes, thin, roots)
    yield from _exchange(p, sizes, thin)
    if len(sizes) > 1:
        yield from _nested(p, sizes)
    yield from _reproducible(p, thin)
    yield from _point_to_point(p, shapes, roots)
    if not processes or thin < 2:
        yield from primitive_cases.cases(setting, max(thin, 1) if processes else thin)
    yield Skip("cast C->R, C->I, C->P", "a constant has no cotangent")
    yield Skip("all_reduce, reduce, mean of Shard", "refused with a LayoutError: parts are different elements")
    yield Skip("mean P->R, mean P->I", "refused with a LayoutError: a Partial value is one value, the sum")
    yield Skip("cast P->any, V->R, V->I, Rooted->any", "refused with a LayoutError: the ranks do not hold such a value")


def _named(name: str, takes: Any, gives: Any, shape: Any, dtype: Any, more: str = "") -> str:
    return f"{name} {takes!r}->{gives!r}{more} {dtype_name(dtype)}{shape}".replace(" ->", "->")


def _whole(p: int, shapes: Any) -> Iterator[Case | Skip]:
    """Sums and casts, whose operand has the same shape on all ranks."""
    table = [
        # name, covers, takes, gives, call, forward, adjoint
        *[("all_reduce", ("all_reduce",), a, R, cc.all_reduce, total, total) for a in (P, V)],
        *[("all_reduce", ("all_reduce",), a, I, lambda x, on: cc.all_reduce(x, on, to=I), total, same)
          for a in (P, V)],
        ("mean", ("all_reduce",), V, R, mean, average, average),
        ("mean", ("all_reduce",), V, I, lambda x, on: mean(x, on, to=I), average,
         lambda cts: [(c / len(cts)).astype(c.dtype) for c in cts]),
        ("cast", ("cast I->R",), I, R, lambda x, on: cc.cast(x, on, to=R), same, total),
        ("cast", ("cast R->I",), R, I, lambda x, on: cc.cast(x, on, to=I), same, on_rank_0),
        ("cast", ("cast to P",), I, P, lambda x, on: cc.cast(x, on, to=P), on_rank_0, same),
        ("cast", ("cast to P",), R, P, lambda x, on: cc.cast(x, on, to=P), on_rank_0, on_rank_0),
        ("cast", ("relabel",), V, P, lambda x, on: cc.cast(x, on, to=P), same, same),
        ("cast", ("relabel",), R, V, lambda x, on: cc.cast(x, on, to=V), same, same),
        ("cast", ("cast I->R", "relabel"), I, V, lambda x, on: cc.cast(x, on, to=V), same, total),
        ("cast", ("relabel",), Shard(0), V, lambda x, on: cc.cast(x, on, to=V), same, same),
        ("cast", ("relabel",), V, Shard(0), to_shard, same, same),
        ("to_local", ("relabel",), R, R, lambda x, on: out_and_back(x, on, P), same, same),
        ("to_local", ("cast I->R", "relabel", "cast R->I"), I, I, lambda x, on: out_and_back(x, on, P), same, same),
        ("to_local", ("cast R->I",), R, I, lambda x, on: cc.to_local(x, dict.fromkeys(on, I)), same, on_rank_0),
        ("to_local", ("relabel",), P, P, lambda x, on: out_and_back(x, on, R), same, same),
        ("declare_partial", ("relabel",), V, P, cc.declare_partial, same, same),
        ("declare_partial", ("relabel",), Shard(0), P, cc.declare_partial, same, same),
    ]  # fmt: skip
    for shape, dtype in shapes:
        for name, covers, takes, gives, call, forward, adjoint in table:
            title = _named(name, takes, gives, shape, dtype)
            if (isinstance(takes, Shard) or isinstance(gives, Shard)) and shape == ():
                yield Skip(title, "a 0-d array has no dimension to shard")
                continue
            yield Case(title, covers, takes, gives, call, forward, adjoint, (shape,) * p, dtype)


def _moves(p: int, shapes: Any) -> Iterator[Case]:
    """permute."""
    for shape, dtype in shapes:
        ring = [(r, (r + 1) % p) for r in range(p)]
        permutations = {"ring": ring, "ring back": inverse(ring), "identity": [(r, r) for r in range(p)], "none": []}
        if p > 2:
            permutations["some"] = [(0, p - 1), (p - 1, 1)]
            permutations["swap and shift"] = [(0, 2), (2, 1), (1, 0), *((r, r) for r in range(3, p))]
        for title, pairs in permutations.items():
            if title not in ("ring", "some") and (shape, dtype) != shapes[0]:
                continue
            for takes in (V, Shard(0)) if shape and title == "ring" else (V,):
                yield Case(
                    _named("permute", takes, V, shape, dtype, " " + title), ("permute",), takes, V,
                    lambda x, on, pairs=pairs: cc.permute(x, on, pairs), permuted(pairs), permuted(inverse(pairs)),
                    (shape,) * p, dtype,
                )  # fmt: skip
    uneven = tuple((2, r % 3) for r in range(p))

    def of_uneven(x: Any, on: Any) -> Any:
        rank = int(cc.current_mesh().axis(on).rank)
        return cc.permute(x, on, ring, like=np.empty(uneven[rank - 1]))

    yield Case(_named("permute", V, V, uneven, F64, " ring, like="), ("permute",), V, V, of_uneven, permuted(ring),
               permuted(inverse(ring)), uneven)  # fmt: skip


def _rooted_whole(p: int, shapes: Any, roots: Sequence[int]) -> Iterator[Case | Skip]:
    """broadcast and reduce, for every root."""
    for root in roots:
        at = Rooted(root)
        for shape, dtype in shapes:
            for to in (R, I):
                back = at_root(root, total if to is R else same)
                yield Case(
                    _named("broadcast", at, to, shape, dtype), ("broadcast",), at, to,
                    lambda x, on, root=root, to=to: cc.broadcast(x, on, root, to), from_root(root), back,
                    (shape,) * p, dtype,
                )  # fmt: skip
                yield Case(
                    _named("broadcast", V, to, shape, dtype, f" root={root}"), ("broadcast",), V, to,
                    lambda x, on, root=root, to=to: cc.broadcast(x, on, root, to), from_root(root),
                    at_root(root, total if to is R else same, rest_is_zero=True), (shape,) * p, dtype,
                )  # fmt: skip
            for takes in (P, V):
                yield Case(
                    _named("reduce", takes, at, shape, dtype), ("reduce",), takes, at,
                    lambda x, on, root=root: cc.reduce(x, on, root), at_root(root, total), from_root(root),
                    (shape,) * p, dtype,
                )  # fmt: skip
        shape = (2, 3)

        def none_elsewhere(x: Any, on: Any, root: int = root) -> Any:
            return cc.broadcast(x if on_root(on, root) else None, on, root)

        def with_like(x: Any, on: Any, root: int = root) -> Any:
            return cc.broadcast(x, on, root, like=x)

        for title, call in (("None elsewhere", none_elsewhere), ("like", with_like)):
            yield Case(
                _named("broadcast", at, R, shape, F64, " " + title), ("broadcast",), at, R, call, from_root(root),
                at_root(root, total), (shape,) * p,
            )  # fmt: skip


def _wholes(p: int, thin: int) -> list[tuple[int, tuple[int, ...], Any]]:
    """(dim, shape, dtype) of arrays to split: evenly, unevenly, with fewer elements than ranks, and empty."""
    found = [(0, (2 * p + 1, 2), F64), (1, (2, max(p - 1, 1)), F64), (0, (2 * p,), F32)]
    if thin == 2:
        return found[:1]
    if thin == 0:
        found += [(-2, (2, 2 * p + 1, 2), F64), (1, (2, p + 1), F32), (0, (0, 3), F64), (0, (p + 1,), C128),
                  (0, (p + 2,), F16)]
    return found


def _cut(p: int, sizes: Sequence[int], thin: int, roots: Sequence[int]) -> Iterator[Case | Skip]:
    """reduce_scatter, shard and scatter, which split an array as numpy.array_split does."""
    for dim, shape, dtype in _wholes(p, thin):
        at = dim % len(shape)
        out, more = Shard(at), f" dim={dim}"
        extents = [len(keep) for keep in split_indices(shape[at], sizes)]
        for takes in (P, V):
            yield Case(
                _named("reduce_scatter", takes, out, shape, dtype, more), ("reduce_scatter",), takes, out,
                lambda x, on, dim=dim: cc.reduce_scatter(x, on, dim), split_sum(at, sizes), gathered(at),
                (shape,) * p, dtype,
            )  # fmt: skip
        for takes, back in ((R, padded(at, extents)), (I, gathered(at))):
            yield Case(
                _named("shard", takes, out, shape, dtype, more), ("shard", "pad") if takes is R else ("shard",), takes,
                out, lambda x, on, dim=dim: cc.shard(x, on, dim), split_own(at, sizes), back, (shape,) * p, dtype,
            )  # fmt: skip
        for root in roots:
            def cut_root(xs: Values, root: int = root, at: int = at) -> Values:
                return [np.take(xs[root], keep, axis=at) for keep in split_indices(xs[root].shape[at], sizes)]

            for takes in (Rooted(root), V):
                yield Case(
                    _named("scatter", takes, out, shape, dtype, f"{more} root={root}"), ("scatter",), takes, out,
                    lambda x, on, root=root, dim=dim: cc.scatter(x, on, root, dim), cut_root,
                    at_root(root, gathered(at), rest_is_zero=takes is V), (shape,) * p, dtype,
                )  # fmt: skip
            if dtype is F64 and dim == 0:
                def none_elsewhere(x: Any, on: Any, root: int = root) -> Any:
                    return cc.scatter(x if on_root(on, root) else None, on, root)

                def with_like(x: Any, on: Any, root: int = root) -> Any:
                    return cc.scatter(x, on, root, like=x)

                for title, call in (("None elsewhere", none_elsewhere), ("like", with_like)):
                    yield Case(
                        _named("scatter", Rooted(root), out, shape, dtype, f" {title}"), ("scatter",), Rooted(root),
                        out, call, cut_root, at_root(root, gathered(at)), (shape,) * p, dtype,
                    )  # fmt: skip
    for name in ("reduce_scatter", "shard", "scatter", "all_gather", "gather", "all_to_all"):
        yield Skip(f"{name} ()", "a 0-d array has no dimension to split or concatenate")


def _join(p: int, sizes: Sequence[int], thin: int, roots: Sequence[int]) -> Iterator[Case | Skip]:
    """all_gather and gather: V with parts of any extents, and Shard."""
    def parts_of(takes: Any, extents: Sequence[int], rest: tuple[int, ...], at: int) -> tuple[tuple[int, ...], ...]:
        return tuple((*rest[:at], n, *rest[at:]) for n in extents)

    table: list[tuple[Any, int, tuple[tuple[int, ...], ...], Any]] = []
    uneven = [(2 * r + 1) % 4 if r != 1 else 0 for r in range(p)]
    some_empty = [r % 2 for r in range(p)]
    for dim, extents, rest, dtype in [
        (0, uneven, (2,), F64), (-1, [2] * p, (2,), F32), (1, some_empty, (3,), F64), (0, [0] * p, (), F64),
    ][: 4 - thin]:  # fmt: skip
        table.append((V, dim, parts_of(V, extents, rest, dim % (len(rest) + 1)), dtype))
    for dim, extent, rest, dtype in [(0, 2 * p + 1, (2,), F64), (1, max(p - 1, 1), (2,), F32), (0, 2 * p, (), C128)][
        : 3 - thin
    ]:
        extents = [len(keep) for keep in split_indices(extent, sizes)]
        table.append((Shard(dim), dim, parts_of(V, extents, rest, dim), dtype))
    for takes, dim, shapes, dtype in table:
        at = dim % len(shapes[0])
        extents = [shape[at] for shape in shapes]
        title = f" dim={dim} extents={extents}"
        yield Case(
            _named("all_gather", takes, R, "", dtype, title), ("all_gather",), takes, R,
            lambda x, on, dim=dim: cc.all_gather(x, on, dim), gathered(at), part_of_sum(at, extents), shapes, dtype,
        )  # fmt: skip
        yield Case(
            _named("all_gather", takes, I, "", dtype, title), ("all_gather",), takes, I,
            lambda x, on, dim=dim: cc.all_gather(x, on, dim, to=I), gathered(at), own_part(at, extents), shapes, dtype,
        )  # fmt: skip
        for root in roots:
            def given_back(cts: Values, root: int = root, at: int = at, extents: list[int] = extents) -> Values:
                return own_part(at, extents)([cts[root]] * len(cts))

            yield Case(
                _named("gather", takes, Rooted(root), "", dtype, title), ("gather",), takes, Rooted(root),
                lambda x, on, root=root, dim=dim: cc.gather(x, on, root, dim), at_root(root, gathered(at)), given_back,
                shapes, dtype,
            )  # fmt: skip


def _nested(p: int, sizes: Sequence[int]) -> Iterator[Case]:
    """One dimension sharded by two axes: one axis after the other must give the same as the tuple of axes.

    The outer axis splits first; the inner axis is gathered first.
    """
    def each(function: Any, inner_first: bool, **options: Any) -> Any:
        def call(x: Any, on: Any) -> Any:
            for axis in reversed(on) if inner_first else on:
                x = function(x, axis, **options)
            return x

        return call

    for extent in (2 * p + 1, p - 1):
        whole = (extent, 2)
        parts = [len(keep) for keep in split_indices(extent, sizes)]
        shapes, cut, more = tuple((n, 2) for n in parts), Shard(0), " axis by axis"
        for name, takes, gives, call, forward, adjoint, given in [
            ("all_gather", cut, R, each(cc.all_gather, True), gathered(0), part_of_sum(0, parts), shapes),
            ("all_gather", cut, I, each(cc.all_gather, True, to=I), gathered(0), own_part(0, parts), shapes),
            ("reduce_scatter", P, cut, each(cc.reduce_scatter, False), split_sum(0, sizes), gathered(0), (whole,) * p),
            ("shard", R, cut, each(cc.shard, False), split_own(0, sizes), padded(0, parts), (whole,) * p),
            ("shard", I, cut, each(cc.shard, False), split_own(0, sizes), gathered(0), (whole,) * p),
        ]:
            title = _named(name, takes, gives, whole, F64, more)
            yield Case(title, (name,), takes, gives, call, forward, adjoint, given)


def _reproducible(p: int, thin: int) -> Iterator[Case]:
    """reproducible_sum, with different numbers of addends per rank, numbered round-robin over the ranks."""
    for shares, rest, dtype in [([(2 * r + 1) % 3 for r in range(p)], (2,), F64), ([1] * p, (), F32)][: 2 - thin // 2]:
        order = sorted((turn, r) for r in range(p) for turn in range(shares[r]))

        def call(x: Any, on: Any, to: Any = R, order: Any = order) -> Any:
            me = int(cc.current_mesh().axis(on).rank)
            return cc.reproducible_sum(x, [i for i, (_, r) in enumerate(order) if r == me], on, to)

        def forward(xs: Values) -> Values:
            return [np.sum(np.concatenate(xs), axis=0)] * len(xs)

        def to_each(cts: Values, shares: list[int] = shares) -> Values:
            return [np.broadcast_to(ct, (n, *ct.shape)).copy() for ct, n in zip(cts, shares, strict=True)]

        shapes = tuple((n, *rest) for n in shares)
        for to, adjoint in ((R, lambda cts, each=to_each: each(total(cts))), (I, to_each)):
            yield Case(
                _named("reproducible_sum", V, to, "", dtype, f" shares={shares}"), ("reproducible_sum",), V, to,
                lambda x, on, to=to, call=call: call(x, on, to), forward, adjoint, shapes, dtype,
            )  # fmt: skip


def _exchange(p: int, sizes: Sequence[int], thin: int) -> Iterator[Case | Skip]:
    """all_to_all."""
    table: list[tuple[Any, int, int, int, list[int], tuple[int, ...], Any]] = [
        # takes, split, join, whole extent of the split dimension, every rank's extent of the other, further, dtype
        (V, 0, 1, 2 * p + 1, [(r + 1) % 3 for r in range(p)], (2,), F64),
        (V, 1, 0, max(p - 1, 1), [1 + r % 2 for r in range(p)], (), F32),
        (Shard(1), 0, 1, p + 1, [len(k) for k in split_indices(2 * p - 1, sizes)], (), F64),
        (Shard(0), -1, 0, 2 * p, [len(k) for k in split_indices(p - 1, sizes)], (), F64),
    ]
    if thin == 0:
        table += [(V, 0, 1, p, [1] * p, (2,), C128), (V, 0, 1, 0, [2] * p, (), F64)]
    for takes, split, join, whole, others, rest, dtype in table[2 if thin == 2 else 0 :]:
        s = split % (2 + len(rest))
        shapes = tuple((whole, n, *rest) if s == 0 else (n, whole, *rest) for n in others)
        cuts = [len(keep) for keep in split_indices(whole, sizes)]
        gives = Shard(s) if isinstance(takes, Shard) else V
        title = f" split={split} extents={cuts} join={join} extents={others}"
        yield Case(
            _named("all_to_all", takes, gives, "", dtype, title),
            ("all_to_all",), takes, gives,
            lambda x, on, split=split, join=join: cc.all_to_all(x, on, split, join), exchanged(s, cuts, join),
            exchanged(join, others, s), shapes, dtype,
        )  # fmt: skip
    yield from _dispatch(p, sizes, thin)


def _dispatch(p: int, sizes: Sequence[int], thin: int) -> Iterator[Case | Skip]:
    """all_to_all along one dimension: rank r sends ``sent[r][s]`` elements to rank s."""
    uneven = [[(2 * r + s) % 3 for s in range(p)] for r in range(p)]
    even = [[len(k) for k in split_indices(r + 2, sizes)] for r in range(p)]
    rows: list[tuple[Any, int, list[list[int]], str, tuple[int, ...], Any]] = [
        (V, 0, uneven, "counts", (2,), F64), (V, 0, uneven, "received", (2,), F64), (V, -1, even, "", (3,), F32)]
    for takes, dim, sent, given, rest, dtype in rows[2 if thin == 2 else 0 :]:
        d = dim % (1 + len(rest))
        shapes = tuple((*rest[:d], sum(row), *rest[d:]) for row in sent)
        received = [list(column) for column in zip(*sent, strict=True)]

        def call(
            x: Any, on: Any, dim: int = dim, sent: Any = sent, received: Any = received, given: str = given
        ) -> Any:
            rank = int(cc.current_mesh().axis(on).rank)
            return cc.all_to_all(x, on, dim, dim, counts=sent[rank] if given else None,
                                 received=received[rank] if given == "received" else None)  # fmt: skip

        yield Case(
            _named("all_to_all", takes, V, "", dtype, f" along {dim}, sent={sent}{', ' if given else ''}{given}"),
            ("all_to_all",), takes, V, call, dispatched(d, sent), dispatched(d, received), shapes, dtype,
        )  # fmt: skip


def _point_to_point(p: int, shapes: Any, roots: Sequence[int]) -> Iterator[Case | Skip]:
    """send and recv: all ranks around a ring, and from one rank to another."""
    if p == 1:
        yield Skip("send, recv", "a rank does not send to itself")
        return

    def ring(x: Any, on: Any) -> Any:
        rank = int(cc.current_mesh().axis(on).rank)
        cc.send(x, on, (rank + 1) % p)
        return cc.recv(on, (rank - 1) % p)

    round_trip = [(r, (r + 1) % p) for r in range(p)]
    for shape, dtype in shapes:
        yield Case(_named("send/recv", V, V, shape, dtype, " ring"), ("send", "recv"), V, V, ring, permuted(round_trip),
                   permuted(inverse(round_trip)), (shape,) * p, dtype)  # fmt: skip
    uneven = tuple((2, r % 3) for r in range(p))
    yield Case(_named("send/recv", V, V, uneven, F64, " ring"), ("send", "recv"), V, V, ring, permuted(round_trip),
               permuted(inverse(round_trip)), uneven)  # fmt: skip
    for source in roots:
        for target in {(source + 1) % p, (source + p // 2) % p, p - 1} - {source}:
            def hop(x: Any, on: Any, source: int = source, target: int = target) -> Any:
                rank = int(cc.current_mesh().axis(on).rank)
                if rank == source:
                    cc.send(x, on, target)
                return x + cc.recv(on, source) if rank == target else x * 1.0

            yield Case(f"send/recv V->V {source} to {target}", ("send", "recv"), V, V, hop, sent_to(source, target),
                       sent_to(target, source), ((2, 3),) * p)  # fmt: skip


# -- where they run ----------------------------------------------------------------------------------------------------


def settings(ranks: int) -> Iterator[tuple[Setting, int]]:
    """Every setting of a world with its `thin`: one axis, two flattened axes, and each axis of two."""
    yield Setting({"a": ranks}, ["a"]), 0 if ranks <= 5 else 1
    inner = {4: 2, 6: 3, 8: 4}.get(ranks)
    if inner is None:
        return
    sizes = {"a": ranks // inner, "b": inner}
    yield Setting(sizes, ["a", "b"]), 1
    for axis, other in (("a", "b"), ("b", "a")):
        for label in (V, R, P, I, Rooted(1))[: 3 if ranks == 8 else 5]:
            yield Setting(sizes, [axis], {other: label}), 1 if label is V else 2


def work_and_skips(ranks: int, processes: bool = False) -> tuple[list[tuple[Case, Setting]], list[Skip]]:
    """The cases to run in a world of so many ranks, and the skipped ones.

    On up to 3 threads all cases run their second-order checks. Otherwise only the first case of each pair of layouts
    does in each setting, and on processes, which are slow when they share a core, only in settings whose other axis is
    V.
    """
    work: list[tuple[Case, Setting]] = []
    skips: list[Skip] = []
    for setting, thin in settings(ranks):
        seen = set()
        for case in cases(setting, thin, processes):
            if isinstance(case, Skip):
                skips.append(case)
                continue
            pair = case.name.split()[0], str(case.takes).split("(")[0], str(case.gives).split("(")[0]
            known = pair in seen or (processes and any(label is not V for label in setting.others.values()))
            first_order = known and (processes or ranks > 3)
            work.append((replace(case, order=1) if first_order else case, setting))
            seen.add(pair)
    return work, skips
