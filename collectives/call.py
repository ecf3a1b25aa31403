"""Call: one use of a collective, everything about it but the operand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from autograd.layouts.layout import Label, V

from .transports.protocol import Communicator

__all__ = ["Call", "keep"]

_MOST_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Call:
    """Everything about one use of a collective but its operand; the adjoint's call is this one, mirrored.

    Attributes
    ----------
    axes, group : the axes named, in the mesh's order, and the ranks along them
    to, source : the result's label on the axes, and the operand's
    root : the root's rank in the group; of a message, the other rank
    dim, extents : the dimension that is cut or joined, and every rank's extent of it
    dim2, extents2 : the same of the dimension that all_to_all joins
    pairs : who sends to whom (permute)
    shape, dtype : of the whole value where this rank's operand does not tell (broadcast, scatter, recv)
    like : an empty array of the operand's device or kind, where that is not the host's
    elsewhere : whether another axis roots the value elsewhere, so that nobody along these axes has data to send
    options : what else the rules of one family read, the same on all ranks where the fingerprint shows it
    begin : ``begin(collective, x, call)`` starts a collective that is called with this call, in the place of running it
    changed : the calls that rules made from this one, by the changes
    prepared : what was settled for collectives and operands that met this call, see `collective.Prepared`
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
    begin: Any = field(default=None, repr=False, compare=False)
    changed: dict[Any, Call] = field(default_factory=dict, init=False, repr=False, compare=False)
    prepared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def but(self, **changes: Any) -> Call:
        """This call with some of it changed."""
        return replace(self, **changes)

    def variant(self, **changes: Any) -> Call:
        """`but` for changes that can be looked up: the same object for the same changes."""
        key = tuple(changes.items())
        found = self.changed.get(key)
        return keep(self.changed, key, self.but(**changes)) if found is None else found


def keep(kept: dict[Any, Any], key: Any, value: Any) -> Any:
    """Add `value` to what is looked up by `key`, and return it.

    All is forgotten once there is too much of it: a program whose shapes never repeat would fill the memory.
    """
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value
    return value
