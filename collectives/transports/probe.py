"""Find the transport calls of a collective by running its own rules on a stand-in for the group."""

from __future__ import annotations

from typing import NamedTuple

from .dry import DryCommunicator
from .protocol import Communicator
from .request import Request, given_bytes, shown

__all__ = ["Probe", "Sent"]


class Sent(NamedTuple):
    """One transport call: its name, the other rank (a world rank; None for a collective), and the operand's bytes."""

    call: str
    peer: int | None
    bytes: int


class Probe(DryCommunicator):
    """A stand-in for a group. It sends nothing, records the calls, and returns zeros in place of received data."""

    def __init__(self, group: Communicator):
        self.sent: list[Sent] = []
        super().__init__(group.index, group.ranks, group.name, self._write, dry=False)

    def _write(self, group: DryCommunicator, request: Request) -> None:
        peer = group.ranks[request.peer] if request.call in ("send", "lend", "recv") else None
        self.sent.append(Sent(shown(request), peer, given_bytes(request)))
