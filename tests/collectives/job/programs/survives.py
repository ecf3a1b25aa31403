"""Ranks of a fault-tolerant world communicate in every way, some are killed, and the others go on.

    survives.py STEPS SEED RANK@SECONDS,...

Each victim is killed so long after the first step, wherever it is then. The values of each step are checked.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from random import Random

import numpy as np

import collectives as cc
from collectives.transports.protocol import Communicator, Request
from collectives.transports.shared_memory.communicator import SharedMemory
from collectives.transports.windows import Window


def write(line: str) -> None:
    """Write a line at once, so that the lines of several ranks do not mix."""
    os.write(1, f"{line}\n".encode())


class Epoch:
    """What the ranks of an epoch have made together."""

    def __init__(self, group: Communicator):
        self.group = group
        self.me = group.ranks[group.index]
        self.total = sum(rank + 1.0 for rank in group.ranks)
        self.memory = SharedMemory(group)
        self.inside = self.memory.empty((3000,), np.float64)
        self.window: Window = group.window(np.zeros(4))
        self.passed = 0

    # -- the kinds of steps: each checks its values --------------------------------------------------------------------
    def sums(self, step: int) -> None:
        y = self.group.all_reduce(np.full(1 + step % 5, self.me + 1.0))
        assert (y == self.total).all(), y
        y = self.group.all_reduce(np.full(40_000, self.me + 1.0))
        assert (y == self.total).all(), y

    def parts(self, step: int) -> None:
        ones = [1] * self.group.size
        assert self.group.all_gather(np.array([float(self.me)]), ones).tolist() == list(self.group.ranks)
        root = step % self.group.size
        y = self.group.broadcast(np.full(3, float(self.me)), root)
        assert (y == self.group.ranks[root]).all(), y
        x = np.arange(self.group.size) + self.me * 10.0
        y = self.group.all_to_all(x, ones, ones)
        assert y.tolist() == [rank * 10.0 + self.group.index for rank in self.group.ranks], y

    def messages(self, step: int) -> None:
        size, lane = self.group.size, self.group.lane("ring")
        if size > 1:
            after, before = (self.group.index + 1) % size, (self.group.index - 1) % size
            lane.send(np.full(20_000, float(step)), after)
            assert (lane.recv(np.empty(20_000), before) == step).all()
            pending = lane.lend(np.full(50_000, self.me), after)
            assert lane.recv(np.empty(50_000, np.int64), before)[0] == self.group.ranks[before]
            pending.wait()

    def started(self, step: int) -> None:
        pending = [self.group.start(Request("all_reduce", np.full(n, self.me + 1.0))) for n in (3, 30_000)]
        np.ones((60, 60)) @ np.ones((60, 60))
        while not pending[0].test():
            pass
        assert all((each.wait() == self.total).all() for each in pending)

    def shared(self, step: int) -> None:
        y = self.memory.all_reduce(np.full(7, self.me + 1.0))
        assert (y == self.total).all(), y
        self.inside[...] = self.me + 1.0
        self.memory.all_reduce_in_place(self.inside)
        assert (self.inside == self.total).all()
        self.memory.barrier()

    def one_sided(self, step: int) -> None:
        for owner in range(self.group.size):
            self.window.add(np.ones(1), owner, 0)
            with self.window.locked(owner):
                count = self.window.get(owner, 1, 1)[0]
                self.window.add(np.ones(1), owner, 1)
                assert self.window.get(owner, 1, 1)[0] == count + 1
        self.group.barrier()
        self.passed += 1
        assert self.window.get(self.group.index, 0, 2).tolist() == [self.passed * self.group.size] * 2
        self.group.barrier()

    def groups(self, step: int) -> None:
        half = [i for i in range(self.group.size) if i % 2 == self.group.index % 2]
        group = self.group.subgroup(half, f"half {step}")
        assert group.all_reduce(np.ones(1))[0] == len(half)
        with cc.Mesh(self.group, dp=-1):
            assert cc.all_reduce(np.ones(2), "dp").numpy().tolist() == [self.group.size] * 2

    def runs(self, step: int) -> None:
        size, mine = self.group.size, np.arange(4.0) + self.me
        source = (self.group.index + 1) % size
        y = self.group.get(mine, [(source, 1, 2)])
        assert y.tolist() == [self.group.ranks[source] + 1.0, self.group.ranks[source] + 2.0], y

    def alone(self, step: int) -> None:
        end = time.monotonic() + 0.01
        while time.monotonic() < end:
            np.ones((60, 60)) @ np.ones((60, 60))


KINDS: list[Callable[[Epoch, int], None]] = [
    Epoch.sums, Epoch.parts, Epoch.messages, Epoch.started, Epoch.shared, Epoch.one_sided, Epoch.groups, Epoch.alone,
]  # fmt: skip


def main(steps: int, seed: int, victims: dict[int, float]) -> None:
    with cc.World(policy="raise") as world:
        assert world.is_fault_tolerant
        group, step, epoch = world.communicator, 0, None
        me = group.ranks[group.index]
        group.barrier()
        if me in victims:

            def die() -> None:
                write(f"DIES {me} {time.monotonic()}")
                os.kill(os.getpid(), signal.SIGKILL)

            threading.Timer(victims[me], die).start()
        while step < steps:
            try:
                if epoch is None:
                    epoch = Epoch(group)
                Random(seed * 1000 + step).choice(KINDS)(epoch, step)
                step += 1
            except cc.RankFailed as error:
                epoch = None
                while epoch is None:
                    try:
                        group = world.survivors()
                        write(f"EPOCH {me} {world.epoch} {list(group.ranks)} {time.monotonic()}")
                        step = max(int(each) for each in group.exchange(str(step).encode()))
                        break
                    except cc.RankFailed:
                        continue
                if not str(error).startswith("rank "):
                    write(f"STRANGE {me} {error}")
        assert world.communicator is group and cc.world() is group
        write(f"DONE {me} {world.epoch} {list(group.ranks)} {sorted(world.failed)}")


steps, seed, victims = sys.argv[1:]
main(int(steps), int(seed), {int(r): float(s) for r, s in (each.split("@") for each in victims.split(",") if each)})
