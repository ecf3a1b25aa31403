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

from .recording import LEAF, Node, Step

__all__ = ["split"]


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
