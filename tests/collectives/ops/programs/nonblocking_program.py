"""Nonblocking forms on the ranks of mpiexec: programs against their blocking twins, the registry's cases, progress."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

import autograd as ag
import collectives as cc
from collectives.testing.proof import Case, Setting, check_everywhere
from collectives.testing.registry_cases import cases
from tests.collectives.ops.nonblocking_cases import (
    FORMS,
    PROGRAMS,
    compare,
    compare_here,
    lose_handles,
    nonblocking_in_place,
)

world = cc.world()

# progress: a value that is never waited for is here once its `test` has been asked often enough
with cc.Mesh(a=-1):
    handle = cc.all_reduce_async(ag.tensor(np.full(300_000, world.rank + 1.0)), "a")
    while not handle.test():
        pass
    assert float(handle.numpy()[-1]) == sum(range(1, world.size + 1))

lose_handles()
for program in PROGRAMS:
    difference = compare(program, world.size)
    assert difference < 1e-12, f"{program.__name__}: off by {difference}"

with cc.Mesh(a=-1, algorithm="ring") as mesh:  # an algorithm that cannot be started is refused, its adjoint too
    try:
        cc.all_reduce_async(ag.tensor(np.ones(9)), "a")
        raise AssertionError("a ring was started")
    except cc.MeshError as error:
        assert "fix: all_reduce_async(..., algorithm='native')" in str(error)
    before = mesh.axis("a").group.traffic.messages
    assert cc.all_reduce_async(ag.tensor(np.ones(9)), "a", algorithm="native").numpy()[0] == world.size
    assert mesh.axis("a").group.traffic.messages == before
with cc.Mesh(a=-1, algorithm="auto"):
    difference = max(compare_here(program) for program in PROGRAMS[:4])
    assert difference < 1e-12, f"auto: off by {difference}"

setting = Setting({"a": world.size}, ["a"])
with nonblocking_in_place():
    found = [c for c in cases(setting, 2) if isinstance(c, Case) and {*FORMS, "send"} & set(c.covers)]
    failures = check_everywhere([(replace(c, order=1), setting) for c in found])  # second order: in the programs
if world.rank == 0:
    for failure in failures[:10]:
        print(" | ".join(failure))
    print(f"NONBLOCKING {len(PROGRAMS)} programs, {len(failures)} failures on {world.size} ranks", flush=True)
sys.exit(bool(failures))
