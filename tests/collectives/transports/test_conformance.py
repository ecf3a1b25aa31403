"""The conformance suite over threads, MPI, shared memory, every algorithm and device arrays; and that it can fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import collectives as cc
from collectives.algorithms import OPERATIONS, algorithms_of
from collectives.algorithms.selected import Channel, Selected
from collectives.transports.protocol import Communicator, Request
from collectives.transports.shared_memory.communicator import SharedMemory
from collectives.transports.threads.communicator import LocalCommunicator

from ...autograd.arrays.fake_device import crossings, from_host, to_host
from ..launch import launch
from . import conformance
from .device.on_device import OnDevice
from .shared_memory_cases import hosted

ALGORITHMS = list(dict.fromkeys(name for operation in OPERATIONS for name in algorithms_of(operation)))
NOT_HERE = {"shared"}  # on threads it is the transport's own


@pytest.mark.parametrize("ranks", [1, 3, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))])
def test_threads(ranks: int) -> None:
    made = cc.run(lambda: conformance.conforms(cc.world(), conformance.DTYPES if ranks < 5 else "ed"), ranks)
    assert len(set(made)) == 1 and made[0] > (1500 if ranks < 5 else 700)


@pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))])
def test_shared_memory_of_threads(ranks: int) -> None:
    with hosted():
        cc.run(lambda: conformance.conforms(SharedMemory(cc.world()), conformance.FEW if ranks < 5 else "e"), ranks)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in NOT_HERE])
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3, 5])
def test_algorithms(algorithm: str, ranks: int) -> None:
    """By ring all calls, and by the others those that have algorithms: the rest go to the transport in any case."""
    meets, only = algorithm == "hierarchical", None if algorithm == "ring" else OPERATIONS

    def program() -> int:
        group = Selected(Channel(cc.world()), algorithm)
        return conformance.conforms(group, "e" if ranks == 5 else "?ed", meets, only)

    assert len(set(cc.run(program, ranks))) == 1


def run_on_processes(ranks: int, dtypes: str, *over: str) -> None:
    outcome = launch("conformance_program.py", ranks, dtypes, *over, limit_s=200)
    assert not outcome.is_late, outcome.err
    assert (outcome.code, outcome.err) == (0, "")
    told = re.findall(r"(\S+): (\d+) cases on (\d) ranks", outcome.out)
    assert [(name, int(n)) for name, _, n in told] == [(name, ranks) for name in over]
    assert all(int(made) > 200 for _, made, _ in told)


@pytest.mark.parametrize(("ranks", "dtypes"), [
    (1, conformance.DTYPES), pytest.param(3, conformance.FEW, id="3"),
    pytest.param(2, conformance.FEW, marks=pytest.mark.slow),
    pytest.param(2, conformance.DTYPES, marks=pytest.mark.slow),
    pytest.param(3, conformance.DTYPES, marks=pytest.mark.slow),
    pytest.param(4, conformance.FEW, marks=pytest.mark.slow),
])  # fmt: skip
def test_mpi(ranks: int, dtypes: str) -> None:
    run_on_processes(ranks, dtypes, "mpi")


def test_shared_memory_and_an_algorithm_of_processes() -> None:
    run_on_processes(3, "e", "shared", "ring")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_algorithm_of_processes(ranks: int) -> None:
    run_on_processes(ranks, "?ed", "shared", *ALGORITHMS, "auto")


# -- device arrays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_device_arrays_are_staged(ranks: int) -> None:
    def program() -> None:
        group = OnDevice(cc.world())
        conformance.calls(group, "?ed")
        conformance.any_order(group)
        conformance.messages(group)
        conformance.several(group)
        conformance.large_messages(group)
        conformance.by_name(group)

    cc.run(program, ranks)


@pytest.mark.parametrize("what", ["ring", "shared memory"])
def test_device_arrays_over_algorithms_and_shared_memory(what: str) -> None:
    def program() -> None:
        world = cc.world()
        conformance.calls(OnDevice(Selected(Channel(world), "ring") if what == "ring" else SharedMemory(world)), "ed")

    with hosted():
        cc.run(program, 3)


def test_a_device_array_crosses_once_each_way() -> None:
    def program() -> None:
        group = cc.world()
        x = from_host(np.arange(4.0))
        group.barrier()
        before = dict(crossings)
        group.barrier()
        y = group.all_reduce(x)
        group.barrier()
        now = {way: crossings[way] - before[way] for way in before}
        group.barrier()
        assert now == {"to host": 2, "from host": 2}, "two ranks, each its operand and its result"
        assert to_host(y).tolist() == [0, 2, 4, 6]
        group.barrier()
        before = dict(crossings)
        group.barrier()
        group.all_reduce(np.arange(4.0))
        assert dict(crossings) == before

    cc.run(program, 2)


# -- the suite can fail ------------------------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], None]


def _on_run(change: Callable[[Communicator, Request, Any], Any]) -> Fault:
    def plant(patch: pytest.MonkeyPatch) -> None:
        true = LocalCommunicator._run
        patch.setattr(LocalCommunicator, "_run", lambda self, r, x, out: change(self, r, true(self, r, x, out)))

    return plant


def _keeps_no_copy(patch: pytest.MonkeyPatch) -> None:
    """A started call, or a send, works on the caller's array."""
    true = LocalCommunicator._start
    patch.setattr(LocalCommunicator, "_start", lambda self, r, x, out: true(self, r, r.x if x is not None else x, out))


