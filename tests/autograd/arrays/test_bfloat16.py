"""bfloat16, which NumPy does not have: ml_dtypes gives it to NumPy, and to CuPy where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import nn, optim
from autograd.arrays.device import dtype_named, is_inexact

from .devices import DEVICES, Device

MISSING = find_spec("ml_dtypes") is None
needs_ml_dtypes = pytest.mark.skipif(MISSING, reason="ml_dtypes is not installed (extra: gpu): there is no bfloat16")


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Any:
    with request.param.as_cuda():
        yield request.param


@pytest.mark.skipif(not MISSING, reason="ml_dtypes is installed")
def test_without_ml_dtypes_the_fix_is_named() -> None:
    for make in (lambda: nn.Linear(2, 2).to("bfloat16"), lambda: ag.tensor([1.0], dtype="bfloat16"),
                 lambda: ag.tensor([1.0]).astype("bfloat16"), nn.Linear(2, 2).bfloat16):  # fmt: skip
        with pytest.raises(ag.DependencyError, match="pip install ml_dtypes"):
            make()


def test_layers_are_made_in_float32_first() -> None:
    with pytest.raises(ag.DtypeError, match="fix: module.to"):
        nn.Linear(2, 2, dtype="bfloat16")


@needs_ml_dtypes
def test_operations_on_bfloat16_are_recorded(there: Device) -> None:
    x = ag.tensor([1.0, 2.0, 3.0], dtype="bfloat16", requires_grad=True, device="cuda")
    assert is_inexact(x.dtype) and x.dtype == dtype_named("bfloat16")
    with ag.Tape() as tape:
        y = x * x + x * 2
        assert y.dtype == x.dtype and y.requires_grad
        loss = np.tanh(y).astype("float32").sum()
    tape.backward(loss)
    assert x.grad is not None and x.grad.dtype == x.dtype
    reference = ag.grad(lambda z: np.tanh(z * z + z * 2).sum())(numpy.array([1.0, 2.0, 3.0]))
    numpy.testing.assert_allclose(there.values(x.grad).astype(float), reference, rtol=0.05, atol=0.02)
    assert (x + ag.tensor([1.0] * 3, dtype="float32", device="cuda")).dtype == numpy.float32
    for other in ("float16", "int64"):
        with pytest.raises(ag.DtypeError, match="promoted"):
            x + ag.tensor([1] * 3, dtype=other, device="cuda")


@needs_ml_dtypes
def test_cotangents_are_summed_in_float32(there: Device) -> None:
    w = ag.Parameter(numpy.ones(2, "float32"), device="cuda")
    w.array = w.array.astype(dtype_named("bfloat16"))
    for n in (256.0, 1.0, 1.0):  # 257 and 258 are no bfloat16: 256 + 1 + 1 would be 256
        w.accumulate(there.move(numpy.full(2, n, "float32")).astype(w.dtype))
    assert there.values(w.grad).astype(float).tolist() == [258, 258]


@needs_ml_dtypes
def test_a_step_in_mixed_precision(there: Device) -> None:
    x = numpy.random.default_rng(0).standard_normal((6, 4)).astype("float32")
    labels = numpy.arange(6) % 3

    def train(m: nn.Module, place: Any) -> list[float]:
        opt = optim.MasterWeights(optim.AdamW, m.parameters(), lr=0.05)
        losses = []
        for _ in range(5):
            with ag.Tape() as tape:
                logits = m(place(x)).astype("float32")
                loss = nn.cross_entropy(logits, place(labels))
                scaled = opt.scale(loss)
            tape.backward(scaled)
            assert opt.step()
            losses.append(loss.item())
        assert all(p.array.dtype == numpy.float32 for p in opt.parameters)
        return losses

    def made() -> nn.Module:
        ag.random.seed(0)
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))

    half = dtype_named("bfloat16")
    expected = train(made(), lambda a: a)
    place = lambda a: there.move(a).astype(half if a.dtype == "float32" else a.dtype)
    found = train(made().bfloat16().cuda(), place)
    numpy.testing.assert_allclose(found, expected, rtol=0.05)
    assert found[-1] < found[0] / 1.2
