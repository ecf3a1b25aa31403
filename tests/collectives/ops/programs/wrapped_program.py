"""Wrapped code of others under mpiexec: checked, with the wrong adjoints named, and used in a program of its own."""

from __future__ import annotations

import numpy as np

import autograd as ag
import collectives as cc
from collectives import I, V
from tests.collectives.ops.wrapped_cases import WRONG, reports, shift, shift_back

world = cc.world()
right, wrong = reports()
if world.rank == 0:
    for report in right:
        print(f"RIGHT {report.ok} {report}")
    for fault, report in wrong:
        print(f"WRONG {fault}: {'missed' if report.ok else ' '.join(sorted(report.failed))}")
assert all(report.ok for report in right)
assert all("pairing" in report.failed for fault, report in wrong if world.size > 1 or fault == "twice")
assert len(wrong) == len(WRONG)

# d/dx_r of sum_r <c_r, shift(x^2)_r> = 2 x_r c_{r+1}
around = cc.wrap(shift, shift_back, takes=V, gives=V, name="around the ring")
with cc.Mesh(a=-1):
    x = ag.tensor(np.full(3, world.rank + 1.0), requires_grad=True)
    with ag.Tape() as tape:
        loss = cc.all_reduce((around(x * x, "a") * (world.rank + 10.0)).sum(), "a", to=I)
    tape.backward(loss)
    assert x.grad is not None
    assert np.array_equal(x.grad.numpy(), np.full(3, 2 * (world.rank + 1.0) * ((world.rank + 1) % world.size + 10.0)))
world.barrier()
if world.rank == 0:
    print(f"WRAPPED ok on {world.size} ranks", flush=True)