def _crosses_lanes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalCommunicator, "lane", lambda self, purpose: self)


def _checks_nothing(patch: pytest.MonkeyPatch) -> None:
    from collectives.transports import protocol

    patch.setattr(protocol, "check", lambda *args: None)


def _rounds_each_time(patch: pytest.MonkeyPatch) -> None:
    from collectives.transports import protocol

    patch.setattr(protocol, "REDUCTIONS", frozenset())


FAULTS: dict[str, Fault] = {
    "wrong root": _on_run(lambda group, r, y: np.ones(3) if r.call == "reduce" and y is None else y),
    "wrong order": _on_run(lambda group, r, y: y[::-1].copy() if r.call == "all_gather" else y),
    "operand returned": _on_run(lambda group, r, y: r.x if r.call == "all_to_all" and r.x.size == y.size else y),
    "wide result": _on_run(lambda group, r, y: y.astype(complex) if r.call == "scan" else y),
    "read-only result": _on_run(lambda group, r, y: np.broadcast_to(y, y.shape) if r.call == "get" else y),
    "short result": _on_run(lambda group, r, y: y[:-1] if r.call == "get" and y.size else y),
    "no result": _on_run(lambda group, r, y: None if r.call == "all_reduce" else y),
    "exclusive scan": _on_run(lambda group, r, y: y + r.x if r.call == "scan" and r.options[0] else y),
    "missing addend": _on_run(lambda group, r, y: y - 1 if r.call == "accumulate" and y.dtype.kind == "f" else y),
    "no copy": _keeps_no_copy,
    "float16": _rounds_each_time,
    "one lane": _crosses_lanes,
    "no checks": _checks_nothing,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[fault](patch)
        with pytest.raises((AssertionError, cc.CommunicationError, ValueError, TypeError, pytest.fail.Exception)):
            cc.run(lambda: conformance.conforms(cc.world(), "ed"), 3)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_result_in_another_array_lands_in_the_buffer_given(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base class keeps the contract of ``out=`` for a transport that ignores it, blocking and started."""
    true_run, true_start = LocalCommunicator._run, LocalCommunicator._start

    def ignored(self: Any, request: Request, out: Any) -> Any:
        is_read = request.call == "broadcast" and self.index == request.root
        return out if out is None or is_read else np.empty_like(out)

    def run(self: Any, request: Request, x: Any, out: Any) -> Any:
        return true_run(self, request, x, ignored(self, request, out))

    def start(self: Any, request: Request, x: Any, out: Any) -> Any:
        return true_start(self, request, x, ignored(self, request, out))

    monkeypatch.setattr(LocalCommunicator, "_run", run)
    monkeypatch.setattr(LocalCommunicator, "_start", start)
    cc.run(lambda: conformance.conforms(cc.world(), "ed"), ranks)
    cc.run(lambda: sums_in_place(cc.world()), ranks)


def sums_in_place(group: Communicator) -> None:
    """As gradient buckets are summed: the operand is the buffer of the result."""
    for dtype in "edF":
        for make in (group.run, lambda request: group.start(request).wait()):
            x = np.arange(37).astype(dtype) + group.index
            assert make(Request("all_reduce", x, out=x)) is x
            assert np.array_equal(x, sum(np.arange(37) + r for r in range(group.size)).astype(dtype))


@pytest.mark.parametrize("algorithm", ["native", "auto", *ALGORITHMS])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_algorithm_sums_in_place(algorithm: str, ranks: int) -> None:
    def program() -> None:
        with cc.Mesh(dp=-1, algorithm=algorithm) as mesh:
            sums_in_place(mesh.axis("dp").group)
            if algorithm != "auto":  # which measures each channel
                sums_in_place(Selected(Channel(cc.world()), algorithm))

    cc.run(program, ranks)
