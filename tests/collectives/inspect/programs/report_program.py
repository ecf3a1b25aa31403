"""Three ranks train, rank 1 slow for the cause given as an argument. Rank 0 prints what the step report finds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim
from collectives.inspect.observing import observing
from parallel import DataParallel
from parallel.report import StepReport

SLOW, DELAY_S = 1, 0.02
cause = sys.argv[1] if cc.world().rank == SLOW else "none"
rows = 9 if cause == "uneven work" else 3


class Layer(nn.Module):
    """Takes 4 ms a row, or 12."""

    def __init__(self) -> None:
        self.inner = nn.Linear(4, 3, dtype="float64")

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        time.sleep(int(len(x.local)) * (0.012 if cause == "compute" else 0.004))
        return self.inner(x)


def batches() -> Iterator[np.ndarray]:
    for _ in range(10):
        if cause == "input":
            time.sleep(DELAY_S)
        yield np.random.default_rng(int(cc.world().rank)).normal(size=(rows, 4))


def delayed(group: Any, request: Any, started: bool, run: Any) -> Any:
    """The rank gets the results of large all-reduces late."""
    result = run()
    if cause == "network" and request.call == "all_reduce" and not started:
        time.sleep(DELAY_S)
    return result


report = StepReport()
with cc.Mesh(dp=-1), observing(delayed):
    with report:
        model = DataParallel(Layer(), "dp")
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for x in report.steps(batches()):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                y = model(cc.from_local(x, {"dp": cc.Shard(0)}))
                loss = cc.all_reduce((y**2).sum() / y.global_shape[0], "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
    if cc.world().rank == 0:
        print(report)
        found = report.straggler
        print("FOUND", "none" if found is None else f"{found.rank} {found.cause}", flush=True)
