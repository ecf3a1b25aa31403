"""`benchmarks/checking.py` runs, and measures every mode."""

from __future__ import annotations

import json
import sys

import pytest

from ..collectives.launch import find_mpiexec
from .scripts import load


@pytest.mark.slow
def test_every_mode_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    find_mpiexec()
    monkeypatch.setattr(sys, "argv", ["checking.py", "--rounds", "5", "--calls", "2", "--json"])
    load("checking").main()
    figures = json.loads(capsys.readouterr().out)
    for world in ("2 threads", "2 processes"):
        for mode in ("off", "first", "always", "ranks", "without the check", "off beside without the check"):
            assert figures[f"all_reduce 4 KiB, {world}, {mode}"]["ratio"] > 0
