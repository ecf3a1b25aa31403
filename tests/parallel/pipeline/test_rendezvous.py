"""Sends that return only after their receive has been started: every schedule still runs, and to the same result."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd import nn, random
from collectives.transports.threads.communicator import LocalCommunicator
from parallel.pipeline import SCHEDULES, Pipeline


class Synchronous:
    """Makes the numbered sends of threads wait until their receives have been started."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.condition = threading.Condition()
        self.posted: Counter[Any] = Counter()
        self.is_on = False
        self.waited = 0  # the sends that came before their receives
        send, receive = LocalCommunicator._send, LocalCommunicator._next_message
        this = self

        def synchronous(group: Any, content: Any, dst: int, number: int | None = None, text: str = "") -> None:
            if number is not None and this.is_on:
                key = group.name, group.ranks, group.index, dst, number
                with this.condition:
                    this.waited += not this.posted[key]
                    if not this.condition.wait_for(lambda: this.posted[key] > 0, timeout=20):
                        raise AssertionError(f"the receive of message {number} ({text}) is never started")
                    this.posted[key] -= 1
            send(group, content, dst, number, text)

        def started(group: Any, src: int, number: int | None = None, text: str = "") -> Any:
            if number is not None:
                with this.condition:
                    this.posted[group.name, group.ranks, src, group.index, number] += 1
                    this.condition.notify_all()
            return receive(group, src, number, text)

        patch.setattr(LocalCommunicator, "_send", synchronous)
        patch.setattr(LocalCommunicator, "_next_message", started)


def layers() -> list[nn.Module]:
    random.seed(1)
    return [layer for _ in range(4) for layer in (nn.Linear(4, 4, dtype=float), nn.Tanh())]


def run(ranks: int, m: int, schedule: str, synchronous: Synchronous | None) -> Any:
    barrier = threading.Barrier(ranks)

    def program() -> Any:
        with cc.Mesh(pp=ranks):
            model = Pipeline(layers(), lambda y: (y * y).sum(), microbatches=m, schedule=schedule, costs=[1.0] * 8)
            x = np.random.default_rng(0).standard_normal((12, 4))
            model.step(x)  # all shapes are known now
            model.zero_grad()
            barrier.wait(20)
            if synchronous is not None:
                synchronous.is_on = True
            barrier.wait(20)
            loss = model.step(x)
            return loss, {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}

    return cc.run(program, ranks)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("ranks", "m"), [(3, 6), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((2, 5), (4, 4), (4, 9), (4, 12)))]
)
def test_synchronous_sends(ranks: int, m: int, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(ranks, m, schedule, None)
    found = run(ranks, m, schedule, Synchronous(monkeypatch))
    for (loss, gradients), (expected_loss, others) in zip(found, expected, strict=True):
        assert loss == expected_loss
        for name, g in gradients.items():
            np.testing.assert_array_equal(g, others[name])


def test_sends_wait_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one receive ahead in place of two, interleaved stages wait for each other, and this is seen."""
    monkeypatch.setattr("parallel.pipeline.schedules.AHEAD", 1)
    synchronous = Synchronous(monkeypatch)
    real = threading.Condition.wait_for
    monkeypatch.setattr(threading.Condition, "wait_for", lambda self, test, timeout=None: real(self, test, 0.5))
    with pytest.raises((AssertionError, cc.RankFailed), match="is never started"):
        run(2, 4, "interleaved", synchronous)
