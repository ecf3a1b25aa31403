"""The nodes of a plan: the operations of each rank, and the communications between ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..transports.probe import Sent

__all__ = ["Communication", "Operation"]


@dataclass
class Operation:
    """One node of one rank's tape.

    Attributes
    ----------
    place : int
        Its index in the rank's list.
    name : str
    parents : list of int
        The places of the operands that are recorded on the tape.
    shape, dtype, layout
        Of the result on this rank, if the node records them.
    parameter : str
        The name of a leaf, or of a parameter of an entry; empty for other nodes.
    holders : list of int
        For a leaf, the world ranks that hold data of the value according to its layout.
    communication : int
        The index of the communication that it belongs to, or -1.
    waits_for : int
        For the wait of a nonblocking call, the place of its start; -1 for other nodes.
    value, file, line, scope
        The value as text, the program's line, and the modules around it; empty unless `recording_operations` was active
        when the operation ran.
    """

    place: int
    name: str
    parents: list[int]
    shape: list[int] | None = None
    dtype: str = ""
    layout: str = ""
    parameter: str = ""
    holders: list[int] = field(default_factory=list)
    communication: int = -1
    waits_for: int = -1
    value: str = ""
    file: str = ""
    line: int = 0
    scope: list[str] = field(default_factory=list)


@dataclass
class Communication:
    """One communication: the same event on all its ranks.

    Attributes
    ----------
    name, axes
        The names of the calls, and the axes along which they were made.
    ranks : list of int
        The world ranks that take part.
    places : list of int
        Its place in the list of each of these ranks.
    group : list of int
        The world ranks of its channel, which should all take part. For a send and its recv, these two ranks.
    forward, backward : list of Sent lists, one per rank
        The transport calls of each rank in either direction.
    root : int or None
        The world rank of the root. For a send it is the receiver, for a recv the sender.
    is_nonblocking : bool
        Whether it is started at one place and waited for at another.
    """

    name: str
    axes: list[str]
    ranks: list[int]
    places: list[int]
    group: list[int]
    forward: list[list[Sent]]
    backward: list[list[Sent]]
    root: int | None = None
    is_nonblocking: bool = False
