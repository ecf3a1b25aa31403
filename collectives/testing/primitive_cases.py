"""Test cases for scans, extrema, products, halos, one-sided reads and barriers; `registry_cases` includes them.

The references are NumPy functions on lists with one array per rank. Those of the halo number the cells of the whole
grid, pad the array of numbers, and look cells up by number. Those of `get` index the ranks' arrays.
"""

# mypy: disable-error-code="misc"
# (lambdas hold the values of loop variables as default arguments; their types cannot be inferred)
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import collectives as cc

from .. import I, P, R, Shard, V
from .proof import Case, Setting, Skip

HELPERS = {
    "add ghosts": "halo_exchange reaches it as its adjoint",
    "accumulate": "get reaches it as its adjoint",
}

F64, F32, F16, C128 = np.float64, np.float32, np.float16, np.complex128
Values = list[Any]


def cases(setting: Setting, thin: int) -> Iterator[Case | Skip]:
    """All cases of this module for a group of this setting's size.

    `thin` leaves out more than in `registry_cases.cases`, since these cases take longer: 1 keeps one shape, 2 also
    drops sharded operands. Second-order checks run in double precision only, and not for every shape.
    """
    p = setting.size
    if thin == 2 and setting.ranks == 8:
        yield Skip("scan, extrema, halo, get beside R and P on 8 ranks", "the same as on 4 and 6 ranks")
        return
    yield from scans(p, thin)
    if any(label is P for label in setting.others.values()):
        yield Skip("all_max, all_min, all_prod beside P", "not linear: refused with a LayoutError")
    else:
        yield from extrema(p, thin)
        yield from products(p, thin)
    yield from halos(p, setting.extents, thin)
    if len(setting.extents) == 2 and setting.ranks != 8:
        yield from grids(setting.extents)
    yield from reads(p, setting.extents, thin)
    yield Case("barrier V->V", (), V, V, after_barrier, list, list, ((2, 3),) * p)


def after_barrier(x: Any, on: Any) -> Any:
    cc.barrier(on)
    return x * 1.0


def part_extents(extent: int, sizes: Sequence[int]) -> list[int]:
    """The extents of the ranks' parts: numpy.array_split for every axis, the outer axis first."""
    found = [np.arange(extent)]
    for n in sizes:
        found = [part for whole in found for part in np.array_split(whole, n)]
    return [len(part) for part in found]


def wide(xs: Values) -> np.ndarray:
    """Stack all ranks' arrays in double precision, so that rounding errors of the reference do not matter."""
    return np.stack(xs).astype(C128 if xs[0].dtype.kind == "c" else F64)


# -- scan ------------------------------------------------------------------------------------------------------


def running(exclusive: bool, backwards: bool) -> Callable[[Values], Values]:
    def run(xs: Values) -> Values:
        stack = wide(xs)[::-1] if backwards else wide(xs)
        sums = np.cumsum(stack, axis=0)
        sums = np.concatenate([np.zeros_like(sums[:1]), sums[:-1]]) if exclusive else sums
        return [y.astype(xs[0].dtype) for y in (sums[::-1] if backwards else sums)]

    return run


def scans(p: int, thin: int) -> Iterator[Case]:
    shapes: list[Any] = [((2, 3), F64), ((), F64), ((0, 2), F64), ((2, 3), F32), ((3,), C128), ((4,), F16)]
    for name, exclusive in (("scan", False), ("exscan", True)):
        for at, (shape, dtype) in enumerate(shapes[: 1 if thin else 6]):
            for takes in (V, Shard(0)) if at == 0 and thin < 2 else (V,):
                yield Case(
                    f"{name} {takes!r}->V {np.dtype(dtype).name}{shape}", (name,), takes, V,
                    lambda x, on, name=name: getattr(cc, name)(x, on), running(exclusive, False),
                    running(exclusive, True), (shape,) * p, dtype, 1 if at in (2, 3, 5) else 2,
                )  # fmt: skip


# -- extrema and products ----------------------------------------------------------------------------------------


def winners_share(y: Any, xs: Values) -> np.ndarray:
    """Each rank's share of the cotangent of the extremum y: ranks that tie get equal shares."""
    ties = wide(xs) == np.asarray(y, F64)
    return ties / np.maximum(ties.sum(axis=0), 1)


