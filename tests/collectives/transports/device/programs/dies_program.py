"""Rank 1 raises while a started call on a device array is under way, and rank 0 waits for it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

import numpy as np

import collectives as cc
from collectives.transports.device import pinned
from collectives.transports.protocol import Request
from tests.autograd.arrays.fake_device import from_host

pinned.CHUNK_BYTES = 64
group = cc.world()
group.all_reduce(from_host(np.ones(100)))
if group.rank == 1:
    raise MemoryError("no memory left")
group.start(Request("all_reduce", from_host(np.ones(100)))).wait()
