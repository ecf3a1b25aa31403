"""`benchmarks/gpu.py` on the CPU with small sizes: what it prints, and the goals that it checks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


def test_figures() -> None:
    only = ("gelu", "adam", "64-64-64-10")
    command = [sys.executable, str(SCRIPT), "--cpu", "--small", "--rounds", "1", "--json", "--only", *only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    for name in ("copy", "gelu, float32, forward", "gelu, float16, backward", "adam, 100M parameters"):
        assert figures[name]["ours"] > 0 and figures[name]["share"] > 0, name
    assert figures["64-64-64-10 step, captured"]["ours"] > 0 and len(figures) == 8


@pytest.fixture
def gpu() -> Any:
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("benchmark_gpu", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_missed_goals_are_named(gpu: Any) -> None:
    figures: dict[str, Any] = {
        "gelu, float32, forward": {"share": 0.8},
        "softmax, float32, forward": {"share": 0.9},
        "attention, 1024 tokens, width 64, forward": {"ratio": 0.6},
        "attention, 2048 tokens, width 64, forward": {"ratio": 0.7},
        "gpt, float32": {"ratio": 0.99},
        "64-64-64-10 step, captured": {"ratio": 3.5},
        "rotary, float32": {"error": "it broke"},
    }
    assert gpu.missed(figures) == [
        "gelu, float32, forward: share 0.80, goal 0.85",
        "attention, 1024 tokens, width 64, forward: ratio 0.60, goal 0.667",
        "gpt, float32: ratio 0.99, goal 1",
        "rotary, float32: it broke",
    ]


def test_the_roofline(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["case"]: row for row in gpu.roofline(False)}
    found = rows["gelu, float32, forward"]  # read and written once
    assert found["bytes"] == 2 * 32768 * 4096 * 4 and found["least_s"] == found["bytes"] / 3.35e12
    found = rows["attention, 4096 tokens, width 64, forward"]  # 4 sequences, 32 heads, half of two products
    assert found["flops"] == 4 * 32 * 2 * 4096**2 * 64 and found["limit"] == "products"
    assert 6e12 < rows["gpt, float16"]["flops"] < 8e12
    assert all(row["goal_s"] > row["least_s"] for row in rows.values() if "goal_s" in row)
    gpu.main(["--roofline"])
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1


LIBRARY = """
import json, os, sys
def say(**what): print(json.dumps(what), flush=True)
say(about="one")
for line in sys.stdin:
    request = json.loads(line)
    case = request.get("case", globals().get("case"))
    if "case" in request:
        say(error="no memory") if case == "refused" else say(phases=["forward", "backward"], loss=None)
    elif case == "dies" and request["time"] == "backward":
        os._exit(3)
    elif case == "hangs":
        sys.stdin.read()
    elif case == "fails" and request["time"] == "backward":
        say(error="ValueError: wrong")
    else:
        say(seconds=1.0)
"""


def test_nothing_is_lost_when_a_case_fails(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the time of a case used to end the benchmark, before anything was printed."""
    (tmp_path / "gpu_ringtape.py").write_text(LIBRARY)
    monkeypatch.setattr(gpu, "PEERS", tmp_path)
    monkeypatch.setattr(gpu, "LIMIT_S", 3.0)
    case = gpu.cases(True)["copy"]
    with gpu.library("ringtape", sys.executable, []) as ours:
        for name in ("refused", "dies", "fails", "hangs", "works"):
            found = gpu.measure(name, case, [ours], 2, 1.0)
            errors = {row.removeprefix(name): figures.get("error") for row, figures in found.items()}
            assert errors == {
                "refused": {"": "no memory"},
                "dies": {", forward": None, ", backward": "ringtape: status 3"},
                "fails": {", forward": None, ", backward": "ringtape: ValueError: wrong"},
                "hangs": {", forward": "ringtape: no answer within 3 s"},
                "works": {", forward": None, ", backward": None},
            }[name], name
