"""A rank of `checkpoint.py`: torch.distributed.checkpoint over gloo. Prints a JSON line of seconds."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

FOLDER, MIB, REPEATS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
WIDTH, LAYERS = 1024, 8


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    rows = MIB * 2**20 // (3 * 4 * WIDTH * LAYERS)
    state = {
        f"{i}.{name}": distribute_tensor(torch.randn(rows, WIDTH), mesh, [Shard(0)])
        for i in range(LAYERS) for name in ("weight", "exp_avg", "exp_avg_sq")
    }  # fmt: skip

    def timed(f: Callable[[], Any]) -> float:
        dist.barrier()
        begin = time.perf_counter()
        f()
        dist.barrier()
        return time.perf_counter() - begin

    def save() -> None:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{FOLDER}/dcp", sync_files=True, overwrite=True))

    def load() -> None:
        dcp.load(state, storage_reader=dcp.FileSystemReader(f"{FOLDER}/dcp"))

    save()
    first = timed(load)
    load()  # not counted
    times: dict[str, list[float]] = {"save": [], "load": []}
    for _ in range(REPEATS):
        times["save"].append(timed(save))
        times["load"].append(timed(load))
    if dist.get_rank() == 0:
        print(json.dumps({**times, "first load": [first]}), flush=True)
    dist.destroy_process_group()


if os.environ.get("RANK"):
    main()
