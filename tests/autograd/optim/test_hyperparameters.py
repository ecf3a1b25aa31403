"""Hyperparameters that are NaN, infinite, negative or out of range, and parameters that are given twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import optim
from autograd.optim import schedules

NAN, INF = float("nan"), float("inf")
WRONG: dict[type, dict[str, list[Any]]] = {
    optim.SGD: {"lr": [NAN, INF, -0.1, None, "x", 1j, True], "momentum": [NAN, -0.5, "x"], "weight_decay": [NAN, -1.0],
                "dampening": [NAN, None], "digest_every": [-1, 1.5, None]},
    optim.Adam: {"lr": [NAN, -1.0], "betas": [(1.0, 0.9), (0.9, -0.1), (NAN, 0.9), 0.9, (0.9,), None, (0.9, "x")],
                 "eps": [NAN, -1e-8, None], "weight_decay": [NAN, -1.0]},
    optim.AdamW: {"lr": [NAN, -1.0], "betas": [(0.9, 1.0)], "eps": [-1.0], "weight_decay": [INF]},
    optim.LARS: {"lr": [NAN], "momentum": [-1.0], "weight_decay": [NAN], "trust": [-1.0], "eps": [NAN], "norm": [3]},
    optim.LAMB: {"lr": [-1.0], "betas": [(2.0, 0.9)], "eps": [NAN], "weight_decay": [-1.0], "norm": ["x"]},
}  # fmt: skip


@pytest.mark.parametrize(
    "make, name, value", [(m, name, v) for m, words in WRONG.items() for name, values in words.items() for v in values]
)
def test_a_wrong_hyperparameter_is_refused_by_name(make: Any, name: str, value: Any) -> None:
    words = {"lr": 0.1, name: value}
    with pytest.raises(ag.RingtapeError, match=name) as error:
        make([ag.Parameter([1.0])], **words)
    assert isinstance(error.value, ValueError | TypeError)


@pytest.mark.parametrize("make", WRONG)
def test_a_parameter_given_twice_is_refused(make: Any) -> None:
    w, b = ag.Parameter([1.0], name="w"), ag.Parameter([1.0])
    with pytest.raises(ag.OptionError, match="w was given twice, at 0 and 2"):
        make([w, b, w], lr=0.1)


@pytest.mark.parametrize("parameters", [None, 3, [1.0], ["w"], ag.Parameter([1.0])])
def test_what_is_no_list_of_parameters_is_refused(parameters: Any) -> None:
    with pytest.raises(ag.RingtapeError, match="Parameters"):
        optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("rate", [NAN, INF, -1.0])
def test_a_rate_that_becomes_wrong_is_refused_at_the_step(rate: float) -> None:
    w = ag.Parameter([1.0])
    for optimizer in (optim.SGD([w], lr=0.1), optim.SGD([w], lr=lambda step: 0.1 if not step else rate)):
        w.grad = None
        w.accumulate(numpy.ones(1))
        optimizer.step()
        before = w.numpy().copy()
        optimizer.lr = rate
        with pytest.raises(ag.OptionError, match="lr="):
            optimizer.step()
        assert w.numpy().tolist() == before.tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda: schedules.constant_lr(NAN),
        lambda: schedules.linear_lr(-1.0),
        lambda: schedules.linear_lr(1.0, total_iters=0),
        lambda: schedules.linear_lr(1.0, total_iters=2.5),  # type: ignore[arg-type]
        lambda: schedules.cosine_annealing_lr(NAN, 3),
        lambda: schedules.cosine_annealing_lr(1.0, 0),
        lambda: schedules.exponential_lr(1.0, NAN),
        lambda: schedules.step_lr(1.0, 0),
        lambda: schedules.multi_step_lr(1.0, [-1]),
        lambda: schedules.warmup_cosine(1.0, 5, 3),
        lambda: schedules.warmup_cosine(INF, 1, 3),
        lambda: optim.clip_grad_norm_([ag.Parameter([1.0])], NAN),
        lambda: optim.clip_grad_norm_([ag.Parameter([1.0])], "x"),  # type: ignore[arg-type]
        lambda: optim.clip_grad_norm_(None, 1.0),  # type: ignore[arg-type]
        lambda: optim.clip_grad_norm_([1.0], 1.0),  # type: ignore[list-item]
        lambda: optim.clip_grad_value_([ag.Parameter([1.0])], -1.0),
        lambda: optim.clip_grad_value_([ag.Parameter([1.0])], NAN),
    ],
)
def test_wrong_arguments_of_schedules_and_clipping(call: Callable[[], Any]) -> None:
    with pytest.raises(ag.RingtapeError) as error:
        call()
    assert isinstance(error.value, ValueError | TypeError)
