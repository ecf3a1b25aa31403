"""Programs for the array standard inside `ag.grad`: through `array_api_compat`, and SciPy's functions that dispatch."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np

ROOT = Path(__file__).resolve().parents[2]
compat = pytest.importorskip("scipy._lib.array_api_compat", reason="SciPy has a copy of array_api_compat")
X = numpy.random.default_rng(0).standard_normal((4, 6))


def _standardized(x: Any) -> Any:
    """A function of the standard's names alone."""
    xp = compat.array_namespace(x)
    assert xp is np
    y = xp.astype(x, xp.float64) - xp.mean(x, axis=0, keepdims=True)
    y = y / xp.sqrt(xp.sum(y * y, axis=0) / (x.shape[0] - 1))
    y = xp.concat([y, xp.permute_dims(xp.matrix_transpose(y), (1, 0))], axis=1)
    norm = xp.linalg.vector_norm(y, axis=-1)
    return xp.sum(xp.where(norm > 1, xp.tanh(norm), xp.log1p(norm)) * xp.asarray(numpy.arange(4.0)))


def test_a_program_that_asks_for_its_namespace() -> None:
    gradient = ag.grad(_standardized)(X)
    assert compat.is_array_api_obj(ag.tensor(X)) and compat.device(ag.tensor(X)) == "cpu"

    def value(x: Any) -> float:
        return float(_standardized(ag.tensor(x)))

    rng = numpy.random.default_rng(1)
    for _ in range(3):
        d = rng.standard_normal(X.shape)
        assert numpy.isclose(numpy.sum(gradient * d), (value(X + 1e-6 * d) - value(X - 1e-6 * d)) / 2e-6, rtol=1e-6)


FUNCTIONS = """{
    "special.softmax": lambda x: scipy.special.softmax(x, axis=1),
    "special.xlogy": lambda x: scipy.special.xlogy(x * x, x * x + 1),
    "integrate.trapezoid": lambda x: scipy.integrate.trapezoid(x, t, axis=1),
    "integrate.cumulative_trapezoid": lambda x: scipy.integrate.cumulative_trapezoid(x, t, axis=1),
    "signal.fftconvolve": lambda x: scipy.signal.fftconvolve(x, x),
    "fft.fft": lambda x: abs(scipy.fft.fft(x)),
    "fft.rfft": lambda x: abs(scipy.fft.rfft(x)),
    "stats.gmean": lambda x: scipy.stats.gmean(x * x + 1, axis=1),
    "stats.hmean": lambda x: scipy.stats.hmean(x * x + 1, axis=1),
    "stats.skew": lambda x: scipy.stats.skew(x, axis=1),
    "stats.kurtosis": lambda x: scipy.stats.kurtosis(x, axis=1),
    "stats.moment": lambda x: scipy.stats.moment(x, 3, axis=1),
    "stats.sem": lambda x: scipy.stats.sem(x, axis=1),
    "optimize.rosen": lambda x: scipy.optimize.rosen(x),
    "special.erf": lambda x: scipy.special.erf(x),
    "stats.zscore": lambda x: scipy.stats.zscore(x, axis=1),
    "linalg.inv": lambda x: scipy.linalg.inv(x[:4, :4]),
}"""
REFUSED = {"special.erf": "NotDifferentiable", "stats.zscore": "SavedArrayError", "linalg.inv": "NotDifferentiable"}
PROGRAM = f"""
import numpy, scipy.fft, scipy.integrate, scipy.linalg, scipy.optimize, scipy.signal, scipy.special, scipy.stats
import autograd as ag, autograd.numpy as np
x, d = (numpy.random.default_rng(seed).standard_normal((4, 6)) for seed in (0, 1))
t, found = numpy.linspace(0, 1, 6), {{}}
for name, f in {FUNCTIONS}.items():
    h = lambda x: np.sum(np.sin(f(x)))
    try:
        along = float(numpy.sum(ag.grad(h)(x) * d))
        found[name] = abs(float((h(x + 1e-6 * d) - h(x - 1e-6 * d)) / 2e-6) - along) / max(1, abs(along))
    except ag.RingtapeError as error:
        found[name] = type(error).__name__
print(found)
"""


def test_functions_of_scipy_that_dispatch() -> None:
    """Right, or refused: those that write to arrays, or compute by compiled code, have no gradient."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SCIPY_ARRAY_API": "1"}  # SciPy reads it when it is imported
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = ast.literal_eval(run.stdout.splitlines()[-1])
    assert {name: error for name, error in found.items() if isinstance(error, str)} == REFUSED
    assert all(error < 1e-5 for error in found.values() if not isinstance(error, str)), found
