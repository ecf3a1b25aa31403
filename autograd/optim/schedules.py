"""Learning-rate schedules: functions from the number of steps taken so far to the learning rate.

Give one to an optimizer as `lr`::

    opt = optim.AdamW(parameters, lr=schedules.warmup_cosine(3e-4, warmup=100, total=10_000))

Names and rates are those of torch's schedulers, stepped once per optimizer step. A schedule has no state, so a run that
resumes at step n needs nothing but n. The optimizer's attribute `lr` is the rate of its latest step; a rate that is
assigned to it ends the schedule.

The parameters `lr`, `start_factor`, `gamma`, `eta_min` and the like are numbers that are not negative; `total_iters`,
`T_max`, `step_size` and the like are numbers of steps. A function that makes a schedule raises `ArgumentError` for
something that is no number, and `OptionError` for a number out of range.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec

from ..errors import LayoutError, OptionError, answering, check_callable, typed_errors
from ..layouts.rank_values import rank_axes
from .hyperparameters import check_count, check_numbers

__all__ = [
    "Schedule", "chained_lr", "constant_lr", "cosine_annealing_lr", "cosine_annealing_warm_restarts", "exponential_lr",
    "lambda_lr", "linear_lr", "linear_scaling", "multi_step_lr", "one_cycle_lr", "sequential_lr", "step_lr",
    "warmup_cosine",
]  # fmt: skip

Schedule = Callable[[int], float]
"""The type of a schedule: a function from the number of steps taken so far to the learning rate."""

Arguments = ParamSpec("Arguments")


def _typed(make: Callable[Arguments, Schedule]) -> Callable[Arguments, Schedule]:
    """Give typed errors to a function that returns a schedule, and to the schedule."""

    @typed_errors
    @wraps(make)
    def made(*args: Arguments.args, **options: Arguments.kwargs) -> Schedule:
        rate = make(*args, **options)
        if rate.__module__ != __name__:  # the program's own, which `after` of `linear_scaling` has returned
            return rate
        rate.__qualname__ = f"the schedule of {make.__name__}: rate"
        return typed_errors(rate)

    return made


@_typed
def constant_lr(lr: float) -> Schedule:
    """Return a schedule with the same rate at every step.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> schedules.constant_lr(0.1)(100)
    0.1
    """
    check_numbers("constant_lr", lr=lr)
    return lambda step: lr


@_typed
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


@_typed
def linear_scaling(
    base_lr: float, base_batch: int, batch: int, warmup_steps: int = 0, *,
    after: Callable[[float], Schedule] | None = None,
) -> Schedule:  # fmt: skip
    """Return the schedule of the linear scaling rule: a rate in proportion to the batch, reached by a gradual warm-up.

    The rate grows linearly from `base_lr` at the first step to ``base_lr * batch / base_batch`` after `warmup_steps`.

    Parameters
    ----------
    base_lr : float
        The rate that is right for `base_batch`.
    base_batch, batch : int
        Examples in a global batch: those for which `base_lr` was found, and those of this run, over all ranks. The loss
        is the mean over the batch.
    warmup_steps : int
        The number of steps from the first rate to the full one.
    after : callable, optional
        Makes the schedule that follows the warm-up from the full rate; its steps count from the end of the warm-up. By
        default the rate is constant.

    Raises
    ------
    LayoutError
        A number depends on the rank: `batch` is the global one.

    Notes
    -----
    Source: Goyal et al. 2017, section 2.1 (the rule) and 2.2 (gradual warm-up); they warm up for 5 epochs. The rule is
    for SGD. It holds while the batch is smaller than the gradient noise scale: see `parallel.NoiseScale`.

    Examples
    --------
    >>> from autograd.optim import schedules as s
    >>> rate = s.linear_scaling(0.1, base_batch=32, batch=128, warmup_steps=3)
    >>> [round(rate(step), 3) for step in range(5)]
    [0.1, 0.2, 0.3, 0.4, 0.4]
    >>> rate = s.linear_scaling(0.1, 32, 128, 3, after=lambda lr: s.cosine_annealing_lr(lr, 4))
    >>> [round(rate(step), 3) for step in range(3, 8)]
    [0.4, 0.341, 0.2, 0.059, 0.0]
    """
    for name, number in (("base_batch", base_batch), ("batch", batch)):
        if axes := rank_axes(number):
            raise LayoutError(
                f"linear_scaling({name}={number!r})\n  axis {min(axes)!r}: it depends on the rank; needed: the number "
                "of examples in a global batch, over all ranks"
            )
    check_numbers("linear_scaling", base_lr=base_lr)
    check_count("linear_scaling", 1, base_batch=base_batch, batch=batch)
    check_count("linear_scaling", warmup_steps=warmup_steps)
    full = base_lr * int(batch) / int(base_batch)
    then = constant_lr(full) if after is None else after(full)

    def rate(step: int) -> float:
        return base_lr + (full - base_lr) * step / warmup_steps if step < warmup_steps else then(step - warmup_steps)

    return rate


@_typed
def cosine_annealing_lr(lr: float, T_max: int, eta_min: float = 0.0) -> Schedule:
    """Return a cosine schedule from `lr` down to `eta_min` in `T_max` steps, and up again after that.

    Source: Loshchilov & Hutter 2017, equation 5.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [round(schedules.cosine_annealing_lr(1.0, 4)(step), 3) for step in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    check_numbers("cosine_annealing_lr", lr=lr, eta_min=eta_min)
    check_count("cosine_annealing_lr", 1, T_max=T_max)
    return lambda step: eta_min + (lr - eta_min) * (1 + math.cos(math.pi * step / T_max)) / 2


@_typed
def exponential_lr(lr: float, gamma: float) -> Schedule:
    """Return a schedule that multiplies the rate by `gamma` at every step.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [schedules.exponential_lr(1.0, 0.5)(step) for step in range(3)]
    [1.0, 0.5, 0.25]
    """
    check_numbers("exponential_lr", lr=lr, gamma=gamma)
    return lambda step: lr * gamma**step


@_typed
def step_lr(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:
    """Return a schedule that multiplies the rate by `gamma` every `step_size` steps.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [schedules.step_lr(1.0, 2, 0.5)(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    check_numbers("step_lr", lr=lr, gamma=gamma)
    check_count("step_lr", 1, step_size=step_size)
    return lambda step: lr * gamma ** (step // step_size)


@_typed
def multi_step_lr(lr: float, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """Return a schedule that multiplies the rate by `gamma` at each milestone, twice where one is listed twice.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [schedules.multi_step_lr(1.0, [1, 3], 0.5)(step) for step in range(5)]
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """
    check_numbers("multi_step_lr", lr=lr, gamma=gamma)
    for milestone in milestones:
        check_count("multi_step_lr", milestone=milestone)
    ordered = sorted(milestones)
    return lambda step: lr * gamma ** bisect_right(ordered, step)


@_typed
def sequential_lr(schedulers: Sequence[Schedule], milestones: Sequence[int]) -> Schedule:
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
    if len(schedulers) != len(milestones) + 1 or list(milestones) != sorted(milestones):
        raise OptionError(
            f"sequential_lr: {len(schedulers)} schedules and milestones {list(milestones)}; needed: one milestone "
            "fewer than schedules, in order"
        )
    for scheduler in schedulers:
        check_callable(scheduler, "sequential_lr")

    def rate(step: int) -> float:
        k = bisect_right(milestones, step)
        return schedulers[k](step - (milestones[k - 1] if k else 0))

    return rate


@_typed
def chained_lr(lr: float, schedulers: Sequence[Schedule]) -> Schedule:
    """Return a schedule that applies the factors of several schedules, each relative to `lr`, one after another.

    Its rate is ``lr`` times the product of ``schedule(step) / lr``. The schedules are made with the same `lr`.

    Examples
    --------
    >>> from autograd.optim import schedules as s
    >>> rate = s.chained_lr(0.5, [s.linear_lr(0.5, 0.25, 1.0, 3), s.exponential_lr(0.5, 0.5)])
    >>> [rate(step) for step in range(4)]
    [0.125, 0.125, 0.09375, 0.0625]
    """
    check_numbers("chained_lr", lr=lr)
    parts = list(schedulers)
    for part in parts:
        check_callable(part, "chained_lr")
    return lambda step: lr * math.prod(part(step) / lr for part in parts) if lr else 0.0


@_typed
def cosine_annealing_warm_restarts(lr: float, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> Schedule:
    """Return a cosine schedule from `lr` to `eta_min` that starts again after `T_0` steps, then `T_mult` times as many.

    Source: Loshchilov & Hutter 2017, section 3.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [round(schedules.cosine_annealing_warm_restarts(1.0, 2, 2)(step), 3) for step in range(7)]
    [1.0, 0.5, 1.0, 0.854, 0.5, 0.146, 1.0]
    """
    check_numbers("cosine_annealing_warm_restarts", lr=lr, eta_min=eta_min)
    check_count("cosine_annealing_warm_restarts", 1, T_0=T_0, T_mult=T_mult)

    def rate(step: int) -> float:
        length = T_0
        while step >= length:
            step -= length
            length *= T_mult
        return eta_min + (lr - eta_min) * (1 + math.cos(math.pi * step / length)) / 2

    return rate


@_typed
def lambda_lr(lr: float, lr_lambda: Callable[[int], float]) -> Schedule:
    """Return a schedule with the rate ``lr * lr_lambda(step)``.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> [schedules.lambda_lr(1.0, lambda step: 1 / (1 + step))(step) for step in (0, 1, 3)]
    [1.0, 0.5, 0.25]
    """
    check_numbers("lambda_lr", lr=lr)
    check_callable(lr_lambda, "lambda_lr")
    return lambda step: lr * lr_lambda(step)


@_typed
def one_cycle_lr(
    max_lr: float,
    total_steps: int,
    *,
    pct_start: float = 0.3,
    anneal_strategy: str = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Return a schedule that rises from ``max_lr / div_factor`` to `max_lr` and falls to a very small rate.

    The rise takes the share `pct_start` of the steps; the last rate is ``max_lr / (div_factor final_div_factor)``. A
    momentum is not changed.

    Parameters
    ----------
    max_lr : float
    total_steps : int
        The steps of the whole cycle; after them the rate stays.
    pct_start : float
        Between 0 and 1.
    anneal_strategy : {"cos", "linear"}
    div_factor, final_div_factor : float

    Notes
    -----
    Source: Smith & Topin 2019, in torch's form with two phases.

    Examples
    --------
    >>> from autograd.optim import schedules
    >>> rate = schedules.one_cycle_lr(1.0, 6, pct_start=0.5, div_factor=10.0)
    >>> [round(rate(step), 3) for step in range(6)]
    [0.1, 0.55, 1.0, 0.75, 0.25, 0.0]
    """
    check_numbers("one_cycle_lr", max_lr=max_lr, div_factor=div_factor, final_div_factor=final_div_factor)
    check_numbers("one_cycle_lr", below=1.0, pct_start=pct_start)
    check_count("one_cycle_lr", 2, total_steps=total_steps)
    if anneal_strategy not in ("cos", "linear") or not div_factor or not final_div_factor:
        raise OptionError(
            f"one_cycle_lr: anneal_strategy={anneal_strategy!r}, div_factor={div_factor}, "
            f"final_div_factor={final_div_factor}; needed: 'cos' or 'linear', and positive factors"
        )
    first = max_lr / div_factor
    turn, end = float(pct_start * total_steps) - 1, total_steps - 1

    def between(a: float, b: float, share: float) -> float:
        return b + (a - b) / 2 * (1 + math.cos(math.pi * share)) if anneal_strategy == "cos" else a + (b - a) * share

    def rate(step: int) -> float:
        step = min(step, end)
        if step <= turn:
            return between(first, max_lr, step / turn if turn > 0 else 1.0)
        return between(max_lr, first / final_div_factor, (step - turn) / (end - turn))

    return rate


@_typed
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

globals()["__getattr__"] = answering(__name__)
