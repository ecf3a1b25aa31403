"""The plan: all ranks' tapes as one distributed graph, before anything is differentiated.

Each rank describes its tape: the operations, their operands, and what each operation sends in either direction. The
ranks exchange and merge the descriptions: the k-th collective of a channel is one communication on all ranks of its
group, and the k-th message from one rank to another is one send and one recv. A small simulator then runs through the
merged lists, forwards and in reverse, and reports deadlocks with the rank that each rank waits for.

A nonblocking call has two operations, ``start`` and ``wait``. Its communication belongs to the start. Forwards it is
started there and waited for at the wait; in reverse its adjoint is started at the wait and waited for at the start.

The bytes of a communication are not declared a second time: its own rules are run on zeros, with a `Probe` in place of
its group.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.shape_only import Shaped
from autograd.engine.events import unheard
from autograd.engine.recording import IMPORT, LEAF, arrays_of, op_of, options_of, parents_of, signature_of
from autograd.engine.tape import Tape
from autograd.errors import MeshError, TapeError, typed_errors
from autograd.files import replacing
from autograd.layouts.layout import Layout, Rooted
from autograd.records.text import shown_value

from ..declaration.collective import Collective
from ..declaration.prepared import Prepared
from ..ops.nonblocking import START, WAIT
from ..transports.probe import Probe, Sent
from ..transports.protocol import Communicator, quietly
from ..world import world
from .graph import Communication, Operation
from .plan_drawing import drawn
from .simulator import Simulated, simulate

__all__ = ["Plan", "plan"]


class _Seen(NamedTuple):
    """One rank's description of a communication; `between_two` for a message, whose other end is `root`.

    That of a nonblocking call describes its forward direction until the wait adds the backward direction.
    """

    name: str
    axes: tuple[str, ...]
    channel: tuple[str, tuple[int, ...]]
    forward: list[Sent]
    backward: list[Sent]
    root: int | None
    between_two: bool = False
    is_nonblocking: bool = False


@typed_errors
def plan(tape: Tape, ranks: Communicator | None, sizes: Sequence[int]) -> Plan:
    """Merge the ranks' tapes; see `autograd.Tape.plan`.

    Parameters
    ----------
    tape : Tape
        The tape of this rank.
    ranks : Communicator or None
        The ranks of the mesh. All of them call `plan`. None without a mesh: the plan is that of this process.
    sizes : sequence of int
        The sizes of the mesh.

    Returns
    -------
    Plan
        The same on all ranks.

    Raises
    ------
    TapeError
        The tape was never entered, or `backward` has released it.
    MeshError
        No mesh is current, and the tape was recorded on one that has not all ranks of the world, in their order.
    """
    if tape.recording is None:
        raise TapeError("plan of a tape that was never entered; needed: `with Tape() as tape:` first")
    with unheard():  # the rules run on zeros, which are no part of the program
        return quietly(lambda: _planned(tape, ranks, sizes))


def _planned(tape: Tape, ranks: Communicator | None, sizes: Sequence[int]) -> Plan:
    operations: list[Operation] = []
    seen: dict[int, _Seen] = {}
    recording = tape.recording
    if ranks is None:
        ranks, sizes = _ranks_of(recording, sizes)
    facts = getattr(recording, "records", None)
    end = len(recording.nodes) if tape.end is None else tape.end
    for place in range(tape.start, end):
        if recording.released(place):
            raise TapeError("plan of a tape that backward has released. Fix: plan it before, or retain=True")
        node: Any = recording.nodes[place]
        operations.append(_with_record(_describe(place, node, sizes), facts))
        if hasattr(op_of(node), "communication") and getattr(op_of(node), "enters", False):
            # the nodes of its parameters are right before it
            for entered, parameter in zip(operations[-1 - len(arrays_of(node)) : -1], arrays_of(node), strict=True):
                entered.parameter = parameter.name
                _state_of(entered, parameter.array, None)
        if op_of(node) is START:
            described = _started(node)
        elif op_of(node) is WAIT:
            (start,) = parents_of(node)
            if start in seen:
                collective, call, _, result, _ = options_of(node)
                backward = Probe(call.group)
                collective._adjoint(_zeros(result), call.but(group=backward))
                seen[start] = seen[start]._replace(backward=backward.sent)
            continue
        else:
            described = _communication(node)
        if described is not None:
            seen[place] = described
    packed = json.dumps([[asdict(o) for o in operations], {k: tuple(v) for k, v in seen.items()}]).encode()
    return _merge([_unpack(data) for data in ([packed] if ranks is None else ranks.exchange(packed))])


def _ranks_of(recording: Any, sizes: Sequence[int]) -> tuple[Communicator | None, Sequence[int]]:
    """The ranks of the mesh on which a tape was recorded, and its sizes, where no mesh is current; None without one."""
    grid = next((layout.grid for layout in map(_layout_of, recording.nodes) if layout is not None), None)
    if grid is None and not recording.communicates:
        return None, sizes
    everyone = world()
    if grid is None or tuple(np.ndindex(*grid.sizes))[everyone.index : everyone.index + 1] != (grid.place,) or (
        math.prod(grid.sizes) != everyone.size
    ):
        raise MeshError(
            "tape.plan() of a tape that was recorded on a mesh of some ranks of the world, and no mesh is current\n"
            "  fix: call it inside the block of the mesh, before its end"
        )
    return everyone, grid.sizes


def _layout_of(node: Any) -> Any:
    """A layout that a node knows; None without one."""
    if node is None:
        return None
    if op_of(node) is LEAF:
        return arrays_of(node)[0].layout
    options = options_of(node)
    found = [getattr(signature_of(node), "out", None), getattr(options, "out", None)]
    found += [x for x in options if isinstance(x, Layout)] if isinstance(options, tuple) else []
    first = next((x for x in found if x is not None), None)
    return first[0] if isinstance(first, tuple) else first


def _with_record(found: Operation, facts: Any) -> Operation:
    """An operation with the facts of its record, if `recording_operations` has made one."""
    at = -1 if facts is None else facts.ids.get(found.place, -1)
    if at >= 0:
        record = facts.records[at]
        found.file, found.line, found.scope = record.file, record.line, list(record.scope)
        found.value = shown_value(record.value)
    return found


def _describe(place: int, node: Any, sizes: Sequence[int]) -> Operation:
    op, y, _, parents, options, _, signature = node
    found = Operation(place, op.name, [int(p) for p in parents if p >= 0])
    if op is WAIT:
        (found.waits_for,) = parents
    if op is LEAF:
        (leaf,) = arrays_of(node)
        found.parameter = leaf.name
        _state_of(found, leaf.array, leaf.layout)
        found.holders = _holders(leaf.layout, sizes)
    elif isinstance(op, Collective):
        shape, dtype, _ = options.result
        found.shape, found.dtype, found.layout = [int(n) for n in shape], str(dtype), repr(options.out)
    elif op is not IMPORT and y is not None and hasattr(y, "dtype"):
        _state_of(found, y, None if signature is None else signature.out)
    elif signature is not None:
        found.layout = repr(signature.out)
    return found


def _state_of(found: Operation, array: Any, layout: Any) -> None:
    found.shape, found.dtype = [int(n) for n in array.shape], str(array.dtype)
    found.layout = "" if layout is None else repr(layout)


def _holders(layout: Any, sizes: Sequence[int]) -> list[int]:
    """The ranks that hold data of a value: those at the root's index on every axis where its label is Rooted."""
    places = np.array(list(np.ndindex(*sizes))).reshape(-1, len(sizes))
    holds = np.ones(len(places), bool)
    for k, label in enumerate(() if layout is None else layout.labels):
        if isinstance(label, Rooted):
            holds &= places[:, k] == label.root
    return [int(r) for r in np.flatnonzero(holds)]