def extrema(p: int, thin: int) -> Iterator[Case | Skip]:
    shapes: list[Any] = [((2, 3), F64), ((), F64), ((0, 2), F64), ((2, 3), F32), ((2, 3), F16)]
    points: dict[str, Any] = {"": None, " ties": np.round}
    for name, largest in (("all_max", np.max), ("all_min", np.min)):
        for to in (R, I):
            def forward(xs: Values, largest: Any = largest) -> Values:
                return [largest(np.stack(xs), axis=0)] * len(xs)

            def tangent(xs: Values, dxs: Values, largest: Any = largest) -> Values:
                share = winners_share(largest(np.stack(xs), axis=0), xs)
                return [(share * wide(dxs)).sum(axis=0).astype(xs[0].dtype)] * len(xs)

            def adjoint(xs: Values, cts: Values, largest: Any = largest, to: Any = to) -> Values:
                cts = [wide(cts).sum(axis=0)] * len(cts) if to is R else cts
                share = winners_share(largest(np.stack(xs), axis=0), xs)
                return [(s * ct).astype(x.dtype) for s, ct, x in zip(share, cts, xs, strict=True)]

            for at, (shape, dtype) in enumerate(shapes[: 1 if thin else 5]):
                for more, point in points.items():
                    if more == "" and (at or thin):
                        continue  # one case without ties is enough
                    for takes in (V, Shard(0)) if at == 0 and thin < 2 and more else (V,):
                        yield Case(
                            f"{name} {takes!r}->{to!r} {np.dtype(dtype).name}{shape}{more}", (name,), takes, to,
                            lambda x, on, name=name, to=to: getattr(cc, name)(x, on, to), forward, adjoint,
                            (shape,) * p, dtype, 1 if at > 1 else 2, point=point, tangent=tangent,
                        )  # fmt: skip
    yield Skip("all_max, all_min complex128", "complex numbers have no order: refused with a DtypeError")


def without(xs: np.ndarray, *ranks: int) -> Any:
    """The product over all other ranks."""
    return np.prod(np.delete(xs, ranks, axis=0), axis=0)


def products(p: int, thin: int) -> Iterator[Case]:
    shapes: list[Any] = [((2, 4), F64), ((), F64), ((0, 2), F64), ((2, 4), C128), ((2, 4), F32), ((4,), F16)]

    def many_zeros(x: Any) -> Any:
        return np.where(abs(x) < 0.7, 0, x).astype(x.dtype)

    def forward(xs: Values) -> Values:
        return [np.prod(wide(xs), axis=0).astype(xs[0].dtype)] * len(xs)

    def tangent(xs: Values, dxs: Values) -> Values:
        x, dx = wide(xs), wide(dxs)
        return [np.asarray(sum(dx[r] * without(x, r) for r in range(len(xs)))).astype(xs[0].dtype)] * len(xs)

    for to in (R, I):
        def adjoint(xs: Values, cts: Values, to: Any = to) -> Values:
            x, ct = wide(xs), wide(cts)
            return [np.asarray((ct.sum(axis=0) if to is R else ct[r]) * without(x, r)).astype(xs[0].dtype)
                    for r in range(len(xs))]  # fmt: skip

        def bend(xs: Values, dxs: Values, cts: Values, to: Any = to) -> Values:
            x, dx, ct = wide(xs), wide(dxs), wide(cts)
            everyone = range(len(xs))
            slope = [sum((dx[s] * without(x, r, s) for s in everyone if s != r), 0 * x[0]) for r in everyone]
            return [((ct.sum(axis=0) if to is R else ct[r]) * slope[r]).astype(xs[0].dtype) for r in everyone]

        for at, (shape, dtype) in enumerate(shapes[: 1 if thin else 6]):
            for more, point in {"": None, " zeros": many_zeros}.items():
                if more == "" and (at or thin):
                    continue
                for takes in (V, Shard(0)) if at == 0 and thin < 2 and more else (V,):
                    yield Case(
                        f"all_prod {takes!r}->{to!r} {np.dtype(dtype).name}{shape}{more}", ("all_prod",), takes, to,
                        lambda x, on, to=to: cc.all_prod(x, on, to), forward, adjoint, (shape,) * p, dtype,
                        1 if at in (2, 4, 5) else 2, point=point, tangent=tangent, bend=bend,
                    )  # fmt: skip


# -- halos -------------------------------------------------------------------------------------------------------


