"""Offload: the numbers of the same optimizer on the host, whatever the streams do, and the waits that this takes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy
import pytest

import autograd as ag
from autograd import optim
from autograd.arrays import runtime_of
from autograd.errors import ArgumentError, CaptureError, OptionError
from autograd.optim import offload as file
from autograd.optim import schedules

from ..arrays import fake_streams
from ..arrays.devices import DEVICES

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
SHAPES = ((3, 5), (7,), (), (2, 9), (64,))
MAKERS: dict[str, Any] = {
    "AdamW": lambda make, ps: make(optim.AdamW, ps, schedules.exponential_lr(0.01, 0.5)),
    "groups": lambda make, ps: make(optim.Adam, [{"params": ps[:2], "lr": 0.1}, {"params": ps[2:]}], 0.01),
    "momentum": lambda make, ps: make(optim.SGD, ps, 0.1, 0.9, weight_decay=0.1),
    "LAMB": lambda make, ps: make(optim.LAMB, ps, 0.01),
    "amsgrad and maximize": lambda make, ps: make(optim.Adam, ps, 0.01, amsgrad=True, maximize=True),
}


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Any:
    return request.param


def same(found: list[Any], needed: list[Any]) -> None:
    """Equal, but for rounding of a number, which the host updates by another formula than arrays."""
    for x, y in zip(found, needed, strict=True):
        numpy.testing.assert_allclose(x, y, rtol=0 if y.shape else 4 * numpy.finfo(y.dtype).eps)


def plainly(kind: Any, ps: Any, *args: Any, **options: Any) -> Any:
    return kind(ps, *args, **options)


def train(name: str, there: Any, dtype: str, chunk_bytes: int, steps: int = 4) -> tuple[list[Any], Any]:
    """The parameters after some steps: on the host without offload, or on the device with it."""
    random = numpy.random.default_rng(0)
    move = numpy.asarray if there is None else there.move
    ps = [ag.Parameter(move(numpy.asarray(random.standard_normal(s), dtype))) for s in SHAPES]
    if there is not None:
        turned = there.move(numpy.ascontiguousarray(ps[0].array.T if there is None else there.values(ps[0]).T))
        ps[0].array = turned.T  # not contiguous

    def make(kind: Any, params: Any, *args: Any, **options: Any) -> Any:
        return optim.Offload(kind, params, *args, chunk_bytes=chunk_bytes, **options)

    optimizer = MAKERS[name](plainly if there is None else make, ps)
    for step in range(steps):
        for i, p in enumerate(ps):
            g = numpy.asarray(random.standard_normal(p.shape), dtype)
            if i != 1 or step % 2:
                p.grad = move(g)
        optimizer.step()
        optimizer.zero_grad()
    return [p.numpy() if there is None else there.values(p) for p in ps], optimizer


def waits_checked(there: Any, mode: str) -> Any:
    return fake_streams.mode(mode) if there.name == "fake" else nullcontext()


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("name", MAKERS)
def test_the_numbers_are_those_of_the_host(name: str, mode: str, there: Any) -> None:
    needed, other = train(name, None, "float64", 0)
    with waits_checked(there, mode):
        found, optimizer = train(name, there, "float64", 100)
    same(found, needed)
    assert optimizer.numbers() == other.numbers()
    assert all(isinstance(x, numpy.ndarray | numpy.generic | int) for xs in optimizer.state_lists() for x in xs)


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_chunks(chunk_bytes: int, there: Any) -> None:
    needed, _ = train("AdamW", None, "float32", 0)
    found, optimizer = train("AdamW", there, "float32", chunk_bytes)
    same(found, needed)
    assert len(optimizer._pipeline._chunks) == {1: 5, 100: 3, 1 << 20: 1}[chunk_bytes]


def test_every_copy_waits_for_what_it_reads(there: Any) -> None:
    if there.name != "fake":
        pytest.skip("the streams of the simulated device are followed")
    with fake_streams.tracked():
        train("AdamW", there, "float32", 100)


FAULTS = {
    "the gradients may not be complete": ("_begin", lambda self: None),
    "the program may use the old parameters": ("_end", lambda self, last: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_missing_wait_is_seen(fault: str) -> None:
    there = DEVICES[0].values[0]
    with mock.patch.object(file._Pipeline, *FAULTS[fault]), pytest.raises(AssertionError), fake_streams.tracked():
        found, _ = train("AdamW", there, "float32", 100)
        needed, _ = train("AdamW", None, "float32", 0)
        same(found, needed)


def test_a_missing_wait_of_the_host_is_seen() -> None:
    there = DEVICES[0].values[0]
    true = file._Chunk.__init__

    class Ignored(fake_streams.FakeEvent):
        def synchronize(self) -> None:
            pass

    def init(self: Any, *args: Any) -> None:
        true(self, *args)
        self.arrived = Ignored()

    needed, _ = train("AdamW", None, "float64", 0)
    with mock.patch.object(file._Chunk, "__init__", init), fake_streams.mode("late"), pytest.raises(AssertionError):
        ps, _ = train("AdamW", there, "float64", 100)
        same(ps, needed)


def test_parameters_of_16_bits(there: Any) -> None:
    start = numpy.random.default_rng(0).standard_normal(40).astype("float16")
    p, master = ag.Parameter(there.move(start)), ag.Parameter(start.astype("float32"))
    optimizer, other = optim.Offload(optim.AdamW, [p], 1e-4), optim.AdamW([master], 1e-4)
    for step in range(5):
        g = numpy.random.default_rng(step).standard_normal(40).astype("float16")
        p.grad, master.grad = there.move(g), g.astype("float32")
        optimizer.step(), other.step()
        if step == 2:  # continue from a state
            saved = optimizer.state_dict()
            p = ag.Parameter(there.move(start))
            optimizer = optim.Offload(optim.AdamW, [p], 1e-4)
            optimizer.load_state_dict(saved)
        numpy.testing.assert_array_equal(there.values(p), master.numpy().astype("float16"))


def test_a_parameter_that_is_assigned_gives_its_copy_the_value(there: Any) -> None:
    p = ag.Parameter(there.move(numpy.zeros(4)))
    optimizer = optim.Offload(optim.SGD, [p], 1.0)
    for _ in range(2):
        p.data = there.move(numpy.full(4, 5.0))
        p.grad = there.move(numpy.ones(4))
        optimizer.step()
        assert there.values(p).tolist() == [4.0] * 4


def test_parameters_on_both_sides(there: Any) -> None:
    away, host = ag.Parameter(there.move(numpy.ones(3))), ag.Parameter(numpy.ones(3))
    number = ag.Parameter(2.0)
    optimizer = optim.Offload(optim.SGD, [away, host, number], 0.5)
    away.grad, host.grad, number.grad = there.move(numpy.ones(3)), numpy.ones(3), numpy.float64(1.0)
    optimizer.step()
    assert there.values(away).tolist() == host.numpy().tolist() == [0.5] * 3 and number.item() == 1.5


def test_a_large_model_is_copied_while_it_is_updated(there: Any) -> None:
    """The gradients of a chunk are on their way before the one before is updated, and no earlier."""
    if there.name != "fake":
        pytest.skip("the calls of the simulated device are counted")
    ps = [ag.Parameter(there.move(numpy.ones(8))) for _ in range(4)]
    optimizer = optim.Offload(optim.SGD, ps, 0.5, chunk_bytes=64)
    for p in ps:
        p.grad = there.move(numpy.ones(8))
    order: list[str] = []
    runtime: Any = runtime_of(type(ps[0].array))

    def copy(out: Any, x: Any, stream: Any) -> None:
        order.append("down" if type(out) is numpy.ndarray else "up")

    with mock.patch.object(runtime, "copy", copy), \
            mock.patch.object(optim.SGD, "update", lambda *_: order.append("update")):  # fmt: skip
        optimizer.step()
    assert order == ["down", "down", "update", "up", "down", "update", "up", "down", "update", "up", "update", "up"]


def test_errors(there: Any) -> None:
    p = ag.Parameter(there.move(numpy.ones(3)))
    with pytest.raises(OptionError, match="chunk_bytes=0"):
        optim.Offload(optim.SGD, [p], 0.1, chunk_bytes=0)
    with pytest.raises(OptionError, match="given twice"):
        optim.Offload(optim.SGD, [p, p], 0.1)
    with pytest.raises(ArgumentError, match="ndarray was given; needed: Parameters"):
        optim.Offload(optim.SGD, [numpy.ones(3)], 0.1)  # type: ignore[list-item]
    optimizer = optim.Offload(optim.SGD, [p], 0.1)
    with pytest.raises(OptionError, match="needed: \\['copies', 'optimizer'\\]"):
        optimizer.load_state_dict({})
    p.grad = there.move(numpy.ones(3))
    with pytest.raises(CaptureError, match="updates parameters on the host"):
        do = ag.capture(lambda x: optimizer.step(), warmup=0)
        do(p.array), do(p.array)
    assert "Offload(SGD(1 parameters" in repr(optimizer)
