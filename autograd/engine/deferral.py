"""The two parts of a backward pass that is deferred: first the cotangents of given values, later all the rest.

`split` divides the nodes of a recording. The first part has the steps on the way from the outputs to the given values.
The second one has the cotangents of operands that do not depend on these values, such as weights, and the steps of
nodes that do not depend on them either. A node with operands of both kinds is in both parts, each time with the other
operands' places replaced by -1, which a step skips. The cotangents that the second part starts from are kept by the
first one.

Source: Qi et al., *Zero bubble pipeline parallelism*, ICLR 2024, section 2, where the parts are called B and W.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import TapeError
from .events import emit_span, listeners, spans
from .recording import LEAF, Node, Step
from .state import state
from .sweep import Sweep, sweep_class

__all__ = ["Rest", "split"]


class _Keep(Step):
    """In the place of a node of the second part: keeps its cotangent, and in `then` runs the node's first part."""

    __slots__ = ("kept", "name", "place", "then", "whole")

    def __init__(self, node: Node, place: int, then: Node | None, kept: dict[int, Any]):
        self.name = node[0].name
        self.whole, self.place, self.then, self.kept = node, place, then, kept

    def pull(self, node: Node, ct: Any, sweep: Any) -> None:
        then, signature = self.then, self.whole[6]
        if then is None:
            self.kept[self.place] = ct
        elif signature is not None and not signature.checked:
            self.whole[0].pull(self.whole, ct, sweep)  # the first time, all of it: its rules are checked together
        else:
            self.kept[self.place] = ct
            then[0].pull(then, ct, sweep)


def split(
    nodes: Sequence[Node | None], start: int, values: Iterable[int]
) -> tuple[list[Node | None], list[Node | None], dict[int, Any]]:
    """Divide nodes into the two parts of a deferred sweep.

    Parameters
    ----------
    nodes : sequence of Node or None
    start : int
        The place of the first one.
    values : iterable of int
        The places of the values whose cotangents the first part computes.

    Returns
    -------
    first, second : list
        As many nodes as `nodes` each, or None where there is nothing to do. A leaf among `values` is in neither: its
        cotangent is no gradient.
    kept : dict
        Cotangents by place, empty. The sweep over `first` fills it: with those of `values`, and with those that the
        sweep over `second` starts from.
    """
    kept: dict[int, Any] = {}
    first: list[Node | None] = []
    second: list[Node | None] = []
    depends = [False] * len(nodes)
    given = set(values)
    before = _ancestors(nodes, start, given)
    for i, node in enumerate(nodes):
        one = two = None
        if node is not None and start + i in given:
            depends[i] = True
            one, two = _keeping(node, start + i, None, kept), None if node[0] is LEAF else node
        elif node is not None:
            op, parents = node[0], node[3]
            on = [p >= start and depends[p - start] for p in parents]
            depends[i] = any(on) or (start + i not in before and _is_first(node, depends, start))
            if not depends[i]:
                one, two = _keeping(node, start + i, None, kept), node
            elif getattr(op, "separable", False) and not all(d or p < 0 for d, p in zip(on, parents, strict=True)):
                part = _with(node, [p if d else -1 for d, p in zip(on, parents, strict=True)])
                one = _keeping(node, start + i, part, kept)
                two = _with(node, [-1 if d else p for d, p in zip(on, parents, strict=True)])
            else:
                one = node
        first.append(one)
        second.append(two)
    return first, second, kept


def _ancestors(nodes: Sequence[Node | None], start: int, values: set[int]) -> set[int]:
    """The places of the nodes that compute the values: their cotangents are known in the second part."""
    found = set(values)
    for i, node in reversed(list(enumerate(nodes))):
        if node is not None and start + i in found:
            found.update(node[3], _closure(node))
    return found


