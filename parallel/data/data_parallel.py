"""`DataParallel`, a module that runs another module on each rank's part of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

from autograd.engine.parameter import Parameter
from autograd.engine.state import state
from autograd.engine.tensor import Tensor, interior
from autograd.errors import ArgumentError, MeshError, call_site
from autograd.nn import Module
from collectives import current_mesh

from .entry import EntryPlan, plan_entry, record_entry

__all__ = ["DataParallel"]


class DataParallel(Module):
    """Run `module` with its parameters cast from I to R along `axis`, so that gradients are summed over its ranks.

    All parameters enter together at each call (`enter`), and the adjoint of this entry is the all-reduce of their
    gradients. The caller divides the batch: inputs are V or Shard(0) along `axis`. Gradients are summed and never
    averaged, so the loss contains the normalisation: sum the losses over the ranks and divide by the global count.

    Parameters
    ----------
    module : Module
        Its parameters are I along `axis`.
    axis : str or tuple of str
        The mesh axes over which the batch is divided.

    Raises
    ------
    ReplicaMismatch
        At the first call: the parameters differ between ranks.
    LayoutError
        At a call: a parameter is not I along `axis`.
    ArgumentError, MeshError
        `module` is no Module, or `axis` is no name.

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> from autograd import nn
    >>> from parallel import DataParallel
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh:
    ...         model = DataParallel(nn.Linear(1, 1, bias=False), "dp")
    ...         rows = numpy.ones((2, 1), "float32") * (mesh.axis("dp").rank + 1)
    ...         x = cc.from_local(rows, {"dp": cc.Shard(0)})
    ...         with ag.Tape() as tape:
    ...             loss = cc.all_reduce(model(x).sum(), "dp", to=cc.I)
    ...         tape.backward(loss)
    ...         return model.parameters()[0].grad.item()
    >>> cc.run(program, ranks=2)
    [6.0, 6.0]
    """

    def __init__(self, module: Module, axis: str | Sequence[str]):
        if not isinstance(module, Module):
            raise ArgumentError(f"DataParallel: {module!r} was given; needed: a Module" + call_site())
        names = axis if isinstance(axis, tuple | list) else (axis,)
        if not names or not all(isinstance(name, str) for name in names):
            raise MeshError(f"DataParallel: axis={axis!r} was given; needed: the name of an axis" + call_site())
        self.module = module
        self.axis = axis
        self._parameters: list[Parameter] = []
        self._owners: list[tuple[dict[str, Any], str, int]] | None = None  # (attributes, name, index of the parameter)
        self._checked = False
        self._plan: EntryPlan | None = None

    def named_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str, Parameter]]:
        yield from self.module.named_owners(prefix)

    def named_buffer_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str]]:
        yield from self.module.named_buffer_owners(prefix)

    def _register(self) -> None:
        """Find all attributes that hold a parameter. A parameter that several attributes hold enters once."""
        index: dict[int, int] = {}
        self._owners = []
        for path, owner, attribute, parameter in self.module.named_owners():
            if id(parameter) not in index:
                index[id(parameter)] = len(self._parameters)
                parameter.name = parameter.name or path
                self._parameters.append(parameter)
            self._owners.append((vars(owner), attribute, index[id(parameter)]))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if self._owners is None:
            self._register()
        owners, parameters = self._owners or [], self._parameters
        mesh = current_mesh()
        if not self._checked:
            for p in parameters:
                p.labelled(mesh.grid)
            mesh.check_replicas(parameters)
            self._checked = True
        plan = self._plan
        if plan is None or not plan.fits(mesh, parameters):
            plan = self._plan = plan_entry(parameters, self.axis)
        entered = record_entry(parameters, plan, "call of the DataParallel model")
        contexts = state.contexts
        if entered and state.recording is not None:
            state.contexts = (*contexts, partial(self._reuse_entry, ref(state.recording), entered[0].node, plan))
        try:
            for attributes, name, k in owners:
                attributes[name] = entered[k]
            y: Tensor = self.module.forward(*args, **kwargs)  # or several
            return y
        finally:
            state.contexts = contexts
            for attributes, name, k in owners:
                attributes[name] = parameters[k]

    @contextmanager
    def _reuse_entry(self, recording: Any, first: int, plan: EntryPlan) -> Iterator[None]:
        """Give the module the parameters of an earlier entry, for the recomputation of a part of it (checkpointing)."""
        owners, parameters, layouts = self._owners or [], self._parameters, plan.layouts
        before = [attributes[name] for attributes, name, _ in owners]
        try:
            for attributes, name, k in owners:
                attributes[name] = interior(parameters[k].array, layouts[k], recording(), first + k)
            yield
        finally:
            for (attributes, name, _), value in zip(owners, before, strict=True):
                attributes[name] = value
