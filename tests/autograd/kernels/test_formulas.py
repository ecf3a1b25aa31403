"""Activations by formula: the operation, its adjoint and its kernels on the host and a GPU are those of the text."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from autograd import kernels
from autograd.engine.primitive import registry
from autograd.errors import is_own_file
from autograd.formula import source
from autograd.kernels import activations as on_host
from autograd.kernels import formulas
from autograd.kernels.cuda import activations as on_gpu
from autograd.kernels.cuda.program import program
from autograd.ops.nn import activations, fused
from autograd.testing import check_adjoint, check_grads

from ..arrays.devices import Device
from ..arrays.fake_device import DeviceArray
from .cuda import on_cpu

FORMULA = "t = tanh(0.5 * x); e = exp(t); y = x * e; d = e + y * 0.5 * (1 - t * t)"
X = numpy.random.default_rng(0).standard_normal(40_000)


def value(x: Any) -> Any:
    return x * numpy.exp(numpy.tanh(x / 2))


@pytest.fixture(params=[FORMULA, FORMULA.replace("0.5 *", "1.5 *")], ids=["right", "wrong"])
def is_right(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(formulas.FORMULAS, "planted", request.param)
    return bool(request.param == FORMULA)


def test_the_operation(is_right: bool) -> None:
    f = activations._by_formula("planted")
    del registry["planted"]
    assert is_own_file(f.adjoint[0].__code__.co_filename) and "t = tanh(" in source(f.adjoint[0])
    assert numpy.allclose(f(X), value(X), rtol=1e-14) == is_right
    if is_right:
        check_adjoint(f, X[:5])
        check_grads(f, X[:5])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernel_of_the_host(is_right: bool, dtype: str) -> None:
    x, kernel = X.astype(dtype), on_host._by_formula("planted")
    y, d = kernel.forward((x,), (), True)
    bare, nothing = kernel.forward((x,), (), False)
    assert nothing is None and numpy.array_equal(bare, y) and y.dtype == d.dtype == dtype
    assert numpy.allclose(y, value(X), rtol=1e-5) == is_right
    slope = (value(X + 1e-6) - value(X - 1e-6)) / 2e-6
    assert numpy.allclose(d, slope, rtol=1e-4, atol=1e-4) == is_right


@pytest.mark.skipif(bool(on_cpu.WHY_NOT), reason=on_cpu.WHY_NOT)
def test_the_kernel_of_a_gpu(is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("elements.cuh", "activations.cuh", "activations.cu")
    made = program("planted_formula", ("activate<float, Planted>",), files, formulas.cuda_classes())
    monkeypatch.setattr(on_gpu, "PROGRAM", made)
    there = Device()
    x, ct = there.move(X.astype("f4")), there.move(numpy.full(X.shape, 2, "f4"))
    kernel = on_gpu._kernel(lambda: formulas.class_name("planted"))
    assert numpy.allclose(there.values(kernel.forward((x,), (), True)[0]), value(X), rtol=1e-4, atol=1e-5) == is_right
    (g,) = kernel.backward(ct, None, (x,), (), [True], True)
    slope = (value(X + 1e-6) - value(X - 1e-6)) / 1e-6
    assert numpy.allclose(there.values(g), slope, rtol=1e-3, atol=1e-3) == is_right


def test_every_operation_that_names_a_kernel_has_one() -> None:
    """On the host or on a GPU: with a name that neither has, the operation would silently be slow."""
    for f in filter(lambda x: isinstance(x, fused.Fused), registry.values()):
        file, _, name = f.kernel_name.partition(".")  # type: ignore[attr-defined]
        found = [hasattr(kernels.functions(file, kind), f"{name}_kernel") for kind in (numpy.ndarray, DeviceArray)]
        assert any(found), f"{f.name} names a kernel; needed: {name}_kernel in autograd/kernels/{file}.py"
