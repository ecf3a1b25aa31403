"""The benchmark that runs HIPS autograd's examples: a wrong gradient is told, and a failure.

The run needs an interpreter that has HIPS autograd, SciPy and matplotlib (RINGTAPE_PYTHON_HIPS).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from .scripts import load


@pytest.fixture(scope="module")
def examples() -> Any:
    return load("hips_examples")


def test_numbers_of_containers(examples: Any) -> None:
    value = {"b": [numpy.ones((2, 1)), 3.0], "a": (numpy.zeros(1),)}
    assert examples.flat(value).tolist() == [0.0, 1.0, 1.0, 3.0]
    new = examples.filled(value, [numpy.arange(4.0)])
    assert list(new) == ["b", "a"] and new["b"][0].tolist() == [[1.0], [2.0]] and new["b"][1] == 3.0
    assert type(new["a"]) is tuple and new["a"][0].tolist() == [0.0]
    with pytest.raises(TypeError):
        examples.flat([object()])


EXAMPLE = """
import autograd
import autograd.numpy as np
from autograd import grad

x = np.array([1.0, 2.0])
for i in range(5):
    x = x - 0.1 * grad(lambda x: np.sum(np.sin(x) ** 2) * (FACTOR if hasattr(autograd, "Tape") else 1.0))(x)
"""


@pytest.mark.skipif("RINGTAPE_PYTHON_HIPS" not in os.environ, reason="RINGTAPE_PYTHON_HIPS names no interpreter")
@pytest.mark.parametrize(("factor", "code"), [("1.0", 0), ("1.0001", 1), ("1 / 0", 1)])
def test_a_wrong_gradient_is_told(examples: Any, tmp_path: Path, factor: str, code: int, monkeypatch: Any) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "descent.py").write_text(EXAMPLE.replace("FACTOR", factor))
    command = ["", "--suite", str(tmp_path), "--python-hips", os.environ["RINGTAPE_PYTHON_HIPS"]]
    monkeypatch.setattr(sys, "argv", command)
    assert examples.main() == code
