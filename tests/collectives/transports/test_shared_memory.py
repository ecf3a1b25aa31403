"""Shared memory: every call beside dense sums, on threads and under mpiexec; buffers; dead peers; planted faults."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collectives as cc
from autograd.errors import CollectiveMismatch, DtypeError, MeshError, RankFailed, ShapeError
from collectives import shared_arrays
from collectives.transports.shared_memory import communicator, flags, windows
from collectives.transports.shared_memory.arena import SLAB_BYTES, Arena
from collectives.transports.shared_memory.communicator import SharedMemory, add_up, pieces, slices

from ..launch import launch
from .shared_memory_cases import DTYPES, Threads, addends, check_all, dense, hosted, stress, uneven

START_S = 60.0  # for a whole program, on a busy machine
LIMIT_S = 5.0  # from a fault to the end of the job


# -- arithmetic -------------------------------------------------------------------------------------------------------
@given(st.integers(2, 8), st.integers(0, 300), st.sampled_from(DTYPES), st.integers(-1, 1), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_add_up(ranks: int, count: int, dtype: str, into: int, seed: int) -> None:
    parts = addends(seed, count, dtype, ranks)
    want = dense(parts)
    out = np.empty_like(want) if into < 0 else parts[into]
    add_up(parts, out)
    assert np.array_equal(out, want)


def test_half_is_added_in_single() -> None:
    parts = [np.array([2048], np.float16), *([np.array([1], np.float16)] * 4)]  # 2048 + 1 is 2048 in float16
    out = np.empty(1, np.float16)
    add_up(parts, out)
    assert out[0] == 2052


@given(st.integers(0, 5000), st.integers(1, 9), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_slices_cover(count: int, ranks: int, item_bytes: int) -> None:
    found = slices(count, ranks, item_bytes)
    assert len(found) == ranks and found[0][0] == 0 and found[-1][1] == count
    assert all(a[1] == b[0] for a, b in zip(found, found[1:], strict=False))
    assert all(a * item_bytes % 64 == 0 or a == count for a, _ in found)
    units = max(1, 64 // item_bytes)
    assert max(b - a for a, b in found) <= -(-count // ranks) + 2 * units


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_pieces_cover(start: int, count: int, step: int) -> None:
    found = pieces(start, start + count, step)
    assert [i for a, b in found for i in range(a, b)] == list(range(start, start + count))
    assert all(b - a <= step for a, b in found)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40_000_000), st.integers(0, 1000)), max_size=60))
@settings(deadline=None, max_examples=50)
def test_arena(requests: list[tuple[bool, int, int]]) -> None:
    """Places do not overlap, lie in their slabs, and what is given back is whole again; a second arena agrees."""
    one, other = Arena(), Arena()
    held: dict[Any, int] = {}
    for is_new, size, choice in requests:
        if is_new or not held:
            places = []
            for arena in (one, other):
                place = arena.take(size)
                if place is None:
                    arena.grow(size)
                    place = arena.take(size)
                places.append(place)
            assert places[0] == places[1] is not None
            assert places[0] not in held
            held[places[0]] = size
        else:
            place = sorted(held)[choice % len(held)]
            del held[place]
            for arena in (one, other):
                arena.give(place)
        spans = sorted((p.slab, p.offset, p.offset + n) for p, n in held.items())
        assert all(a[0] != b[0] or a[2] <= b[1] for a, b in zip(spans, spans[1:], strict=False))
        assert all(end <= one.slabs[slab] for slab, _, end in spans)
    for place in list(held):
        one.give(place)
    assert one.taken_bytes == 0
    one.unused()
    assert list(one.slabs.values()) in ([], [SLAB_BYTES])


# -- on threads, with the same flags and slots ------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [1, 3, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))])
def test_calls_on_threads(ranks: int) -> None:
    sizes = (0, 1, 7, 1000, 5003) if ranks < 5 else (0, 7, 5003)

    def program() -> None:
        memory = SharedMemory(cc.world())
        for i, count in enumerate(sizes):
            for dtype in ("f4", "D", "e", "?") if ranks < 5 else ("f4", "e"):
                check_all(memory, count, dtype, seed=i)
        check_all(memory, 140_001, "f4", seed=1)
        memory.close()

    with hosted():
        cc.run(program, ranks)


@given(st.integers(2, 4), st.lists(st.tuples(st.integers(0, 90_000), st.sampled_from(DTYPES)), min_size=1, max_size=3))
@settings(deadline=None, max_examples=6)
def test_random_sizes(ranks: int, work: list[tuple[int, str]]) -> None:
    def program() -> None:
        memory = SharedMemory(cc.world())
        for i, (count, dtype) in enumerate(work):
            check_all(memory, count, dtype, seed=i)
        memory.close()

    with hosted():
        cc.run(program, ranks)


def test_without_a_window() -> None:
    """Threads and single ranks: the transport's own calls, ordinary arrays."""

    def program() -> list[Any]:
        memory = communicator.shared_memory(cc.world())
        check_all(memory, 100, "f8", seed=1)
        memory.barrier()
        memory.trim()
        memory.close()
        with cc.Mesh(dp=-1):
            x = shared_arrays.empty((2, 3), np.float32, "dp")
            x.fill(cc.world().rank + 1)
            return shared_arrays.all_reduce_in_place(x, "dp").tolist()

    assert cc.run(program, 1) == [[[1.0] * 3] * 2]
    assert cc.run(program, 3) == [[[6.0] * 3] * 2] * 3


