"""The clocks of ranks that are threads."""

from __future__ import annotations

from ..windows import Clocks
from .rendezvous import Board, Milestone
from .waiting import WaitingRanks

__all__ = ["LocalClocks"]


class LocalClocks(Clocks):
    """One rank's end of a `Board`. `LocalCommunicator.clocks` creates it."""

    def __init__(self, world: WaitingRanks, board: Board, world_rank: int):
        self._world = world
        self._board = board
        self._world_rank = world_rank
        self._index = board.ranks.index(world_rank)

    @property
    def mine(self) -> int:
        return self._board.clocks[self._index]

    def values(self) -> list[int]:
        return list(self._board.clocks)

    def _set(self, clock: int) -> None:
        board, world = self._board, self._world
        world.refuse_ended(self._world_rank, board.epoch, f"set of the clocks on '{board.name}'")
        with world.lock:
            board.clocks[self._index] = clock
            least = min(board.clocks)
            for reached in [each for each in board.milestones if each <= least]:
                world.release(board.milestones.pop(reached))

    def wait(self, clock: int) -> None:
        board, world = self._board, self._world
        with world.lock:
            if min(board.clocks) >= clock:
                return
            milestone = board.milestones.setdefault(clock, Milestone(board, clock))
        world.block(self._world_rank, milestone)
