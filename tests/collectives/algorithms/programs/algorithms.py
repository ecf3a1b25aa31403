"""Every algorithm on real processes, against the dense sum; prints how many cases ran.

    algorithms.py SIZE ...     the numbers of elements
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import numpy as np

import autograd as ag
import collectives as cc
from autograd.layouts.partition import parts
from collectives.algorithms import OPERATIONS, count_messages
from collectives.algorithms.selected import Channel, Selected
from collectives.transports import steps
from collectives.transports.protocol import Request
from tests.collectives.algorithms.algorithm_cases import call, data, expected, names

world = cc.world()
rank, ranks = world.rank, world.size
cases = 0


def compare(operation: str, algorithm: str, size: int, dtype: type) -> None:
    global cases
    counts, root = parts(size, ranks)[0], size % ranks
    xs = data(operation, ranks, size, dtype, counts)
    world.traffic.clear()
    y, traffic = call(operation, algorithm, xs[rank].copy(), counts, root)
    want = expected(operation, xs, counts, root)[rank]
    where = f"{operation} by {algorithm} of {size} {dtype.__name__} on rank {rank} of {ranks}"
    assert (y is None) == (want is None), where
    assert y is None or (y.dtype == want.dtype and np.array_equal(y, want)), where
    if not algorithm.startswith(("hierarchical", "shared")):
        counted = count_messages(operation, algorithm, size, ranks, rank, dtype=dtype, root=root)
        assert counted.peers == traffic.peers, f"{where}: sent {traffic.peers}, counted {counted.peers}"
    cases += 1


for operation in OPERATIONS:
    for algorithm in names(operation):
        for size in map(int, sys.argv[1:]):
            compare(operation, algorithm, size, np.float64)
        compare(operation, algorithm, 13, np.float16)
    steps.SEGMENT_BYTES = 64 * 1024
    compare(operation, names(operation)[0], 100_001, np.float32)  # several pieces, beyond the eager limit
    steps.SEGMENT_BYTES = 256 * 1024

channel = Channel(world)
x = np.arange(70_000.0) + rank
started = [Selected(channel, name).start(Request("all_reduce", x)) for name in ("ring", "tree", "halving_doubling")]
x[:] = -1
for pending in started[::-1]:
    assert np.array_equal(pending.wait(), np.arange(70_000.0) * ranks + ranks * (ranks - 1) / 2)

with cc.Mesh(dp=-1, algorithm="auto") as mesh:
    choices = [mesh.axis("dp").choice(4**k) for k in range(13)]
    assert len(set(world.exchange(repr(choices).encode()))) == 1
    w = ag.Parameter(np.arange(4.0))
    with ag.Tape() as tape:
        y = cc.all_reduce((cc.cast(w, "dp") * np.full(4, rank + 1.0)).sum(), "dp", to=cc.I, algorithm="ring")
    tape.backward([y])
    assert np.array_equal(w.grad.numpy(), np.full(4, ranks * (ranks + 1) / 2))
    try:
        cc.all_reduce(np.ones(2), "dp", algorithm="ring" if rank == 1 else "tree")
    except cc.CollectiveMismatch as error:
        assert "rank 1" in str(error) and "algorithm=ring" in str(error), error
    else:
        raise AssertionError("a different algorithm on one rank was not reported")

if rank == 0:
    print(f"{cases} cases on {ranks} ranks")
