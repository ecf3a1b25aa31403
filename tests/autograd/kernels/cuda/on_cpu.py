"""Runs CUDA C++ kernels on the CPU: builds a program with the system's C++ compiler behind the header ``on_cpu.h``."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy

from autograd.arrays.runtime import Program

HEADER = Path(__file__).with_name("on_cpu.h")
COMPILER = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
# -O1 takes longer to build than -O0 by what one run of the tests saves, and one build serves many runs
OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fno-strict-aliasing", "-ffp-contract=off",
           "-U_FORTIFY_SOURCE")  # fmt: skip
WHY_NOT = "" if COMPILER else "there is no C++ compiler (g++, c++ or clang++)"


class KernelError(RuntimeError):
    """A program does not compile, or a kernel did what a GPU does not allow."""


def source(program: Program) -> str:
    """The program as C++, with two functions for each kernel: its call, and the sizes of its parameters."""
    lines = ['\nextern "C" {']
    takes = "(void **given, const unsigned *grid, const unsigned *block, size_t bytes)"
    for number, kernel in enumerate(program.kernels):
        at = f"on_cpu::Entry<&{kernel}>"
        lines.append(f"const char *run_{number}{takes} {{ return on_cpu::run({at}::run, given, grid, block, bytes); }}")
        lines.append(f"int size_{number}(int i) {{ return {at}::size(i); }}")
    return "\n".join([f'#include "{HEADER.name}"', program.text, *lines, "}\n"])


def _build(name: str, text: str, built: Path) -> None:
    folder = built.parent
    with tempfile.TemporaryDirectory(dir=folder) as work:
        file = Path(work) / f"{name}.cpp"
        file.write_text(text)
        done = subprocess.run([str(COMPILER), *OPTIONS, "-I", str(HEADER.parent), "-o", f"{work}/built.so", str(file)],
                              capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode:
            raise KernelError(f"{name} does not compile:\n{done.stderr[:4000]}")
        os.replace(f"{work}/built.so", built)
    for other in folder.glob(f"{name}-*.so"):  # of sources that have changed since
        if other.stat().st_mtime < time.time() - 86_400:
            other.unlink(missing_ok=True)


@cache
def library(program: Program) -> ctypes.PyDLL:
    """The built program. All processes of this user share it, until a source changes."""
    text = source(program)
    key = hashlib.sha256("\0".join([text, HEADER.read_text(), str(COMPILER), *OPTIONS]).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"ringtape-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / f"{program.name}-{key}.so"
    with open(folder / f"{program.name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # where several processes need it, one builds it
        if not built.exists():
            _build(program.name, text, built)
    return ctypes.PyDLL(str(built))  # it keeps the interpreter's lock: a program has one simulated GPU


def run(
    program: Program, kernel: str, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any],
    shared_bytes: int,
) -> None:  # fmt: skip
    """Run a kernel. Arguments are NumPy arrays, whose addresses are passed, and NumPy scalars."""
    number, built = program.kernels.index(kernel), library(program)
    size = getattr(built, f"size_{number}")
    values: list[Any] = []
    for at, x in enumerate(arguments):
        given = numpy.asarray(x) if isinstance(x, numpy.generic) else numpy.asarray(x.ctypes.data, numpy.uintp)
        if size(at) != given.nbytes:
            raise KernelError(f"{kernel}: argument {at} has {given.nbytes} bytes, and the parameter {size(at)}")
        values.append(given)
    if size(len(arguments)) != -1:
        raise KernelError(f"{kernel}: {len(arguments)} arguments were given, and it has more parameters")
    pointers = (ctypes.c_void_p * max(len(values), 1))(*(v.ctypes.data for v in values))
    whole = [(ctypes.c_uint * 3)(*([*dims, 1, 1][:3])) for dims in (grid, block)]
    call = getattr(built, f"run_{number}")
    call.restype = ctypes.c_char_p
    problem = call(pointers, *whole, ctypes.c_size_t(shared_bytes))
    if problem is not None:
        raise KernelError(f"{kernel}: {problem.decode()}")
