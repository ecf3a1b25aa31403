"""The table of `benchmarks/rosetta.py`: its dense gradients are gradients, its verdicts are told apart."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS / "_peers"))
_spec = importlib.util.spec_from_file_location("rosetta", BENCHMARKS / "rosetta.py")
assert _spec is not None and _spec.loader is not None
rosetta: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rosetta)
CASES, RANKS, data = rosetta.CASES, rosetta.RANKS, rosetta.data


@pytest.mark.parametrize("name", CASES)
def test_dense_gradients(name: str) -> None:
    """Central differences of sum_r <ct_r, y_r>."""
    xs, cts = data(name)

    def objective(xs: Any) -> float:
        return sum(float((c * y).sum()) for c, y in zip(cts, CASES[name].forward(xs), strict=True) if y is not None)

    expected = CASES[name].gradient(cts, xs)
    for r in range(RANKS):
        for i in numpy.ndindex(xs[r].shape):
            up, down = ([x.copy() for x in xs] for _ in range(2))
            up[r][i] += 1e-6
            down[r][i] -= 1e-6
            assert (objective(up) - objective(down)) / 2e-6 == pytest.approx(expected[r][i], abs=1e-6)


def told(name: str, gradients: Any, results: Any = None) -> Any:
    xs, _ = data(name)
    results = CASES[name].forward(xs) if results is None else results
    return [{"rank": r, "gradient": g.tolist(), "result": None if y is None else y.tolist()}
            for r, (g, y) in enumerate(zip(gradients, results, strict=True))]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].invariant])
def test_verdicts(name: str) -> None:
    xs, cts = data(name)
    true, other = CASES[name].gradient(cts, xs), CASES[name].invariant(cts, xs)

    def said(gradients: Any) -> str:
        return str(rosetta.verdict(name, told(name, gradients), False)[0])

    assert said(true) == "right" and said(other) == "right as I"
    assert said([3 * g for g in true]) == "wrong x 3" and said([g / 3 for g in true]) == "wrong x 0.3333"
    assert said([g + r for r, g in enumerate(true)]) == "wrong"
    assert rosetta.verdict(name, told(name, true, [y + 1 for y in CASES[name].forward(xs)]), False)[0] == "wrong value"
    assert rosetta.verdict(name, told(name, true)[:2], True)[0] == "hangs"
    assert rosetta.verdict(name, [{"refused": "no"}], True) == ("refuses", "no")


def test_ringtape_is_right(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    system = rosetta.SYSTEMS["ringtape"]
    for name in ("all_gather uneven", "all_reduce, rank 2 unused"):
        assert rosetta.verdict(name, *rosetta.answers(system, sys.executable, name, 60.0)) == ("right", "")


def test_a_rank_that_waits_for_ever_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "waits.py"
    worker.write_text("import signal\nsignal.pause()\n")
    system = rosetta.System(str(worker), "", "numpy", RANKS)
    assert rosetta.verdict("all_gather", *rosetta.answers(system, sys.executable, "all_gather", 1.0))[0] == "hangs"
