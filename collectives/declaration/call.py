"""Call: the parameters of one use of a collective, without the operand; `Refusal`: why it does not take a label."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from autograd.layouts.layout import Label, V

from ..transports.protocol import Communicator

__all__ = ["Call", "Refusal", "keep"]

_MOST_KEPT = 1000
_new, _set = object.__new__, object.__setattr__


@dataclass(frozen=True, slots=True)
class Call:
    """The parameters of one use of a collective, without the operand. The adjoint's call is derived from this one.

    Attributes
    ----------
    axes, group : the axes of the call, in the mesh's order, and the ranks along them
    to, source : the label of the result on these axes, and that of the operand
    root : the root's rank in the group; for a message, the other rank
    dim, extents : the dimension that is split or concatenated, and each rank's extent along it
    dim2, extents2 : the same for the dimension along which all_to_all concatenates
    pairs : the (source, destination) pairs of permute
    shape, dtype : of the whole value, where this rank's operand does not determine them (broadcast, scatter, recv)
    like : an empty array on the operand's device, if that is not the host
    elsewhere : whether the value is rooted at another place of another axis, so that no rank of this group has data
    options : further parameters of a family of collectives; the same on all ranks if the fingerprint contains them;
        of a message, the options of its request
    begin : ``begin(collective, x, call)`` is run in place of a collective that is called with this call, and starts it
    kept : a `Prepared` for each collective, kind of operand and changes that adjoints and sweeps use the call with, and
        derived calls by their changes. At most 1,000, see `keep`. An adjoint knows nothing of its node but the call, so
        they lie here; a sum in a sweep on one rank takes 1.5 us with it, and 11 us without
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
    kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def but(self, **changes: Any) -> Call:
        """A copy of this call with some fields changed."""
        return replace(self, **changes)

    def numbered(self, group: Communicator, options: Any) -> Call:
        """`but` for a message, faster. The preparations of this call are not shared."""
        made: Call = _new(Call)
        for name, value in (
            ("axes", self.axes), ("group", group), ("to", self.to), ("source", self.source), ("root", self.root),
            ("dim", self.dim), ("extents", self.extents), ("dim2", self.dim2), ("extents2", self.extents2),
            ("pairs", self.pairs), ("shape", self.shape), ("dtype", self.dtype), ("like", self.like),
            ("elsewhere", self.elsewhere), ("options", options), ("begin", self.begin), ("kept", {}),
        ):  # fmt: skip
            _set(made, name, value)
        return made

    def variant(self, **changes: Any) -> Call:
        """`but` for changes that can be looked up: the same object for the same changes."""
        key = tuple(changes.items())
        found: Call | None = self.kept.get(key)
        return keep(self.kept, key, self.but(**changes)) if found is None else found


def keep(kept: dict[Any, Any], key: Any, value: Any) -> Any:
    """Store `value` under `key` in the cache `kept`, and return it.

    A full cache is emptied first: a program whose shapes never repeat would otherwise fill the memory.
    """
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value
    return value


class Refusal(NamedTuple):
    """Why a collective does not take a label, and a fix, if it differs from the usual fix for that label.

    `of_gradient` is the fix for the gradient of a parameter.
    """

    why: str
    instead: str = ""
    of_gradient: str = ""
