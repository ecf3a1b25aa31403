"""The calls on device arrays, by what the environment names, on real ranks; the world is closed in order."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

import collectives as cc
from collectives.transports.device import ipc, pinned
from tests.collectives.transports.device import carried

ipc.SLOT_BYTES, ipc.ONE_SHOT_BYTES, pinned.CHUNK_BYTES, pinned.WINDOW = 768, 256, 64, 2
with cc.World() as world:
    group = world.communicator
    name = carried.chosen(group)
    carried.conforms(group, "e")
    half = group.subgroup([0, group.size - 1], "half") if group.rank in (0, group.size - 1) else None
    if half is not None:
        carried.long_arrays(half)
    group.barrier()
    if group.rank == 0:
        print(name, "on", group.size, "ranks", flush=True)
