"""Comparisons between the values of the ranks: copies that differ, values that are not finite, and the pairing.

The pairing is ``<F x, y> = <x, F* y>``: of an operation that is linear in an operand, the dot product of the result
with its cotangent equals that of the operand with the cotangent that the adjoint returns. Over the ranks it is the sum
of the local dot products, with an Invariant value counted once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autograd.engine.primitive import registry

from ..declaration.collective import collectives
from ..inspect.record import OperationRecord, RankRecords, Summary
from .alignment import Alignment, roots

__all__ = ["ABSENT", "DIFFERS", "FAILED", "NOT_FINITE", "Pairing", "flags", "labels_of", "origins", "pairings", "same"]

DIFFERS, NOT_FINITE, FAILED, ABSENT = 1, 2, 4, 8
"""Flags of a record: its value differs from a copy on another rank, or has values that are not finite; the operation
raised; the rank does not hold the value."""
_COPIES = frozenset("RICD")
_Row = tuple[int, OperationRecord, OperationRecord | None]  # position of the rank, forward record, backward record


@dataclass(frozen=True, slots=True)
class Pairing:
    """Both sides of the pairing of one operation.

    Attributes
    ----------
    moment, rank : int
        The moment of the forward operation, and the position of the first rank that has it.
    result : float or complex
        The dot product of the result with its cotangent.
    operands : tuple of (str, float or complex)
        For each group of operands in which the operation is jointly linear: their names, and their dot product with the
        cotangents that the adjoint returned.
    """

    moment: int
    rank: int
    result: complex
    operands: tuple[tuple[str, complex], ...]


def labels_of(layout: str) -> dict[str, str]:
    """The labels of a layout by axis, from its text.

    Examples
    --------
    >>> labels_of("{dp: Shard(0), tp: R}")
    {'dp': 'Shard(0)', 'tp': 'R'}
    """
    return dict(re.findall(r"(\w+): (\w+(?:\([^)]*\))?)", layout))


def flags(ranks: Sequence[RankRecords], alignment: Alignment) -> list[list[int]]:
    """The flags of every record, by rank.

    Examples
    --------
    >>> from collectives.inspect.record import Summary
    >>> from collectives.page.alignment import align
    >>> def one(rank, digest):
    ...     value = Summary((), "float64", (1.0,), digest=digest)
    ...     record = OperationRecord(0, "forward", "relu", layout="{dp: R}", value=value)
    ...     return RankRecords(rank, (("dp", 2),), (rank,), [record])
    >>> ranks = [one(0, "aa"), one(1, "ab")]
    >>> flags(ranks, align(ranks)) == [[DIFFERS], [DIFFERS]]
    True
    """
    found = []
    for of in ranks:
        row = []
        for record in of.records:
            value, flag = record.value, FAILED if record.error else 0
            if value is not None:
                flag |= (NOT_FINITE if value.not_finite else 0) | (ABSENT if value.is_absent else 0)
            row.append(flag)
        found.append(row)
    for cells in same(ranks, alignment):
        for copies in _copies(ranks, cells):
            values = [value for r, k in copies if (value := ranks[r].records[k].value) is not None]
            if len({(value.digest, value.shape, value.dtype) for value in values}) > 1:
                for r, k in copies:
                    found[r][k] |= DIFFERS
    return found


def origins(
    ranks: Sequence[RankRecords], alignment: Alignment, found: Sequence[Sequence[int]], flag: int
) -> list[tuple[int, int]]:
    """The records that have a flag although nothing that they were made of has it: where a fault began.

    A result is made of the operands, and a cotangent of the addends that other adjoints gave; with communication, also
    of those of the other ranks that took part.
    """
    partners = _partners(ranks, alignment)
    sources: list[dict[int, list[int]]] = []  # by rank and forward record: the backward records that gave it an addend
    for of in ranks:
        given: dict[int, list[int]] = defaultdict(list)
        for k, record in enumerate(of.records):
            for each in record.contributions:
                given[each.to].append(k)
        sources.append(given)

    def is_marked(r: int, k: int) -> bool:
        return 0 <= k < len(found[r]) and bool(found[r][k] & flag)

    def is_given(r: int, k: int) -> bool:
        """Whether a record has an operand, or an arriving cotangent, with the flag; or one of its partners has."""
        for s, j in [(r, k), *partners.get((r, k), ())]:
            record = ranks[s].records[j]
            if is_marked(s, j) if record.direction == "backward" else any(is_marked(s, x) for x in record.operands):
                return True
        return False

    begun = []
    for r, of in enumerate(ranks):
        for k, record in enumerate(of.records):
            if not is_marked(r, k) or record.cause is not None:
                continue
            forward = record.adjoint_of
            if record.direction != "backward" or forward is None:
                is_first = not is_given(r, k)
            else:
                is_first = not is_marked(r, forward) and not any(is_given(r, j) for j in sources[r][forward])
            if is_first:
                begun.append((r, k))
    return begun


def _partners(ranks: Sequence[RankRecords], alignment: Alignment) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """By record: the records of other ranks with which it communicated, inside it or itself."""
    outermost = [roots(of.records) for of in ranks]
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for link in alignment.links:
        ends = [(r, outermost[r][k]) for r, k, c in link.members if not ranks[r].records[k].calls[c].is_control]
        for end in ends:
            found[end] += [other for other in ends if other[0] != end[0]]
    return found


def pairings(ranks: Sequence[RankRecords], alignment: Alignment) -> Iterator[Pairing]:
    """Both sides of the pairing of every linear operation whose values are known in full on all its ranks."""
    adjoints: list[dict[int, OperationRecord]] = []
    for of in ranks:
        by_forward: dict[int, OperationRecord] = {}
        for record in of.records:
            if record.direction == "backward" and record.adjoint_of is not None:
                by_forward.setdefault(record.adjoint_of, record)
        adjoints.append(by_forward)
    for cells in same(ranks, alignment):
        first_rank, first = cells[0]
        words = _words(ranks[first_rank].records[first])
        if words is None or first not in adjoints[first_rank]:
            continue
        rows = [(r, ranks[r].records[k], adjoints[r].get(k)) for r, k in cells]
        found = _paired(ranks, rows, words)
        if found is not None:
            yield Pairing(alignment.moments[first_rank][first], first_rank, *found)


# -- groups of records -------------------------------------------------------------------------------------------------


def same(ranks: Sequence[RankRecords], alignment: Alignment) -> Iterator[list[tuple[int, int]]]:
    """The records of each moment that are the same operation, as (position of the rank, record)."""
    by_moment: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for r, (of, moments) in enumerate(zip(ranks, alignment.moments, strict=True)):
        nth: dict[tuple[object, ...], int] = defaultdict(int)  # records inside one operation share its moment
        for k, record in enumerate(of.records):
            key = (moments[k], record.direction, record.name, record.file, record.line, record.cause is None)
            nth[key] += 1
            by_moment[(*key, nth[key])].append((r, k))
    yield from by_moment.values()


def _copies(ranks: Sequence[RankRecords], cells: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """The records whose values are copies of each other, in groups of two and more."""
    groups: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for r, k in cells:
        record = ranks[r].records[k]
        if record.value is None or record.value.is_absent or not record.value.digest:
            continue
        labels = labels_of(record.layout)
        places = zip(ranks[r].mesh, ranks[r].coordinates, strict=False)
        apart = tuple(at for (axis, _), at in places if labels.get(axis, "V") not in _COPIES)
        groups[record.layout, ranks[r].mesh, apart].append((r, k))
    for (layout, _, _), members in groups.items():
        if len(members) > 1 and layout:
            yield members


# -- the pairing -------------------------------------------------------------------------------------------------------


def _words(record: OperationRecord) -> list[str] | None:
    """One letter for each operand: the same letter where they are jointly linear. None if nothing is known."""
    if record.direction != "forward":
        return None
    if (collective := collectives.get(record.name)) is not None:
        return None if collective.nonlinear else ["a"]
    primitive = registry.get(record.name)
    if primitive is None:
        return None
    missing = max(0, len(record.operands) - len(primitive.words))
    return [*primitive.words, *(primitive.words[-1:] * missing if primitive.variadic else [])]


def _paired(
    ranks: Sequence[RankRecords],
    rows: Sequence[_Row],
    words: Sequence[str],
) -> tuple[complex, tuple[tuple[str, complex], ...]] | None:
    """Both sides, summed over the ranks; None if a value that is needed is not known."""
    result: complex = 0.0
    sums: dict[str, complex] = {}
    names: dict[str, list[str]] = {}
    partial: set[str] = set()
    for r, record, adjoint in rows:
        if adjoint is None:
            return None
        added = _dot(record.value, adjoint.value)
        if added is None:
            return None
        result += added * _weight(ranks, rows, r, record.layout)
        given: dict[int, list[Summary]] = defaultdict(list)
        for each in adjoint.contributions:
            given[each.to].append(each.value)
        if any(len(values) != record.operands.count(to) for to, values in given.items()):
            return None
        for i, word in enumerate(words):
            to = record.operands[i] if i < len(record.operands) else -1
            if word in "NS" or to not in given:
                partial.add(word)  # a constant beside an operand: the operation is not linear in the operand alone
                continue
            added = _dot(ranks[r].records[to].value, given[to].pop(0))
            if added is None:
                return None
            layout = record.operand_layouts[i] if i < len(record.operand_layouts) else ""
            sums[word] = sums.get(word, 0.0) + added * _weight(ranks, rows, r, layout)
            name = record.operand_names[i] if i < len(record.operand_names) else ""
            known = names.setdefault(word, [])
            if (shown := name or ranks[r].records[to].name) not in known:
                known.append(shown)
    sides = tuple((" and ".join(names[word]), total) for word, total in sums.items() if word not in partial)
    return (result, sides) if sides else None


def _dot(x: Summary | None, y: Summary | None) -> complex | None:
    """The dot product of two values, 0 where the rank does not hold one; None if one is not known in full."""
    if x is None or y is None:
        return None
    if x.is_absent or y.is_absent:
        return 0.0
    if x.values is None or y.values is None or len(x.values) != len(y.values):
        return None
    return sum(a * b for a, b in zip(x.values, y.values, strict=True))


def _weight(ranks: Sequence[RankRecords], rows: Sequence[_Row], r: int, layout: str) -> int:
    """1 if the rank's dot product counts; 0 if it is that of an Invariant value which another rank counts."""
    labels: Mapping[str, str] = labels_of(layout)
    for d, (axis, _) in enumerate(ranks[r].mesh):
        if labels.get(axis) != "I":
            continue
        mine = ranks[r].coordinates
        others = [ranks[s].coordinates for s, _, _ in rows]
        apart = [at[d] for at in others if at[:d] + at[d + 1 :] == mine[:d] + mine[d + 1 :]]
        if mine[d] != min(apart):
            return 0
    return 1
