"""Staging through page-locked memory: all calls, in chunks too, on streams that are as late or as early as they may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import collectives as cc
from collectives.algorithms.selected import Channel, Selected
from collectives.transports import unsent
from collectives.transports.device import pinned
from collectives.transports.device.pinned import Buffers, PinnedStaging
from collectives.transports.protocol import Request
from collectives.transports.threads.communicator import LocalCommunicator

from ....autograd.arrays import fake_device, fake_streams
from ....autograd.arrays.devices import Device
from ....autograd.arrays.fake_device import DeviceArray
from ....autograd.kernels.cuda import on_cpu
from .. import conformance
from . import carried
from .carried import values
from .on_device import OnDevice

FAKE = Device()
pytestmark = pytest.mark.skipif(bool(on_cpu.WHY_NOT), reason=on_cpu.WHY_NOT)


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of few elements, and no buffers of earlier tests."""
    monkeypatch.setattr(pinned, "CHUNK_BYTES", 32)
    monkeypatch.setattr(pinned, "WINDOW", 2)
    monkeypatch.setattr(fake_device, "RUNTIME", fake_device.FakeRuntime())
    yield
    assert not unsent.unsent


@pytest.mark.parametrize(("ranks", "mode"), [(1, "late"), (2, "early"), (3, "late")])
def test_every_call(ranks: int, mode: str) -> None:
    def program() -> None:
        group = OnDevice(cc.world())
        only = ("all_reduce", "scan", "all_gather", "reduce_scatter", "broadcast") if ranks == 3 else None
        conformance.calls(group, "e", only)
        conformance.any_order(group)
        conformance.messages(group, "d")
        conformance.several(group)
        conformance.rounding(group)

    with fake_streams.mode(mode):
        cc.run(program, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_whole_suite(ranks: int, mode: str) -> None:
    def program() -> None:
        group = OnDevice(cc.world())
        conformance.calls(group, conformance.DTYPES)
        conformance.any_order(group, dtypes="ed")
        conformance.messages(group)
        conformance.large_messages(group)
        conformance.by_name(group)

    with fake_streams.mode(mode):
        cc.run(program, ranks)


def test_algorithms_of_messages() -> None:
    def program() -> None:
        conformance.calls(OnDevice(Selected(Channel(cc.world()), "ring")), "d")
        conformance.any_order(OnDevice(Selected(Channel(cc.world()), "ring")), meets=True)

    cc.run(program, 3)


# -- what waits for what -----------------------------------------------------------------------------------------------


def computed(host: Any) -> DeviceArray:
    """An array that an operation of the device made, behind others on the current stream."""
    found: DeviceArray = carried.computed(host, FAKE)
    return found


def waits_for_others(group: Any, rank: int, ranks: int) -> None:
    """Rank 0 waits for a message that comes after a started call, which rank 1 waits for first."""
    other = group.duplicate("other")
    pending = group.start(Request("all_reduce", computed(values(rank, 1))))
    if rank:
        pending.wait()
        other.send(np.ones(1), 0)
    else:
        other.recv(np.empty(1), 1)
        pending.wait()


def polls_for_others(group: Any, rank: int, ranks: int) -> None:
    """The same, with a loop over `test` in the place of the wait."""
    arriving = group.start(Request("recv", out=np.empty(1), peer=1)) if rank == 0 else None
    pending = group.start(Request("all_reduce", computed(values(rank, 1))))
    if rank:
        pending.wait()
        group.send(np.ones(1), 0)
    else:
        for _ in range(100_000):
            if arriving.test():
                break
        else:
            raise AssertionError("a loop over test() makes no progress")
    pending.wait()


def never_waits(group: Any, rank: int, ranks: int) -> None:
    """Rank 0 starts a call and returns."""
    pending = group.start(Request("all_reduce", computed(values(rank, 1))))
    if rank:
        pending.wait()


PROGRAMS: dict[str, Callable[[Any, int, int], None]] = {
    each.__name__: each for each in (waits_for_others, polls_for_others, never_waits)
} | {
    each.__name__: lambda group, rank, ranks, each=each: each(group, FAKE)  # type: ignore[misc]
    for each in (carried.drives, carried.reuses, carried.dropped)
}


def run_tracked(name: str, mode: str, ranks: int = 2) -> None:
    def program() -> None:
        group = cc.world()
        PROGRAMS[name](group, int(group.rank), ranks)

    with fake_streams.mode(mode), fake_streams.tracked():
        cc.run(program, ranks)


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_waits_for_what(name: str, mode: str) -> None:
    run_tracked(name, mode)


def test_a_start_does_not_wait() -> None:
    """Neither for the operand, nor for the copies up."""
    def program() -> None:
        group = cc.world()
        events: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            true = fake_streams.FakeEvent.synchronize
            patch.setattr(fake_streams.FakeEvent, "synchronize", lambda self: (events.append("waits"), true(self)))
            pending = group.start(Request("all_reduce", computed(values(int(group.rank), 1))))
            assert not events
            polls = 0
            while not pending.test():
                polls += 1
            pending.wait()
            assert polls > 3 and not events, "test() made all the progress, and wait() left the copies to the device"

    cc.run(program, 1 + 1)


def test_chunks_are_copied_while_others_are_reduced() -> None:
    """In an early device, all copies down of the window are done when the first chunk is reduced."""
    seen: list[int] = []

    def program() -> None:
        group = cc.world()
        true = type(group)._run

        def run(self: Any, request: Request, x: Any, out: Any) -> Any:
            if self.index == 0 and request.call == "all_reduce":
                seen.append(next(iter(self.carriers.staging.values()))._down.done_count)
            return true(self, request, x, out)

        with pytest.MonkeyPatch.context() as patch:
            if group.rank == 0:
                patch.setattr(type(group), "_run", run)
            group.barrier()
            group.all_reduce(computed(np.ones(16)))  # 4 chunks of 4 elements
            group.barrier()

    with fake_streams.mode("early"):
        cc.run(program, 2)
    copies = [n - 1 for n in seen]  # without the wait for the operations before
    assert len(copies) == 4 and copies[0] == 2, "the window of two chunks before the first call"
    assert copies == sorted(copies)


# -- planted faults ----------------------------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], None]


def _no_wait(of_default: bool) -> Fault:
    def plant(patch: pytest.MonkeyPatch) -> None:
        true = fake_streams.FakeStream.wait_event

        def wait_event(self: Any, event: Any) -> None:
            if self.is_default != of_default:
                true(self, event)

        patch.setattr(fake_streams.FakeStream, "wait_event", wait_event)

    return plant


def _host_waits_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fake_streams.FakeEvent, "synchronize", lambda self: None)


