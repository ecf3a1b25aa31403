"""The GPT of the examples has PyTorch's gradients, with the weights copied."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import autograd as ag
from autograd import random

from .models import gpt

ROOT = Path(__file__).resolve().parents[2]


def test_every_gradient_is_that_of_torch(tmp_path: Path) -> None:
    python = os.environ.get("RINGTAPE_PYTHON_TORCH")
    if python is None:
        pytest.skip("RINGTAPE_PYTHON_TORCH names no interpreter that has torch")
    rng = np.random.default_rng(0)
    config = gpt.Config(vocabulary=29, width=48, heads=3, layers=8)
    model, loss = gpt.gpt(config, random.Key(0), np.float64), gpt.Loss()
    for _, p in model.named_parameters():
        p.data = p.array + 0.1 * rng.standard_normal(p.array.shape)
    tokens, targets = rng.integers(0, 29, (2, 5, 17))
    values = {name: p.array for name, p in model.named_parameters()}
    np.savez(tmp_path / "weights.npz", tokens=tokens, targets=targets, **values)
    command = [python, str(ROOT / "tests" / "parallel" / "gpt_reference.py"), str(tmp_path / "weights.npz"),
               str(tmp_path / "gradients.npz"), "3"]  # fmt: skip
    subprocess.run(command, check=True)
    expected = dict(np.load(tmp_path / "gradients.npz"))

    with ag.Tape() as tape:
        total = loss(model(tokens), targets) / targets.size
    tape.backward(total)
    assert float(total) == pytest.approx(float(expected.pop("loss")), rel=1e-13)
    found = {name: p.grad.numpy() for name, p in model.named_parameters()}
    assert found.keys() == expected.keys()
    for name, g in found.items():
        assert np.linalg.norm(g - expected[name]) <= 1e-12 * np.linalg.norm(expected[name]), name
