"""Data-parallel sweeps on device arrays: buckets are summed on streams of their own, while the sweep goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
import parallel
from autograd import nn
from collectives.transports.device import pinned

from ...autograd.arrays import fake_device, fake_streams
from ...autograd.arrays.fake_device import DeviceArray, from_host, to_host
from ...autograd.kernels.cuda import on_cpu

pytestmark = pytest.mark.skipif(bool(on_cpu.WHY_NOT), reason=on_cpu.WHY_NOT)


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pinned, "CHUNK_BYTES", 64)
    monkeypatch.setattr(fake_device, "RUNTIME", fake_device.FakeRuntime())
    yield


def gradients(move: Any) -> list[np.ndarray]:
    """The gradients of three sweeps, each on rows of its own."""
    found = []
    with cc.Mesh(dp=2) as mesh:
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        rng = np.random.default_rng(0)
        for p in model.parameters():
            p.array = move(rng.standard_normal(p.array.shape).astype(np.float32))
        trained = parallel.DataParallel(model, "dp", bucket_bytes=64)
        rank = int(mesh.axis("dp").rank)
        for step in range(3):
            x = np.random.default_rng([step, rank]).standard_normal((4, 5)).astype(np.float32)
            with ag.Tape() as tape:
                loss = cc.all_reduce((trained(ag.tensor(move(x))) ** 2).sum(), "dp", to=cc.I)
            tape.backward(loss)
            for p in model.parameters():
                g = p.grad.array
                assert type(g) is type(p.array)
                found.append(to_host(g + 0) if isinstance(g, DeviceArray) else g.copy())
                p.grad = None
    return found


def equal_on_the_device(mode: str) -> None:
    expected = cc.run(lambda: gradients(np.array), 2)
    with fake_streams.mode(mode), fake_streams.tracked():
        found = cc.run(lambda: gradients(from_host), 2)
    for of_host, of_device in zip(expected, found, strict=True):
        for a, b in zip(of_host, of_device, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["late", "early"])
def test_gradients_are_those_of_the_host(mode: str) -> None:
    equal_on_the_device(mode)


def test_a_sweep_that_does_not_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    true = fake_streams.FakeStream.wait_event

    def wait_event(self: Any, event: Any) -> None:
        if not self.is_default:
            true(self, event)

    monkeypatch.setattr(fake_streams.FakeStream, "wait_event", wait_event)
    monkeypatch.setattr(fake_streams, "_QUERIES", 1_000_000)  # a copy is as late as somebody waits for it
    with pytest.raises((AssertionError, cc.CommunicationError)):
        equal_on_the_device("late")
