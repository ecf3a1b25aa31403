"""Rank 1 leaves, or fails, without the last call that waits for it on the device of rank 0. No monitor sees that wait.

Its argument is the policy. The device is an event, which is set where NCCL would be aborted.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

import numpy as np

import collectives as cc
from collectives.transports.protocol import Request

raises = sys.argv[1] == "raise"
world = cc.World(policy="raise") if raises else None
group = cc.world() if world is None else world.communicator
group.all_reduce(np.ones(1))
if group.index == 1:
    if world is not None:
        world.fail("no memory left")
    sys.exit(0)


class Device:
    """A call that rank 1 does not make."""

    def __init__(self):
        self.wait = group.note(Request("all_reduce", np.ones(3), op="sum"))
        self.has_ended, self.why = threading.Event(), ""

    def incomplete(self):
        return None if self.has_ended.is_set() else (threading.main_thread().ident, self.wait)

    def end(self, why):
        self.why = why
        self.has_ended.set()


device = Device()
group.watch(device)
assert device.has_ended.wait(30 if raises else None)
print(device.why)
