"""Predicted times on a machine so slow that all measured computation is nothing beside its messages."""

from __future__ import annotations

import numpy as np
import pytest

import collectives as cc
from autograd import nn
from collectives.inspect.record import RankRecords
from collectives.page.prediction import predict_times
from parallel import Pipeline

LATENCY_S = 1e5
LINK = cc.Link(LATENCY_S, 1e15)
X = np.random.default_rng(0).normal(size=(6, 3))


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_of_a_pipeline_arrive_in_turn(ranks: int) -> None:
    """Stage s has its first activation after s messages, and stage 0 its first cotangent after those there and back."""

    def program() -> RankRecords:
        with cc.Mesh(pp=ranks):
            layers = [nn.Linear(3, 3, dtype=float) for _ in range(ranks)]
            model = Pipeline(layers, nn.MSELoss(reduction="sum"), microbatches=3)
            with cc.recording_operations() as found:
                model.step(X, X, scale=1 / 6)
        return found

    found = cc.run(program, ranks)
    times = predict_times(found, cc.Topology(ranks, LINK, LINK))
    for r, (of, row) in enumerate(zip(found, times, strict=True)):
        named: dict[str, list[int]] = {}
        for record, (begin, end) in zip(of.records, row, strict=True):
            assert 0 <= begin <= end
            name = ("backward " if record.direction == "backward" else "") + record.name
            named.setdefault(name, []).append(round(end / LATENCY_S))
        assert named["linear"][0] == r
        assert named["backward linear"][0] == 2 * (ranks - 1) - r


def test_the_model_of_the_machine_is_used() -> None:
    """An all-reduce on links twice as slow takes twice as long."""

    def program() -> RankRecords:
        with cc.Mesh(dp=3), cc.recording_operations() as found:
            cc.all_reduce(np.ones(4), "dp")
        return found

    found = cc.run(program, 3)
    fast, slow = (
        max(end for row in predict_times(found, cc.Topology(3, link, link)) for _, end in row)
        for link in (LINK, cc.Link(2 * LATENCY_S, 1e15))
    )
    assert slow / fast == pytest.approx(2, rel=1e-2) and fast > LATENCY_S
