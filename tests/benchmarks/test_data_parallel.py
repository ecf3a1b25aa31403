"""`benchmarks/data_parallel.py`: its bound and its ratios, and that it runs."""

from __future__ import annotations

import json

import pytest

from ..collectives.launch import find_mpiexec
from .scripts import load

bench = load("data_parallel")


def test_the_bound_is_that_of_a_ring_that_sends_one_bucket_at_a_time() -> None:
    # On 3 ranks at 1 MB/s, 3 kB take 4 messages of 1 kB each, and 1 ms of latency each.
    least, exposed = bench.bound(3, 1e6, 1e-3, 0.5, 0.25, [0.001, 0.010], [3000, 3000])
    assert least == pytest.approx(0.5 + 0.010 + 0.008 + 0.25) and exposed == pytest.approx(0.008)
    least, exposed = bench.bound(3, 1e6, 1e-3, 0.5, 0.25, [0.009, 0.010], [3000, 3000])
    assert least == pytest.approx(0.5 + 0.009 + 0.016 + 0.25) and exposed == pytest.approx(0.015)


def test_ratios_are_above_1_where_ours_is_faster() -> None:
    figures = bench.Figures()
    figures.add("a step", [1.0, 2.0, 4.0], [2.0, 6.0, 8.0], exposed_ms=3.0)
    row = figures.found["a step"]
    assert row == {"ours": 2000, "peer": 6000, "ratio": 2, "best": 2, "exposed_ms": 3}
    assert "exposed_ms 3" in figures.table()


def test_different_losses_are_refused() -> None:
    class World:
        name = "a world"

        def __init__(self, *losses: float):
            self.losses = losses

    assert bench.agree("mlp", [World(2.0, 1.0), World(2.0, 1.0 + 1e-6)]) == pytest.approx(1e-6)
    with pytest.raises(SystemExit, match="not the same steps"):
        bench.agree("mlp", [World(2.0, 1.0), World(2.0, 1.1)])


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    find_mpiexec()
    bench.main(["--only", "mlp", "small", "dry", "--rounds", "3", "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["200 small gradients, one bucket beside one by one, ms"]["losses_differ_by"] == 0
    predicted = {name: row["ours"] for name, row in figures.items() if "1,024 ranks" in name}
    assert len(predicted) == 9 and min(predicted.values()) >= 0
