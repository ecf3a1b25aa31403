"""Device arrays of ranks that share one GPU: staged, and through CUDA IPC. These tests need a GPU."""

from __future__ import annotations

import pytest

from autograd.arrays import cuda

from ...launch import launch

_WHY = cuda.why_not()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(_WHY), reason=f"{_WHY}: carriers run on the fake device only")]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_that_share_a_gpu(ranks: int) -> None:
    names = ("staged", "ipc")
    outcome = launch("carriers_program.py", ranks, "cupy", *names, limit_s=110)
    assert not outcome.is_late, outcome.err
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines() == [f"{name if ranks > 1 else 'none'} on {ranks} ranks" for name in names]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_with_a_gpu_each(ranks: int) -> None:
    count = cuda.library("this test").cuda.runtime.getDeviceCount()
    if count < ranks:
        pytest.skip(f"there are {count} GPUs; needed: {ranks}")
    outcome = launch("carriers_program.py", ranks, "cupy", "nccl", "few", "apart", limit_s=110)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    assert outcome.out.split() == ["nccl", "on", str(ranks), "ranks"]


def test_the_probe_finds_ipc() -> None:
    """Ranks of one GPU choose it by themselves."""
    outcome = launch("carriers_program.py", 2, "cupy", "few", limit_s=110)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    assert outcome.out.split() == ["ipc", "on", "2", "ranks"]
