"""The mismatch programs of the seeds given, one after the other in one job: the world survives them.

Rank 0 prints ``FAULT ...`` for everything wrong, and how many were reported by kind.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import collectives as cc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mismatch_programs as programs

cc.check("ranks", timeout_s=20.0)
world = cc.world()
counts: dict[str, int] = dict.fromkeys(programs.KINDS, 0)
slowest, found = 0.0, []
for seed in map(int, sys.argv[1:]):
    wrong = programs.draw(seed, world.size)
    for program in (wrong._replace(kind=""), wrong):
        report = world.duplicate(f"report {seed} {program.kind}")
        with cc.Mesh(a=world.size, b=1) as mesh:
            mesh.axis(("a", "b"))
            outcome = programs.perform(program, mesh, ("a", "b"))
        outcomes = [programs.Outcome(*json.loads(each)) for each in report.exchange(json.dumps(outcome).encode())]
        if program.kind:
            found += programs.faults(program, outcomes)
            counts[program.kind] += 1
            slowest = max(slowest, programs.seconds_to_tell(outcomes))
        elif any(o.error for o in outcomes):
            found.append(f"FALSE ALARM {program.name}: {[o.text for o in outcomes]}")
if world.rank == 0:
    for fault in found:
        print("FAULT", fault, flush=True)
    counts = {kind: n for kind, n in counts.items() if n}
    told = f"on {world.size} ranks, at most {slowest:.2f} s after the last arrival"
    print(f"REPORTED {programs.tally(counts)} {told}", flush=True)
