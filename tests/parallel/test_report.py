"""The step report: phases, hidden and exposed communication, stragglers and their causes, shares by speed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from collectives.transports.protocol import Request
from parallel import DataParallel
from parallel.report import StepReport

from .virtual_time import VirtualTime

ROW_NS, INPUT_NS, OPTIMIZER_NS, TRANSFER_NS = 10_000, 20_000, 30_000, 5_000


class Timed(nn.Module):
    """A linear layer whose forward and backward take virtual time for each row: 1 and 2 units."""

    def __init__(self, time: VirtualTime, factor: float):
        self.layer = nn.Linear(4, 3, dtype="float64")
        self.time, self.factor = time, factor

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        ns = len(x.local) * ROW_NS * self.factor
        y = self.layer(x)
        self.time.compute(ns)
        if (recording := ag.engine.state.state.recording) is not None:
            recording.whole().mark(lambda sweep: self.time.compute(2 * ns))
        return y


class TimedSGD(optim.SGD):
    time: VirtualTime

    def update_all(self, gradients: list[Any]) -> None:
        super().update_all(gradients)
        self.time.compute(OPTIMIZER_NS)


def batches(time: VirtualTime, rows: int, count: int, input_ns: float) -> Iterator[Any]:
    for i in range(count):
        time.compute(input_ns)
        yield numpy.random.default_rng(i).normal(size=(rows, 4))


def train(
    time: VirtualTime, *, rows: int = 4, count: int = 3, factor: float = 1.0, input_ns: float = INPUT_NS,
    other_ns: float = 0.0,
) -> StepReport:  # fmt: skip
    """Steps of a data-parallel model in virtual time; the arguments may differ between ranks."""
    report = StepReport(clock=time.clock)
    with cc.Mesh(dp=-1) as mesh, time.synchronised():
        mesh.ranks.barrier()
        with report:
            model = DataParallel(Timed(time, factor), "dp")
            optimizer = TimedSGD(model.parameters(), lr=0.1)
            optimizer.time = time
            for x in report.steps(batches(time, rows, count, input_ns)):
                optimizer.zero_grad()
                time.compute(other_ns)
                with ag.Tape() as tape:
                    y = model(cc.from_local(x, {"dp": cc.Shard(0)}))
                    loss = cc.all_reduce((y**2).sum() / y.global_shape[0], "dp", to=cc.I)
                tape.backward(loss)
                optimizer.step()
            mesh.ranks.barrier()
    return report


def reports(ranks: int, transfer: Any = lambda rank, request: TRANSFER_NS, **planted: Any) -> list[StepReport]:
    """Train with rank `slow` unlike the others: its arguments of `train` are in `planted`."""
    time = VirtualTime(ranks, transfer)
    slow = planted.pop("slow", None)
    return cc.run(lambda: train(time, **(planted if int(cc.world().rank) == slow else {})), ranks)


def test_the_phases_of_a_step_are_exact() -> None:
    for report in reports(3):
        assert [r.steps for r in report.ranks] == [3, 3, 3]
        for r in report.ranks:
            times = r.median
            assert times.input_s == pytest.approx(INPUT_NS / 1e9)
            assert times.forward_s == pytest.approx(4 * ROW_NS / 1e9)
            assert times.backward_s == pytest.approx(8 * ROW_NS / 1e9)
            assert times.optimizer_s == pytest.approx(OPTIMIZER_NS / 1e9)
            assert times.other_s == pytest.approx(0, abs=1e-12) and times.waiting_s == pytest.approx(0, abs=1e-12)
            assert times.transfer_s > 0 and times.rows == 4 and times.elements > 0
            parts = times.input_s + times.compute_s + times.exposed_s + times.optimizer_s + times.other_s
            assert times.step_s == pytest.approx(parts)
        assert report.straggler is None
        print(report)
