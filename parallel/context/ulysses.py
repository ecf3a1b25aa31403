"""Attention by exchange: parts of the sequence become parts of the heads, and attention is local.

Before attention an all_to_all gives each rank all tokens of some heads, and after it another one gives each rank its
own tokens of all heads. So the mask, the positions and the kernel are those of one process. The number of ranks is
limited by the number of heads.

Source: Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autograd import ops
from autograd.engine.tensor import Tensor
from autograd.errors import ShapeError
from autograd.layouts.layout import Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.partition import nested_parts
from collectives import cast
from collectives.ops.arguments import operand, sizes_of
from collectives.ops.parts import ALL_TO_ALL

from . import masks
from .order import Order
from .ring import check_other_axes, extents_of_sequence

__all__ = ["ulysses_self_attention"]


def ulysses_self_attention(
    qkv: Any, axis: str, *, mask: Any = None, key_padding_mask: Any = None, causal: bool = True,
    scale: float | None = None, rotate: Callable[[Any], Any] | None = None,
) -> Tensor:  # fmt: skip
    """Shard(tokens) -> Shard(tokens): self-attention of a sequence whose parts the ranks of an axis hold.

    Formula: this rank's part of ``softmax(scale q k' + mask) v`` over the whole sequence. Adjoint: that of attention,
    between the same two exchanges (Shard -> Shard).

    Parameters
    ----------
    qkv : Tensor, [..., tokens, 3, heads, width]
        Queries, keys and values of this rank's tokens, in contiguous order: parts of any extents. On other axes
        batches and heads may be sharded.
    axis : str
        The mesh axis along which the sequence is divided.
    mask, key_padding_mask : Tensor or array, optional
        As for `ring_self_attention`. A mask in parts of the queries is gathered, so each rank holds all of its rows.
    causal : bool
        Whether each token attends only to its own and earlier positions.
    scale : float, optional
        By default ``1 / sqrt(width)``.
    rotate : callable, optional
        Applied to ``[..., all tokens, 3, some heads, width]`` between the exchange and attention, for example a rotary
        embedding. The positions of the tokens are 0, 1, ...

    Returns
    -------
    Tensor, [..., tokens, heads, width]

    Raises
    ------
    ShapeError
        `qkv` does not have this form, or this rank's heads are fewer than the ranks of the axis. A mask does not
        broadcast.
    LayoutError
        `qkv` is not Shard of the tokens, or another axis shards the tokens or the width. The keys of a mask are
        divided.
    DtypeError
        A mask consists neither of booleans nor of floating-point numbers.

    Notes
    -----
    With n bytes of queries, keys and values of all tokens and heads, p ranks: ``n (p-1)/p²`` bytes a rank before
    attention and a third of it after; backward the same. Heads that p does not divide are split as by
    ``numpy.array_split``, so that the work is uneven. Source: Jacobs et al. 2023, section 3.

    Examples
    --------
    >>> import numpy, autograd as ag, collectives as cc
    >>> from autograd import ops
    >>> from parallel import context
    >>> qkv = numpy.random.default_rng(0).normal(size=(8, 3, 2, 4))
    >>> def program():
    ...     with cc.Mesh(cp=-1):
    ...         x = cc.shard(ag.constant(qkv), "cp", 0)
    ...         return cc.all_gather(context.ulysses_self_attention(x, "cp"), "cp", 0).numpy()
    >>> bool(numpy.allclose(cc.run(program, ranks=2)[0], ops.self_attention(qkv, causal=True)))
    True
    """
    name = "ulysses_self_attention"
    x, on = operand(qkv, axis, name)
    shape, layout = tuple(x.array.shape), x.layout
    assert layout is not None
    if len(shape) < 4 or shape[-3] != 3:
        raise ShapeError(f"{name}: an array of shape {shape}; needed: [..., tokens, 3, heads, width]")
    dim, heads = len(shape) - 4, len(shape) - 2
    check_other_axes(x, on, name)
    order = Order(causal=True, zigzag=False)
    extents = extents_of_sequence(x, on, dim, order, name)
    if int(shape[heads]) < on.size:
        raise ShapeError(
            f"{name}({x.name or 'x'}: {describe(x.array, shape, layout)}, axis {'*'.join(on.names)!r}): this rank has "
            f"{int(shape[heads])} heads; needed: one for each of the {on.size} ranks of the axis, or more\n"
            "  fix: ring attention, which does not divide the heads: Ring(axis)"
        )
    # On other axes the heads are V in between: cut on both axes, they would be parts of parts in an order of their own.
    others = [(a, label) for a, label in layout.items() if isinstance(label, Shard) and label.dim == heads]
    for other, _ in others:
        x = cast(x, other, to=V)
    cuts = nested_parts(int(shape[heads]), sizes_of(on))
    seen = masks.with_key_padding(mask, key_padding_mask, on, axis, order, len(shape) - 1, name)
    if seen is not None:
        full = (*map(int, shape[:dim]), int(shape[heads]), sum(extents), sum(extents))
        first = sum(cuts[: on.group.index])
        mine = slice(first, first + cuts[on.group.index])
        seen = masks.all_rows(seen, on, axis, full, extents, mine, name)
    x = ALL_TO_ALL(x, on.call(dim=heads, extents=cuts, dim2=dim, extents2=extents))
    y = ops.self_attention(x if rotate is None else rotate(x), seen, causal=bool(causal), scale=scale)
    y = ALL_TO_ALL(y, on.call(dim=dim, extents=extents, dim2=heads - 1, extents2=cuts))
    for other, label in others:
        y = cast(y, other, to=label.on(heads - 1))
    return y