def _owns_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeviceArray, "copy", lambda self: self)


def _keeps_no_operand(patch: pytest.MonkeyPatch) -> None:
    true = PinnedStaging.start

    def start(self: Any, request: Request) -> Any:
        pending = true(self, request)
        if self._queue:
            self._queue[-1].x = None
        return pending

    patch.setattr(PinnedStaging, "start", start)


def _keeps_no_result(patch: pytest.MonkeyPatch) -> None:
    true = PinnedStaging._copy_up

    def copy_up(self: Any, *args: Any) -> Any:
        event = true(self, *args)
        self._uploads.clear()
        return event

    patch.setattr(PinnedStaging, "_copy_up", copy_up)


def _buffers_at_once(patch: pytest.MonkeyPatch) -> None:
    true = Buffers.give
    patch.setattr(Buffers, "give", lambda self, buffer, event: true(self, buffer, None))


def _window_at_once(patch: pytest.MonkeyPatch) -> None:
    true = PinnedStaging._copy_down
    patch.setattr(PinnedStaging, "_copy_down", lambda self, call, chunk, after: true(self, call, chunk, None))


def _hands_over_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unsent, "hand_over", lambda: None)


def _advances_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unsent, "advance", lambda: None)


def _overtakes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalCommunicator, "unsent", property(lambda self: None, lambda self, value: None))


FAULTS: dict[str, tuple[Fault, str]] = {
    "copies do not wait for the operations before": (_no_wait(of_default=False), "drives"),
    "the operations after do not wait for the copies": (_no_wait(of_default=True), "drives"),
    "the host does not wait for a copy": (_host_waits_for_nothing, "drives"),
    "a started call does not own its operand": (_owns_nothing, "drives"),
    "an operand is given back early": (_keeps_no_operand, "drives"),
    "a result is given back early": (_keeps_no_result, "dropped"),
    "page-locked memory is used again early": (_buffers_at_once, "reuses"),
    "a chunk's memory is used again early": (_window_at_once, "drives"),
    "calls are not handed over before a wait": (_hands_over_nothing, "waits_for_others"),
    "calls are not handed over at the end": (_hands_over_nothing, "never_waits"),
    "calls are not handed over in a loop over test": (_advances_nothing, "polls_for_others"),
    "a call on arrays of the host overtakes": (_overtakes, "drives"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    plant, name = FAULTS[fault]
    found = []
    for mode in ("late", "early"):
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            try:
                run_tracked(name, mode)
            except (AssertionError, cc.CommunicationError) as error:
                found.append(error)
            unsent.unsent.clear()
    assert found, "no test has seen the fault"
