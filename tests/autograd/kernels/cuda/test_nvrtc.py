"""All programs compile for a GPU: ``pip install 'ringtape[nvrtc]'`` has NVIDIA's compiler, which needs no GPU."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

import autograd.kernels.cuda as folder
from autograd.arrays.runtime import Program

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
