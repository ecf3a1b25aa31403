"""The tangent of an operation's result, from what the operation declares: forward mode's half of a declaration.

A rule of its own comes first; a diagonal Jacobian is its own transpose; what is linear is its own tangent; else the
adjoint, which is linear in the cotangent, is transposed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .tape import Tape
from .tensor import TENSORS, Tensor

__all__ = ["tangent"]


def tangent(op: Any, node: Any, tangents: list[Any], y: Any, xs: tuple[Any, ...]) -> Any:
    """The tangent of a node's output from its operands' (None where one has none)."""
    options, shapes = node[4:6]
    letters = op.letters(len(xs))
    total = None
    done = set()
    for i, t in enumerate(tangents):
        if t is None or letters[i] in done:
            continue
        if i < len(op.tangent) and op.tangent[i] is not None:
            dy = op.tangent[i](t, y, *xs, *options)
        elif op.elementwise:  # a diagonal Jacobian is its own transpose, so the adjoint rule serves
            whole = t.shape if shapes is None else np.broadcast_shapes(*shapes)
            t = t if t.shape == whole else op.named("broadcast_to")(t, options=(whole, t.shape))
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


def _transposed(op: Any, i: int, t: Any, y: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """The tangent rule of operand i as the transpose of its adjoint, which is linear in the cotangent."""
    like = y if y is not None else op(*xs, options=options)
    lifted = like.__class__ in TENSORS
    with Tape() as tape:
        ct = tape.watch(like * 0 if lifted else Tensor(like * 0))
        g = op.cotangent(i, ct, y, xs, options)
    t = t if t.__class__ in TENSORS else Tensor(t)
    found = tape.backward([g], [t], wanted=[ct], retain=True, record=lifted)
    assert found is not None
    return found[0]
