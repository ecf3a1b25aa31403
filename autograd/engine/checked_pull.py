"""A step of a reverse sweep on Tensors: where the labels of its rules are not proven yet, or the sweep is recorded.

Else sweeps work on bare arrays (`dispatch`). The proof is made once for each `Signature`: with labelled Tensors in the
place of arrays, each rule must give a cotangent of its operand's dual layout.

What operations of several outputs do differently (`several`) is in what the rules are given; the rest serves both.
"""

from __future__ import annotations

from typing import Any

from ..arrays.device import is_array
from ..errors import LayoutError
from ..layouts.layout import Layout, may_relabel
from .recording import Node, Recording
from .state import state
from .tape import Sweep
from .tensor import TENSORS, Tensor, relabel

__all__ = ["hand_on", "labelled", "lift", "lift_operands", "prove", "prove_with", "checked_pull"]


def checked_pull(op: Any, node: Node, ct: Any, sweep: Sweep) -> None:
    """One step of the reverse sweep where its labels are not proven yet, or the sweep itself is recorded."""
    y, xs, signature = node[1], node[2], node[6]
    if signature is not None and not signature.checked:
        prove(op, node, ct)
    if sweep.record:
        y, xs = lift(op, node, sweep.recording, sweep.place)
        ct = ct if signature is None else relabel(ct, signature.out.dual)
    hand_on(op, node, ct, y, xs, sweep)


def hand_on(op: Any, node: Node, ct: Any, y: Any, xs: tuple[Any, ...], sweep: Sweep) -> None:
    """Give each operand's place what its rule makes of the cotangent, or of those of several outputs."""
    _, _, _, places, options, shapes, signature = node
    shapes = shapes if op.elementwise else None
    for i, place in enumerate(places):
        if place >= 0 and (signature is None or i not in signature.apart):
            g = op.cotangent(i, ct, y, xs, options, shapes)
            sweep.add(place, relabel(g, signature.layouts[i].dual) if sweep.record and signature is not None else g)


def lift(op: Any, node: Node, tape: Recording | None, at: int = -1) -> tuple[Any, tuple[Any, ...]]:
    """The node's arrays as Tensors: connected to their tape for a recorded sweep, else labelled only."""
    y, signature = node[1], node[6]
    if y is None or op.keeping is not None:
        return None, lift_operands(node, tape)
    return Tensor(y, None if signature is None else signature.out, tape, at), lift_operands(node, tape)


def lift_operands(node: Node, tape: Recording | None) -> tuple[Any, ...]:
    """The operands that the node kept, as Tensors; None in the places of the others."""
    _, _, xs, places, _, _, signature = node
    layouts = (None,) * len(xs) if signature is None else signature.layouts
    return tuple(
        Tensor(a, layout, *((tape, p) if tape is not None and p >= 0 else ())) if is_array(a) else a
        for a, p, layout in zip(xs, places, layouts, strict=True)
    )


def prove(op: Any, node: Any, ct: Any) -> None:
    """Run the rules of a node on labelled Tensors; LayoutError if one gives labels that are not its operand's dual."""
    prove_with(op, node, labelled(ct, node[6].out.dual), *lift(op, node, None))


def labelled(ct: Any, layout: Layout) -> Tensor:
    """A cotangent, array or Tensor, as a Tensor of that layout."""
    return Tensor(ct.array if ct.__class__ in TENSORS else ct, layout)


def prove_with(op: Any, node: Any, ct: Any, y: Any, xs: tuple[Any, ...]) -> None:
    """The same with what the rules are given: the labelled cotangent, or those of several outputs, and the arrays."""
    _, _, _, places, options, shapes, signature = node
    shapes = shapes if op.elementwise else None
    active, state.recording = state.recording, None
    try:
        for i, place in enumerate(places):
            if place < 0:
                continue
            g = op.cotangent(i, ct, y, xs, options, shapes)
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
