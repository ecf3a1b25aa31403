"""The calls on device arrays on real ranks, in a world for each carrier, which is closed in order.

The first argument is the device: ``fake`` or ``cupy``. On a GPU long arrays also take the usual sizes of chunks. The
others are the names of carriers; without any, the ranks choose one. With ``few`` fewer calls are made, and with
``apart`` each rank has a GPU of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

import collectives as cc
from autograd import arrays
from collectives.transports.device import ipc, pinned
from collectives.transports.device.choice import VARIABLE
from tests import emulator
from tests.autograd.arrays.devices import Device, Gpu
from tests.collectives.transports import conformance
from tests.collectives.transports.device import carried

device = Gpu() if sys.argv[1] == "cupy" else Device()
usual = ipc.SLOT_BYTES, ipc.ONE_SHOT_BYTES, pinned.CHUNK_BYTES, pinned.WINDOW
small = 768, 256, 64, 2


def use(sizes: tuple[int, int, int, int]) -> None:
    ipc.SLOT_BYTES, ipc.ONE_SHOT_BYTES, pinned.CHUNK_BYTES, pinned.WINDOW = sizes


for asked in [name for name in sys.argv[2:] if name not in ("few", "apart")] or [""]:
    os.environ[VARIABLE] = asked
    use(small)
    with cc.World() as world:
        group = world.communicator
        if "apart" in sys.argv:
            arrays.use_device(f"cuda:{group.rank}")
        name = carried.chosen(group, device)
        only = ("all_reduce", "all_gather") if "few" in sys.argv else None
        carried.conforms(group, f"e{conformance.BFLOAT16}", device, only)
        if group.rank in (0, group.size - 1):
            half = group.subgroup(sorted({0, group.size - 1}), "half")
            if device.name == "cupy":
                use(usual)
                carried.long_arrays(half, device, 300_001 if emulator.IS_USED else 3_000_001)
            else:
                carried.long_arrays(half, device)
        group.barrier()
        if group.rank == 0:
            print(name, "on", group.size, "ranks", flush=True)
