"""The names of the algorithms, and the functions that implement them for each operation.

A name may have an option after a colon:

====================================  ==============================================================================
name                                  algorithm
====================================  ==============================================================================
``native``                            the transport's own collective
``auto``, ``auto:PATH``               by a table that was measured once, or by a fixed rule; see `choices`
``ring``                              `ring`
``recursive_doubling``                `halving`
``halving_doubling``                  `halving`: Rabenseifner's algorithm
``tree``, ``tree:K``                  `trees`: binomial, or K-ary
``pipelined``, ``pipelined:S``        `trees`: a chain, S segments
``pipelined_tree``, ``...:S``         `trees`: a binary tree, S segments
``double_tree``, ``double_tree:S``    `trees`: two binary trees, S segments in each
``hierarchical``, ``...:A,B,C``       `hierarchical`: an algorithm for each level (hosts, racks), and one between them
``shared``                            `transports.shared_memory`: memory shared by the ranks of one host
``reproducible``, ``...:tree``        `reproducible`: the same bits for any number of ranks; ``tree`` for short arrays
====================================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autograd.errors import MeshError

from ..transports.protocol import Array
from ..transports.steps import Steps
from . import halving, hierarchical, reproducible, ring, trees

__all__ = ["OPERATIONS", "algorithms_of", "check_name", "steps_of"]

Algorithm = Callable[..., Steps[Any]]
"""``algorithm(group, request, x, out)``; see `steps`. A hierarchical one gets a `selected.Channel`, for its hosts."""

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")


def _plain(algorithm: Algorithm) -> Callable[[str], Algorithm]:
    def make(option: str) -> Algorithm:
        if option:
            raise ValueError("needed: no option")
        return algorithm

    return make


def _number(option: str, what: str) -> int:
    if not option.isdecimal() or int(option) < 1:
        raise ValueError(f"needed: {what}, a positive number")
    return int(option)


def _tree_of(option: str) -> trees.TreeOf:
    return trees.k_ary(_number(option, "the most children of a rank")) if option else trees.binomial


def _segments(option: str) -> int | None:
    return _number(option, "the number of segments") if option else None


def _hierarchical(option: str) -> Algorithm:
    if option:
        first, *middle, last = option.split(",") if "," in option else (option, "")
        outside = [name for name in hierarchical.INSIDE if name != "shared"]
        if first not in hierarchical.INSIDE or last not in hierarchical.BETWEEN or not {*middle} <= {*outside}:
            raise ValueError(
                f"needed: INSIDE,BETWEEN or INSIDE,MORE,BETWEEN: one of {', '.join(hierarchical.INSIDE)} inside a "
                f"host, of {', '.join(outside)} inside a rack, and so on, and of {', '.join(hierarchical.BETWEEN)} at "
                "the end"
            )
    return lambda channel, r, x, out: hierarchical.all_reduce(channel.levels, r, x, out, option)


def _reproducible(option: str) -> Algorithm:
    if option not in ("", "tree"):
        raise ValueError("needed: no option, or tree")
    return lambda group, r, x, out: reproducible.all_reduce(group, r, x, out, option)


def _whole_tree(option: str) -> Algorithm:
    tree_of = _tree_of(option)
    return lambda group, r, x, out: trees.all_reduce(group, r, x, out, tree_of, 1)


def _pipelined(tree_of: trees.TreeOf) -> Callable[[str], Algorithm]:
    def make(option: str) -> Algorithm:
        count = _segments(option)
        return lambda group, r, x, out: trees.all_reduce(group, r, x, out, tree_of, count)

    return make


def _double(option: str) -> Algorithm:
    count = _segments(option)
    return lambda group, r, x, out: trees.double_all_reduce(group, r, x, out, count)


def _rooted(function: Any) -> dict[str, Callable[[str], Algorithm]]:
    def whole(option: str) -> Algorithm:
        tree_of = _tree_of(option)
        return lambda group, r, x, out: function(group, r, x, out, tree_of, 1)

    def pipelined(tree_of: trees.TreeOf) -> Callable[[str], Algorithm]:
        def make(option: str) -> Algorithm:
            count = _segments(option)
            return lambda group, r, x, out: function(group, r, x, out, tree_of, count)

        return make

    return {"tree": whole, "pipelined": pipelined(trees.chain), "pipelined_tree": pipelined(trees.k_ary(2))}


_TABLE: dict[str, dict[str, Callable[[str], Algorithm]]] = {
    "all_reduce": {
        "ring": _plain(ring.all_reduce),
        "recursive_doubling": _plain(halving.recursive_doubling),
        "halving_doubling": _plain(halving.halving_doubling),
        "tree": _whole_tree,
        "pipelined": _pipelined(trees.chain),
        "pipelined_tree": _pipelined(trees.k_ary(2)),
        "double_tree": _double,
        "hierarchical": _hierarchical,
        "reproducible": _reproducible,
        "shared": _plain(hierarchical.shared),
    },
    "reduce_scatter": {
        "ring": _plain(ring.reduce_scatter),
        "recursive_doubling": _plain(halving.reduce_scatter),
        "halving_doubling": _plain(halving.reduce_scatter),
        "shared": _plain(hierarchical.shared),
    },
    "all_gather": {
        "ring": _plain(ring.all_gather),
        "recursive_doubling": _plain(halving.all_gather),
        "halving_doubling": _plain(halving.all_gather),
        "shared": _plain(hierarchical.shared),
    },
    "broadcast": _rooted(trees.broadcast),
    "reduce": _rooted(trees.reduce),
}


def algorithms_of(operation: str) -> tuple[str, ...]:
    """The algorithms of an operation, besides `native` and `auto`, which every operation has.

    Examples
    --------
    >>> algorithms_of("broadcast")
    ('tree', 'pipelined', 'pipelined_tree')
    """
    return tuple(_TABLE[operation])


def steps_of(operation: str, algorithm: str) -> Algorithm | None:
    """The function of an algorithm; None if it does not implement the operation, so that the transport's own runs."""
    name, _, option = algorithm.partition(":")
    make = _TABLE.get(operation, {}).get(name)
    if make is None:
        return None
    try:
        return make(option)
    except ValueError as wrong:
        raise MeshError(f"algorithm={algorithm!r} was given; {wrong}") from None


def check_name(algorithm: Any, operation: str | None = None) -> str:
    """Return the name of an algorithm if it exists for the given operation, or for any operation.

    Raises
    ------
    MeshError
        The name is unknown, the option is wrong, or the algorithm does not implement the operation.
    """
    known = dict.fromkeys(name for op in ([operation] if operation else OPERATIONS) for name in _TABLE[op])
    name = algorithm.partition(":")[0] if isinstance(algorithm, str) else None
    if name == "auto" and (algorithm == "auto" or algorithm != "auto:"):
        return str(algorithm)
    if algorithm != "native" and name not in known:
        where = f"{operation}: " if operation else ""
        raise MeshError(f"{where}algorithm={algorithm!r} was given; needed: native, auto, {', '.join(known)}")
    for each in OPERATIONS:
        steps_of(each, algorithm)
    return str(algorithm)


def widened(x: Array) -> Array:
    """The operand in the dtype of the additions: float16 is summed in float32 and rounded once, at the end."""
    return x.astype("float32") if x.dtype == "float16" else x
