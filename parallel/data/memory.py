"""The memory that a model and its optimizer take on this rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from autograd.errors import ArgumentError, call_site
from autograd.nn import Module
from autograd.optim import Optimizer

from .data_parallel import DataParallel

__all__ = ["Memory", "memory_of"]


class Memory(NamedTuple):
    """Bytes on this rank, each array counted once.

    Attributes
    ----------
    parameters : int
        The parameters, or this rank's parts of them; in stages 1 and 2 of ZeRO the whole ones, of which they are views.
    gradients : int
        The gradients with the buckets in which they lie, flags and padding included.
    optimizer : int
        The arrays of the optimizer's state.
    gathered : int
        The memory into which stage 3 of ZeRO gathers layers.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int

    @property
    def total(self) -> int:
        """The sum of parameters, gradients and optimizer state: what the stages of ZeRO divide."""
        return self.parameters + self.gradients + self.optimizer


def memory_of(model: Module, optimizer: Optimizer | None = None) -> Memory:
    """The bytes that the parameters and gradients of a model, and the state of its optimizer, take on this rank.

    Call it between `backward` and `zero_grad`, when there are gradients.

    Parameters
    ----------
    model : Module
        A `DataParallel` model, or any other.
    optimizer : Optimizer, optional

    Returns
    -------
    Memory

    Raises
    ------
    ArgumentError
        `model` is no Module.

    Examples
    --------
    >>> import autograd as ag, numpy
    >>> from autograd import nn, optim
    >>> from parallel import memory_of
    >>> model = nn.Linear(10, 10, bias=False)
    >>> opt = optim.Adam(model.parameters())
    >>> with ag.Tape() as tape:
    ...     loss = model(numpy.ones((1, 10), "float32")).sum()
    >>> tape.backward(loss); opt.step()
    >>> memory_of(model, opt)
    Memory(parameters=400, gradients=400, optimizer=800, gathered=0)
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"memory_of: {type(model).__name__} was given; needed: a Module" + call_site())
    parameters = model.parameters()
    of_gradients = [getattr(p._grad, "array", p._grad) for p in parameters]
    gathered: list[Any] = []
    for module in model.modules():
        if isinstance(module, DataParallel):
            of_gradients += module.kept_buffers()
            gathered += module.gathered_arrays()
    state = [] if optimizer is None else [a for values in optimizer.state_lists() for a in values]
    return Memory(_bytes(p.array for p in parameters), _bytes(of_gradients), _bytes(state), _bytes(gathered))


def _bytes(arrays: Iterable[Any]) -> int:
    """The bytes of arrays, and of those of which they are views, each counted once."""
    found: dict[int, int] = {}
    for array in arrays:
        root = array
        while isinstance(getattr(root, "base", None), np.ndarray):
            root = root.base
        if hasattr(root, "nbytes"):
            found[id(root)] = int(root.nbytes)
    return sum(found.values())
