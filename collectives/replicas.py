"""Comparison of values that should be equal on all ranks of an axis, by their digests."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped, is_absent
from autograd.engine.tensor import Tensor
from autograd.errors import ReplicaMismatch
from autograd.layouts.layout import C, D, Grid, I, R

from .transports.protocol import Communicator

__all__ = ["compare_replicas"]


def compare_replicas(tensors: Iterable[Tensor], grid: Grid, group_of: Callable[[str], Communicator]) -> None:
    """Compare the copies of every tensor along the axes on which it is I or R; see `Mesh.check_replicas`.

    Parameters
    ----------
    tensors : iterable of Tensor
        Tensors of another mesh, and values that are absent on this rank, are ignored.
    grid : Grid
        The grid of the mesh.
    group_of : callable
        ``group_of(axis)``: the ranks along an axis.

    Raises
    ------
    ReplicaMismatch
        Copies differ, or the ranks compare different numbers of tensors.
    """
    tensors = [t for t in tensors if t.layout is not None and t.layout.grid is grid and not is_absent(t.array)]
    digests = np.array([_digest(t.array) for t in tensors], np.int64)
    for k, axis in enumerate(grid.names):
        if grid.sizes[k] == 1:
            continue
        along = [
            i for i, t in enumerate(tensors)
            if t.layout is not None and any(t.layout.labels[k] is x for x in (I, R, C, D))
        ]
        group = group_of(axis)
        mine = np.concatenate([digests[along], [len(along)]])
        gathered = group.exchange(mine.tobytes())
        table = [np.frombuffer(t, np.int64) for t in gathered]
        if any(len(row) != len(mine) for row in table):
            raise ReplicaMismatch(
                f"axis {axis!r}: the ranks compare different numbers of replicated tensors: "
                f"{[len(r) - 1 for r in table]}. "
                "Needed: the same parameters on every rank"
            )
        for j, i in enumerate(along):
            odd = [r for r in range(group.size) if table[r][j] != table[0][j]]
            if odd:
                x = tensors[i]
                raise ReplicaMismatch(_text(x, i, axis, odd, group))


def _digest(array: Any) -> int:
    if type(array) is Shaped:
        return 0  # a dry run assumes that the copies are equal
    return zlib.crc32(np.ascontiguousarray(to_host(array)).data)


def _text(x: Any, i: int, axis: str, odd: list[int], group: Any) -> str:
    ranks = ", ".join(map(str, odd))
    return (
        f"{x.name or f'tensor {i}'} of shape {x.array.shape} is {x.layout[axis].word} on axis {axis!r}, so its copies "
        f"must be equal, but those of rank{'s' if len(odd) > 1 else ''} {ranks} (world "
        f"{[group.ranks[r] for r in odd]}) differ from rank 0's. The ranks then train different models, although the "
        "loss may still fall.\n"
        "  fix: make it from the same seed on every rank, or broadcast it from one rank; if the ranks are meant "
        f"to differ, declare it layout={{{axis!r}: V}}"
    )
