"""Whether MPICH's waits give up the core, where this host has the given number of cores.

The second argument is the value that the user has given MPICH's variable, if there is one.
"""

import os
import sys

cores = int(sys.argv[1])
os.cpu_count = lambda: cores
os.environ.pop("MPIR_CVAR_ENABLE_HEAVY_YIELD", None)
if len(sys.argv) > 2:
    os.environ["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = sys.argv[2]
import collectives as cc  # noqa: E402 - it reads them

world = cc.world()
from collectives.transports.mpi import library  # noqa: E402 - once MPI has started

if world.rank == 0:
    print(library._is_crowded, os.environ.get("MPIR_CVAR_ENABLE_HEAVY_YIELD"))
