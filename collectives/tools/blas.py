"""The processor and the library that compute matrix products on this host, and their speed."""

from __future__ import annotations

import ctypes
import platform
import time
from pathlib import Path

import numpy as np

__all__ = ["about", "library", "processor", "speed"]

_WIDTH, _TIMES = 512, 12
_NAMES = ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename64_",
          "openblas_get_corename")  # fmt: skip


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the processor, and its widest vector instructions."""
    name, flags = platform.processor() or platform.machine(), ""
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, text = line.partition(":")
            name = text.strip() if key.strip() == "model name" else name
            flags = text if key.strip() == "flags" else flags
    widest = next((each for each in ("avx512f", "avx2", "avx") if each in flags.split()), "")
    return f"{name}, {widest}" if widest else name


def _kernel() -> str:
    """The kernel that OpenBLAS has chosen for this processor; "" if it is another library."""
    maps = Path("/proc/self/maps")
    paths = {line.split()[-1] for line in maps.read_text().splitlines()} if maps.exists() else set()
    for path in sorted(path for path in paths if "openblas" in path):
        loaded = ctypes.CDLL(path)
        for name in _NAMES:
            if hasattr(loaded, name):
                function = getattr(loaded, name)
                function.restype = ctypes.c_char_p
                return str(function().decode())
    return ""


def library() -> str:
    """The library that computes NumPy's products, with its version and kernel."""
    found = (np.show_config(mode="dicts") or {}).get("Build Dependencies", {}).get("blas", {})
    kernel = _kernel()
    name = f"{found.get('name', 'an unknown library')} {found.get('version', '')}".strip()
    return f"{name}, kernel {kernel}" if kernel else name


def speed(dtype: str) -> float:
    """GFLOP/s of a product of two matrices of 512 x 512 with as many threads as it uses: the best of some."""
    a = np.ones((_WIDTH, _WIDTH), dtype)
    out, best = np.empty_like(a), float("inf")
    for _ in range(_TIMES):
        start = time.perf_counter()
        np.matmul(a, a, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * _WIDTH**3 / best / 1e9


def about() -> str:
    """One line about processor, library and speed, for reports of benchmarks.

    Examples
    --------
    >>> from collectives.tools.blas import about
    >>> about()
    '...; NumPy ..., ... GFLOP/s in float32, ... in float64'
    """
    return (f"{processor()}; NumPy {np.__version__}, {library()}: {speed('float32'):.0f} GFLOP/s in float32, "
            f"{speed('float64'):.0f} in float64")  # fmt: skip
