"""Products of few numbers that are written out: the bits of NumPy's, also for numbers that are not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from autograd.compiler import linear_algebra
from autograd.compiler.build import is_compiled
from autograd.compiler.linear_algebra import product_row
from autograd.compiler.machine import Operand, Table, is_available

from .running import same

pytestmark = pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")

SIZES = [(1, 1, 1), (2, 2, 2), (4, 2, 1), (1, 3, 5), (3, 5, 2), (4, 8, 8), (8, 4, 8), (2, 1, 7), (6, 6, 6), (16, 4, 4)]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e-300, 5e-324]


@pytest.fixture(autouse=True)
def _clear() -> Iterator[None]:
    linear_algebra._proved_product.cache_clear()
    yield
    linear_algebra._proved_product.cache_clear()


def operand(shape: tuple[int, ...], layout: str, random: np.random.Generator, dtype: str) -> Any:
    x = random.standard_normal(shape).astype(dtype)
    if layout == "special":
        with np.errstate(over="ignore"):
            x = np.where(random.random(shape) < 0.3, random.choice(SPECIAL, shape), x).astype(dtype)
    if layout == "tiny":  # most products are zeros of either sign
        info = np.finfo(dtype)
        x = random.choice([info.smallest_subnormal, -info.smallest_subnormal, info.tiny, -info.tiny, 0.0], shape)
        x = x.astype(dtype)
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if layout == "transposed" else x


@pytest.mark.parametrize("layout", ["plain", "transposed", "special", "tiny"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_small_products_have_the_bits_of_numpy(dtype: str, size: tuple[int, int, int], layout: str) -> None:
    m, k, n = size
    random = np.random.default_rng(m * k * n)
    for batch in ((), (3,), (2, 2)):
        for _ in range(20):
            a, b = operand((*batch, m, k), layout, random, dtype), operand((*batch, k, n), layout, random, dtype)
            with np.errstate(all="ignore"):
                needed = np.matmul(a, b)
            out = np.empty_like(needed)
            table = Table()
            table.add(product_row(*map(Operand.of, (a, b, out))), [(0, 0), (1, 0), (2, 0)])
            assert table.finish()(a, b, out) >= 0
            assert same(out, needed)


def test_small_products_are_written_out() -> None:
    """Those of squares of two rows, at least, unless this BLAS adds in an order of its own."""
    x = Operand("f8", (2, 2), (16, 8))
    if not is_compiled(product_row(x, x, x).function):
        pytest.skip("this BLAS adds in another order")
    large = Operand("f8", (16, 16), (128, 8))
    assert not is_compiled(product_row(large, large, large).function)


def _in_another_order(text: str) -> str:
    for old, new in (("x0_0,", "xK,"), ("x0_1,", "x0_0,"), ("xK,", "x0_1,"), ("y0_0,", "yK,"), ("y1_0,", "y0_0,"),
                     ("yK,", "y1_0,")):  # fmt: skip
        text = text.replace(f"double %{old}", f"double %{new}")
    return text


def _with_two_roundings(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if "@llvm.fma.f64(" in line:
            name, _, given = line.partition(" = call double @llvm.fma.f64(")
            a, b, c = (part.removeprefix("double ") for part in given.rstrip(")").split(", "))
            lines += [f"{name}p = fmul double {a}, {b}", f"{name} = fadd double {name.strip()}p, {c}"]
        else:
            lines.append(line)
    return "\n".join(lines)


FAULTS: dict[str, Callable[[str], str]] = {
    "other numbers": lambda text: text.replace("load double, ptr %yp1_0", "load double, ptr %yp0_0"),
    "two roundings": _with_two_roundings,
    "another order": _in_another_order,
}


@pytest.mark.parametrize("name", FAULTS)
def test_another_product_is_not_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Operand("f8", (2, 2), (16, 8))
    if not is_compiled(product_row(x, x, x).function):
        pytest.skip("this BLAS adds in another order")
    own, changed = linear_algebra.compile_texts, []

    def compiled(texts: list[str], names: list[str]) -> Any:
        wrong = [FAULTS[name](text) for text in texts]
        changed.append(wrong != texts)
        return own(wrong, names)

    monkeypatch.setattr(linear_algebra, "compile_texts", compiled)
    for cached in (linear_algebra._proved_product, linear_algebra._written_out):
        cached.cache_clear()
    try:
        assert not is_compiled(product_row(x, x, x).function)
    finally:
        linear_algebra._written_out.cache_clear()
    assert changed and all(changed)
