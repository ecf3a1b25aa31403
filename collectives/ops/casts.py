"""Casts: another layout for the same value. Forward they send nothing, but where equal copies are compared.

==================================  ================  =====================================  ==================
forward                             layouts           adjoint                                cotangent
==================================  ================  =====================================  ==================
cast(to=I)                          R -> I            cast(to=P)                             I -> P
cast(to=P)                          I -> P, R -> P    free; the same                         R -> I, R -> P
declare_partial                     V -> P            free                                   R -> V
from_local                          V -> R, V -> I    free; kept on the first rank           P -> V, I -> V
to_local(cotangent=R)               P -> V            free; the copies are compared          V -> R
==================================  ================  =====================================  ==================

The cast I -> R, whose adjoint is a sum, is declared in `sums`.
"""

from __future__ import annotations

from typing import Any

from autograd.arrays.device import dtype_name
from autograd.arrays.shape_only import Shaped, is_absent
from autograd.engine.leaves import Parameter
from autograd.engine.recording import FREE
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import LayoutError, ReplicaMismatch
from autograd.layouts.layout import C, D, I, Label, P, R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of
from autograd.layouts.partition import require_fit
from autograd.layouts.texts import about_origin, contradiction

from ..checks.modes import check_mode
from ..checks.sanitizer import digest_of
from ..declaration.call import Call
from ..declaration.collective import Collective
from ..declaration.staging import zeros_like
from ..mesh import Axis, current_mesh
from .arguments import AxisName, Use, operand, user_function
from .extents import normal_dim
from .sums import CAST_I_TO_R

__all__ = ["cast", "declare_partial"]

CAST_R_TO_I = Collective("cast R->I", (R, C), silent=True)
CAST_TO_P = Collective("cast to P", (I, R, C), silent=True)
RELABEL = Collective("relabel", (V, R, Shard, C), free=True)  # V->P, R->V, Shard<->V: nothing is sent

COPIES = Collective("equal copies", (V,), silent=True)  # V->R: the program states that the ranks' values are equal
ADDEND = Collective("own addend", (P,), free=True)  # P->V: the addend of this rank, as a value of its own


@COPIES.forward
def _(x: Any, call: Call) -> Any:
    if call.group.size > 1 and check_mode() != "off" and not is_absent(x):
        _compare(x, call)
    return x


@COPIES.adjoint
def _(ct: Any, call: Call) -> Any:
    return ADDEND(ct, call, source=P, to=V)


@ADDEND.adjoint
def _(ct: Any, call: Call) -> Any:
    return COPIES(ct, call, source=V, to=R)


def _compare(x: Any, call: Call) -> None:
    """Raise ReplicaMismatch on every rank of a group if the values that the program states to be equal differ."""
    axis, group = "*".join(call.axes), call.group
    group.agree(lambda: f"equal copies(axis={axis!r} shape={list(x.shape)} dtype={dtype_name(x.dtype)})")
    digest = 0 if isinstance(x, Shaped) else digest_of(x)  # a dry run counts the message
    said = current_mesh().exchange(group, digest.to_bytes(8, "little", signed=True))
    odd = [rank for rank in range(group.size) if said[rank] != said[0]]
    if not odd:
        return
    if call.options == "from_local":
        what, fix = "from_local was given", "{axis: V} for values of each rank, {axis: P} for addends of one value"
    else:
        what = "to_local: cotangent=R was declared, and backward found"
        fix = "all_reduce of the addends before they are used"
    raise ReplicaMismatch(
        f"{what} {describe(x, x.shape, None)} as equal copies on axis {axis!r}, but those of ranks "
        f"{', '.join(map(str, odd))} differ from rank 0's; needed: the same on each rank\n  fix: "
        + fix.replace("axis", repr(axis))
    )


@CAST_R_TO_I.adjoint
def _(ct: Any, call: Call) -> Any:
    return CAST_TO_P(ct, call, source=I, to=P)


@CAST_TO_P.forward
def _(x: Any, call: Call) -> Any:
    return x if call.group.index == 0 else zeros_like(x)


@CAST_TO_P.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.source is R:
        return CAST_TO_P(ct, call, source=R, to=P)
    return CAST_R_TO_I(ct, call, source=R, to=I)


