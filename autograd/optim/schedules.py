"""Learning-rate schedules: functions from the count of steps taken to the rate, to be given to an optimizer as `lr`.

    opt = optim.AdamW(parameters, lr=schedules.warmup_cosine(3e-4, warmup=100, total=10_000))

Names are those of torch's schedulers, whose rates they have when those are stepped once a step. A schedule keeps no
state: what goes on from step n asks for step n.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from ..errors import RingtapeError

__all__ = [
    "Schedule", "constant_lr", "cosine_annealing_lr", "exponential_lr", "linear_lr", "multi_step_lr", "sequential_lr",
    "step_lr", "warmup_cosine",
]  # fmt: skip

Schedule = Callable[[int], float]


def _positive(caller: str, **counts: int) -> None:
    for name, n in counts.items():
        if n < 1:
            raise RingtapeError(f"{caller}: {name}={n} was given; needed: at least 1")


def constant_lr(lr: float) -> Schedule:
    """The same rate at every step."""
    return lambda step: lr


def linear_lr(lr: float, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5) -> Schedule:
    """From ``start_factor lr`` to ``end_factor lr`` in `total_iters` steps, then constant.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [schedules.linear_lr(1.0, 0.0, 1.0, 4)(step) for step in range(6)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """
    _positive("linear_lr", total_iters=total_iters)
    return lambda step: lr * (start_factor + (end_factor - start_factor) * min(step, total_iters) / total_iters)


def cosine_annealing_lr(lr: float, T_max: int, eta_min: float = 0.0) -> Schedule:
    """Half a cosine from `lr` to `eta_min` in `T_max` steps, and back (Loshchilov & Hutter 2017, equation 5)."""
    _positive("cosine_annealing_lr", T_max=T_max)
    return lambda step: eta_min + (lr - eta_min) * (1 + math.cos(math.pi * step / T_max)) / 2


def exponential_lr(lr: float, gamma: float) -> Schedule:
    """Times `gamma` at every step."""
    return lambda step: lr * gamma**step


def step_lr(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:
    """Times `gamma` every `step_size` steps."""
    _positive("step_lr", step_size=step_size)
    return lambda step: lr * gamma ** (step // step_size)


def multi_step_lr(lr: float, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """Times `gamma` at each milestone; one that is named twice counts twice."""
    places = sorted(milestones)
    return lambda step: lr * gamma ** bisect_right(places, step)


def sequential_lr(schedules: Sequence[Schedule], milestones: Sequence[int]) -> Schedule:
    """One schedule after the other; each counts its steps from the milestone at which it begins.

    Examples
    --------
    >>> from autograd.optim import schedules as s
    >>> rate = s.sequential_lr([s.linear_lr(1.0, 0.5, 1.0, 2), s.exponential_lr(1.0, 0.5)], [2])
    >>> [rate(step) for step in range(5)]
    [0.5, 0.75, 1.0, 0.5, 0.25]
    """
    if len(schedules) != len(milestones) + 1 or list(milestones) != sorted(milestones):
        raise RingtapeError(
            f"sequential_lr: {len(schedules)} schedules and milestones {list(milestones)}; needed: one milestone less "
            "than schedules, in order"
        )

    def rate(step: int) -> float:
        k = bisect_right(milestones, step)
        return schedules[k](step - (milestones[k - 1] if k else 0))

    return rate


def warmup_cosine(lr: float, warmup: int, total: int, eta_min: float = 0.0) -> Schedule:
    """Straight up to `lr` in `warmup` steps (the first is not 0), half a cosine down to `eta_min` at `total`, constant.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [round(schedules.warmup_cosine(1.0, 2, 6)(step), 3) for step in range(8)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    if not 0 <= warmup < total:
        raise RingtapeError(f"warmup_cosine: warmup={warmup}, total={total}; needed: 0 <= warmup < total")

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / warmup
        return eta_min + (lr - eta_min) * (1 + math.cos(math.pi * min((step - warmup) / (total - warmup), 1.0))) / 2

    return rate
