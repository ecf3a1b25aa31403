"""Rank 1 makes or frees shared memory while the others make another call. Usage: shared_disagrees.py CASE...

Where the checks compare calls, every rank raises `CollectiveMismatch` and goes on with the next case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from collectives import shared_arrays

RANK = cc.world().rank


def add(mesh: cc.Mesh, algorithm: Any = None) -> None:
    cc.all_reduce(ag.tensor(np.ones(4)), "dp", algorithm=algorithm)


def empty(mesh: cc.Mesh) -> None:
    shared_arrays.empty(4, np.float64, "dp")


def along(mesh: cc.Mesh) -> None:
    with shared_arrays.along("dp"):
        add(mesh)


def shared_mesh(mesh: cc.Mesh) -> None:
    mesh.axis("dp").using("shared")


CASES: dict[str, tuple[Callable[[cc.Mesh], object], Callable[[cc.Mesh], object], bool]] = {
    # what rank 1 does, what the others do, and whether shared memory exists before
    "empty": (empty, add, False),
    "empty later": (empty, add, True),
    "along": (along, add, False),
    "algorithm": (lambda mesh: add(mesh, "shared"), add, False),
    "algorithm later": (lambda mesh: add(mesh, "shared"), add, True),
    "using": (shared_mesh, add, False),
    "close": (lambda mesh: mesh.axis("dp").using("shared").close(), add, True),
    "trim": (lambda mesh: mesh.axis("dp").using("shared").trim(), empty, True),
    "dtype": (lambda mesh: shared_arrays.empty(4, np.float32, "dp"), empty, True),
    "order": (lambda mesh: (add(mesh), empty(mesh)), lambda mesh: (empty(mesh), add(mesh)), True),
}


def main(names: list[str]) -> None:
    for name in names:
        odd, other, has_memory = CASES[name]
        with cc.Mesh(dp=-1) as mesh:
            if has_memory:
                empty(mesh)
            add(mesh)
            try:
                (odd if RANK == 1 else other)(mesh)
            except cc.CollectiveMismatch as error:
                assert "rank 1 did not make the call of the other ranks of 'dp@0'" in str(error), error
                print(f"TOLD <{name}>", flush=True)
                continue
            print(f"WENT ON {name}", flush=True)


main(sys.argv[1:] or list(CASES))
