"""Records of times are the full records without their facts, and keep no array."""

from __future__ import annotations

import time
import weakref

import numpy as np
import pytest

import autograd as ag
from autograd.records.record import OperationRecord
from autograd.records.recorder import Recorder
from autograd.records.times import TimesRecorder


def test_they_are_the_full_records_without_facts() -> None:
    x, w = ag.tensor(np.random.default_rng(0).normal(size=(4, 3))), ag.Parameter(np.ones((3, 2)), name="w")
    full, times = Recorder(), TimesRecorder(time.perf_counter_ns)
    with full.listening(), ag.events.listening(times):
        with ag.Tape() as tape:
            loss = (ag.numpy.tanh(x @ w) ** 2).sum()
        tape.backward(loss)

    def told(records: list[OperationRecord]) -> list[tuple[str, str]]:
        """The operations. Leaves enter without an event."""
        return [(r.direction, r.name) for r in records if not r.name.startswith(("leaf", "parameter"))]

    assert told(times.records) == told(full.found.records) != []
    assert all(r.begin_ns < r.end_ns for r in times.records)
    assert times.elements == 8 + 8 + 8 + 1


def test_an_operation_that_raises_has_no_end() -> None:
    times = TimesRecorder(time.perf_counter_ns)
    with ag.events.listening(times):
        with pytest.raises(ag.errors.ShapeError):
            ag.tensor(np.ones(3)) @ ag.tensor(np.ones(4))
        ag.numpy.exp(ag.tensor(1.0))
    with ag.events.listening(times), ag.scope("part"), pytest.raises(ag.errors.ShapeError):
        ag.tensor(np.ones(3)) + ag.tensor(np.ones(4))
    ended = [(record.name, record.end_ns > 0) for record in times.records]
    assert ended == [("matmul", False), ("exp", True), ("part", True), ("add", False)]


def test_no_array_is_kept() -> None:
    times = TimesRecorder(time.perf_counter_ns)
    with ag.events.listening(times):
        y = ag.numpy.exp(ag.tensor(np.ones(3)))
        array = weakref.ref(y.array)
        del y
    assert array() is None and times.records[0].name == "exp"
