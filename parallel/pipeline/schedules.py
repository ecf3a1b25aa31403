"""Pipeline schedules as data: for each rank, the order of its computations.

An action is written ``2F0``: stage 2, forward, microbatch 0. The kinds are

====  ==========================================================================================================
F     the forward pass of a stage for a microbatch
B     the whole backward pass, I and W together
I     the cotangents of the stage's input
W     the gradients of the stage's parameters, which may come any time later
====  ==========================================================================================================

A schedule contains computations only; `Schedule.tasks` inserts the communication. A rank sends a result as soon as it
is computed. It starts the receives from another rank in the order of that rank's sends, two ahead of the one that it
needs: no schedule here deadlocks on any transport, also where a send blocks until its receive has been started.

| schedule | bubble: time of a rank beyond m T | peak activations of rank r, in microbatches |
|---|---|---|
| `gpipe` | (p-1) T | m |
| `one_f_one_b` | (p-1) T | min(m, p-r) |
| `interleaved`, p divides m | (p-1) T / v | min(m, (vp+p-1-2r)/v) |
| `zb_h1`, m >= p | (p-1) max(F, I, F+I-W) | p |
| `zb_v`, m >= 2p, p < 10, F = I = W | (p-1) F/2 | p |

for p ranks, m microbatches and v stages on each rank, where F, I and W are the times of all stages of a rank for one
microbatch, and T = F + I + W.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autograd.errors import OptionError, short, typed_errors

__all__ = [
    "Action", "Message", "SCHEDULES", "Schedule", "Task", "gpipe", "interleaved", "make_schedule", "one_f_one_b",
    "zb_h1", "zb_v",
]  # fmt: skip


class Action(NamedTuple):
    """One computation: a stage, its kind (F, B, I or W), and a microbatch.

    Examples
    --------
    >>> Action.parse("2F0"), str(Action(2, "F", 0))
    (Action(stage=2, kind='F', microbatch=0), '2F0')
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    @typed_errors
    def parse(cls, text: str) -> Action:
        """The action that a text like ``2F0`` names."""
        found = _ACTION.fullmatch(text)
        if found is None:
            raise OptionError(
                f"a schedule has the action {text!r}; needed: stage, one of F, B, I, W, and microbatch, like 2F0"
            )
        return cls(int(found[1]), found[2], int(found[3]))


_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


class Message(NamedTuple):
    """A value that passes from the rank of one stage to that of the next, or a cotangent that passes back.

    Attributes
    ----------
    kind : {"activation", "cotangent"}
    stage : int
        The stage that computes it.
    microbatch : int
    source, target : int
        Ranks along the pipeline's axis.
    number : int
        Its place among the messages from `source` to `target`, in the order in which they are sent.
    text : str
        For reports.
    """

    kind: str
    stage: int
    microbatch: int
    source: int
    target: int
    number: int
    text: str

    def __str__(self) -> str:
        return self.text


class Task(NamedTuple):
    """An action with its communication, in this order: a wait for `receives`, `starts`, the action, `sends`.

    Attributes
    ----------
    action : Action or None
        None for the first task of a rank, which only starts receives.
    receives : Message or None
        It has been started by an earlier task.
    starts : tuple of Message
        Receives that are started. From each rank that still sends some, two are then under way.
    sends : Message or None
    """

    action: Action | None
    receives: Message | None
    starts: tuple[Message, ...]
    sends: Message | None


AHEAD = 2  # how many receives from each rank have been started before they are needed


def _take(
    coming: dict[int, list[Message]], started: dict[int, int], wanted: dict[int, int]
) -> tuple[Message, ...]:
    """The messages from each rank that are wanted and not yet started; they count as started from now on."""
    found = [x for source, all_of in coming.items() for x in all_of[started[source] : wanted[source]]]
    started |= wanted
    return tuple(found)


