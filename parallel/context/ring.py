"""Ring attention: attention over a sequence that the ranks of an axis hold in parts.

Every rank keeps its queries, and the keys and values travel around the ring. At step s rank r has those of rank r - s,
computes a block of attention with them, and meanwhile sends them to rank r + 1 and receives those of rank r - s - 1.
The outputs O_b of the blocks are averaged by the logarithms L_b of the sums of their exponentials:

    L = log sum_b exp(L_b),    O = sum_b exp(L_b - L) O_b

Backward is a second ring. With L of all keys, ``P = exp(scale q k' - L)`` are the probabilities of a block, and with ct
the cotangent of O and ct_L that of L,

    D = rowsum(ct O) - ct_L,   dS = P (ct v' - D) scale,   dq += dS k,   dk += dS' q,   dv += P' ct

The cotangents of keys and values follow them around the ring, one step behind, and end on their owner. So the tape
keeps q, k, v, O and L of each rank, and no block.

The operation has one operand, ``[..., tokens, slots, heads, width]``, which holds g queries, one key and one value of
each head (in `SelfAttention` g is 1, with grouped heads it is the number of queries that share a key). Its result
``[..., tokens, g, heads, width + 1]`` has O and, in the last column, L. So no dimension changes its place, and neither
do the labels on other axes: batches and heads may be sharded there.

Source: Liu, Zaharia and Abbeel 2023 (Ring Attention with Blockwise Transformers), section 3; the form of D is that of
Dao et al. 2022 (FlashAttention), section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from autograd import ops
from autograd.arrays.shape_only import DRY, Shaped
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import DtypeError, LayoutError, ShapeError
from autograd.kernels import find
from autograd.layouts.layout import P, Shard, V
from autograd.layouts.messages import describe
from autograd.transforms.rematerialise import checkpoint
from collectives import cast
from collectives.declaration.call import Call
from collectives.declaration.collective import Collective
from collectives.declaration.staging import buffer_like, flat
from collectives.mesh import Axis
from collectives.ops.arguments import operand
from collectives.ops.extents import extents_along
from collectives.transports.protocol import Pending, Request

from . import composed, masks
from .order import Block, Order

__all__ = ["RING_ATTENTION", "check_other_axes", "extents_of_sequence", "ring_attention", "ring_self_attention"]


class Options(NamedTuple):
    """The options of a call: the order, and the factor of the scores."""

    order: Order
    scale: float


def _result_shape(shape: list[int], call: Call) -> list[int]:
    return [*shape[:-3], shape[-3] - 2, shape[-2], shape[-1] + 1]


RING_ATTENTION = Collective(
    "ring_attention", (V, Shard), lambda call, layout, k, shape: layout[call.axes[k]], word="N", alone=None,
    shape=_result_shape, registered=False,
)  # fmt: skip


# -- the two rings, on arrays ------------------------------------------------------------------------------------------


@RING_ATTENTION.forward
def _(x: Any, call: Call) -> Any:
    order, scale = call.options
    me, extents, groups = call.group.index, call.extents, x.shape[-3] - 2
    if type(x) is Shaped:
        for _ in _visits(x[..., groups:, :, :], call):
            pass  # the requests are made, and nothing is computed
        return Shaped(_result_shape(list(x.shape), call), x.dtype, DRY)
    own, x = x[..., groups:, :, :], _wide(x)
    y = np.empty_like(x, shape=_result_shape(list(x.shape), call))
    for owner, kv in _visits(own, call):
        block = None if kv is None else order.block(me, owner, extents[me])
        if kv is None or block is None:
            continue
        k, v = (part[..., block.keys, :] for part in _by_heads(_wide(kv)))
        for q, out in zip(_by_heads(x)[:groups], _by_heads(y), strict=True):
            o, log_sums = _attend(q[..., block.rows, :], k, v, block, scale)
            _merge(out[..., block.rows, :], o, log_sums, is_first=owner == me)
    return y.astype(call.dtype, copy=False)


@RING_ATTENTION.adjoint
def _(ct: Any, call: Call, x: Any, y: Any) -> Any:
    if ct.__class__ in TENSORS:
        return composed.adjoint(ct, call, x, y)
    group, (order, scale), extents = call.group, call.options, call.extents
    me, ranks, groups = group.index, group.size, x.shape[-3] - 2
    group.agree(lambda: RING_ATTENTION.fingerprint(x, call, None))
    is_dry, dtype, own = type(x) is Shaped, x.dtype, x[..., groups:, :, :]
    if not is_dry:
        x, y, ct = _wide(x), _wide(y), _wide(ct)
        dots = [(c[..., :-1] * o[..., :-1]).sum(-1) - c[..., -1] for c, o in zip(*map(_by_heads, (ct, y)), strict=True)]
        dx = np.zeros_like(x)

    def receive(owner: int, source: int) -> Pending[Any]:
        """Start to receive the cotangents of an owner's keys and values."""
        shape = (*x.shape[:-4], extents[owner], 2, *x.shape[-2:])
        started = group.start(Request("recv", out=buffer_like(x, shape, x.dtype, group.dry), peer=source))
        return Pending(started.test, lambda: started.wait().reshape(shape))

    arriving: Pending[Any] | None = None
    for step, (owner, kv) in enumerate(_visits(own, call)):
        if kv is not None:
            if is_dry:
                dkv = kv
            else:
                block = order.block(me, owner, extents[me])
                assert block is not None  # else the keys would not have come here
                dkv = dx[..., groups:, :, :] if step == 0 else np.zeros_like(x, shape=kv.shape)
                k, v = _by_heads(_wide(kv))
                dk, dv = _by_heads(dkv)
                for q, c, o, d, dq in zip(*map(_by_heads, (x[..., :groups, :, :], ct, y)), dots,
                                          _by_heads(dx[..., :groups, :, :]), strict=True):  # fmt: skip
                    rows, keys = (..., block.rows, slice(None)), (..., block.keys, slice(None))
                    residuals = c[..., :-1][rows], d[..., block.rows], o[..., -1][..., block.rows]
                    found = _attend_backward(residuals, q[rows], k[keys], v[keys], block, scale)
                    for total, part in zip((dq[rows], dk[keys], dv[keys]), found, strict=True):
                        total += part
            if step > 0:
                if arriving is not None:
                    received = arriving.wait()
                    dkv = dkv if is_dry else dkv + received
                group.send(flat(dkv), (me + 1) % ranks if step < order.hops(owner, ranks) else owner)
        before = (me - 1 - step) % ranks
        arriving = receive(before, (me - 1) % ranks) if 0 < step < order.hops(before, ranks) else None
    hops = order.hops(me, ranks)
    if hops > 0:
        received = receive(me, (me + hops) % ranks).wait()
        if not is_dry:
            dx[..., groups:, :, :] += received
    return x if is_dry else dx.astype(dtype, copy=False)


