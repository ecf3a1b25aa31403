"""HIPS autograd's way to trace by hand: boxes, the nodes of its graph, and the sweep from a node.

Programs use these names to build transforms of their own. A node is a place on a tape here, and a box is a Tensor.

    node = VJPNode.new_root()
    with trace_stack.new_trace() as trace:
        start = new_box(x, trace, node)
        end = f(start)
    gradient = backward_pass(1.0, end._node)

Without `new_trace` the recording lasts as long as the root node, which the box holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..arrays.plain import BOXED
from ..engine.leaves import tensor
from ..engine.locks import guarded
from ..engine.pytree import Structure, flatten
from ..engine.recording import Node, Recording, Step, options_of, parents_of
from ..engine.state import state
from ..engine.tape import Tape
from ..engine.tensor import TENSORS, Tensor
from ..errors import TapeError
from .objects import boxed
from .vspace import vspace

__all__ = [
    "Box", "DictBox", "SequenceBox", "TraceStack", "VJPNode", "backward_pass", "isbox", "new_box", "trace_stack",
]  # fmt: skip


class _BoxType(type):
    """The type of `Box`, of which every Tensor is an instance."""

    def __instancecheck__(cls, x: Any) -> bool:
        return x.__class__ in TENSORS if cls is Box else type.__instancecheck__(cls, x)


class Box(metaclass=_BoxType):
    """The type of traced values; ``isinstance(x, Box)`` tests for one.

    ``Box.register(kind)`` lets arrays of a type of your own be arguments of transforms. Objects of other types are
    arguments if a subclass of Box and of their type registers it, and `VSpace.register` their vector space: primitives
    compute with them, and cotangents are objects, too, which are added by ``+``. ``Box.type_mappings[kind]`` may
    be a function ``(value, trace, node) -> box``, which may refuse a value by raising an error.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd.extend import Box
    >>> ag.grad(lambda x: x * x if isinstance(x, Box) else 0.0)(3.0).item()
    6.0
    """

    type_mappings: dict[type, Callable[..., Any]] = BOXED
    types = TENSORS

    def __new__(cls, value: Any, trace: Any = None, node: VJPNode | None = None) -> Any:
        return tensor(value) if node is None else node.box(value)

    @classmethod
    def register(cls, kind: type) -> None:
        """Accept arrays of a type in transforms; or its objects, if the class of boxes derives from that type."""
        if issubclass(cls, kind) and not issubclass(kind, np.ndarray):
            Box.type_mappings[kind] = lambda value, trace, node: boxed(cls, value, vspace(value))
        else:
            Box.type_mappings[kind] = cls


class SequenceBox(tuple):
    """The tuple of boxes that `new_box` makes of a tuple or a list."""

    _node: VJPNode
    _value: Any
    _trace: int


class DictBox(dict):
    """The dictionary of boxes that `new_box` makes of a dictionary."""

    _node: VJPNode
    _value: Any
    _trace: int


class VJPNode:
    """A place on a tape. That of a root is taken when `new_box` boxes a value."""

    __slots__ = ("__weakref__", "own", "place", "recording")

    def __init__(self, recording: Recording | None = None, place: int = -1):
        self.recording, self.place = recording, place
        self.own: Tape | None = None  # the tape that ends with this node

    @classmethod
    def new_root(cls, *_: Any) -> VJPNode:
        """A root, for `new_box`."""
        return cls()

    def box(self, value: Any) -> Any:
        """Box a value, or each value of a container, at this root."""
        if state.recording is None:
            self.own = Tape().__enter__()
            self.own.recording.takes_unrecorded = True
        recording = self.recording = state.recording
        assert recording is not None
        leaves, structure = flatten(value)
        tape = recording.whole()
        inputs = [tape.watch(x if x.__class__ in TENSORS else tensor(x)) for x in leaves]
        _roots.setdefault(recording, []).append((structure, inputs))
        self.place = inputs[0].node if inputs else -1
        found: Any
        if structure.kind is None:
            found = _Root(inputs[0].array, inputs[0].layout, recording, self.place)
            found.root = self
            return found
        found = structure.rebuild(inputs)
        found = DictBox(found) if isinstance(found, dict) else SequenceBox(found)
        found._node, found._value, found._trace = self, value, id(recording)
        return found

    def __del__(self) -> None:
        if self.own is not None and self.own.end is None and state.recording is self.own.recording:
            self.own.__exit__(None, None, None)


class _Root(Tensor):
    """The box of one array; it holds its root."""

    __slots__ = ("root",)
    root: VJPNode


_roots: WeakKeyDictionary[Recording, list[tuple[Structure, list[Tensor]]]] = WeakKeyDictionary()
"""The boxed values of each recording, in order."""


class TraceStack:
    """Opens a tape for a block, as HIPS autograd's `trace_stack` does."""

    @contextmanager
    def new_trace(self) -> Iterator[int]:
        """Record the operations of the block. Yields the number that boxes of the block have as ``_trace``."""
        with Tape() as tape:
            before = tape.recording.takes_unrecorded
            tape.recording.takes_unrecorded = True
            try:
                yield id(tape.recording)
            finally:
                tape.recording.takes_unrecorded = before


