"""Sweep: one replay of an interval of a recording in reverse order.

A sweep carries cotangents by place. At each node it calls the operation's ``pull``, which turns the cotangent of the
result into those of the operands. `objective` makes the cotangents that it starts from.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np

from .events import emit, emitting, heard, listeners, tell
from .promotion import dtype_to_round_to
from .recording import IMPORT, LEAF, Node, Recording, op_of
from .state import state
from .tensor import Tensor

__all__ = ["Sweep", "sweep_class"]

_NOTHING = object()


class Sweep:
    """One reverse replay of an interval: cotangents by place, and those of places outside the interval."""

    __slots__ = (
        "begun", "changed", "cts", "fresh", "general", "into", "later", "left", "outside", "parts", "record",
        "recording", "start", "stops", "wanted",
    )  # fmt: skip

    def __init__(self, recording: Recording, start: int, end: int, wanted: dict[int, Any] | None, record: bool):
        self.recording = recording
        self.start = start
        self.cts: list[Any] = [None] * (end - start)  # of the places that are not done yet, from `start` on
        self.left: list[Node | None] = []  # the nodes that are not done yet
        self.outside: dict[int, Any] = {}
        self.wanted = wanted  # places whose cotangents are returned; leaves then get no gradient
        self.record = record  # whether cotangents are Tensors, else bare arrays
        # Whether each step is a `checked_pull`: for Tensors, and from the first cotangent of 16 bits on. It is a seed,
        # or comes from the adjoint of a cast.
        self.general = record
        self.fresh: list[Any] = []  # the leaves whose gradient is of this sweep alone
        self.later: dict[int, tuple[Any, Any]] = {}  # by id: leaves, and what is added at the end; None for a fresh one
        # By place: a weak reference to a cotangent that was made of slices, in an array that only this sweep has, and
        # the key of the last slice.
        self.parts: dict[int, tuple[Any, Any]] | None = None
        self.changed: list[tuple[dict[int, Any], int, Any]] = []  # pending cotangents before: dictionary, place, value
        # Of the layers above: what their functions of `Recording.on_sweep` have begun; by place, an operand and the
        # array for its only cotangent; functions that are called once the node at a place is done.
        self.begun: dict[Any, Any] = {}
        self.into: dict[int, tuple[int, Any]] | None = None
        self.stops: list[tuple[int, Callable[[], None]]] | None = None

    @property
    def place(self) -> int:
        """The place of the current node."""
        return self.start + len(self.cts)

    def add(self, place: int, ct: Any) -> None:
        """Add a cotangent at a place of the list, inside the interval or before it."""
        i = place - self.start
        if i >= 0:
            known = self.cts[i]
            self.cts[i] = ct if known is None else known + ct
        elif place >= 0:
            known = self.outside.get(place)
            self.outside[place] = ct if known is None else known + ct

    # -- the start -------------------------------------------------------------------------------------------------
    def seed(self, place: int, ct: Tensor) -> None:
        """Start from a cotangent at a place. A leaf that entered after this interval has its place beyond it."""
        given, cts, i = ct if self.record else ct.array, self.cts, place - self.start
        if 0 <= i < len(cts):
            cts[i] = given if cts[i] is None else cts[i] + given
            if ct.array.dtype.itemsize == 2:  # a call for each sweep is left out
                self.general = self.general or dtype_to_round_to(ct) is not None
        else:
            known = self.outside.get(place)
            self.outside[place] = given if known is None else known + given

    def take_pending(self) -> None:
        """Start from the cotangents that sweeps of other tapes have left in the interval, too."""
        pending, start, end = self.recording.pending, self.start, self.place
        for place in [p for p in pending if start <= p < end]:
            left = pending.pop(place)
            self.changed.append((pending, place, left))
            self.add(place, left)
            self.general = self.general or dtype_to_round_to(left) is not None

    # -- the gradients of leaves -----------------------------------------------------------------------------------
    def give(self, leaf: Any, ct: Any) -> None:
        """Add a cotangent to the gradient of a leaf."""
        leaf.accumulate(ct, self)

    def keep(self, leaf: Any, ct: Any) -> bool:
        """Keep a cotangent for `finish`, if the leaf had a gradient before this sweep. False if it had none."""
        while self.fresh:
            x = self.fresh.pop()
            self.later[id(x)] = x, None
        _, kept = self.later.get(id(leaf), (None, _NOTHING))
        if kept is None:
            return False
        self.later[id(leaf)] = leaf, ct if kept is _NOTHING else kept + ct
        return True

    def finish(self) -> None:
        """Add to the gradients that leaves had before this sweep."""
        for leaf, ct in self.later.values():
            if ct is not None:
                leaf.accumulate(ct)

    def settle(self) -> None:
        """Pass on the cotangents of places outside the interval, at the end of a sweep; before `finish`."""
        recording = self.recording
        for place, ct in self.outside.items():
            node = recording.nodes[place]
            if node is not None and (node[0] is LEAF or node[0] is IMPORT):
                node[0].pull(node, ct, self)  # a leaf belongs to no tape, an import to another one
            else:
                recording.leave(place, ct)

    def undo(self) -> None:
        """Restore gradients and pending cotangents as they were before this sweep, which failed."""
        for leaf in [*self.fresh, *(leaf for leaf, ct in self.later.values() if ct is None)]:
            leaf.zero_grad()
        for pending, place, value in reversed(self.changed):
            if value is None:
                pending.pop(place, None)
            else:
                pending[place] = value

    # -- for the layers above --------------------------------------------------------------------------------------
    def given(self, count: int) -> list[Any]:
        """Take the cotangents of the last `count` places, whose nodes need no step in this sweep."""
        found = self.cts[-count:]
        if self.wanted is None:
            del self.cts[-count:], self.left[-count:]
        return found

    def stop_at(self, calls: list[tuple[int, Callable[[], None]]]) -> None:
        """Call functions, each once the node at its place is done: all cotangents for earlier places have arrived."""
        self.stops = sorted([*(self.stops or ()), *calls], key=itemgetter(0))

    def _pull_into(self, node: Node, ct: Any, i: int, out: Any) -> Node:
        """Write the cotangent of the i-th operand to `out`; return the node without that operand, or `node` itself."""
        op, y, arrays, parents, options, shapes, signature = node
        is_plain = shapes is None and not options and (signature is None or signature.checked)
        if not is_plain or ct.__class__ is not np.ndarray or not op.write_adjoint[i](out, ct, *arrays):
            return node
        self.add(parents[i], out)
        return op, y, arrays, (*parents[:i], -1, *parents[i + 1 :]), options, shapes, signature

    def _announced_step(self, node: Node, ct: Any) -> None:
        """One step of the replay between its events, which have the whole node."""
        op, into, place, whole = op_of(node), self.into, self.place, node
        with emitting("backward", op.name, whole, ct, self):
            if into and ct is not None and place in into:
                node = self._pull_into(node, ct, *into[place])
            op.pull(node, ct, self)
        emit("end", "backward", op.name, whole, ct, self)

    # -- the replay --------------------------------------------------------------------------------------------------
    def run(self, left: list[Node | None], release: bool) -> None:
        """Replay `left` from its end, which empties it; if it is a copy, `release` the recording's nodes."""
        self.left = left
        next_ct, next_node, cts = self.cts.pop, left.pop, self.cts
        stops, into, wanted, distribution = self.stops, self.into, self.wanted, state.distribution
        progress, in_flight = distribution.progress, distribution.in_flight
        if not (release or wanted is not None or progress is not None or listeners or stops):
            while cts:
                ct = next_ct()
                node = next_node()
                if node is not None and (ct is not None or node[0].communicates):
                    node[0].pull(node, ct, self)
            return
        while cts:
            while stops and len(cts) + self.start <= stops[-1][0]:
                stops.pop()[1]()
            ct, node = next_ct(), next_node()
            if node is None:
                continue
            op = node[0]
            if wanted is not None and self.place in wanted:
                wanted[self.place] = ct
            if ct is not None or op.communicates:
                if listeners:
                    self._announced_step(node, ct)
                else:
                    if into and ct is not None and len(cts) + self.start in into:
                        node = self._pull_into(node, ct, *into[len(cts) + self.start])
                    op.pull(node, ct, self)
                if progress is not None and any(in_flight):
                    progress()
            if release and op is not LEAF and op is not IMPORT:  # later tapes may refer to these places again
                self.recording.nodes[self.place] = None


class _ToldSweep(Sweep):
    """A sweep that tells the listeners each cotangent that a step adds. So each step calls `add` (see `general`)."""

    __slots__ = ()

    def __init__(self, recording: Recording, start: int, end: int, wanted: dict[int, Any] | None, record: bool):
        super().__init__(recording, start, end, wanted, record)
        self.general = True

    def add(self, place: int, ct: Any) -> None:
        """Add a cotangent at a place of the list, and tell the listeners."""
        tell("added", place, ct, self)
        super().add(place, ct)


def sweep_class() -> type[Sweep]:
    """The class of the next sweep: `Sweep`, unless a listener of this thread wants to be told of each cotangent.

    While a step is captured, it is that of the recorder.
    """
    if state.recorder is not None:
        found: type[Sweep] = state.recorder.sweep_class
        return found
    return _ToldSweep if listeners and heard("added") else Sweep
