"""`const_graph`: trace a function once; later calls repeat only the operations that depend on the arguments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from typing import Any

from ..engine.events import listening
from ..engine.leaves import tensor
from ..engine.primitive import Primitive
from ..engine.pytree import flatten, tree_map
from ..engine.recording import op_of, parents_of
from ..engine.state import state
from ..engine.tape import Tape
from ..engine.tensor import TENSORS, WATCH, Tensor
from ..errors import TapeError, check_callable, typed_errors

__all__ = ["const_graph"]

Function = Callable[..., Any]


@typed_errors
def const_graph(fun: Function, *args: Any, **kwargs: Any) -> Function:
    """Return `fun` with its first arguments fixed; the first call traces it, later calls replay the trace.

    Later calls do not run the Python code of `fun`. Values that depend on no argument are not computed again, and
    branches and numbers of iterations stay those of the first call. Gradients taken inside `fun` are replayed too.

    Raises
    ------
    TapeError
        In a call: the result depends on no argument, or the number of values differs from the first call.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd.misc import const_graph
    >>> runs = []
    >>> def f(a, x):
    ...     runs.append(x)
    ...     return np.exp(a) * x
    >>> g = const_graph(f, 0.0)
    >>> float(g(2.0)), float(g(3.0)), len(runs)
    (2.0, 3.0, 1)
    """
    check_callable(fun, "const_graph")
    graph: list[_Graph] = []

    @typed_errors
    def replayed(*more: Any) -> Any:
        if not graph:
            graph.append(_Graph())
            return graph[0].trace(lambda *xs: fun(*args, *xs, **kwargs), more)
        return graph[0].run(more)

    with suppress(AttributeError, TypeError):  # an instance with __call__
        update_wrapper(replayed, fun)
    return replayed


class _Slot:
    """A value of the trace: the index of the node that computes it, or -1 and the constant array."""

    __slots__ = ("array", "place")

    def __init__(self, place: int, array: Any):
        self.place, self.array = place, array


class _OperationRecorder:
    """An event listener that adds every operation of the first run to the graph."""

    repeats = True

    def __init__(self, graph: _Graph, recording: Any):
        self.graph, self.recording = graph, recording

    def __call__(self, phase: str, direction: str, name: str) -> None:
        pass

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        """Receive the end of an operation, with its operands, result and options."""
        if direction == "forward" and len(facts) == 4:
            operation, operands, result, options = facts
            self.graph.relabels(self.recording)
            self.graph.keep(self.recording, operation, operands, options, result)


class _Graph:
    """The operations of the first run that depend on its arguments, in order of execution."""

    def __init__(self) -> None:
        self.steps: list[tuple[tuple[int, ...], tuple[int, ...], Function]] = []  # nodes written, nodes read, function
        self.inputs: list[int] = []
        self.output: Any = None
        self.known: set[int] = set()
        self.seen = 0

    # -- the first run ---------------------------------------------------------------------------------------------
    def trace(self, fun: Function, args: tuple[Any, ...]) -> Any:
        """Run the function, record its operations, and return its value."""
        plain = state.grid is None and not any(x.__class__ in TENSORS for x in _leaves(args))
        with Tape() as tape:

            def watch(x: Any) -> Tensor:
                x = tape.watch(x if x.__class__ in TENSORS else tensor(x))
                self.inputs.append(x.node)
                return x

            traced = tree_map(watch, args)
            self.known.update(self.inputs)
            recording, self.seen = tape.recording, len(tape.recording.nodes)

            with listening(_OperationRecorder(self, recording)):
                result = fun(*traced)
            self.relabels(recording)

        def slot(y: Any) -> Any:
            if y.__class__ not in TENSORS:
                return _Slot(-1, y)
            return _Slot(y.node if y.tape is recording and y.node in self.known else -1, y.array)

        self.output = tree_map(slot, result)
        ends = {y.place for y in _leaves(self.output)} - {-1}
        if not ends:
            raise TapeError("const_graph: the result of the function depends on none of its arguments")
        self._prune(ends)
        outer = state.recording
        return tree_map(lambda y: y.array if y.__class__ in TENSORS and plain and outer is None else y, result)

    def relabels(self, recording: Any) -> None:
        """Add nodes that stand for another node: arguments of inner transforms, and relabelled values."""
        for place in range(self.seen, len(recording.nodes)):
            node = recording.nodes[place]
            if node is not None and op_of(node) is WATCH and parents_of(node)[0] in self.known:
                self.known.add(place)
                parents = parents_of(node)
                self.steps.append(((place,), parents, lambda values, at=parents[0]: (values[at],)))
        self.seen = len(recording.nodes)

    def keep(self, recording: Any, operation: Any, operands: Any, options: Any, result: Any) -> None:
        """Add an operation if it depends on an argument."""

        def slot(x: Any) -> Any:
            if x.__class__ not in TENSORS:
                return x
            return _Slot(x.node if x.tape is recording and x.node in self.known else -1, x.array)

        slots = tree_map(slot, tuple(operands))
        reads = tuple(x.place for x in _leaves(slots) if x.__class__ is _Slot and x.place >= 0)
        if not reads:
            return
        results = [y for y in _leaves(result) if y.__class__ in TENSORS]
        places = tuple(y.node if y.tape is recording else -1 for y in results)

        def replay(values: dict[int, Any]) -> list[Any]:
            xs = tree_map(lambda x: values.get(x.place, x.array) if x.__class__ is _Slot else x, slots)
            y = operation(*xs, options=options) if isinstance(operation, Primitive) else operation(*xs, **options)
            return _leaves(y)

        self.known.update(places)
        self.known.discard(-1)
        self.steps.append((places, reads, replay))
        # a result without derivative, like a comparison's, is a constant of the graph, and so is a branch on it

    def _prune(self, ends: set[int]) -> None:
        """Remove the steps that the result does not depend on."""
        needed, kept = set(ends), []
        for places, reads, step in reversed(self.steps):
            if needed.intersection(places):
                needed.update(reads)
                kept.append((places, reads, step))
        self.steps = kept[::-1]

    # -- later runs ------------------------------------------------------------------------------------------------
    def run(self, args: tuple[Any, ...]) -> Any:
        """Replay the operations with new arguments and return the value."""
        given = _leaves(args)
        if len(given) != len(self.inputs):
            raise TapeError(f"{len(given)} values were given; needed: {len(self.inputs)}, as in the first call")
        values = dict(zip(self.inputs, given, strict=True))
        for places, _, step in self.steps:
            for place, y in zip(places, step(values), strict=True):
                if place >= 0:
                    values[place] = y
        return tree_map(lambda y: values.get(y.place, y.array), self.output)


def _leaves(tree: Any) -> list[Any]:
    return flatten(tree)[0]
