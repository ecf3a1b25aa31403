"""For the tests of kernels: the operands lie between pages without access."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import on_cpu


@pytest.fixture(autouse=True)
def operands_between_guards() -> Iterator[None]:
    """Let a kernel that accesses memory outside its operands fail."""
    before, on_cpu.guards = on_cpu.guards, True
    yield
    on_cpu.guards = before
