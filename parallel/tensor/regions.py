"""The two ends of a tensor-parallel region, in which the ranks of an axis compute different features of all tokens.

======================  ==========================  ==========================  ===============================
end                     residual stream             forward                     adjoint
======================  ==========================  ==========================  ===============================
beginning, `enter`      I                           cast I -> R, free           all-reduce: Megatron-LM's f
beginning, `enter`      Shard(d), of the tokens     all-gather, Shard(d) -> R   reduce-scatter
end, `leave`            I                           all-reduce, P -> I          cast I -> R, free: Megatron's g
end, `leave`            Shard(d), of the tokens     reduce-scatter, P -> Shard  all-gather
======================  ==========================  ==========================  ===============================

With a stream of n bytes both forms send the same bytes: a ring moves ``2 n (p-1)/p`` for an all-reduce, and
``n (p-1)/p`` for an all-gather as for a reduce-scatter.

Sources: Shoeybi et al. 2019, *Megatron-LM*, section 3; Korthikanti et al. 2022, *Reducing activation recomputation*,
section 4.2 (the stream in parts of the sequence).
"""

from __future__ import annotations

from typing import Any

import collectives as cc
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, LayoutError, OptionError
from autograd.layouts.layout import C, D, I, Label, P, R, Shard, V
from autograd.layouts.messages import describe
from collectives.ops.arguments import operand

__all__ = ["axis_name", "destination", "enter", "features", "is_alone", "leave"]


def enter(x: Any, axis: str, caller: str) -> Tensor:
    """I or Shard(d) -> R: a value of the residual stream at the beginning of a region; R stays as it is.

    Raises
    ------
    LayoutError
        `x` is P or V, or its last dimension, the features, is divided.
    """
    x, _ = operand(x, axis, caller)
    assert x.layout is not None
    have = x.layout[axis]
    if have is R or have is C or have is D:
        return x
    if have is I:
        return cc.cast(x, axis, to=R)
    last = x.array.ndim - 1
    if isinstance(have, Shard) and have.dim != last:
        return cc.all_gather(x, axis, have.dim)
    if isinstance(have, Shard):
        why = "its features are divided, and each output depends on all of them"
        fix = f"a layer of style Row({axis!r}) here, or all_gather(x, {axis!r}, dim={last})"
    elif have is P:
        why, fix = "its addends are not summed yet", f"all_reduce(x, {axis!r}, to=I) before it"
    else:
        why = "the ranks may hold different values"
        fix = f"cc.from_local(x, {{{axis!r}: I, ...}}), or ag.constant(x), if all ranks of the axis hold the same rows"
    raise LayoutError(_refusal(x, axis, caller, have, why, "Invariant, or Shard of the tokens", fix))


def features(x: Any, axis: str, caller: str) -> Tensor:
    """The operand inside of a region, whose last dimension is divided.

    Raises
    ------
    LayoutError
        It is not ``Shard`` of the last dimension.
    """
    x, _ = operand(x, axis, caller)
    assert x.layout is not None
    have, last = x.layout[axis], x.array.ndim - 1
    if isinstance(have, Shard) and have.dim == last:
        return x
    if isinstance(have, Shard):
        why = f"its parts lie along dimension {have.dim}"
        fix = f"a layer of style Column({axis!r}) before it, which gathers them and divides the features"
    elif have is V or have is P:
        why, fix = "its parts are no parts of one value", f"a layer of style Column({axis!r}) before it"
    else:
        why = "every rank has all features"
        fix = f"a layer of style Column({axis!r}) before it; or cc.shard(x, {axis!r}, dim={last})"
    raise LayoutError(_refusal(x, axis, caller, have, why, f"Shard({last}), this rank's part of the features", fix))


def leave(y: Tensor, axis: str, to: Label) -> Tensor:
    """P -> I or Shard(d): the sum over the ranks, at the end of a region."""
    return cc.reduce_scatter(y, axis, to.dim) if isinstance(to, Shard) else cc.all_reduce(y, axis, to=I)


def is_alone(p: Tensor) -> bool:
    """Whether a parameter is a whole one and no mesh is current, as in the serial run of `parallel.verify`.

    The module then computes what the module computes in whose place it is.
    """
    return p.layout is None and state.grid is None


def axis_name(axis: Any, style: str) -> str:
    """The argument `axis` of a style; ArgumentError if it is not the name of one axis."""
    if not isinstance(axis, str):
        raise ArgumentError(f"{style}: axis={axis!r} was given; needed: the name of one mesh axis")
    return axis


def destination(to: Any, style: str) -> Label:
    """The argument `to` of a style; OptionError if it is not I or Shard."""
    if to is not I and not isinstance(to, Shard):
        raise OptionError(
            f"{style}: to={to!r} was given; needed: I, or Shard(1) for a residual stream [rows, tokens, width] in "
            "parts of the sequence"
        )
    return to


def _refusal(x: Tensor, axis: str, caller: str, have: Label, why: str, needed: str, fix: str) -> str:
    assert x.layout is not None
    return (
        f"{caller}({x.name or 'x'}: {describe(x.array, x.array.shape, x.layout)})\n  axis {axis!r}: the input is "
        f"{have!r}: {why}; needed: {needed}\n  fix: {fix}"
    )
