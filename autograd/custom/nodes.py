"""Graphs of a program's own, as HIPS autograd's tracer makes them: a node of the program's class for each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..engine.events import listening
from ..engine.pytree import flatten, tree_map
from ..engine.recording import op_of, parents_of
from ..engine.tensor import TENSORS, WATCH
from ..errors import ArgumentError, check_callable, short, typed_errors, warn
from .boxes import VJPNode, new_box, trace_stack

__all__ = ["Node", "trace"]


class Node:
    """The base class of nodes that a program defines for `trace`.

    A subclass has ``__init__(self, value, fun, args, kwargs, parent_argnums, parents)``, which is called for each
    operation when it has run, and ``initialize_root(self, *args)``.
    """

    __slots__ = ()

    def __init__(
        self, value: Any, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
        parent_argnums: tuple[int, ...], parents: tuple[Any, ...],
    ):  # fmt: skip
        raise NotImplementedError(f"{type(self).__name__} defines no __init__")

    def initialize_root(self, *args: Any, **kwargs: Any) -> None:
        """Make this node that of the argument."""
        raise NotImplementedError(f"{type(self).__name__} defines no initialize_root")

    @classmethod
    def new_root(cls, *args: Any, **kwargs: Any) -> Any:
        """A node for the argument of `trace`."""
        root = cls.__new__(cls)
        root.initialize_root(*args, **kwargs)
        return root


@typed_errors
def trace(start_node: Any, fun: Callable[..., Any], x: Any) -> tuple[Any, Any]:
    """Run ``fun(x)``, and make a node of the class of `start_node` for each operation that depends on `x`.

    Parameters
    ----------
    start_node : Node or VJPNode
        The node of `x`, made by ``new_root``.
    fun : callable
    x : array, number, or a container of them

    Returns
    -------
    value : array or container
        Of ``fun(x)``.
    node : Node, VJPNode or None
        That of the operation which has given it; None, with a warning, if it does not depend on `x`.

    Raises
    ------
    ArgumentError
        `start_node` is no node.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd.tracer import Node, trace
    >>> class Depth(Node):
    ...     def __init__(self, value, fun, args, kwargs, parent_argnums, parents):
    ...         self.depth = 1 + max(parent.depth for parent in parents)
    ...     def initialize_root(self):
    ...         self.depth = 0
    >>> trace(Depth.new_root(), lambda x: np.sin(x) * x + 1.0, 0.0)[1].depth
    3
    """
    check_callable(fun, "trace")
    if not isinstance(start_node, Node | VJPNode):
        raise ArgumentError(f"trace: start_node={short(start_node)} was given; needed: a Node, made by new_root")
    with trace_stack.new_trace() as t:
        start = new_box(x, t, VJPNode.new_root())
        made = _Made(start_node, start)
        with listening(made):
            end = fun(start)
        found = made.node_of(end)
    if found is None:
        warn("Output seems independent of input.", UserWarning)
        return end, None
    return tree_map(_plain, end), (end._node if isinstance(start_node, VJPNode) else found)


class _Made:
    """A listener that makes a node for each operation on a traced value."""

    repeats = True

    def __init__(self, root: Any, start: Any):
        self.kind = type(root)
        boxes = [box for box in flatten(start)[0] if box.__class__ in TENSORS]
        self.recording = boxes[0].tape if boxes else None
        self.nodes: dict[int, Any] = dict.fromkeys([box.node for box in boxes], root)
        self.seen = 0

    def __call__(self, phase: str, direction: str, name: str) -> None:
        pass

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        """Receive the end of an operation, with its operands, result and options."""
        if phase != "end" or direction != "forward" or len(facts) != 4 or self.kind is VJPNode:
            return
        operation, operands, result, options = facts
        parents = {i: node for i, x in enumerate(operands) if (node := self.node_of(x)) is not None}
        outputs = [y for y in flatten(result)[0] if y.__class__ in TENSORS and y.tape is self.recording]
        if not parents or not outputs:
            return
        args = tuple(tree_map(_plain, tuple(operands)))
        words, options = (dict(options), ()) if isinstance(options, Mapping) else ({}, options)

        def fun(*xs: Any, **words: Any) -> Any:
            return operation(*xs, **words) if options == () else operation(*xs, options=options)

        fun.__name__ = fun.__qualname__ = name
        node = self.kind(tree_map(_plain, result), fun, args, words, tuple(parents), tuple(parents.values()))
        self.nodes.update(dict.fromkeys([y.node for y in outputs], node))

    def node_of(self, x: Any) -> Any:
        """The node of a value, or of the first of a container's that has one; None if none has."""
        recorded = self.recording.nodes if self.recording is not None else []
        for place in range(self.seen, len(recorded)):  # arguments of inner transforms stand for the same value
            entry = recorded[place]
            if entry is not None and op_of(entry) is WATCH and parents_of(entry)[0] in self.nodes:
                self.nodes.setdefault(place, self.nodes[parents_of(entry)[0]])
        self.seen = len(recorded)
        places = [y.node for y in flatten(x)[0] if y.__class__ in TENSORS and y.tape is self.recording]
        return next((self.nodes[place] for place in places if place in self.nodes), None)


def _plain(x: Any) -> Any:
    """A value without its box, a number as a scalar."""
    return x.array[()] if x.__class__ in TENSORS else x
