"""Kernels as compiled loops beside the same kernels in NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
from autograd import kernels, nn, optim
from autograd.engine.primitive import registry
from autograd.kernels import compiled
from autograd.kernels.adam import adam
from autograd.kernels.momentum import momentum
from autograd.ops.nn import activations, cross_entropy

pytest.importorskip("numba")

DTYPES = [np.float32, np.float64]
SIZE = compiled.LEAST + 3
RNG = np.random.default_rng(7)


def find_with(monkeypatch: pytest.MonkeyPatch, find: Any) -> None:
    """Put a function in the place of `compiled.find`, which operations know as `kernels.loop`."""
    for module, name in ((compiled, "find"), (activations, "loop"), (cross_entropy, "loop")):
        monkeypatch.setattr(module, name, find)


@pytest.fixture
def numpy_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs a call twice: with the loops, and without."""

    def both(run: Any) -> tuple[Any, Any]:
        found: list[str] = []
        real = compiled._found.__wrapped__  # functools.cache has it

        def spy(name: str, dtype: Any) -> Any:
            loop = real(name, dtype)
            return loop and (lambda *args: (found.append(name), loop(*args))[1])

        find_with(monkeypatch, spy)
        with_loops = run()
        assert found, "no loop was used"
        find_with(monkeypatch, lambda name, dtype: None)
        return with_loops, run()

    yield both