trace_stack = TraceStack()


def new_box(value: Any, trace: Any, node: VJPNode) -> Any:
    """Box a value, or each value of a container, at a root: the argument of a function that is traced by hand."""
    maker = BOXED.get(value.__class__)
    return node.box(value) if maker is None else maker(value, trace, node)


def isbox(x: Any) -> bool:
    """Return whether a value is traced."""
    return x.__class__ in TENSORS or isinstance(x, SequenceBox | DictBox)


def backward_pass(g: Any, end_node: VJPNode) -> Any:
    """The cotangent of the root, from the cotangent `g` of the value at a node.

    Parameters
    ----------
    g : array
        The cotangent. The result is a box if it is one.
    end_node : VJPNode
        ``end._node``, where `end` was computed from the box of a root.

    Raises
    ------
    TapeError
        The node does not depend on a root.

    Examples
    --------
    >>> from autograd.core import VJPNode, backward_pass
    >>> from autograd.tracer import new_box
    >>> start = new_box(3.0, 0, VJPNode.new_root())
    >>> backward_pass(1.0, (start * start)._node).item()
    6.0
    """
    recording, place = end_node.recording, end_node.place
    if recording is None or recording not in _roots:
        raise TapeError("backward_pass from a node that depends on no box; needed: the _node of a traced value")
    plain = g.array if g.__class__ in TENSORS else g
    y = Tensor(np.asarray(plain), None, recording, place)
    for root in _roots[recording]:
        found: Any = recording.whole().backward([y], [plain], wanted=root[1], retain=True)
        if any(ct is not None for ct in found):
            break
    else:
        root = _roots[recording][0]
        found = [None] * len(root[1])
    structure, inputs = root
    cts = [np.zeros_like(x.array) if ct is None else ct for x, ct in zip(inputs, found, strict=True)]
    return structure.rebuild([Tensor(ct) for ct in cts] if g.__class__ in TENSORS else cts)


class _Outer(Step):
    """The value of an inner transform's box: only sweeps of outer transforms pass it."""

    name = "value"

    def pull(self, node: Node, ct: Any, sweep: Any) -> None:
        (parent,), (start,) = parents_of(node), options_of(node)
        if sweep.start < start:
            sweep.add(parent, ct)

    def push(self, node: Node, tangents: list[Any], start: int, *context: Any) -> Any:
        (parent,), (inner,) = parents_of(node), options_of(node)
        return tangents[parent - start] if parent >= start and start < inner else None


class _OuterBox(Tensor):
    """A box of a transform at a level of nesting; 1 is the outermost."""

    __slots__ = ("level",)
    level: int


_OUTER = _Outer()


def _value(x: Tensor) -> Any:
    """The value in a box: that of the transform around it, or a plain array in the outermost transform."""
    recording, levels = state.recording, state.levels
    level = 1
    if isinstance(x, _OuterBox):
        level = x.level
    elif recording is not None and x.tape is recording:
        level = sum(start <= x.node for start in levels) + state.in_rules
    if level <= 1 or recording is None or x.tape is not recording:
        return guarded(x) if x.array.shape else x.array[()]
    place = x.node
    if not state.in_rules:  # the inner transform's tape is open
        place = recording.append((_OUTER, None, (), (place,), (levels[level - 1],), None, None))
    found = _OuterBox(x.array, x.layout, recording, place)
    found.level = level - 1
    return found


def _node(x: Tensor) -> VJPNode:
    return x.root if isinstance(x, _Root) else VJPNode(x.tape, x.node)


named: Any = Tensor
named._value = property(_value, doc=_value.__doc__)
named._node = property(_node, doc="Its place on the tape.")
named._trace = property(lambda x: -1 if x.tape is None else id(x.tape), doc="The number of its recording, or -1.")
