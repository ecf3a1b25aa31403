"""Ranks that make the same 2,000 calls and then different ones: nothing here would end the job by itself.

    different_calls.py KIND MODE

In each function the call of most ranks stands in the line after that of the last rank.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext

import numpy as np

import autograd as ag
import collectives as cc

KIND, MODE = sys.argv[1:]
cc.check(MODE)
world = cc.world()
odd = world.rank == world.size - 1
mesh = cc.Mesh(dp=-1).__enter__()  # for the life of the process
sevens = ag.tensor(np.ones(7))
table = ag.tensor(np.ones((2 * world.size, 3)))
for _ in range(2000):
    cc.all_reduce(sevens, "dp")
raw = world.duplicate("raw")
x = np.ones(5)


def broadcast():
    if odd:
        return cc.broadcast(x, "dp", like=x)
    return cc.all_reduce(x, "dp")


def order():
    if odd:
        return cc.all_gather(x, "dp"), cc.all_reduce(x, "dp")
    return cc.all_reduce(x, "dp"), cc.all_gather(x, "dp")


def dtype():
    if odd:
        return cc.all_reduce(x.astype(np.int64), "dp")
    return cc.all_reduce(x, "dp")


def extremum():
    if odd:
        return cc.all_max(x, "dp")
    return cc.all_min(x, "dp")


def shape():
    if odd:
        return cc.all_reduce(np.ones((2, 3)), "dp")
    return cc.all_reduce(np.ones((3, 2)), "dp")


def length():
    if odd:
        return cc.all_reduce(np.ones(9), "dp")
    return cc.all_reduce(x, "dp")


def received():
    if odd:
        return cc.broadcast(x, "dp", like=x)
    return cc.broadcast(np.ones(9), "dp", like=np.ones(9))


def root():
    if odd:
        return cc.broadcast(x, "dp", root=1, like=x)
    return cc.broadcast(x, "dp", root=0, like=x)


def reduced():
    if odd:
        return cc.reduce(x, "dp", root=1), cc.barrier("dp")
    return cc.reduce(x, "dp", root=0), cc.barrier("dp")


def missing():
    if odd:
        return cc.reduce_scatter(table, "dp")
    return cc.all_reduce(x, "dp"), cc.reduce_scatter(table, "dp")


def recorded():
    with ag.Tape(), ag.no_grad() if odd else nullcontext():
        if odd:
            return cc.all_reduce(x, "dp")
        return cc.all_reduce(x, "dp")


def exchanged():
    if odd:
        return cc.all_to_all(table, "dp", split_dim=0, concat_dim=1)
    return cc.reduce_scatter(table, "dp")


def started():
    if odd:
        return cc.broadcast_async(x, "dp", like=x).numpy()
    return cc.all_reduce_async(x, "dp").numpy()


def transport():
    if odd:
        return raw.broadcast(x, 0)
    return raw.all_reduce(x)


def operation():
    if odd:
        return raw.all_reduce(x, "max")
    return raw.all_reduce(x, "prod")


def scanned():
    if odd:
        return cc.exscan(x, "dp")
    return cc.scan(x, "dp")


def swept():
    w = ag.tensor(x, {"dp": cc.I}, requires_grad=True)
    with ag.Tape() as tape:
        y = cc.cast((cc.cast(w, "dp", to=cc.R) ** 2).sum(), "dp", to=cc.I)
    if odd:
        return cc.all_gather(x, "dp")
    return tape.backward(y)


print(f"AT {time.time()}", flush=True)
globals()[KIND]()
print("WENT ON", flush=True)
