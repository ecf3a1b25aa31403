"""The kernel that adds the ranks' arrays, on the CPU: against NumPy, in order of rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectives.transports.device.ipc import _TYPES, MOST_RANKS, PROGRAM

from ....autograd.kernels.cuda import on_cpu
from ....autograd.kernels.cuda.compiled_report import compile_program
from ....autograd.kernels.cuda.test_nvrtc import nvrtc  # noqa: F401  # a fixture


def drawn(dtype: str, size: int, rank: int) -> Any:
    rng = np.random.default_rng([size, rank])
    if dtype[0] in "iu":
        return rng.integers(0, np.iinfo(dtype).max, size, dtype)
    x = rng.standard_normal(size) * 100
    return (x + 1j * rng.standard_normal(size) if dtype[0] == "c" else x).astype(dtype)


def added(parts: list[Any]) -> Any:
    """The sum in order of rank; of float16 in float32, rounded once."""
    total = parts[0].astype(np.float32) if parts[0].dtype == np.float16 else parts[0].copy()
    for part in parts[1:]:
        total = total + part
    with np.errstate(over="ignore"):
        return total.astype(parts[0].dtype)


def run(parts: list[Any], out: Any, dtype: str, blocks: int) -> None:
    numbers = out.view(dtype.replace("c8", "f4").replace("c16", "f8"))
    arguments = [*parts, *[np.uintp(0)] * (MOST_RANKS - len(parts)), out, np.int32(len(parts)), np.int64(numbers.size)]
    on_cpu.run(PROGRAM, f"add_ranks<{_TYPES[dtype]}>", (blocks,), (32,), arguments, 0)


@pytest.mark.skipif(bool(on_cpu.WHY_NOT), reason=on_cpu.WHY_NOT)
@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, MOST_RANKS])
def test_the_sum_has_the_bits_of_an_order_by_rank(dtype: str, ranks: int) -> None:
    for size, offset, blocks in ((0, 0, 1), (1, 0, 1), (37, 0, 2), (256, 0, 1), (50, 1, 1)):
        parts = [drawn(dtype, size + offset, rank)[offset:] for rank in range(ranks)]
        out = np.zeros(size + offset, dtype)[offset:]  # with an offset it begins at no multiple of 16 bytes
        run(parts, out, dtype, blocks)
        assert np.array_equal(out, added(parts)), (size, offset)


def test_the_program_compiles(nvrtc: Any) -> None:  # noqa: F811
    _, works, log = compile_program(nvrtc, PROGRAM)
    assert works, log
