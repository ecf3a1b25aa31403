"""Start calls and drop them at once, while the other rank is late: MPI still writes to the arrays of their results."""

from __future__ import annotations

import time
import weakref
from typing import Any

import numpy as np

import collectives as cc
from collectives.transports.protocol import Request

made: list[Any] = []


def recorded(count: int, dtype: Any) -> Any:
    array = np.empty(count, dtype)
    made.append(weakref.ref(array))
    return array


rank = cc.world().index
raw = cc.world().duplicate("raw")
raw._empty = recorded
x = np.ones(8)
REQUESTS = [
    Request("all_reduce", x),
    Request("reduce", x, root=0),
    Request("all_gather", x, counts=[8, 8]),
    Request("reduce_scatter", x, counts=[4, 4]),
    Request("all_to_all", x, counts=[4, 4], receive_counts=[4, 4]),
    Request("scan", x, options=(False, False)),
]
raw.barrier()
if rank == 1:
    time.sleep(0.5)
for request in REQUESTS:
    raw.start(request)
if rank == 0:
    print(f"kept {[reference() is not None for reference in made]}", flush=True)
raw.barrier()
while any(raw.in_flight):  # as a sweep asks after each of its nodes
    raw.poke()
assert not any(reference() is not None for reference in made), "they are freed once the calls are complete"
print(f"freed by rank {rank}", flush=True)
