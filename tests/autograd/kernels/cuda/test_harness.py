"""The header that runs kernels on the CPU: mistakes that a GPU would punish are seen."""

from __future__ import annotations

import mmap

import numpy
import pytest

from autograd.arrays.runtime import Program
from autograd.kernels.cuda import losses, norms, rows, softmax
from autograd.kernels.cuda.program import program

from ...arrays.devices import Device
from ...arrays.fake_device import from_host
from . import on_cpu, test_rows

pytestmark = pytest.mark.skipif(bool(on_cpu.WHY_NOT), reason=on_cpu.WHY_NOT)

COMMON = program("values", ()).text
PLANTED = Program("planted", COMMON + """
__global__ void sums(const float *x, float *y) {
    __shared__ float scratch[32];
    y[blockIdx.x * blockDim.x + threadIdx.x] = over_block(x[blockIdx.x * blockDim.x + threadIdx.x], scratch, Add());
}
__global__ void reversed(float *x) {
    DYNAMIC_SHARED(memory);
    float *held = (float *)memory;
    held[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}
__global__ void unsynchronised(float *x) {
    DYNAMIC_SHARED(memory);
    float *held = (float *)memory;
    held[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}
__global__ void divergent(float *x) {
    if (threadIdx.x < 32) __syncthreads();
    else __syncwarp();
    x[threadIdx.x] = over_warp(x[threadIdx.x], Max());
    if (threadIdx.x < 16) __syncwarp();
    else __syncthreads();
}
__global__ void unaligned(float *x) {
    Pack<float, 4> found = *reinterpret_cast<const Pack<float, 4> *>(x + 1);
    x[0] = found.at[0];
}
__global__ void beyond(float *x) { x[0] = x[blockDim.x + 4]; }
__global__ void before(float *x) { x[0] = x[-1000]; }
__global__ void overflows(float *x, int width) { x[0] = width * 65536; }
__global__ void large(float *x) {
    __shared__ float scratch[15 << 10];
    scratch[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = scratch[31 - threadIdx.x];
}
template <int WARPS> __global__ void __launch_bounds__(32 * WARPS, 2) bounded(float *x) { x[threadIdx.x] = 1; }
__global__ void copies(const float *x, float *y) {
    DYNAMIC_SHARED(memory);
    float *held = (float *)memory;
    on_cpu::copy_async(held, x, 16, false);
    on_cpu::end_group();
    on_cpu::copy_async(held + 4, x + 4, 16, false);
    on_cpu::end_group();
    on_cpu::wait_for_copies(1);
    for (int i = 0; i < 8; i++) y[i] = held[i];
    on_cpu::wait_for_copies(0);
    for (int i = 0; i < 8; i++) y[8 + i] = held[i];
}
""", ("sums", "reversed", "unsynchronised", "divergent", "unaligned", "beyond", "before", "overflows", "large",
      "bounded<2>", "copies"))  # fmt: skip


def test_sums_of_blocks() -> None:
    x = numpy.random.default_rng(0).standard_normal((3, 96)).astype(numpy.float32)
    y = numpy.empty_like(x)
    on_cpu.run(PLANTED, "sums", (3,), (96,), (x, y), 0)
    numpy.testing.assert_allclose(y, numpy.broadcast_to(x.sum(1, keepdims=True), x.shape), rtol=1e-5)


def test_a_missing_barrier_is_seen() -> None:
    x = numpy.arange(64, dtype=numpy.float32)
    on_cpu.run(PLANTED, "reversed", (1,), (64,), (x,), 256)
    assert x.tolist() == list(range(63, -1, -1))
    on_cpu.run(PLANTED, "unsynchronised", (1,), (64,), (x,), 256)
    assert numpy.isnan(x).any()  # shared memory that nobody wrote


def test_threads_at_different_barriers_are_an_error() -> None:
    with pytest.raises(on_cpu.KernelError, match="different barriers"):
        on_cpu.run(PLANTED, "divergent", (1,), (64,), (numpy.zeros(64, numpy.float32),), 0)


def test_arguments_must_fit_the_parameters() -> None:
    x = numpy.zeros(64, numpy.float32)
    with pytest.raises(on_cpu.KernelError, match="argument 1 has 4 bytes, and the parameter 8"):
        on_cpu.run(PLANTED, "sums", (1,), (64,), (x, numpy.int32(1)), 0)
    with pytest.raises(on_cpu.KernelError, match="more parameters"):
        on_cpu.run(PLANTED, "sums", (1,), (64,), (x,), 0)
    with pytest.raises(on_cpu.KernelError, match="does not compile"):
        on_cpu.library(Program("wrong", COMMON + "__global__ void f() { missing(); }", ("f",)))


