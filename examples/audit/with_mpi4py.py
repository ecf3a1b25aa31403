"""A job of NumPy and mpi4py for the audit: each rank writes its gradient by `collectives.audit.write`.

    mpiexec -n 1 python with_mpi4py.py ref && mpiexec -n 2 python with_mpi4py.py job
    python -m collectives audit judge job --against ref

`--wrong` divides the sum by the number of ranks, though the loss is divided by the number of all rows already.
"""

import sys

import numpy as np
from mpi4py import MPI

import collectives.audit as audit

FOLDER, IS_WRONG = sys.argv[1], "--wrong" in sys.argv
world = MPI.COMM_WORLD
mine = slice(world.rank, None, world.size)
random = np.random.default_rng(0)
w = {"weight": random.standard_normal((6, 4)), "bias": np.zeros(4)}
for step in range(3):
    x, y = random.standard_normal((12, 6))[mine], random.standard_normal((12, 4))[mine]
    error = x @ w["weight"] + w["bias"] - y
    gradients = {"weight": 2 / 12 * x.T @ error, "bias": 2 / 12 * error.sum(0)}
    for g in gradients.values():
        world.Allreduce(MPI.IN_PLACE, g)
        if IS_WRONG:
            g /= world.size
    updates = {name: -0.1 * g for name, g in gradients.items()}
    audit.write(FOLDER, world.rank, world.size, step, gradients, w, updates, loss=float((error**2).sum() / 12))
    w = {name: value + updates[name] for name, value in w.items()}
