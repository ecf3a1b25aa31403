"""Which tokens each rank holds, in contiguous and in zigzag order, and which blocks of attention it computes.

In contiguous order rank r holds the r-th part of the sequence. Under a causal mask the first rank then attends to its
own part only, and the last one to all parts. In zigzag order the sequence is cut into 2p chunks, and rank r holds the
chunks r and 2p-1-r, so all ranks have the same work at every step of a ring:

    p = 3       contiguous     zigzag
    rank 0      0 1            0 5
    rank 1      2 3            1 4
    rank 2      4 5            2 3

A value in zigzag order is V on the axis: its parts do not follow each other, so no Shard describes them.

Source: the zigzag order is that of Brandon et al. 2023 (Striped Attention, which interleaves single tokens) as it is
used in the training of Llama 3 (Dubey et al. 2024, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from operator import index
from typing import Any, NamedTuple

import numpy as np

import autograd.numpy as anp
from autograd import constant, random
from autograd.arrays.plain import require_plain
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS
from autograd.errors import LayoutError, ShapeError, typed_errors
from autograd.layouts.layout import I, P, R, Shard, V
from autograd.layouts.messages import describe
from collectives import all_gather, cast, current_mesh

__all__ = [
    "Block", "Order", "unzigzag", "zigzag", "zigzag_draws", "zigzag_inverse", "zigzag_order", "zigzag_pieces",
    "zigzag_positions",
]  # fmt: skip

EVERYTHING = slice(None)


class Block(NamedTuple):
    """The queries and the keys of one block of attention, and whether it is causal (else all see all)."""

    rows: slice
    keys: slice
    causal: bool


@typed_errors
class Order(NamedTuple):
    """The order of the tokens, and whether queries attend to earlier keys only."""

    causal: bool
    zigzag: bool

    def block(self, rank: int, owner: int, tokens: int) -> Block | None:
        """The block of `rank` with the keys of `owner`, if both have `tokens` tokens; None if all are masked.

        Without zigzag the numbers of tokens may differ.

        Examples
        --------
        >>> Order(causal=True, zigzag=True).block(rank=0, owner=1, tokens=4)
        Block(rows=slice(2, None, None), keys=slice(None, None, None), causal=False)
        >>> Order(causal=True, zigzag=False).block(rank=0, owner=1, tokens=4) is None
        True
        """
        if not self.causal or owner == rank:  # a rank's own tokens are in ascending order, with zigzag too
            return Block(EVERYTHING, EVERYTHING, self.causal)
        if not self.zigzag:
            return Block(EVERYTHING, EVERYTHING, False) if owner < rank else None
        half = tokens // 2
        if owner < rank:  # both chunks come after the owner's first one, and before its second one
            return Block(EVERYTHING, slice(None, half), False)
        return Block(slice(half, None), EVERYTHING, False)  # the second chunk comes after both of the owner's

    def hops(self, owner: int, ranks: int) -> int:
        """The number of ranks that the keys of `owner` visit: the next ones, as long as they are not masked there."""
        return ranks - 1 - owner if self.causal and not self.zigzag else ranks - 1

    def pieces(self, rank: int, extents: tuple[int, ...]) -> tuple[slice, ...]:
        """The pieces of the sequence that a rank holds, if the ranks hold `extents` tokens."""
        if self.zigzag:
            return zigzag_pieces(sum(extents), rank, len(extents))
        start = [0, *accumulate(extents)][rank]
        return (slice(start, start + extents[rank]),)

    def positions(self, rank: int, extents: tuple[int, ...]) -> Any:
        """The places in the sequence of the tokens of a rank, if the ranks hold `extents` tokens."""
        return np.concatenate([np.arange(p.start, p.stop) for p in self.pieces(rank, extents)])


# -- zigzag ------------------------------------------------------------------------------------------------------------


def _chunk(tokens: int, ranks: int) -> int:
    """The length of a chunk."""
    if tokens % (2 * ranks):
        raise ShapeError(
            f"zigzag: {tokens} tokens were given for {ranks} ranks; needed: a multiple of {2 * ranks}, so that each "
            f"rank gets two chunks of equal length\n  fix: padding to {tokens + -tokens % (2 * ranks)} tokens, or "
            "contiguous order, Ring(axis, zigzag=False)"
        )
    return tokens // (2 * ranks)


@typed_errors
def zigzag_pieces(tokens: int, rank: int, ranks: int) -> tuple[slice, ...]:
    """The pieces of a sequence that a rank holds in zigzag order, in the order in which it holds them.

    Raises
    ------
    ShapeError
        There are several ranks, and `tokens` is not a multiple of twice their number.

    Examples
    --------
    >>> zigzag_pieces(12, rank=1, ranks=3)
    (slice(2, 4, None), slice(8, 10, None))
    """
    if ranks == 1:
        return (slice(0, tokens),)
    n = _chunk(tokens, ranks)
    return tuple(slice(i * n, (i + 1) * n) for i in (rank, 2 * ranks - 1 - rank))


@typed_errors
def zigzag_positions(tokens: int, rank: int, ranks: int) -> Any:
    """The places in the sequence of a rank's tokens in zigzag order, ascending, for example for rotary embeddings.

    Examples
    --------
    >>> zigzag_positions(12, rank=1, ranks=3)
    array([2, 3, 8, 9])
    """
    pieces = zigzag_pieces(index(tokens), index(rank), index(ranks))
    return np.concatenate([np.arange(p.start, p.stop) for p in pieces])


@typed_errors
def zigzag_order(tokens: int, ranks: int) -> Any:
    """The sequence in zigzag order: the positions of all ranks' tokens, one rank after another.

    ``x[zigzag_order(len(x), p)]`` is the concatenation of the ranks' parts of x.

    Examples
    --------
    >>> zigzag_order(8, 2)
    array([0, 1, 6, 7, 2, 3, 4, 5])
    """
    return np.concatenate([zigzag_positions(tokens, rank, ranks) for rank in range(index(ranks))])


@typed_errors
def zigzag_inverse(tokens: int, ranks: int) -> Any:
    """The inverse of `zigzag_order`: the place of each token in the concatenation of the ranks' parts.

    Examples
    --------
    >>> zigzag_order(8, 2)[zigzag_inverse(8, 2)]
    array([0, 1, 2, 3, 4, 5, 6, 7])
    """
    return np.argsort(zigzag_order(tokens, ranks))


@typed_errors
def zigzag(x: Any, axis: str, dim: int = 1) -> Any:
    """R, I or constant -> V: this rank's part of a sequence, in zigzag order. It sends nothing forward.

    Use it for the tokens and the targets of a batch, alike. Formula: ``y_r = x[zigzag_positions(tokens, r, p)]`` along
    `dim`. Adjoint: the cotangent at the same places, zeros elsewhere (V -> P); for I an all-reduce follows (P -> I).

    Parameters
    ----------
    x : Tensor or array
        The whole sequence, the same on all ranks of the axis. A plain array gives a plain array, which is V on every
        axis where it meets a Tensor.
    axis : str
    dim : int
        The dimension of the tokens.

    Returns
    -------
    Tensor or array
        V on the axis, with a p-th of the tokens. Without a mesh, `x` itself.

    Raises
    ------
    ShapeError
        The axis has p > 1 ranks, and the number of tokens is not a multiple of 2p.
    LayoutError
        `x` is V, P or Shard on the axis.

    Examples
    --------
    >>> import numpy, collectives as cc
    >>> from parallel import context
    >>> def program():
    ...     with cc.Mesh(cp=2):
    ...         return context.zigzag(numpy.arange(8), "cp", dim=0).tolist()
    >>> cc.run(program, ranks=2)
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    if state.mesh is None:
        return x
    on = current_mesh().axis(axis)
    is_tensor = x.__class__ in TENSORS
    if not is_tensor:
        require_plain(x, "zigzag")
    array = x.array if is_tensor else np.asarray(x)
    if not -array.ndim <= dim < array.ndim:
        raise ShapeError(f"zigzag: dim={dim} was given for an array of shape {array.shape}; needed: that of the tokens")
    dim %= array.ndim
    if not is_tensor:
        return np.take(array, zigzag_positions(array.shape[dim], on.group.index, on.size), dim)
    layout = x.layout or x.labelled(state.grid)
    for name in on.names:
        have = layout[name]
        if have is V or have is P or isinstance(have, Shard):
            raise LayoutError(
                f"zigzag({x.name or 'x'}: {describe(array, array.shape, layout)}, axis {name!r})\n"
                f"  axis {name!r}: x is {have.word}; needed: the whole sequence on every rank, I or R\n"
                f"  fix: cc.from_local(x, {{..., {name!r}: I}}), if it is the whole sequence"
            )
        if have is I:
            x = cast(x, name, to=R)
    ranks, rank = on.size, on.rank  # a number that knows its axis, so that the slices are V
    n = _chunk(array.shape[dim], ranks) if ranks > 1 else 0
    chunks = (rank, 2 * ranks - 1 - rank) if ranks > 1 else ()
    lead = (EVERYTHING,) * dim
    parts = [x[(*lead, slice(i * n, (i + 1) * n))] for i in chunks] or [cast(x, axis, to=V)]
    return anp.concatenate(parts, dim) if len(parts) > 1 else parts[0]


