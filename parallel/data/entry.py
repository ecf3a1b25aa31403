"""Entry of parameters into a data-parallel computation.

The parameters of one entry are cast from I to R together, by one recorded operation. Its adjoint is the all-reduce from
P to I, so the tape itself sums the gradients over the ranks. Gradients are not divided by anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from autograd.engine.parameter import Parameter
from autograd.engine.recording import Node, Recording
from autograd.engine.state import state
from autograd.engine.tape import Sweep
from autograd.engine.tensor import TENSORS, Tensor, interior, place_off_tape
from autograd.errors import ArgumentError, LayoutError, call_site
from autograd.layouts.layout import C, I, Layout, R
from autograd.layouts.messages import describe
from collectives import Mesh, all_reduce, current_mesh
from collectives.checks import modes, sanitizer
from collectives.inspect.probe import Sent
from collectives.mesh import Axis
from collectives.staging import back, flat
from collectives.transports.protocol import Communicator, Request

__all__ = ["EntryPlan", "enter", "plan_entry", "record_entry"]


class _EnteredParameter:
    """The node of one parameter inside the computation.

    The node of the entry comes right after those of its parameters, so a backward sweep reaches it when the cotangents
    of all of them are complete. The entry takes them from the sweep.
    """

    name = "entered parameter"
    communicates = False

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """Do nothing: the entry has taken the cotangent."""

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, at: int) -> Any:
        first, places = node[4]
        place = places[at - first]
        return carried[place - start] if place >= start else None


class _Entry:
    """The entry of all parameters: a cast I -> R, whose adjoint is an all-reduce of each gradient, last one first."""

    name = "parameter entry"
    communicates = True
    enters = True

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        parameters, places = node[2], node[3]
        on, layouts, all_leaves = node[4]
        gradients = sweep.given(len(places))
        leaves_too = sweep.wanted is None
        # Gradients are removed from the lists as they are used, because a leaf takes an array without a copy only if
        # nothing else refers to it.
        if on.size == 1 and not sweep.record:
            if all_leaves and leaves_too:
                for p in reversed(parameters):
                    g = _second = gradients.pop()  # `accumulate` expects two references from its callers, as in a sweep
                    if g is not None:
                        p.accumulate(g, sweep)
                return
            for p, place in zip(reversed(parameters), reversed(places), strict=True):
                g = gradients.pop()
                if g is not None:
                    if place >= 0:
                        sweep.add(place, g)
                    elif leaves_too and place == _LEAF:
                        sweep.give(p, g)
            return
        # One flag per parameter is summed over the ranks. A parameter that no rank used keeps the gradient None; where
        # only this rank did not use it, its gradient counts as zero.
        used: Any = [g is not None for g in gradients]
        if on.size > 1:
            if on.group.checking:
                named = f"(axis={'*'.join(on.names)!r})"
                on.group.announce(f"gradients of {len(gradients)} parameters {named} in a backward sweep")
            used = on.group.all_reduce(np.array(used, np.float32))
        sums: deque[Any] = deque()
        for i in reversed(range(len(gradients))):
            g = gradients.pop()
            if used[i]:
                missing = g is None
                g = parameters[i].array if missing else g
                sums.append((i, self._start_sum(g, missing, layouts[i], on, sweep)))
        g = None
        while sums:
            i, g = sums.popleft()
            g = g() if callable(g) else g
            if places[i] >= 0:
                sweep.add(places[i], g)
            elif leaves_too and places[i] == _LEAF:
                sweep.give(parameters[i], g)

    @staticmethod
    def _start_sum(g: Any, missing: bool, layout: Layout, on: Axis, sweep: Sweep) -> Any:
        """Start the sum over the ranks. Return it, or a function that waits for it and returns it."""
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
        """Return the axes, the channel and the messages of backward if every parameter is used, for `Tape.plan`."""
        parameters, (on, _, _) = node[2], node[4]
        sent = [Sent("all_reduce", None, 4 * len(parameters))]
        sent += [Sent("all_reduce", None, p.array.nbytes) for p in reversed(parameters)]
        return on.names, on.group, sent if on.size > 1 else []


_ENTRY, _ENTERED = _Entry(), _EnteredParameter()


def enter(parameters: Sequence[Tensor], axis: str | Sequence[str]) -> list[Tensor]:
    """Cast parameters from I to R along `axis`, recorded as one operation.

    Parameters
    ----------
    parameters : sequence of Tensor
        I on `axis`, in the same order on every rank.
    axis : str or sequence of str

    Returns
    -------
    list of Tensor
        The parameters with the label R on `axis`.

    Raises
    ------
    LayoutError
        A parameter is not I on `axis`.
    CollectiveMismatch
        The ranks enter different parameters.

    Notes
    -----
    Forward is free. The adjoint is one all-reduce P -> I of each gradient, and one of a flag per parameter that tells
    whether any rank used it.
    """
    parameters = list(parameters) if isinstance(parameters, Iterable) else [parameters]
    for p in parameters:
        if not isinstance(p, Tensor):
            raise ArgumentError(f"enter: {type(p).__name__} was given; needed: Tensors" + call_site())
    return record_entry(parameters, plan_entry(parameters, axis))


class EntryPlan(NamedTuple):
    """The checked axis and layouts of an entry, for one mesh and given layouts of the parameters."""

    mesh: Mesh
    given: list[Layout | None]
    on: Axis
    layouts: list[Layout]

    def fits(self, mesh: Mesh, parameters: Sequence[Tensor]) -> bool:
        """Whether the plan is for this mesh and the present layouts of the parameters."""
        return self.mesh is mesh and list(map(_layout, parameters)) == self.given


def plan_entry(parameters: Sequence[Tensor], axis: str | Sequence[str]) -> EntryPlan:
    """Check that the parameters are I on `axis`, and return the layouts that they have inside.

    Raises
    ------
    LayoutError
        A parameter is not I on `axis`.
    """
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
                    f"  axis {a!r}: the parameter is {layout[a].word}; needed: Invariant\n"
                    f"  fix: leave the label of axis {a!r} out of the Parameter's layout" + call_site()
                )
        layouts.append(layout.replace(on.names, R))
    return EntryPlan(mesh, list(map(_layout, parameters)), on, layouts)


def record_entry(parameters: Sequence[Tensor], plan: EntryPlan, called: str = "enter") -> list[Tensor]:
    """Record the entry of parameters and return them as they are inside. `called` is what the program has called."""
    recording = state.recording
    _, _, on, layouts = plan
    if not parameters:
        return []
    if on.size > 1 and on.group.checking:
        said = "recorded" if recording is not None else "not recorded"
        shapes = ";".join(f"{p.array.dtype}{list(p.array.shape)}" for p in parameters)
        if modes.watching:
            for p in parameters:
                sanitizer.witness("parameter entry", p)
        on.group.agree(f"{called} (axis={'*'.join(on.names)!r} {len(parameters)} parameters {shapes}) {said}")
    if recording is None:
        return [
            Tensor(p.array, out, None, place_off_tape(p.array, (p,)))
            for p, out in zip(parameters, layouts, strict=True)
        ]
    all_leaves = _PARAMETERS.issuperset(map(type, parameters)) and all(map(_requires_grad, parameters))
    if all_leaves:
        places = [_LEAF] * len(parameters)
        recording.hold_all(parameters)
    else:
        places = [_place(p, recording) for p in parameters]
        for p, place in zip(parameters, places, strict=True):
            if place == _LEAF:
                recording.hold(p)
    recording.communicates = recording.communicates or on.size > 1
    nodes = recording.nodes
    first = len(nodes)
    nodes.extend([(_ENTERED, None, (), (), (first, places), None, None)] * len(places))
    nodes.append((_ENTRY, None, tuple(parameters), places, (on, layouts, all_leaves), None, None))
    return list(map(interior, map(_array, parameters), layouts, repeat(recording), count(first)))


def _place(p: Tensor, recording: Recording) -> int:
    if p.tape is None:
        return _LEAF if p.requires_grad else -1
    return p.node if p.tape is recording else recording.enter(p)


_array, _requires_grad, _layout = attrgetter("array"), attrgetter("_requires_grad"), attrgetter("layout")
_PARAMETERS = frozenset((Parameter,))
_LEAF = -2
"""The place of a leaf. It has no place on the tape: the entry gives it its gradient directly."""
