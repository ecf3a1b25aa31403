"""An elastic run that is rebuilt at each step, without a death, and what rank 0 uses at each start.

    elastic_rebuilds.py REBUILDS [threads]

It prints descriptors, memory in MiB, and threads.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import collectives as cc
from autograd.errors import RankFailed
from parallel import elastic
from parallel.elastic import loop
from tests.parallel.elastic.training import CASES, X, Y, made


def used() -> str:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return f"{len(os.listdir('/proc/self/fd'))} {memory} {threading.active_count()}"


def train(run: elastic.Run, rebuilds: int) -> int:
    trainer = made(run.mesh, CASES["ZeRO-1"])
    run.restore({"trainer": trainer, "more": [0.0] * 1000})
    for step in run.steps(rebuilds):
        if run.starts == step + 1 and cc.world().index == 1:
            raise RankFailed("planted: all begin again")
        trainer.step(X[step % 5], Y[step % 5])
    return run.starts


def reported(run: elastic.Run, rebuilds: int) -> int:
    time.sleep(0.2)  # an epoch is freed when it has been over for a second
    if cc.world().index == 0:
        print(f"START {run.starts} {used()}", flush=True)
    return train(run, rebuilds)


def main(rebuilds: int, kind: str | None) -> None:
    original = loop._Loop._agree

    def agree(self: Any, members: Any, epoch: int, error: Any, lost: Any, has_agreed: bool) -> None:
        original(self, members, epoch, error, None, has_agreed)  # nobody need have died

    loop._Loop._agree = agree  # type: ignore[method-assign]

    def program() -> Any:
        return elastic.run(lambda run: reported(run, rebuilds), mesh={"dp": -1}, copies=1)

    if kind is None:
        with cc.World(policy="raise") as world:
            found = [program()]
            world.communicator.barrier()
    else:
        with cc.World("threads", 3, policy="raise") as world:
            found = world.run(program)
    assert set(found) == {rebuilds + 1}, found


main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
