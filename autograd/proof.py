"""The proof of an operation's rules for one combination of labels: each gives a cotangent of its operand's dual layout.

Done once per `Signature`, with labelled Tensors in the place of arrays; after that sweeps work on bare arrays.
"""

from __future__ import annotations

from typing import Any

from .broadcasting import unbroadcast
from .errors import LayoutError
from .layout import may_relabel
from .state import state
from .tensor import TENSORS, Tensor

__all__ = ["prove"]


def prove(op: Any, node: Any, ct: Any) -> None:
    """Run the rules of a node on labelled Tensors; LayoutError if one gives labels that are not its operand's dual."""
    _, _, _, places, options, shapes, signature = node
    ct = Tensor(ct.array if ct.__class__ in TENSORS else ct, signature.out.dual)
    y, xs = op.lift(node, None)
    active, state.recording = state.recording, None
    try:
        for i, place in enumerate(places):
            if place < 0:
                continue
            g = op.cotangent(i, ct, y, xs, options)
            g = g if shapes is None else unbroadcast(g, shapes[i])
            needed = signature.layouts[i].dual
            for axis, have, need in zip(needed.grid.names, g.layout.labels, needed.labels, strict=True):
                if not may_relabel(have, need):
                    raise LayoutError(
                        f"{op.name}'s adjoint for {op.operand_name(i)} is not linear in the cotangent: "
                        f"operands {signature.layouts}, axis {axis!r}: it gives {have.word}; needed: {need.word}"
                    )
    finally:
        state.recording = active
    signature.checked = not signature.apart
