"""What carries device arrays beside staging: CUDA IPC and NCCL over threads, and IPC and MPI over processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd.arrays.device import to_host
from autograd.errors import CollectiveMismatch
from collectives.transports.device import ipc, nccl
from collectives.transports.device.choice import VARIABLE
from collectives.transports.protocol import Request

from ....autograd.arrays import fake_device, fake_streams
from ....autograd.arrays.devices import Device
from ....autograd.arrays.fake_device import DeviceArray, from_host
from ....autograd.kernels.cuda import on_cpu
from ...launch import launch
from . import carried

pytestmark = pytest.mark.skipif(bool(on_cpu.WHY_NOT), reason=on_cpu.WHY_NOT)
FAKE = Device()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slots of few elements, and a GPU for each thread."""
    monkeypatch.setattr(ipc, "SLOT_BYTES", 768)
    monkeypatch.setattr(ipc, "ONE_SHOT_BYTES", 256)
    runtime = fake_device.FakeRuntime()
    monkeypatch.setattr(runtime, "device_id", lambda: str(threading.get_ident()), raising=False)
    monkeypatch.setattr(fake_device, "RUNTIME", runtime)
    yield


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("ranks", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["ipc", "nccl"])
def test_every_call(name: str, ranks: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)

    def program() -> int:
        assert carried.chosen(cc.world(), FAKE) == name
        return carried.conforms(cc.world(), "d" if ranks == 2 else "e", FAKE)

    with fake_streams.mode(mode):
        assert len(set(cc.run(program, ranks))) == 1


def test_by_default_threads_stage() -> None:
    def program() -> str:
        carried.chosen(cc.world(), FAKE)
        world: Any = cc.world()
        return " ".join(world.device_choice)

    (why,) = set(cc.run(program, 2))
    assert why.startswith("staged nccl: ") and "ipc: it was not probed" in why and "threads of one process" in why


def test_a_report_names_the_array_on_a_device_where_another_rank_has_one_of_the_host() -> None:
    def program() -> str:
        x = np.ones(4)
        try:
            cc.world().all_reduce(x if cc.world().index else from_host(x))
        except CollectiveMismatch as error:
            return str(error)
        return ""

    for text in cc.run(program, 2):
        assert "rank 0: exchange for all_reduce of an array on fake, not in host memory\n" in text, text
        assert "rank 1: all_reduce(dtype float64, count 4)" in text


@pytest.mark.slow
def test_the_same_over_mpi() -> None:
    outcome = launch("mixed_program.py", 2, limit_s=60)
    assert outcome.code != 0 and not outcome.is_late, outcome
    assert "rank 0: exchange for all_reduce of an array on fake, not in host memory\n" in outcome.err, outcome
    assert "rank 1: all_reduce(float64[4])" in outcome.err


def test_ranks_that_make_different_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would read what is left in the memory of the others."""
    monkeypatch.setenv(VARIABLE, "ipc")

    def program() -> None:
        carried.chosen(cc.world(), FAKE)
        cc.world().all_reduce(from_host(np.ones(3 + cc.world().index)))

    with pytest.raises(cc.CollectiveMismatch, match=r"rank 0: all_reduce\(float64\[3\]\)[^r]*rank 1: all_reduce"):
        cc.run(program, 2)


# -- calls with a root -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["staged", "ipc", "nccl"])
def test_a_root_with_a_device_array_among_hosts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after the choice, broadcast, reduce, gather and scatter mix with host arrays of other ranks."""
    monkeypatch.setenv(VARIABLE, name)

    def program() -> None:
        group, rank = cc.world(), int(cc.world().rank)
        for _ in range(2):
            x = np.arange(4.0) + rank
            given = from_host(x) if rank == 1 else x
            out = given if rank == 1 else np.empty(4)
            assert to_host(group.broadcast(out, 1)).tolist() == [1, 2, 3, 4]
            total = group.reduce(given, 1)
            assert total is None if rank != 1 else to_host(total).tolist() == [3, 6, 9, 12]
            parts = group.gather(given, [4] * 3, 1)
            assert parts is None if rank != 1 else to_host(parts).tolist()[4:8] == [1, 2, 3, 4]
            part = group.scatter(from_host(np.arange(3.0)) if rank == 1 else None, [1, 1, 1], 1, np.float64)
            assert to_host(part).tolist() == [rank]
            assert carried.chosen(group, FAKE) == name

    cc.run(program, 3)


# -- planted faults ----------------------------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], None]