@typed_errors
@dataclass(frozen=True)
class Schedule:
    """A list of actions for each rank.

    Parameters
    ----------
    name : str
    actions : sequence of sequence of Action
        For each rank, in the order in which it computes.

    Raises
    ------
    OptionError
        An action is missing, is there twice or on two ranks, or comes before one that it needs on the same rank.

    Examples
    --------
    >>> print(one_f_one_b(2, 3))
    0F0 0F1 0B0 0F2 0B1 0B2
    1F0 1B0 1F1 1B1 1F2 1B2
    >>> Schedule.parse("0F0 0F1 0B1 0B0").microbatches
    2
    """

    name: str
    actions: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", tuple(tuple(Action(*a) for a in rank) for rank in self.actions))
        self._validate()

    @classmethod
    def parse(cls, text: str, name: str = "own") -> Schedule:
        """The schedule of a text with one line for each rank, and actions separated by blanks.

        Empty lines are ignored, and so is what follows a ``#``.
        """
        lines = [line.partition("#")[0].split() for line in text.splitlines()]
        return cls(name, tuple(tuple(map(Action.parse, line)) for line in lines if line))

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, rank)) for rank in self.actions)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.actions)

    # Each cache has one value; it saves so much a question, for 512 actions on 8 ranks. Every action asks for stages.
    @cached_property  # 25 us
    def stages(self) -> int:
        """The number of stages."""
        return 1 + max(a.stage for rank in self.actions for a in rank)

    @property
    def microbatches(self) -> int:
        """The number of microbatches."""
        return 1 + max(a.microbatch for rank in self.actions for a in rank)

    @cached_property  # 22 us
    def placement(self) -> tuple[int, ...]:
        """The rank of each stage."""
        of = {a.stage: r for r, rank in enumerate(self.actions) for a in rank}
        return tuple(of[stage] for stage in range(self.stages))

    @property
    def splits_backward(self) -> bool:
        """Whether some action is I or W."""
        return any(a.kind in "IW" for rank in self.actions for a in rank)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages of a rank, in order."""
        return tuple(stage for stage, r in enumerate(self.placement) if r == rank)

    def needs(self, action: Action) -> Action | None:
        """The action whose result an action uses; None for the first stage's forward, which uses the batch."""
        stage, kind, microbatch = action
        if kind == "F":
            return Action(stage - 1, "F", microbatch) if stage else None
        if kind == "W":
            return Action(stage, "I", microbatch)
        if stage == self.stages - 1:
            return Action(stage, "F", microbatch)
        following = Action(stage + 1, "I", microbatch)
        return following if following in self._places else Action(stage + 1, "B", microbatch)

    @cached_property  # 47 us
    def _places(self) -> dict[Action, tuple[int, int]]:
        return {a: (r, i) for r, rank in enumerate(self.actions) for i, a in enumerate(rank)}

    def _refuse(self, problem: str, needed: str) -> None:
        raise OptionError(f"schedule {self.name!r}: {problem}; needed: {needed}")

    def _validate(self) -> None:
        found: dict[Action, tuple[int, int]] = {}
        if not any(self.actions):
            self._refuse("it has no actions", "at least one rank with a forward and a backward pass")
        for r, rank in enumerate(self.actions):
            if not rank:
                self._refuse(f"rank {r} has no actions", "a stage on every rank")
            for i, a in enumerate(rank):
                if a.kind not in tuple("FBIW"):
                    self._refuse(f"rank {r} has the kind {a.kind!r}", "F, B, I or W")
                if a in found:
                    self._refuse(f"{a} is on rank {found[a][0]} and again on rank {r}", "each action once")
                found[a] = r, i
        for stage in range(self.stages):
            for m in range(self.microbatches):
                self._validate_pass(found, stage, m)

    def _validate_pass(self, found: dict[Action, tuple[int, int]], stage: int, m: int) -> None:
        kinds = "".join(kind for kind in "FBIW" if Action(stage, kind, m) in found)
        if kinds not in ("FB", "FIW"):
            has = " and ".join(f"{stage}{kind}{m}" for kind in kinds) or "no action"
            self._refuse(
                f"stage {stage} has {has} for microbatch {m}",
                f"{stage}F{m} and either {stage}B{m}, or {stage}I{m} and {stage}W{m}",
            )
        places = [found[Action(stage, kind, m)] for kind in kinds]
        if len({r for r, _ in places}) > 1 or places[0][0] != found[Action(stage, "F", 0)][0]:
            ranks = sorted({found[Action(stage, "F", 0)][0], *(r for r, _ in places)})
            self._refuse(f"stage {stage} is on ranks {ranks[0]} and {ranks[1]}", "each stage on one rank")
        if places != sorted(places):
            listed = ", ".join(f"{stage}{kind}{m}" for kind in kinds)
            self._refuse(f"rank {places[0][0]} does not compute {listed} in this order", "F, then B, or I and then W")

    # -- communication -----------------------------------------------------------------------------------------
    @cached_property  # 6.4 ms
    def tasks(self) -> tuple[tuple[Task, ...], ...]:
        """For each rank its actions, with the messages that they need inserted; see `Task`.

        Examples
        --------
        >>> print(one_f_one_b(2, 1).tasks[1][1].receives)
        activation of stage 0, microbatch 0, from rank 0
        """
        sends: dict[Action, Message] = {}
        numbers: dict[tuple[int, int], int] = {}
        for r, rank in enumerate(self.actions):
            for a in rank:
                to = a.stage + 1 if a.kind == "F" else a.stage - 1
                if a.kind != "W" and 0 <= to < self.stages and self.placement[to] != r:
                    pair = r, self.placement[to]
                    numbers[pair] = n = numbers.get(pair, -1) + 1
                    kind = "activation" if a.kind == "F" else "cotangent"
                    text = f"{kind} of stage {a.stage}, microbatch {a.microbatch}, from rank {r}"
                    sends[a] = Message(kind, a.stage, a.microbatch, *pair, n, text)
        coming: dict[int, dict[int, list[Message]]] = {r: {} for r in range(self.ranks)}  # by target and source
        for x in sends.values():
            coming[x.target].setdefault(x.source, []).append(x)
        return tuple(self._with_messages(rank, sends, coming[r]) for r, rank in enumerate(self.actions))

    def _with_messages(
        self, rank: tuple[Action, ...], sends: dict[Action, Message], coming: dict[int, list[Message]]
    ) -> tuple[Task, ...]:
        # By source: the receives that have been started, and those that are to be.
        started, wanted = dict.fromkeys(coming, 0), dict.fromkeys(coming, AHEAD)
        found: list[Task] = []
        for a in (None, *rank):
            needs = None if a is None or a.kind == "W" else self.needs(a)
            receives = None if a is None or needs is None or needs.stage == a.stage else sends.get(needs)
            if receives is not None:
                wanted[receives.source] = max(wanted[receives.source], receives.number + 1)
            if found:  # what this action needs is started before the last one, or at the beginning
                found[-1] = found[-1]._replace(starts=found[-1].starts + _take(coming, started, wanted))
            if receives is not None:
                wanted[receives.source] = max(wanted[receives.source], receives.number + 1 + AHEAD)
            found.append(Task(a, receives, _take(coming, started, wanted), None if a is None else sends.get(a)))
        return tuple(found)

    @property
    def messages(self) -> dict[tuple[int, int], int]:
        """The number of messages from one rank to another."""
        return Counter((x.source, x.target) for rank in self.tasks for *_, x in rank if x is not None)

    def __contains__(self, action: object) -> bool:
        return action in self._places

    def forward_only(self, microbatches: int) -> Schedule:
        """The same stages, where each rank computes only forward passes, in the order of the microbatches."""
        _check_numbers(ranks=self.ranks, microbatches=microbatches)
        made = object.__new__(Schedule)  # it is incomplete, and not validated
        ranks = [[Action(stage, "F", i) for i in range(microbatches) for stage in self.stages_of(r)]
                 for r in range(self.ranks)]  # fmt: skip
        object.__setattr__(made, "name", "forward only")
        object.__setattr__(made, "actions", tuple(map(tuple, ranks)))
        return made

    def passes(self, microbatches: int) -> Schedule:
        """The same stages, which compute all forward passes, and then all backward passes."""
        _check_numbers(ranks=self.ranks, microbatches=microbatches)
        ranks = []
        for r in range(self.ranks):
            forward = [Action(stage, "F", i) for i in range(microbatches) for stage in self.stages_of(r)]
            ranks.append((*forward, *(Action(stage, "B", i) for stage, _, i in reversed(forward))))
        return Schedule("passes", tuple(ranks))


