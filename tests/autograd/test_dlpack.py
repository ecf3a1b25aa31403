"""Memory that is shared with other libraries by DLPack: by address, its lifetime, and who may write to it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.errors import (
    AbsentError,
    ArgumentError,
    DtypeError,
    LayoutError,
    OptionError,
    SavedArrayError,
    TapeError,
)

ROOT = Path(__file__).resolve().parents[2]


class Consumer:
    """A library that asks for memory, by the protocol of a version; `kept` is what it then holds."""

    def __init__(self, x: Any, **words: Any):
        self.kept = x.__dlpack__(**words)

    def __dlpack__(self, **words: Any) -> Any:
        return self.kept

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _address(a: Any) -> int:
    return int(a.ctypes.data)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint8", "bool", "complex128"])
@pytest.mark.parametrize("view", [
    lambda a: a, lambda a: a.T, lambda a: a[::2, 1:], lambda a: a[:0], lambda a: a[0, 0, None],
])  # fmt: skip
def test_no_copy_either_way(dtype: str, view: Any) -> None:
    a = view(numpy.arange(12).reshape(3, 4).astype(dtype))
    x = ag.tensor(a)
    for words in ({}, {"copy": False}):
        there = numpy.from_dlpack(x, **words)
        assert _address(there) == _address(a) and numpy.array_equal(there, a) and there.dtype == a.dtype
        assert not there.flags.writeable  # it is told so by the protocol
        again = np.from_dlpack(there, **words)
        assert type(again) is numpy.ndarray and _address(ag.tensor(again).array) == _address(a)
    assert _address(numpy.from_dlpack(x, copy=True)) != _address(a) or not a.size
    assert x.__dlpack_device__() == (1, 0)
    assert numpy.from_dlpack(Consumer(x)).flags.writeable is False  # NumPy's rule for consumers of the old protocol


def test_the_consumer_keeps_the_memory_and_the_tensor_goes() -> None:
    x = ag.tensor(numpy.arange(4.0)) * 2.0
    array, tensor = weakref.ref(x.array), x.array.ctypes.data
    there = numpy.from_dlpack(x)
    del x
    gc.collect()
    assert array() is not None and _address(there) == tensor and there.tolist() == [0.0, 2.0, 4.0, 6.0]
    del there
    gc.collect()
    assert array() is None


def test_a_tensor_keeps_the_memory_of_others() -> None:
    class Owner:
        def __init__(self) -> None:
            self.array = numpy.arange(3.0)

        def __dlpack__(self, **words: Any) -> Any:
            return self.array.__dlpack__(**words)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    owner = Owner()
    array = weakref.ref(owner.array)
    x = ag.tensor(np.from_dlpack(owner))
    del owner
    gc.collect()
    assert array() is not None and (x + 1.0).tolist() == [1.0, 2.0, 3.0]
    del x
    gc.collect()
    assert array() is None


def test_while_a_tape_needs_it() -> None:
    """A consumer may write to memory that it should only read, so it gets a copy unless it insists."""
    w = ag.Parameter([1.0, 2.0])
    with ag.Tape() as tape:
        y = w * w
        z = (y * y).sum()
        for x in (w, y):
            with pytest.raises(TapeError, match=r"^from_dlpack\(\w\), .* no gradient flows through") as caught:
                numpy.from_dlpack(x)
            assert f"fix: from_dlpack(stop_gradient({x.name or 'x'}))" in str(caught.value)
            assert numpy.array_equal(np.from_dlpack(ag.stop_gradient(x)), x.array)
    for x in (w, y):
        there = numpy.from_dlpack(x)
        assert _address(there) != _address(x.array)
        there[...] = 99.0  # its own
        there = numpy.from_dlpack(x, copy=False)
        assert _address(there) == _address(x.array) and not there.flags.writeable
        with pytest.raises(SavedArrayError, match="a consumer that knows read-only memory"):
            x.__dlpack__(copy=False)
    tape.backward(z)
    assert w.grad is not None and w.grad.tolist() == [4.0, 32.0]
    assert _address(numpy.from_dlpack(w)) == _address(w.array)  # the tape has released it


def test_labels_and_arguments() -> None:
    def program() -> None:
        with cc.Mesh(dp=2):
            with pytest.raises(LayoutError, match="addend"):
                numpy.from_dlpack(ag.tensor([1.0], {"dp": cc.P}))
            x = ag.tensor([1.0], {"dp": cc.Rooted(0)})
            if x.absent:
                with pytest.raises(AbsentError):
                    numpy.from_dlpack(x)

    cc.run(program, ranks=2)
    with pytest.raises(DtypeError, match="needed: an array with __dlpack__"):
        np.from_dlpack([1.0])
    with pytest.raises(ArgumentError, match="needed: True, False or None"):
        np.from_dlpack(ag.tensor([1.0]), copy="no")
    with pytest.raises(OptionError, match="copy=False and device='cuda'"):
        np.from_dlpack(ag.tensor([1.0]), device="cuda", copy=False)
    with pytest.raises(OptionError, match="2020.01"):
        ag.tensor([1.0]).__array_namespace__(api_version="2020.01")
    assert ag.tensor([1.0]).__array_namespace__(api_version="2024.12") is np
    assert ag.tensor([1.0]).to_device("cpu").tolist() == [1.0]


TORCH = """
import gc, numpy, torch, autograd as ag, autograd.numpy as np
a = numpy.arange(6.0).reshape(2, 3)
for view in (a, a.T, a[:, 1:]):
    x = ag.tensor(view)
    t = torch.from_dlpack(x)
    assert t.data_ptr() == view.ctypes.data and torch.equal(t, torch.tensor(view.tolist()).double())
    del x
    gc.collect()
    back = np.from_dlpack(t)
    assert back.ctypes.data == t.data_ptr()
    y = ag.tensor(back)
    del t, back
    gc.collect()
    assert y.array.ctypes.data == view.ctypes.data
