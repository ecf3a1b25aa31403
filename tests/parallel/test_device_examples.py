"""The examples with ``--device cuda``: the losses of the CPU on the simulated device, all that is printed on a GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autograd as ag
import collectives as cc
from autograd.arrays import cuda

from .. import emulator
from ..autograd.arrays.fake_device import as_cuda
from ..collectives.launch import launch_command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def simulated() -> Iterator[None]:
    with as_cuda():
        yield


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return load(name)


def load(name: str) -> Any:
    """The module of an example. What it imports must be found."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits(simulated: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
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
def test_train_gpt(simulated: None, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    example = loaded("train_gpt", monkeypatch)
    found = []
    monkeypatch.setattr(example, "report_on", lambda model, losses, *rest: found.append(losses))
    monkeypatch.setattr(example, "read_text", lambda: ("ab" * 500, ["a", "b"], example.np.arange(1000) % 2))
    words = "--steps 2 --layers 1 --width 8 --heads 2 --context 8 --batch 4 --dropout 0.1"
    for device in ("cpu", "cuda"):
        cc.run(example.program, 2, example.parser.parse_args([*words.split(), "--dp", "2", "--device", device]))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    sys.modules.pop("gpt", None)


@pytest.mark.gpu
@pytest.mark.skipif(bool(cuda.why_not()), reason=cuda.why_not() or "")
def test_processes_print_what_they_print_on_the_cpu(tmp_path: Path) -> None:
    """All examples that take ``--device``, over the carrier that the ranks choose."""
    pytest.importorskip("sklearn")
    program = Path(__file__).parent / "programs" / "examples_program.py"
    outcome = launch_command([str(program), str(tmp_path)], 2, limit_s=emulator.LIMIT_S or 200)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    given = {file.stem for file in EXAMPLES.glob("*.py") if '"--device"' in file.read_text()}
    assert {line.split()[0] for line in outcome.out.splitlines()} == given


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    example = loaded("02_digits", monkeypatch)
    with pytest.raises(ag.DependencyError, match=r"pip install 'ringtape\[gpu\]'"):
        example.program(example.parser.parse_args(["--device", "cuda"]))
