"""Legal calls whose operands differ between the ranks, which the monitors must not take for different calls.

    equal_calls.py MODE ...     one after another
"""

from __future__ import annotations

import sys

import numpy as np

import autograd as ag
import collectives as cc
from collectives import I, R, Shard, V

for mode in sys.argv[1:]:
    cc.check(mode)
    with cc.Mesh(dp=-1) as mesh:
        rank, size = int(mesh.axis("dp").rank), mesh.axis("dp").size
        rows = np.ones((5 - rank, 2))
        w = ag.Parameter(np.ones(2))
        for _ in range(100 if mode == "first" else 20):  # more than the thousand calls that mode `first` compares
            part = cc.cast(rows, "dp", to=Shard(0))
            agreed = cc.from_local(rows, {"dp": Shard(0)})
            with ag.Tape() as tape:
                own = cc.cast(agreed, "dp", to=V) @ cc.cast(w, "dp", to=R)
                wide = cc.halo_exchange(agreed, "dp", 1)
                whole = cc.all_gather(rows, "dp", to=I)
                taken = cc.all_to_all(np.ones((size * (rank + 1), 2)), "dp", 0, 0, counts=[rank + 1] * size)
                later = cc.all_gather_async(agreed, "dp", to=I)
                sums = [cc.cast(x, "dp", to=V).sum() for x in (own, wide, part, taken)]
                loss = cc.all_reduce(sum(sums), "dp", to=I) + whole.sum() + later.sum()
            tape.backward(loss)
            if rank:
                cc.send(np.ones(rank), "dp", 0)
            else:
                for source in range(1, size):
                    cc.recv("dp", source)
        cc.in_order(f"done in mode {mode}")
