"""Make meshes on the ranks of MPI, in four rounds, and print how many objects the last ones have left at the least."""

from __future__ import annotations

import gc
import sys

import collectives as cc

SIZE = int(sys.argv[1]) // 4
counts = []
for _ in range(4):
    for _ in range(SIZE):
        with cc.Mesh(dp=-1):
            pass
    gc.collect()
    for _ in range(34):  # communicators are freed by the 16
        cc.Mesh(dp=-1)
    gc.collect()
    counts.append(len(gc.get_objects()))
left = min(b - a for a, b in zip(counts, counts[1:], strict=False))
if cc.world().rank == 0:
    print(f"{4 * SIZE} meshes, each has left {max(0, left) // SIZE} objects")
