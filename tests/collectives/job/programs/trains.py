"""What a user runs under a launcher: prints the number of ranks, or the error."""

from __future__ import annotations

import os

import numpy as np

import collectives as cc

try:
    size = cc.world().size
except cc.MeshError as error:
    os.write(1, f"REFUSED {error}\n".encode())
    raise SystemExit(1) from None
with cc.Mesh(dp=size):
    total = cc.all_reduce(np.ones(1), "dp").numpy()[0]
os.write(1, f"SIZE {size} TOTAL {total:g}\n".encode())
