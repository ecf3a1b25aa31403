"""Products by a library that the environment names: NumPy's own, which every process has, called through CBLAS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autograd.arrays import products
from autograd.arrays.blas import LEAST, Library, path_of_mkl
from autograd.arrays.products import dot, library
from autograd.errors import OptionError, ShapeError
from autograd.machine import _loaded, environment_of_bits
from autograd.ops import contractions

np.ones((2, 2)) @ np.ones((2, 2))  # so that the library is loaded
PATHS = _loaded("openblas")
needs_openblas = pytest.mark.skipif(not PATHS, reason="NumPy's BLAS is not OpenBLAS, or /proc does not list it")


def forms(m: int, k: int, n: int, dtype: Any) -> list[tuple[str, Any, Any]]:
    """Pairs of matrices of one product, in the orders in memory that linear layers and their adjoints have."""
    rng = np.random.default_rng(m + k + n)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    wide = np.zeros((m, k + 3), dtype)
    wide[:, :k] = a
    return [
        ("rows", a, b), ("columns of a", np.asfortranarray(a), b), ("columns of b", a, np.asfortranarray(b)),
        ("columns", np.asfortranarray(a), np.asfortranarray(b)), ("a part of rows", wide[:, :k], b),
        ("every second", np.repeat(a, 2, axis=1)[:, ::2], b), ("reversed", a[::-1], b),
    ]  # fmt: skip


@needs_openblas
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "sizes", [(97, 101, 103), (1, 1024, 1024), (1024, 1, 1024), (3, 5, 7), (0, 4, 3), (640, 640, 2)]
)
def test_every_order_in_memory(sizes: tuple[int, int, int], dtype: str) -> None:
    by = Library(PATHS[0])
    for name, a, b in forms(*sizes, dtype):
        np.testing.assert_allclose(by.dot(a, b), a @ b, rtol=1e-4, atol=1e-4, err_msg=name)
        out = np.full((len(a), b.shape[1]), np.nan, dtype)
        assert by.dot(a, b, out) is out
        np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4, err_msg=name)


@needs_openblas
def test_large_products_of_two_floats_go_to_the_library() -> None:
    by = Library(PATHS[0])
    calls = []
    by._functions = {char: lambda *args, f=f: (calls.append(args), f(*args)) for char, f in by._functions.items()}
    n = round(LEAST ** (1 / 3)) + 1
    for dtype, count in (("float32", 1), ("float64", 1), ("float16", 0), ("int64", 0), ("complex64", 0)):
        calls.clear()
        a = np.ones((n, n), dtype)
        by.dot(a, a)
        assert len(calls) == count, dtype
    small = np.ones((8, 8), np.float32)
    by.dot(small, small), by.dot(np.ones((n, n), np.float32), np.ones((n, n))), by.dot(np.ones(n), np.ones((n, n)))
    by.matmul(np.ones((2, n, n)), np.ones((n, n)))
    assert not calls
    with pytest.raises(ValueError, match="not aligned"):
        by.dot(np.ones((n, n)), np.ones((n + 1, n)))


STEP = """
import numpy as np, autograd as ag
from autograd import nn, optim
from autograd.arrays import products
from autograd.machine import environment_of_bits
ag.random.seed(1)
x, y = np.random.default_rng(0).standard_normal((128, 96)).astype("float32"), np.arange(128) % 10
net = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
calls = []
if products.library:
    for char, f in dict(products.library._functions).items():
        products.library._functions[char] = lambda *args, f=f: (calls.append(1), f(*args))[1]
def step(x, y):
    opt.zero_grad()
    with ag.Tape() as tape:
        loss = nn.cross_entropy(net(x), y, reduction="sum") / len(y)
    tape.backward(loss)
    opt.step()
    return loss
captured = ag.capture(step)
losses = [float(captured(x, y).numpy()) for _ in range(8)]
print(losses[-1].hex(), bool(calls), environment_of_bits()["products"])
"""


def run(blas: str | None) -> subprocess.CompletedProcess[str]:
    given = {key: text for key, text in os.environ.items() if key != "RINGTAPE_BLAS"}
    if blas is not None:
        given["RINGTAPE_BLAS"] = blas
    return subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, env=given, check=False)


@needs_openblas
def test_a_step_by_the_named_library_has_the_bits_of_numpys() -> None:
    """The same library through both doors, in ordinary steps and in replayed ones."""
    plain, named = run(None), run(PATHS[0])
    assert plain.returncode == named.returncode == 0, plain.stderr + named.stderr
    ours, theirs = plain.stdout.split(), named.stdout.split()
    assert ours[0] == theirs[0]
    assert ours[-2:] == ["False", "None"] and theirs[-2:] == ["True", Path(PATHS[0]).name]


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none.so"), "libm.so.6"):
        with pytest.raises(OptionError, match="fix: the path of"):
            Library(path)
    done = run(str(tmp_path / "none.so"))
    assert done.returncode and "cannot be loaded" in done.stderr and "pip install mkl" in done.stderr


def test_without_the_variable_products_are_numpys(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((300, 200))
    assert library is None and environment_of_bits()["products"] is None
    assert dot(x, x.T).tobytes() == x.dot(x.T).tobytes()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmkl_rt.so.2").touch()
    assert path_of_mkl([str(tmp_path)]) == str(tmp_path / "lib" / "libmkl_rt.so.2")


@pytest.mark.parametrize("dtypes", ["ff", "fd", "FF", "ll"])
def test_a_large_product_of_three_dimensions_by_two_is_one(dtypes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(products, "dot", lambda *args: calls.append(args) or dot(*args))
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-9, 9, shape) for shape in ((4, 8, 256), (256, 512)))
    x, w = a.astype(dtypes[0]), b.astype(dtypes[1])
    for given, count in ((x, 1), (x[:, ::2], 0), (np.asfortranarray(x), 0), (x[:1], 0), (x[None], 1)):
        calls.clear()
        y = contractions.matmul(given, w)
        np.testing.assert_array_equal(y, given @ w)
        assert y.dtype == (given @ w).dtype and len(calls) == count
    with pytest.raises(ShapeError, match="256"):
        contractions.matmul(x, w[1:])