w = ag.Parameter([1.0, 2.0])
with ag.Tape() as tape:
    z = (w * w * w).sum()
torch.from_dlpack(w).mul_(100.0)  # torch does not know memory that it may not write to: it has a copy
tape.backward(z)
assert w.grad.tolist() == [3.0, 12.0], w.grad
p = torch.ones(3, requires_grad=True)
try:
    np.from_dlpack(p)
except BufferError:
    pass
else:
    raise AssertionError("a gradient was dropped")
t = torch.arange(3, dtype=torch.float32)
g = ag.grad(lambda x: np.sum(x * np.from_dlpack(t)))(numpy.ones(3, numpy.float32))
assert g.tolist() == [0.0, 1.0, 2.0]
print("OK")
"""
JAX = """
import gc, numpy, jax, autograd as ag, autograd.numpy as np
jax.config.update("jax_enable_x64", True)
room = numpy.empty(64)
start = -room.ctypes.data % 64 // 8  # XLA shares memory at multiples of 64 bytes
a = room[start : start + 6].reshape(2, 3)
a[...] = numpy.arange(6.0).reshape(2, 3)
x = ag.tensor(a)
j = jax.numpy.from_dlpack(x)
assert j.unsafe_buffer_pointer() == a.ctypes.data and j.tolist() == a.tolist()
del x
gc.collect()
back = np.from_dlpack(j)
assert back.ctypes.data == j.unsafe_buffer_pointer() and not back.flags.writeable
y = ag.tensor(back)
del j, back
gc.collect()
assert (y + 1.0).tolist() == (a + 1.0).tolist()
w = ag.Parameter(numpy.ones(8))
with ag.Tape() as tape:
    z = (w * w).sum()
assert jax.numpy.from_dlpack(w).tolist() == [1.0] * 8
tape.backward(z)
assert w.grad.tolist() == [2.0] * 8
print("OK")
"""


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_other_libraries(library: str) -> None:
    """In the environments of `RINGTAPE_PYTHON_TORCH` and `RINGTAPE_PYTHON_JAX`."""
    python = os.environ.get(f"RINGTAPE_PYTHON_{library.upper()}")
    if not python:
        pytest.skip(f"RINGTAPE_PYTHON_{library.upper()} names no interpreter that has {library}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [python, "-W", "ignore", "-c", TORCH if library == "torch" else JAX]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.stdout == "OK\n", run.stderr[-2000:]


@pytest.mark.gpu
def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    a = cupy.arange(6.0).reshape(2, 3)
    x = ag.tensor(a)
    assert x.__dlpack_device__()[0] == 2
    assert cupy.from_dlpack(x).data.ptr == a.data.ptr == np.from_dlpack(x).data.ptr
    assert type(np.from_dlpack(a, device="cpu")) is numpy.ndarray
    assert sys.getrefcount(a) > 1
