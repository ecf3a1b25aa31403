"""collectives.call."""

from __future__ import annotations

from typing import Any, NamedTuple

from autograd.layouts.layout import Label, V

from .transports.protocol import Communicator

__all__ = ["Call"]


class Call(NamedTuple):
    """Everything about one use of a collective but its operand; the adjoint's call is this one, mirrored.

    Attributes
    ----------
    axes, group : the axes named, in the mesh's order, and the ranks along them
    root : the root's rank in the group
    dim, extents : the dimension that is cut or joined, and every rank's extent of it
    dim2, extents2 : the same of the dimension that all_to_all joins
    source, to : the operand's label on the axes, and the result's
    pairs : who sends to whom (permute)
    shape, dtype : of the whole value where this rank's operand does not tell (broadcast, scatter, recv)
    elsewhere : whether another axis roots the value elsewhere, so that nobody along these axes has data to send
    options : what else the rules of one family read, the same on all ranks where the fingerprint shows it
    """

    axes: tuple[str, ...]
    group: Communicator
    to: Label = V
    source: Label = V
    root: int = 0
    dim: int = 0
    extents: tuple[int, ...] = ()
    dim2: int = 0
    extents2: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    shape: tuple[int, ...] = ()
    dtype: Any = None
    like: Any = None
    elsewhere: bool = False
    options: Any = ()

    def but(self, **changes: Any) -> Call:
        """This call with some of it changed."""
        return self._replace(**changes)
