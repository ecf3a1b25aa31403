"""For the tests of kernels: the operands lie between pages without access."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from .... import emulator
from . import on_cpu


@pytest.fixture(autouse=True)
def operands_between_guards() -> Iterator[None]:
    """Let a kernel that accesses memory outside its operands fail."""
    before, on_cpu.guards = on_cpu.guards, True
    with own_allocations() if emulator.IS_USED else nullcontext():
        yield
    on_cpu.guards = before


@contextmanager
def own_allocations() -> Iterator[None]:
    """On the emulated GPU: a block in which each array is an allocation, behind which nobody may write."""
    import cupy

    with cupy.cuda.using_allocator(None):
        yield
    gc.collect()
    cupy.cuda.runtime.deviceSynchronize()
