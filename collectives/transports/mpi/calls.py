"""What each collective is for mpi4py: the name of its call, the arguments, and what is left to do to the result.

Arguments are checked here, in the same way on one rank as on many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.errors import DtypeError, ShapeError

from ..arguments import checked_array, checked_counts, checked_rank, checked_size
from ..protocol import Array, Communicator
from .library import OPERATIONS, kind_of

__all__ = ["PLANS", "Plan"]


class Plan(NamedTuple):
    """A collective, ready to run."""

    function: str
    arguments: tuple[Any, ...]
    result: Any
    finish: Callable[[Any], Any] | None = None


def _narrow(result: Array) -> Array:
    return result.astype(np.float16)


def _broadcast(group: Communicator, x: Array, root: int) -> Plan:
    arguments = ([checked_array(x), kind_of(x.dtype).move], root)
    # the root's array is only read, but the result must not be the caller's array
    if checked_rank(group, "root", root) == group.rank:
        return Plan("Bcast", arguments, x, np.copy)
    if not x.flags.writeable:
        raise ShapeError(f"broadcast writes to the array off its root {root}, and this one is read-only")
    return Plan("Bcast", arguments, x)


def _reduce(group: Communicator, x: Array, root: int) -> Plan:
    _, datatype, operation, wide = kind_of(checked_array(x).dtype)
    if wide is not None:
        x = x.astype(wide)
    if checked_rank(group, "root", root) != group.rank:
        return Plan("Reduce", ([x, datatype], None, operation, root), None)
    out = np.empty(x.size, x.dtype)
    return Plan("Reduce", ([x, datatype], [out, datatype], operation, root), out, None if wide is None else _narrow)


def _all_reduce(group: Communicator, x: Array, named: str = "") -> Plan:
    _, datatype, operation, wide = kind_of(checked_array(x).dtype)
    if wide is not None:
        x = x.astype(wide)
    out = np.empty(x.size, x.dtype)
    arguments = ([x, datatype], [out, datatype], OPERATIONS[named] if named and group.size > 1 else operation)
    return Plan("Allreduce", arguments, out, None if wide is None else _narrow)


def _scan(group: Communicator, x: Array, exclusive: bool, backwards: bool) -> Plan:
    """Forwards only: a channel whose ranks are in the other order does the rest."""
    _, datatype, operation, wide = kind_of(checked_array(x).dtype)
    if wide is not None:
        x = x.astype(wide)
    out = np.zeros(x.size, x.dtype)  # Exscan leaves the first rank's as it is
    name = "Exscan" if exclusive else "Scan"
    return Plan(name, ([x, datatype], [out, datatype], operation), out, None if wide is None else _narrow)


def _gather(group: Communicator, x: Array, counts: Sequence[int], root: int) -> Plan:
    counts = list(checked_counts(group, "counts", counts))
    datatype = kind_of(checked_size(x, counts[group.rank], "this rank's count").dtype).move
    out = np.empty(sum(counts), x.dtype) if checked_rank(group, "root", root) == group.rank else None
    return Plan("Gatherv", ([x, datatype], None if out is None else [out, counts, datatype], root), out)


def _all_gather(group: Communicator, x: Array, counts: Sequence[int]) -> Plan:
    counts = list(checked_counts(group, "counts", counts))
    datatype = kind_of(checked_size(x, counts[group.rank], "this rank's count").dtype).move
    out = np.empty(sum(counts), x.dtype)
    return Plan("Allgatherv", ([x, datatype], [out, counts, datatype]), out)


def _scatter(group: Communicator, x: Array | None, counts: Sequence[int], root: int, dtype: Any) -> Plan:
    counts = list(checked_counts(group, "counts", counts))
    out = np.empty(counts[group.rank], dtype)
    datatype = kind_of(out.dtype).move
    send = None
    if checked_rank(group, "root", root) == group.rank:
        if x is None:
            raise ShapeError(f"scatter needs an array on its root, rank {root} of '{group.name}'")
        if x.dtype != out.dtype:
            raise DtypeError(f"scatter was given {x.dtype} on its root and dtype {out.dtype}")
        send = [checked_size(x, sum(counts), "the sum of counts"), counts, datatype]
    return Plan("Scatterv", (send, [out, datatype], root), out)


def _reduce_scatter(group: Communicator, x: Array, counts: Sequence[int]) -> Plan:
    counts = list(checked_counts(group, "counts", counts))
    _, datatype, operation, wide = kind_of(checked_size(x, sum(counts), "the sum of counts").dtype)
    if wide is not None:
        x = x.astype(wide)
    out = np.empty(counts[group.rank], x.dtype)
    arguments = ([x, datatype], [out, datatype], counts, operation)
    return Plan("Reduce_scatter", arguments, out, None if wide is None else _narrow)


def _all_to_all(group: Communicator, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Plan:
    send_counts = list(checked_counts(group, "send_counts", send_counts))
    receive_counts = list(checked_counts(group, "receive_counts", receive_counts))
    datatype = kind_of(checked_size(x, sum(send_counts), "the sum of send_counts").dtype).move
    out = np.empty(sum(receive_counts), x.dtype)
    return Plan("Alltoallv", ([x, send_counts, datatype], [out, receive_counts, datatype]), out)


def _barrier(group: Communicator) -> Plan:
    return Plan("Barrier", (), None)


PLANS: dict[str, Callable[..., Plan]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "gather": _gather,
    "all_gather": _all_gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "maximum": lambda group, x: _all_reduce(group, x, "maximum"),
    "product": lambda group, x: _all_reduce(group, x, "product"),
    "scan": _scan,
    "barrier": _barrier,
}
