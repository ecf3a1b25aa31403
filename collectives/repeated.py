"""A sum that is called again: what axis, labels, shape and dtype settle is asked once.

A step of training makes the calls of the step before, and a small sum between the ranks of one host takes less time
than the questions that precede it. The first call of its kind asks them all and leaves a `Repeated` with its axis; a
later one finds it by the result's label and the operand's layout, compares shape and dtype, and is the transport's call
and a node.

What may differ between equal calls is asked each time: whether a tape is active, whether ranks compare their calls,
whether anybody listens or begins a nonblocking form, and whether the collective's rule is still its own. Such a call
goes the whole way.
"""

from __future__ import annotations

from typing import Any

from numpy import generic, ndarray

from autograd.events import listeners
from autograd.layout import Layout
from autograd.state import state
from autograd.tensor import Tensor

from . import checking
from .primitive import Call, Collective, back, host_flat, starting

__all__ = ["Repeated"]

_new = object.__new__


class Repeated:
    """A call of `all_reduce` for operands of one layout. It keeps no operand alive.

    Parameters
    ----------
    collective : Collective
        It asks for the transport's `all_reduce` of the operand, and nothing else.
    call : Call
        As it was made before, and found right.
    layout, out : Layout
        The operand's and the result's.
    """

    __slots__ = (
        "call", "collective", "dtype", "group", "is_alone", "is_flat", "kind", "layout", "options", "out", "shape"
    )  # fmt: skip

    def __init__(self, collective: Collective, call: Call, layout: Layout, out: Layout):
        self.collective, self.call, self.group, self.layout, self.out = collective, call, call.group, layout, out
        self.is_alone = call.group.size == 1  # nothing is sent
        self.kind: Any = None  # the last operand's class
        self.shape: tuple[int, ...] = ()
        self.dtype: Any = None
        self.is_flat = False  # whether the transport takes it as it is
        self.options: tuple[Any, ...] = ()  # what its node tells of the call: nodes of equal calls share one tuple

    def again(self, x: Tensor) -> Any:
        """What ``collective(x, call)`` makes."""
        array, recording = x.array, state.recording
        if (
            recording is None
            or not (
                array.__class__ is self.kind and array.dtype is self.dtype and array.shape == self.shape
                or self._fits(array)
            )
            or not array.flags.c_contiguous
            or listeners
            or starting
            or self.collective._forward is not self.collective.plain
            or (checking.limit and not self.is_alone and self.group.checking)
        ):
            return self.collective(x, self.call)
        y = self.group.all_reduce(array) if self.is_flat else self._in_shape(array)
        recording.communicates = True
        place = x.node if x.tape is recording else recording.enter(x)
        nodes = recording.nodes
        made = _new(Tensor)  # as `interior` does, one call less
        made.array, made.layout, made.tape, made.node = y, self.out, recording, len(nodes)
        nodes.append((self.collective, None, (), (place,), self.options, None, None))
        return made

    def _fits(self, array: Any) -> bool:
        """Whether an array is here, on the host, and differentiable; if so the next one is compared with it."""
        if not (array.__class__ is ndarray or isinstance(array, generic)) or array.dtype.kind not in "fc":
            return False
        self.kind = array.__class__
        self.shape, self.dtype = array.shape, array.dtype
        self.is_flat = array.ndim == 1 and not self.is_alone
        told = self.shape, self.dtype, False
        self.options = self.call, self.layout, self.out, told, told
        return True

    def _in_shape(self, array: Any) -> Any:
        return array if self.is_alone else back(self.group.all_reduce(host_flat(array)), array.shape, array)
