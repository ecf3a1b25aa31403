"""The report of a pipeline's step: idle share and live activations of each rank, measured and predicted."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from .schedules import Action, Schedule
from .simulator import Costs, simulate

__all__ = ["PipelineReport", "Record", "compare"]


class Record(NamedTuple):
    """The course of a step on this rank.

    Attributes
    ----------
    rank : int
        Along the pipeline's axis.
    actions : list of (Action, float, float)
        Each action with the times at which it began and ended, in seconds of ``time.perf_counter``.
    begin, end : float
        Those of the whole step, with the sums of gradients and of the loss.
    held : int
        The largest number of stages and microbatches that had a tape at a time.
    """

    rank: int
    actions: list[tuple[Action, float, float]]
    begin: float
    end: float
    held: int

    @property
    def busy(self) -> float:
        """The seconds for which this rank computed."""
        return math.fsum(end - begin for _, begin, end in self.actions)

    @property
    def idle_share(self) -> float:
        """The part of the step for which this rank did not compute."""
        return 1.0 - self.busy / (self.end - self.begin) if self.end > self.begin else 0.0


class PipelineReport(NamedTuple):
    """Measured and predicted figures, one for each rank.

    Attributes
    ----------
    schedule : Schedule
    costs : Costs
        The mean times of the stages' actions, in seconds, from which the prediction is made.
    idle, predicted_idle : list of float
        The part of the step for which a rank does not compute.
    held, predicted_held : list of int
        The largest number of stages and microbatches whose activations a rank holds at a time.
    """

    schedule: Schedule
    costs: Costs
    idle: list[float]
    predicted_idle: list[float]
    held: list[int]
    predicted_held: list[int]

    def __str__(self) -> str:
        lines = [f"{self.schedule.name}, microbatches: {self.schedule.microbatches}",
                 f"{'rank':>4} {'idle':>7} {'predicted':>9} {'live':>5} {'predicted':>9}"]  # fmt: skip
        for r, row in enumerate(zip(*self[2:], strict=True)):
            lines.append(f"{r:>4} {row[0]:>7.1%} {row[1]:>9.1%} {row[2]:>5} {row[3]:>9}")
        return "\n".join(lines)


def compare(schedule: Schedule, record: Record, group: Any) -> PipelineReport:
    """Gather the records of all ranks, and predict them by a simulation with the measured times.

    Parameters
    ----------
    schedule : Schedule
    record : Record
        This rank's.
    group : Communicator or None
        The ranks of the pipeline; all of them call this.
    """
    times: dict[str, list[float]] = {}
    for action, begin, end in record.actions:
        times.setdefault(f"{action.stage}{action.kind}", []).append(end - begin)
    means = {name: math.fsum(of) / len(of) for name, of in times.items()}
    mine = json.dumps([record.idle_share, record.held, means]).encode()
    found = [json.loads(data) for data in ([mine] if group is None else group.exchange(mine))]
    mean: dict[str, float] = {}
    for _, _, means in found:
        mean |= means

    def at(kind: str) -> list[float]:
        half = 0.0 if kind == "F" else 0.5  # of a backward pass that is not split
        return [mean.get(f"{s}{kind}", half * mean.get(f"{s}B", 0.0)) for s in range(schedule.stages)]

    costs = Costs(at("F"), at("I"), at("W"))
    expected = simulate(schedule, costs)
    return PipelineReport(
        schedule, costs, [idle for idle, _, _ in found], list(expected.idle_share), [held for _, held, _ in found],
        list(expected.held),
    )  # fmt: skip
