"""The collectives of ranks that are threads: the values that must agree, and the results of all ranks.

One rank computes all results. The functions here neither wait nor take a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from autograd.errors import CollectiveMismatch

from ..protocol import Array, Request
from ..request import shown

__all__ = ["AGREES", "Part", "agreed", "combine"]

AGREES = {
    "all_reduce": ("dtype", "count"),
    "reduce": ("root", "dtype", "count"),
    "broadcast": ("root", "dtype", "count"),
    "gather": ("root", "dtype", "counts"),
    "all_gather": ("dtype", "counts"),
    "scatter": ("root", "dtype", "counts"),
    "reduce_scatter": ("dtype", "counts"),
    "all_to_all": ("dtype",),
    "scan": ("dtype", "count", "exclusive", "backwards"),
    "get": ("dtype",),
    "accumulate": ("dtype",),
    "exchange": (),
    "barrier": (),
    "agree": (),
}
"""The calls of a group, each with the values that must be equal on all ranks."""


class Part(NamedTuple):
    """One rank's part of a call: its request, its operand, and the array for its result."""

    request: Request
    x: Any
    out: Any


def agreed(request: Request, x: Any, out: Any) -> tuple[Any, ...]:
    """The name of a call, and the values that must be equal on all ranks, in the order of `AGREES`."""
    call, given = request.call, out if x is None else x
    found: list[Any] = [shown(request)]
    for word in AGREES[call]:
        if word == "root":
            found.append(request.root)
        elif word == "dtype":
            found.append(np.dtype(request.dtype) if call == "scatter" else given.dtype)
        elif word == "count":
            found.append(given.size)
        elif word == "counts":
            found.append(tuple(request.counts))
        else:
            found.append(bool(request.options[word == "backwards"]))
    return tuple(found)


def combine(parts: list[Part]) -> list[Any]:
    """All ranks' results, in order of rank. Each is written to that rank's `out`."""
    first = parts[0].request
    found: list[Any] = _COMBINE[first.call](parts, first)
    return found


def _whole(parts: list[Part], whole: Array) -> list[Any]:
    """The same array for every rank that receives a result."""
    for part in parts:
        if part.out is not None:
            part.out[...] = whole
    return [part.out for part in parts]


_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "prod": np.multiply}


def _reduced(parts: list[Part], request: Request) -> Array:
    """The reduction in order of rank, so that the result does not depend on the order of arrival."""
    operation = _UFUNCS[request.op]
    total: Array = parts[0].x.copy()
    for part in parts[1:]:
        operation(total, part.x, out=total)
    return total


def _split(x: Array, counts: Sequence[int]) -> list[Array]:
    return [x[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]


def _cut(parts: list[Part], whole: Array, request: Request) -> list[Any]:
    for part, mine in zip(parts, _split(whole, request.counts), strict=True):
        part.out[...] = mine
    return [part.out for part in parts]


def _scan(parts: list[Part], request: Request) -> list[Any]:
    exclusive, backwards = request.options
    total = np.zeros_like(parts[0].x)
    for part in reversed(parts) if backwards else parts:
        if exclusive:
            part.out[...] = total
        np.add(total, part.x, out=total)
        if not exclusive:
            part.out[...] = total
    return [part.out for part in parts]


def _get(parts: list[Part], request: Request) -> list[Any]:
    for part in parts:
        start = 0
        for source, at, count in part.request.options[0]:
            part.out[start : start + count] = parts[source].x[at : at + count]
            start += count
    return [part.out for part in parts]


def _accumulate(parts: list[Part], request: Request) -> list[Any]:
    for part in parts:
        part.out[...] = 0
    for part in parts:  # in order of rank
        start = 0
        for target, at, count in part.request.options[0]:
            parts[target].out[at : at + count] += part.x[start : start + count]
            start += count
    return [part.out for part in parts]


def _all_to_all(parts: list[Part], request: Request) -> list[Any]:
    sent = [part.request.counts or () for part in parts]
    coming = [part.request.receive_counts or () for part in parts]
    ranks = range(len(parts))
    wrong = [
        f"rank {i} sends {int(sent[i][j])} elements to rank {j}, which receives {int(coming[j][i])}"
        for i in ranks
        for j in ranks
        if sent[i][j] != coming[j][i]
    ]
    if wrong:
        needed = "needed: send_counts[j] of rank i equal to receive_counts[i] of rank j"
        raise CollectiveMismatch("the counts of all_to_all do not pair up\n  " + "\n  ".join([*wrong, needed]))
    rows = [_split(part.x, counts) for part, counts in zip(parts, sent, strict=True)]
    for part, column in zip(parts, zip(*rows, strict=True), strict=True):
        np.concatenate(column, out=part.out)
    return [part.out for part in parts]


_COMBINE: dict[str, Callable[[list[Part], Request], list[Any]]] = {
    "all_reduce": lambda parts, request: _whole(parts, _reduced(parts, request)),
    "reduce": lambda parts, request: _whole(parts, _reduced(parts, request)),
    "broadcast": lambda parts, request: _whole(parts, parts[request.root].out),
    "gather": lambda parts, request: _whole(parts, np.concatenate([part.x for part in parts])),
    "all_gather": lambda parts, request: _whole(parts, np.concatenate([part.x for part in parts])),
    "scatter": lambda parts, request: _cut(parts, parts[request.root].x, request),
    "reduce_scatter": lambda parts, request: _cut(parts, _reduced(parts, request), request),
    "all_to_all": _all_to_all,
    "scan": _scan,
    "get": _get,
    "accumulate": _accumulate,
    "exchange": lambda parts, request: [[part.x for part in parts] for _ in parts],
    "barrier": lambda parts, request: [None] * len(parts),
    "agree": lambda parts, request: [None] * len(parts),
}
