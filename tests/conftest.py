"""What all tests share: the bytecode of the processes that they start."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _bytecode() -> Iterator[None]:
    """Where Python is told to keep no bytecode, hundreds of ranks would each compile all of it: half of their start."""
    if not sys.dont_write_bytecode:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="ringtape-bytecode-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", os.path.join(folder, "cache"))
        yield
