"""The close forms: their errors in units of the last place, and special values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autograd.compiler import close
from autograd.compiler.loops import CLOSE_STEPS, Loop, pointer_of
from autograd.compiler.machine import is_available

from .running import forget, run

pytestmark = [
    pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0"),
    pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no longer numbers to compare with here"),
]

TRUE = {
    "exp_close": np.exp, "log_close": np.log, "tanh_close": np.tanh,
    "sigmoid_close": lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))),
}  # fmt: skip
LIMITS = {"exp_close": 1.1, "log_close": 1.0, "tanh_close": 2.6, "sigmoid_close": 2.8}
CASES = [(name, dtype) for name in CLOSE_STEPS for dtype in ("f4", "f8")]


def _computed(name: str, x: Any) -> Any:
    y = np.empty_like(x)
    assert run(Loop(x.shape, (pointer_of(x), pointer_of(y)), (("load", 0), (name, 0), ("store", 1, 1))), [x, y]) >= 0
    return y


def _operands(name: str, dtype: str) -> Any:
    random, most = np.random.default_rng(0), 88 if dtype == "f4" else 709
    least = -149 if dtype == "f4" else -1074
    x = np.concatenate([
        *(random.standard_normal(20_000) * size for size in (1e-8, 1e-3, 0.1, 0.3, 1, 3, 10, 30, 100)),
        random.uniform(-most, most, 50_000), 1 + random.uniform(-0.5, 0.5, 50_000),
        2.0 ** random.uniform(least, most * 1.4, 20_000),
    ]).astype(dtype)  # fmt: skip
    return abs(x) if name == "log_close" else x


def _error(name: str, x: Any, y: Any) -> tuple[float, float]:
    """The largest error in units of the last place: of normal numbers, and of those below them."""
    true = TRUE[name](x.astype(np.longdouble))
    near = true.astype(x.dtype)
    assert np.array_equal(np.isfinite(near), np.isfinite(y))
    known = np.isfinite(near)
    error = abs(y[known] - true[known]) / np.spacing(abs(near[known])).astype(np.longdouble)
    is_normal = abs(near[known]) >= np.finfo(x.dtype).tiny
    return float(error[is_normal].max()), float(error[~is_normal].max(initial=0))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_the_error_is_within_its_limit(name: str, dtype: str) -> None:
    x = _operands(name, dtype)
    with np.errstate(all="ignore"):
        normal, below = _error(name, x, _computed(name, x))
    assert normal <= LIMITS[name] and below <= 1.5


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_special_values(name: str, dtype: str) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e4, -1e4], dtype)
    with np.errstate(all="ignore"):
        needed = TRUE[name](x.astype(np.longdouble)).astype(dtype)
        if name == "sigmoid_close":
            needed[2] = 1
    found = _computed(name, x)
    exact = slice(None) if name != "log_close" else slice(0, 5)
    assert np.array_equal(found[exact], needed[exact], equal_nan=True)
    if name == "tanh_close":
        assert np.signbit(found[1])


def test_one_term_less_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(close, "_TERMS", {"f4": 6, "f8": 12})
    monkeypatch.setattr(close, "_LOG", {dtype: each[:-1] for dtype, each in close._LOG.items()})
    forget(monkeypatch)
    with np.errstate(all="ignore"):
        for name in ("exp_close", "log_close"):
            x = _operands(name, "f4")
            assert _error(name, x, _computed(name, x))[0] > LIMITS[name]
