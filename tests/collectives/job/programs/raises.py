"""Ranks that raise errors at the same time: equal ones, different ones, or equal ones of which a rank dies."""

import os
import signal
import sys
import time

import numpy

import autograd as ag
import collectives as cc
from collectives.job.launcher import launched_rank

how = sys.argv[1]
if how == "before the world":
    folder = sys.argv[2]  # the ranks meet there: on a busy machine they start seconds apart
    open(os.path.join(folder, str(launched_rank())), "w").close()
    while len(os.listdir(folder)) < 3:
        time.sleep(0.001)
    raise ValueError("planted")
if how == "one, late before the world":
    time.sleep(2.5)  # the wait for equal errors is at its longest
    if launched_rank() == 1:
        raise ValueError("planted")
    time.sleep(60)
world = cc.world()
rank = int(world.rank)
with cc.Mesh(dp=-1):
    cc.barrier("dp")
if how == "equal":
    raise ValueError("planted")
if how == "different":
    raise ValueError(f"planted {rank % 2}")
if how == "mismatch":
    with cc.Mesh(dp=-1):
        if rank == 1:
            cc.all_gather(ag.tensor(numpy.ones(2)), "dp")
        cc.barrier("dp")
if how == "one":
    if rank == 1:
        raise ValueError("planted")
    time.sleep(60)
if how == "late":
    time.sleep(0.6 * (rank == 1))
    raise ValueError("planted")
if how == "layout":
    with cc.Mesh(dp=-1):
        rows = cc.from_local(numpy.ones((rank + 1, 2)), {"dp": cc.Shard(0)})
        rows @ ag.Parameter(numpy.ones((2, 2)), name="w")
if how == "the first dies":  # after it has sent its error, before it prints
    if rank == 1:
        from collectives.job.failure import process

        end = process._end
        process._end = lambda *arguments: os.kill(os.getpid(), signal.SIGSTOP)
    else:
        time.sleep(0.1)
    raise ValueError("planted")
