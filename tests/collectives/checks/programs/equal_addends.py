"""Sums of values that differ, of three that are equal on all ranks, of means of unequal counts; and two equal parts."""

import warnings

import numpy

import autograd as ag
import collectives as cc

warnings.simplefilter("always")
with cc.Mesh(dp=-1) as mesh:
    rank = mesh.axis("dp").rank
    for _ in range(9):
        cc.all_reduce(ag.tensor(numpy.array([0.5 + rank])), "dp")
    cc.all_reduce(ag.tensor(numpy.array([0.5, 0.25])), "dp")
    cc.all_reduce_async(ag.tensor(numpy.array([0.5, 0.25, 1.0])), "dp").wait()
    cc.all_reduce(ag.tensor(numpy.array([0.5, 0.25, 1.0, rank])), "dp")
    cc.all_reduce(ag.tensor(numpy.ones((2, 3)) / 3), "dp", algorithm="ring")
    w = ag.Parameter([1.0])
    with ag.Tape() as tape:
        local = (cc.cast(w, "dp", to=cc.R) * numpy.ones(2 + int(rank)) * (0.5 + rank)).mean()
        loss = cc.all_reduce(local, "dp", to=cc.I) / 2  # a mean of means
    tape.backward(loss)
    part = {"dp": cc.Shard(0)}
    for rows in (numpy.array([0.5, 0.25]), numpy.array([0.5, 0.25 + rank]), numpy.zeros(2)):
        cc.from_local(rows, part)
        ag.tensor(rows, part)  # compared with the next call
