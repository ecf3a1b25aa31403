"""One rank of the sums of `benchmarks/gpu.py`: the seconds of an all_reduce between the ranks, by its size in bytes."""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np

import autograd as ag
import collectives as cc

SIZES = (4 << 10, 256 << 10, 4 << 20, 64 << 20)
ROUNDS, REPEAT = 7, 10


def main() -> None:
    device = "cpu" if "--cpu" in sys.argv else "cuda"
    found: dict[int, float] = {}
    with cc.Mesh(dp=-1) as mesh:
        for size in SIZES[: 2 if "--small" in sys.argv else None]:
            x = ag.tensor(np.ones(size // 4, np.float32), {"dp": cc.V}).to(device)
            times = []
            for _ in range(ROUNDS):
                mesh.ranks.barrier()
                start = time.perf_counter()
                with ag.no_grad():
                    for _ in range(REPEAT):
                        y = cc.all_reduce(x, "dp", to=cc.R)
                assert float(y[-1].item()) == mesh.ranks.size  # waits for the device
                times.append((time.perf_counter() - start) / REPEAT)
            found[size] = statistics.median(times)
        if mesh.ranks.rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
