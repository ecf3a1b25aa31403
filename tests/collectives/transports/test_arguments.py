"""What transports refuse, before anything is sent: threads and processes alike, to the word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autograd.errors import DtypeError, MeshError, ShapeError
from collectives.algorithms.selected import _check
from collectives.transports.mpi.calls import PLANS
from collectives.transports.threads.calls import CALLS
from collectives.transports.threads.communicator import LocalWorld

TABLE = np.ones((2, 2))
STRIDED = np.ones(6)[::2]
LINE = np.ones(3)
FIXED = np.ones(3)
FIXED.flags.writeable = False

# call, arguments, the kind of error, words of its text; on rank 0 of 2
REFUSED: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    *((call, (TABLE,), ShapeError, r"not shape \(2, 2\): ravel it first") for call in ("all_reduce", "maximum")),
    ("all_reduce", (STRIDED,), ShapeError, "C-contiguous"),
    ("scan", (TABLE, False, False), ShapeError, "ravel it first"),
    ("broadcast", (TABLE, 0), ShapeError, "ravel it first"),
    ("broadcast", (FIXED, 1), ShapeError, "off its root 1, and this one is read-only"),
    *((call, (LINE, 2), MeshError, "root 2 is no rank of 'pair', whose ranks are 0 to 1")
      for call in ("broadcast", "reduce")),
    ("reduce", (LINE, -1), MeshError, "root -1 is no rank of 'pair'"),
    *((call, (LINE, counts), ShapeError, rf"counts on 'pair' must be 2 counts >= 0, not \{counts}")
      for call in ("all_gather", "reduce_scatter") for counts in ([3], [1, 1, 1], [4, -1])),
    ("gather", (LINE, [3, -3], 0), ShapeError, r"must be 2 counts >= 0, not \[3, -3\]"),
    ("gather", (LINE, [3, 0], 2), MeshError, "root 2 is no rank"),
    ("all_gather", (TABLE, [4, 0]), ShapeError, "ravel it first"),
    ("reduce_scatter", (LINE, [3, 1]), ShapeError, "3 elements where the sum of counts is 4"),
    ("scatter", (None, [1, 1], 0, np.float64), ShapeError, "needs an array on its root, rank 0 of 'pair'"),
    ("scatter", (LINE, [2, 1], 0, np.float32), DtypeError, "was given float64 on its root and dtype float32"),
    ("scatter", (LINE, [2, 2], 0, np.float64), ShapeError, "3 elements where the sum of counts is 4"),
    ("all_to_all", (LINE, [1, -1], [1, 1]), ShapeError, "send_counts on 'pair' must be 2 counts >= 0"),
    ("all_to_all", (LINE, [2, 1], [1]), ShapeError, "receive_counts on 'pair' must be 2 counts >= 0"),
    ("all_to_all", (LINE, [2, 2], [1, 1]), ShapeError, "3 elements where the sum of send_counts is 4"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans of MPI look up a datatype for float; none is used, as no call is made."""
    from collectives.transports.mpi import calls

    for dtype in (np.float32, np.float64):
        monkeypatch.setitem(calls.kinds, np.dtype(dtype), calls.Kind(None, None, None))


@pytest.mark.parametrize(("call", "arguments", "kind", "words"), REFUSED)
def test_threads_and_processes_refuse_alike(
    call: str, arguments: tuple[Any, ...], kind: type[Exception], words: str
) -> None:
    group = LocalWorld(2).communicator(0, name="pair")
    with pytest.raises(kind, match=words) as threads:
        CALLS[call].prepare(group, *arguments)
    with pytest.raises(kind, match=words) as processes:
        PLANS[call](group, *arguments)
    assert str(threads.value) == str(processes.value)


@pytest.mark.parametrize(
    ("call", "arguments", "kind", "words"),
    [row for row in REFUSED if row[0] in ("broadcast", "reduce", "all_reduce", "all_gather")],
)
def test_algorithms_refuse_the_same(call: str, arguments: tuple[Any, ...], kind: type[Exception], words: str) -> None:
    group = LocalWorld(2).communicator(0, name="pair")
    with pytest.raises(kind, match=words):
        _check(group, call, arguments)


def test_what_fits_is_taken() -> None:
    group = LocalWorld(2).communicator(0, name="pair")
    agreed, part = CALLS["all_gather"].prepare(group, LINE, [3, 0])
    assert agreed == (LINE.dtype, (3, 0)) and part is LINE
    plan = PLANS["all_gather"](group, LINE, [3, 0])
    assert plan.arguments[1][1] == [3, 0]  # a list: mpi4py takes a tuple for counts and displacements
    assert isinstance(plan.arguments[1][1], list)
