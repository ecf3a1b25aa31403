"""An all-reduce on the levels of a topology, or the levels that the launcher tells."""

from __future__ import annotations

import sys

import numpy as np

import collectives as cc

if sys.argv[1] == "topology":
    link = cc.Link(1e-6, 1e9)
    machine = cc.Topology(1, link, link, outer=[(2, link)])
    for algorithm in ("hierarchical", "hierarchical:shared,tree,ring", "auto"):
        with cc.Mesh(dp=4, algorithm=algorithm, topology=machine):
            y = cc.all_reduce(np.full(3, float(cc.world().rank)), "dp").numpy()
        assert y.tolist() == [6.0] * 3, (algorithm, y)
    if cc.world().rank == 0:
        print(y.tolist(), flush=True)
else:
    with cc.Mesh(dp=4, algorithm="hierarchical:shared,tree,ring"):
        y = cc.all_reduce(np.full(3, float(cc.world().rank)), "dp").numpy()
    assert y.tolist() == [6.0] * 3, y
    if cc.world().rank == 0:
        print([list(level) for level in cc.world().domains], flush=True)
