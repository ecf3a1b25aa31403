"""Optimizers on the host beside ZeRO on a device, and the memory that reports state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import arrays, nn, optim
from collectives import Shard
from parallel import DataParallel, Trainer, memory_of
from parallel.report import StepReport

from ...autograd.arrays import fake_device
from ...autograd.kernels.cuda import on_cpu

pytestmark = pytest.mark.skipif(bool(on_cpu.WHY_NOT), reason=on_cpu.WHY_NOT)
ROWS = numpy.random.default_rng(0).standard_normal((8, 4)).astype("float32")
LABELS = numpy.arange(8) % 3


@pytest.fixture(autouse=True)
def _cuda() -> Iterator[None]:
    with fake_device.as_cuda():
        yield


def model() -> nn.Sequential:
    ag.random.seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 3))


def trained(zero: int, make: Any) -> Any:
    """The parameters of each rank after three steps on the device, and the bytes of the optimizer's state."""

    def program() -> tuple[list[Any], int]:
        with cc.Mesh(dp=2) as mesh:
            wrapped = DataParallel(model().to(device="cuda"), "dp", zero=zero)
            optimizer = make(wrapped.parameters())
            mine = slice(int(mesh.axis("dp").rank) * 4, int(mesh.axis("dp").rank) * 4 + 4)
            x, y = (ag.tensor(a[mine], {"dp": Shard(0)}, global_shape=a.shape, device="cuda") for a in (ROWS, LABELS))
            for _ in range(3):
                with ag.Tape() as tape:
                    loss = nn.cross_entropy(wrapped(x), y, reduction="sum") / len(ROWS)
                    loss = cc.all_reduce(loss, "dp", to=cc.I)
                tape.backward(loss)
                optim.clip_grad_norm_(wrapped.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            on_host = [a for each in optimizer.state_lists() for a in each if isinstance(a, numpy.ndarray)]
            return [arrays.to_host(p.array) for p in wrapped.parameters()], sum(a.nbytes for a in on_host)

    return cc.run(program, 2)


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_offload_with_zero(zero: int) -> None:
    found = trained(zero, lambda ps: optim.Offload(optim.AdamW, ps, 0.01, chunk_bytes=64))
    needed = trained(zero, lambda ps: optim.AdamW(ps, 0.01))
    for (mine, n_bytes), (other, none) in zip(found, needed, strict=True):
        assert n_bytes == 2 * sum(x.nbytes for x in mine) and none == 0  # this rank's moments, and on the host
        for x, y in zip(mine, other, strict=True):
            numpy.testing.assert_allclose(x, y, rtol=1e-6)


def test_the_memory_of_a_device_is_reported() -> None:
    with StepReport() as report:
        for _ in range(2):
            with report.step():
                held = arrays.to_device(numpy.zeros(1 << 16, "uint8"), "cuda")
                del held
    assert len(report.device_peak_bytes) == 1 and report.device_peak_bytes[0] >= 1 << 16
    assert "peak of the arrays on a GPU: " in str(report)
    with cc.Mesh(dp=1) as mesh:
        trainer = Trainer(model, nn.CrossEntropyLoss(reduction="sum"), mesh, microbatches=1, device="cuda",
                          optimizer=lambda ps: optim.Offload(optim.SGD, ps, lr=0.1, momentum=0.9))  # fmt: skip
        plan = trainer.explain(ROWS, LABELS)
    assert plan.ranks[0].device == "cuda:0" and plan.ranks[0].free_bytes > 0
    assert "free" in str(plan) and "cuda:0" in str(plan)


def test_views_of_device_arrays_count_once() -> None:
    x = arrays.to_device(numpy.zeros(100, "float32"), "cuda")
    layer = nn.Linear(10, 5, bias=False).to(device="cuda")
    layer.weight.array = x[:50].reshape(10, 5)
    assert memory_of(layer).parameters == 400
