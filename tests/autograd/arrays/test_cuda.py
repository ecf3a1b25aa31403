"""The runtime of CuPy with a module in the place of CuPy: launches, and the reasons why no GPU can be used."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from autograd.arrays import cuda
from autograd.arrays.runtime import Program


class Function:
    """A kernel with static shared memory, which refuses launches as CUDA does."""

    def __init__(self, shared_size_bytes: int):
        self.shared_size_bytes = shared_size_bytes
        self.max_dynamic_shared_size_bytes = 49_152 - shared_size_bytes
        self.launches: list[int] = []

    def __call__(self, grid: Any, block: Any, given: Any, *, shared_mem: int) -> None:
        assert shared_mem <= self.max_dynamic_shared_size_bytes, "CUDA_ERROR_INVALID_VALUE"
        self.launches.append(shared_mem)


@pytest.mark.parametrize("static_bytes", [0, 256, 1024, 2048])
def test_launches_near_the_limit_of_shared_memory(static_bytes: int) -> None:
    """Static and dynamic shared memory count together: `norm_backward` used to fail at widths 761 to 764."""
    function = Function(static_bytes)
    module = SimpleNamespace(get_function=lambda name: function)
    runtime: Any = cuda.CudaRuntime.__new__(cuda.CudaRuntime)
    runtime._made = {}
    runtime._cupy = SimpleNamespace(
        RawModule=lambda **options: module, cuda=SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0))
    )
    sizes = [0, 48_000, 49_152 - static_bytes, 49_153 - static_bytes, 49_152, 60_000, 49_152]
    for size in sizes:
        runtime.launch(Program("p", "", ("k",)), "k", (1,), (32,), (numpy.int32(1),), size)
    assert function.launches == sizes


@pytest.mark.parametrize("version, why", [
    ("13.6.0", "CuPy 13.6.0 is installed; needed: 14.1 or later (extra: gpu)"), ("14.0.1", "CuPy 14.0.1"),
    ("14.1.0", ""), ("14.10.0rc1", ""), ("15.0.0", ""),
])  # fmt: skip
def test_versions_of_cupy(version: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError)
    fake = SimpleNamespace(__version__=version, cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", fake)  # type: ignore[misc]
    found = cuda.why_not.__wrapped__()
    assert found.startswith(why) if why else not found
