"""Numbers that remember the number of ranks: through products and powers, and like plain numbers in everything else."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd.layouts.rank_values import LocalCount, RankInt
from autograd.layouts.sizes import Size, SizeFloat, size_of
from collectives import R

N = size_of(4, "dp")
F32 = np.ones(2, np.float32)

REMEMBERED: dict[str, tuple[Callable[[Any], Any], dict[str, int]]] = {
    "n * 2": (lambda n: n * 2, {"dp": 1}),
    "2 * n": (lambda n: 2 * n, {"dp": 1}),
    "n * 0.5": (lambda n: n * 0.5, {"dp": 1}),
    "n / 2": (lambda n: n / 2, {"dp": 1}),
    "1 / n": (lambda n: 1 / n, {"dp": -1}),
    "n * n": (lambda n: n * n, {"dp": 2}),
    "n / n": (lambda n: n / n, {}),
    "n * tp": (lambda n: n * size_of(3, "tp"), {"dp": 1, "tp": 1}),
    "prod": (lambda n: math.prod([2, n]), {"dp": 1}),
    "-n": (lambda n: -n, {"dp": 1}),
    "-(n / 3)": (lambda n: -(n / 3), {"dp": 1}),
    "abs": (abs, {"dp": 1}),
    "n**2": (lambda n: n**2, {"dp": 2}),
    "n**-1": (lambda n: n**-1, {"dp": -1}),
    "n**0.5": (lambda n: n**0.5, {"dp": Fraction(1, 2)}),
    "n**0": (lambda n: n**0, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", REMEMBERED)
def test_what_remembers(name: str) -> None:
    f, powers = REMEMBERED[name]
    found, plain = f(N), f(4)
    assert type(found) in (Size, SizeFloat) and dict(found.powers) == powers
    assert found == plain and repr(found) == repr(plain) and isinstance(found, type(plain))


FORGOTTEN: list[Callable[[Any], Any]] = [
    lambda n: n + 1, lambda n: 1 - n, lambda n: n // 3, lambda n: 7 % n, lambda n: 2**n, lambda n: n << 1,
    lambda n: n & 1, lambda n: divmod(7, n), int, float, complex, round, lambda n: range(n)[1],
    lambda n: sum([n, n]), lambda n: n == 4, lambda n: n < 5, lambda n: {n: 1}[4], json.dumps,
    lambda n: pickle.loads(pickle.dumps(n)),
    copy.deepcopy, lambda n: f"{n:03d}", lambda n: "x" * n, lambda n: [0] * n, lambda n: n == "a",
    lambda n: n in (1, 4), lambda n: np.zeros(n).shape, lambda n: np.asarray(n).dtype, lambda n: n * True,
    lambda n: n * 1j, lambda n: pow(n, 2, 3), lambda n: (-n) ** 0.5, lambda n: n**RankInt(1, ("dp",)),
]  # fmt: skip


@pytest.mark.parametrize("f", FORGOTTEN)
def test_what_forgets(f: Callable[[Any], Any]) -> None:
    assert f(N) == f(4) and type(f(N)) is type(f(4))


DTYPES: list[Callable[[Any], Any]] = [
    lambda n: F32 * n, lambda n: n * F32, lambda n: F32 / n, lambda n: F32 * (1 / n), lambda n: np.float32(2) / n,
    lambda n: n / np.float32(2), lambda n: np.ones(2, np.int32) * n, lambda n: np.float16(2) * n, np.sqrt,
    lambda n: ag.tensor(F32) / n, lambda n: n * ag.tensor(F32), lambda n: ag.tensor(F32) + n,
    lambda n: np.dot(n, ag.tensor(F32)),
]  # fmt: skip


@pytest.mark.parametrize("f", DTYPES)
def test_no_dtype_changes(f: Callable[[Any], Any]) -> None:
    found, plain = f(N), f(4)
    assert found.dtype == plain.dtype
    np.testing.assert_array_equal(getattr(found, "array", found), getattr(plain, "array", plain))


@pytest.mark.parametrize("number", [RankInt(1, ("dp",)), LocalCount(3, ("dp",))])
@pytest.mark.parametrize(
    "f",
    [lambda n, r: n - r, lambda n, r: r - n, lambda n, r: n * r, lambda n, r: r / n, lambda n, r: n % r,
     lambda n, r: n > r, np.maximum],
)  # fmt: skip
def test_a_rank_number_wins(f: Callable[[Any, Any], Any], number: Any) -> None:
    found = f(N, number)
    assert found.axes == {"dp"} and float(found) == float(f(4, number))


def test_on_a_mesh() -> None:
    def program() -> Any:
        with cc.Mesh(dp=2, tp=2) as mesh:
            x = cc.shard(ag.tensor(np.ones((6, 2)), {"dp": R, "tp": R}), "dp")
            sizes = mesh.axis("dp").size, mesh.axis(("dp", "tp")).size, mesh.sizes[1], cc.world().size
            return [n.powers for n in sizes], x.global_shape, x.global_shape[0].counts, x.global_shape[0].powers

    found = cc.run(program, 4)[0]
    assert found[0] == [(("dp", 1),), (("dp", 1), ("tp", 1)), (("tp", 1),), (("*", 1),)]
    assert found[1:] == ((6, 2), "all", ())
