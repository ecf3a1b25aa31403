"""Runs CUDA C++ kernels on the CPU: builds a program with the system's C++ compiler behind the header ``on_cpu.h``."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import re
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
           "-U_FORTIFY_SOURCE", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error",
           "-fno-sanitize=vptr")  # fmt: skip
guards = False  # whether operands are copied between pages without access; the kernels' tests set it
WHY_NOT = "" if COMPILER else "there is no C++ compiler (g++, c++ or clang++)"


class KernelError(RuntimeError):
    """A program does not compile, or a kernel did what a GPU does not allow."""


def source(program: Program) -> str:
    """The program as C++, with two functions for each kernel: its call, and the sizes of its parameters."""
    lines = ['\nextern "C" {']
    takes = "(void **given, const unsigned *grid, const unsigned *block, size_t bytes, uint64_t skip)"
    for number, kernel in enumerate(program.kernels):
        at = f"on_cpu::Entry<&{kernel}>"
        call = f"on_cpu::run({at}::run, given, grid, block, bytes, skip)"
        lines.append(f"const char *run_{number}{takes} {{ return {call}; }}")
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


# -- shared memory and launch bounds -----------------------------------------------------------------------------------


@cache
def static_bytes(program: Program) -> dict[str, int]:
    """The static shared memory of each kernel: in the built program, the static variables inside its function."""
    found = dict.fromkeys(program.kernels, 0)
    tool = shutil.which("nm")
    if tool is None:
        return found
    listed = subprocess.run([tool, "-S", "-C", library(program)._name], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        parts = re.match(r"[0-9a-f]+ ([0-9a-f]+) [bBdDuV] (.*)", line)
        name = parts and re.match(r"(?:void )?(.+)\(.*\)::\w+$", parts[2])
        if parts and name:
            inside = re.sub(r"\s|\(\w+\)|(?<=\d)[lLuU]+", "", name[1])
            for kernel in program.kernels:
                if re.sub(r"\s", "", kernel).replace("Index", "longlong") in (inside, inside.replace("::", "", 1)):
                    found[kernel] += int(parts[1], 16)
    return found


_BOUNDS = re.compile(r"(?:template <([^{};]*)>\s*)?__global__ void\s+__launch_bounds__\(([^,)]*)[^)]*\)\s*(\w+)\(")


@cache
def most_threads(program: Program) -> dict[str, int]:
    """The threads of a block for which each kernel is compiled: its `__launch_bounds__`, or 1,024."""
    bounds = {name: (words or "", bound) for words, bound, name in _BOUNDS.findall(program.text)}
    found = {}
    for kernel in program.kernels:
        head, _, given = kernel.partition("<")
        name, given = head.rpartition("::")[2], given.rstrip(">")
        words, bound = bounds.get(name, ("", "1024"))
        names = [word.split()[-1] for word in words.split(", ") if word]
        values = {n: int(v) for n, v in zip(names, given.split(", "), strict=False) if v.lstrip("-").isdigit()}
        found[kernel] = int(eval(bound, {}, values))  # such as 32 * WARPS
    return found


# -- memory beside pages without access --------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Guarded:
    """A copy of an array's memory, at the end of its pages, between pages without access.

    It keeps its place in 16 bytes, because a kernel may be launched for that. So up to 15 bytes behind it can be
    accessed: no pack at a multiple of its size reaches beyond them.
    """

    def __init__(self, owner: numpy.ndarray):
        self.owner, page = owner, mmap.PAGESIZE
        self.first, size = _bytes_of(owner)
        slack = -(self.first + size) % 16
        pages = -(-(size + slack + 16) // page)
        self._map = mmap.mmap(-1, (pages + 2) * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for at in (0, (pages + 1) * page):
            if _libc.mprotect(start + at, page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.start, self.size = start + (pages + 1) * page - slack - size, size
        ctypes.memset(self.start - (self.start - start - page), 0xFF, pages * page)
        ctypes.memmove(self.start, self.first, size)

    def close(self) -> None:
        """Copy back what the kernel has written, and free the copy."""
        if self.owner.flags.writeable:
            ctypes.memmove(self.first, self.start, self.size)


def _bytes_of(owner: numpy.ndarray) -> tuple[int, int]:
    low, high = numpy.lib.array_utils.byte_bounds(owner)
    return low, high - low


def _owner(x: numpy.ndarray) -> numpy.ndarray:
    while isinstance(x.base, numpy.ndarray):
        x = x.base
    return x


def run(
    program: Program, kernel: str, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any],
    shared_bytes: int, skip: int = 0,
) -> None:  # fmt: skip
    """Run a kernel. Arguments are NumPy arrays, whose addresses are passed, and NumPy scalars.

    The first `skip` blocks are left out. With `guards` the kernel works on copies of the arrays between pages without
    access.
    """
    threads, static = int(numpy.prod(block)), static_bytes(program)[kernel]
    if threads > most_threads(program)[kernel]:
        bound = most_threads(program)[kernel]
        raise KernelError(f"{kernel}: {threads} threads of a block, and launch bounds of {bound}")
    if static > 48 << 10:
        raise KernelError(f"{kernel}: {static} bytes of static shared memory; a kernel may have 48 KiB")
    if static + shared_bytes > 227 << 10:
        raise KernelError(f"{kernel}: {static} static and {shared_bytes} dynamic bytes of shared memory")
    number, built = program.kernels.index(kernel), library(program)
    size = getattr(built, f"size_{number}")
    values: list[Any] = []
    copies: dict[int, Guarded] = {}
    for at, x in enumerate(arguments):
        if isinstance(x, numpy.generic):
            given = numpy.asarray(x)
        elif not guards or not x.nbytes:
            given = numpy.asarray(x.ctypes.data, numpy.uintp)
        else:
            owner = _owner(x)
            copy = copies[id(owner)] = copies.get(id(owner)) or Guarded(owner)
            given = numpy.asarray(copy.start + x.ctypes.data - copy.first, numpy.uintp)
        if size(at) != given.nbytes:
            raise KernelError(f"{kernel}: argument {at} has {given.nbytes} bytes, and the parameter {size(at)}")
        values.append(given)
    if size(len(arguments)) != -1:
        raise KernelError(f"{kernel}: {len(arguments)} arguments were given, and it has more parameters")
    pointers = (ctypes.c_void_p * max(len(values), 1))(*(v.ctypes.data for v in values))
    whole = [(ctypes.c_uint * 3)(*([*dims, 1, 1][:3])) for dims in (grid, block)]
    call = getattr(built, f"run_{number}")
    call.restype = ctypes.c_char_p
    problem = call(pointers, *whole, ctypes.c_size_t(shared_bytes), ctypes.c_uint64(skip))
    for copy in copies.values():
        copy.close()
    if problem is not None:
        raise KernelError(f"{kernel}: {problem.decode()}")
