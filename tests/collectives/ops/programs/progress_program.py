"""Every case of `progress_cases`, over MPI."""

from __future__ import annotations

import collectives as cc
from tests.collectives.ops.progress_cases import CASES

with cc.Mesh(a=-1) as mesh:
    for case in CASES:
        case(mesh)
        print(f"{case.__name__} <{cc.world().rank}>", flush=True)
