"""The nodes of a plan: one rank's operations, and the communications that several ranks take part in."""

from __future__ import annotations

from dataclasses import dataclass, field

from .probe import Sent

__all__ = ["Communication", "Operation"]


@dataclass
class Operation:
    """One node of one rank's tape.

    Attributes
    ----------
    place : int
        In the rank's list.
    name : str
    parents : list of int
        Places of the operands that something depends on.
    shape, dtype, layout
        Of the result on this rank, where the node knows them.
    parameter : str
        A leaf's name.
    holders : list of int
        A leaf's: the world ranks that hold data of the value, where its layout says so.
    communication : int
        Index of the communication that it is part of, or -1.
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


@dataclass
class Communication:
    """One communication: the same event on all its ranks.

    Attributes
    ----------
    name, axes
        What was called, along what.
    ranks : list of int
        The world ranks that take part.
    places : list of int
        Its place in the list of each of them.
    group : list of int
        The world ranks of its channel, which should all take part; of a send and its recv, these two.
    forward, backward : list of Sent lists, one per rank
        What each rank calls on its transport in either direction.
    root : int or None
        The root's world rank; of a send, the receiver's, of a recv, the sender's.
    """

    name: str
    axes: list[str]
    ranks: list[int]
    places: list[int]
    group: list[int]
    forward: list[list[Sent]]
    backward: list[list[Sent]]
    root: int | None = None
