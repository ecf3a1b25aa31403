"""Dry worlds: run a program once, on shapes only, as one rank of a world of any size.

Nothing is sent, so a world of 16,384 ranks needs one process and one or two seconds. Everything except the values is as
in a real run: the mesh, the layouts and their errors, the tape, every rule of the backward sweep, the optimizer. Every
leaf that the program makes keeps only its shape and dtype; reading a value raises `AbsentError`. The calls to the
transport are counted, and with the description of a machine (`Topology`) their times are predicted.

A dry world is a ``with`` block, so the program need not be a function, its results remain accessible, and if it raises,
the counts up to that point remain too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from autograd.engine import events
from autograd.engine.state import state
from autograd.errors import MeshError, TapeError, typed_errors

from ..mesh import Mesh
from ..transports.dry import DryCommunicator
from ..transports.request import Request, given_bytes, shown, whole_bytes
from ..world import World
from .dry_costs import costs
from .topology import Topology, short_time

__all__ = ["DryRun", "Prediction", "DryTraffic", "dry"]


@dataclass(frozen=True)
class DryTraffic:
    """Transport calls of one kind that the rank made.

    Attributes
    ----------
    axis : str
        The mesh axis, or several as ``dp*tp``; ``world`` for calls of all ranks.
    direction : "forward" or "backward"
        Whether a backward sweep made the calls. Everything else is forward, including the checks of the optimizer.
    operation : str
        The transport's call.
    by : str
        The operation of the program that made the calls: a collective, or "parameter entry"; without one, the
        transport's call.
    ranks : int
        The size of the group.
    calls, bytes : int
        The number of calls, and the bytes that this rank passed to them. For a receive it is the size of the buffer.
    """

    axis: str
    direction: str
    operation: str
    by: str
    ranks: int
    calls: int
    bytes: int


@dataclass(frozen=True)
class Prediction:
    """The predicted cost of a `DryTraffic` with one algorithm, for the rank that sends most.

    Attributes
    ----------
    traffic : DryTraffic
    algorithm : str
    messages : float
        The number of messages sent.
    sent_bytes : float
        The bytes sent, in contrast to the bytes passed to the transport.
    time_s : float or None
        The predicted time; None without a topology.
    """

    traffic: DryTraffic
    algorithm: str
    messages: float
    sent_bytes: float
    time_s: float | None


@typed_errors
def dry(
    ranks: int, rank: int = 0, *, mesh: Mapping[str, int] | None = None, topology: Topology | None = None
) -> DryRun:
    """A dry world, for a ``with`` block: the program in it runs as one rank, on shapes only, without communication.

    Parameters
    ----------
    ranks : int
        The size of the world.
    rank : int
        The rank that the program runs as.
    mesh : mapping from axis to size, optional
        Makes ``cc.Mesh(**mesh)`` current in the block. Not needed if the program makes its own mesh.
    topology : Topology, optional
        The machine for which times are predicted.

    Returns
    -------
    DryRun
        Holds the counts, during the block and after it. Printing it shows the report.

    Raises
    ------
    MeshError
        `ranks`, `rank` or `topology` is not valid.
    TapeError
        A tape is recording when the block is entered.

    Notes
    -----
    Random numbers have shapes only, except those of `random.integers` and `random.permutation`, which are real because
    programs branch on them. Every exchange assumes that the other ranks send what this rank sends (the extents of
    parts, which parameters were used). For a dimension that is split unevenly, state ``global_shape=``. `recv`, and a `broadcast` or `scatter` of None on other ranks than the root, need ``like=``,
    because no header arrives.

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> with cc.dry(ranks=16384, rank=5, mesh={"dp": 2048, "tp": 8}) as run:
    ...     w = ag.Parameter(numpy.zeros((1024, 128), "float32"), layout={"tp": cc.V})
    ...     with ag.Tape() as tape:
    ...         y = ag.tensor(numpy.zeros((32, 1024), "float32"), layout={"tp": cc.R}) @ cc.cast(w, "dp", to=cc.R)
    ...         loss = cc.all_reduce(y.sum(), ("dp", "tp"), to=cc.I)
    ...     tape.backward(loss)
    >>> for t in run.traffic():
    ...     print(t.axis, t.direction, t.operation, t.ranks, t.calls, t.bytes)
    dp*tp forward all_reduce 16384 1 4
    dp*tp forward exchange 16384 2 32
    dp backward all_reduce 2048 1 524288
    >>> float(loss)
    Traceback (most recent call last):
      ...
    autograd.errors.AbsentError: the value Shaped((), float32) cannot be read here: this is a dry run: arrays have shapes and no values
      at ...
    """  # noqa: E501 - the last line is what Python prints
    whole = isinstance(ranks, int) and not isinstance(ranks, bool)
    if not whole or ranks < 1:
        raise MeshError(f"dry: ranks={ranks!r} was given; needed: 1 or more")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < ranks:
        raise MeshError(f"dry: rank={rank!r} was given; a world of {ranks} has the ranks 0 to {ranks - 1}")
    if topology is not None and not isinstance(topology, Topology):
        raise MeshError(f"dry: topology={topology!r} was given; needed: a Topology")
    return DryRun(ranks, rank, mesh, topology)


@typed_errors
class DryRun:
    """The world that `dry` makes, and the counts of its communication.

    Attributes
    ----------
    ranks, rank : int
    topology : Topology or None
    """

    def __init__(self, ranks: int, rank: int, mesh: Mapping[str, int] | None, topology: Topology | None):
        self.ranks = ranks
        self.rank = rank
        self.topology = topology
        self._sizes = None if mesh is None else dict(mesh)
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._groups: dict[int, tuple[int, ...]] = {}  # members of groups, by id of the tuple
        self._open: list[tuple[str, str]] = []  # the operations that are running, the innermost last
        self._exit: ExitStack | None = None

    def __enter__(self) -> DryRun:
        if self._exit is not None:
            raise MeshError("this dry world was entered before; needed: a new cc.dry(...) for each block")
        if state.recording is not None:
            raise TapeError("a dry world was entered while a tape records. Fix: open the tape inside it")
        self._exit = ExitStack()
        self._exit.enter_context(World("dry", self.ranks, rank=self.rank, note=self._note))
        try:
            self._exit.enter_context(events.listening(self._on_event))
            if self._sizes is not None:
                self._exit.enter_context(Mesh(**self._sizes))
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._exit is not None
        self._exit.close()

    # -- counting ----------------------------------------------------------------------------------------------
    def _on_event(self, phase: str, direction: str, name: str) -> None:
        if phase == "begin":
            self._open.append((direction, name))
        elif (direction, name) in self._open:  # operations that an error interrupted end with the operation around them
            while self._open.pop() != (direction, name):
                pass

    def _note(self, group: DryCommunicator, request: Request) -> None:
        call, given = shown(request), given_bytes(request)
        whole = whole_bytes(request, group.index, group.size)
        sweeps = [name for direction, name in self._open if direction == "backward"]
        by = sweeps[-1] if sweeps else self._open[-1][1] if self._open else call
        self._groups[id(group.ranks)] = group.ranks
        axis = group.name.partition("@")[0]
        self._counts[axis, "backward" if sweeps else "forward", call, by, id(group.ranks), given, whole] += 1

    # -- the counts --------------------------------------------------------------------------------------------
    def traffic(self) -> list[DryTraffic]:
        """The calls of this rank to the transport, by kind, in order of first use.

        Returns
        -------
        list of DryTraffic
        """
        calls: Counter[tuple[Any, ...]] = Counter()
        total: Counter[tuple[Any, ...]] = Counter()
        for (*kind, group, given, _), n in self._counts.items():
            key = (*kind, len(self._groups[group]))
            calls[key] += n
            total[key] += n * given
        return [DryTraffic(*key, calls=n, bytes=total[key]) for key, n in calls.items()]  # type: ignore[misc]  # kind, ranks

    def predictions(self) -> list[Prediction]:
        """The predicted cost of each `traffic` with every algorithm; the default algorithm of a call comes first.

        Returns
        -------
        list of Prediction
        """
        found: dict[tuple[Any, ...], dict[str, list[float]]] = {}
        for (*kind, group, _, whole), n in self._counts.items():
            ranks = self._groups[group]
            into = found.setdefault((*kind, len(ranks)), {})
            for algorithm, cost in costs(kind[2], whole, ranks, self.topology):
                sums = into.setdefault(algorithm, [0, 0, 0])
                for i, x in enumerate((cost.messages, cost.bytes, cost.time_s)):
                    sums[i] += n * x
        timed = self.topology is not None
        return [
            Prediction(traffic, algorithm, messages, sent, time_s if timed else None)
            for traffic in self.traffic()
            for algorithm, (messages, sent, time_s) in found[
                traffic.axis, traffic.direction, traffic.operation, traffic.by, traffic.ranks
            ].items()
        ]

    def time_s(self, algorithm: str | None = None) -> float:
        """The predicted time of all calls in seconds, one after the other, without overlap with computation.

        Parameters
        ----------
        algorithm : str, optional
            The algorithm for all calls that support it; other calls use their default. Without it, every call uses its
            fastest algorithm.

        Returns
        -------
        float

        Raises
        ------
        MeshError
            No call supports the algorithm, or the run has no topology.
        """
        if self.topology is None:
            raise MeshError("time_s of a dry run without a topology. Fix: cc.dry(..., topology=cc.Topology(...))")
        choices_of = self._choices()
        known = dict.fromkeys(p.algorithm for choices in choices_of.values() for p in choices)
        if algorithm is not None and algorithm not in known:
            raise MeshError(f"time_s: algorithm={algorithm!r} was given; the calls have {', '.join(known) or 'none'}")
        total = 0.0
        for choices in choices_of.values():
            times = {p.algorithm: p.time_s or 0.0 for p in choices}
            usual = next(iter(times.values()))
            total += min(times.values()) if algorithm is None else times.get(algorithm, usual)
        return total

    def _choices(self) -> dict[DryTraffic, list[Prediction]]:
        found: dict[DryTraffic, list[Prediction]] = {}
        for p in self.predictions():
            found.setdefault(p.traffic, []).append(p)
        return found

    def to_json(self) -> str:
        """The world, the traffic and the predictions as one JSON object.

        Returns
        -------
        str
        """
        return json.dumps(
            {
                "ranks": self.ranks,
                "rank": self.rank,
                "topology": None if self.topology is None else asdict(self.topology),
                "traffic": [asdict(t) for t in self.traffic()],
                "predictions": [{**asdict(p.traffic), "algorithm": p.algorithm, "messages": p.messages,
                                 "sent_bytes": p.sent_bytes, "time_s": p.time_s} for p in self.predictions()],
            },
            allow_nan=True,
        )

    def __str__(self) -> str:
        lines = [f"dry run of rank {self.rank} of {self.ranks}" + _machine(self.topology)]
        if not self._counts:
            return "\n".join([*lines, "  no communication"])
        table = [("axis", "ranks", "direction", "operation", "by", "calls", "bytes", "algorithm", "messages", "sent",
                  "time")]  # fmt: skip
        for t, choices in self._choices().items():
            head = (t.axis, str(t.ranks), t.direction, t.operation, t.by, f"{t.calls:,}", f"{t.bytes:,}")
            for i, p in enumerate(choices):
                time = "" if p.time_s is None else short_time(p.time_s)
                table.append((*(head if i == 0 else [""] * len(head)), p.algorithm, f"{p.messages:,.0f}",
                              f"{p.sent_bytes:,.0f}", time))  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        right = (1, 5, 6, 8, 9, 10)
        for row in table:
            cells = [x.rjust(w) if i in right else x.ljust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True))]
            lines.append(("  " + "  ".join(cells)).rstrip())
        if self.topology is not None:
            used = dict.fromkeys(p.algorithm for p in self.predictions() if p.traffic.operation == "all_reduce")
            if used:
                each = ", ".join(f"{name} {short_time(self.time_s(name))}" for name in used)
                lines.append(f"  in all, by the algorithm of the all-reduces: {each}")
            lines.append(f"  in all, the fastest of each: {short_time(self.time_s())}")
        return "\n".join(lines)


def _machine(topology: Topology | None) -> str:
    if topology is None:
        return ""
    links = ", ".join(
        f"{name} {short_time(link.latency_s)} and {link.bytes_per_s / 1e9:g} GB/s"
        for name, link in (("inside", topology.inside), ("between", topology.between),
                           *((f"between each {number}", link) for number, link in topology.outer))
    )  # fmt: skip
    return f" on hosts of {topology.ranks_per_host}: {links}"
