"""`benchmarks/passes.py` runs, and its parts add up to a step."""

from __future__ import annotations

import json
import subprocess
import sys

from .scripts import ROOT


def test_the_parts_add_up() -> None:  # in a process of its own, because it wraps the kernels
    command = [sys.executable, str(ROOT / "benchmarks" / "passes.py"), "--steps", "1", "--json"]
    out = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    rows = json.loads(out)
    for name in ("layer_norm", "rotary", "self_attention", "gelu", "cross_entropy", "Adam"):
        assert rows[name]["ours"] > 0 and rows[name]["ratio"] > 0
    step = rows.pop("a step")["ours"]
    assert abs(sum(row["ours"] for row in rows.values()) - step) < 1e-6 * step
