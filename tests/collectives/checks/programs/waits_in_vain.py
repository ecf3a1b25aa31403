"""Ranks that wait for each other, or for one that never comes: what each of them is told.

    waits_in_vain.py HOW MODE LIMIT

Every rank prints what it raises; then, in a world that still works, all of them sum something on another channel.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

import autograd as ag
import collectives as cc
from collectives.transports.protocol import Request


def cross() -> None:
    """Two groups in another order on rank 1."""
    world = cc.world()
    one, two = world.subgroup(range(3), "one"), world.subgroup(range(3), "two")
    for group in (two, one) if world.rank == 1 else (one, two):
        group.agree("all_reduce(of a test)")


def receives() -> None:
    """Every rank receives from its neighbour, and nobody sends."""
    with cc.Mesh(a=3) as mesh:
        cc.recv("a", (int(mesh.axis("a").rank) + 1) % 3)


def lends() -> None:
    """Every rank sends a long message without a copy, and nobody receives."""
    world = cc.world()
    world.lend(np.zeros(10_000_000), (world.rank + 1) % 3).wait()


def computes() -> None:
    """Rank 1 computes for ever."""
    with cc.Mesh(a=3):
        if cc.world().rank == 1:
            until = time.monotonic() + 4.0
            while time.monotonic() < until:
                time.sleep(0.01)
        cc.all_reduce(ag.tensor(np.ones(2)), "a")


def slow() -> None:
    """Rank 1 comes late, after tests of a pending call, and another thread of it lives."""
    world = cc.world()
    if world.rank == 1:
        pending = world.start(Request("recv", out=np.empty(1), peer=0))
        assert not pending.test()
        time.sleep(2.5)
        world.send(np.ones(1), 0)
        pending.wait()
    elif world.rank == 0:
        world.recv(np.empty(1), 1)
        world.send(np.ones(1), 1)
    world.barrier()
    if world.rank == 2:  # its main thread waits for what its other thread makes possible
        helper = threading.Thread(target=lambda: (time.sleep(1.5), world.send(np.ones(1), 0)))
        helper.start()
        world.recv(np.empty(1), 0)
        helper.join()
    elif world.rank == 0:
        world.recv(np.empty(1), 2)
        world.send(np.ones(1), 2)


how, mode, limit = sys.argv[1:]
cc.check(mode, timeout_s=float(limit) if limit != "none" else None)
everyone = cc.world()
final = everyone.duplicate("final")
start = time.monotonic()
try:
    globals()[how]()
    said = "nothing"
except cc.DeadlockError as error:
    said = str(error)
if how == "computes":
    sys.stdout.write(f"RANK {everyone.rank} after {time.monotonic() - start:.1f} s: {said!r}\n")
    sys.stdout.flush()
    cc.check("ranks", timeout_s=60.0)  # rank 1 is still busy with what the others gave up
    final.all_reduce(np.ones(1))
    sys.exit()
print(f"RANK {everyone.rank} after {time.monotonic() - start:.1f} s: {said!r}", flush=True)
assert final.all_reduce(np.ones(1))[0] == 3
print(f"RANK {everyone.rank} went on", flush=True)
