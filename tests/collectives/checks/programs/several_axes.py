"""A loss of rows that only dp divides, summed over dp and tp; and summed again after backward, to log it."""

import warnings

import numpy

import autograd as ag
import collectives as cc

warnings.simplefilter("always")
rows = numpy.random.default_rng(0).normal(size=(6, 2))
with cc.Mesh(dp=2, tp=2):
    w = ag.Parameter([0.5, -0.25])
    with ag.Tape() as tape:
        mine = cc.shard(ag.tensor(rows, layout={"dp": cc.R}), "dp")
        local = ((mine @ cc.cast(w, ("dp", "tp"), to=cc.R)) ** 2).sum()
        loss = cc.all_reduce(local, ("dp", "tp"), to=cc.I)
    tape.backward(loss)
    logged = cc.all_reduce(local, ("dp", "tp")).item()
    cc.all_reduce_async(local, "dp").wait()
    cc.reduce(local, "tp", 1)
    assert abs(logged - loss.item()) < 1e-12
    right = cc.all_reduce(cc.broadcast(local, "tp", 0, to=cc.I), "dp", to=cc.I).item()
    assert abs(logged - 2 * right) < 1e-12
