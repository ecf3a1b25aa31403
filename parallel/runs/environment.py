"""The libraries, their kernels and threads, on which the bits of a computation depend besides its program."""

from __future__ import annotations

import ctypes
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["environment_of_bits"]


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
    >>> from parallel.runs import environment_of_bits
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
