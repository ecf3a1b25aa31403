"""The last rank reduces a longer array than the others: an error inside MPI, where no check compares the calls.

Prints the files in shared memory that MPI has mapped.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import collectives as cc

cc.check("off")
raw = cc.world().duplicate("raw")
print(*(f"<{path}>" for path in re.findall(r"/dev/shm/mpich\S+", Path("/proc/self/maps").read_text())), flush=True)
for _ in range(3):
    raw.all_reduce(np.ones(8 if raw.index == raw.size - 1 else 4))
