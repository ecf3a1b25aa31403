"""The collectives of ranks that are threads: what must agree, what each rank brings, what each rank gets.

One rank makes the results of all, from all parts; nothing here waits, or knows of a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from autograd.errors import CollectiveMismatch, DtypeError, ShapeError

from ..arguments import checked_array, checked_counts, checked_rank, checked_size
from ..protocol import Array, Communicator, Runs

__all__ = ["CALLS", "Call"]


class Call(NamedTuple):
    """A collective: `prepare` checks one rank's arguments, `combine` makes all ranks' results from all parts.

    `prepare(communicator, *arguments)` returns what must be equal on all ranks, in the order of `agrees`, and the part.
    `combine(parts, *agreed)` returns the results in order of rank; each is a new array (or the buffer of a broadcast).
    """

    agrees: tuple[str, ...]
    prepare: Callable[..., tuple[tuple[Any, ...], Any]]
    combine: Callable[..., list[Any]]


def _prepare_broadcast(group: Communicator, x: Array, root: int) -> tuple[tuple[Any, ...], Array]:
    checked_array(x)
    if checked_rank(group, "root", root) != group.rank and not x.flags.writeable:
        raise ShapeError(f"broadcast writes to the array off its root {root}, and this one is read-only")
    return (root, x.dtype, x.size), x


def _prepare_reduce(group: Communicator, x: Array, root: int) -> tuple[tuple[Any, ...], Array]:
    checked_array(x)
    return (checked_rank(group, "root", root), x.dtype, x.size), x


def _prepare_all_reduce(group: Communicator, x: Array) -> tuple[tuple[Any, ...], Array]:
    checked_array(x)
    return (x.dtype, x.size), x


def _prepare_all_gather(group: Communicator, x: Array, counts: Sequence[int]) -> tuple[tuple[Any, ...], Array]:
    counts = tuple(checked_counts(group, "counts", counts))
    checked_size(x, counts[group.rank], f"counts[{group.rank}]")
    return (x.dtype, counts), x


def _prepare_gather(group: Communicator, x: Array, counts: Sequence[int], root: int) -> tuple[tuple[Any, ...], Array]:
    agreed, x = _prepare_all_gather(group, x, counts)
    return (checked_rank(group, "root", root), *agreed), x


def _prepare_scatter(
    group: Communicator, x: Array | None, counts: Sequence[int], root: int, dtype: Any
) -> tuple[tuple[Any, ...], Array | None]:
    counts, dtype = tuple(checked_counts(group, "counts", counts)), np.dtype(dtype)
    if checked_rank(group, "root", root) != group.rank:
        return (root, dtype, counts), None
    if x is None:
        raise ShapeError(f"scatter needs an array on its root, rank {root} of '{group.name}'")
    if x.dtype != dtype:
        raise DtypeError(f"scatter was given {x.dtype} on its root and dtype {dtype}")
    checked_size(x, sum(counts), "the sum of counts")
    return (root, dtype, counts), x


def _prepare_reduce_scatter(group: Communicator, x: Array, counts: Sequence[int]) -> tuple[tuple[Any, ...], Array]:
    counts = tuple(checked_counts(group, "counts", counts))
    checked_size(x, sum(counts), "the sum of counts")
    return (x.dtype, counts), x


def _prepare_all_to_all(
    group: Communicator, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> tuple[tuple[Any, ...], tuple[Array, tuple[int, ...], tuple[int, ...]]]:
    send_counts = tuple(checked_counts(group, "send_counts", send_counts))
    receive_counts = tuple(checked_counts(group, "receive_counts", receive_counts))
    checked_size(x, sum(send_counts), "the sum of send_counts")
    return (x.dtype,), (x, send_counts, receive_counts)


def _prepare_scan(group: Communicator, x: Array, exclusive: bool, backwards: bool) -> tuple[tuple[Any, ...], Array]:
    checked_array(x)
    return (x.dtype, x.size, exclusive, backwards), x


def _prepare_get(group: Communicator, x: Array, runs: Runs) -> tuple[tuple[Any, ...], tuple[Array, Runs]]:
    checked_array(x)
    return (x.dtype,), (x, runs)


def _prepare_accumulate(
    group: Communicator, values: Array, runs: Runs, count: int
) -> tuple[tuple[Any, ...], tuple[Array, Runs, int]]:
    checked_size(values, sum(n for _, _, n in runs), "the sum of the runs")
    return (values.dtype,), (values, runs, count)


def _wide(x: Array) -> Array:
    """A copy in the dtype in which sums and products are taken: float32 for float16, else the array's own."""
    return x.astype(np.float32 if x.dtype == np.float16 else x.dtype)


def _reduced(parts: list[Array], operation: Any) -> Array:
    """The reduction in order of rank, so that it does not depend on who came last; float16 is rounded once."""
    total = _wide(parts[0])
    for part in parts[1:]:
        operation(total, part, out=total)
    return total.astype(parts[0].dtype, copy=False)