def _is_first(node: Node, depends: list[bool], start: int) -> bool:
    """Whether a node whose parents are all in the second part is yet in the first part."""
    op, closure = node[0], _closure(node)
    if any(p >= start and depends[p - start] for p in closure):
        return True
    # A communication without an operand, as a recv, belongs to one on another rank, whose operand may depend on the
    # values. An entry of parameters has no operand on the tape either.
    no_operand = all(p < 0 for p in (*node[3], *closure))
    return bool(op.communicates and no_operand and not getattr(op, "enters", False))


def _closure(node: Node) -> Sequence[int]:
    """The places of the values that a checkpointed function uses besides its arguments."""
    reads = getattr(node[0], "reads", None)
    found: Sequence[int] = () if reads is None else reads(node)
    return found


def _keeping(node: Node, place: int, then: Node | None, kept: dict[int, Any]) -> Node:
    return _Keep(node, place, then, kept), None, (), (), (), None, None


def _with(node: Node, parents: list[int]) -> Node:
    return (*node[:3], tuple(parents), *node[4:])


class Rest:
    """The rest of a backward pass with ``defer=True``. A call of it adds to the gradients of the leaves.

    The values whose cotangents were wanted get no gradient.

    Attributes
    ----------
    cotangents : list
        The cotangents of the wanted values as arrays, None where there is none.

    Raises
    ------
    TapeError
        At a second call.

    Notes
    -----
    The first part of the pass computes the cotangents of all values on the way from the outputs to the wanted ones.
    The arrays that only they needed are then released. The second part computes the cotangents of their other
    operands. A checkpoint, and an operation with a fused kernel, are done as a whole in the first part.

    Examples
    --------
    >>> import autograd as ag
    >>> w, x = ag.Parameter([2.0, 3.0]), ag.tensor([1.0, 4.0], requires_grad=True)
    >>> with ag.Tape() as tape:
    ...     y = (x * w).sum()
    >>> rest = tape.backward(y, wanted=[x], defer=True)
    >>> rest.cotangents, w.grad
    ([array([2., 3.])], None)
    >>> rest()
    >>> w.grad.numpy()
    array([1., 4.])
    """

    __slots__ = ("_general", "_kept", "_nodes", "_recording", "_retain", "_size", "cotangents")

    def __init__(self, sweep: Sweep, wanted: Sequence[int], retain: bool):
        recording = sweep.recording
        first, second, self._kept = split(recording.nodes, 0, wanted)
        self._recording, self._retain, self._size = recording, retain, len(second)
        _run_alone(sweep, first, retain)
        self._general = sweep.general
        self.cotangents: list[Any] = [self._kept.get(place) for place in wanted]
        for place in wanted:
            if place >= 0 and second[place] is None:
                self._kept.pop(place, None)
        if not retain:  # the arrays of nodes that are done are released
            recording.nodes[:] = second
            second = recording.nodes
        self._nodes: list[Node | None] | None = second

    def __call__(self) -> None:
        nodes, kept = self._nodes, self._kept
        if nodes is None or len(nodes) != self._size:
            raise TapeError(
                "the rest of a deferred backward pass was run before, or its tape has been released; needed: one call"
            )
        self._nodes = None
        make = sweep_class() if listeners else Sweep
        sweep = make(self._recording, 0, self._size, None, False)
        sweep.general = sweep.general or self._general
        while kept:
            place, ct = kept.popitem()
            sweep.cts[place] = ct
        ct = None
        _run_alone(sweep, nodes, self._retain)
        if not self._retain:
            self._recording.release()


def _run_alone(sweep: Sweep, nodes: list[Node | None], retain: bool) -> None:
    """Run a part of a deferred sweep, which empties `nodes`; if it fails, no gradient has changed."""
    active, state.recording = state.recording, None
    if spans:
        emit_span("begin", "backward")
    try:
        sweep.run(nodes, release=False)
    except BaseException:
        sweep.undo()
        if not retain:
            sweep.recording.abandon()
        raise
    finally:
        state.recording = active
        if spans:
            emit_span("end", "backward")
    if sweep.later:
        sweep.finish()
