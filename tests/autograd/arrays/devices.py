"""The devices on which a test's body runs: the simulated one, always, and a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import arrays
from autograd.arrays import cuda

from . import fake_device


class Device:
    """What the bodies need of a device: the way there, and the values of what lives there."""

    name = "fake"

    def move(self, x: Any) -> Any:
        return fake_device.from_host(numpy.asarray(x))

    def values(self, x: Any) -> Any:
        """What a test compares; asserts that it lived on the device."""
        x = x.array if isinstance(x, ag.Tensor) else x
        assert isinstance(x, fake_device.DeviceArray), f"{type(x).__name__} is not on the device"
        return x._values

    def as_cuda(self) -> Any:
        """A block in which the name "cuda" means this device."""
        return fake_device.as_cuda()

    @contextmanager
    def without_crossings(self, *, moves: bool = False, to_host: int = 0) -> Iterator[None]:
        """A block in which values cross to the host `to_host` times, and to the device only if it `moves` them."""
        before = dict(fake_device.crossings)
        yield
        found = {way: n - before[way] for way, n in fake_device.crossings.items()}
        assert found["to host"] == to_host, f"values were read from the device: {found}, allowed: {to_host}"
        assert moves or not found["from host"], f"values crossed between host and device: {found}"


class Gpu(Device):
    """CuPy's arrays; it refuses host operands by itself."""

    name = "cupy"

    def move(self, x: Any) -> Any:
        import cupy

        return cupy.asarray(x)

    def values(self, x: Any) -> Any:
        import cupy

        x = x.array if isinstance(x, ag.Tensor) else x
        assert isinstance(x, cupy.ndarray), f"{type(x).__name__} is not on the device"
        return arrays.to_host(x)

    def as_cuda(self) -> Any:
        return nullcontext()

    @contextmanager
    def without_crossings(self, *, moves: bool = False, to_host: int = 0) -> Iterator[None]:
        yield


GPU = [] if cuda.why_not() else [pytest.param(Gpu(), id="cupy", marks=pytest.mark.gpu)]
DEVICES = [pytest.param(Device(), id="fake"), *GPU]
"""For ``pytest.fixture(params=DEVICES)``."""
