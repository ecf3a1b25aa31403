"""The conformance suite on real ranks: over MPI, shared memory, or an algorithm. Prints how many cases ran."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import collectives as cc
from collectives.algorithms import OPERATIONS
from collectives.algorithms.selected import Channel, Selected
from collectives.transports.protocol import Communicator
from collectives.transports.shared_memory.communicator import SharedMemory
from tests.collectives.transports import conformance

world = cc.world()
assert world is cc.world() and (world.name, world.ranks) == ("world", tuple(range(world.size)))


def over(what: str) -> Communicator:
    if what == "mpi":
        return world
    return SharedMemory(world) if what == "shared" else Selected(Channel(world), what)


for what in sys.argv[2:]:
    only = None if what in ("mpi", "shared", "ring") else OPERATIONS  # the rest goes to the transport in any case
    made = conformance.conforms(over(what), sys.argv[1], what.startswith(("hierarchical", "auto")), only)
    if world.rank == 0:
        print(f"{what}: {made} cases on {world.size} ranks", flush=True)
if world.size > 1:  # a shorter message than the buffer, and a longer one
    conformance.wrong_lengths(world)