def _communication(node: Any) -> _Seen | None:
    """The requests of a node in both directions, found by running its rules on zeros; None without communication."""
    op = op_of(node)
    if isinstance(op, Collective):
        made: Prepared = options_of(node)
        call = made.call
        if op.free or call.elsewhere:
            return None
        forward, backward = Probe(call.group), Probe(call.group)
        op._forward(_zeros(made.operand), call.but(group=forward))
        op._adjoint(_zeros(made.result), call.but(group=backward), *op.saved(node, False))
        channel = call.group.name, tuple(call.group.ranks)
        root = call.group.ranks[call.root] if op.rooted or op.between_two else None
        return _Seen(op.name, call.axes, channel, forward.sent, backward.sent, root, op.between_two)
    describe = getattr(op, "communication", None)  # operations of higher layers describe it themselves
    if describe is None:
        return None
    described = describe(node)
    if described is None:
        return None
    axes, group, forward_sent, backward_sent = described
    return _Seen(op.name, tuple(axes), (group.name, tuple(group.ranks)), forward_sent, backward_sent, None)


def _started(node: Any) -> _Seen | None:
    """The forward requests of a nonblocking call."""
    collective, call, _, operand, _ = options_of(node)
    if not collective.starts(call):
        return None
    forward = Probe(call.group)
    collective._forward(_zeros(operand), call.but(group=forward))
    channel = call.group.name, tuple(call.group.ranks)
    root = call.group.ranks[call.root] if collective.rooted or collective.between_two else None
    return _Seen(collective.name, call.axes, channel, forward.sent, [], root, collective.between_two, True)