@user_function
def cast(x: Any, axis: AxisName, to: Label = R) -> Use | Tensor:
    """R, I, V, P or Shard -> `to`: state another layout for the same value. Forward it sends nothing.

    Formula and adjoint:

    ======  =========  ==========================================  =======================================
    from    to         forward                                     adjoint
    ======  =========  ==========================================  =======================================
    I       R          the identity                                all-reduce (P -> I): Megatron-LM's f
    R       I          the identity                                kept on the first rank (I -> P)
    I, R    P          kept on the first rank, zeros elsewhere     the identity (R -> I); the same (R -> P)
    V       P          the identity: `declare_partial`             the identity
    R       V          the identity                                the identity (V is P: the addends)
    Shard   V          the identity                                the identity
    V       Shard(d)   the identity                                the identity
    ======  =========  ==========================================  =======================================

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype. A plain array is V.
    axis : str or tuple of str
        The mesh axis, or several.
    to : R, I, P, V or Shard(dim)
        The label of the result. The ranks have not agreed on the extents of the parts of ``Shard(dim)``, so the result
        has no global shape. The label of another value that is divided alike has them: ``to=y.layout["dp"]``.

    Returns
    -------
    Tensor
        With label `to` on the axis, and the shape and dtype of `x`.

    Raises
    ------
    LayoutError
        The cast is not free: P to any label (the sum must be taken), or V to R or I (the values may differ). Or `x` was
        drawn the same on all ranks, and `to` is V. Or `to` is no label.
    ShapeError
        `to` is the label of another value, whose part on this rank has another extent.

    Notes
    -----
    No bytes forward. Backward only I -> R communicates: one all-reduce (see `all_reduce`). The cast I -> R is f of
    Megatron-LM (Shoeybi et al. 2019, section 3).

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> with cc.Mesh(dp=1):
    ...     w = ag.Parameter([1.0])
    ...     print(w.layout, cc.cast(w, "dp", to=cc.R).layout)
    {dp: I} {dp: R}
    """
    x, on = operand(x, axis, "cast")
    if not isinstance(to, Label):
        raise LayoutError(f"cast: to={to!r} was given; needed: R, I, P, V or Shard(dim)")
    assert x.layout is not None
    labels = {x.layout[a] for a in on.names}
    if len(labels) > 1:  # one axis at a time
        for name in on.names:
            x = cast(x, name, to)
        return x
    (have,) = labels
    if have is D and (to is V or isinstance(to, Shard)):
        raise LayoutError(contradiction("cast", x, on.names[0], have, to))
    if have is D:  # cast states the layout, so a random draw counts as a constant here
        have, x = C, _without_cotangent(x, on, C)
    if _has_label(have, to):
        return x
    if have is C and to in (R, I, V):
        return _without_cotangent(x, on, to)
    if have is I and to is V:
        return cast(cast(x, axis, R), axis, V)
    if isinstance(to, Shard) and (have is V or (have == to and not have.is_agreed)):
        return _as_shard(x, on, to, have)
    collective = _BY_LABELS.get(f"{have.letter}->{to.letter}")
    if collective is None:
        text = _cast_refusal(x, name_of(x), on, have, to)
        raise LayoutError(about_origin(text, x, name_of(x), on.names, lambda label: label is to))
    return Use(collective, x, on.call(to=to, source=have))


_BY_LABELS = {
    "I->R": CAST_I_TO_R, "R->I": CAST_R_TO_I,
    "I->P": CAST_TO_P, "R->P": CAST_TO_P, "C->P": CAST_TO_P,
    "V->P": RELABEL, "R->V": RELABEL, "S->V": RELABEL,
}  # fmt: skip
"""The collective of each cast that is one. V -> Shard, which must fit the array, is `_as_shard`."""


def _has_label(have: Label, to: Label) -> bool:
    """Whether a value with a label has all that another one says: the same one, or a Shard with these extents."""
    if isinstance(have, Shard) and isinstance(to, Shard):
        return have.key == to.key or (have.dim == to.dim and not to.is_agreed)
    return have is to


def _without_cotangent(x: Tensor, on: Axis, label: Label) -> Tensor:
    """The array of `x`, which has no cotangent, with another label."""
    assert x.layout is not None
    return Tensor(x.array, x.layout.replace(on.names, label), None, -1 if state.recording is None else FREE)


