"""Data parallelism: every rank runs the whole module on its part of the batch.

The parameters enter by one recorded operation, the cast I -> R of all of them together. Its adjoint is the all-reduce
P -> I, so that gradients are summed by the tape itself: nothing is hooked, nothing is divided, and no rank can
forget it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count, repeat
from operator import attrgetter
from typing import Any

import numpy as np

from autograd.engine.parameter import Parameter
from autograd.engine.recording import Node, Recording
from autograd.engine.state import state
from autograd.engine.tape import Sweep
from autograd.engine.tensor import TENSORS, Tensor, interior
from autograd.errors import LayoutError, call_site
from autograd.layouts.layout import C, I, Layout, R
from autograd.layouts.messages import describe
from collectives import all_reduce, current_mesh
from collectives.checks import modes, sanitizer
from collectives.inspect.probe import Sent
from collectives.mesh import Axis
from collectives.staging import back, flat
from collectives.transports.protocol import Communicator, Request

__all__ = ["enter"]


class _Entered:
    """The places of the parameters inside. The entry comes right after them, so a sweep that reaches it has all their
    cotangents, and it takes them from there.
    """

    name = "entered parameter"
    communicates = False

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """Nothing is left to do: the entry has taken the cotangent."""

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, at: int) -> Any:
        first, places = node[4]
        place = places[at - first]
        return carried[place - start] if place >= start else None


class _Entry:
    """The entry of parameters: cast I -> R forward, all-reduce in backward, in reverse order of registration."""

    name = "parameter entry"
    communicates = True

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        parameters, places = node[2], node[3]
        on, layouts, leaves = node[4]
        given = sweep.given(len(places))
        if on.size == 1 and not sweep.record:
            if leaves and sweep.wanted is None:
                for p in reversed(parameters):
                    g = given.pop()  # emptied as it is read: who holds a gradient alone owns it
                    if g is not None:
                        p.accumulate(g)
                return
            for p, place in zip(reversed(parameters), reversed(places), strict=True):
                self._hand_over(p, place, given.pop(), sweep)
            return
        # one flag a parameter, summed over the ranks: unused everywhere leaves the gradient None, unused here
        # counts zero
        used: Any = [g is not None for g in given]
        if on.size > 1:
            if on.group.checking:
                named = f"(axis={'*'.join(on.names)!r})"
                on.group.announce(f"gradients of {len(given)} parameters {named} in a backward sweep")
            used = on.group.all_reduce(np.array(used, np.float32))
        started: deque[Any] = deque()  # lists that are emptied as they are read: who holds a gradient owns it
        for i in reversed(range(len(given))):
            g = given.pop()
            if used[i]:
                missing = g is None
                g = parameters[i].array if missing else g
                started.append((i, self._sum(g, missing, layouts[i], on, sweep)))
        g = None
        while started:
            i, g = started.popleft()
            g = g() if callable(g) else g
            if places[i] == _LEAF and sweep.wanted is None:
                parameters[i].accumulate(g)
            else:
                self._hand_over(parameters[i], places[i], g, sweep)

    @staticmethod
    def _hand_over(p: Any, place: int, g: Any, sweep: Sweep) -> None:
        if g is None:
            return
        if place >= 0:
            sweep.add(place, g)
        elif place == _LEAF and sweep.wanted is None:
            p.accumulate(g)

    @staticmethod
    def _sum(g: Any, missing: bool, layout: Layout, on: Axis, sweep: Sweep) -> Any:
        """Start the sum over the ranks; what it returns gives it, at once or when called."""
        g = np.zeros_like(g) if missing else g
        if sweep.record:
            return all_reduce(g if g.__class__ in TENSORS else Tensor(g, layout.dual), on.names, to=I)
        if on.size == 1:
            return g
        pending = on.group.start(Request("all_reduce", flat(g)))
        return lambda: back(pending.wait(), g.shape, g)

    def push(self, node: Node, carried: list[Any], start: int, *context: Any) -> Any:
        return None

    def communication(self, node: Node) -> tuple[Sequence[str], Communicator, list[Sent]]:
        """For `Tape.plan`: along what, on which channel, and what backward sends if every parameter is used."""
        parameters, (on, _, _) = node[2], node[4]
        sent = [Sent("all_reduce", None, 4 * len(parameters))]
        sent += [Sent("all_reduce", None, p.array.nbytes) for p in reversed(parameters)]
        return on.names, on.group, sent if on.size > 1 else []


_ENTRY, _ENTERED = _Entry(), _Entered()


def enter(parameters: Sequence[Tensor], axis: str | Sequence[str]) -> list[Tensor]:
    """I -> R for all parameters of an entry, recorded together; adjoint: one all-reduce each, P -> I.

    Parameters
    ----------
    parameters : sequence of Tensor
        I on `axis`, in the same order on every rank.

    Raises
    ------
    LayoutError
        A parameter that is not I on `axis`.
    """
    on, layouts = _plan(parameters, axis)
    return _enter(parameters, on, layouts)


def _plan(parameters: Sequence[Tensor], axis: str | Sequence[str]) -> tuple[Axis, list[Layout]]:
    """The axis and the layouts that the parameters have inside, checked."""
    mesh = current_mesh()
    on = mesh.axis(axis)
    layouts: list[Layout] = []
    for i, p in enumerate(parameters):
        layout = p.labelled(mesh.grid) if p.layout is None else p.layout
        for a in on.names:
            if layout[a] is not I and layout[a] is not C:
                raise LayoutError(
                    f"DataParallel({p.name or f'parameter {i}'}: {describe(p.array, p.array.shape, layout)}, "
                    f"axis {a!r})\n"
                    f"  axis {a!r}: the parameter is {layout[a].word}; data parallelism takes Invariant ones\n"
                    f"  fix: leave the label of axis {a!r} out of the Parameter's layout" + call_site()
                )
        layouts.append(layout.replace(on.names, R))
    return on, layouts


def _enter(parameters: Sequence[Tensor], on: Axis, layouts: list[Layout]) -> list[Tensor]:
    recording = state.recording
    if not parameters:
        return []
    if on.size > 1 and on.group.checking:
        said = "recorded" if recording is not None else "not recorded"
        shapes = ";".join(f"{p.array.dtype}{list(p.array.shape)}" for p in parameters)
        if modes.watching:
            for p in parameters:
                sanitizer.witness("parameter entry", p)
        on.group.agree(f"entry of {len(parameters)} parameters (axis={'*'.join(on.names)!r} {shapes}) {said}")
    if recording is None:
        return [Tensor(p.array, out) for p, out in zip(parameters, layouts, strict=True)]
    leaves = _PARAMETERS.issuperset(map(type, parameters)) and all(map(_followed, parameters))
    if leaves:
        places = [_LEAF] * len(parameters)
        recording.hold_all(parameters)
    else:
        places = [_place(p, recording) for p in parameters]
        for p, place in zip(parameters, places, strict=True):
            if place == _LEAF:
                recording.hold(p)
    recording.communicates |= on.size > 1
    nodes = recording.nodes
    first = len(nodes)
    nodes.extend([(_ENTERED, None, (), (), (first, places), None, None)] * len(places))
    nodes.append((_ENTRY, None, tuple(parameters), places, (on, layouts, leaves), None, None))
    return list(map(interior, map(_array, parameters), layouts, repeat(recording), count(first)))


def _place(p: Tensor, recording: Recording) -> int:
    if p.tape is None:
        return _LEAF if p.requires_grad else -1
    return p.node if p.tape is recording else recording.enter(p)


_array, _followed, _layout = attrgetter("array"), attrgetter("_requires_grad"), attrgetter("layout")
_PARAMETERS = frozenset((Parameter,))
_LEAF = -2  # the place of a leaf, whose gradient the entry itself hands over
