"""Three ranks record a timeline; rank 1 comes to an all-reduce when both others have, which a handshake sees to.

Rank 0 writes the trace to the path given and prints what the report says.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import autograd as ag
import collectives as cc

LATE = 1
world = cc.world()
hands = world.duplicate("handshake")
with cc.Mesh(dp=-1) as mesh:
    group = mesh.axis("dp").group.duplicate("late")
    with cc.timeline(sys.argv[1]) as t:
        # everyone but the late one has started the call before the first hand is shaken, and many round trips, each at
        # least as long as the one that the clocks were compared by, come before the late one does
        token = np.zeros(1)
        pending = group.start("all_reduce", np.full(1000, 1.0)) if world.rank != LATE else None
        for _ in range(50):
            for other in (r for r in range(world.size) if r != LATE):
                if world.rank == LATE:
                    hands.recv(token, other)
                    hands.send(token, other)
                elif world.rank == other:
                    hands.send(token, LATE)
                    hands.recv(token, LATE)
        if pending is None:
            pending = group.start("all_reduce", np.full(1000, 1.0))
        assert pending.wait()[0] == world.size
        w = ag.Parameter(np.ones(5))
        with ag.Tape() as tape:
            loss = cc.all_reduce((cc.cast(w, "dp", to=cc.R) * 2.0).sum() * float(world.rank + 1) *
                                 ag.tensor(1.0), "dp", to=cc.I)
        tape.backward(loss)

assert t.report is not None
if world.rank == 0:
    print(t)
    print("FOUND", json.dumps({
        "last": [(r.rank, c.last) for r in t.report.records for c in r.calls if c.bytes == 8000],
        "starts": [(r.rank, c.begin) for r in t.report.records for c in r.calls if c.bytes == 8000],
        "errors": t.report.clock_errors_s, "span": t.report.span_s,
        "kinds": sorted({(row.axis, row.call, row.direction) for row in t.report.rows}),
        "early": min(c.end - s.begin for a in t.report.records for s in a.calls for b in t.report.records
                     for c in b.calls if s.call == "send" and c.call == "recv" and c.key == s.key
                     and c.number == s.number),
    }))  # fmt: skip
else:
    assert not t.report.records and t.report.rows
