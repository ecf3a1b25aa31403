"""The data of a page: records of all ranks in columns, with what the page does not compute itself.

Everything is one JSON object. Texts, scopes, program lines and summaries of values are tables, to which records refer
by number. A column has one list for each rank, so that equal programs of the ranks compress well. Numbers are rounded,
so that the page stays small; comparisons and pairings were made before, from the full values.
"""

from __future__ import annotations

import linecache
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from autograd.errors import ArgumentError, short

from ..inspect.record import CallOf, OperationRecord, RankRecords, Summary
from ..inspect.topology import Topology
from .alignment import Alignment, align
from .comparison import DIFFERS, FAILED, NOT_FINITE, flags, origins, pairings
from .doubts import doubts
from .placement import Placement, place
from .prediction import predict_times

__all__ = ["Predicted", "check_selection", "page_data", "selected"]

Predicted = Sequence[Sequence[tuple[float, float]]]
"""By rank and record: the predicted begin and end in seconds."""
_LINES_AROUND = 6
_DIRECTIONS = ("forward", "backward", "effect", "update")
_PRECISION = ((60_000, 9, 64), (120_000, 6, 64), (200_000, 4, 64), (math.inf, 4, 6))
"""By the number of values of all records: the digits of a value, and the values of an array that the page keeps."""
_MOST_PROBLEMS = 200


def page_data(
    ranks: Sequence[RankRecords], *, title: str = "", values: bool = True,
    predicted: Predicted | Topology | None = None,
) -> dict[str, Any]:
    """Make the data of a page.

    Parameters
    ----------
    ranks : sequence of RankRecords
        The id of a record is its position, as `selected` makes it.
    title : str
    values : bool
        Whether the values of arrays are part of the data.
    predicted : Topology, or sequence of sequence of (float, float), optional
        The machine for which times are predicted; or the begin and end of each record in seconds, by rank.

    Returns
    -------
    dict
        As `json` takes it.
    """
    if isinstance(predicted, Topology):
        predicted = predict_times(ranks, predicted)
    _check_predicted(ranks, predicted)
    alignment = align(ranks)
    ranks = _failed(ranks, alignment)
    marks = flags(ranks, alignment)
    placed = place(ranks, alignment)
    count = sum(len(x.value.values) for of in ranks for x in of.records if x.value is not None and x.value.values)
    digits, kept = next((digits, kept) for most, digits, kept in _PRECISION if count <= most)
    tables = _Tables(digits, kept)
    data: dict[str, Any] = {
        "title": title,
        "ranks": [of.rank for of in ranks],
        "mesh": [list(axis) for axis in max((of.mesh for of in ranks), key=len, default=())],
        "coordinates": [list(of.coordinates) for of in ranks],
        "moments": alignment.count,
        "columns": placed.columns,
        "records": _records(ranks, alignment, placed, tables, values) | {"flags": marks},
        "operands": _operands(ranks, tables),
        "contributions": _contributions(ranks, tables, values),
        "calls": _calls(ranks, alignment, tables),
        "links": {
            "ranks": [tables.text(" ".join(map(str, link.ranks))) for link in alignment.links],
            "arrival": [link.arrival for link in alignment.links],
        },
        "pairings": [
            [x.moment, x.rank, _number(x.result), [[name, _number(y)] for name, y in x.operands]]
            for x in (pairings(ranks, alignment) if values else ())
        ],
        "errors": [[r, record.id, record.error] for r, record in _each(ranks) if record.error],
        "ends": [of.error for of in ranks],
        "problems": _problems(ranks, marks, alignment),
        "has_values": values and any(record.value is not None and record.value.digest for _, record in _each(ranks)),
        "predicted": None if predicted is None else [
            [[round(1e9 * begin), round(1e9 * (end - begin))] for begin, end in row] for row in predicted
        ],
        "digits": tables.digits,
    }  # fmt: skip
    return data | tables.data()