def test_refusals() -> None:
    def program() -> None:
        memory = SharedMemory(cc.world())
        refused = [
            (DtypeError, lambda: memory.empty(3, object)),
            (DtypeError, lambda: memory.all_reduce(np.ones(3, ">f4"))),
            (ShapeError, lambda: memory.all_reduce(np.ones((2, 2)))),
            (ShapeError, lambda: memory.all_reduce(np.ones(80_000)[::2])),
            (ShapeError, lambda: memory.all_reduce_in_place(np.ones((4, 4)).T)),
            (ShapeError, lambda: memory.reduce_scatter(np.ones(5), [2, 2])),
            (ShapeError, lambda: memory.all_gather(np.ones(5), [5])),
            (ShapeError, lambda: memory.broadcast(np.broadcast_to(1.0, 4), 1 - memory.rank)),
            (MeshError, lambda: memory.broadcast(np.ones(4), 2)),
        ]
        for kind, call in refused:  # before anything is said to the others, on every rank
            with pytest.raises(kind):
                call()
        assert memory.all_reduce(np.ones(3)).tolist() == [2, 2, 2]

    with hosted():
        cc.run(program, 2)


def test_mismatch_is_told_on_all_ranks() -> None:
    def program() -> str:
        memory = SharedMemory(cc.world())
        with pytest.raises(CollectiveMismatch) as caught:
            memory.all_reduce(np.ones(5 + (memory.rank == 1), np.float32))
        assert memory.all_reduce(np.ones(2))[0] == 3
        return str(caught.value)

    with hosted():
        texts = cc.run(program, 3)
    assert len(set(texts)) == 1
    assert "rank 1 did not make the call" in texts[0] and "all_reduce(float32[6])" in texts[0]


# -- planted faults: the checks above can fail ------------------------------------------------------------------------
def _stale_slot(patch: pytest.MonkeyPatch) -> None:
    """One slot in the place of two: a rank writes while a slow one still reads."""
    prepare = SharedMemory._prepare_small

    def once(self: SharedMemory, x: Any) -> Any:
        small = prepare(self, x)
        if small is None:
            return None
        small = self._small[x.dtype, x.size] = small._replace(mine=small.mine[:1] * 2, parts=small.parts[:1] * 2)
        return small

    patch.setattr(SharedMemory, "_prepare_small", once)


def _no_second_synchronization(patch: pytest.MonkeyPatch) -> None:
    synchronize = flags.Flags.synchronize

    def first_only(self: flags.Flags, call: int, place: int = 0) -> int:
        operation = communicator.OPERATIONS.index("all_reduce_in_place")
        is_second = not place and call & 15 == operation and call >> 22 > 5000
        return self.number if is_second else synchronize(self, call, place)

    patch.setattr(flags.Flags, "synchronize", first_only)


def _wrong_slice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(communicator, "slices", lambda *args: [(a, max(a, b - 1)) for a, b in slices(*args)])


def _wrong_rank_last(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(communicator, "add_up", lambda parts, out: add_up([*parts[:-1], parts[0]], out))


def _no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flags.Flags, "wait", lambda self, at, n: None)


