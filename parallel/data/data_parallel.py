"""DataParallel: a module whose parameters enter once per forward pass, and are synchronised by the entry's adjoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

from autograd.engine.parameter import Parameter
from autograd.engine.state import state
from autograd.engine.tensor import interior
from autograd.nn import Module
from collectives import current_mesh

from .entry import _enter, _layout, _plan

__all__ = ["DataParallel"]


class DataParallel(Module):
    """A module whose parameters enter as I -> R along `axis`; its gradients are summed over the ranks.

    The batch is the user's to share out: ``x`` is V or Shard(0) along `axis`. The loss carries the normalisation:
    sum the losses over the ranks and divide by the *global* count.

    Parameters
    ----------
    module : Module
    axis : str or tuple of str

    Raises
    ------
    ReplicaMismatch
        At the first call, if the ranks' parameters are not equal.

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> from autograd import nn
    >>> from parallel import DataParallel
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh:
    ...         model = DataParallel(nn.Linear(1, 1, bias=False), "dp")
    ...         x = ag.tensor(numpy.ones((2, 1), "float32") * (mesh.axis("dp").rank + 1), layout={"dp": cc.Shard(0)})
    ...         with ag.Tape() as tape:
    ...             loss = cc.all_reduce(model(x).sum(), "dp", to=cc.I)
    ...         tape.backward(loss)
    ...         return model.parameters()[0].grad.item()
    >>> cc.run(program, ranks=2)
    [6.0, 6.0]
    """

    def __init__(self, module: Module, axis: str | Sequence[str]):
        self.module = module
        self.axis = axis
        self._owners: list[tuple[dict[str, Any], str, int]] | None = None
        self._entered: list[Parameter] = []
        self._checked = False
        self._plan: Any = None  # what `_plan` found, for the mesh and layouts that it was asked about

    def named_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str, Parameter]]:
        yield from self.module.named_owners(prefix)

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Module, str]]:
        yield from self.module.named_buffers(prefix)

    def _register(self) -> None:
        """Find every attribute that holds a parameter; a parameter in two places enters once."""
        index: dict[int, int] = {}
        self._owners = []
        for path, owner, attribute, parameter in self.module.named_owners():
            if id(parameter) not in index:
                index[id(parameter)] = len(self._entered)
                parameter.name = parameter.name or path
                self._entered.append(parameter)
            self._owners.append((vars(owner), attribute, index[id(parameter)]))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._owners is None:
            self._register()
        owners, parameters = self._owners or [], self._entered
        if not self._checked:
            current_mesh().check_replicas([p for p in parameters if _labelled(p)])
            self._checked = True
        mesh = current_mesh()
        if self._plan is None or self._plan[0] is not mesh or list(map(_layout, parameters)) != self._plan[1]:
            on, layouts = _plan(parameters, self.axis)
            self._plan = (mesh, [p.layout for p in parameters], on, layouts)
        entered = _enter(parameters, *self._plan[2:])
        contexts = state.contexts
        if entered and state.recording is not None:
            state.contexts = (*contexts, partial(self._again, ref(state.recording), entered[0].node))
        try:
            for attributes, name, k in owners:
                attributes[name] = entered[k]
            return self.module.forward(*args, **kwargs)
        finally:
            state.contexts = contexts
            for attributes, name, k in owners:
                attributes[name] = parameters[k]

    @contextmanager
    def _again(self, recording: Any, first: int) -> Iterator[None]:
        """Inside once more, where a part of the module is run a second time: with what entered the first time."""
        owners, parameters, layouts = self._owners or [], self._entered, self._plan[3]
        before = [attributes[name] for attributes, name, _ in owners]
        try:
            for attributes, name, k in owners:
                attributes[name] = interior(parameters[k].array, layouts[k], recording(), first + k)
            yield
        finally:
            for (attributes, name, _), value in zip(owners, before, strict=True):
                attributes[name] = value


def _labelled(p: Parameter) -> bool:
    p.labelled(current_mesh().grid)
    return True