def selected(
    ranks: Sequence[RankRecords], *, only: Sequence[int] | None = None, steps: tuple[int, int] | None = None
) -> list[RankRecords]:
    """The records of some ranks and steps, numbered from 0 again.

    Parameters
    ----------
    ranks : sequence of RankRecords
    only : sequence of int, optional
        The world ranks to keep.
    steps : (int, int), optional
        The first step of training, counted from 0, and the step after the last.

    Raises
    ------
    ArgumentError
        A rank that has no records, or steps that the program has not marked.

    Examples
    --------
    >>> from collectives.inspect.record import OperationRecord, RankRecords
    >>> records = [OperationRecord(0, "forward", "exp"), OperationRecord(1, "forward", "sin", operands=(0,))]
    >>> (of,) = selected([RankRecords(0, records=records, steps=[(0, 1), (1, 2)])], steps=(1, 2))
    >>> [(record.id, record.name, record.operands) for record in of.records]
    [(0, 'sin', (-1,))]
    """
    check_selection(only, steps)
    if only is not None:
        known = [of.rank for of in ranks]
        if missing := [rank for rank in only if rank not in known]:
            raise ArgumentError(
                f"the ranks {list(only)} were given; ranks {missing} have no records; there are {known}\n"
                "  fix: give ranks of the program, counted from 0"
            )
        ranks = [of for of in ranks if of.rank in only]
    return [_numbered(of, *_range(of, steps)) for of in ranks]


# -- selecting ---------------------------------------------------------------------------------------------------------


def check_selection(only: Sequence[int] | None, steps: tuple[int, int] | None) -> None:
    """Refuse what is no list of ranks, or no pair of steps."""
    if only is not None and not (is_list_of(only, Integral) and len(only)):
        raise ArgumentError(f"only={short(only)} was given; needed: a list of ranks, as only=[0, 3]")
    if steps is not None and not (is_list_of(steps, Integral) and len(steps) == 2 and 0 <= steps[0] < steps[1]):
        raise ArgumentError(
            f"steps={short(steps)} was given; needed: the first step, and the step after the last\n"
            "  fix: steps=(0, 1) for the first step"
        )


def is_list_of(x: Any, kind: type) -> bool:
    """Whether a value is a list or tuple of one kind."""
    return isinstance(x, list | tuple) and all(isinstance(each, kind) for each in x)


def _range(of: RankRecords, steps: tuple[int, int] | None) -> tuple[int, int]:
    if steps is None:
        return 0, len(of.records)
    first, last = steps
    if first >= len(of.steps):
        raise ArgumentError(
            f"steps {first}:{last} were given; rank {of.rank} has marked {len(of.steps)} steps, from 0\n"
            "  fix: give steps that the program has run; an optimizer's step ends each"
        )
    return of.steps[first][0], of.steps[min(last, len(of.steps)) - 1][1]


def _numbered(of: RankRecords, first: int, last: int) -> RankRecords:
    """The records from `first` to before `last`, with ids that are positions, and no reference to others."""
    if all(record.id == k for k, record in enumerate(of.records)) and (first, last) == (0, len(of.records)):
        return of
    at = {record.id: k for k, record in enumerate(record for record in of.records if first <= record.id < last)}

    def new(record: OperationRecord) -> OperationRecord:
        return replace(
            record,
            id=at[record.id],
            operands=tuple(at.get(x, -1) for x in record.operands),
            adjoint_of=None if record.adjoint_of is None else at.get(record.adjoint_of),
            cause=None if record.cause is None else at.get(record.cause),
            contributions=tuple(x._replace(to=at.get(x.to, -1)) for x in record.contributions),
        )

    return replace(of, records=[new(record) for record in of.records if record.id in at], steps=[])


# -- tables ------------------------------------------------------------------------------------------------------------


