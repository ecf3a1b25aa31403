"""Optimizers, clipping and mixed precision on a device: the CPU's values, and only the reads that the design states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import nn, optim

from ..arrays.devices import DEVICES, Device

STEPS = 3
X = numpy.random.default_rng(0).standard_normal((6, 4)).astype("float32")
LABELS = numpy.arange(6) % 3


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Any:
    with request.param.as_cuda():
        yield request.param


def model(dtype: Any = "float32") -> nn.Module:
    ag.random.seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype=dtype)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda ps: optim.SGD(ps, lr=0.1),
    "SGD, momentum": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9),
    "SGD, all": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD, Nesterov": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda ps: optim.Adam(ps, lr=0.01, weight_decay=0.1),
    "AdamW": lambda ps: optim.AdamW(ps, lr=0.01),
    "Adagrad": lambda ps: optim.Adagrad(ps, lr=0.1, initial_accumulator_value=0.1),
    "RMSprop": lambda ps: optim.RMSprop(ps, lr=0.01, momentum=0.9, centered=True),
    "LARS": lambda ps: optim.LARS(ps, lr=0.1),
    "LAMB": lambda ps: optim.LAMB(ps, lr=0.01),
    "a schedule": lambda ps: optim.AdamW(ps, lr=optim.schedules.cosine_annealing_lr(0.01, 10)),
    "groups": lambda ps: optim.AdamW([{"params": ps[:2], "lr": 0.1}, {"params": ps[2:], "weight_decay": 0.0}], lr=0.01),
}


def train(m: nn.Module, opt: Any, x: Any, labels: Any, before: Callable[[], Any] = lambda: None) -> list[Any]:
    for _ in range(STEPS):
        with ag.Tape() as tape:
            loss = nn.cross_entropy(m(x), labels)
        tape.backward(loss)
        before()
        opt.step()
        opt.zero_grad()
    return list(m.parameters())


def same(there: Device, found: list[Any], expected: list[Any], rtol: float = 1e-4) -> None:
    for a, b in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(there.values(a), b.array, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, there: Device) -> None:
    make = OPTIMIZERS[name]
    on_host = model()
    expected = train(on_host, make(on_host.parameters()), X, LABELS)
    m = model().to(device="cuda")
    opt, x, labels = make(m.parameters()), there.move(X), there.move(LABELS)
    with there.without_crossings():
        found = train(m, opt, x, labels)
    same(there, found, expected)
    assert all(type(s) is type(m[0].weight.array) for each in opt.state_lists() for s in each
               if hasattr(s, "dtype"))  # fmt: skip


CLIPS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "norm": (lambda ps: optim.clip_grad_norm_(ps, 0.1), 1),
    "largest": (lambda ps: optim.clip_grad_norm_(ps, 0.1, float("inf")), 1),
    "norm of order 1": (lambda ps: optim.clip_grad_norm_(ps, 0.1, 1.0), 1),
    "values": (lambda ps: optim.clip_grad_value_(ps, 0.01), 0),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clipping_reads_one_number_a_step(name: str, there: Device) -> None:
    clip, reads = CLIPS[name]
    on_host = model()
    expected = train(on_host, optim.SGD(on_host.parameters(), lr=0.1), X, LABELS, lambda: clip(on_host.parameters()))
    m = model().to(device="cuda")
    opt, x, labels = optim.SGD(m.parameters(), lr=0.1), there.move(X), there.move(LABELS)
    with there.without_crossings(to_host=reads * STEPS):
        found = train(m, opt, x, labels, lambda: clip(m.parameters()))
    same(there, found, expected)


def scaled(m: nn.Module, opt: Any, x: Any, labels: Any) -> list[Any]:
    for step in range(STEPS):
        with ag.Tape() as tape:
            loss = opt.scale(nn.cross_entropy(m(x), labels) * (1e6 if step == 1 else 1.0))
        tape.backward(loss)
        assert opt.step() == (step != 1)
    return list(m.parameters())


def test_master_weights_read_one_boolean_a_step(there: Device) -> None:
    on_host = model("float16")
    half = X.astype("float16")
    expected = scaled(on_host, optim.MasterWeights(optim.AdamW, on_host.parameters()), half, LABELS)
    m = model("float16").to(device="cuda")
    opt, x, labels = optim.MasterWeights(optim.AdamW, m.parameters()), there.move(half), there.move(LABELS)
    with numpy.errstate(over="ignore", invalid="ignore"), there.without_crossings(to_host=STEPS):
        found = scaled(m, opt, x, labels)
    same(there, found, expected, rtol=2e-3)
    assert all(m.array.dtype == numpy.float32 for m in opt.parameters) and opt.skipped == 1


def test_state_that_was_saved_on_a_device_continues_on_the_host_and_back(there: Device) -> None:
    m = model().to(device="cuda")
    opt = optim.AdamW(m.parameters(), lr=0.01)
    train(m, opt, there.move(X), there.move(LABELS))
    saved, weights = opt.state_dict(), m.state_dict()
    assert all(isinstance(a, numpy.ndarray) for name in ("first", "second") for a in saved[name])
    on_host = model()
    on_host.load_state_dict(weights)
    other = optim.AdamW(on_host.parameters(), lr=0.01)
    other.load_state_dict(saved)
    expected = train(on_host, other, X, LABELS)
    again = model().to(device="cuda")
    again.load_state_dict(weights)
    third = optim.AdamW(again.parameters(), lr=0.01)
    third.load_state_dict(saved)
    same(there, train(again, third, there.move(X), there.move(LABELS)), expected)


def test_state_elsewhere_is_an_error_with_its_fix(there: Device) -> None:
    m = model()
    opt = optim.AdamW(m.parameters(), lr=0.01)
    train(m, opt, X, LABELS)
    m.to(device="cuda")
    x, labels = there.move(X), there.move(LABELS)
    with pytest.raises(ag.DeviceError, match="'first' of earlier steps on cpu") as error:
        train(m, opt, x, labels)
    assert "load_state_dict" in str(error.value)
    opt.zero_grad()
    opt.load_state_dict(opt.state_dict())
    train(m, opt, x, labels)
    m.to(device="cpu")
    with pytest.raises(ag.DeviceError, match="on cpu, and its 'first' of earlier steps on cuda:0"):
        train(m, opt, X, LABELS)


def test_a_gradient_elsewhere_is_an_error(there: Device) -> None:
    w = ag.Parameter([1.0, 2.0], name="w", device="cuda")
    with pytest.raises(ag.DeviceError, match="w: float64.2. on cuda:0, gradient: float64.2. on cpu"):
        w.grad = numpy.ones(2)
    w._grad = ag.Tensor(numpy.ones(2))
    with pytest.raises(ag.DeviceError, match="step"):
        optim.SGD([w], lr=0.1).step()