# -- the schedules of the literature ---------------------------------------------------------------------------------
_MOST = 10_000_000  # actions of a schedule, which lists each of them


def _check_numbers(**numbers: int) -> None:
    """Raise OptionError unless all numbers are positive integers, and a schedule can list so many actions."""
    for name, n in numbers.items():
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise OptionError(f"{name}={short(n)} was given; needed: an int of at least 1")
    if math.prod(map(int, numbers.values())) > _MOST:
        shown = ", ".join(f"{name}={short(n)}" for name, n in numbers.items())
        raise OptionError(f"{shown} were given; needed: at most {_MOST} actions of a schedule")


def _made(name: str, ranks: Iterable[Iterable[tuple[int, str, int]]]) -> Schedule:
    return Schedule(name, tuple(tuple(Action(*a) for a in rank) for rank in ranks))


@typed_errors
def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes. Source: Huang et al., *GPipe*, NeurIPS 2019, section 2.3.

    Examples
    --------
    >>> print(gpipe(2, 2))
    0F0 0F1 0B0 0B1
    1F0 1F1 1B0 1B1
    """
    _check_numbers(ranks=ranks, microbatches=microbatches)
    return _made("gpipe", (
        [(r, kind, i) for kind in "FB" for i in range(microbatches)] for r in range(ranks)
    ))  # fmt: skip


@typed_errors
def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """One forward pass, one backward pass in turn, so that a rank holds at most as many microbatches as ranks follow.

    Source: Narayanan et al., *PipeDream*, SOSP 2019, section 3.2, with the synchronous form of Fan et al., *DAPPLE*,
    PPoPP 2021, section 3.

    Examples
    --------
    >>> print(one_f_one_b(3, 2))
    0F0 0F1 0B0 0B1
    1F0 1F1 1B0 1B1
    2F0 2B0 2F1 2B1
    """
    _check_numbers(ranks=ranks, microbatches=microbatches)
    found = []
    for r in range(ranks):
        ahead = min(microbatches, ranks - r - 1)
        rank = [(r, "F", i) for i in range(ahead)]
        for i in range(microbatches):
            rank += [(r, "F", i + ahead)] if i + ahead < microbatches else []
            rank.append((r, "B", i))
        found.append(rank)
    return _made("1f1b", found)


@typed_errors
def interleaved(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B where each rank has several stages, r, r + p, ..., which makes the bubble shorter and the messages more.

    Microbatches pass the stages in groups of `ranks`. If it does not divide their number, the last group is smaller,
    and the bubble larger than the formula. Source: Narayanan et al., *Efficient large-scale language model training on
    GPU clusters using Megatron-LM*, SC 2021, section 2.2.

    Examples
    --------
    >>> print(interleaved(2, 2, 2))
    0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    """
    _check_numbers(ranks=ranks, microbatches=microbatches, chunks=chunks)
    whole = -(-microbatches // ranks) * ranks  # with microbatches that are left out again, so that groups are whole
    groups = [range(at, at + ranks) for at in range(0, whole, ranks)]
    forward = [(c, i) for group in groups for c in range(chunks) for i in group]
    backward = [(chunks - 1 - c, i) for c, i in forward]
    found = []
    for r in range(ranks):
        ahead = min(len(forward), 2 * (ranks - r - 1) + (chunks - 1) * ranks)
        rank = [(c * ranks + r, "F", i) for c, i in forward[:ahead]]
        for k, (c, i) in enumerate(backward):
            if k + ahead < len(forward):
                d, j = forward[k + ahead]
                rank.append((d * ranks + r, "F", j))
            rank.append((c * ranks + r, "B", i))
        found.append([a for a in rank if a[2] < microbatches])
    return _made("interleaved", found)


@typed_errors
def zb_h1(ranks: int, microbatches: int) -> Schedule:
    """1F1B with a split backward pass: W fills the gaps, and every rank holds as many microbatches as there are ranks.

    Source: Qi et al., *Zero bubble pipeline parallelism*, ICLR 2024, section 2.1.

    Examples
    --------
    >>> print(zb_h1(2, 3))
    0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2
    1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
    """
    _check_numbers(ranks=ranks, microbatches=microbatches)
    found = []
    for r in range(ranks):
        ahead = min(microbatches, ranks - r)
        rank = [(r, "F", i) for i in range(ahead)]
        for i in range(microbatches):
            rank.append((r, "I", i))
            rank += [(r, "W", i - r)] if i >= r else []
            rank += [(r, "F", i + ahead)] if i + ahead < microbatches else []
        rank += [(r, "W", i) for i in range(max(0, microbatches - r), microbatches)]
        found.append(rank)
    return _made("zb-h1", found)


@typed_errors
def zb_v(ranks: int, microbatches: int) -> Schedule:
    """Two stages on each rank, placed as a V: r and 2p-1-r, so that the last stage is on the rank of the first.

    The order follows from a simulation in which F, I and W take one unit of time each. A rank that is free takes what
    is ready, first the forward pass of its second stage, then I, then the forward pass of its first stage unless it
    holds 2p activations, then W. Source of the placement: Qi et al., *Zero bubble pipeline parallelism*, ICLR 2024,
    section 6.

    Examples
    --------
    >>> print(zb_v(2, 2))
    0F0 0F1 3F0 3I0 3F1 3I1 0I0 3W0 0I1 3W1 0W0 0W1
    1F0 2F0 1F1 2F1 2I0 1I0 2I1 1I1 2W0 2W1 1W0 1W1
    """
    _check_numbers(ranks=ranks, microbatches=microbatches)
    stages = 2 * ranks
    next_of = {(kind, stage): 0 for kind in "FIW" for stage in range(stages)}
    done: set[tuple[int, str, int]] = set()
    found: list[list[tuple[int, str, int]]] = [[] for _ in range(ranks)]

    def is_ready(stage: int, kind: str, i: int) -> bool:
        if kind == "W":
            return i < next_of["I", stage]
        if kind == "F":
            return i < microbatches and (stage == 0 or (stage - 1, "F", i) in done)
        return ((stage, "F", i) if stage == stages - 1 else (stage + 1, "I", i)) in done

    def choice(r: int) -> tuple[int, str, int] | None:
        first, second = r, stages - 1 - r
        order = ((second, "F"), (first, "I"), (second, "I"), (first, "F"), (second, "W"), (first, "W"))
        for stage, kind in order:
            i = next_of[kind, stage]
            held = sum(next_of["F", s] - next_of["W", s] for s in (first, second))
            if is_ready(stage, kind, i) and (kind != "F" or held < stages):
                return stage, kind, i
        return None

    while any(next_of["W", stage] < microbatches for stage in range(stages)):
        chosen = [(r, a) for r in range(ranks) if (a := choice(r)) is not None]
        for r, (stage, kind, i) in chosen:  # after all ranks have chosen: the results are ready one unit later
            next_of[kind, stage] = i + 1
            done.add((stage, kind, i))
            found[r].append((stage, kind, i))
    return _made("zb-v", found)


SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved, "zb-h1": zb_h1, "zb-v": zb_v}
"""The schedules by name: functions of the numbers of ranks and of microbatches."""


