"""A step of each layer on the CPU and on a GPU, over a carrier of device arrays, which the first argument names.

With ``nccl`` each rank has a GPU of its own. The second argument is a folder for checkpoints.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import collectives as cc
from autograd import arrays
from collectives.transports.device.choice import VARIABLE
from tests.autograd.arrays.devices import Gpu
from tests.parallel import test_device as of

name, folder = sys.argv[1:]
os.environ[VARIABLE] = name
group = cc.world()
if name == "nccl":
    arrays.use_device(f"cuda:{group.rank}")

programs = {option: lambda device, option=option: of.data_parallel(device, option)[0] for option in of.OPTIONS}
programs |= of.LAYERS
programs["a checkpoint"] = lambda device: of.trained(device, "dp", of.PLAN, zero=2, save=f"{folder}/{device}")
for title, program in programs.items():
    of.compare(program("cpu"), program("cuda"), Gpu())
    if group.rank == 0:
        print(title, flush=True)
