"""Backup workers under mpiexec: the serial program of the rows that were used, or a failure."""

from __future__ import annotations

import os
import signal
import sys
import warnings

import numpy as np

import autograd as ag
import collectives as cc
from autograd import optim
from autograd.errors import RankFailed
from collectives.testing import faults
from parallel import BackupWorkers, DataParallel
from tests.parallel.approximate.backup_cases import Net, is_late, late, loss_of, run_and_compare, train, values


def fail(how: str) -> None:
    with cc.Mesh(dp=-1) as mesh:
        rank = int(mesh.axis("dp").rank)
        model = Net()

        def before(step: int) -> None:
            if how == "deadlock" and rank and step == 2:
                mesh.axis("dp").group.barrier()
            if rank == 1 and step >= 2:  # a late rank leaves out steps
                if how in ("raise", "policy"):
                    raise ValueError("no data")
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)

        with BackupWorkers(model, "dp", optim.SGD(model.parameters(), lr=0.1), needed=2, steps=10000) as backup:
            train(backup, model, rank, 1.0, before)


def with_all_ranks(size: int) -> None:
    """The bits are those of `DataParallel`."""
    rows = size * (size + 1) / 2
    with cc.Mesh(dp=-1) as mesh:
        rank, model, plain = int(mesh.axis("dp").rank), Net(), DataParallel(Net(), "dp")
        optimizer = optim.Adam(model.parameters(), lr=0.01)
        with BackupWorkers(model, "dp", optimizer, needed=size, steps=5) as backup:
            train(backup, model, rank, rows)
        optimizer = optim.Adam(plain.parameters(), lr=0.01)
        for step in range(5):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce(loss_of(plain, rank, step, rows), "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
        assert np.array_equal(values(model), values(plain))


def main(how: str) -> None:
    if how == "policy":
        with cc.World("mpi", policy="raise"):
            try:
                fail(how)
            except RankFailed as error:
                print(f"RankFailed: {error}")
        return
    if how != "train":
        fail(how)
        return
    warnings.simplefilter("ignore")
    size = cc.world().size
    with_all_ranks(size)
    for needed, name in ((size, "SGD"), (1, "momentum"), (size - 1, "Adam")):
        run_and_compare(needed, 12, name)
    _, report = run_and_compare(size - 1, 30, before=late(1, 3, 17))
    assert is_late(report, 1, 3, 17), report
    script = [tuple(sorted({step % size, (step + 1) % size})) for step in range(6)]
    _, report = run_and_compare(2, 6, "groups", script)
    assert list(report.members) == script
    with faults.injected(*[faults.Delay(1, at=k, of="arrivals.take", seconds=0.05) for k in (2, 3)]):
        run_and_compare(size - 1, 20)
    print("as the serial program")


if __name__ == "__main__":
    main(sys.argv[1])
