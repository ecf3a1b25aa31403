"""Random programs on real processes: ``random_programs.py FIRST LAST``; all ranks make the same ones from the seeds."""

from __future__ import annotations

import sys

import collectives as cc
from tests.proofs.random_programs import faults_everywhere, generate


def main(first: int, last: int) -> None:
    ranks = cc.world().size
    wrong = 0
    for seed in range(first, last):
        program = generate(seed, ranks=(ranks, ranks))
        found = faults_everywhere(program)
        wrong += bool(found)
        if found and cc.world().rank == 0:
            print(f"seed {seed}\n" + "\n".join(found[:5]) + f"\n{program.source()}")
    if cc.world().rank == 0:
        print(f"PROGRAMS {last - first} on {ranks} ranks, {wrong} wrong")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
