"""Three ranks record a timeline; rank 1 comes to an all-reduce when both others have, which a handshake sees to.

Rank 0 writes the trace to the path given and prints what the report says.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import autograd as ag
import collectives as cc
from collectives.transports.protocol import Request

LATE = 1
world = cc.world()
hands = world.duplicate("handshake")
with cc.Mesh(dp=-1) as mesh:
    group = mesh.axis("dp").group.duplicate("late")
    with cc.timeline(sys.argv[1]) as t:
        # everyone but the late one has started the call before the first hand is shaken; hands are shaken until so
        # much time has passed that the clocks, which agree to within their error, cannot tell another order
        token, rounds, since = np.zeros(1), 0, time.perf_counter_ns()
        enough_ns = 50 * max((offset.error_ns for offset in t._start), default=0)
        pending = group.start(Request("all_reduce", np.full(1000, 1.0))) if world.rank != LATE else None
        while token[0] == 0:
            rounds += 1
            for other in (2, 0):  # rank 0 says when it is enough, and rank 2 hears of it in the next round
                if world.rank == LATE:
                    told = np.zeros(1)
                    hands.recv(told, other)
                    hands.send(token, other)
                    token = np.maximum(token, told)
                elif world.rank == other:
                    over = world.rank == 0 and rounds > 50 and time.perf_counter_ns() - since > enough_ns
                    hands.send(np.array([float(over)]), LATE)
                    hands.recv(token, LATE)
                    token = token + float(over)
        if world.rank == LATE:  # the last round, for rank 2 alone
            hands.recv(np.zeros(1), 2)
            hands.send(token, 2)
        if pending is None:
            pending = group.start(Request("all_reduce", np.full(1000, 1.0)))
        assert pending.wait()[0] == world.size
        w = ag.Parameter(np.ones(5))
        with ag.Tape() as tape:
            own = ag.tensor(float(world.rank + 1))
            loss = cc.all_reduce((cc.cast(w, "dp", to=cc.R) * 2.0).sum() * own, "dp", to=cc.I)
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