def _sum(parts: list[Array]) -> Array:
    return _reduced(parts, np.add)


def _combine_scan(parts: list[Array], dtype: Any, count: int, exclusive: bool, backwards: bool) -> list[Array]:
    total = _wide(np.zeros(count, dtype))
    results = []
    for part in reversed(parts) if backwards else parts:
        before = total.astype(dtype)
        np.add(total, part, out=total)
        results.append(before if exclusive else total.astype(dtype))
    return results[::-1] if backwards else results


def _combine_get(parts: list[tuple[Array, Runs]], dtype: Any) -> list[Array]:
    empty = np.empty(0, dtype)
    return [np.concatenate([empty, *(parts[r][0][at : at + n] for r, at, n in runs)]) for _, runs in parts]


def _combine_accumulate(parts: list[tuple[Array, Runs, int]], dtype: Any) -> list[Array]:
    totals = [_wide(np.zeros(count, dtype)) for _, _, count in parts]
    for values, runs, _ in parts:  # in order of rank
        start = 0
        for rank, at, n in runs:
            totals[rank][at : at + n] += values[start : start + n]
            start += n
    return [total.astype(dtype, copy=False) for total in totals]


def _to_all(x: Array, size: int) -> list[Array]:
    """`x`, which nobody else holds, and copies of it for the other ranks."""
    return [x, *(x.copy() for _ in range(size - 1))]


def _to_root(x: Any, root: int, size: int) -> list[Any]:
    results: list[Any] = [None] * size
    results[root] = x
    return results


def _split(x: Array, counts: Sequence[int]) -> list[Array]:
    return [x[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]


def _combine_broadcast(parts: list[Array], root: int, dtype: Any, count: int) -> list[Array]:
    for rank, buffer in enumerate(parts):
        if rank != root:
            buffer[:] = parts[root]
    return [x.copy() if rank == root else x for rank, x in enumerate(parts)]


def _combine_all_to_all(parts: list[tuple[Array, tuple[int, ...], tuple[int, ...]]], dtype: Any) -> list[Array]:
    wrong = [
        f"rank {i} sends {int(parts[i][1][j])} elements to rank {j}, which receives {int(parts[j][2][i])}"
        for i in range(len(parts))
        for j in range(len(parts))
        if parts[i][1][j] != parts[j][2][i]
    ]
    if wrong:
        needed = "needed: send_counts[j] of rank i equal to receive_counts[i] of rank j"
        raise CollectiveMismatch("the counts of all_to_all do not pair up\n  " + "\n  ".join([*wrong, needed]))
    rows = [_split(x, send_counts) for x, send_counts, _ in parts]
    return [np.concatenate(column) for column in zip(*rows, strict=True)]


CALLS = {
    "broadcast": Call(("root", "dtype", "count"), _prepare_broadcast, _combine_broadcast),
    "reduce": Call(
        ("root", "dtype", "count"),
        _prepare_reduce,
        lambda parts, root, dtype, count: _to_root(_sum(parts), root, len(parts)),
    ),
    "all_reduce": Call(
        ("dtype", "count"), _prepare_all_reduce, lambda parts, dtype, count: _to_all(_sum(parts), len(parts))
    ),
    "gather": Call(
        ("root", "dtype", "counts"),
        _prepare_gather,
        lambda parts, root, dtype, counts: _to_root(np.concatenate(parts), root, len(parts)),
    ),
    "all_gather": Call(
        ("dtype", "counts"),
        _prepare_all_gather,
        lambda parts, dtype, counts: _to_all(np.concatenate(parts), len(parts)),
    ),
    "scatter": Call(
        ("root", "dtype", "counts"),
        _prepare_scatter,
        lambda parts, root, dtype, counts: [part.copy() for part in _split(parts[root], counts)],
    ),
    "reduce_scatter": Call(
        ("dtype", "counts"),
        _prepare_reduce_scatter,
        lambda parts, dtype, counts: [part.copy() for part in _split(_sum(parts), counts)],
    ),
    "all_to_all": Call(("dtype",), _prepare_all_to_all, _combine_all_to_all),
    "maximum": Call(
        ("dtype", "count"),
        _prepare_all_reduce,
        lambda parts, dtype, count: _to_all(_reduced(parts, np.maximum), len(parts)),
    ),
    "product": Call(
        ("dtype", "count"),
        _prepare_all_reduce,
        lambda parts, dtype, count: _to_all(_reduced(parts, np.multiply), len(parts)),
    ),
    "scan": Call(("dtype", "count", "exclusive", "backwards"), _prepare_scan, _combine_scan),
    "get": Call(("dtype",), _prepare_get, _combine_get),
    "accumulate": Call(("dtype",), _prepare_accumulate, _combine_accumulate),
    "exchange": Call((), lambda group, data: ((), bytes(data)), lambda parts: [list(parts) for _ in parts]),
    "barrier": Call((), lambda group: ((), None), lambda parts: parts),
    "agree": Call((), lambda group: ((), None), lambda parts: parts),
}
