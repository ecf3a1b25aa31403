"""Entry of parameters into a data-parallel computation.

The parameters of one entry are cast from I to R together, by one recorded operation. Its adjoint is the all-reduce from
P to I, so the tape itself sums the gradients over the ranks. Gradients are not divided by anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from autograd.engine.leaves import Parameter
from autograd.engine.tensor import Tensor, interiors
from autograd.errors import ArgumentError, LayoutError, typed_errors
from autograd.layouts.layout import C, I, Layout, R, Shard
from autograd.layouts.messages import describe
from collectives.mesh import Mesh, current_mesh
from collectives.ops.joint import Joint, JointCall, OneByOne
from collectives.ops.sums import CAST_I_TO_R

from .buckets import Buckets
from .settings import Bucketing
from .sharded import ShardedBuckets

__all__ = ["ENTRY", "Entry", "EntryPlan", "enter", "entered_axes", "plan_entry", "plan_sharded_entry"]

ENTRY = Joint("parameter entry", CAST_I_TO_R)


@typed_errors
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
            raise ArgumentError(f"enter: {type(p).__name__} was given; needed: Tensors")
    return ENTRY.record(parameters, plan_entry(parameters, axis).call, "enter")


def entered_axes(p: Parameter, mesh: Mesh, names: Sequence[str]) -> tuple[str, ...]:
    """Those of some axes along which a parameter enters: all but those that divide it (Shard)."""
    return tuple([name for name in names if type(p.labelled(mesh.grid)[name]) is not Shard])


class EntryPlan(NamedTuple):
    """The settled parts of an entry, for one mesh and given layouts of the parameters."""

    mesh: Mesh
    given: list[Layout | None]
    call: JointCall

    def fits(self, mesh: Mesh, parameters: Sequence[Tensor]) -> bool:
        """Whether the plan is for this mesh and the present layouts of the parameters."""
        return self.mesh is mesh and list(map(_layout, parameters)) == self.given


def plan_entry(parameters: Sequence[Tensor], axis: str | Sequence[str], **buckets: Any) -> EntryPlan:
    """Check that the parameters are I on `axis`, and return the calls and layouts of their entry.

    The gradients are summed one by one, or with the options of `Buckets` in buckets. All ranks of the axis call it.

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
                    f"  fix: leave the label of axis {a!r} out of the Parameter's layout"
                )
        layouts.append(layout.replace(on.names, R))
    calls = [on.call(to=R, source=I)] * len(layouts)
    runs = Buckets(parameters, on, **buckets) if buckets else OneByOne(CAST_I_TO_R, parameters, calls, on)
    return EntryPlan(mesh, list(map(_layout, parameters)), JointCall(on, calls, layouts, runs))


def plan_sharded_entry(
    parameters: Sequence[Parameter], axis: str | Sequence[str], wholes: list[Any], replicated: Sequence[str] = (),
    **options: Any,
) -> EntryPlan:
    """The calls and layouts of the entry of sharded parameters, with the options of `ShardedBuckets`.

    Along the axes `replicated` they have entered already: they are R.
    """
    mesh = current_mesh()
    on = mesh.axis(axis)
    runs = ShardedBuckets(parameters, on, wholes, **options)
    calls = [on.call(to=R, dim=dim, extents=extents) for dim, extents in zip(runs.dims, runs.extents, strict=True)]
    layouts = [p.labelled(mesh.grid).replace((*on.names, *replicated), R) for p in parameters]
    return EntryPlan(mesh, list(map(_layout, parameters)), JointCall(on, calls, layouts, runs))


class Entry:
    """The entry of some of a module's parameters, which it records at each call.

    Parameters
    ----------
    joint : Joint
    indices : list of int
        Which parameters of the module.
    make : callable
        ``make(parameters)``: their `EntryPlan` on the current mesh.
    after : Entry, optional
        An entry of the same parameters, along other axes, that comes first.
    """

    def __init__(
        self, joint: Joint, indices: list[int], make: Callable[[list[Any]], EntryPlan], after: Entry | None = None
    ):
        self.joint, self.indices, self._make, self._after = joint, indices, make, after
        self._plan: EntryPlan | None = None

    def plan(self, mesh: Mesh, parameters: Sequence[Any]) -> EntryPlan:
        """The plan for the present layouts of the module's `parameters`. All ranks of the axis call it."""
        if self._plan is None or not self._plan.fits(mesh, parameters):
            self._plan = self._make(list(parameters))
        return self._plan

    def kept_buffers(self) -> list[Any]:
        """The buffers that its buckets keep."""
        runs = None if self._plan is None else self._plan.call.runs
        before = [] if self._after is None else self._after.kept_buffers()
        return [*before, *(runs.kept_buffers() if isinstance(runs, Buckets) else [])]

    @property
    def bucketing(self) -> Bucketing | None:
        """The sizes of its buckets, once it has been recorded."""
        runs = None if self._plan is None else self._plan.call.runs
        return runs.bucketing if isinstance(runs, Buckets) else None

    @property
    def gathers(self) -> ShardedBuckets | None:
        """The buckets that gather its parameters, once it has been recorded; None if they are not divided."""
        runs = None if self._plan is None else self._plan.call.runs
        return runs if isinstance(runs, ShardedBuckets) else None

    def record(self, mesh: Mesh, parameters: list[Any]) -> list[Tensor]:
        """Record the entry of its part of the module's parameters, and return them as they are inside."""
        mine = parameters if len(self.indices) == len(parameters) else [parameters[k] for k in self.indices]
        plan = self._plan
        if plan is None or plan.mesh is not mesh or list(map(_layout, mine)) != plan.given:  # `fits`, without a call
            plan = self.plan(mesh, mine)
        if self._after is not None:
            mine = self._after.record(mesh, parameters)
        return self.joint.record(mine, plan.call, "call of the DataParallel model")

    def again(self, arrays: list[Any], recording: Any, first: int) -> dict[int, Tensor]:
        """The parameters of an earlier entry, by their index, given their arrays inside, and the place of the first."""
        assert self._plan is not None
        return dict(zip(self.indices, interiors(arrays, self._plan.call.layouts, recording, first), strict=True))


_layout = attrgetter("layout")
