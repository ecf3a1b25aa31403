"""Forward mode: the tangent of an operation's result, from the operation's declaration.

If the declaration has a forward rule, that is used. An elementwise operation has a diagonal Jacobian, so its adjoint is
used. A linear operation is applied to the tangents. Otherwise `transpose` transposes the adjoint, which is linear in
the cotangent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays.device import as_array
from ..layouts.layout import R, Shard, may_relabel
from .promotion import dtype_to_round_to, rounded_to
from .tape import Tape
from .tensor import TENSORS, Tensor, relabel

__all__ = ["tangent", "transpose"]


def tangent(op: Any, node: Any, tangents: list[Any], y: Any, xs: tuple[Any, ...]) -> Any:
    """The tangent of a node's output from its operands' (None where one has none)."""
    dtype = dtype_to_round_to(tuple(tangents)) if op.widens else None
    if dtype is None:
        return _tangent(op, node, tangents, y, xs)
    return rounded_to(dtype, _tangent(op, node, *op.widened(tuple(tangents), y, xs, node[4])))


def _tangent(op: Any, node: Any, tangents: Sequence[Any], y: Any, xs: tuple[Any, ...]) -> Any:
    options, shapes = node[4:6]
    letters = op.letters(len(xs))
    total = None
    done = set()
    for i, t in enumerate(tangents):
        if t is None or letters[i] in done:
            continue
        if i < len(op.tangent) and op.tangent[i] is not None:
            dy = _as_part(op.tangent[i](t, y, *xs, *options), node[6])
        elif op.elementwise:  # a diagonal Jacobian equals its transpose, so use the adjoint rule
            whole = t.shape if shapes is None else np.broadcast_shapes(*shapes)
            t = t if t.shape == whole else op.named("broadcast_to")(t, options=(whole, t.shape))
            t = _as_part(t, node[6])
            dy = op.cotangent(i, t, y, xs, options)
        elif letters[i] != "N":  # linear in all operands of its letter together
            joint = [letter == letters[i] for letter in letters]
            done.add(letters[i])
            operands = [x if not with_it else x * 0 if dx is None else dx
                        for x, with_it, dx in zip(xs, joint, tangents, strict=True)]  # fmt: skip
            dy = op(*operands, options=options)
        else:
            dy = _transposed(op, i, t, y, xs, options)
        total = dy if total is None else total + dy
    return total


def _as_part(t: Any, signature: Any) -> Any:
    """A tangent that was broadcast beside a sharded operand: its copies along the sharded dimension are parts, too."""
    if t.__class__ not in TENSORS or t.layout is None or signature is None or t.layout is signature.out:
        return t
    out, layout = signature.out, t.layout
    for name, have, label in zip(layout.grid.names, layout.labels, out.labels, strict=True):
        if isinstance(label, Shard) and not isinstance(have, Shard) and may_relabel(have, R):
            layout = layout.replace([name], label)
    return relabel(t, layout)


def _transposed(op: Any, i: int, t: Any, y: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """The tangent rule of operand i as the transpose of its adjoint."""
    zero = (y if y is not None else op(*xs, options=options)) * 0
    record = zero.__class__ in TENSORS
    zero = zero if record else Tensor(zero)
    return transpose(lambda cts: [op.cotangent(i, cts[0], y, xs, options)], [zero], [t], record)[0]


def _as_cotangent(y: Tensor, ct: Any) -> Tensor:
    """An array or a Tensor as a cotangent of a result, in the dual layout."""
    if ct.__class__ not in TENSORS:
        return Tensor(as_array(ct))
    return ct if ct.layout is None or y.layout is None else relabel(ct, y.layout.dual)


def transpose(
    linear: Callable[[list[Any]], Sequence[Any]], zeros: Sequence[Any], cotangents: Sequence[Any], record: bool
) -> list[Any]:
    """Apply the transpose of a linear function to cotangents of its results.

    A reverse sweep over a linear function is its transpose, so a forward rule follows from a reverse rule, and the
    other way round (Radul et al. 2023, *You Only Linearize Once*).

    Parameters
    ----------
    linear : callable
        Takes a list like `zeros`, of Tensors on a new tape, and returns a list of results.
    zeros : sequence of Tensor or None
        Where the function is recorded; None for an argument that it does not depend on.
    cotangents : sequence
        One per result, arrays or Tensors; None for a result that is to be left out.
    record : bool
        Whether the sweep is recorded, so that the results are Tensors; else they are arrays.

    Returns
    -------
    list
        One cotangent per argument, None where it is zero throughout.
    """
    with Tape() as tape:
        arguments = [None if zero is None else tape.watch(zero) for zero in zeros]
        results = linear(arguments)
    pairs = [
        (y, _as_cotangent(y, ct))
        for y, ct in zip(results, cotangents, strict=True)
        if ct is not None and y.__class__ in TENSORS and y.tape is not None
    ]
    if not pairs:
        return [None] * len(arguments)
    wanted = [x for x in arguments if x is not None]
    found = tape.backward([y for y, _ in pairs], [ct for _, ct in pairs], wanted=wanted, retain=True, record=record)
    assert found is not None
    left = iter(found)
    return [None if x is None else next(left) for x in arguments]
