"""The report of a step, and the measured idle share of stages that sleep against the simulator's prediction."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd import nn
from parallel.pipeline import SCHEDULES, Action, Costs, Pipeline, PipelineReport, Record, one_f_one_b, simulate
from parallel.pipeline.report import compare

ROOT = Path(__file__).resolve().parents[3]


def test_report() -> None:
    def program() -> Any:
        with cc.Mesh(pp=3):
            layers = [nn.Linear(4, 4, dtype=float) for _ in range(3)]
            model = Pipeline(layers, lambda y: y.sum(), microbatches=4, schedule="zb-h1")
            model.step(np.ones((4, 4)))
            assert 0.0 <= model.record.idle_share < 1.0
            assert [str(a) for a, _, _ in model.record.actions] == list(map(str, model.schedule.actions[model.rank]))
            return model.report()

    reports = cc.run(program, 3)
    assert all(r[2:] == reports[0][2:] for r in reports)
    report: PipelineReport = reports[0]
    assert report.held == report.predicted_held == [3, 3, 3]
    assert len(str(report).splitlines()) == 5 and "zb-h1, microbatches: 4" in str(report)


def test_report_of_exact_times() -> None:
    """From a record of the simulated times follow the simulated shares."""
    costs = Costs([1.0, 3.0], [2.0, 1.0], [1.0, 1.0])
    schedule = one_f_one_b(2, 3)
    run = simulate(schedule, costs)
    records = [
        Record(r, [(a, begin, end) for a, begin, end in rank], 0.0, run.makespan, run.held[r])
        for r, rank in enumerate(run.timeline)
    ]

    def program() -> Any:
        world = cc.world()
        return compare(schedule, records[world.index], world)

    for found in cc.run(program, 2):
        np.testing.assert_allclose(found.idle, run.idle_share)
        np.testing.assert_allclose(found.predicted_idle, run.idle_share)
        assert found.costs.of(Action(1, "B", 0)) == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_measured_idle_share(name: str) -> None:
    """Within 15 % of the prediction for the nominal times; other programs on the machine only make it larger."""
    spec = importlib.util.spec_from_file_location("benchmark_of_pipelines", ROOT / "benchmarks" / "pipeline.py")
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    found: Any = None
    for _ in range(4):
        found = cc.run(benchmark.measure, 3, name, 3, 7, 0.05, 2)[0]
        assert found["live"] == found["predicted live"]
        idle, expected = np.mean(found["idle"]), np.mean(found["predicted idle"])
        if abs(idle - expected) <= 0.15 * expected:
            return
    raise AssertionError(f"{found}")