def windows(parts: Sequence[Sequence[int]], widths: Sequence[tuple[int, int]], wraps: Sequence[bool]) -> Any:
    """The numbers of the cells that each rank of a grid sees, ghost cells included; 0 is outside the grid."""
    whole = 1 + np.arange(np.prod([sum(n) for n in parts])).reshape([sum(n) for n in parts])
    for dim, (width, wrap) in enumerate(zip(widths, wraps, strict=True)):
        pad = [(0, 0)] * whole.ndim
        pad[dim] = width
        whole = np.pad(whole, pad, mode="wrap" if wrap else "constant")
    found = []
    for place in np.ndindex(*map(len, parts)):
        cut = []
        for n, i, (before, after) in zip(parts, place, widths, strict=True):
            start = sum(n[:i])
            cut.append(slice(start, start + before + n[i] + after))
        found.append(whole[tuple(cut)])
    return found


def halo_reference(seen: Sequence[np.ndarray], own: Sequence[np.ndarray], dims: Sequence[int]) -> Any:
    """The references of a halo exchange: the forward function and its adjoint.

    `seen` and `own` are the cell numbers that each rank sees and owns. Forward, every rank's cells go into a list by
    number, and each rank looks up the cells that it sees.
    """
    def look_up(xs: Values) -> Values:
        xs = [np.moveaxis(x, dims, range(len(dims))) for x in xs]
        rest = xs[0].shape[len(dims):]
        cells = np.zeros((1 + max(int(n.max(initial=0)) for n in own), *rest), xs[0].dtype)
        for x, numbers in zip(xs, own, strict=True):
            cells[numbers] = x
        return [np.moveaxis(cells[numbers], range(len(dims)), dims) for numbers in seen]

    def add_up(cts: Values) -> Values:
        dtype = cts[0].dtype
        cts = [np.moveaxis(ct, dims, range(len(dims))) for ct in cts]
        rest = cts[0].shape[len(dims):]
        cells = np.zeros((1 + max(int(n.max(initial=0)) for n in own), *rest), C128 if dtype.kind == "c" else F64)
        for ct, numbers in zip(cts, seen, strict=True):
            np.add.at(cells, numbers, ct)
        return [np.moveaxis(cells[numbers], range(len(dims)), dims).astype(dtype) for numbers in own]

    return look_up, add_up


def halo_case(
    title: str, takes: Any, parts: Sequence[Sequence[int]], widths: Sequence[tuple[int, int]], wraps: Sequence[bool],
    dims: Sequence[int], rest: tuple[int, ...], dtype: Any, call: Any,
) -> Case:  # fmt: skip
    """The case of a halo exchange on a grid of ranks, whose parts have the extents `parts[k]` along `dims[k]`."""
    own = windows(parts, [(0, 0)] * len(parts), [False] * len(parts))
    forward, adjoint = halo_reference(windows(parts, widths, wraps), own, dims)
    shapes = []
    for place in np.ndindex(*map(len, parts)):
        shape = list(rest)
        for dim, n, i in sorted(zip(dims, parts, place, strict=True)):
            shape.insert(dim, n[i])
        shapes.append(tuple(shape))
    name = f"halo_exchange {takes!r}->V {np.dtype(dtype).name} {title}"
    return Case(name, ("halo_exchange", "add ghosts"), takes, V, call, forward, adjoint, tuple(shapes), dtype)


def halos(p: int, sizes: Sequence[int], thin: int) -> Iterator[Case]:
    """Halos along one dimension: periodic and open, widths on one side only, uneven and empty parts."""
    uneven = [2 + r % 3 for r in range(p)]
    table: list[Any] = [
        # takes, parts, (before, after), periodic, dim, the rest of the shape, dtype
        (V, uneven, (1, 2), True, 0, (2,), F64),
        (Shard(1), part_extents(2 * p + 1, sizes), (2, 1), False, 1, (2,), F64),
        (V, uneven, (2, 1), False, 1, (2, 2), F32),
        (V, [1] * p, (1, 1), True, 0, (), C128),
        (V, uneven, (0, 1), True, 0, (3,), F16),
        (V, [0] * p, (0, 0), True, 0, (3,), F64),
        (V, uneven, (1, 1), True, 0, (0,), F64),
        (Shard(0), part_extents(2 * p, sizes), (0, 2), True, 0, (), F64),
    ]
    for takes, parts, width, wrap, dim, rest, dtype in table[: (8, 2, 1)[thin]]:
        yield halo_case(
            f"{parts} widths={width} {'periodic' if wrap else 'open'} dim={dim}", takes, [parts], [width], [wrap],
            [dim], rest, dtype,
            lambda x, on, w=width, d=dim, wrap=wrap: cc.halo_exchange(x, on, w, d, periodic=wrap),
        )  # fmt: skip


