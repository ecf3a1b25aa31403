"""What carries device arrays beside staging: CUDA IPC and NCCL over threads, and IPC and MPI over processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd.arrays.device import to_host
from autograd.errors import CollectiveMismatch, CommunicationError, RankFailed
from collectives.transports.device import ipc, nccl
from collectives.transports.device.choice import VARIABLE
from collectives.transports.protocol import Request

from ....autograd.arrays import fake_device, fake_nccl, fake_streams
from ....autograd.arrays.devices import Device
from ....autograd.arrays.fake_device import DeviceArray, from_host
from ....autograd.kernels.cuda import on_cpu
from ...launch import launch
from .. import conformance
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
        return carried.conforms(cc.world(), "d" if ranks == 2 else f"e{conformance.BFLOAT16}", FAKE)

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


# -- failures of NCCL --------------------------------------------------------------------------------------------------


def test_all_ranks_stage_if_one_cannot_make_a_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL lets the other ranks wait for ever for one that has an error."""
    monkeypatch.setenv(VARIABLE, "nccl")
    monkeypatch.setattr(nccl, "LIMIT_S", 0.5)
    true = fake_nccl.NcclCommunicator.__init__

    def make(self: Any, ndev: int, identity: bytes, rank: int) -> None:
        if rank == 1:
            raise fake_nccl.NcclError("unhandled cuda error")
        true(self, ndev, identity, rank)

    monkeypatch.setattr(fake_nccl.NcclCommunicator, "__init__", make)

    def program() -> str:
        world: Any = cc.world()
        for _ in range(2):
            assert to_host(world.all_reduce(from_host(np.ones(3) * world.index))).tolist() == [3, 3, 3]
        return " ".join(world.device_choice)

    (why,) = set(cc.run(program, 3))
    assert why.startswith("staged nccl: ") and "rank 1: NcclError: unhandled cuda error" in why, why
    assert "rank 0: the communicator was not made within 0.5 s" in why


@pytest.mark.parametrize("kind", ["get_unique_id", "bytes"])
def test_an_identity_that_cannot_be_made(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "nccl")

    def identity(self: Any) -> Any:
        if kind == "bytes":
            return bytes(3)
        raise fake_nccl.NcclError("no socket")

    monkeypatch.setattr(fake_nccl.Library, "get_unique_id", identity)
    (why,) = set(cc.run(lambda: carried.chosen(cc.world(), FAKE), 2))
    assert why == "staged"


class One:
    """A group of rank 0 of two whose other rank makes no call."""

    index, size, ranks, name = 0, 2, (0, 1), "dp"

    def exchange(self, data: bytes, of: str = "") -> list[bytes]:
        return [data, b""]


def alone(monkeypatch: pytest.MonkeyPatch) -> nccl.Nccl:
    """The carrier of a rank whose partner has made the communicator and nothing else."""
    group: Any = One()
    identity = bytes(128)
    monkeypatch.setattr(fake_nccl.Library, "get_unique_id", lambda self: identity)
    fake_nccl._worlds.pop(identity, None)
    partner = threading.Thread(target=fake_nccl.NcclCommunicator, args=(2, identity, 1), daemon=True)
    partner.start()
    made = nccl.Nccl(group, fake_device.RUNTIME, fake_nccl.LIBRARY)  # type: ignore[arg-type]
    partner.join()
    return made


def test_a_call_whose_partner_has_died_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = alone(monkeypatch)
    assert carrier.incomplete() is None
    carrier.noted = "the wait"
    pending = carrier.start(Request("all_reduce", from_host(np.ones(3)), op="sum"))
    assert carrier.incomplete() == (threading.get_ident(), "the wait")
    waits = threading.Thread(target=carrier._stream.synchronize)
    waits.start()
    carrier.end("rank 1 has failed")
    waits.join(10)
    assert not waits.is_alive(), "the device still waits"
    assert carrier.incomplete() is None
    for call in (pending.wait, lambda: carrier.run(Request("all_reduce", from_host(np.ones(3)), op="sum"))):
        with pytest.raises(RankFailed, match="rank 1 has failed"):
            call()
    carrier.close()


def test_closing_ends_a_call_whose_partner_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no monitor runs any more."""
    carrier: Any = alone(monkeypatch)
    carrier.start(Request("all_reduce", from_host(np.ones(3)), op="sum"))
    monkeypatch.setattr(nccl, "LIMIT_S", 0.01)
    carrier.close()
    assert carrier._comm.is_aborted
    with pytest.raises(RankFailed, match=r"rank 0 of 2 were not complete within 0.01 s"):
        carrier.run(Request("all_reduce", from_host(np.ones(3)), op="sum"))


def test_an_error_that_nccl_meets_later_is_raised_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    carrier: Any = alone(monkeypatch)
    carrier._comm.error = fake_nccl.NcclError("remote process exited or there was a network error")
    with pytest.raises(CommunicationError, match=r"before all_reduce on rank 0 of 2: remote(.|\n)*fix: RINGTAPE"):
        carrier.run(Request("all_reduce", from_host(np.ones(3)), op="sum"))
    assert carrier._comm.is_aborted
    carrier.close()


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


@pytest.mark.parametrize("policy", ["end", "raise"])
def test_a_wait_on_the_device_for_a_rank_that_has_left_is_ended(policy: str) -> None:
    outcome = launch("leaves_program.py", 2, policy, limit_s=60)
    assert not outcome.is_late, outcome.err
    text = outcome.err if policy == "end" else outcome.out
    assert (outcome.code != 0) == (policy == "end")
    assert "rank 1 of 2" in text and "while rank 0 waits for it in all_reduce #" in text, outcome
