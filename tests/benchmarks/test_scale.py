"""`benchmarks/scale.py` runs, and measures both models on 1 and 2 ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .scripts import ROOT, load


def test_both_models_are_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(ROOT) / "examples"))
    load("scale").main(["--rounds", "2", "--steps", "3", "--repeats", "1", "--json"])
    figures = json.loads(capsys.readouterr().out)
    for model in ("MLP", "small GPT"):
        for ranks in ("1 rank", "2 ranks"):
            for of in ("an examined step", "3 steps"):
                assert figures[f"{of}, {model}, {ranks}"]["ratio"] > 0