def _zeros(state: Any) -> Any:
    if state is None:
        return None
    shape, dtype, absent = state
    return Shaped(shape, dtype, "it is rooted elsewhere") if absent else np.zeros(shape, dtype)


def _unpack(data: bytes) -> tuple[list[Operation], dict[int, _Seen]]:
    operations, seen = json.loads(data)
    return [Operation(**o) for o in operations], {int(k): _restored(v) for k, v in seen.items()}


def _restored(packed: list[Any]) -> _Seen:
    name, axes, (channel, ranks), forward, backward, root, *how = packed
    return _Seen(name, tuple(axes), (channel, tuple(ranks)), [Sent(*s) for s in forward], [Sent(*s) for s in backward],
                 root, *how)


# -- merging -----------------------------------------------------------------------------------------------------------


def _merge(descriptions: list[tuple[list[Operation], dict[int, _Seen]]]) -> Plan:
    communications: list[Communication] = []
    problems: list[str] = []
    meetings: dict[Any, list[tuple[int, int, _Seen]]] = defaultdict(list)
    messages: dict[Any, list[tuple[int, int, _Seen]]] = defaultdict(list)
    for rank, (_, seen) in enumerate(descriptions):
        met: Counter[Any] = Counter()
        for place, described in seen.items():
            if described.between_two:
                pair = (rank, described.root) if described.name == "send" else (described.root, rank)
                key = described.channel, described.name, pair
                messages[described.channel, pair, met[key]].append((rank, place, described))
                met[key] += 1
            else:
                meetings[described.channel, met[described.channel]].append((rank, place, described))
                met[described.channel] += 1
    for (channel, number), members in meetings.items():
        missing = sorted(set(channel[1]) - {rank for rank, _, _ in members})
        if missing:
            who = ", ".join(map(str, missing))
            problems.append(f"communication {number} of '{channel[0]}' ({members[0][2].name}): rank {who} has none")
        names = {f"{s.name} along {'*'.join(s.axes)}" for _, _, s in members}
        if len(names) > 1:
            calls = "; ".join(f"rank {r}: {s.name} along {'*'.join(s.axes)}" for r, _, s in members)
            problems.append(f"communication {number} of '{channel[0]}' is not the same on all ranks: {calls}")
        _enlist(communications, members, descriptions)
    for (channel, (source, target), number), members in messages.items():
        if len(members) != 2:
            rank, _, described = members[0]
            problems.append(
                f"{described.name} {number} from rank {source} to rank {target} on '{channel[0]}': rank {rank} "
                f"calls it, rank {target if rank == source else source} does not"
            )
        _enlist(communications, sorted(members, key=lambda m: m[2].name, reverse=True), descriptions)
    return Plan([operations for operations, _ in descriptions], communications, problems)


def _enlist(communications: list[Communication], members: list[tuple[int, int, _Seen]], descriptions: Any) -> None:
    first = members[0][2]
    for rank, place, _ in members:
        start = descriptions[rank][0][0].place
        descriptions[rank][0][place - start].communication = len(communications)
    communications.append(
        Communication(
            " -> ".join(dict.fromkeys(s.name for _, _, s in members)) + " (nonblocking)" * first.is_nonblocking,
            list(first.axes), [r for r, _, _ in members],
            [p for _, p, _ in members], _group(first, members), [s.forward for _, _, s in members],
            [s.backward for _, _, s in members], first.root, first.is_nonblocking,
        )
    )  # fmt: skip


def _group(described: _Seen, members: list[tuple[int, int, _Seen]]) -> list[int]:
    if described.between_two:
        assert described.root is not None
        return [members[0][0], described.root] if described.name == "send" else [described.root, members[0][0]]
    return list(described.channel[1])