def make_schedule(schedule: str | Schedule, ranks: int, microbatches: int, chunks: int | None = None) -> Schedule:
    """A schedule by its name, or the schedule itself if it is for these numbers.

    Parameters
    ----------
    schedule : str or Schedule
        One of `SCHEDULES`, a text with a line of actions for each rank, or a schedule.
    ranks, microbatches : int
    chunks : int, optional
        The stages on each rank of an interleaved schedule, by default 2.

    Raises
    ------
    OptionError
        The name is unknown, a number is less than 1, or the schedule is for other numbers.

    Examples
    --------
    >>> make_schedule("zb-v", 2, 4).placement
    (0, 1, 1, 0)
    """
    _check_numbers(microbatches=microbatches, chunks=1 if chunks is None else chunks)
    if isinstance(schedule, str) and _ACTION.match(schedule.strip()):
        schedule = Schedule.parse(schedule)
    if isinstance(schedule, str):
        key = schedule.lower().replace("_", "-")
        if key not in SCHEDULES:
            raise OptionError(f"schedule={schedule!r} was given; needed: one of {', '.join(SCHEDULES)}, or a Schedule")
        if key == "interleaved":
            return interleaved(ranks, microbatches, 2 if chunks is None else chunks)
        if chunks is not None:
            raise OptionError(
                f"chunks={chunks} was given with schedule={schedule!r}, whose number of stages is fixed; needed: "
                "schedule='interleaved', or no chunks"
            )
        return SCHEDULES[key](ranks, microbatches)
    if not isinstance(schedule, Schedule):
        raise OptionError(f"schedule={schedule!r} was given; needed: a name, or a Schedule")
    if schedule.ranks != ranks:
        raise OptionError(
            f"schedule {schedule.name!r} is for {_count(schedule.ranks, 'rank')}; the pipeline has {ranks}\n"
            f"  fix: a schedule with {_count(ranks, 'line')} of actions"
        )
    if schedule.microbatches != microbatches:
        raise OptionError(
            f"schedule {schedule.name!r} has {_count(schedule.microbatches, 'microbatch')}; the pipeline has "
            f"microbatches={microbatches}\n  fix: microbatches={schedule.microbatches}"
        )
    return schedule


def _count(n: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{n} {what}{plural if n != 1 else ''}"
