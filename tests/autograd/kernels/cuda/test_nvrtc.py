"""All programs compile for a GPU: ``pip install 'ringtape[nvrtc]'`` has NVIDIA's compiler, which needs no GPU."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any, NamedTuple

import pytest

import autograd.kernels.cuda as folder
from autograd.arrays.runtime import Program

from . import on_cpu

ARCHITECTURE = "sm_90"


def programs() -> dict[str, Program]:
    """The programs of all kernels."""
    found = {}
    for file in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{folder.__name__}.{file.name}")
        found.update({p.name: p for p in vars(module).values() if isinstance(p, Program)})
    return found


def compiled(nvrtc: Any, program: Program) -> tuple[bool, str]:
    """Whether NVRTC compiles a program, and its log."""
    _, made = nvrtc.nvrtcCreateProgram(program.text.encode(), program.name.encode(), 0, [], [])
    for kernel in program.kernels:
        nvrtc.nvrtcAddNameExpression(made, kernel.encode())
    options = [b"--std=c++17", f"--gpu-architecture={ARCHITECTURE}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(made, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(made)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(made, log)
    return status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()


class Used(NamedTuple):
    """What a kernel uses, as the assembler reports it."""

    registers: int
    spilled_bytes: int
    static_bytes: int


def report(nvrtc: Any, program: Program) -> dict[str, Used]:
    """What each kernel of a program uses."""
    _, made = nvrtc.nvrtcCreateProgram(program.text.encode(), program.name.encode(), 0, [], [])
    for kernel in program.kernels:
        nvrtc.nvrtcAddNameExpression(made, kernel.encode())
    options = [b"--std=c++17", f"--gpu-architecture={ARCHITECTURE}".encode(), b"--ptxas-options=-v"]
    nvrtc.nvrtcCompileProgram(made, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(made)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(made, log)
    names = {nvrtc.nvrtcGetLoweredName(made, kernel.encode())[1].decode(): kernel for kernel in program.kernels}
    found = {}
    for part in log.decode().split("Compiling entry function '")[1:]:
        numbers = [re.search(pattern, part) for pattern in
                   (r"Used (\d+) registers", r"(\d+) bytes spill stores", r"(\d+) bytes smem")]  # fmt: skip
        found[names[part.partition("'")[0]]] = Used(*(int(n[1]) if n else 0 for n in numbers))
    return found


@pytest.fixture
def nvrtc() -> Any:
    found = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (extra: nvrtc)")
    try:
        found.nvrtcVersion()
    except RuntimeError as error:  # the bindings without the compiler
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    return found


@pytest.mark.parametrize("name", sorted(programs()))
def test_every_program_compiles(name: str, nvrtc: Any) -> None:
    works, log = compiled(nvrtc, programs()[name])
    assert works, log


def test_a_program_with_a_mistake_does_not_compile(nvrtc: Any) -> None:
    works, log = compiled(nvrtc, Program("wrong", "__global__ void f() { missing(); }", ("f",)))
    assert not works and "missing" in log


SPILLED_BYTES = {
    "silu<double>": 48, "gelu_tanh<Half>": 4, "gelu_erf<Half>": 4, "gelu_erf<double>": 56,
    "class_terms_backward<double>": 112, "norm_backward_sums<double>": 8,
}  # fmt: skip
"""Of registers that do not suffice, for each thread, by NVRTC 12.9; 0 for the others."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(programs()))
def test_what_the_kernels_use(name: str, nvrtc: Any) -> None:
    """The simulated GPU counts the same static shared memory, and only the kernels listed spill registers."""
    found = report(nvrtc, programs()[name])
    assert sorted(found) == sorted(programs()[name].kernels)
    if not on_cpu.WHY_NOT:
        assert {k: used.static_bytes for k, used in found.items()} == on_cpu.static_bytes(programs()[name])
    more = {k: used for k, used in found.items() if used.spilled_bytes > SPILLED_BYTES.get(k, 0)}
    assert more == {}
