"""Clipping of gradients in captured steps: it is compiled with the rest of the step, and has the bits of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim


class Job:
    """A step that clips, and what it has left: two of them are the captured one and the one as it is."""

    def __init__(self, clip: Callable[[Any], Any], dtype: str = "float32"):
        ag.random.seed(3)
        self.model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        for p in self.model.parameters():
            p.data = p.data.astype(dtype)
        self.unused = ag.Parameter(np.ones(2, dtype))
        self.parameters = [*self.model.parameters(), self.unused]
        self.optimizer, self.clip = optim.SGD(self.parameters, lr=0.1, momentum=0.5), clip

    def step(self, x: Any) -> Any:
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = (self.model(x) ** 2).sum()
        tape.backward(loss)
        found = self.clip(self.parameters)
        self.optimizer.step()
        return loss, found

    def left(self) -> list[Any]:
        arrays = [x for p in self.parameters for x in (p.data, p.grad)]
        return [None if x is None else np.asarray(getattr(x, "array", x)).tobytes() for x in arrays]


CLIPS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda ps: optim.clip_grad_norm_(ps, 0.5),
    "norm that is not reached": lambda ps: optim.clip_grad_norm_(ps, 1e6),
    "norm of order 1": lambda ps: optim.clip_grad_norm_(ps, 0.5, 1.0),
    "norm of order 3": lambda ps: optim.clip_grad_norm_(ps, 0.5, 3),
    "largest": lambda ps: optim.clip_grad_norm_(ps, 0.5, math.inf),
    "elements": lambda ps: optim.clip_grad_value_(ps, 0.1),
    "elements, then norm": lambda ps: (optim.clip_grad_value_(ps, 0.1), optim.clip_grad_norm_(ps, 0.3))[1],
    "two groups": lambda ps: (optim.clip_grad_norm_(ps[:2], 0.1), optim.clip_grad_norm_(ps[2:], 0.2))[0],
    "one parameter": lambda ps: optim.clip_grad_norm_(ps[0], 0.01),
    "none that has a gradient": lambda ps: optim.clip_grad_norm_(ps[-1], 0.01),
    "a norm of the program": lambda ps: optim.clip_grad_norm_(ps, 0.5, norm=optim.global_norm),
}
SCALES = (1.0, 3.0, 1e-3, 0.0, 1e-30, 1e-170, 1e30, math.inf, math.nan)


def batches(dtype: str) -> list[Any]:
    rng = np.random.default_rng(0)
    base = [rng.standard_normal((6, 5)) for _ in range(6)]
    return [(x * scale).astype(dtype) for scale in SCALES[:3] for x in base] + [
        (base[0] * scale).astype(dtype) for scale in SCALES[3:]
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_the_bits_are_those_of_the_step(clip: str, dtype: str) -> None:
    plain, captured = Job(CLIPS[clip], dtype), Job(CLIPS[clip], dtype)
    step = ag.capture(captured.step)
    for x in batches(dtype):
        loss, norm = plain.step(x)
        other, found = step(x)
        assert loss.numpy().tobytes() == other.numpy().tobytes()
        if norm is not None and step.is_captured:
            assert np.float64(norm).tobytes() == np.float64(np.asarray(getattr(found, "array", found))).tobytes()
        assert plain.left() == captured.left()
    assert step.is_captured and step.replays >= 16
    whys = [line for line in str(step).splitlines() if "stays a call of Python" in line]
    if clip != "a norm of the program":
        is_of_order_2 = "order" not in clip and clip != "largest"
        assert all("_total_and_factor" in line and not is_of_order_2 for line in whys), whys


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_with_copies(ranks: int) -> None:
    def program(is_captured: bool) -> list[Any]:
        with cc.Mesh(dp=-1) as mesh:
            job = Job(CLIPS["norm"])
            rank = int(mesh.ranks.rank)

            def step(x: Any) -> Any:
                job.optimizer.zero_grad()
                with ag.Tape() as tape:
                    entered = [cc.cast(p, "dp", to=cc.R) for p in job.parameters[:2]]
                    y = x @ entered[0] + entered[1]
                    loss = cc.all_reduce((y * y).sum(), "dp", to=cc.I)
                tape.backward(loss)
                norm = job.clip(job.parameters)
                job.optimizer.step()
                return loss, norm

            run: Any = ag.capture(step) if is_captured else step
            for x in batches("float32")[:12]:
                run(ag.tensor(x + rank, layout={"dp": cc.V}))
            assert not is_captured or run.replays == 8
            return job.left()

    assert cc.run(program, ranks, False) == cc.run(program, ranks, True)
