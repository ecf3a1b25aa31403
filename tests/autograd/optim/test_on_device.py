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
from ..arrays.fake_device import crossings

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
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


@pytest.mark.parametrize("norm_type", [2.0, numpy.inf, 1.0])
def test_clipping(norm_type: float, there: Any) -> None:
    random = numpy.random.default_rng(2)
    gs = [random.standard_normal(shape) for shape in SHAPES]
    host, away = ([ag.Parameter(move(x)) for x in starts("float64")] for move in (numpy.asarray, there.move))
    for ps, move in ((host, numpy.asarray), (away, there.move)):
        for p, g in zip(ps, gs, strict=True):
            p.grad = move(g)
    needed = optim.clip_grad_norm_(host, 0.5, norm_type)
    assert abs(optim.clip_grad_norm_(away, 0.5, norm_type) - needed) < 1e-12 * needed
    for p, q in zip(host, away, strict=True):
        assert p.grad is not None and q.grad is not None
        numpy.testing.assert_allclose(there.values(q.grad), p.grad.numpy(), rtol=1e-12)


MIXED = {
    "AdamW": lambda ps, scaler: optim.MasterWeights(optim.AdamW, ps, 0.01, scaler=scaler),
    "SGD": lambda ps, scaler: optim.MasterWeights(optim.SGD, ps, 0.1, 0.9, scaler=scaler),
    "RMSprop": lambda ps, scaler: optim.MasterWeights(optim.RMSprop, ps, 0.01, scaler=scaler),
}


def train_mixed(name: str, there: Any, clip: bool) -> tuple[list[Any], Any]:
    """Five steps of float16 parameters; the gradients of the third one overflow."""
    random = numpy.random.default_rng(3)
    move = numpy.asarray if there is None else there.move
    ps = [ag.Parameter(move(x.astype("float16"))) for x in starts("float32") if x.shape]
    scaler = optim.LossScaler(init_scale=8.0)
    optimizer = MIXED[name](ps, scaler)
    for step in range(5):
        for p in ps:
            g = (random.standard_normal(p.shape) * scaler.value).astype("float16")
            if step == 2:
                g.reshape(-1)[-1] = numpy.inf
            p.grad = move(g)
        scaler.was_used = True
        if clip:
            optim.clip_grad_norm_(ps, 0.1)
        optimizer.step()
    found = [*ps, *optimizer.parameters]
    return [p.numpy() if there is None else there.values(p) for p in found], optimizer


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_master_weights(name: str, clip: bool, there: Any) -> None:
    found, optimizer = train_mixed(name, there, clip)
    needed, other = train_mixed(name, None, clip)
    assert optimizer.skipped == other.skipped == 1 and optimizer.scaler.value == other.scaler.value == 4.0
    assert optimizer.steps == other.steps == 4
    for x, y in zip(found, needed, strict=True):
        numpy.testing.assert_allclose(x, y, rtol=2e-3 if x.dtype == "float16" else 1e-5)
    half = len(found) // 2
    for p, master in zip(found[:half], found[half:], strict=True):
        numpy.testing.assert_array_equal(p, master.astype("float16"))


def test_a_step_of_master_weights_reads_the_host_once(there: Any) -> None:
    ps = [ag.Parameter(there.move(numpy.ones(3, "float16"))) for _ in range(50)]
    optimizer = optim.MasterWeights(optim.AdamW, ps)
    runtime: Any = runtime_of(type(ps[0].array))
    for _ in range(2):
        for p in ps:
            p.grad = there.move(numpy.ones(3, "float16"))
        optimizer.scaler.was_used = True
        before = dict(crossings)
        with mock.patch.object(type(runtime), "launch", autospec=True, side_effect=type(runtime).launch) as launch:
            optimizer.step()
    assert launch.call_count == 3  # the sums of blocks, their sum, and the update
    if there.name == "fake":
        assert crossings == {"to host": before["to host"] + 1, "from host": before["from host"]}


def test_a_weight_beyond_float16_is_found_one_step_later(there: Any) -> None:
    p = ag.Parameter(there.move(numpy.full(5, 6e4, "float16")))
    optimizer = optim.MasterWeights(optim.SGD, [p], 1e4)
    for step in range(2):
        p.grad = there.move(numpy.full(5, -optimizer.scaler.value, "float16"))
        optimizer.scaler.was_used = True
        if step:
            with pytest.raises(ag.errors.OptionError, match="beyond the largest float16"):
                optimizer.step()
        else:
            optimizer.step()