def unzigzag(x: Any, axis: str, dim: int = 1) -> Any:
    """V -> R: the whole sequence in its own order, from the ranks' parts in zigzag order.

    Formula: ``y = concatenate(x_0, ..., x_{p-1})[zigzag_inverse(tokens, p)]``. Adjoint: a reduce-scatter (P -> V).

    Parameters
    ----------
    x : Tensor or array, V
    axis : str
    dim : int
        The dimension of the tokens.

    Returns
    -------
    Tensor or array
        R on the axis. Without a mesh, `x` itself.

    Raises
    ------
    ShapeError
        There are p > 1 ranks, and the number of all tokens is not a multiple of 2p.
    LayoutError
        `x` is not V on the axis.

    Notes
    -----
    An all_gather: ``n (p-1)/p`` bytes per rank for a result of n bytes.

    Examples
    --------
    >>> import numpy, collectives as cc
    >>> from parallel import context
    >>> def program():
    ...     with cc.Mesh(cp=2):
    ...         part = context.zigzag(numpy.arange(8.0), "cp", dim=0)
    ...         return context.unzigzag(part, "cp", dim=0).numpy().tolist()
    >>> cc.run(program, ranks=2)[0]
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    if state.mesh is None:
        return x
    if x.__class__ in TENSORS and x.layout is not None:
        for name in current_mesh().axis(axis).names:
            if isinstance(x.layout[name], Shard):
                raise LayoutError(
                    f"unzigzag({x.name or 'x'}: {describe(x.array, x.array.shape, x.layout)}, axis {name!r})\n"
                    f"  axis {name!r}: x is {x.layout[name]!r}: its parts follow each other, in contiguous order; "
                    f"needed: V\n  fix: cc.all_gather(x, {name!r}, {dim})"
                )
    whole = all_gather(x, axis, dim)
    ranks = current_mesh().axis(axis).size
    dim %= whole.array.ndim
    if ranks == 1:
        return whole
    return whole[(*(EVERYTHING,) * dim, constant(zigzag_inverse(whole.array.shape[dim], ranks)))]


@contextmanager
@typed_errors
def zigzag_draws(axis: str, tokens: int, dim: int = 1) -> Iterator[None]:
    """In the block, dropout of values in zigzag order drops the elements that it drops in the whole sequence.

    A value in zigzag order is V, so its label does not tell which elements of the logical tensor a rank holds. Keys
    that `random.next_key` makes in the block carry this (`random.placed`). A checkpoint replays it.

    Parameters
    ----------
    axis : str
    tokens : int
        The number of all tokens.
    dim : int
        The dimension of the tokens, in every value that dropout gets.

    Raises
    ------
    ShapeError
        The axis has p > 1 ranks, and `tokens` is not a multiple of 2p. At a draw: the value does not have ``tokens /
        p`` tokens along `dim`.

    Examples
    --------
    >>> import numpy, collectives as cc
    >>> from autograd import nn, random
    >>> from parallel import context
    >>> def program():
    ...     random.seed(3)
    ...     with cc.Mesh(cp=-1), context.zigzag_draws("cp", tokens=8, dim=0):
    ...         y = nn.Dropout(0.5)(context.zigzag(numpy.ones(8), "cp", dim=0))
    ...         return context.unzigzag(y, "cp", dim=0).numpy().tolist()
    >>> cc.run(program, ranks=1)[0] == cc.run(program, ranks=2)[0]
    True
    """
    if state.mesh is None:
        yield
        return
    on = current_mesh().axis(axis)
    (name,) = on.names
    with random.placed(name, dim, zigzag_pieces(tokens, on.group.index, on.size), tokens):
        yield
