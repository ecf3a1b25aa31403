"""`benchmarks/captured.py`: a run of one program, and losses that are not those of the same step."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks._captured import numpy_steps, problems, ringtape_steps

from .scripts import load

captured = load("captured")


def test_a_program_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["captured.py", "--only", "logistic", "--rounds", "3", "--json"])
    captured.main()
    figures = json.loads(capsys.readouterr().out)
    assert set(figures) == {
        "logistic, against step", "logistic, against NumPy", "geometric mean, against step",
        "geometric mean, against NumPy",
    }  # fmt: skip
    assert all(row["ratio"] > 0 for row in figures.values())


def test_a_table_has_a_row_for_each_program() -> None:
    rows = {f"{name}, against step": {"ours": 10.0, "peer": 20.0, "ratio": 2.0} for name in problems.PROBLEMS}
    rows |= {"wave, against NumPy": {"ours": 10.0, "peer": 5.0, "ratio": 0.5}}
    lines = captured.table(rows).splitlines()
    assert len(lines) == 28
    assert lines[-1].split() == ["geometric", "mean", "2.00", "(of", "26)", "0.50", "(of", "1)"]


def losses(step: Any) -> list[float]:
    return [float(step(i)) for i in range(12)]


def of_ringtape(name: str) -> list[float]:
    made = ringtape_steps.program(name)
    return losses(lambda i: made.step(*made.batches[i % len(made.batches)]).data)


@pytest.mark.parametrize("name", numpy_steps.STEPS)
def test_programs_by_hand_have_the_losses_of_ringtape(name: str) -> None:
    tolerance = problems.problem(name).tolerance
    assert np.allclose(losses(numpy_steps.step(name)), of_ringtape(name), rtol=tolerance, atol=0)


@pytest.mark.parametrize("name", problems.PROBLEMS)
def test_losses_of_another_rate_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses that are compared show that a step is not the same one: its rate is larger by a twentieth."""
    of = problems.problem(name)
    workers = [SimpleNamespace(engine=captured.STEP, found={"losses": of_ringtape(name)})]
    other = problems.Problem(of.parameters, of.batches, of.optimizer, 1.05 * of.rate, of.is_random)
    if of.is_random:  # noise hides a rate: here the optimizer is another one
        other = problems.Problem(of.parameters, of.batches, "sgd", 1e-6, of.is_random)
    monkeypatch.setattr(ringtape_steps, "problem", lambda _: other)
    workers.append(SimpleNamespace(engine=captured.JAX, found={"losses": of_ringtape(name)}))
    for worker in workers:
        worker.found["losses"] = {str(i): worker.found["losses"][i] for i in (0, 1, 11)}
    with pytest.raises(SystemExit, match="not the same step: the loss of step"):
        captured.require_same(name, workers)
    captured.require_same(name, [workers[0], workers[0]])
