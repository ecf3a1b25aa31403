"""Loops over `test` of every nonblocking call, on all ranks: each loop ends, and the value is right."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from collectives.transports.protocol import Request

LIMIT_S = 30.0


def loop(handle: Any, nothing_else: Callable[[], Any] = lambda: None) -> Any:
    """Test until the handle is done, and return the value."""
    start = time.monotonic()
    while not handle.test():
        nothing_else()
        assert time.monotonic() - start < LIMIT_S, f"{handle!r} makes no progress in `test`"
        time.sleep(0)
    return handle.wait()


def receives(mesh: cc.Mesh) -> None:
    """Receives of unknown shape, of known shape behind one of unknown shape, and tested in the other order."""
    on = mesh.axis("a")
    rank, size = int(on.rank), on.size
    there, back = (rank + 1) % size, (rank - 1) % size
    for like in (None, np.empty((2, 3)), "mixed"):
        for backwards in (False, True):
            with ag.Tape():
                values = [np.full((2, 3), rank + 10.0 * k) for k in range(3)]
                likes = [None, np.empty((2, 3)), None] if isinstance(like, str) else [like] * 3
                heres = [cc.irecv("a", back, like=each) for each in likes]
                sends = [cc.isend(value, "a", there) for value in values]
                order = range(3)[:: -1 if backwards else 1]
                for k in order:
                    assert (loop(heres[k]).numpy() == back + 10.0 * k).all()
                for handle in sends:
                    loop(handle)


def kinds(mesh: cc.Mesh) -> None:
    """A receive of integers on a tape, whose node is removed once the header has arrived."""
    rank, size = int(mesh.axis("a").rank), mesh.axis("a").size
    with ag.Tape() as tape:
        x = ag.tensor([rank + 1.0], requires_grad=True)
        numbers, values = cc.irecv("a", (rank - 1) % size), cc.irecv("a", (rank - 1) % size)
        cc.isend(ag.tensor(np.arange(3)), "a", (rank + 1) % size).wait()
        sent = cc.isend(x * x, "a", (rank + 1) % size)
        assert loop(values).numpy().tolist() == [((rank - 1) % size + 1.0) ** 2]
        assert loop(numbers).numpy().tolist() == [0, 1, 2]
        sent.wait()
        loss = cc.all_reduce(values.sum(), "a", to=cc.I)
    tape.backward(loss)
    assert x.grad is not None and x.grad.numpy().tolist() == [2.0 * (rank + 1)]


def collectives(mesh: cc.Mesh) -> None:
    """Every collective; the ranks loop over two handles in different orders."""
    size, rank = mesh.axis("a").size, int(mesh.axis("a").rank)
    x = ag.tensor(np.full(2 * size, rank + 1.0))
    total = size * (size + 1) / 2
    pairs = [(r, (r + 1) % size) for r in range(size)]
    starts: list[tuple[Callable[[], Any], Callable[[Any], bool]]] = [
        (lambda: cc.all_reduce_async(x, "a"), lambda y: (y == total).all()),
        (lambda: cc.all_gather_async(x, "a"), lambda y: y.sum() == 2 * size * total),
        (lambda: cc.reduce_scatter_async(x, "a"), lambda y: (y == total).all()),
        (lambda: cc.all_to_all_async(x, "a", 0, 0), lambda y: y.sum() == 2 * total),
        (lambda: cc.permute_async(x, "a", pairs), lambda y: (y == (rank - 1) % size + 1).all()),
    ]
    for first, one in starts:
        for second, other in starts:
            handles = [(first(), one), (second(), other)]
            for handle, is_right in handles[:: 1 if rank % 2 else -1]:
                assert is_right(loop(handle).numpy())


def algorithms(mesh: cc.Mesh) -> None:
    """Calls that an algorithm starts on a communicator; no step of it blocks, and ranks test in different orders."""
    on = mesh.axis("a")
    rank, total = int(on.rank), on.size * (on.size + 1) / 2
    for algorithm in ("ring", "halving_doubling", "hierarchical", "hierarchical:native,native", "shared", "auto"):
        group = on.using(algorithm)
        pendings = [group.start(Request("all_reduce", np.full(n, rank + 1.0))) for n in (3, 5000)]
        other = on.group.start(Request("all_reduce", np.full(4, rank + 1.0)))
        for pending in [other, *pendings] if rank % 2 else [*pendings, other]:
            assert (loop(pending) == total).all(), algorithm
        assert (group.all_reduce(np.full(3, rank + 1.0)) == total).all(), algorithm


CASES = [receives, kinds, collectives, algorithms]
