"""Runs under mpiexec: every so many of the cases of transforms through collectives."""

from __future__ import annotations

import sys

import collectives as cc
from tests.collectives.ops import transform_cases


def main(every: int) -> None:
    ran, ranks = 0, cc.world().size
    for n in (5, 2):
        for title, check in transform_cases.cases(n, every):
            with cc.Mesh(dp=-1):
                try:
                    check()
                except BaseException as error:
                    error.add_note(title)
                    raise
            ran += 1
    transform_cases.two_axes(ranks // 2, 2) if ranks % 2 == 0 else transform_cases.two_axes(ranks, 1)
    if cc.world().rank == 0:
        print(f"TRANSFORMS {ran} cases on {ranks} ranks", flush=True)


main(int(sys.argv[1]))
