"""What a list of nodes did not make itself: leaves, and values of other lists. Their places, and their cotangents."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .saved import Saved
from .seeds import refuse_operand
from .state import state
from .tensor import OUTSIDE, Tensor

if TYPE_CHECKING:
    from .tape import Node, Sweep

__all__ = ["IMPORT", "LEAF", "WATCH", "Entries", "Step", "relabel"]


class Step:
    """What a node's first entry is asked in a sweep. `communicates`: a sweep comes here with or without a cotangent."""

    name = "step"
    communicates = False

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """One step of the reverse sweep: hand the cotangent on."""

    def push(self, node: Node, tangents: list[Any], start: int, *context: Any) -> Any:
        """One step of forward mode: the tangent from those before it, the first of which is that of place `start`."""


class _Leaf(Step):
    """Its cotangent goes to `.grad`."""

    name = "leaf"

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        if sweep.wanted is None:
            node[2][0].accumulate(ct)


class _Import(Step):
    """A value of another list: its cotangent waits there for that list's sweep."""

    name = "import"

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        if sweep.wanted is None:
            other, place = node[4]
            other.leave(place, ct)


LEAF, IMPORT = _Leaf(), _Import()


class _Watch(Step):
    """The identity, under a place of its own: an argument inside a transform, or a relabelled value."""

    name = "watch"

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        (parent,), (layout,) = node[3], node[4]
        if parent >= 0:
            sweep.add(parent, relabel(ct, layout.dual) if sweep.record and layout is not None else ct)

    def push(self, node: Node, tangents: list[Any], start: int, *context: Any) -> Any:
        (parent,) = node[3]
        return tangents[parent - start] if parent >= start else None


WATCH = _Watch()


def relabel(x: Tensor, layout: Any) -> Tensor:
    """`x` under a layout that it may freely take; recorded as the identity that it is."""
    if x.layout is layout:
        return x
    if x.tape is None:
        return Tensor(x.array, layout)
    return Tensor(x.array, layout, x.tape, x.tape.append((WATCH, None, (), (x.node,), (x.layout,), None, None)))


class Entries(Saved):
    """The base of a recording: its nodes, and who enters there."""

    __slots__ = ("leaves", "nodes", "pending", "thread")

    def __init__(self) -> None:
        self.held, self.locked = [], []
        self.nodes: list[Node | None] = []
        self.leaves: dict[Any, int] = {}  # places of what came from outside
        self.pending: dict[int, Any] = {}  # cotangents that sweeps of other tapes left for this one
        self.thread = threading.get_ident()

    def enter(self, x: Tensor) -> int:
        """The place of an operand that this list did not make: a leaf, a value of another list, or -1 for neither."""
        leaves = self.leaves
        place = leaves.get(id(x))
        if place is not None:
            return place
        other = x.tape
        if other is None:
            if x.layout is None and state.grid is not None:
                x.labelled(state.grid)  # a mesh meets it, if it is a leaf
            if not x._requires_grad:
                self.lock(x.array)
                return OUTSIDE
            self.hold(x)
            nodes = self.nodes
            place = leaves[id(x)] = len(nodes)  # its node holds it, so the id stays its own
            nodes.append((LEAF, None, (x,), (), (), None, None))
            return place
        if other.thread != self.thread or other.released(x.node):
            refuse_operand(self, x)
        origin = id(other), x.node
        place = leaves.get(origin)
        if place is None:
            place = leaves[origin] = len(self.nodes)
            self.nodes.append((IMPORT, None, (), (), (other, x.node), None, None))
        return place

    def leave(self, place: int, ct: Any) -> None:
        """Keep a cotangent that came from elsewhere until a sweep of this list comes to its place."""
        known = self.pending.get(place)
        self.pending[place] = ct if known is None else known + ct

    def released(self, place: int) -> bool:
        """Whether a sweep has been there and given up what the node held."""
        return place >= len(self.nodes) or self.nodes[place] is None