def grids(sizes: Sequence[int]) -> Iterator[Case]:
    """Halos in two dimensions on two axes, corners included; `halos` tests two axes along one dimension."""
    rows, columns = ([2 + (i + k) % 2 for i in range(n)] for k, n in enumerate(sizes))
    for dims, widths, wraps in [
        ((0, 1), [(1, 2), (2, 1)], [True, True]), ((2, 0), [(1, 1), (0, 2)], [False, True]),
    ]:  # fmt: skip
        yield halo_case(
            f"grid {rows}x{columns} dims={dims} widths={widths}", V, [rows, columns], widths, wraps, dims, (2,), F64,
            lambda x, on, w=widths, d=dims, wraps=wraps: cc.halo_exchange(x, on, w, d, periodic=wraps),
        )  # fmt: skip


# -- one-sided -----------------------------------------------------------------------------------------------------


def get_forward(asked: Sequence[tuple[Any, Any]]) -> Any:
    """The reference of `get`: rank r reads ``asked[r]``, a (source, index) or arrays of both, which select rows."""
    def taken(r: int, xs: Values) -> Any:
        source, index = asked[r]
        if isinstance(index, np.ndarray):
            sources, rows = np.broadcast_arrays(source, index)
            empty = np.empty((0, *xs[0].shape[1:]), xs[0].dtype)
            found = np.stack([xs[s][i] for s, i in zip(sources.flat, rows.flat, strict=True)]) if rows.size else empty
            return found.reshape(*rows.shape, *xs[0].shape[1:])
        return np.array(xs[source][index])

    def forward(xs: Values) -> Values:
        return [taken(r, xs) for r in range(len(xs))]

    return forward


def reads(p: int, sizes: Sequence[int], thin: int) -> Iterator[Case]:
    uneven = [3 + r % 2 for r in range(p)]
    rng = np.random.default_rng(p)
    sources = [rng.integers(0, p, (2, 3)) for _ in range(p)]
    rows = [np.array([[rng.integers(-uneven[s], uneven[s]) for s in line] for line in own]) for own in sources]
    cut = part_extents(2 * p + 1, sizes)
    table: list[Any] = [
        # title, takes, parts, the rest of the shape, dtype, what each rank reads
        ("rows of many", V, uneven, (2,), F64, [(sources[r], rows[r]) for r in range(p)]),
        ("the next one's slice", Shard(0), cut, (3,), F64, [((r + 1) % p, (slice(0, 2), slice(r % 2, 3)))
                                                            for r in range(p)]),
        ("all of the last one", V, uneven, (2,), F32, [(p - 1, ...)] * p),
        ("one number", V, uneven, (3,), C128, [((r * 2 + 1) % p, (r % 3, -1)) for r in range(p)]),
        ("other lengths, the first nothing", V, uneven, (2,), F16, [(0, np.arange(r)) for r in range(min(p, 3))]
         + [(r, np.array([0, 2, 0])) for r in range(3, p)]),
        ("every other one, backwards", V, uneven, (2,), F64, [(p - 1 - r, (slice(None, None, -2), 1))
                                                              for r in range(p)]),
        ("parts of nothing", V, [0] * p, (2,), F64, [(0, ...)] * p),
    ]  # fmt: skip
    for title, takes, parts, rest, dtype, asked in table[: (7, 2, 1)[thin]]:
        forward = get_forward(asked)
        shapes = tuple((n, *rest) for n in parts)

        def adjoint(cts: Values, asked: Any = asked, shapes: Any = shapes) -> Values:
            dtype = cts[0].dtype
            sums = [np.zeros(shape, C128 if dtype.kind == "c" else F64) for shape in shapes]
            for (source, index), ct in zip(asked, cts, strict=True):
                if isinstance(index, np.ndarray):
                    for s, i, g in zip(*map(np.ravel, np.broadcast_arrays(source, index)),
                                       ct.reshape(-1, *ct.shape[index.ndim:]), strict=True):  # fmt: skip
                        sums[s][i] += g
                else:
                    np.add.at(sums[source], index, ct)
            return [s.astype(dtype) for s in sums]

        def call(x: Any, on: Any, asked: Any = asked) -> Any:
            source, index = asked[int(cc.current_mesh().axis(on).rank)]
            return cc.get(x, on, source, index)

        yield Case(f"get {takes!r}->V {np.dtype(dtype).name} {title}", ("get", "accumulate"), takes, V, call, forward,
                   adjoint, shapes, dtype)  # fmt: skip
