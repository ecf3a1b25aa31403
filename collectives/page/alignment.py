"""Alignment: the moments of a program on all its ranks, and the calls that belong together.

A moment holds at most one record of each rank. Ranks that run the same program share every moment. Ranks whose programs
differ are aligned by their communication: the calls of a collective stand in one moment, and a message arrives in a
later moment than the one in which it is sent. A nonblocking receive arrives at the first operation that began after its
end. Comparisons and headers align nothing, because ranks may send them ahead. Between two communications, operations of
the same name, scope and line share a moment; others run beside each other, as early as they can.

The records are merged by list scheduling. Each rank has a head, its first record that has no moment. A head is ready if
nothing that it waits for is still to come on another rank. It is held back if another rank is about to run the same
operation. Heads that are ready and not held back form the next moment. Where records contradict each other, the head of
the lowest rank goes on, so that the alignment always ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..inspect.record import CallOf, OperationRecord, RankRecords

__all__ = ["Alignment", "Link", "align", "is_message", "roots"]

_MESSAGES = frozenset(("send", "lend", "recv"))
_Key = tuple[str, tuple[int, ...], int]


@dataclass(slots=True)
class Link:
    """The calls of the ranks that are one communication.

    Attributes
    ----------
    ranks : tuple of int
        The world ranks that take part.
    members : list of (int, int, int)
        The calls that were made: the position of the rank among the given records, of the record, and of the call.
    arrival : int
        Of a message: the record of the receiver at which it had arrived; -1 if it is not known.
    """

    ranks: tuple[int, ...]
    members: list[tuple[int, int, int]] = field(default_factory=list)
    arrival: int = -1


@dataclass(slots=True)
class Alignment:
    """The moments of all records.

    Attributes
    ----------
    moments : list of list of int
        For each rank, the moment of each record. A record inside another one has the moment of the outer one.
    count : int
        The number of moments.
    links : list of Link
    """

    moments: list[list[int]]
    count: int
    links: list[Link]


def is_message(call: CallOf) -> bool:
    """Whether a call is one side of a message between two ranks."""
    return call.call.partition(" ")[0] in _MESSAGES


def roots(records: Sequence[OperationRecord]) -> list[int]:
    """For each record, the outermost record that it ran inside; the record itself if there is none.

    Examples
    --------
    >>> from collectives.inspect.record import OperationRecord
    >>> roots([OperationRecord(0, "backward", "cast I->R"), OperationRecord(1, "backward", "all_reduce", cause=0)])
    [0, 0]
    """
    found: list[int] = []
    for k, record in enumerate(records):
        cause = record.cause
        found.append(k if cause is None or not 0 <= cause < k else found[cause])
    return found


def align(ranks: Sequence[RankRecords]) -> Alignment:
    """Find the moments of all records, and the calls that belong together.

    Parameters
    ----------
    ranks : sequence of RankRecords
        Of the ranks to align, in order. The id of a record is its position.

    Returns
    -------
    Alignment

    Examples
    --------
    Rank 0 sends what rank 1 receives, one moment later:

    >>> from collectives.inspect.record import CallOf, OperationRecord, RankRecords
    >>> def side(rank, call):
    ...     made = CallOf(call, "dp", "dp", 1, (0, 1), 8, peer=1 - rank)
    ...     return RankRecords(rank, records=[OperationRecord(0, "forward", call, calls=[made])])
    >>> align([side(0, "send"), side(1, "recv")]).moments
    [[0], [1]]
    """
    scheduler = _Scheduler(ranks)
    count = scheduler.run()
    return Alignment(scheduler.moments(), count, scheduler.links)


class _Scheduler:
    """The state of one merge. A step of a rank is a record that is inside no other one."""

    def __init__(self, ranks: Sequence[RankRecords]):
        self._roots = [roots(of.records) for of in ranks]
        self._steps: list[list[int]] = []  # by rank: the ids of its steps
        self._kinds: list[list[int]] = []  # by rank: for each step, the number of its name, scope and line
        self._where: list[dict[int, list[int]]] = []  # by rank: the steps of each kind
        known: dict[tuple[object, ...], int] = {}
        for of, inside in zip(ranks, self._roots, strict=True):
            steps = [k for k, root in enumerate(inside) if k == root]
            kinds = [known.setdefault(_kind(of.records[k]), len(known)) for k in steps]
            where: dict[int, list[int]] = defaultdict(list)
            for at, kind in enumerate(kinds):
                where[kind].append(at)
            self._steps.append(steps)
            self._kinds.append(kinds)
            self._where.append(where)
        self.links = _links(ranks)
        # By rank and step: the steps of other ranks that share its moment, and those that must come before it.
        self._together: list[dict[int, list[tuple[int, int]]]] = [defaultdict(list) for _ in ranks]
        self._before: list[dict[int, list[tuple[int, int]]]] = [defaultdict(list) for _ in ranks]
        self._bounds: list[list[int]] = []  # by rank: the steps that communicate
        self._constrain(ranks)
        self._at = [0] * len(ranks)
        self._moment_of: list[list[int]] = [[0] * len(steps) for steps in self._steps]

    def _constrain(self, ranks: Sequence[RankRecords]) -> None:
        step_of = []
        for of, steps, inside in zip(ranks, self._steps, self._roots, strict=True):
            position = {k: at for at, k in enumerate(steps)}
            step_of.append([position[root] for root in inside])
            speaks = {step_of[-1][x.id] for x in of.records if not all(call.is_control for call in x.calls)}
            self._bounds.append(sorted(speaks))
        for link in self.links:
            if len(link.members) < 2:
                continue
            ends = [(r, step_of[r][k]) for r, k, _ in link.members]
            r, k, c = link.members[0]
            call = ranks[r].records[k].calls[c]
            if call.is_control:
                continue
            if not is_message(call):
                for end in ends:
                    self._together[end[0]][end[1]] += [other for other in ends if other[0] != end[0]]
                continue
            (sender, sent), (receiver, received) = ends
            if sender == receiver:
                continue
            received = self._arrival(ranks[receiver], link.members[1], self._steps[receiver], received)
            if received == len(self._steps[receiver]):
                continue
            link.arrival = self._steps[receiver][received]
            if self._kinds[sender][sent] == self._kinds[receiver][received]:  # one operation on both: a permutation
                self._together[receiver][received].append((sender, sent))
            else:
                self._before[receiver][received].append((sender, sent))

    @staticmethod
    def _arrival(of: RankRecords, member: tuple[int, int, int], steps: list[int], posted: int) -> int:
        """The step at which a message has arrived: its receive, or the first that began after a nonblocking one."""
        call = of.records[member[1]].calls[member[2]]
        if not call.is_nonblocking or call.end_ns <= call.begin_ns:
            return posted
        return bisect_left(steps, call.end_ns, posted + 1, key=lambda k: of.records[k].begin_ns)

    def run(self) -> int:
        """Give every step its moment, and return the number of moments."""
        moment = 0
        while heads := [r for r, steps in enumerate(self._steps) if self._at[r] < len(steps)]:
            ready = self._ready(heads)
            chosen = self._unheld(ready, heads) if ready else heads[:1]
            for r in chosen:
                self._moment_of[r][self._at[r]] = moment
            for r in chosen:
                self._at[r] += 1
            moment += 1
        return moment

    def moments(self) -> list[list[int]]:
        """The moment of each record of each rank."""
        found = []
        for steps, moments, inside in zip(self._steps, self._moment_of, self._roots, strict=True):
            of = dict(zip(steps, moments, strict=True))
            found.append([of[root] for root in inside])
        return found

    def _ready(self, heads: list[int]) -> list[int]:
        """The heads that wait for nothing, or only for other heads that are ready."""
        at, ready = self._at, set(heads)
        changed = True
        while changed:
            changed = False
            for r in sorted(ready):
                later = any(step >= at[s] for s, step in self._before[r].get(at[r], ()))
                if later or any(
                    step > at[s] or (step == at[s] and s not in ready) for s, step in self._together[r].get(at[r], ())
                ):
                    ready.discard(r)
                    changed = True
        return sorted(ready)

    def _unheld(self, ready: list[int], heads: list[int]) -> list[int]:
        """The ready heads that no other rank is about to reach, with those that share their moment."""
        by_kind: dict[int, list[int]] = defaultdict(list)
        for r in ready:
            by_kind[self._kinds[r][self._at[r]]].append(r)
        if len(by_kind) == 1 and len(ready) == len(heads):
            return ready
        held = {kind for kind in by_kind if any(self._reaches(q, kind) for q in ready)}
        free = [r for kind, members in by_kind.items() if kind not in held for r in members]
        return self._closed(free or next(iter(by_kind.values())), ready)

    def _reaches(self, r: int, kind: int) -> bool:
        """Whether a rank whose head is ready has a step of a kind after it and before its next communication."""
        at = self._at[r]
        bounds = self._bounds[r]
        k = bisect_left(bounds, at + 1)
        end = bounds[k] if k < len(bounds) else len(self._steps[r])
        where = self._where[r].get(kind)
        if where is None or self._kinds[r][at] == kind:
            return False
        k = bisect_left(where, at + 1)
        return k < len(where) and where[k] < end

    def _closed(self, chosen: list[int], ready: list[int]) -> list[int]:
        """Add the ready heads that must share a moment with a chosen one."""
        found, todo = set(chosen), list(chosen)
        while todo:
            r = todo.pop()
            for s, step in self._together[r].get(self._at[r], ()):
                if s in ready and s not in found and step == self._at[s]:
                    found.add(s)
                    todo.append(s)
        return sorted(found)


def _kind(record: OperationRecord) -> tuple[object, ...]:
    return record.direction, record.name, record.scope, record.file, record.line


def _links(ranks: Sequence[RankRecords]) -> list[Link]:
    """The calls of all ranks by the communication that they belong to. The sender of a message comes first."""
    found: dict[_Key, Link] = {}
    for r, of in enumerate(ranks):
        for k, record in enumerate(of.records):
            for c, call in enumerate(record.calls):
                members = call.ranks
                if is_message(call) and call.peer is not None:
                    is_sent = not call.call.startswith("recv")
                    members = (of.rank, call.peer) if is_sent else (call.peer, of.rank)
                kind = "message " if is_message(call) else "control " if call.is_control else ""
                key = kind + call.channel, members, call.number
                link = found.setdefault(key, Link(members))
                link.members.append((r, k, c))
    for link in found.values():
        if len(link.members) == 2 and len(link.ranks) == 2:
            r, k, c = link.members[0]
            if is_message(call := ranks[r].records[k].calls[c]) and call.call.startswith("recv"):
                link.members.reverse()
    return list(found.values())
