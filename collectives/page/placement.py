"""Placement: the column of each record.

Forward operations, effects and updates have columns in the order of their moments. A backward operation stands below
its forward operation, in the same column, so that a pair is one line. A backward operation without a forward operation,
and a second one of the same, has a column of its own at its moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..inspect.record import RankRecords
from .alignment import Alignment, roots

__all__ = ["Placement", "place"]


@dataclass(slots=True)
class Placement:
    """The columns of all records.

    Attributes
    ----------
    of : list of list of int
        By rank: the column of each record. A record inside another one has the column of the outer one.
    columns : int
        The number of columns.
    """

    of: list[list[int]]
    columns: int


def place(ranks: Sequence[RankRecords], alignment: Alignment) -> Placement:
    """Give every record its column.

    Examples
    --------
    >>> from collectives.inspect.record import OperationRecord, RankRecords
    >>> from collectives.page.alignment import align
    >>> records = [OperationRecord(0, "forward", "exp"), OperationRecord(1, "forward", "sum"),
    ...            OperationRecord(2, "backward", "sum", adjoint_of=1),
    ...            OperationRecord(3, "backward", "exp", adjoint_of=0), OperationRecord(4, "update", "SGD")]
    >>> ranks = [RankRecords(0, records=records)]
    >>> place(ranks, align(ranks)).of
    [[0, 1, 1, 0, 2]]
    """
    inside = [roots(of.records) for of in ranks]
    # By moment: whether it needs a column, since it has records that stand in none.
    own = [False] * alignment.count
    below: list[dict[int, int]] = []  # by rank: the forward record under which a backward record stands
    for of, root, moments in zip(ranks, inside, alignment.moments, strict=True):
        taken: set[int] = set()
        under: dict[int, int] = {}
        for k, record in enumerate(of.records):
            if root[k] != k:
                continue
            forward = record.adjoint_of
            is_pair = record.direction == "backward" and forward is not None and 0 <= forward < k
            if is_pair and forward is not None and (upper := root[forward]) not in taken:
                if of.records[upper].direction != "backward":
                    taken.add(upper)
                    under[k] = upper
                    continue
            own[moments[k]] = True
        below.append(under)
    column_of, columns = [], 0
    for needed in own:
        column_of.append(columns)
        columns += needed
    found = []
    for root, under, moments in zip(inside, below, alignment.moments, strict=True):
        found.append([column_of[moments[under.get(upper, upper)]] for upper in root])
    return Placement(found, columns)
