"""Cotangents of several slices of one value: added in place, with the bits of the sums of their rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd.engine.dispatch import bind
from autograd.ops import indexing

from ..transforms.allocations import counted

KEYS: list[Any] = [
    slice(1, None), slice(None, 2), (slice(None), slice(0, 3)), (slice(None), slice(3, None)), 0, -1, 2, (1, 2), (0, 0),
    (..., 0), (None, slice(None, None, 2)), slice(None, None, -1), slice(2, 2), (slice(1, 3), slice(1, 3)), (), ...,
    numpy.array([0, 1, 1]), [2, 0], (slice(None), [1, 1]), numpy.arange(5) % 2 == 0,
]  # fmt: skip


@contextmanager
def by_rules(yes: bool) -> Iterator[None]:
    """With `yes` a sweep adds what the rule of each slice gives, as it does for other operations."""
    op = ag.registry["getitem"]
    pull = op.pull
    if yes:
        op.pull = bind(op)[1]
    try:
        yield
    finally:
        op.pull = pull


def gradient(seed: int) -> bytes:
    """The gradient of a random sum of slices, whose cotangents have zeros of both signs."""
    random = numpy.random.default_rng(seed)
    dtype = ("float32", "float64", "complex128")[seed % 3]
    leaf = ag.tensor(random.standard_normal((5, 6)).astype(dtype), requires_grad=True)
    outputs, cts = [], []
    with ag.Tape() as tape:
        x = leaf * 1.0 if seed % 2 else leaf
        for _ in range(random.integers(1, 7)):
            y = x[KEYS[random.integers(len(KEYS))]] if random.random() < 0.8 else -x
            outputs.append(y)
            ct = random.choice([-0.0, 0.0, 1.0, numpy.pi], y.shape) * random.choice([1.0, 0.1], y.shape)
            cts.append(numpy.asarray(ct).astype(dtype))
    found = tape.backward(outputs, cts, wanted=[leaf])
    assert found is not None and found[0].dtype == dtype
    return found[0].tobytes()


@pytest.mark.parametrize("large", [0, 1 << 15], ids=["in place", "small"])
def test_slices_have_the_bits_of_their_rules(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_LARGE_BYTES", large)
    for seed in range(500):
        found = gradient(seed)
        with by_rules(True):
            assert found == gradient(seed), seed


@pytest.mark.parametrize("fault", ["no zeros are added", "another array is written to"])
def test_a_fault_in_place_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_zeros(known: Any, ct: Any, key: Any, parts: Any) -> Any:
        known = known if parts is not None and parts[0]() is known else known.copy()
        known[key] += ct
        return known

    def without_copy(known: Any, ct: Any, key: Any, parts: Any) -> Any:
        known += 0.0
        known[key] += ct
        return known

    monkeypatch.setattr(indexing, "_LARGE_BYTES", 0)
    monkeypatch.setattr(indexing, "_with_part", without_zeros if fault == "no zeros are added" else without_copy)
    differ = 0
    for seed in range(500):
        found = gradient(seed)
        with by_rules(True):
            differ += found != gradient(seed)
    assert differ > 10


def test_a_cotangent_of_another_operation_is_not_written_to() -> None:
    x = ag.tensor(numpy.ones((64, 256)), requires_grad=True)
    with ag.Tape() as tape:
        z = x * 2.0
        part = z[:3]
        other = z + 0.5  # its cotangent is that of z, and arrives first
    ct = numpy.ones((64, 256))
    tape.backward([part, other], [numpy.ones((3, 256)), ct])
    assert (ct == 1).all()
    assert (x.grad.numpy() == numpy.where(numpy.arange(64)[:, None] < 3, 4.0, 2.0)).all()


def test_slices_of_a_sequence_take_no_pass_over_it_each() -> None:
    x = ag.tensor(numpy.ones((200, 64)), requires_grad=True)
    with ag.Tape() as tape:
        y = x * 2.0
        parts = [y[t] for t in range(200)]
    with counted() as count:
        tape.backward(parts, [numpy.ones(64)] * 200)
    assert count.bytes < 8 * x.array.nbytes
    with by_rules(True), ag.Tape() as tape:
        y = x * 2.0
        parts = [y[t] for t in range(200)]
    with by_rules(True), counted() as count:
        tape.backward(parts, [numpy.ones(64)] * 200)
    assert count.bytes > 100 * x.array.nbytes


def test_the_gradient_of_a_sliced_parameter_is_adopted() -> None:
    """A sweep that keeps its array would make the parameter copy it."""
    x = ag.Parameter(numpy.ones((64, 256)))
    with ag.Tape() as tape:
        parts = [x[:32], x[32:]]
    ct = numpy.ones((32, 256))
    with counted() as count:
        tape.backward(parts, [ct, ct])
    assert count.bytes < 1.6 * x.array.nbytes  # the gradient, and one part
