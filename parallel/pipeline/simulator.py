"""A simulator of pipeline schedules: deadlock, time, idle time by its causes, and live activations.

It runs the tasks of a schedule (`Schedule.tasks`) on ranks that each do one thing at a time. The transfer of a message
is a *rendezvous*: it begins when the sender has sent and the receiver has started the receive, and it takes a given
time. A send does not block the sender, as in `Pipeline`, unless ``blocking=True`` models a transport where it does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autograd.errors import DeadlockError, OptionError, typed_errors

from .schedules import Action, Message, Schedule, Task

__all__ = ["CAUSES", "Costs", "Interval", "Simulation", "simulate"]

CAUSES = ("activations", "adjoints", "sends", "boundaries")
"""The causes of idle time: a rank waits for an activation, for the cotangent of one, for the receiver of a blocking
send, or at the end of the step for the last rank."""

Times = float | Sequence[float]


@typed_errors
@dataclass(frozen=True)
class Costs:
    """Times, in any unit: of one stage for one microbatch, the same for all stages or a number for each.

    Parameters
    ----------
    forward, input, weight : float or sequence of float
        The times of F, I and W; B takes I + W.
    transfer : float
        The time of a message.
    """

    forward: Times = 1.0
    input: Times = 1.0
    weight: Times = 1.0
    transfer: float = 0.0

    def of(self, action: Action) -> float:
        """The time of an action.

        Examples
        --------
        >>> Costs(forward=[1.0, 3.0]).of(Action(1, "F", 0)), Costs().of(Action(0, "B", 0))
        (3.0, 2.0)
        """
        if action.kind == "B":
            return _at(self.input, action.stage) + _at(self.weight, action.stage)
        times = {"F": self.forward, "I": self.input, "W": self.weight}[action.kind]
        return _at(times, action.stage)


def _at(times: Times, stage: int) -> float:
    if isinstance(times, int | float):
        return float(times)
    if stage >= len(times):
        raise OptionError(f"Costs: {len(times)} times were given; needed: one for each stage, also stage {stage}")
    return float(times[stage])


class Interval(NamedTuple):
    """An action of a rank, and when it begins and ends."""

    action: Action
    begin: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """The course of one step.

    Attributes
    ----------
    schedule : Schedule
    timeline : tuple of tuple of Interval
        The actions of each rank.
    makespan : float
        The time from the start of the step to the end of its last action.
    held : tuple of int
        For each rank, the largest number of stages and microbatches whose activations it holds at a time: from the
        begin of F to the end of B, or of W.
    idle : tuple of dict
        For each rank, the idle time by its cause, one of `CAUSES`.
    """

    schedule: Schedule
    timeline: tuple[tuple[Interval, ...], ...]
    makespan: float
    held: tuple[int, ...]
    idle: tuple[dict[str, float], ...]

    @property
    def peak_activations(self) -> tuple[float, ...]:
        """`held` in microbatches through all stages of the rank."""
        of = [len(self.schedule.stages_of(r)) for r in range(self.schedule.ranks)]
        return tuple(n / stages for n, stages in zip(self.held, of, strict=True))

    @property
    def busy(self) -> tuple[float, ...]:
        """The time for which each rank computes."""
        return tuple(math.fsum(x.end - x.begin for x in rank) for rank in self.timeline)

    @property
    def idle_share(self) -> tuple[float, ...]:
        """The part of the makespan for which each rank does not compute."""
        return tuple(1.0 - busy / self.makespan if self.makespan else 0.0 for busy in self.busy)

    @property
    def bubble(self) -> float:
        """The time by which the makespan exceeds the computations of the busiest rank."""
        return self.makespan - max(self.busy)

    @property
    def bubble_fraction(self) -> float:
        """The mean of `idle_share` over the ranks."""
        return math.fsum(self.idle_share) / len(self.idle_share)

    def __str__(self) -> str:
        """A table: for each rank its idle share, idle time by cause, and peak activations."""
        lines = [
            f"{self.schedule.name}: {self.schedule.ranks} ranks, {self.schedule.stages} stages, "
            f"{self.schedule.microbatches} microbatches; makespan {self.makespan:g}, bubble {self.bubble_fraction:.1%}",
            f"{'rank':>4} {'idle':>7} " + " ".join(f"{cause:>11}" for cause in CAUSES) + "  peak activations",
        ]
        rows = zip(self.idle_share, self.idle, self.peak_activations, strict=True)
        for r, (share, idle, peak) in enumerate(rows):
            lines.append(f"{r:>4} {share:>7.1%} " + " ".join(f"{idle[c]:>11.4g}" for c in CAUSES) + f"  {peak:g}")
        return "\n".join(lines)


@dataclass
class _Rank:
    """The state of one rank in the simulation."""

    time: float = 0.0
    place: int = 0  # the task that is next
    blocked: Message | None = None  # the blocking send that is not done
    held: int = 0
    peak: int = 0
    timeline: list[Interval] = field(default_factory=list)
    idle: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))


@typed_errors
def simulate(schedule: Schedule, costs: Costs | None = None, *, blocking: bool = False) -> Simulation:
    """Run a schedule in simulated time.

    Parameters
    ----------
    schedule : Schedule
    costs : Costs, optional
        By default F, I and W of every stage take 1, and messages no time.
    blocking : bool
        Whether a send blocks until its receive has been started, as a synchronous send does.

    Raises
    ------
    DeadlockError
        Ranks wait for each other. The message names the cycle: for each rank the action, and what it waits for from
        which rank.

    Examples
    --------
    >>> from parallel.pipeline import one_f_one_b
    >>> s = simulate(one_f_one_b(4, 8))
    >>> s.makespan, s.bubble, s.peak_activations                # 3 (m + p - 1); 3 (p - 1); min(m, p - r)
    (33.0, 9.0, (4.0, 3.0, 2.0, 1.0))
    """
    costs = Costs() if costs is None else costs
    run = _Run(schedule, costs, blocking)
    while sum(run.advance(r) for r in range(schedule.ranks)):
        pass
    ranks = run.ranks
    if any(rank.place < len(tasks) for rank, tasks in zip(ranks, schedule.tasks, strict=True)):
        raise DeadlockError(run.cycle())
    makespan = max(rank.time for rank in ranks)
    for rank in ranks:
        rank.idle["boundaries"] = makespan - rank.time
    return Simulation(
        schedule, tuple(tuple(rank.timeline) for rank in ranks), makespan, tuple(rank.peak for rank in ranks),
        tuple(rank.idle for rank in ranks),
    )  # fmt: skip


class _Run:
    def __init__(self, schedule: Schedule, costs: Costs, blocking: bool):
        self.schedule, self.costs, self.blocking = schedule, costs, blocking
        self.ranks = [_Rank() for _ in range(schedule.ranks)]
        self.done: set[Action] = set()
        self.sent: dict[Message, float] = {}
        self.started: dict[Message, float] = {}

    def advance(self, r: int) -> bool:
        """Run the tasks of a rank until it has to wait; whether it has done anything."""
        rank, tasks = self.ranks[r], self.schedule.tasks[r]
        before = rank.place, rank.blocked
        while rank.place < len(tasks):
            task = tasks[rank.place]
            if rank.blocked is None and not self._compute(rank, task):
                break
            if rank.blocked is not None:
                started = self.started.get(rank.blocked)
                if started is None:
                    break
                rank.idle["sends"] += max(0.0, started - rank.time)
                rank.time, rank.blocked = max(rank.time, started), None
            rank.place += 1
        return (rank.place, rank.blocked) != before

    def _compute(self, rank: _Rank, task: Task) -> bool:
        """Run the action of a task, if what it needs is there."""
        action, receives, starts, sends = task
        begin = rank.time
        if receives is not None:
            if receives not in self.sent:
                return False
            begin = max(begin, max(self.sent[receives], self.started[receives]) + self.costs.transfer)
        needs = None if action is None else self.schedule.needs(action)
        if needs is not None and receives is None and needs not in self.done:
            return False
        self.started.update(dict.fromkeys(starts, begin))
        if action is None:
            return True
        rank.idle["activations" if action.kind == "F" else "adjoints"] += begin - rank.time
        rank.time = begin + self.costs.of(action)
        rank.timeline.append(Interval(action, begin, rank.time))
        rank.held += action.kind == "F"
        rank.peak = max(rank.peak, rank.held)
        rank.held -= action.kind in "BW"
        self.done.add(action)
        if sends is not None:
            self.sent[sends] = rank.time
            rank.blocked = sends if self.blocking else None
        return True

    def cycle(self) -> str:
        """The message about the ranks that wait for each other."""
        stuck = next(r for r, rank in enumerate(self.ranks) if rank.place < len(self.schedule.tasks[r]))
        path: list[int] = []
        while stuck not in path:
            path.append(stuck)
            stuck = self._waits_for(stuck)[0]
        cycle = path[path.index(stuck) :]
        lines = "\n".join(f"  {self._waits_for(r)[1]}" for r in cycle)
        plural = "waits for itself" if len(cycle) == 1 else "wait for each other"
        return (
            f"schedule {self.schedule.name!r} deadlocks: rank{'s' * (len(cycle) > 1)} "
            f"{', '.join(map(str, cycle))} {plural}\n{lines}\n  fix: put an action later that waits here, after one "
            "on its rank that the others need"
        )

    def _waits_for(self, r: int) -> tuple[int, str]:
        """The rank that a rank waits for, and a line about the wait."""
        rank = self.ranks[r]
        task = self.schedule.tasks[r][rank.place]
        if rank.blocked is not None:
            to = rank.blocked.target
            return to, f"rank {r} sends the {rank.blocked.kind} of {task.action} to rank {to}, which has not started " \
                       "the receive"
        assert task.action is not None  # a task without one never waits
        needs = self.schedule.needs(task.action)
        assert needs is not None
        peer = self.schedule.placement[needs.stage]
        return peer, f"rank {r} waits in {task.action} for the result of {needs} from rank {peer}"
