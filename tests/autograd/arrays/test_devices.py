"""Every operation on arrays of a device: the same bodies on the fake one, always, and on CuPy's where there is a GPU.

``pytest -m gpu`` runs the second half alone. The fake device finds what a GPU would refuse: a host array among the
operands, an implicit way to the host. What it cannot find is what CuPy itself computes otherwise than NumPy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from inspect import signature
from operator import attrgetter
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import arrays, nn, ops
from autograd.arrays import cuda
from autograd.arrays.cupy_functions import (
    ABSENT_FROM_CUPY,
    KEYWORDS_ABSENT_FROM_CUPY,
    OPERATIONS_ABSENT_FROM_CUPY,
)
from autograd.engine.primitive import op, registry

from ...proofs.operations import CASES, WITHOUT_DERIVATIVE, Case
from ...proofs.operations.special import ON_HOST
from ...tables import each
from ..ops.test_operations import BITS, named
from . import fake_device
from .devices import DEVICES, Device, Gpu

there = pytest.fixture(params=DEVICES)(lambda request: request.param)
_WHY = cuda.why_not()


@pytest.mark.gpu
@pytest.mark.skipif(bool(_WHY), reason=f"{_WHY}: the operations run on the fake device only")
def test_arrays_of_the_gpu_are_told_from_the_hosts() -> None:
    """Also the one test that is skipped, with the reason, where the others have no GPU to run on."""
    gpu = Gpu()
    assert gpu.values(gpu.move([1.0, 2.0])).tolist() == [1, 2]
    with pytest.raises(AssertionError, match="not on the device"):
        gpu.values(numpy.ones(2))


@pytest.mark.gpu
@pytest.mark.skipif(bool(_WHY), reason=f"{_WHY}: the operations run on the fake device only")
def test_subnormal_numbers_of_float32_are_zero_on_a_gpu() -> None:
    """CuPy compiles all kernels so. The guide of GPUs says it."""
    gpu = Gpu()
    for dtype, small in ((numpy.float32, 1e-40), (numpy.float64, 1e-310), (numpy.float16, 1e-6)):
        x = gpu.move(numpy.full(64, small, dtype))
        for y in (ag.tensor(x) * 2, nn.dropout(ag.tensor(x), 0.5, key=ag.random.Key(1))):
            assert bool(gpu.values(y).any()) == (dtype != numpy.float32), dtype


# -- every operation -------------------------------------------------------------------------------------------------

def placed(x: Any, there: Device) -> Any:
    """A function, with the host arrays of its defaults, its closure and its module moved to the device."""
    if isinstance(x, numpy.ndarray):
        return there.move(x)
    if isinstance(x, partial):
        return partial(placed(x.func, there), *placed(x.args, there), **x.keywords)
    if isinstance(x, tuple):
        return tuple([placed(item, there) for item in x])
    if not isinstance(x, FunctionType) or not x.__module__.startswith("tests."):
        return x
    own = {name: placed(v, there) for name in _names(x.__code__) if _is_given(v := x.__globals__.get(name))}
    cells = tuple([CellType(placed(cell.cell_contents, there)) for cell in x.__closure__ or ()])
    return FunctionType(x.__code__, {**x.__globals__, **own}, x.__name__, placed(x.__defaults__, there), cells)


def _names(code: Any) -> set[str]:
    return {*code.co_names}.union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _is_given(x: Any) -> bool:
    """Whether a global variable is an array, or a function of a file of cases."""
    return isinstance(x, numpy.ndarray) or (isinstance(x, FunctionType) and not x.__name__.startswith("numpy_"))


def runs_on_a_device(c: Case) -> bool:
    """Not where SciPy runs on the host, or where the function makes a NumPy array at each call."""
    makes_arrays = isinstance(c.f, FunctionType) and "numpy" in c.f.__code__.co_names
    absent = *ON_HOST, *OPERATIONS_ABSENT_FROM_CUPY, "to_device"
    return c.operation not in absent and c.label not in REFUSED and not makes_arrays


@each([c for c in CASES if c.operation in (*ON_HOST, *OPERATIONS_ABSENT_FROM_CUPY)],
      lambda c: f"operations in {c.operation[0]}", named)  # fmt: skip
def test_an_operation_that_a_device_does_not_have_says_so(c: Case, there: Device) -> None:
    args = [there.move(a) for a in c.draw()]
    with pytest.raises(ag.DeviceError, match=r"on a GPU: (CuPy has no|it computes on NumPy's arrays only)"):
        y, pullback = ag.vjp(placed(c.f, there), *args)
        ag.jvp(placed(c.f, there), args, args)
        pullback(y)


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed (extra: gpu): its functions are unknown")
def test_the_tables_of_functions_are_those_of_cupy() -> None:
    """No GPU is needed for this one."""
    import cupy
    import cupyx.scipy.special

    def has(name: str) -> bool:
        try:
            return callable(attrgetter(name)(cupy))
        except AttributeError:
            return callable(getattr(cupyx.scipy.special, name, None))

    there = Device()
    for c in (c for c in CASES if runs_on_a_device(c) and not c.operation.startswith("grouped")):
        args = c.draw()
        with numpy.errstate(all="ignore"):
            y, pullback = ag.vjp(placed(c.f, there), *map(there.move, args))
            pullback(y)
    used = {name for name, method, *_ in fake_device.calls if method != "method"}
    assert len(used) > 100
    for name in sorted(used | ABSENT_FROM_CUPY):
        assert has(name) == (name not in ABSENT_FROM_CUPY), name
    for name, words in KEYWORDS_ABSENT_FROM_CUPY.items():
        assert not words & set(signature(getattr(cupy, name)).parameters), name


REFUSED = ("extract, a host array", "choose, a host array", "gradient at places of a host array")
"""Labels of cases that make a host array, which they combine with the operand."""


@pytest.mark.parametrize("label", REFUSED)
def test_a_host_array_beside_a_device_array_is_refused(label: str, there: Device) -> None:
    (c,) = (c for c in CASES if c.label == label)
    with pytest.raises(ag.DeviceError, match="on different devices"):
        c.f(*map(ag.tensor, map(there.move, c.draw())))


MOVES = ("list", "cross", "cross along")
"""Labels of cases in which a list of indices is moved to the device, besides those with a "host array"."""


@each([c for c in CASES if runs_on_a_device(c)], lambda c: f"operations in {c.operation[0]}", named)
def test_every_operation_on_the_device(c: Case, there: Device) -> None:
    args = c.draw()
    with numpy.errstate(all="ignore"):
        expected, pullback = ag.vjp(c.f, *args)
        ct = numpy.random.default_rng(0).standard_normal(expected.shape).astype(expected.dtype)
        cotangents = pullback(ct)
        tangent = ag.jvp(c.f, args, args)[1]
    f = c.f if c.operation.startswith("grouped") else placed(c.f, there)  # their counts are on the host
    moves = f is c.f or "host array" in c.label or c.label in MOVES
    moved, moved_ct = [there.move(a) for a in args], there.move(ct)
    with there.without_crossings(moves=moves), numpy.errstate(all="ignore"):
        y, device_pullback = ag.vjp(f, *moved)
        found = device_pullback(moved_ct)
        device_tangent = ag.jvp(f, moved, moved)[1]
    rounding = 1e-15  # the host's kernels sum in another order, so that what is zero in one form is not in the other
    numpy.testing.assert_allclose(there.values(y), expected, atol=rounding)
    numpy.testing.assert_allclose(there.values(device_tangent), tangent, atol=rounding if there.name == "cupy" else 0)
    several = isinstance(found, tuple)
    for a, b in zip(found if several else [found], cotangents if several else [cotangents], strict=True):
        numpy.testing.assert_allclose(there.values(a), b, atol=rounding)
        assert a.dtype == b.dtype


MASK, KEY, TWICE = numpy.array([True, False, True]), numpy.array([2, 0]), numpy.array([0, 0, 2])
WITH_ARRAYS: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    "where": (lambda a, b, m: np.where(m, a, b), [numpy.ones(3), numpy.zeros(3)], [MASK]),
    "where with a number": (lambda a, m: np.where(m, a, 0.0), [numpy.ones(3)], [MASK]),
    "an index array": (lambda a, k: a[k], [numpy.arange(3.0)], [KEY]),
    "an index array, one element twice": (lambda a, k: a[k] * a[k], [numpy.arange(3.0)], [TWICE]),
    "an index array in a tuple": (lambda a, k: a[:, k], [numpy.arange(6.0).reshape(2, 3)], [TWICE]),
    "a mask": (lambda a, m: a[m], [numpy.arange(3.0)], [MASK]),
    "cross_entropy": (ops.cross_entropy, [numpy.arange(9.0).reshape(3, 3)], [TWICE]),
    "maximum": (np.maximum, [numpy.arange(3.0)], [numpy.array([1.0, 1.0, 1.0])]),
    "concatenate": (lambda a, b: np.concatenate([a, b]), [numpy.arange(3.0)], [numpy.ones(2)]),
    "arithmetic": (lambda a, b: b * a / (a + b), [numpy.arange(3.0)], [numpy.ones(3)]),
    "power": (lambda a, b: a**b + b**a, [numpy.arange(1.0, 4.0)], [numpy.full(3, 2.5)]),
    "numpy scalars": (lambda a: numpy.float64(2) * a + numpy.float64(1), [numpy.arange(3.0)], []),
    "ties": (np.max, [numpy.array([1.0, 2.0, 2.0])], []),
    "where of one truth value": (lambda a, b: np.where(False, a, b), [numpy.ones(3), numpy.zeros(3)], []),
    "fmin with a number": (lambda a: np.fmin(a, 1.5), [numpy.arange(3.0)], []),
    "fmax with a number": (lambda a: np.fmax(1.5, a), [numpy.arange(3.0)], []),
    "solve, one matrix for a batch": (np.linalg.solve, [numpy.eye(2) * 2, numpy.ones((3, 2, 1))], []),
    "solve, one right side for a batch": (np.linalg.solve, [numpy.eye(2) * [[[2]], [[3]]], numpy.ones((2, 1))], []),
}


@pytest.mark.parametrize("name", WITH_ARRAYS)
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "Tensor"])
def test_operations_with_arrays_of_the_device(name: str, wrapped: bool, there: Device) -> None:
    f, args, others = WITH_ARRAYS[name]
    expected, pullback = ag.vjp(lambda *xs: f(*xs, *others), *args)
    ct = numpy.random.default_rng(0).standard_normal(expected.shape)
    cotangents = pullback(ct)
    moved = [there.move(a) for a in args]
    placed = [ag.tensor(there.move(a)) if wrapped else there.move(a) for a in others]
    moved_ct = there.move(ct)
    with there.without_crossings():
        y, device_pullback = ag.vjp(lambda *xs: f(*xs, *placed), *moved)
        found = device_pullback(moved_ct)
        second = ag.grad(lambda x: (ag.vjp(lambda *xs: f(*xs, *placed), x, *moved[1:])[0] ** 2).sum())(moved[0])
    numpy.testing.assert_allclose(there.values(y), expected)
    there.values(second)
    several = isinstance(found, tuple)
    for a, b in zip(found if several else [found], cotangents if several else [cotangents], strict=True):
        numpy.testing.assert_allclose(there.values(a), b)


MIXED: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "matmul": (ops.matmul, [numpy.ones((2, 3)), numpy.ones((3, 2))]),
    "matmul of batches": (ops.matmul, [numpy.ones((4, 2, 3)), numpy.ones((4, 3, 2))]),
    "linear": (ops.linear, [numpy.ones((2, 3)), numpy.ones((3, 2)), numpy.ones(2)]),
    "attention": (ops.attention, [numpy.ones((1, 2, 3, 16), numpy.float32)] * 3),
    "norm": (lambda x, w: ops.layer_norm(x, w, w), [numpy.ones((2, 3)), numpy.ones(3)]),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.usefixtures("compiler_of_kernels")
def test_operands_on_two_devices(name: str, there: Device) -> None:
    """Also after a call whose operands are on one: launches are prepared then."""
    f, args = MIXED[name]
    f(*map(there.move, args))
    for i in range(len(args)):
        given = [a if i == k else there.move(a) for k, a in enumerate(args)]
        with pytest.raises(ag.DeviceError, match="on different devices"):
            f(*given)
        with pytest.raises(ag.DeviceError, match="on different devices"):
            f(*map(ag.tensor, given))


def test_second_derivatives_on_the_device(there: Device) -> None:
    x, t = numpy.random.default_rng(0).standard_normal((3, 3)), TWICE

    def penalty(z: Any, labels: Any) -> Any:
        g = ag.grad(lambda w: (ops.cross_entropy(np.tanh(w @ w), labels) + np.max(w, 1)).sum())(z)
        return (g * g).sum()

    expected = ag.grad(penalty)(x, t)
    moved, labels = there.move(x), there.move(t)
    with there.without_crossings():
        found = ag.grad(penalty)(moved, labels)
    numpy.testing.assert_allclose(there.values(found), expected, rtol=1e-12)


def test_operations_without_derivative_on_the_device(there: Device) -> None:
    x = ag.tensor(there.move([1.0, 2.0, 2.0]))
    with there.without_crossings():
        assert there.values(x > 1).tolist() == [False, True, True]
        assert there.values(x == x).all() and there.values(np.isfinite(x)).all()
        assert not there.values(np.logical_not(x)).any()
        assert there.values(np.argmax(x)) == 1
        assert there.values(ops.stop_gradient(x)).tolist() == [1, 2, 2]
    for name in (name for name in WITHOUT_DERIVATIVE if hasattr(numpy, name)):  # what SciPy has runs on the host
        dtype, count = int if name in BITS else float, len(ag.registry[name].words)
        others = [numpy.array([2, 1, 1], dtype)][: count - 1] if name != "argpartition" else []
        kth = {"kth": 1} if name == "argpartition" else {}
        host = numpy.array([1, 2, 3], dtype)
        given = [ag.tensor(there.move(a)) for a in (host, *others)]
        with there.without_crossings():
            found = getattr(np, name)(*given, **kth)
        assert numpy.array_equal(there.values(found), getattr(numpy, name)(host, *others, **kth)), name


# -- that they see what they must ------------------------------------------------------------------------------------


def test_a_rule_that_goes_by_the_host_is_seen(there: Device) -> None:
    bad = op("planted", "N", np.tanh.function, lambda ct, y, x: ct * (1 - numpy.asarray(arrays.to_host(y)) ** 2),
             saves="y")  # fmt: skip
    del registry["planted"]
    case = Case("planted", "", bad, numpy.tanh, (lambda rng: rng.standard_normal(3),))
    with pytest.raises((TypeError, AssertionError)):
        test_every_operation_on_the_device(case, there)


def test_without_a_gpu_the_reason_is_given() -> None:
    assert _WHY == "" or "CuPy" in _WHY


def test_a_gpu_needs_no_compiler_of_the_host() -> None:
    """A mark for a whole file would skip its tests on a GPU, too, where there is no C++ compiler."""
    root = Path(__file__).resolve().parents[2]
    files = [file for file in root.rglob("test_*.py") if "params=DEVICES" in file.read_text()]
    marked = [file.name for file in files if re.search(r"^pytestmark = .*skipif\(.*WHY_NOT", file.read_text(), re.M)]
    assert len(files) > 8 and marked == []
