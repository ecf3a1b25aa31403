"""The processor and the libraries of this process, on which bits and speed depend besides the program."""

from __future__ import annotations

import ctypes
import platform
import re
import time
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .arrays.blas import Library, path_of_mkl
from .arrays.products import library

__all__ = ["about", "environment_of_bits", "processor", "products", "products_by_mkl", "speed"]

_WIDTH, _TIMES = 512, 12
_ROWS, _LAYERS = 1024, ((256, 768), (256, 256), (256, 1024), (1024, 256), (256, 104))  # those of `examples/gpt.py`


def environment_of_bits() -> dict[str, Any]:
    """Return what the bits of a step depend on besides the program, its data and its seeds.

    Two runs with ``Trainer(..., bits="same")`` have the same bits if these are equal.

    Returns
    -------
    dict
        Strings, numbers and None, as JSON has them: ``machine`` and ``libc``; ``numpy``, its version, and
        ``numpy_simd``, the vector extensions that its loops use; ``blas`` and ``blas_version``; ``blas_kernel`` and
        ``blas_threads``, which OpenBLAS tells, else None; ``products``, the library of ``RINGTAPE_BLAS``, or None;
        ``numba``, the version of the compiler of the fused kernels, or None.

    Examples
    --------
    >>> import numpy
    >>> from autograd.machine import environment_of_bits
    >>> found = environment_of_bits()
    >>> found["numpy"] == numpy.__version__, found == environment_of_bits()
    (True, True)
    """
    fixed, openblas = _of_process()
    if openblas is None:
        return dict(fixed)
    kernel, threads = openblas
    return {**fixed, "blas_kernel": kernel().decode(), "blas_threads": int(threads())}


@cache  # once; without it each checkpoint takes some ms longer: it looks at the libraries of the process
def _of_process() -> tuple[dict[str, Any], tuple[Any, Any] | None]:
    """The facts that stay the same during a process, and OpenBLAS's functions that tell the rest, if it is there."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    try:
        numba = metadata.version("numba")
    except metadata.PackageNotFoundError:
        numba = None
    found = {
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "numpy": np.__version__,
        "numpy_simd": ", ".join(config.get("SIMD Extensions", {}).get("found", [])),
        "blas": blas.get("name"),
        "blas_version": blas.get("version"),
        "blas_kernel": None,
        "blas_threads": None,
        "products": None if library is None else library.path.rpartition("/")[2],
        "numba": numba,
    }
    return found, _openblas()


def _openblas() -> tuple[Any, Any] | None:
    """The functions of the kernel's name and of the number of threads of the OpenBLAS that is loaded, if one is."""
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
                return name, threads
    return None


def _loaded(word: str) -> list[str]:
    """The paths of the shared libraries of this process whose file names contain `word`."""
    try:
        with open("/proc/self/maps") as file:
            maps = file.read()
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


def speed(dtype: str, dot: Callable[..., Any] = np.dot) -> float:
    """GFLOP/s of a product of two matrices of 512 x 512 with as many threads as it uses: the best of some."""
    a = np.ones((_WIDTH, _WIDTH), dtype)
    return 2 * _WIDTH**3 / _best_s(dot, a, a, np.empty_like(a)) / 1e9


def _best_s(dot: Callable[..., Any], *arrays: Any) -> float:
    best = float("inf")
    for _ in range(_TIMES):
        start = time.perf_counter()
        dot(*arrays)
        best = min(best, time.perf_counter() - start)
    return best


def products() -> str:
    """The library that computes matrix products in this process, its kernel, threads and speed."""
    of = environment_of_bits()
    name = f"{of['blas'] or 'an unknown library'} {of['blas_version'] or ''}".strip()
    kernel = f", kernel {of['blas_kernel']}, {of['blas_threads']} thread(s)" if of["blas_kernel"] else ""
    found = f"{name}{kernel}: {_speeds(np.dot)}"
    return found if library is None else f"{found}; large ones by {library.path}: {_speeds(library.dot)}"


def _speeds(dot: Callable[..., Any]) -> str:
    return f"{speed('float32', dot):.0f} GFLOP/s in float32, {speed('float64', dot):.0f} in float64"


def products_by_mkl() -> str:
    """The time of Intel's MKL beside NumPy's, if it is installed, on products of linear layers.

    Raises
    ------
    LookupError
        It is not installed, or in use.
    """
    path = path_of_mkl()
    if path is None or library is not None:
        raise LookupError(f"not measured: {'MKL is not installed' if path is None else 'RINGTAPE_BLAS is set'}")
    mkl, times = Library(path), [0.0, 0.0]
    for n, m in _LAYERS:
        x, w, ct = (np.ones(shape, np.float32) for shape in ((_ROWS, n), (n, m), (_ROWS, m)))
        for a, b in ((x, w), (ct, w.T), (x.T, ct)):
            out = np.empty((len(a), b.shape[1]), np.float32)
            for i, dot in enumerate((np.dot, mkl.dot)):
                times[i] += _best_s(dot, a, b, out)
    return (
        f"{path}: {times[1] / times[0]:.2f} of NumPy's time on the products of layers of width 256 for 1,024 rows, "
        "float32 (RINGTAPE_BLAS=mkl chooses it)"
    )


def about() -> str:
    """One line about what computes, for reports of benchmarks.

    Examples
    --------
    >>> from autograd.machine import about
    >>> about()
    '...; NumPy ..., ... GFLOP/s in float32, ... in float64'
    """
    return f"{processor()}; NumPy {np.__version__}, {products()}"
