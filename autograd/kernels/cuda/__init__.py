"""Kernels in CUDA C++ for the arrays of a GPU: the twins of the files of the same names in `autograd.kernels`.

`source` has the kernels. Each Python file says which program it uses, lists its kernels, and computes their grids. A
program is launched through the runtime of its operands (`autograd.arrays.runtime`), so the same files serve CuPy's
arrays and, in the tests, arrays of a simulated device whose runtime runs the kernels on the CPU. For that the sources
use only CUDA's blocks, threads, shared memory, barriers, shuffles and atomics, and the types of ``common.cuh``. They
include no header.
"""

from __future__ import annotations

from .program import NULL, TYPES, launch, launch_known, program, type_name, wide

__all__ = ["NULL", "TYPES", "launch", "launch_known", "program", "type_name", "wide"]
