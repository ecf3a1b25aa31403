"""A training program of three ranks with every kind of call, whose faults come from the environment, or from a block.

    mpiexec -n 3 python injected_faults.py [PLAN]
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext

import numpy as np

import autograd as ag
import collectives as cc
from autograd import optim
from collectives.testing import faults

WORLD = cc.world()
ROWS = np.random.default_rng(0).normal(size=(6, 4))


def main() -> None:
    w = ag.Parameter(np.eye(4), name="w")
    optimizer = optim.SGD([w], lr=0.01)
    window = WORLD.window(np.zeros(4))
    right, left = (WORLD.index + 1) % WORLD.size, (WORLD.index - 1) % WORLD.size
    for _ in range(4):
        faults.point("step.begin")
        optimizer.zero_grad()
        with ag.Tape() as tape:
            h = ag.tensor(ROWS[2 * WORLD.index :][:2]) @ cc.cast(w, "dp", to=cc.R)
            started = cc.all_reduce_async(h, "dp", to=cc.I)
            loss = cc.all_reduce((h * h).sum(), "dp", to=cc.I) + (started * started).sum()
        tape.backward(loss)
        optimizer.step()
        WORLD.send(np.ones(4), right)
        WORLD.recv(np.empty(4), left)
        window.add(np.ones(4), right)
        WORLD.barrier()
        window.get(left)
    cc.check_replicas([w], cc.current_mesh())
    window.free()
    print(f"WENT ON <{WORLD.index}>", flush=True)


print(f"BEGAN <{time.time()}> {os.getpid()}", flush=True)
with cc.Mesh(dp=-1), faults.injected(sys.argv[1]) if len(sys.argv) > 1 else nullcontext():
    main()
