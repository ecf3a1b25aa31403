"""`benchmarks/drift.py`: what it measures, prints and refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from autograd.errors import MeshError

from .scripts import load

drift = load("drift")


def test_drift_measures_what_it_says() -> None:
    addends = drift.make_addends(12, 30, np.float32, 1)
    exact = drift.exact_sum(addends)
    assert exact[3] == math.fsum(map(float, addends[:, 3]))
    off = np.nextafter(exact.astype(np.float32), np.float32(np.inf), dtype=np.float32)
    assert drift.ulps(off, exact).max() <= 1.5 and drift.ulps(off, exact).min() >= 0.5
    rows = drift.measure(addends, drift.Setup(ranks=3))
    assert {row.varied for row in rows} == {"baseline", "order", "algorithm", "ranks", "bucket"}
    assert all(row.reproducible_changed == 0 for row in rows)
    assert {row.reproducible_max_ulps for row in rows} == {rows[0].reproducible_max_ulps}
    for knob in ("order", "algorithm", "ranks", "bucket"):
        assert any(row.changed for row in rows if row.varied == knob), knob


def test_drift_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = drift.variations
    monkeypatch.setattr(drift, "variations", lambda *given: list(every(*given))[:8])
    arguments = ["--addends", "6", "--elements", "20", "--ranks", "2"]
    assert drift.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "6 addends of 20 float32" in shown and "halving_doubling" in shown and "max ulps" in shown
    pytest.importorskip("matplotlib")
    assert drift.main([*arguments, "--json", "--plot", str(tmp_path / "drift.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == len(shown.splitlines()) - 4
    assert (tmp_path / "drift.png").read_bytes().startswith(b"\x89PNG")


def test_drift_refuses() -> None:
    with pytest.raises(SystemExit, match="at least 1"):
        drift.main(["--ranks", "0"])
    with pytest.raises(MeshError, match="needed: native"):
        drift.main(["--algorithm", "bubble"])
