"""The last rank reduces a longer array than the others: an error inside MPI, where no check compares the calls."""

from __future__ import annotations

import numpy as np

import collectives as cc

cc.check("off")
raw = cc.world().duplicate("raw")
for _ in range(3):
    raw.all_reduce(np.ones(8 if raw.index == raw.size - 1 else 4))
