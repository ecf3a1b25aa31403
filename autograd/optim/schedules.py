"""Learning-rate schedules: functions from the number of steps taken so far to the learning rate.

Give one to an optimizer as `lr`:

    opt = optim.AdamW(parameters, lr=schedules.warmup_cosine(3e-4, warmup=100, total=10_000))

Names and rates are those of torch's schedulers, stepped once per optimizer step. A schedule has no state, so a run that
resumes at step n needs nothing but n.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from ..errors import OptionError
from .hyperparameters import check_count, check_numbers

__all__ = [
    "Schedule", "constant_lr", "cosine_annealing_lr", "exponential_lr", "linear_lr", "multi_step_lr", "sequential_lr",
    "step_lr", "warmup_cosine",
]  # fmt: skip

Schedule = Callable[[int], float]


def constant_lr(lr: float) -> Schedule:
    """Return a schedule with the same rate at every step."""
    check_numbers("constant_lr", lr=lr)
    return lambda step: lr


def linear_lr(lr: float, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5) -> Schedule:
    """Return a linear schedule from ``start_factor * lr`` to ``end_factor * lr`` in `total_iters` steps, then constant.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [schedules.linear_lr(1.0, 0.0, 1.0, 4)(step) for step in range(6)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """
    check_numbers("linear_lr", lr=lr, start_factor=start_factor, end_factor=end_factor)
    check_count("linear_lr", 1, total_iters=total_iters)
    return lambda step: lr * (start_factor + (end_factor - start_factor) * min(step, total_iters) / total_iters)


def cosine_annealing_lr(lr: float, T_max: int, eta_min: float = 0.0) -> Schedule:
    """Return a cosine schedule from `lr` down to `eta_min` in `T_max` steps, and up again after that.

    Source: Loshchilov & Hutter 2017, equation 5.
    """
    check_numbers("cosine_annealing_lr", lr=lr, eta_min=eta_min)
    check_count("cosine_annealing_lr", 1, T_max=T_max)
    return lambda step: eta_min + (lr - eta_min) * (1 + math.cos(math.pi * step / T_max)) / 2


def exponential_lr(lr: float, gamma: float) -> Schedule:
    """Return a schedule that multiplies the rate by `gamma` at every step."""
    check_numbers("exponential_lr", lr=lr, gamma=gamma)
    return lambda step: lr * gamma**step


def step_lr(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:
    """Return a schedule that multiplies the rate by `gamma` every `step_size` steps."""
    check_numbers("step_lr", lr=lr, gamma=gamma)
    check_count("step_lr", 1, step_size=step_size)
    return lambda step: lr * gamma ** (step // step_size)


def multi_step_lr(lr: float, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """Return a schedule that multiplies the rate by `gamma` at each milestone, twice where one is listed twice."""
    check_numbers("multi_step_lr", lr=lr, gamma=gamma)
    for milestone in milestones:
        check_count("multi_step_lr", milestone=milestone)
    ordered = sorted(milestones)
    return lambda step: lr * gamma ** bisect_right(ordered, step)


def sequential_lr(schedules: Sequence[Schedule], milestones: Sequence[int]) -> Schedule:
    """Return a schedule that follows several schedules in turn. Each counts steps from the milestone where it begins.

    Raises
    ------
    OptionError
        The milestones are not in order, or not one fewer than the schedules.

    Examples
    --------
    >>> from autograd.optim import schedules as s
    >>> rate = s.sequential_lr([s.linear_lr(1.0, 0.5, 1.0, 2), s.exponential_lr(1.0, 0.5)], [2])
    >>> [rate(step) for step in range(5)]
    [0.5, 0.75, 1.0, 0.5, 0.25]
    """
    if len(schedules) != len(milestones) + 1 or list(milestones) != sorted(milestones):
        raise OptionError(
            f"sequential_lr: {len(schedules)} schedules and milestones {list(milestones)}; needed: one milestone fewer "
            "than schedules, in order"
        )

    def rate(step: int) -> float:
        k = bisect_right(milestones, step)
        return schedules[k](step - (milestones[k - 1] if k else 0))

    return rate


def warmup_cosine(lr: float, warmup: int, total: int, eta_min: float = 0.0) -> Schedule:
    """Return a schedule of linear warm-up, then a cosine down to `eta_min`, then constant.

    The rate is ``lr * (step + 1) / warmup`` in the first `warmup` steps, so that the first is not 0, and reaches
    `eta_min` at step `total`.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [round(schedules.warmup_cosine(1.0, 2, 6)(step), 3) for step in range(8)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    check_numbers("warmup_cosine", lr=lr, eta_min=eta_min)
    check_count("warmup_cosine", warmup=warmup, total=total)
    if not 0 <= warmup < total:
        raise OptionError(f"warmup_cosine: warmup={warmup}, total={total}; needed: 0 <= warmup < total")

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / warmup
        return eta_min + (lr - eta_min) * (1 + math.cos(math.pi * min((step - warmup) / (total - warmup), 1.0))) / 2

    return rate