# -- what a GPU punishes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel, more, what", [
    ("unaligned", (), "undefined behaviour"), ("overflows", (numpy.int32(1 << 16),), "undefined behaviour"),
    ("beyond", (), "outside the arrays"), ("before", (), "outside the arrays"),
    ("large", (), "61440 bytes of static shared memory"),
])  # fmt: skip
def test_what_a_gpu_punishes_is_an_error(kernel: str, more: tuple[object, ...], what: str) -> None:
    """And the process goes on."""
    for _ in range(2):
        with pytest.raises(on_cpu.KernelError, match=what):
            on_cpu.run(PLANTED, kernel, (1,), (32,), (numpy.zeros(32, numpy.float32), *more), 0)
    x = numpy.arange(64, dtype=numpy.float32)
    on_cpu.run(PLANTED, "reversed", (1,), (64,), (x,), 256)
    assert x[0] == 63


def test_launch_bounds_are_those_of_the_source() -> None:
    x = numpy.zeros(96, numpy.float32)
    on_cpu.run(PLANTED, "bounded<2>", (1,), (64,), (x,), 0)
    assert x.sum() == 64
    with pytest.raises(on_cpu.KernelError, match="96 threads of a block, and launch bounds of 64"):
        on_cpu.run(PLANTED, "bounded<2>", (1,), (96,), (x,), 0)


def test_static_and_dynamic_shared_memory_count_together() -> None:
    x = numpy.zeros((1, 64), numpy.float32)
    with pytest.raises(on_cpu.KernelError, match="128 static and 232448 dynamic bytes"):
        on_cpu.run(PLANTED, "sums", (1,), (64,), (x, x.copy()), 227 << 10)
    used = on_cpu.static_bytes(norms.PROGRAM)
    assert used["norm<float>"] == 512 and used["norm_sums<double>"] == 2 * 64 * 8
    for file in (norms, softmax, losses):  # those that hold rows in dynamic shared memory
        held = {k: n for k, n in on_cpu.static_bytes(file.PROGRAM).items() if "norm_sums" not in k}
        assert max(held.values()) <= rows.STATIC_BYTES, held


def test_groups_of_copies_that_were_not_waited_for() -> None:
    x, y = numpy.arange(8, dtype=numpy.float32), numpy.zeros(16, numpy.float32)
    on_cpu.run(PLANTED, "copies", (1,), (1,), (x, y), 32)
    assert y[:4].tolist() == [0, 1, 2, 3] and numpy.isnan(y[4:8]).all() and y[8:].tolist() == x.tolist()


def test_a_wait_for_a_group_too_few_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    text = norms.PROGRAM.text
    assert "wait_for_copies<STAGES - 1>();" in text
    faulty = text.replace("wait_for_copies<STAGES - 1>();", "wait_for_copies<STAGES>();")
    monkeypatch.setattr(norms, "PROGRAM", Program("planted_norms", faulty, norms.PROGRAM.kernels))
    name, make, options = test_rows.USES["layer_norm"]
    with pytest.raises((AssertionError, on_cpu.KernelError)):
        test_rows.check(Device(), name, make(40, 768), options, "float32")


@pytest.mark.parametrize("fault", [False, True])
def test_rows_behind_two_thousand_million_elements(fault: bool) -> None:
    """The last rows of an array of 2**31 + 2**17 numbers of 16 bits, of which no others are touched."""
    width = 1 << 15
    n = (1 << 16) + 4
    size_bytes = 2 * n * width
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    x, y = (numpy.frombuffer(mmap.mmap(-1, size_bytes, flags=flags), numpy.float16).reshape(n, width) for _ in "xy")
    x[-2] = numpy.linspace(0, 3, width)
    launch = rows.held_rows(from_host(numpy.zeros((8, width), numpy.float16)))
    per_block = launch.block[1]
    found = softmax.PROGRAM
    if fault:
        old = "Index index = (Index)blockIdx.x * blockDim.y + threadIdx.y, start = index < rows ? index * width : 0;"
        assert old in found.text
        new = old.replace("? index * width", "? (int)(unsigned)(index * width)")
        found = Program("planted_softmax", found.text.replace(old, new), ("softmax<Half>",))
    arguments = (x, y, numpy.int64(n), numpy.int32(width), launch.most, numpy.int32(0))
    grid = -(-n // per_block)
    on_cpu.guards = False  # a copy would touch all
    right = numpy.exp(x[-2].astype(float)) / numpy.exp(x[-2].astype(float)).sum()
    try:
        on_cpu.run(found, "softmax<Half>", (grid,), launch.block, arguments, launch.shared_bytes, grid - 2)
    except on_cpu.KernelError:
        assert fault
        return
    is_right = numpy.allclose(y[-2].astype(float), right, rtol=5e-3, atol=1e-7)
    assert is_right != fault
