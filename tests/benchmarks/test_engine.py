"""`benchmarks/engine.py`: the comparison with another tree."""

from __future__ import annotations

import json
import sys

import pytest

from .scripts import ROOT, load

engine = load("engine")


def test_comparison_with_another_tree(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the other tree is this one."""
    command = ["engine.py", "--before", str(ROOT), "--only", "chain", "--rounds", "5", "--steps", "2", "--starts", "2"]
    monkeypatch.setattr(sys, "argv", [*command, "--json"])
    engine.main()
    ((name, row),) = json.loads(capsys.readouterr().out).items()
    assert name == "chain of 1,000 scalar operations"
    assert 0 < row["low"] <= row["ratio"] <= row["high"]
