"""Doubts: facts of a program that are legal, and often a mistake.

============  ==========================================================================================================
equal         parts that by their layout differ between the ranks, such as masks or slices of weights, are equal
no gradient   a parameter is on a tape that was swept, and no cotangent has reached it on this rank
no update     a parameter has a gradient, and the step of the optimizer that followed has not updated it
============  ==========================================================================================================

Constant arrays, such as biases of zeros, are often equal and are left out; so are arrays of integers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ..inspect.record import OperationRecord, RankRecords, Summary
from .alignment import Alignment
from .comparison import labels_of, same

__all__ = ["doubts"]

_VARYING = ("V", "Shard")
_Found = tuple[str, int, int]  # kind, position of the rank, record


def doubts(ranks: Sequence[RankRecords], alignment: Alignment) -> Iterator[_Found]:
    """The kind, the position of the rank and the record of each doubt.

    Examples
    --------
    >>> from collectives.inspect.record import OperationRecord, Summary
    >>> from collectives.page.alignment import align
    >>> def one(rank, digest):
    ...     value = Summary((2,), "float64", (1.0, 2.0), digest=digest)
    ...     record = OperationRecord(0, "forward", "leaf x", layout="{dp: V}", value=value)
    ...     return RankRecords(rank, (("dp", 2),), (rank,), [record])
    >>> [list(doubts(ranks, align(ranks))) for ranks in ([one(0, "a"), one(1, "b")], [one(0, "a"), one(1, "a")])]
    [[], [('equal', 0, 0), ('equal', 1, 0)]]
    """
    for cells in same(ranks, alignment):
        yield from (("equal", r, k) for r, k in sorted(_equal(ranks, cells)))
    for r, of in enumerate(ranks):
        yield from (("no gradient", r, k) for k in _without_gradient(of))
        yield from (("no update", r, k) for k in _without_update(of))


def _equal(ranks: Sequence[RankRecords], cells: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """The inputs among the records of one operation that are equal along an axis on which they are parts."""
    first = ranks[cells[0][0]].records[cells[0][1]]
    found: set[tuple[int, int]] = set()
    if first.direction != "forward" or first.operands or first.calls or not first.name.startswith(("leaf", "param")):
        return found
    for d, (axis, _) in enumerate(ranks[cells[0][0]].mesh):
        lines: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)  # by the place on the other axes
        for r, k in cells:
            at = ranks[r].coordinates
            lines[at[:d] + at[d + 1 :]].append((r, k))
        for members in lines.values():
            records = [ranks[r].records[k] for r, k in members]
            if len(members) > 1 and all(_is_part(x.value, labels_of(x.layout).get(axis, "V")) for x in records):
                if len({(x.value.digest, x.value.shape) for x in records if x.value is not None}) == 1:
                    found.update(members)
    return found


def _is_part(value: Summary | None, label: str) -> bool:
    """Whether a value is meant to be a part, and is not constant."""
    if value is None or not value.digest or value.is_absent or not value.dtype.startswith(("float", "bfloat", "comp")):
        return False
    is_constant = len(set(value.values)) < 2 if value.values is not None else not value.deviation
    return label.startswith(_VARYING) and not is_constant


def _without_gradient(of: RankRecords) -> Iterator[int]:
    swept = {record.tape for record in of.records if record.direction == "backward"}
    reached = {record.adjoint_of for record in of.records if record.direction == "backward"}
    reached.update(each.to for record in of.records for each in record.contributions)
    for k, record in enumerate(of.records):
        if _is_parameter(record) and record.tape in swept and record.place is not None and k not in reached:
            yield k


def _is_parameter(record: OperationRecord) -> bool:
    """Whether a parameter enters a tape here; the entry of several of them together has operands."""
    return record.direction == "forward" and record.name.startswith("parameter") and not record.operands


def _without_update(of: RankRecords) -> Iterator[int]:
    """The parameters with a gradient that no update between it and the next tape uses, where others have one."""
    waiting: dict[str, int] = {}
    has_updated = False
    for record in [*of.records, None]:
        if record is None or _is_parameter(record):
            if has_updated:
                yield from waiting.values()
                waiting, has_updated = {}, False
        elif record.direction == "update" and record.name.partition(" ")[0] != "clip":
            has_updated = True
            for name in record.operand_names:
                waiting.pop(name, None)
        elif record.direction == "backward" and record.adjoint_of is not None:
            forward = of.records[record.adjoint_of]
            if _is_parameter(forward) and (name := forward.name.partition(" ")[2]):
                waiting[name] = forward.id