@pytest.mark.parametrize("fault", [_stale_slot, _no_second_synchronization, _wrong_slice, _wrong_rank_last, _no_wait])
def test_planted_faults_are_seen(fault: Any) -> None:
    def program() -> None:
        memory = SharedMemory(cc.world())
        stress(memory, 120)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with hosted():
            cc.run(program, 3)
            with pytest.MonkeyPatch.context() as patch:
                fault(patch)
                with pytest.raises((AssertionError, CollectiveMismatch)):
                    cc.run(program, 3)
    finally:
        sys.setswitchinterval(interval)


# -- peers that do not come -------------------------------------------------------------------------------------------
class _Alone:
    """A group of two of which only this rank exists."""

    rank, size, ranks, name = 0, 2, (3, 7), "dp/shared"

    def exchange(self, data: bytes) -> list[bytes]:
        return [data, data]


def _flags_beside(mark: tuple[int, int, int]) -> flags.Flags:
    group: Any = _Alone()
    host: Any = Threads(group, {})
    window: Any = type("Window", (), {"bytes": np.zeros(flags.Flags.bytes(2), np.uint8), "sync": None})
    found = flags.Flags(host, window, 0, 2, lambda n: None)
    for i, word in enumerate(mark):
        found.words[flags.LINE + flags._MARK + i] = word
    return found


def test_dead_peer_is_named() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    start_time = windows._start_time(child.pid)
    assert start_time is not None and windows.is_alive((child.pid, start_time, windows._namespace()))
    found = _flags_beside((child.pid, start_time, windows._namespace()))
    child.kill()  # and is a zombie until it is waited for: dead all the same
    try:
        with pytest.raises(RankFailed, match=rf"rank 7 \(pid {child.pid}\) died, while rank 3 waits .*'dp/shared'"):
            found.synchronize(0)
    finally:
        child.wait()
    assert not windows.is_alive((child.pid, start_time, windows._namespace()))


def test_peer_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "_limit_s", 0.2)
    start = time.monotonic()
    with pytest.raises(RankFailed, match=r"rank 7 .*did not arrive within 0.2 s.*It is alive"):
        _flags_beside(windows.process_mark()).synchronize(0)
    assert time.monotonic() - start < LIMIT_S


def test_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        flags.set_limit(0)
    assert flags.limit_s() == 600


# -- real ranks -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_under_mpiexec(ranks: int) -> None:
    outcome = launch("shared_memory_program.py", ranks, "all", limit_s=START_S)
    assert (outcome.code, outcome.is_late) == (0, False), outcome.err + outcome.out
    assert len(re.findall(r"DONE", outcome.out)) == ranks


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("kill", "was killed"),
        ("exit", "exited early .* in shared memory"),
        pytest.param("raise", "raised ValueError: planted", marks=pytest.mark.slow),
    ],
)
def test_failed_peer_ends_the_job(how: str, text: str) -> None:
    outcome = launch("shared_memory_program.py", 3, how, limit_s=START_S)
    ended = time.time()
    assert not outcome.is_late and outcome.code != 0
    assert re.search(rf"^ringtape: rank 1 of 3.*{text}", outcome.err, re.MULTILINE), outcome.err
    assert "WENT ON" not in outcome.out
    fault = re.search(r"FAULT ([\d.]+)", outcome.out)
    assert fault is not None and ended - float(fault[1]) < LIMIT_S


def test_stalled_peer_ends_the_job() -> None:
    outcome = launch("shared_memory_program.py", 3, "stall", limit_s=START_S, RINGTAPE_SHARED_LIMIT_S="0.5")
    ended = time.time()
    assert not outcome.is_late and outcome.code != 0
    assert re.search(r"rank [02] of 3 raised .*RankFailed: rank 1 \(pid \d+\) did not arrive within 0.5 s", outcome.err)
    assert "WENT ON" not in outcome.out
    fault = re.search(r"FAULT ([\d.]+)", outcome.out)
    assert fault is not None and ended - float(fault[1]) < LIMIT_S


def test_uneven_parts_are_uneven() -> None:
    assert sum(uneven(1000, 3)) == 1000 and 0 in uneven(1000, 3) and len(set(uneven(1000, 5))) > 2