class _Tables:
    """The tables of texts, scopes, program lines and summaries."""

    def __init__(self, digits: int, most: int):
        self.digits, self.most = digits, most
        self._texts: dict[str, int] = {"": 0}
        self._scopes: dict[tuple[str, ...], int] = {(): 0}
        self._sites: dict[tuple[str, int], int] = {("", 0): 0}
        self._summaries: dict[tuple[Any, ...], int] = {}
        self._rows: list[tuple[Any, ...]] = []

    def text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def scope(self, scope: tuple[str, ...]) -> int:
        known = self._scopes.get(scope)
        if known is not None:
            return known
        self.scope(scope[:-1])
        return self._scopes.setdefault(scope, len(self._scopes))

    def site(self, file: str, line: int) -> int:
        return self._sites.setdefault((file, line), len(self._sites))

    def summary(self, value: Summary | None, values: bool) -> int:
        """The number of a summary, -1 for none. Equal digests are equal values."""
        if value is None:
            return -1
        digest = value.digest if values else ""
        key: tuple[Any, ...] = value.shape, value.dtype, digest, value.is_absent, value.not_finite
        if not digest and values:
            key = (*key, value.values, value.mean)
        known = self._summaries.get(key)
        if known is None:
            known = self._summaries[key] = len(self._rows)
            numbers = self._numbers(value) if values and not value.is_absent else (None, None)
            facts = value.shape, value.dtype, digest[:8], value.not_finite, int(value.is_absent)
            self._rows.append((*facts, *numbers))
        return known

    def _numbers(self, value: Summary) -> tuple[list[Any] | None, list[Any] | None]:
        """The first values, or the facts of a larger array, rounded."""
        if value.values is not None:
            return [_number(x, self.digits) for x in value.values[: self.most]], None
        if value.mean is None:
            return None, None
        facts = value.least, value.mean, value.greatest, value.deviation
        return None, [_number(x, self.digits) for x in facts]

    def data(self) -> dict[str, Any]:
        shapes = [self.text(",".join(map(str, row[0]))) for row in self._rows]
        dtypes = [self.text(row[1]) for row in self._rows]
        sites = [[self.text(_shown_path(file)), line] for file, line in self._sites]
        scopes = [[self._scopes[scope[:-1]], self.text(scope[-1])] if scope else [-1, 0] for scope in self._scopes]
        source = [[self.text(_shown_path(file)), first, lines] for file, first, lines in _source(self._sites)]
        return {
            "sites": sites, "scopes": scopes, "source": source,
            "summaries": {
                "shape": shapes, "dtype": dtypes, "digest": [row[2] for row in self._rows],
                "not_finite": [row[3] for row in self._rows], "absent": [row[4] for row in self._rows],
                "values": [row[5] for row in self._rows], "facts": [row[6] for row in self._rows],
            },
            "texts": list(self._texts),
        }  # fmt: skip


