"""Optimizers of parameters on a device: the same numbers as on the host, in few launches, with no copy to the host."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import numpy
import pytest

import autograd as ag
from autograd import optim
from autograd.arrays import runtime_of
from autograd.optim import schedules

from ..arrays.devices import DEVICES
from ..kernels.cuda import on_cpu

pytestmark = pytest.mark.skipif(bool(on_cpu.WHY_NOT), reason=on_cpu.WHY_NOT)
SHAPES = ((3, 5), (7,), (), (2, 2, 2))
MAKERS: dict[str, Any] = {
    "Adam": lambda ps: optim.Adam(ps, 0.01, weight_decay=0.1),
    "AdamW": lambda ps: optim.AdamW(ps, schedules.exponential_lr(0.01, 0.5)),
    "groups": lambda ps: optim.AdamW([{"params": ps[:1], "lr": 0.1}, {"params": ps[1:], "betas": (0.5, 0.6)}], 0.01),
    "SGD": lambda ps: optim.SGD(ps, 0.1),
    "momentum": lambda ps: optim.SGD(ps, 0.1, 0.9, dampening=0.3, weight_decay=0.1),
    "nesterov": lambda ps: optim.SGD([{"params": ps[:2], "lr": 0.2}, {"params": ps[2:]}], 0.1, 0.9, nesterov=True),
    "RMSprop": lambda ps: optim.RMSprop(ps, 0.01),
}


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Any:
    return request.param


def starts(dtype: str) -> list[Any]:
    random = numpy.random.default_rng(0)
    return [numpy.asarray(random.standard_normal(shape), dtype) for shape in SHAPES]


def train(make: Any, there: Any, dtype: str, steps: int = 3) -> tuple[list[Any], Any]:
    """The parameters after some steps; the last one has a gradient at every second step only."""
    random = numpy.random.default_rng(1)
    ps = [ag.Parameter(x if there is None else there.move(x)) for x in starts(dtype)]
    optimizer = make(ps)
    for step in range(steps):
        for p in ps[: len(ps) - step % 2]:
            g = random.standard_normal(p.shape).astype(dtype)
            p.grad = g if there is None else there.move(g)
        optimizer.step()
        optimizer.zero_grad()
    return [p.numpy() if there is None else there.values(p) for p in ps], optimizer


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MAKERS)
def test_the_numbers_are_those_of_the_host(name: str, dtype: str, there: Any) -> None:
    found, optimizer = train(MAKERS[name], there, dtype)
    needed, other = train(MAKERS[name], None, dtype)
    for x, y in zip(found, needed, strict=True):
        numpy.testing.assert_allclose(x, y, rtol=1e-5 if dtype == "float32" else 1e-12)
    assert optimizer.numbers() == other.numbers() and getattr(optimizer, "counts", 0) == getattr(other, "counts", 0)


def test_a_step_of_many_parameters_is_one_launch(there: Any) -> None:
    ps = [ag.Parameter(there.move(numpy.ones(3))) for _ in range(200)]
    runtime: Any = runtime_of(type(ps[0].array))
    for make in (optim.AdamW, lambda ps: optim.SGD(ps, 0.1, 0.9)):
        optimizer = make(ps)
        for _ in range(2):
            for p in ps:
                p.grad = there.move(numpy.ones(3))
            with mock.patch.object(type(runtime), "launch", autospec=True, side_effect=type(runtime).launch) as launch:
                optimizer.step()
            assert launch.call_count == 1
    for p in ps:
        p.grad = there.move(numpy.ones(3))
    with there.without_crossings():  # the tables are on the device
        optimizer.step()


def test_copies_and_states_of_an_optimizer(there: Any) -> None:
    _, optimizer = train(MAKERS["AdamW"], there, "float64")
    other = copy.deepcopy(optimizer)
    third = MAKERS["AdamW"]([ag.Parameter(p.array) for p in optimizer.parameters])
    third.load_state_dict(optimizer.state_dict())
    for each in (optimizer, other, third):
        for p in each.parameters:
            p.grad = there.move(numpy.ones(p.shape))
        each.step()
    for first, *others in zip(*(each.parameters for each in (optimizer, other, third)), strict=True):
        for second in others:
            numpy.testing.assert_array_equal(there.values(first), there.values(second))


def test_a_parameter_that_was_assigned_is_updated(there: Any) -> None:
    """The table of addresses follows the arrays."""
    p = ag.Parameter(there.move(numpy.zeros(4)))
    optimizer = optim.SGD([p], 1.0)
    for _ in range(2):
        p.data = there.move(numpy.full(4, 5.0))
        p.grad = there.move(numpy.ones(4))
        optimizer.step()
        assert there.values(p).tolist() == [4.0] * 4
