"""Device arrays of ranks that share one GPU: staged, and through CUDA IPC. These tests need a GPU."""

from __future__ import annotations

import pytest

from autograd.arrays import cuda

from .... import emulator
from ...launch import launch

_WHY = cuda.why_not()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(_WHY), reason=f"{_WHY}: carriers run on the fake device only")]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_that_share_a_gpu(ranks: int) -> None:
    names = ("staged", "ipc")
    outcome = launch("carriers_program.py", ranks, "cupy", *names, limit_s=emulator.LIMIT_S or 110)
    assert not outcome.is_late, outcome.err
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines() == [f"{name if ranks > 1 else 'none'} on {ranks} ranks" for name in names]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_with_a_gpu_each(ranks: int) -> None:
    count = cuda.library("this test").cuda.runtime.getDeviceCount()
    if count < ranks:
        pytest.skip(f"there are {count} GPUs; needed: {ranks}")
    outcome = launch("carriers_program.py", ranks, "cupy", "nccl", "few", "apart", limit_s=emulator.LIMIT_S or 110)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    assert outcome.out.split() == ["nccl", "on", str(ranks), "ranks"]


@pytest.mark.parametrize(("name", "ranks"), [("staged", 2), ("ipc", 3), ("nccl", 2)])
def test_arrays_that_are_used_without_a_wait(name: str, ranks: int) -> None:
    words = ["waits", *["apart"] * (name == "nccl")]
    if name == "nccl" and cuda.library("this test").cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU; needed: 2")
    outcome = launch("carriers_program.py", ranks, "cupy", name, *words, limit_s=emulator.LIMIT_S or 110)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    assert outcome.out.split() == [name, "on", str(ranks), "ranks"] and "EMULATED" not in outcome.err, outcome


def test_ranks_that_cannot_open_memory_stage_and_give_theirs_back_in_order() -> None:
    outcome = launch("carriers_program.py", 2, "cupy", "ipc", "waits", "refused", limit_s=emulator.LIMIT_S or 110)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    assert outcome.out.split() == ["staged", "on", "2", "ranks"] and "EMULATED" not in outcome.err, outcome


def test_the_probe_finds_ipc() -> None:
    """Ranks of one GPU choose it by themselves."""
    outcome = launch("carriers_program.py", 2, "cupy", "few", limit_s=emulator.LIMIT_S or 110)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    assert outcome.out.split() == ["ipc", "on", "2", "ranks"]
