"""A rank ends while another waits in raw MPI calls of wrapped code."""

from __future__ import annotations

import numpy as np

import autograd as ag
import collectives as cc
from collectives import P, R
from tests.collectives.ops.wrapped_cases import total

cc.check("off")
all_sum = cc.wrap(total, total, takes=P, gives=R, name="their sum")
with cc.Mesh(a=-1):
    x = ag.tensor(np.ones(3), layout={"a": P})
    all_sum(x, "a")
    if cc.world().rank == 0:
        all_sum(x, "a")