def _cast_refusal(x: Tensor, name: str, on: Axis, have: Label, to: Label) -> str:
    axis = "*".join(on.names)
    why = {
        "P": "its addends are not summed yet: only a reduction gives another layout",
        "V": "the values of the ranks may differ",
        "S": "its parts differ",
        "O": "the other ranks hold no data",
    }.get(have.letter, "there is no free cast to this label")
    fix = {
        "P->R": "all_reduce({on}, to=R)",
        "P->I": "all_reduce({on}, to=I)",
        "P->V": "reduce_scatter({on}, dim=...)" if x.ndim else "cast(all_reduce({on}, to=R), {axis}, to=V)",
        "P->S": "reduce_scatter({on}, dim={to})",
        "V->R": "all_reduce({on}, to=R) for the sum, all_gather({on}) for the parts, broadcast({on}) for one",
        "V->I": "all_reduce({on}, to=I) for the sum, all_gather({on}, to=I) for the parts",
        "S->R": "all_gather({on}, dim={have}, to=R)",
        "S->I": "all_gather({on}, dim={have}, to=I)",
        "R->S": "shard({on}, dim={to})",
        "I->S": "shard({on}, dim={to})",
        "O->R": "broadcast({on}, root={have}, to=R)",
        "O->I": "broadcast({on}, root={have}, to=I)",
        "O->V": "scatter({on}, root={have}) or broadcast({on}, root={have})",
    }.get(f"{have.letter}->{to.letter}", "call the collective that communicates the value")
    if have is V and (to is R or to is I) and isinstance(x, Parameter):
        then = " and this cast" if to is R else " and without the cast"
        fix = f"{name} = ag.Parameter(...) without a label{then}, if it is one value for all ranks\n  or:  {fix}"
    of_label = [getattr(label, "dim", getattr(label, "root", "...")) for label in (have, to)]
    fix = fix.format(on=f"{name}, {axis!r}", axis=repr(axis), have=of_label[0], to=of_label[1])
    return (
        f"cast({name}: {describe(x.array, x.array.shape, x.layout)}, axis {axis!r}, to={to!r})\n"
        f"  axis {axis!r}: {name} is {have.word}, and {why}\n  fix: {fix}"
    )


def _as_shard(x: Tensor, on: Axis, to: Shard, have: Label) -> Use:
    if len(on.names) > 1:
        raise LayoutError(f"cast to Shard over {on.names}; needed: one axis at a time, the inner one first")
    dim = normal_dim(to.dim, x.array.shape, "cast")
    assert x.layout is not None
    grid, k = x.layout.grid, x.layout.grid.axis(on.names[0])
    for i, label in enumerate(x.layout.labels):
        if isinstance(label, Shard) and label.dim == dim and i < k:
            raise LayoutError(
                f"cast({describe(x.array, x.array.shape, x.layout)}, axis {on.names[0]!r}, to={to!r})\n  axis "
                f"{grid.names[i]!r}: the outer axis already splits dimension {dim}\n  fix: cast the inner axis, "
                f"{on.names[0]!r}, first"
            )
    made = to.on(dim)
    require_fit(x.layout.replace(on.names, made), x.array.shape)
    # calls are found by their fields, and a Shard without extents equals every other: hence the key
    return Use(RELABEL, x, on.call(to=made, source=have, options=made.key))


@user_function
def declare_partial(x: Any, axis: AxisName) -> Use:
    """V -> P: state that the ranks' values are the addends of one value. Free.

    Formula: ``y_r = x_r``, and the value is ``sum_r y_r``. Adjoint: the identity (R -> V), free.

    Parameters
    ----------
    x : Tensor or array, V or Shard
        Any shape and dtype.
    axis : str or tuple of str
        The mesh axis, or several.

    Returns
    -------
    Tensor
        P on the axis, with the array of `x`.

    Raises
    ------
    LayoutError
        `x` is R, I or P. The copies of R or I would be counted once per rank.

    Notes
    -----
    No bytes and no messages in either direction.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> with cc.Mesh(tp=1):
    ...     print(cc.declare_partial(ag.tensor([1.0]), "tp").layout)
    {tp: P}
    """
    x, on = operand(x, axis, "declare_partial")
    assert x.layout is not None
    for a in on.names:
        if x.layout[a] is not V and not isinstance(x.layout[a], Shard):
            raise LayoutError(
                f"declare_partial({describe(x.array, x.array.shape, x.layout)}, axis {a!r})\n  axis {a!r}: x is "
                f"{x.layout[a].word}; needed: Varying\n  fix: cast(x, {a!r}, to=P)   (one copy, kept on the first rank)"
            )
    return Use(RELABEL, x, on.call(to=P))
