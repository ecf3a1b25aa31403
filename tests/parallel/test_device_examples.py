"""The examples with ``--device cuda``: the losses of the CPU, on the simulated device and on a GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import autograd as ag
import collectives as cc

from ..autograd.arrays.devices import DEVICES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Any:
    with request.param.as_cuda():
        yield request.param


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits(there: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("sklearn")
    example = loaded("02_digits", monkeypatch)
    losses = []
    for device in ("cpu", "cuda"):
        file = tmp_path / f"{device}.json"
        words = ["--epochs", "1", "--batch", "500", "--device", device, "--losses", str(file)]
        cc.run(example.program, 2, example.parser.parse_args(words))
        losses.append(json.loads(file.read_text()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4) and losses[0][-1] < losses[0][0]
    assert capsys.readouterr().out.count("test accuracy") == 2


@pytest.mark.slow
def test_train_gpt(there: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    example = loaded("train_gpt", monkeypatch)
    found = []
    monkeypatch.setattr(example, "report_on", lambda model, losses, *rest: found.append(losses))
    monkeypatch.setattr(example, "read_text", lambda: ("ab" * 500, ["a", "b"], example.np.arange(1000) % 2))
    words = "--steps 2 --layers 1 --width 8 --heads 2 --context 8 --batch 4 --dropout 0.1"
    for device in ("cpu", "cuda"):
        cc.run(example.program, 2, example.parser.parse_args([*words.split(), "--dp", "2", "--device", device]))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    sys.modules.pop("gpt", None)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    example = loaded("02_digits", monkeypatch)
    with pytest.raises(ag.DependencyError, match=r"pip install 'ringtape\[gpu\]'"):
        example.program(example.parser.parse_args(["--device", "cuda"]))
