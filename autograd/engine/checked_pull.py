"""One step of a reverse sweep on Tensors: for a recorded sweep, and to check the layouts of an operation's rules.

Other steps work on bare arrays (`dispatch`). The check is made once per `Signature`: the rules run on Tensors with
layouts, and each rule must give a cotangent of its operand's dual layout. Operations with one output and with
several (`multi_output`) share these functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.device import is_array
from ..errors import LayoutError
from ..layouts.layout import C, Layout, Shard, V, may_relabel
from . import events
from .recording import Node, Recording
from .state import state
from .sweep import Sweep
from .tensor import TENSORS, Tensor, relabel

__all__ = ["add_cotangents", "labelled", "lift", "lift_operands", "check_rules", "check_rules_on", "checked_pull"]


def checked_pull(op: Any, node: Node, ct: Any, sweep: Sweep) -> None:
    """One step of a reverse sweep that is recorded, or of an operation whose rules have not been checked yet."""
    y, xs, signature = node[1], node[2], node[6]
    if signature is not None and not signature.checked:
        check_rules(op, node, ct)
    if sweep.record:
        y, xs = lift(op, node, sweep.recording, sweep.place)
        ct = ct if signature is None else relabel(ct, signature.out.dual)
    add_cotangents(op, node, ct, y, xs, sweep)


def add_cotangents(op: Any, node: Node, ct: Any, y: Any, xs: tuple[Any, ...], sweep: Sweep) -> None:
    """Apply each operand's rule and add the result at its place. `ct` holds one per output where there are several."""
    _, _, _, places, options, shapes, signature = node
    shapes = shapes if op.elementwise else None
    lifted = sweep.record and signature is not None
    if lifted:
        ct, y, xs = _per_rank(signature, (ct, y, xs))
    for i, place in enumerate(places):
        if place >= 0 and (signature is None or i not in signature.apart):
            g = op.cotangent(i, ct, y, xs, options, shapes)
            sweep.add(place, relabel(g, signature.layouts[i].dual) if lifted else g)


def _per_rank(signature: Any, given: Any) -> Any:
    """The arguments of a rule, with Varying in place of Shard on the axes where an operand is Varying.

    There each rank has a function of its own, of the values that it holds. So a sum over a dimension along which
    another operand is sharded is the sum over this rank's part alone.
    """
    layouts = signature.layouts
    if not any(x.special for x in layouts):
        return given
    axes = [name for k, name in enumerate(layouts[0].grid.names) if any(x.labels[k] is V for x in layouts)]
    return _varying(given, axes) if axes else given


def _varying(x: Any, axes: list[str]) -> Any:
    """Tensors, also in tuples, with Varying in place of Shard on some axes."""
    if isinstance(x, tuple):
        return tuple([_varying(item, axes) for item in x])
    if x.__class__ not in TENSORS or x.layout is None or not x.layout.special:
        return x
    return relabel(x, x.layout.replace([axis for axis in axes if type(x.layout[axis]) is Shard], V))


def lift(op: Any, node: Node, tape: Recording | None, at: int = -1) -> tuple[Any, tuple[Any, ...]]:
    """The node's arrays as Tensors: at their places on the tape for a recorded sweep, else with layouts only."""
    y, signature = node[1], node[6]
    if y is None or op.keeping is not None:
        return None, lift_operands(node, tape)
    return Tensor(y, None if signature is None else signature.out, tape, at), lift_operands(node, tape)


def lift_operands(node: Node, tape: Recording | None) -> tuple[Any, ...]:
    """The operands that the node keeps, as Tensors; None for the others."""
    _, _, xs, places, _, _, signature = node
    layouts = (None,) * len(xs) if signature is None else signature.layouts
    return tuple(
        Tensor(a, layout, *((tape, p) if tape is not None and p >= 0 else ())) if is_array(a) else a
        for a, p, layout in zip(xs, places, layouts, strict=True)
    )


def check_rules(op: Any, node: Any, ct: Any) -> None:
    """Run a node's rules on Tensors with layouts; LayoutError if a result does not have its operand's dual layout."""
    check_rules_on(op, node, labelled(ct, node[6].out.dual), *lift(op, node, None))


def labelled(ct: Any, layout: Layout) -> Tensor:
    """A cotangent as a Tensor of a layout."""
    return Tensor(ct.array if ct.__class__ in TENSORS else ct, layout)


def check_rules_on(op: Any, node: Any, ct: Any, y: Any, xs: tuple[Any, ...]) -> None:
    """`check_rules`, with the arguments of the rules given as Tensors with layouts."""
    signature = node[6]
    active, inside, recorder = state.recording, state.in_rules, state.recorder
    state.recording, state.in_rules, state.recorder = None, True, None
    try:
        # only layouts are looked at; what the values warn of, the sweep does too
        with np.errstate(all="ignore"), events.unheard():
            _check_each(op, node, *_per_rank(signature, (ct, y, xs)))
    finally:
        state.recording, state.in_rules, state.recorder = active, inside, recorder
    signature.checked = not signature.apart


def _check_each(op: Any, node: Any, ct: Any, y: Any, xs: tuple[Any, ...]) -> None:
    _, _, _, places, options, shapes, signature = node
    shapes = shapes if op.elementwise else None
    for i, place in enumerate(places):
        if place < 0:
            continue
        g = op.cotangent(i, ct, y, xs, options, shapes)
        needed = signature.layouts[i].dual
        for axis, have, need in zip(needed.grid.names, g.layout.labels, needed.labels, strict=True):
            if need is not C and not may_relabel(have, need):  # a part of a constant needs no cotangent
                raise LayoutError(
                    f"{op.name}'s adjoint for {op.operand_name(i)} is not linear in the cotangent: "
                    f"operands {signature.layouts}, axis {axis!r}: it gives {have.word}; needed: {need.word}"
                )
