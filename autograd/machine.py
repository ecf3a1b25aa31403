"""The processor and the libraries of this process, on which bits and speed depend besides the program."""

from __future__ import annotations

import ctypes
import platform
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["about", "environment_of_bits", "processor", "products", "speed"]

_WIDTH, _TIMES = 512, 12


def environment_of_bits() -> dict[str, Any]:
    """Return what the bits of a step depend on besides the program, its data and its seeds.

    Two runs with ``Trainer(..., bits="same")`` have the same bits if these are equal.

    Returns
    -------
    dict
        Strings, numbers and None, as JSON has them: ``machine`` and ``libc``; ``numpy``, its version, and
        ``numpy_simd``, the vector extensions that its loops use; ``blas`` and ``blas_version``; ``blas_kernel`` and
        ``blas_threads``, which OpenBLAS tells, else None; ``numba``, the version of the compiler of the fused kernels,
        or None.

    Examples
    --------
    >>> import numpy
    >>> from autograd.machine import environment_of_bits
    >>> found = environment_of_bits()
    >>> found["numpy"] == numpy.__version__, found == environment_of_bits()
    (True, True)
    """
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    kernel, threads = _openblas()
    return {
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "numpy": np.__version__,
        "numpy_simd": ", ".join(config.get("SIMD Extensions", {}).get("found", [])),
        "blas": blas.get("name"),
        "blas_version": blas.get("version"),
        "blas_kernel": kernel,
        "blas_threads": threads,
        "numba": _version("numba"),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _openblas() -> tuple[str | None, int | None]:
    """The kernel and the number of threads of the OpenBLAS that is loaded, or None where there is none."""
    for path in _loaded("openblas"):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for before in ("scipy_", ""):  # NumPy's wheels rename the functions
            for after in ("64_", "_64", ""):
                try:
                    name = getattr(library, f"{before}openblas_get_corename{after}")
                    threads = getattr(library, f"{before}openblas_get_num_threads{after}")
                except AttributeError:
                    continue
                name.restype, threads.restype = ctypes.c_char_p, ctypes.c_int
                return name().decode(), int(threads())
    return None, None


def _loaded(word: str) -> list[str]:
    """The paths of the shared libraries of this process whose file names contain `word`."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    found = re.findall(r"(/\S+)$", maps, re.MULTILINE)
    return sorted({path for path in found if word in path.rpartition("/")[2]})


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the processor."""
    try:
        text = info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def speed(dtype: str) -> float:
    """GFLOP/s of a product of two matrices of 512 x 512 with as many threads as it uses: the best of some."""
    a = np.ones((_WIDTH, _WIDTH), dtype)
    out, best = np.empty_like(a), float("inf")
    for _ in range(_TIMES):
        start = time.perf_counter()
        np.matmul(a, a, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * _WIDTH**3 / best / 1e9


def products() -> str:
    """The library that computes matrix products in this process, its kernel, threads and speed."""
    of = environment_of_bits()
    library = f"{of['blas'] or 'an unknown library'} {of['blas_version'] or ''}".strip()
    kernel = f", kernel {of['blas_kernel']}, {of['blas_threads']} thread(s)" if of["blas_kernel"] else ""
    return f"{library}{kernel}: {speed('float32'):.0f} GFLOP/s in float32, {speed('float64'):.0f} in float64"


def about() -> str:
    """One line about what computes, for reports of benchmarks.

    Examples
    --------
    >>> from autograd.machine import about
    >>> about()
    '...; NumPy ..., ... GFLOP/s in float32, ... in float64'
    """
    return f"{processor()}; NumPy {np.__version__}, {products()}"
