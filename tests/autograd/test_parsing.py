"""Parsing Python text on threads: CPython 3.11 fails at random where two threads do it at the same time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import autograd.numpy as anp
import collectives as cc
from autograd import formula, nn
from autograd.engine.primitive import registry


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let the garbage collector, which runs in mid-parse, run often, and let threads alternate while it does."""

    def run_python_code(phase: str, info: dict[str, int]) -> None:
        for _ in range(200):
            pass

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(5)
    gc.callbacks.append(run_python_code)
    yield
    gc.callbacks.remove(run_python_code)
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def test_ranks_on_threads_read_files(hasty: None, tmp_path: Path) -> None:
    layer = nn.Linear(2, 1)
    nn.save(layer, tmp_path / "model.npz")

    def program() -> None:
        for _ in range(10):
            nn.load(layer, tmp_path / "model.npz")
            nn.contents(tmp_path / "model.npz")

    cc.run(program, 3)


def test_ranks_on_threads_gather_arrays(hasty: None) -> None:
    def program() -> None:
        with cc.Mesh(dp=3) as mesh:
            for seed in range(20):
                mine = np.full((2, seed % 3), mesh.axis("dp").rank + seed, np.float32)
                found = mesh.arrays_of_all(mine, "dp", "test")
                for rank, x in enumerate(found):
                    assert (x == seed + rank).all()
                    assert x.dtype == np.float32 and x.flags.writeable and x.shape == mine.shape

    cc.run(program, 3)


def test_ranks_on_threads_read_documentation(hasty: None) -> None:
    def program() -> None:
        formula._lambdas.cache_clear()
        for name in ("multiply", "arctan2", "tanh"):
            assert formula.docstring(registry[name])
        assert "exp" in (anp.exp.__doc__ or "")

    cc.run(program, 3)
