"""What a collective asks of its transport, found by running its own rules on a stand-in for the group."""

from __future__ import annotations

from typing import NamedTuple

from ..transports.dry import DryCommunicator
from ..transports.protocol import Communicator

__all__ = ["Probe", "Sent"]


class Sent(NamedTuple):
    """One call of a transport: its name, the other rank (a world rank; None for a collective), the operand's bytes."""

    call: str
    peer: int | None
    bytes: int


class Probe(DryCommunicator):
    """In the place of a group: sends nothing, writes down what would be sent, and gives zeros for what would come."""

    def __init__(self, group: Communicator):
        self.sent: list[Sent] = []
        super().__init__(group.rank, group.ranks, group.name, self._write, dry=False)

    def _write(self, group: DryCommunicator, call: str, given: int, whole: int, peer: int | None) -> None:
        self.sent.append(Sent(call, None if peer is None else group.ranks[peer], given))