def _does_not_meet(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ipc.Arena, "meet", lambda self, call: self.stream.synchronize())


def _meets_before_it_is_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ipc.Arena, "meet", lambda self, call: self.group.barrier())


def _one_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ipc.Arena, "next", lambda self: 0)


def _adds_in_its_own_order(patch: pytest.MonkeyPatch) -> None:
    true = ipc.DeviceMemory._add

    def add(self: Any, parts: Any, out: Any, dtype: Any) -> None:
        at = self._index
        true(self, [*parts[at:], *parts[:at]], out, dtype)

    patch.setattr(ipc.DeviceMemory, "_add", add)


def _no_wait(of_default: bool) -> Fault:
    def plant(patch: pytest.MonkeyPatch) -> None:
        true = fake_streams.FakeStream.wait_event

        def wait_event(self: Any, event: Any) -> None:
            if self.is_default != of_default:
                true(self, event)

        patch.setattr(fake_streams.FakeStream, "wait_event", wait_event)

    return plant


def _owns_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeviceArray, "copy", lambda self: self)


def _rounds_each_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nccl, "REDUCTIONS", frozenset())
    patch.setitem(nccl._REDUCED, "<f2", "FLOAT16")


FAULTS: dict[str, tuple[str, Fault]] = {
    "ipc: the ranks do not meet": ("ipc", _does_not_meet),
    "ipc: they meet before the copy is done": ("ipc", _meets_before_it_is_done),
    "ipc: a slot is used again at once": ("ipc", _one_slot),
    "ipc: the order of addition": ("ipc", _adds_in_its_own_order),
    "ipc: the operations after do not wait": ("ipc", _no_wait(of_default=True)),
    "ipc: the operations before are not waited for": ("ipc", _no_wait(of_default=False)),
    "nccl: the operations after do not wait": ("nccl", _no_wait(of_default=True)),
    "nccl: a call does not own its operand": ("nccl", _owns_nothing),
    "nccl: rounding": ("nccl", _rounds_each_time),
}


def uses(rank: int, group: Any) -> None:
    """Sums, one after the other and under way, of operands that are overwritten at once."""
    for seed in range(6):
        parts = [np.random.default_rng([seed, r]).standard_normal(120) for r in range(group.size)]
        x = from_host(parts[rank]) + 0
        y = group.all_reduce(x)
        x[...] = -1.0
        total = parts[0] + parts[1] + parts[2]
        assert np.array_equal((y + 0)._values, total), "an order of rank, and the right values"
    under_way = []
    for seed in range(3):
        x = from_host(np.full(50, seed + rank, np.float64)) + 0
        under_way.append(group.start(Request("all_reduce", x)))
        x[...] = -1.0
    for seed, pending in enumerate(under_way):
        assert ((pending.wait() + 0)._values == 3 * seed + 3).all()
    x = from_host(np.array([1 if rank else 2048], np.float16))
    assert to_host(group.all_reduce(x))[0] == np.float16(2050)


@pytest.mark.parametrize("name", ["ipc", "nccl"])
@pytest.mark.parametrize("mode", ["late", "early"])
def test_uses(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    with fake_streams.mode(mode):
        cc.run(lambda: uses(int(cc.world().rank), cc.world()), 3)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plant = FAULTS[fault]
    monkeypatch.setenv(VARIABLE, name)
    found = []
    for mode in ("late", "early"):
        with pytest.MonkeyPatch.context() as patch, fake_streams.mode(mode):
            plant(patch)
            try:
                with fake_streams.tracked():
                    cc.run(lambda: uses(int(cc.world().rank), cc.world()), 3)
            except AssertionError as error:
                found.append(error)
    assert found, "no test has seen the fault"


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_processes(ranks: int) -> None:
    names = ("staged", "ipc", "mpi")
    outcome = launch("carriers_program.py", ranks, "fake", *names, *["few"] * (ranks == 2), limit_s=100)
    assert not outcome.is_late, outcome.err
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [f"{name} on {ranks} ranks" for name in names]


@pytest.mark.parametrize("name", ["staged", pytest.param("ipc", marks=pytest.mark.slow)])
def test_a_rank_that_dies_in_the_middle_ends_the_job(name: str) -> None:
    outcome = launch("dies_program.py", 2, limit_s=60, **{VARIABLE: name})
    assert not outcome.is_late, outcome.err
    assert outcome.code != 0
    assert "rank 1" in outcome.err and "no memory left" in outcome.err, outcome.err