def drawn(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def close(a: Any, b: Any, dtype: Any) -> None:
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 if dtype == np.float32 else 1e-13, rtol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_momentum(dtype: Any, numpy_only: Any) -> None:
    p, v, gradients = drawn(SIZE, dtype=dtype), drawn(SIZE, dtype=dtype), drawn(3, SIZE, dtype=dtype)
    gradients.flags.writeable = False

    def run() -> Any:
        w = ag.Parameter(p)
        optimizer = optim.SGD([w], lr=0.1, momentum=0.9)
        optimizer.velocity[0] = v.copy()
        for g in gradients:
            w.grad = ag.tensor(g)
            optimizer.step()
        return w.array, optimizer.velocity[0]

    with_loops, without = numpy_only(run)
    close(with_loops, without, dtype)
    u = v.astype(float)
    for g in gradients:
        u = 0.9 * u + g
    close([with_loops[1]], [u], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam(dtype: Any, decoupled: bool, decay: float, numpy_only: Any) -> None:
    p, gradients = drawn(61, 307, dtype=dtype), drawn(3, 61, 307, dtype=dtype)
    gradients.flags.writeable = False

    def run() -> Any:
        q, m, v = p.copy(), np.zeros_like(p), np.zeros_like(p)
        for step, g in enumerate(gradients, 1):
            adam(q, g, m, v, step=step, lr=0.01, weight_decay=decay, decoupled=decoupled)
        return q, m, v

    close(*numpy_only(run), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype: Any, numpy_only: Any) -> None:
    x, w, b, ct = (drawn(*s, dtype=dtype) for s in ((129, 130), (130,), (130,), (129, 130)))
    for each in (x, w, b, ct):
        each.flags.writeable = False
    kernel = kernels.find("norms.layer_norm", (x, w, b))
    assert kernel is not None

    def run() -> Any:
        y, kept = kernel.forward((x, w, b), (1e-5,), True)
        return (y, *kept, *kernel.backward(ct, kept, (x, w, b), (1e-5,), (True, True, True), True))

    close(*numpy_only(run), dtype)
    _, kept = kernel.forward((x, w, b), (1e-5,), True)
    dx, dw, db = kernel.backward(ct, kept, (x, w, b), (1e-5,), (True, False, True), True)
    assert dx is not None and dw is None and db is not None


def test_layer_norm_of_a_row_of_a_million(numpy_only: Any) -> None:
    """Sums of float32 are worked out several at a time, and so do not lose digits one by one."""
    x = drawn(1, 1 << 20) + 3
    w, b = np.ones(1 << 20, np.float32), np.zeros(1 << 20, np.float32)
    kernel = kernels.find("norms.layer_norm", (x, w, b))
    assert kernel is not None
    (y,), _ = numpy_only(lambda: (kernel.forward((x, w, b), (1e-5,), False)[0],))
    exact = x.astype(float)
    np.testing.assert_allclose(y, (exact - exact.mean()) / exact.std(), atol=1e-4)


@pytest.mark.parametrize("ignored", [None, -100, 3])
def test_cross_entropy_of_large_logits(ignored: int | None) -> None:
    """Large losses have no loop: NumPy's passes are faster. They agree with float64."""
    x, ct = 4 * drawn(300, 130) + 200, drawn(300)  # exp does not bear 200
    labels = RNG.integers(0, 130, 300)
    if ignored is not None:
        labels[::7] = ignored
    for each in (x, ct, labels):
        each.flags.writeable = False
    kernel = kernels.find("losses.cross_entropy", (x, labels))
    assert kernel is not None
    options = (ignored, 0.0)

    losses, kept = kernel.forward((x, labels), options, True)
    first = kernel.backward(ct, kept, (x, labels), options, (True, False), False)[0]
    one = kernel.backward(np.broadcast_to(ct[:1], 300), kept, (x, labels), options, (True, False), True)[0]
    exps = np.exp(x.astype(float) - 200)
    sums, used = exps.sum(1), labels != ignored
    rows, classes = np.arange(300), np.where(used, labels, 0)
    slope = exps / sums[:, None]
    slope[rows, classes] -= 1
    slope *= used[:, None]
    close([losses, first, one], [used * (np.log(sums) + 200 - x[rows, classes]), slope * ct[:, None], slope * ct[0]],
          np.float32)  # fmt: skip


def test_a_label_that_is_no_class_is_refused() -> None:
    x = drawn(300, 130)
    for wrong in (130, 1 << 40):
        labels = np.zeros(300, np.int64)
        kernel = kernels.find("losses.cross_entropy", (x, labels))
        assert kernel is not None
        losses, kept = kernel.forward((x, labels), (None, 0.0), True)
        labels[299] = wrong
        with pytest.raises(IndexError):
            kernel.forward((x, labels), (None, 0.0), True)
        with pytest.raises(IndexError):
            kernel.backward(losses, kept, (x, labels), (None, 0.0), (True, False), False)


def test_small_losses_are_the_loops_too(numpy_only: Any) -> None:
    x, labels = drawn(7, 5), RNG.integers(0, 5, 7)

    def run() -> Any:
        p = ag.Parameter(x)
        with ag.Tape() as tape:
            loss = nn.cross_entropy(p, labels, reduction="sum") / 7
        tape.backward(loss)
        return loss.numpy(), p.grad.numpy()

    close(*numpy_only(run), np.float32)
    for wrong in (-1, 5):
        labels[3] = wrong
        with pytest.raises(ag.ShapeError, match=r"needed: labels in 0\.\.4"):
            nn.cross_entropy(ag.Parameter(x), labels, reduction="sum")


def test_relu(numpy_only: Any) -> None:
    x, ct = drawn(9, 11), drawn(9, 11)
    x[0, :3], ct[1, :2] = [0, -0.0, np.nan], [np.inf, np.nan]

    def run() -> Any:
        p = ag.Parameter(x)
        with ag.Tape() as tape:
            y = nn.relu(p)
        tape.backward(y, ct)
        return (p.grad.numpy(),)

    with np.errstate(invalid="ignore"):
        with_loops, without = numpy_only(run)
    np.testing.assert_array_equal(*with_loops, *without)


def test_small_programs_of_float64_do_not_wait_for_numba() -> None:
    program = """
import sys, numpy, autograd as ag
from autograd import nn, optim
p = ag.Parameter(numpy.ones((4, 3)))
opt = optim.SGD([p], lr=0.1, momentum=0.9)
with ag.Tape() as tape:
    loss = nn.cross_entropy(nn.relu(p), numpy.array([0, 1, 2, 0]), reduction="sum")
tape.backward(loss); opt.step()
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_gelu(numpy_only: Any) -> None:
    x = np.concatenate([drawn(SIZE), np.linspace(-120, 120, 10_001, dtype=np.float32)])
    kernel = kernels.find("activations.gelu", (x,))
    assert kernel is not None
    with_loops, without = numpy_only(lambda: kernel.forward((x,), ("tanh",), True))
    for one, other in zip(with_loops, without, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)
    u = x.astype(float)
    u = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
    np.testing.assert_allclose(with_loops[0], u, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("classes", [5, 5000])
def test_nan_and_infinite_logits_stay(classes: int) -> None:
    """A NaN anywhere in a row is a NaN of its loss; a class that is masked has no part in the gradient at all."""
    for nan_at in (0, 3, 4):
        p = ag.Parameter(drawn(6, classes))
        p.data[1, nan_at] = np.nan
        p.data[2, 0] = -np.inf
        with ag.Tape() as tape:
            losses = nn.cross_entropy(p, np.array([0, 1, 2, 3, 4, 0]), reduction="none")
        tape.backward(losses, np.ones(6, np.float32))
        assert np.isnan(losses.numpy()).tolist() == [False, True, False, False, False, False]
        grad = p.grad.numpy()
        assert np.isnan(grad[1]).all() and grad[2, 0] == 0 and np.isfinite(grad[[0, 2, 3, 4, 5]]).all()


def test_shapes_that_do_not_fit_are_numpys() -> None:
    """A loop would read beyond the end of what is too short."""
    y, ct = np.abs(drawn(7, 300)), drawn(1, 300)
    np.testing.assert_array_equal(registry["relu"].adjoint[0](ct, y, None), ct * (y > 0))
    x, short, ones = drawn(60, 300), drawn(1), np.ones(300, np.float32)
    kernel = kernels.find("norms.layer_norm", (x, short, short))
    assert kernel is not None
    y, kept = kernel.forward((x, short, short), (1e-5,), True)
    whole = kernel.forward((x, short * ones, short * ones), (1e-5,), True)[0]
    np.testing.assert_allclose(y, whole, rtol=1e-4, atol=1e-5)
    p = np.ones(SIZE, np.float32)
    assert not momentum(p, p.copy(), p[:-1], 0.1, 0.9)
    with pytest.raises(ValueError, match="broadcast"):
        adam(p, np.ones(SIZE - 1, np.float32), p.copy(), p.copy(), step=1, lr=0.1)


def test_gelu_at_the_ends() -> None:
    x = np.resize(np.array([-np.inf, -1e30, -20.0, -0.0, 0.0, 20.0, 1e10, np.nan], np.float32), compiled.LEAST)
    kernel = kernels.find("activations.gelu", (x,))
    assert kernel is not None
    y, d = kernel.forward((x,), ("tanh",), True)
    np.testing.assert_array_equal(y[1:8], [0, 0, 0, 0, 20, 1e10, np.nan])
    np.testing.assert_array_equal(d[2:7], [0, 0.5, 0.5, 1, 1])
    assert np.isnan(d[7])


def test_small_and_strided_arrays_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    find_with(monkeypatch, lambda name, dtype: lambda *args: used.append(name))
    p, m, v = (np.ones(SIZE) for _ in range(3))
    adam(p[:100], np.ones(100), m[:100], v[:100], step=1, lr=0.1)
    adam(p, np.ones(2 * SIZE)[::2], m, v, step=1, lr=0.1)
    adam(p, np.ones(SIZE, np.float32), m, v, step=1, lr=0.1)
    assert not momentum(p, v, np.ones(2 * SIZE)[::2], 0.1, 0.9)
    assert not used


@pytest.mark.parametrize("has_loops", [True, False])
def test_read_only_is_refused(has_loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_loops:
        find_with(monkeypatch, lambda name, dtype: None)
    for which in range(3):
        arrays = [np.ones(SIZE, np.float32) for _ in range(3)]
        arrays[which].flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            adam(arrays[0], np.ones(SIZE, np.float32), *arrays[1:], step=1, lr=0.1)
        assert all((x == 1).all() for x in arrays)
    p, v = np.ones(SIZE, np.float32), np.ones(SIZE, np.float32)
    p.flags.writeable = False
    assert not momentum(p, v, np.ones(SIZE, np.float32), 0.1, 0.9)  # NumPy does it, and refuses


@pytest.mark.parametrize("environment", [{"RINGTAPE_COMPILED": "0"}, {"WITHOUT": "numba"}, {"BROKEN": "numba"}])
def test_without(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs an older NumPy')")
    program = """
import os, sys, warnings
if os.environ.get("WITHOUT"):
    sys.modules["numba"] = None
if os.environ.get("BROKEN"):
    sys.path.insert(0, os.environ["BROKEN_PATH"])
warnings.simplefilter("always")
seen = []
warnings.showwarning = lambda message, *rest: seen.append(str(message))
import numpy, autograd as ag
from autograd import optim
p = ag.Parameter(numpy.ones(100_000, numpy.float32))
opt = optim.Adam([p], lr=0.5)
with ag.Tape() as tape:
    loss = (p * p).sum()
tape.backward(loss); opt.step()
assert abs(p.numpy() - 0.5).max() < 1e-6
assert sys.modules.get("numba") is None
assert len(seen) == bool(os.environ.get("BROKEN")), seen
assert all("Numba needs an older NumPy" in said for said in seen)
"""
    environment = {**os.environ, **environment, "BROKEN_PATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", program], check=False, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_recorded_or_not_is_the_same() -> None:
    """To the last bit, and in blocks."""
    x, w, labels = drawn(300, 1300), drawn(1300), RNG.integers(0, 1300, 300)
    for name, operands, options in (
        ("activations.gelu", (x,), ("tanh",)),
        ("norms.layer_norm", (x, w, w), (1e-5,)),
        ("losses.cross_entropy", (x, labels), (None, 0.0)),
    ):
        kernel = kernels.find(name, operands)
        assert kernel is not None
        (kept, _), (bare, nothing) = (kernel.forward(operands, options, keep) for keep in (True, False))
        np.testing.assert_array_equal(kept, bare)
        assert nothing is None