@RING_ATTENTION.derivative
def _(t: Any, call: Call, x: Any, y: Any) -> Any:
    return composed.tangent(t, call, x, y)


def _visits(kv: Any, call: Call) -> Iterator[tuple[int, Any]]:
    """For each step of the ring the owner of the keys and values on this rank, and these; None if they do not come.

    The exchange for the next step runs while the caller computes.
    """
    group, order, extents = call.group, call.options.order, call.extents
    me, ranks = group.index, group.size
    held: Any = kv
    for step in range(ranks):
        owner, before = (me - step) % ranks, (me - 1 - step) % ranks
        arriving: Pending[Any] | None = None
        if step < order.hops(owner, ranks):
            group.send(flat(held), (me + 1) % ranks)
        if step < order.hops(before, ranks):
            shape = (*kv.shape[:-4], extents[before], *kv.shape[-3:])
            buffer = buffer_like(kv, shape, kv.dtype, group.dry)
            arriving = group.start(Request("recv", out=buffer, peer=(me - 1) % ranks))
        yield owner, held
        held = None if arriving is None else arriving.wait().reshape(shape)


def _wide(x: Any) -> Any:
    """Blocks of float16 are computed and added in float32, and rounded once."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _by_heads(x: Any) -> list[Any]:
    """Views [..., heads, tokens, width] of the slots of [..., tokens, slots, heads, width]."""
    return [x[..., i, :, :].swapaxes(-2, -3) for i in range(x.shape[-3])]


def _merge(out: Any, o: Any, log_sums: Any, is_first: bool) -> None:
    """Add the output of one more block to that of all keys so far; both end with the column of the logarithms."""
    if is_first:
        out[..., :-1], out[..., -1] = o, log_sums
        return
    total = np.logaddexp(out[..., -1], log_sums)
    out[..., :-1] *= np.exp(out[..., -1] - total)[..., None]
    out[..., :-1] += o * np.exp(log_sums - total)[..., None]
    out[..., -1] = total


# -- one block ---------------------------------------------------------------------------------------------------------


def _attend(q: Any, k: Any, v: Any, block: Block, scale: float) -> tuple[Any, Any]:
    """The output of a block, and the logarithms of the sums of its exponentials."""
    kernel = find("attention.attention_block", (q, k, v))
    if kernel is not None:
        found: tuple[Any, Any] = kernel.forward((q, k, v), (block.causal, scale), False)[0]
        return found
    scores = _scores(q, k, block, scale)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - top)
    total = e.sum(-1, keepdims=True)
    return e @ v / total, (np.log(total) + top)[..., 0]


def _attend_backward(residuals: Any, q: Any, k: Any, v: Any, block: Block, scale: float) -> Any:
    """The contributions of a block to dq, dk and dv; `residuals` are ct, D and L."""
    kernel = find("attention.attention_block", (q, k, v))
    if kernel is not None:
        return kernel.backward(residuals, None, (q, k, v), (block.causal, scale), (True, True, True), True)
    ct, dots, log_sums = residuals
    p = np.exp(_scores(q, k, block, scale) - log_sums[..., None])
    ds = p * (ct @ v.swapaxes(-1, -2) - dots[..., None]) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ ct


def _scores(q: Any, k: Any, block: Block, scale: float) -> Any:
    scores = (q * scale) @ k.swapaxes(-1, -2)
    if block.causal:
        later = np.cumsum(np.ones_like(scores), -1) > np.cumsum(np.ones_like(scores), -2)
        scores[later] = -np.inf
    return scores


# -- public functions --------------------------------------------------------------------------------------------------


def ring_self_attention(
    qkv: Any, axis: str, *, mask: Any = None, key_padding_mask: Any = None, causal: bool = True, zigzag: bool = False,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """V -> V, or Shard(tokens) -> the same: self-attention of a sequence whose parts the ranks of an axis hold.

    Formula: this rank's part of ``softmax(scale q k' + mask) v`` over the whole sequence. Adjoint: a second ring, see
    the module (V -> V, or Shard -> Shard).

    Parameters
    ----------
    qkv : Tensor or array, [..., tokens, 3, heads, width]
        Queries, keys and values of this rank's tokens. On other axes batches and heads may be sharded.
    axis : str
        The mesh axis along which the sequence is divided.
    mask : Tensor or array, broadcastable to [..., heads, tokens, keys], optional
        As for `ops.attention`: booleans, True where a query sees a key, or numbers that are added to the scores, which
        may require a gradient. Its keys are those of the whole sequence, in their own order. If it is the same on all
        ranks (``ag.constant(mask)``, I or R), its rows are all queries, too, or one; if it is Shard of them or Varying,
        those of this rank.
    key_padding_mask : Tensor or array, [..., keys], optional
        Booleans, True for a key that no query sees, or numbers that are added to the scores: in parts like the tokens,
        or whole on all ranks.
    causal : bool
        Whether each token attends only to its own and earlier positions.
    zigzag : bool
        The order of the tokens. With True, `qkv` is V, and its tokens are those of `zigzag_positions`: under a causal
        mask all ranks have equal work. With False it is ``Shard`` of the tokens, in parts of any extents (or V, if
        attention is not causal, where the order does not matter).
    scale : float, optional
        By default ``1 / sqrt(width)``.

    Returns
    -------
    Tensor, [..., tokens, heads, width]
        Zeros for a query that sees no key.

    Raises
    ------
    LayoutError
        The label of `qkv` on the axis does not fit the order, or another axis shards the tokens or the width. The keys
        of a mask are divided.
    ShapeError
        `qkv` does not have this form, or with `zigzag` and several ranks its tokens are odd in number. A mask does not
        broadcast.
    DtypeError
        `qkv` does not consist of real floating-point numbers, or a mask neither of these nor of booleans.

    Notes
    -----
    With p ranks and n bytes of keys and values a rank, forward p-1 messages of n bytes a rank, in all ``p (p-1) n``;
    backward twice as many bytes, since the cotangents travel too. Causal and contiguous, half of that: keys go to the
    later ranks only. Where a sweep is recorded, and in forward mode, the rules are compositions of `cc.permute` and
    plain operations, so derivatives of any order are exact. They compute the masked blocks too.

    With a mask all of it is such a composition, as a checkpoint: the tape keeps queries, keys, values and the mask, and
    backward runs the ring of the forward pass once more. A key padding mask in parts is gathered first.

    Source: Liu, Zaharia and Abbeel 2023, section 3.

    Examples
    --------
    >>> import numpy, collectives as cc
    >>> from parallel import context
    >>> qkv = numpy.random.default_rng(0).normal(size=(8, 3, 2, 4))
    >>> def program():
    ...     with cc.Mesh(cp=-1):
    ...         y = context.ring_self_attention(context.zigzag(qkv, "cp", dim=0), "cp", zigzag=True)
    ...         return context.unzigzag(y, "cp", dim=0).numpy()
    >>> bool(numpy.allclose(cc.run(program, ranks=1)[0], cc.run(program, ranks=2)[1]))
    True
    """
    name = "ring_self_attention"
    x, on = operand(qkv, axis, name)
    shape = tuple(x.array.shape)
    if len(shape) < 4 or shape[-3] != 3:
        raise ShapeError(f"{name}: an array of shape {shape}; needed: [..., tokens, 3, heads, width]")
    order, group = Order(bool(causal), bool(zigzag)), (..., 0, slice(None))
    return _attended(x, on, axis, order, scale, mask, key_padding_mask, name, group)


def ring_attention(
    q: Any, k: Any, v: Any, axis: str, *, mask: Any = None, key_padding_mask: Any = None, causal: bool = False,
    zigzag: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """V -> V, or Shard(tokens) -> the same: attention over a sequence whose parts the ranks of an axis hold.

    Formula: this rank's part of ``softmax(scale q k' + mask) v`` over the whole sequence. Adjoint: a second ring, see
    the module (V -> V, or Shard -> Shard).

    Parameters
    ----------
    q : Tensor or array, [..., heads, tokens, width]
    k, v : Tensor or array, [..., own, tokens, width]
        `own` must divide `heads`: each head of k and v serves ``heads / own`` consecutive query heads, and only the
        `own` heads travel.
    axis, mask, key_padding_mask, causal, zigzag, scale
        As for `ring_self_attention`.

    Returns
    -------
    Tensor, [..., heads, tokens, width]

    Raises
    ------
    ShapeError
        The shapes do not fit.
    LayoutError, DtypeError
        As for `ring_self_attention`.

    Notes
    -----
    q, k and v are copied into one array. Bytes and source as for `ring_self_attention`.

    Examples
    --------
    >>> import numpy, collectives as cc
    >>> from autograd import ops
    >>> from parallel import context
    >>> q, k, v = numpy.random.default_rng(0).normal(size=(3, 1, 2, 5, 4))
    >>> def program():
    ...     with cc.Mesh(cp=-1) as mesh:
    ...         rows = slice(*[(0, 3), (3, 5)][mesh.axis("cp").rank])
    ...         mine = [cc.from_local(x[:, :, rows], {"cp": cc.Shard(2)}) for x in (q, k, v)]
    ...         y = context.ring_attention(*mine, "cp", causal=True)
    ...         return cc.all_gather(y, "cp", 2).numpy()
    >>> bool(numpy.allclose(cc.run(program, ranks=2)[0], ops.attention(q, k, v, causal=True)))
    True
    """
    name = "ring_attention"
    (q, on), k, v = operand(q, axis, name), operand(k, axis, name)[0], operand(v, axis, name)[0]
    a, b, c = (tuple(map(int, x.array.shape)) for x in (q, k, v))
    fits = len(a) == len(b) > 2 and b == c and a[:-3] == b[:-3] and a[-2:] == b[-2:] and b[-3] and a[-3] % b[-3] == 0
    if not fits:
        raise ShapeError(
            f"{name}: q, k and v of shapes {a}, {b}, {c}; needed: [..., heads, tokens, width], and twice [..., own, "
            "tokens, width], with own a divisor of heads"
        )
    *lead, heads, tokens, width = q.shape
    own = k.shape[-3]
    grouped = ops.reshape(q, (*lead, own, a[-3] // b[-3], tokens, width))
    slots = [ops.swapaxes(grouped, -4, -2)]
    slots += [ops.expand_dims(ops.swapaxes(x, -3, -2), -3) for x in (k, v)]
    order = Order(bool(causal), bool(zigzag))
    y = _attended(ops.concatenate(slots, -3), on, axis, order, scale, mask, key_padding_mask, name)
    return ops.reshape(ops.swapaxes(y, -4, -2), (*lead, heads, tokens, width))


def _attended(
    x: Tensor, on: Axis, axis: Any, order: Order, scale: float | None, mask: Any, key_padding_mask: Any, name: str,
    key: tuple[Any, ...] = (...,),
) -> Tensor:  # fmt: skip
    """Attention: [..., tokens, groups, heads, width] of [..., tokens, slots, heads, width], or its item `key`."""
    array = x.array
    if array.dtype.kind != "f":
        raise DtypeError(f"{name}: queries and keys of {array.dtype}; needed: real floating-point numbers")  # fmt: skip
    dim, width = array.ndim - 4, int(array.shape[-1])
    check_other_axes(x, on, name)
    extents = extents_of_sequence(x, on, dim, order, name)
    scale = (1 / width**0.5 if width else 0.0) if scale is None else float(scale)
    call = on.call(dim=dim, extents=extents, dtype=array.dtype, options=Options(order, scale))
    seen = masks.with_key_padding(mask, key_padding_mask, on, axis, order, array.ndim - 1, name)
    if seen is None:
        return ops.getitem(RING_ATTENTION(x, call), (*key, slice(None, -1)))
    groups, heads = int(array.shape[-3]) - 2, int(array.shape[-2])
    full = (*map(int, array.shape[:dim]), groups * heads, int(array.shape[dim]), sum(extents))
    seen = masks.of_this_rank(seen, on, order, extents, full, name)
    *lead, of_mask, tokens, keys = (1, 1, 1, *seen.shape)[-max(seen.array.ndim, 3) :]
    inner = groups if of_mask != 1 else 1  # groups are the inner part of its heads
    split = ops.reshape(seen, (*lead, of_mask // inner, inner, tokens, keys))
    y: Tensor = checkpoint(_masked)(x, ops.swapaxes(split, -4, -3), call)
    return ops.getitem(y, (*key, slice(None)))


def _masked(x: Tensor, mask: Tensor, call: Call) -> Tensor:
    """`composed.masked` with the dtype and the labels of `x`; float16 is computed in float32, and rounded once."""
    assert x.layout is not None
    wide = np.float32 if call.dtype == np.float16 else call.dtype
    mask = mask if mask.array.dtype == bool else ops.astype(mask, wide)
    y: Tensor = ops.astype(composed.masked(ops.astype(x, wide), mask, call), call.dtype)
    for name in call.axes:
        label = x.layout[name]
        y = cast(y, name, to=label) if isinstance(label, Shard) else y
    return y


def check_other_axes(x: Tensor, on: Axis, name: str) -> None:
    """Raise LayoutError if [..., tokens, slots, heads, width] is P on another axis, or its tokens are cut there."""
    dim = x.array.ndim - 4
    assert x.layout is not None
    for axis, label in x.layout.items():
        if axis in on.names:
            continue
        if label is P:
            held, fix = "addends", f"cc.all_reduce(x, {axis!r}, to=R)"
        elif isinstance(label, Shard) and label.dim not in (*range(dim), dim + 2):
            held = "parts of the tokens" if label.dim == dim else "parts of the width"
            fix = f"cc.all_gather(x, {axis!r}, {label.dim})"
        else:
            continue
        raise LayoutError(
            f"{name}(x: {describe(x.array, x.array.shape, x.layout)}, axis {'*'.join(on.names)!r})\n"
            f"  axis {axis!r}: x is {label!r}: the ranks of this axis hold {held}; needed: whole values, or parts of "
            f"the batch or of the heads\n  fix: {fix} before it"
        )


def extents_of_sequence(x: Tensor, on: Axis, dim: int, order: Order, name: str) -> tuple[int, ...]:
    """The number of tokens of each rank; LayoutError if the label of `x` does not fit the order of the tokens."""
    assert x.layout is not None
    shown = f"{name}({x.name or 'x'}: {describe(x.array, x.array.shape, x.layout)}, axis {'*'.join(on.names)!r}, " + (
        "in zigzag order)" if order.zigzag else "in contiguous order)"
    )
    tokens = int(x.array.shape[dim])
    for axis in on.names:
        label = x.layout[axis]
        if label is V and (order.zigzag or not order.causal):
            continue
        if isinstance(label, Shard) and label.dim == dim and not order.zigzag:
            continue
        if isinstance(label, Shard) and label.dim != dim:
            why = f"its parts lie along dimension {label.dim}; needed: along dimension {dim}, that of the tokens"
            fix = f"divide the tokens of the batch along {axis!r}, and not dimension {label.dim}"
        elif isinstance(label, Shard):
            why = "its parts follow each other; needed: V, with the tokens in zigzag order"
            fix = f"context.zigzag(tokens, {axis!r}) where the batch is made, or zigzag=False here"
        elif label is V:
            why = "this does not tell the order of its tokens; needed: Shard of the tokens"
            fix = (
                f"cc.from_local(tokens, {{{axis!r}: Shard(1)}}) where the batch is made; or ring attention with "
                "zigzag=True, if they are in zigzag order"
            )
        else:
            why = "all ranks have the same tokens; needed: this rank's part of the sequence"
            part = "context.zigzag(tokens, {0!r})" if order.zigzag else "cc.shard(tokens, {0!r}, 1)"
            fix = f"{part.format(axis)} where the batch is made"
        raise LayoutError(f"{shown}\n  axis {axis!r}: x is {label.word}: {why}\n  fix: {fix}")
    if not order.zigzag:
        return extents_along(x, on, dim, RING_ATTENTION)[0]
    if tokens % 2 and on.size > 1:
        raise ShapeError(
            f"{shown}\n  this rank has {tokens} tokens; needed: two chunks of equal length\n  fix: context.zigzag("
            f"tokens, {on.names[0]!r}), which requires a multiple of {2 * on.size} tokens, or contiguous order"
        )
    return (tokens,) * on.size
