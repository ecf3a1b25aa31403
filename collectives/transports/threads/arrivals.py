"""The arrivals of ranks that are threads."""

from __future__ import annotations

from collections.abc import Iterator

from ..arrivals import Arrivals
from .rendezvous import Gate, Roll
from .waiting import WaitingRanks

__all__ = ["LocalArrivals"]


class LocalArrivals(Arrivals):
    """One rank's end of a `Roll`. `LocalCommunicator.arrivals` creates it."""

    def __init__(self, world: WaitingRanks, roll: Roll, world_rank: int, steps: int):
        super().__init__(roll.ranks.index(world_rank), len(roll.ranks), roll.count, steps)
        self._world, self._roll, self._world_rank = world, roll, world_rank

    def take(self, step: int, is_member: bool | None = None) -> bool:
        roll = self._roll
        self._refuse_ended("take")
        with self._world.lock:
            if is_member is None:
                is_member = roll.tickets[step] < roll.count
                roll.tickets[step] += 1
            if is_member:
                roll.members.setdefault(step, []).append(self.index)
                self._reach(2 * step + 1)
        return is_member

    def members(self, step: int) -> tuple[int, ...]:
        self._wait_for(2 * step + 1)
        return tuple(sorted(self._roll.members[step]))

    def finish(self, step: int) -> None:
        self._refuse_ended("finish")
        with self._world.lock:
            self._roll.finished[step] += 1
            self._reach(2 * step + 2)

    def wait(self, step: int) -> None:
        self._wait_for(2 * step + 2)
        with self._world.lock:
            self._reach(2 * step + 2)

    def is_finished(self, step: int) -> bool:
        return self._roll.finished[step] >= self.count

    def recorded(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        with self._world.lock:
            mine = [step for step in self._roll.members if step % self.size == self.index]
            return iter([(step, tuple(sorted(self._roll.members[step]))) for step in sorted(mine)])

    def _refuse_ended(self, call: str) -> None:
        """Raise `RankFailed` if the epoch of the channel has ended."""
        self._world.refuse_ended(self._world_rank, self._roll.epoch, f"{call} of the arrivals on '{self._roll.name}'")

    def _is_open(self, stage: int) -> bool:
        """Whether the members of a step have arrived, or finished it. The caller holds the lock."""
        step, is_end = divmod(stage - 1, 2)
        done = self._roll.finished[step] if is_end else len(self._roll.members.get(step, ()))
        return done >= self.count

    def _reach(self, stage: int) -> None:
        """Note this rank's stage, and end the waits that it was missing for. The caller holds the lock."""
        roll = self._roll
        roll.stages[self.index] = max(stage, roll.stages[self.index])
        if stage in roll.gates and self._is_open(stage):
            self._world.release(roll.gates.pop(stage))

    def _wait_for(self, stage: int) -> None:
        with self._world.lock:
            if self._is_open(stage):
                return
            gate = self._roll.gates.setdefault(stage, Gate(self._roll, stage))
        self._world.block(self._world_rank, gate)
