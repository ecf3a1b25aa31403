"""The calls on device arrays on real ranks, in a world for each carrier, which is closed in order.

The first argument is the device: ``fake`` or ``cupy``. On a GPU long arrays also take the usual sizes of chunks. The
others are the names of carriers; without any, the ranks choose one. With ``few`` fewer calls are made, with ``waits``
only those whose arrays are used before and after without a wait, with ``apart`` each rank has a GPU of its own, and
with ``refused`` the last rank can open one piece of the others' memory and no more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

import pytest

import collectives as cc
from autograd import arrays
from autograd.arrays import cuda
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


def once(functions: Iterator[Any], *args: Any) -> Any:
    return next(functions)(cuda.runtime(), *args)


for asked in [name for name in sys.argv[2:] if name not in ("few", "waits", "apart", "refused")] or [""]:
    os.environ[VARIABLE] = asked
    use(small)
    with cc.World() as world, pytest.MonkeyPatch.context() as patch:
        group = world.communicator
        if "refused" in sys.argv and group.rank == group.size - 1:
            patch.setattr(cuda.CudaRuntime, "open_handle", partial(once, iter([cuda.CudaRuntime.open_handle])))
        if "apart" in sys.argv:
            arrays.use_device(f"cuda:{group.rank}")
        name = carried.chosen(group, device)
        if "waits" in sys.argv:
            for program in (carried.drives, carried.reuses, carried.dropped, carried.same_bits):
                program(group, device)
        else:
            only = ("all_reduce", "all_gather") if "few" in sys.argv else None
            carried.conforms(group, f"e{conformance.BFLOAT16}", device, only)
        if "waits" not in sys.argv and group.rank in (0, group.size - 1):
            half = group.subgroup(sorted({0, group.size - 1}), "half")
            if device.name == "cupy":
                use(usual)
                carried.long_arrays(half, device, 300_001 if emulator.IS_USED else 3_000_001)
            else:
                carried.long_arrays(half, device)
        group.barrier()
        if group.rank == 0:
            print(name, "on", group.size, "ranks", flush=True)