@dataclass
class Plan:
    """All ranks' tapes as one graph.

    Attributes
    ----------
    operations : list of lists of Operation
        One list per rank, in order of execution.
    communications : list of Communication
    problems : list of str
        Communications that do not match between ranks, and deadlocks in either direction. Empty for a correct program.

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh:
    ...         w = ag.Parameter(numpy.ones(3), name="w")
    ...         x = ag.tensor(numpy.ones(3) * (1 + mesh.axis("dp").rank))
    ...         with ag.Tape() as tape:
    ...             loss = cc.all_reduce((cc.cast(w, "dp", to=cc.R) * x).sum(), "dp", to=cc.I)
    ...         return tape.plan()
    >>> plan = cc.run(program, ranks=2)[0]
    >>> [(c.name, c.forward[0], c.backward[0]) for c in plan.communications]  # doctest: +NORMALIZE_WHITESPACE
    [('cast I->R', [], [Sent(call='all_reduce', peer=None, bytes=24)]),
     ('all_reduce', [Sent(call='all_reduce', peer=None, bytes=8)], [])]
    >>> plan.problems
    []
    """

    operations: list[list[Operation]]
    communications: list[Communication]
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for way in ("forward", "backward"):
            waiting = simulate(self._calls(way))
            if waiting:
                self.problems.append(f"{way}: deadlock: " + "; ".join(waiting))

    def _calls(self, way: str) -> list[list[Simulated]]:
        """Every rank's transport calls in the order in which it makes them."""
        found: list[list[Simulated]] = []
        for rank, operations in enumerate(self.operations):
            mine: list[Simulated] = []
            starts = {o.place: o.communication for o in operations}
            for o in operations if way == "forward" else reversed(operations):
                at, is_wait = (o.communication, False) if o.waits_for < 0 else (starts.get(o.waits_for, -1), True)
                if at >= 0:
                    c = self.communications[at]
                    sent = (c.forward if way == "forward" else c.backward)[c.ranks.index(rank)]
                    phase = "" if not c.is_nonblocking else "wait" if is_wait == (way == "forward") else "start"
                    mine += [Simulated(tuple(c.axes), tuple(c.group), s, phase, (at, k)) for k, s in enumerate(sent)]
            found.append(mine)
        return found

    def bytes_by_axis(self, way: str = "forward") -> dict[str, int]:
        """Bytes of operands that all ranks pass to the transport, by axis.

        Parameters
        ----------
        way : {"forward", "backward"}

        Returns
        -------
        dict of str to int
            The keys are axis names, or ``dp*tp`` for flattened axes.
        """
        found: Counter[str] = Counter()
        for c in self.communications:
            for sent in c.forward if way == "forward" else c.backward:
                found["*".join(c.axes)] += sum(s.bytes for s in sent if s.call != "recv")
        return dict(found)

    def to_json(self) -> dict[str, Any]:
        """The whole graph as plain data: dictionaries, lists, strings and numbers.

        Returns
        -------
        dict
        """
        return {
            "ranks": len(self.operations),
            "operations": [[asdict(o) for o in mine] for mine in self.operations],
            "communications": [_plain(c) for c in self.communications],
            "problems": self.problems,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the graph as JSON, or draw it as SVG. Call it on one rank only.

        Parameters
        ----------
        path : str or path
            A file name that ends in ``.json`` or ``.svg``, which selects the format.

        Raises
        ------
        ValueError
            `path` has another ending.
        """
        path = os.fspath(path)
        if not path.endswith((".json", ".svg")):
            raise ValueError(f"plan.write({path!r}): needed: a name that ends in .json or .svg")
        if path.endswith(".json"):
            text = json.dumps(self.to_json(), indent=1)
        else:
            text = drawn(self.operations, self.communications, self.problems)
        with replacing(path, "plan.write") as file:
            file.write(text.encode())

    def _repr_svg_(self) -> str:
        """The picture, for notebooks."""
        return drawn(self.operations, self.communications, self.problems)

    def __str__(self) -> str:
        lines = [f"{len(self.operations)} ranks, {sum(map(len, self.operations))} operations, "
                 f"{len(self.communications)} communications"]  # fmt: skip
        for i, c in enumerate(self.communications):
            ranks = ",".join(map(str, c.ranks))
            lines.append(
                f"  {i:3} {c.name:16} {'*'.join(c.axes):8} ranks {ranks:12} forward {_summary(c.forward):24} "
                f"backward {_summary(c.backward)}"
            )
        lines += [f"  problem: {p}" for p in self.problems]
        return "\n".join(lines)


def _plain(c: Communication) -> dict[str, Any]:
    data = asdict(c)
    for way in ("forward", "backward"):
        data[way] = [[s._asdict() for s in sent] for sent in getattr(c, way)]
    return data


def _summary(sent: list[list[Sent]]) -> str:
    """A summary: the names of all ranks' calls, and the largest number of bytes that one rank passes to them."""
    calls = list(dict.fromkeys(s.call for mine in sent for s in mine))
    return f"{'+'.join(calls)} {max(sum(s.bytes for s in mine) for mine in sent)} B" if calls else "-"
