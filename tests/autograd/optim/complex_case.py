"""A problem with a complex matrix, a real vector and a complex number, and its twin, which has pairs of real numbers.

An optimizer must treat both alike: that is the formula on the pairs. `torch_reference.py` has the same problem.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
from autograd import nn, optim

ROWS = 12
_rng = numpy.random.default_rng(46)


def draw(*shape: int, rng: numpy.random.Generator = _rng) -> Any:
    """Standard normal complex numbers."""
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


X, Y = 0.4 * draw(ROWS, 3), draw(ROWS, 2)
START = draw(3, 2), 1 + _rng.standard_normal(2), numpy.array(0.5 - 0.25j)
STEPS = 60

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda ps: optim.SGD(ps, lr=0.05, weight_decay=0.1),
    "SGD, momentum": lambda ps: optim.SGD(ps, lr=0.02, momentum=0.9),  # the small parameters together
    "SGD, Nesterov": lambda ps: optim.SGD(ps, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, dampening": lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9, dampening=0.5),
    "Adam": lambda ps: optim.Adam(ps, lr=0.05, weight_decay=0.1),
    "Adam, amsgrad": lambda ps: optim.Adam(ps, lr=0.05, betas=(0.8, 0.6), amsgrad=True),
    "AdamW": lambda ps: optim.AdamW(ps, lr=0.05),
    "Adagrad": lambda ps: optim.Adagrad(ps, lr=0.2, lr_decay=0.01, initial_accumulator_value=0.1),
    "RMSprop": lambda ps: optim.RMSprop(ps, lr=0.02),
    "RMSprop, centered": lambda ps: optim.RMSprop(ps, lr=0.01, centered=True, momentum=0.3, weight_decay=0.1),
    "LARS": lambda ps: optim.LARS(ps, lr=2.0, trust=0.01),
    "LAMB": lambda ps: optim.LAMB(ps, lr=0.02),
    "groups": lambda ps: optim.AdamW([{"params": ps[:2], "lr": 0.1}, {"params": ps[2:], "weight_decay": 0.0}], lr=0.01),
    "a schedule": lambda ps: optim.Adam(ps, lr=optim.schedules.cosine_annealing_lr(0.1, 40)),
}


class Mixed(nn.Module):
    def __init__(self, dtype: Any = complex, start: Any = START):
        w, b, z = start
        real = numpy.zeros((), dtype).real.dtype
        self.w, self.b, self.z = (ag.Parameter(x.astype(d)) for x, d in ((w, dtype), (b, real), (z, dtype)))

    def forward(self, x: Any) -> Any:
        return x @ self.w * self.b + self.z

    def squares(self, x: Any, y: Any) -> Any:
        return (np.abs(self(x) - y) ** 2).sum()

    def values(self) -> list[Any]:
        return [p.numpy() for p in self.parameters()]


class Twin(nn.Module):
    """The same with pairs of real numbers, in real arithmetic."""

    def __init__(self, start: Any = START):
        w, b, z = (numpy.array(x) for x in start)
        self.w, self.b, self.z = ag.Parameter(pairs(w)), ag.Parameter(b), ag.Parameter(pairs(z))

    def forward(self, x: Any) -> Any:
        real = x.real @ self.w[..., 0] - x.imag @ self.w[..., 1]
        imag = x.real @ self.w[..., 1] + x.imag @ self.w[..., 0]
        return real * self.b + self.z[0], imag * self.b + self.z[1]

    def squares(self, x: Any, y: Any) -> Any:
        real, imag = self(x)
        return ((real - y.real) ** 2).sum() + ((imag - y.imag) ** 2).sum()

    def values(self) -> list[Any]:
        w, b, z = (p.numpy() for p in self.parameters())
        return [w @ UNIT, b, z @ UNIT]


UNIT = numpy.array([1, 1j])


def pairs(x: Any) -> Any:
    """The real and the imaginary parts in a last dimension."""
    return numpy.stack([x.real, x.imag], -1)


def train(
    model: Any, make: Callable[[Any], Any], steps: int = STEPS, clip: Callable[[Any], Any] = lambda ps: None,
    each: Callable[[int, Any, Any], Any] = lambda k, model, optimizer: (model, optimizer),
) -> list[list[Any]]:  # fmt: skip
    """The values after each step; `each` may replace the model and the optimizer before a step."""
    optimizer, found = make(model.parameters()), []
    for k in range(steps):
        model, optimizer = each(k, model, optimizer)
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = model.squares(X, Y) / ROWS
        tape.backward(loss)
        clip(model.parameters())
        optimizer.step()
        found.append([numpy.array(x) for x in model.values()])
    return found


def assert_close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Assert that the values of all steps are equal, relative to the norm of each."""
    assert len(found) == len(expected)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            off, scale = numpy.linalg.norm(a - b), max(float(numpy.linalg.norm(b)), 1e-3)
            assert off <= tolerance * scale, f"parameter {i} after step {step}: off by {off:.3g} of {scale:.3g}"
