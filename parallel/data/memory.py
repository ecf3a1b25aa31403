"""The memory that a model and its optimizer take on this rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from autograd.engine.recording import LEAF, arrays_of, op_of, options_of, result_of
from autograd.engine.tape import Tape
from autograd.errors import ArgumentError, typed_errors
from autograd.nn.module import Module
from autograd.optim import Optimizer

from .data_parallel import DataParallel

__all__ = ["Memory", "memory_of", "saved_bytes"]


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


@typed_errors
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
        raise ArgumentError(f"memory_of: {type(model).__name__} was given; needed: a Module")
    parameters = model.parameters()
    of_gradients = [getattr(p._grad, "array", p._grad) for p in parameters]
    gathered: list[Any] = []
    for module in model.modules():
        if isinstance(module, DataParallel):
            of_gradients += module.kept_buffers()
            gathered += module.gathered_arrays()
    state = [] if optimizer is None else [a for values in optimizer.state_lists() for a in values]
    return Memory(_bytes(p.array for p in parameters), _bytes(of_gradients), _bytes(state), _bytes(gathered))


@typed_errors
def saved_bytes(tape: Tape, known: Iterable[Any] = ()) -> int:
    """The bytes of the arrays that a tape holds: the saved operands, results and residuals of its operations.

    Views of one array count once. Leaves, and the arrays of `known` (parameters), are left out.

    Examples
    --------
    >>> import autograd as ag, numpy
    >>> from parallel import saved_bytes
    >>> w = ag.Parameter(numpy.ones(100))
    >>> with ag.Tape() as tape:
    ...     y = ag.ops.exp(w * 2.0)
    >>> saved_bytes(tape, [w.array])
    800
    """
    nodes: Any = tape.recording.nodes[tape.start : tape.end]
    left_out = {id(_root(a)) for a in known}
    for node in nodes:
        if node is not None and op_of(node) is LEAF:
            left_out.add(id(_root(arrays_of(node)[0].array)))
    found = {}
    for node in nodes:
        if node is not None and op_of(node) is not LEAF:
            for array in _arrays((result_of(node), arrays_of(node), options_of(node))):
                root = _root(array)
                if id(root) not in left_out:
                    found[id(root)] = int(root.nbytes)
    return sum(found.values())


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _arrays(item)


def _bytes(arrays: Iterable[Any]) -> int:
    """The bytes of arrays, and of those of which they are views, each counted once."""
    found: dict[int, int] = {}
    for array in arrays:
        root = _root(array)
        if hasattr(root, "nbytes"):
            found[id(root)] = int(root.nbytes)
    return sum(found.values())


def _root(array: Any) -> Any:
    """The array of which another is a view."""
    base = getattr(array, "base", None)
    while base is not None and (type(base) is type(array) or isinstance(base, np.ndarray)):
        array, base = base, base.base
    return array
