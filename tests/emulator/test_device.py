"""The emulated devices: work is late, so that a wait that is missing shows; and what else a device would refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autograd.arrays import cuda

from . import IS_USED

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not IS_USED, reason="this is not the emulated GPU")]


@pytest.fixture
def cupy() -> Any:
    return cuda.library("the emulated GPU")


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_that_is_read_too_soon(waits: bool, cupy: Any) -> None:
    runtime = cuda.runtime()
    x, host, stream = cupy.arange(64, dtype="u1"), runtime.pinned(64), runtime.new_stream()
    cupy.cuda.get_current_stream().synchronize()
    host[...] = 7
    runtime.copy(host, x, stream)
    if waits:
        stream.synchronize()
    assert np.array_equal(host, np.arange(64) if waits else np.full(64, 7))
    stream.synchronize()


@pytest.mark.parametrize("waits", [True, False])
def test_an_event_that_is_missing(waits: bool, cupy: Any) -> None:
    x = cupy.zeros(64)
    cupy.cuda.get_current_stream().synchronize()
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    event = cupy.cuda.Event(disable_timing=True)
    with first:
        x += 1
        event.record()
    if waits:
        second.wait_event(event)
    with second:
        y = x + 1
    second.synchronize()
    assert float(y[0].get(second)) == (2 if waits else 1)
    first.synchronize()


def test_the_default_stream_takes_turns_with_others(cupy: Any) -> None:
    """But not with those that are non-blocking."""
    x = cupy.zeros(64)
    with cupy.cuda.Stream():
        x += 1
    assert float((x + 1)[0]) == 2


def test_a_program_that_asks_whether_work_is_done_comes_to_an_end(cupy: Any) -> None:
    event = cupy.cuda.Event()
    x = cupy.ones(8) * 3
    event.record()
    asked = 0
    while not event.done:
        asked += 1
    assert asked > 0 and float(x.sum()) == 24


def test_streams_take_part_in_a_capture_by_events(cupy: Any) -> None:
    x = cupy.zeros(8)
    cupy.cuda.get_current_stream().synchronize()
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    fork, join = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
    with first:
        first.begin_capture()
        fork.record(first)
        second.wait_event(fork)
        with second:
            x += 1
        join.record(second)
        first.wait_event(join)
        x *= 2
        graph = first.end_capture()
        for _ in range(2):
            graph.launch()
    first.synchronize()
    assert x.get()[0] == 6, "((0 + 1) * 2 + 1) * 2"


def test_memory_of_another_device_is_out_of_reach(cupy: Any) -> None:
    with cupy.cuda.Device(1):
        x = cupy.ones(8, "f4")
        cupy.cuda.get_current_stream().synchronize()
    kernel = cupy.RawKernel('extern "C" __global__ void f(float* x) { x[threadIdx.x] = 1; }', "f")
    kernel((1,), (8,), (x,))
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="illegal memory access"):
        cupy.cuda.get_current_stream().synchronize()
    with cupy.cuda.Device(1):
        assert float(x.sum()) == 8


def test_memory_behind_an_array_is_out_of_reach(cupy: Any) -> None:
    x = cuda.runtime().exportable(4096)  # an allocation of its own
    kernel = cupy.RawKernel('extern "C" __global__ void f(char* x) { x[4096] = 1; }', "f")
    kernel((1,), (1,), (x,))
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="illegal memory access"):
        cupy.cuda.get_current_stream().synchronize()


def test_an_element_behind_an_array_is_seen_when_it_is_freed(cupy: Any) -> None:
    with cupy.cuda.using_allocator(None):
        x = cupy.empty(100, "u1")
    kernel = cupy.RawKernel('extern "C" __global__ void f(char* x) { x[100] = 1; }', "f")
    kernel((1,), (1,), (x,))
    del x
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="illegal memory access"):
        cupy.cuda.get_current_stream().synchronize()


def test_new_memory_has_no_zeros(cupy: Any) -> None:
    assert (cupy.asnumpy(cuda.runtime().exportable(1000)) == 0xCD).all()


@pytest.mark.parametrize("name", ["fft", "solve", "qr", "svd", "eigh", "cholesky", "sort"])
def test_stand_ins_for_libraries(name: str, cupy: Any) -> None:
    a = np.random.default_rng(0).standard_normal((4, 6, 6))
    spd = a @ a.swapaxes(1, 2)
    of = {
        "fft": lambda xp, x: xp.fft.irfft2(xp.fft.rfft2(x)[:, 1:]),
        "solve": lambda xp, x: xp.linalg.solve(x, x[:, :, :2]),
        "qr": lambda xp, x: abs(xp.linalg.qr(x[0])[1]), "svd": lambda xp, x: xp.linalg.svd(x)[1],
        "eigh": lambda xp, x: xp.linalg.eigh(x)[0], "cholesky": lambda xp, x: xp.linalg.cholesky(x),
        "sort": lambda xp, x: xp.sort(x, 1),
    }[name]  # fmt: skip
    np.testing.assert_allclose(cupy.asnumpy(of(cupy, cupy.asarray(spd))), of(np, spd), rtol=1e-9, atol=1e-9)
