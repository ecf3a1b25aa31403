"""The plan of a step, before it is run: the stages, the schedule, the memory of each rank, and the bytes it sends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from autograd.errors import ArgumentError, short, typed_errors
from autograd.nn.archive import json_of
from collectives.inspect.observing import observing
from collectives.transports.request import given_bytes, shown

from .pipeline.simulator import Simulation

__all__ = ["Explanation", "RankPlan", "CallCount", "from_json", "measured_traffic", "rows", "to_json"]

SMALL_BYTES = 1 << 10
"""Calls with fewer bytes, such as comparisons between the ranks, are listed together."""


class CallCount(NamedTuple):
    """The calls of one kind that a rank makes in a step.

    Attributes
    ----------
    axis : str
        The mesh axis, or several as ``dp*cp``.
    call : str
    calls, bytes : int
        Their number, and the bytes that the rank passes to them. Of a receive it is the size of the buffer.
    """

    axis: str
    call: str
    calls: int
    bytes: int


@dataclass(frozen=True)
class RankPlan:
    """The part of one rank.

    Attributes
    ----------
    place : dict from axis to int
    layers : list of str
        The names of its layers.
    parameters, gradients, optimizer, activations : int
        Bytes. The activations are those of all microbatches that the rank holds at a time.
    traffic : list of CallCount
    device : str
        Where the parameters are: "cpu" or "cuda:0".
    free_bytes : int
        The memory of the GPU that is free now, or in CuPy's pool; 0 on the CPU.
    """

    place: dict[str, int]
    layers: list[str]
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    traffic: list[CallCount]
    device: str = "cpu"
    free_bytes: int = 0

    @property
    def peak(self) -> int:
        """The bytes of parameters, gradients, optimizer state and activations together."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class Explanation:
    """The plan of a step, the same on every rank; ``print(plan)`` shows it.

    Attributes
    ----------
    mesh : str
    simulation : Simulation
        Of the schedule, for stages of equal cost.
    ranks : list of RankPlan
    """

    mesh: str
    simulation: Simulation
    ranks: list[RankPlan]

    def __str__(self) -> str:
        schedule = self.simulation.schedule
        lines = [f"{self.mesh}: {len(self.ranks)} rank{'s' * (len(self.ranks) != 1)}, {schedule.microbatches} "
                 f"microbatch{'es' * (schedule.microbatches != 1)}"]  # fmt: skip
        if schedule.ranks > 1:
            lines += ["", "schedule, for stages of equal cost", str(self.simulation)]
        has_gpus = any(of.device != "cpu" for of in self.ranks)
        lines += ["", "memory of each rank, in bytes"]
        names = list(self.ranks[0].place)
        table = [(*names, "layers", "parameters", "gradients", "optimizer", "activations", "peak",
                  *(("device", "free") if has_gpus else ()))]  # fmt: skip
        for of in self.ranks:
            numbers = (of.parameters, of.gradients, of.optimizer, of.activations, of.peak)
            table.append((*(str(of.place[a]) for a in names), _span(of.layers), *(f"{n:,}" for n in numbers),
                          *((of.device, f"{of.free_bytes:,}") if has_gpus else ())))
        lines += _aligned(table)
        lines += ["", "calls of the first rank in a step"]
        rows = [(t.axis, t.call, f"{t.calls:,}", f"{t.bytes:,}") for t in self.ranks[0].traffic]
        lines += _aligned([("axis", "call", "calls", "bytes"), *rows]) if rows else ["  none"]
        return "\n".join(lines)


def _span(layers: list[str]) -> str:
    """Names of layers in short: ``0-3 8``."""
    numbers = [int(name) for name in layers if name.isdigit()]
    found: list[list[int]] = []
    for n in numbers:
        if found and found[-1][-1] == n - 1:
            found[-1].append(n)
        else:
            found.append([n])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found) or "-"


def _aligned(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  " + "  ".join(x.rjust(w) for x, w in zip(row, widths, strict=True)) for row in table]


def measured_traffic(run: Callable[[], Any]) -> Counter[tuple[str, str, int]]:
    """Call a function, and count the calls that this rank makes in it: by axis, call and bytes."""
    found: Counter[tuple[str, str, int]] = Counter()

    def observe(group: Any, request: Any, started: bool, run: Any) -> Any:
        if request.call == "agree":  # a comparison of the ranks' calls, which the check modes make
            return run()
        axis = group.name.partition("@")[0]
        found[axis, shown(request), given_bytes(request)] += 1
        return run()

    with observing(observe):
        run()
    return found


def rows(counts: Counter[tuple[str, str, int]]) -> list[CallCount]:
    """Counts as a table, with small calls in one row for each axis."""
    found: dict[tuple[str, str], list[int]] = {}
    for (axis, call, n), times in counts.items():
        name = call if n >= SMALL_BYTES else f"calls below {SMALL_BYTES} bytes"
        of = found.setdefault((axis, name), [0, 0])
        of[0] += times
        of[1] += times * n
    return [CallCount(*key, *of) for key, of in sorted(found.items())]


def to_json(of: RankPlan) -> bytes:
    """A rank's part as text, for the exchange between the ranks."""
    return json.dumps({**of.__dict__, "traffic": [list(t) for t in of.traffic]}).encode()


@typed_errors
def from_json(data: bytes) -> RankPlan:
    """The inverse of `to_json`.

    Raises
    ------
    ArgumentError
        It is no such text, as of another version of ringtape.
    """
    try:
        found = json_of(data)
        plan = RankPlan(**{**found, "traffic": [CallCount(*t) for t in found["traffic"]]})
        is_right = all(_is_kind(x, _FIELDS[name]) for name, x in vars(plan).items()) and all(
            _is_kind(x, kind) for t in plan.traffic for x, kind in zip(t, ("str", "str", "int", "int"), strict=True)
        )
    except (ValueError, TypeError, LookupError) as error:
        raise ArgumentError(f"explain.from_json: {short(data)} is no plan of a rank: {error}") from error
    if not is_right:
        raise ArgumentError(f"explain.from_json: {short(data)} is no plan of a rank: it has values of other types")
    return plan


_FIELDS: dict[str, Any] = {field.name: field.type for field in fields(RankPlan)}


def _is_kind(x: Any, kind: str) -> bool:
    """Whether a value of JSON is of a type by its annotation, of those that `RankPlan` has."""
    if kind == "dict[str, int]":
        return isinstance(x, dict) and all(_is_kind(each, "int") for each in x.values())
    if kind.startswith("list"):
        return isinstance(x, list) and (kind != "list[str]" or all(isinstance(each, str) for each in x))
    return isinstance(x, str) if kind == "str" else type(x) is int
