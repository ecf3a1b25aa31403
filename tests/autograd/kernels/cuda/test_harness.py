"""The header that runs kernels on the CPU: mistakes that a GPU would punish are seen."""

from __future__ import annotations

import numpy
import pytest

from autograd.arrays.runtime import Program
from autograd.kernels.cuda.program import program

from . import on_cpu

pytestmark = pytest.mark.skipif(bool(on_cpu.WHY_NOT), reason=on_cpu.WHY_NOT)

COMMON = program("activations", ()).text
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
""", ("sums", "reversed", "unsynchronised", "divergent"))  # fmt: skip


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
