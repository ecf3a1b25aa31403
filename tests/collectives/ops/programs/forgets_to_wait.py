"""The last rank forgets a handle; what happens then is in the arguments: the end of the tape, or of the mesh."""

from __future__ import annotations

import sys

import autograd as ag
import collectives as cc

rank, size = cc.world().rank, cc.world().size
with cc.Mesh(a=-1):
    x = ag.tensor([1.0, 2.0])
    if sys.argv[1] == "tape":
        with ag.Tape():
            handle = cc.all_reduce_async(x, "a")
            if rank != size - 1:
                handle.wait()
    else:
        handle = cc.all_reduce_async(x, "a")
        if rank != size - 1:
            handle.wait()
    cc.all_reduce(x, "a")