def _source(sites: Iterable[tuple[str, int]]) -> list[tuple[str, int, list[str]]]:
    """The lines around the program lines, as (file, number of the first, lines)."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for file, line in sites:
        if file:
            wanted[file].update(range(max(1, line - _LINES_AROUND), line + _LINES_AROUND + 1))
    found = []
    for file, numbers in wanted.items():
        lines = linecache.getlines(file)
        part: list[str] = []
        first = 0
        for n in sorted(numbers):
            if n > len(lines):
                break
            if part and n != first + len(part):
                found.append((file, first, part))
                part = []
            if not part:
                first = n
            part.append(lines[n - 1].rstrip("\n"))
        if part:
            found.append((file, first, part))
    return found


def _shown_path(file: str) -> str:
    """The path from the current directory, if it is below; else the last two parts."""
    if not os.path.isabs(file):
        return file
    relative = os.path.relpath(file)
    return os.path.join(*file.split(os.sep)[-2:]) if relative.startswith("..") else relative


# -- columns -----------------------------------------------------------------------------------------------------------


def _steps(numbers: Iterable[int]) -> list[int]:
    """The first number, and the differences of the others from the one before."""
    found, before = [], 0
    for n in numbers:
        found.append(n - before)
        before = n
    return found


def _each(ranks: Sequence[RankRecords]) -> Iterator[tuple[int, OperationRecord]]:
    """All records, with the positions of their ranks."""
    for r, of in enumerate(ranks):
        for record in of.records:
            yield r, record


def _begin(ranks: Sequence[RankRecords]) -> int:
    """The time from which the page counts."""
    return min((record.begin_ns for _, record in _each(ranks)), default=0)


def _columns(rows: Sequence[Sequence[Any]], fields: Mapping[str, Callable[[Any], Any]]) -> dict[str, list[list[Any]]]:
    """For each field one list for each rank."""
    return {name: [[of(x) for x in row] for row in rows] for name, of in fields.items()}


def _records(
    ranks: Sequence[RankRecords], alignment: Alignment, placed: Placement, tables: _Tables, values: bool
) -> dict[str, Any]:
    begin = _begin(ranks)
    fields: dict[str, Callable[[OperationRecord], Any]] = {
        "direction": lambda x: _DIRECTIONS.index(x.direction),
        "name": lambda x: tables.text(x.name),
        "scope": lambda x: tables.scope(x.scope),
        "site": lambda x: tables.site(x.file, x.line),
        "layout": lambda x: tables.text(x.layout),
        "value": lambda x: tables.summary(x.value, values),
        "adjoint": lambda x: -1 if x.adjoint_of is None else x.adjoint_of,
        "cause": lambda x: -1 if x.cause is None else x.cause,
        "tape": lambda x: x.tape or 0,
        "place": lambda x: -1 if x.place is None else x.place,
        "duration": lambda x: max(0, x.end_ns - x.begin_ns),
    }
    steps: dict[str, list[list[int]]] = {
        "tape_bytes": [[x.tape_bytes for x in of.records] for of in ranks],
        "begin": [[x.begin_ns - begin for x in of.records] for of in ranks],
        "moment": alignment.moments,
        "column": placed.of,
    }
    found = _columns([of.records for of in ranks], fields)
    return found | {name: [_steps(row) for row in rows] for name, rows in steps.items()}


def _operands(ranks: Sequence[RankRecords], tables: _Tables) -> dict[str, Any]:
    rows = [[(x, _count(x)) for x in of.records if _count(x)] for of in ranks]
    each = [[(x, i) for x, count in row for i in range(count)] for row in rows]
    fields: dict[str, Callable[[Any], Any]] = {
        "to": lambda at: _get(at[0].operands, at[1], -1),
        "name": lambda at: tables.text(_get(at[0].operand_names, at[1], "")),
        "layout": lambda at: tables.text(_get(at[0].operand_layouts, at[1], "")),
    }
    return _columns(each, fields) | {
        "record": [_steps(x.id for x, _ in row) for row in rows],
        "count": [[count for _, count in row] for row in rows],
    }


def _count(record: OperationRecord) -> int:
    return max(len(record.operands), len(record.operand_names), len(record.operand_layouts))


def _get(row: Sequence[Any], i: int, default: Any) -> Any:
    return row[i] if i < len(row) else default


def _contributions(ranks: Sequence[RankRecords], tables: _Tables, values: bool) -> dict[str, Any]:
    rows = [[(x.id, each) for x in of.records for each in x.contributions] for of in ranks]
    fields: dict[str, Callable[[Any], Any]] = {
        "to": lambda at: at[1].to,
        "value": lambda at: tables.summary(at[1].value, values),
    }
    return _columns(rows, fields) | {"record": [_steps(k for k, _ in row) for row in rows]}


def _calls(ranks: Sequence[RankRecords], alignment: Alignment, tables: _Tables) -> dict[str, Any]:
    begin = _begin(ranks)
    link_of = {member: n for n, link in enumerate(alignment.links) for member in link.members}
    keys = [[(x.id, c) for x in of.records for c in range(len(x.calls))] for of in ranks]
    calls = [[call for x in of.records for call in x.calls] for of in ranks]
    fields: dict[str, Callable[[CallOf], Any]] = {
        "call": lambda x: tables.text(x.call),
        "axis": lambda x: tables.text(x.axis),
        "channel": lambda x: tables.text(x.channel),
        "number": lambda x: x.number,
        "bytes": lambda x: x.bytes,
        "peer": lambda x: -1 if x.peer is None else x.peer,
        "kind": lambda x: x.is_nonblocking + 2 * x.is_control,
        "algorithm": lambda x: tables.text(x.algorithm),
        "reason": lambda x: tables.text(x.reason),
        "duration": lambda x: max(0, x.end_ns - x.begin_ns) if x.end_ns else -1,
    }
    return _columns(calls, fields) | {
        "record": [_steps(k for k, _ in row) for row in keys],
        "link": [_steps(link_of[r, k, c] for k, c in row) for r, row in enumerate(keys)],
        "begin": [_steps(max(0, x.begin_ns - begin) for x in row) for row in calls],
    }


def _failed(ranks: Sequence[RankRecords], alignment: Alignment) -> list[RankRecords]:
    """The same records; where a rank failed in a call that other ranks never made, the last record has the error."""
    incomplete = [link for link in alignment.links if len({r for r, _, _ in link.members}) < len(link.ranks)]
    unmatched = {(r, k) for link in incomplete for r, k, _ in link.members}
    found = []
    for r, of in enumerate(ranks):
        last = len(of.records) - 1
        if of.error and (r, last) in unmatched and not any(record.error for record in of.records):
            of = replace(of, records=[*of.records[:-1], replace(of.records[-1], error=of.error)])
        found.append(of)
    return found


def _problems(ranks: Sequence[RankRecords], marks: list[list[int]], alignment: Alignment) -> list[list[Any]]:
    """The records at which the page points: errors, where copies first differ and values first are not finite, doubts.

    Each is a kind, the positions of the ranks, and the record on the first of them.
    """
    found: dict[tuple[Any, ...], list[Any]] = {}
    for r, (of, row) in enumerate(zip(ranks, marks, strict=True)):
        for k, flag in enumerate(row):
            if flag & FAILED:
                found.setdefault(("error", of.records[k].error), ["error", [], k])[1].append(r)
        if of.error and of.records and not any(flag & FAILED for flag in row):
            found.setdefault(("end", of.error), ["end", [], len(row) - 1])[1].append(r)
    errors = len(found)
    for kind, flag in (("differs", DIFFERS), ("not finite", NOT_FINITE)):
        for r, k in origins(ranks, alignment, marks, flag):
            record = ranks[r].records[k]
            key = kind, alignment.moments[r][k], record.direction, record.name
            found.setdefault(key, [kind, [], k])[1].append(r)
    rows = list(found.values())
    rows[errors:] = sorted(rows[errors:], key=lambda row: alignment.moments[row[1][0]][row[2]])
    if not errors:  # a program that ended early has no gradients and updates
        doubted: dict[tuple[Any, ...], list[Any]] = {}  # each once, not in every step
        for kind, r, k in doubts(ranks, alignment):
            record = ranks[r].records[k]
            _, on, _ = doubted.setdefault((kind, record.name, record.file, record.line), [kind, [], k])
            if r not in on:
                on.append(r)
        rows += doubted.values()
    return rows[:_MOST_PROBLEMS]


def _check_predicted(ranks: Sequence[RankRecords], predicted: Predicted | None) -> None:
    if predicted is None:
        return
    needed = [len(of.records) for of in ranks]
    is_table = is_list_of(predicted, Sequence) and all(is_list_of(pair, Real) for row in predicted for pair in row)
    if not is_table or any(len(pair) != 2 for row in predicted for pair in row):
        raise ArgumentError(
            f"predicted={short(predicted)} was given; needed: a list for each rank, of (begin, end) in s\n"
            "  fix: give the cc.Topology for which the times are to be predicted"
        )
    given = [len(row) for row in predicted]
    if given != needed:
        raise ArgumentError(f"predicted times of {given} records by rank were given; needed: of {needed}")


# -- numbers -----------------------------------------------------------------------------------------------------------


def _number(x: Any, digits: int = 17) -> Any:
    """A number as JSON has it; one that is not finite or complex as a text."""
    if x is None or isinstance(x, bool | str):
        return x
    if isinstance(x, int):
        return x if abs(x) < 2**53 else str(x)
    if isinstance(x, complex):
        return f"{x.real:.{digits}g}{x.imag:+.{digits}g}i"
    x = float(x)
    if not math.isfinite(x):
        return str(x)
    rounded = float(f"{x:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
