"""Runs over MPI that are saved, loaded into fresh objects and go on bitwise; and a file that one rank cannot load."""

import sys
from pathlib import Path

import autograd as ag
import collectives as cc
from autograd import nn
from tests.parallel.test_resume import RUNS, made, same

folder = Path(sys.argv[1])
with cc.Mesh(dp=-1) as mesh:
    rank = int(mesh.ranks.rank)
    for name in ("TopK", "NoiseScale of PowerSGD", "Int8", "zero 2", "LocalSGD", "Pipeline", "Trainer pp"):
        run = made(name, mesh)
        path = folder / f"{sorted(RUNS).index(name)}.{rank if run.own_file else 0}.npz"
        with run.block():
            for k in range(2):
                run.step(k)
            nn.save(run.objects, path)
            right = [run.step(k) for k in (2, 3)]
        other = made(name, mesh, 5)
        mesh.ranks.barrier()
        with other.block():
            nn.load(other.objects, path)
            assert same([other.step(k) for k in (2, 3)], right), name
    run = made("Adam", mesh)
    before = run.objects["model"].state_dict()
    nn.save(made("Adam", mesh, 3).objects, folder / "adam.npz")
    try:
        nn.load(run.objects, folder / ("missing.npz" if rank == 1 else "adam.npz"))
    except (OSError, ag.RingtapeError) as error:
        assert ("rank 1 could not load" in str(error)) is (rank != 1), error
    assert same(run.objects["model"].state_dict(), before)
    mesh.ranks.barrier()
if rank == 0:
    print("all went on")
