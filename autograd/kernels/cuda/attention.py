"""Attention in tiles, without a matrix of scores in memory: forward keeps the output and a number for each row.

Operands are views of [..., heads, tokens, width] with any strides. They are copied only where their last dimension is
strided, or where several leading dimensions cannot be one. Rows are loaded fastest if their addresses and widths are
multiples of 16 bytes. Products use tensor cores: of float16 and bfloat16 with sums in float32, of float64 in float64.
For float32 each operand is split into two numbers of TF32, and a product is the sum of three, which is almost as exact
as float32. With `arrays.allow_tf32` it is one product.

The cotangents are computed by two kernels, of the queries and of the keys, so that they are the same each time; both
compute the scores. Adding the queries' cotangents by atomics in the second would save two of seven products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...arrays import tf32_allowed
from ...arrays.runtime import Program
from ..attention import kernels_of
from .program import Launch, launch_known, program, type_name, wide

WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256)
"""The widths of tiles. Operands of other widths have the next larger one, filled with zeros."""


class Tile(NamedTuple):
    """The rows of queries and of keys in a step of a block, its warps, and how many blocks share a multiprocessor.

    Each warp computes 16 or 32 rows: of queries, or in `KEYS` of keys. The compiler leaves registers for `blocks`.
    """

    queries: int
    keys: int
    warps: int
    blocks: int


# By bytes of an element, the tiles for widths up to 64, 128 and 256. A block needs at most 163 KiB of shared memory.
# After a change at run time: _kernels.cache_clear().
FORWARD = {
    2: (Tile(128, 64, 4, 2), Tile(128, 64, 4, 2), Tile(64, 32, 4, 2)),
    4: (Tile(128, 32, 4, 2), Tile(64, 32, 4, 2), Tile(64, 16, 4, 1)),
    8: (Tile(64, 16, 4, 1), Tile(64, 16, 4, 1)),
}
QUERIES = {
    2: (Tile(128, 64, 4, 2), Tile(128, 32, 4, 2), Tile(64, 16, 4, 2)),
    4: (Tile(128, 32, 4, 2), Tile(64, 16, 4, 2), Tile(32, 16, 2, 1)),
    8: (Tile(64, 16, 4, 1), Tile(32, 16, 2, 1)),
}
KEYS = {
    2: (Tile(32, 128, 4, 2), Tile(64, 128, 8, 1), Tile(16, 64, 4, 2)),
    4: (Tile(32, 64, 4, 2), Tile(16, 64, 4, 2), Tile(16, 32, 2, 1)),
    8: (Tile(16, 64, 4, 1), Tile(16, 32, 2, 1)),
}
ROWS_PER_BLOCK = 8
"""Rows of one block of ``row_terms``, one for each of its warps."""

_NONE, _BOOLEANS, _ADDENDS = range(3)


class _Kernels(NamedTuple):
    """The kernels for one type of products, width and kind of mask, with their tiles."""

    program: Program
    forward: Tile
    queries: Tile
    keys: Tile
    row_bytes: int
    """Of a row in shared memory, 16 more than its elements have: then reading columns has no bank conflicts."""

    def name(self, part: str) -> str:
        """The kernel whose name begins so."""
        return next(name for name in self.program.kernels if name.startswith(part))


def kernels(dtype: Any, width: int, mask: int) -> _Kernels:
    """The kernels for operands of a dtype, whose largest width this is, and for no mask (0), booleans or addends."""
    return _kernels(dtype, width, mask, dtype.name == "float32" and tf32_allowed())


@cache  # of dtypes, widths and masks; without it each call of attention takes 4 us more
def _kernels(dtype: Any, width: int, mask: int, is_tf32: bool) -> _Kernels:
    kind = "Tf32" if is_tf32 else type_name(dtype)
    size = dtype.itemsize
    full = next(w for w in WIDTHS if w >= width)
    forward, queries, keys = (table[size][(full > 64) + (full > 128)] for table in (FORWARD, QUERIES, KEYS))
    if mask:  # addresses of its elements take registers: each warp computes 16 rows
        forward, queries = (tile._replace(queries=16 * tile.warps) for tile in (forward, queries))
        keys = keys._replace(keys=16 * keys.warps)
    # the registers hold the sums of both, or of one at a time
    parts = (3,) if full <= (64 if size == 8 else 128) else (1, 2)

    def named(name: str, tile: Tile, *rest: int) -> str:
        return f"{name}<{', '.join(map(str, (kind, full, *tile, mask, *rest)))}>"

    names = (
        named("attend", forward), named("attend_queries", queries), *(named("attend_keys", keys, p) for p in parts),
        f"row_terms<{type_name(dtype)}>",
    )  # fmt: skip
    made = program(f"attention_{kind}_{full}_{mask}", names, ("matrix.cuh", "attention.cu"))
    return _Kernels(made, forward, queries, keys, full * size + 16)


def takes(xs: Sequence[Any]) -> bool:
    """Whether there are kernels for operands of these widths: up to 256, in float64 up to 128."""
    width = max(x.shape[-1] for x in (xs if len(xs) < 3 else xs[:3:2]))
    return bool(width <= (128 if xs[0].itemsize == 8 else 256))


# -- operands ----------------------------------------------------------------------------------------------------------


def _four(x: Any) -> Any:
    """A view [batch, heads, tokens, width] whose last dimension is contiguous; a copy where there is none."""
    if x.ndim != 4:
        x = x.reshape(prod(x.shape[:-3]), *x.shape[-3:])
    return x if x.strides[-1] == x.itemsize or x.shape[-1] < 2 else x.copy()


def _strides(*xs: Any) -> list[Any]:
    """The strides, in elements, of all dimensions but the last; zeros in the place of None."""
    return [np.int64(s // x.itemsize if s else 0) for x in xs for s in ((0,) * 3 if x is None else x.strides[:-1])]


def _key(*xs: Any) -> tuple[Any, ...]:
    """The shapes and strides of arrays, None among them."""
    return tuple([None if x is None else (x.shape, x.strides) for x in xs])


def _mask(mask: Any, q: Any) -> tuple[Any, tuple[int, ...], int]:
    """The mask or None, its four strides in elements, zero where it is broadcast, and its kind."""
    if mask is None:
        return None, (0, 0, 0, 0), _NONE
    lead = q.shape[:-3]
    mask = mask.reshape((1,) * (q.ndim - mask.ndim) + mask.shape)
    if prod(mask.shape[:-3]) != 1:
        mask = np.broadcast_to(mask, (*lead, *mask.shape[-3:]))
    mask = mask.reshape(prod(mask.shape[:-3]), *mask.shape[-3:])
    strides = tuple(0 if n == 1 else s // mask.itemsize for n, s in zip(mask.shape, mask.strides, strict=True))
    return mask, strides, _BOOLEANS if mask.dtype == bool else _ADDENDS


def _sizes(q: Any, k: Any, v: Any, causal: bool, scale: float) -> list[Any]:
    """The last arguments of the kernels. Query i attends to the keys up to i + reach."""
    heads, queries, width = q.shape[-3:]
    own, keys = k.shape[-3:-1]
    reach = keys - queries if causal else keys
    numbers = (heads, heads // own if own else 1, queries, keys, width, v.shape[-1], reach)
    return [*map(np.int32, numbers), wide(q.dtype).type(scale)]


# -- forward and backward ----------------------------------------------------------------------------------------------


def attend(
    q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, out: Any, keep: bool, log_sums: Any = None
) -> Any:
    """Write the output to `out`, and the logarithms of the sums of exponentials to `log_sums`, contiguous if given.

    They are what is kept for backward.
    """
    if keep:
        log_sums = np.empty_like(q, wide(q.dtype), shape=q.shape[:-1], order="C")
    mask, mask_strides, kind = _mask(mask, q)
    found = kernels(q.dtype, max(q.shape[-1], v.shape[-1]), kind)
    q, k, v, out = map(_four, (q, k, v, out))

    def make() -> Launch:
        tile = found.forward
        grid = (-(-q.shape[2] // tile.queries) * q.shape[1] * q.shape[0],)
        numbers = *_strides(q, k, v), *map(np.int64, mask_strides), *_strides(out), *_sizes(q, k, v, causal, scale)
        shared = (tile.queries + 4 * tile.keys) * found.row_bytes
        return Launch(grid, (32 * tile.warps,), (*[None] * 6, *numbers), shared)

    key = _key(q, k, v, out), mask_strides, causal, scale
    launch_known(found.program, found.name("attend<"), key, make, q, k, v, mask, out, log_sums)
    return log_sums


def attend_backward(
    ct: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, out: Any, kept: Any,
    dq: Any, dk: Any, dv: Any, log_sums: Any = None, dots: Any = None,
) -> None:  # fmt: skip
    """Write the cotangents to `dq`, `dk` and `dv`, except for those that are None.

    For a block, `log_sums` are those of all keys, and `dots` are the row sums of ``ct * out``; `out` is not read.
    """
    if dots is None:
        log_sums = kept
    else:
        dots, log_sums = (x.astype(wide(q.dtype), order="C") for x in (dots, log_sums))
    mask, mask_strides, kind = _mask(mask, q)
    found = kernels(q.dtype, max(q.shape[-1], v.shape[-1]), kind)
    ct, q, k, v = map(_four, (ct, q, k, v))
    out, dq, dk, dv = (None if x is None else _four(x) for x in (out, dq, dk, dv))
    batch, heads, queries, _ = q.shape
    terms = [np.empty_like(q, shape=(batch, heads, queries), dtype=wide(q.dtype), order="C") for _ in range(2)]
    rows = batch * heads * queries

    def make_terms() -> Launch:
        sizes = np.int64(rows), np.int32(heads), np.int32(queries), np.int32(v.shape[-1])
        grid = (min(-(-rows // ROWS_PER_BLOCK), 1 << 20),)
        return Launch(grid, (32 * ROWS_PER_BLOCK,), (*[None] * 6, *_strides(ct, out), *sizes))

    def numbers(*results: Any) -> list[Any]:
        strides = *_strides(ct, q, k, v), *map(np.int64, mask_strides), *_strides(*results)
        return [*strides, *_sizes(q, k, v, causal, scale)]

    def make_queries() -> Launch:
        tile = found.queries
        grid = (-(-queries // tile.queries) * heads * batch,)
        shared = (2 * tile.queries + 4 * tile.keys) * found.row_bytes
        return Launch(grid, (32 * tile.warps,), (*[None] * 8, *numbers(dq)), shared)

    def make_keys() -> Launch:
        tile = found.keys
        grid = (-(-k.shape[2] // tile.keys) * k.shape[1] * batch,)
        shared = (2 * tile.keys + 4 * tile.queries) * found.row_bytes + 4 * tile.queries * terms[0].itemsize
        return Launch(grid, (32 * tile.warps,), (*[None] * 9, *numbers(dk, dv)), shared)

    launch_known(found.program, found.name("row_terms"), _key(ct, out, v), make_terms, ct, out, dots, log_sums, *terms)
    given, key = (ct, q, k, v, mask, *terms), (_key(ct, q, k, v), mask_strides, causal, scale)
    if dq is not None:
        launch_known(found.program, found.name("attend_queries"), (key, _key(dq)), make_queries, *given, dq)
    if dk is None and dv is None:
        return
    for name in found.program.kernels:
        if name.startswith("attend_keys"):
            launch_known(found.program, name, (key, _key(dk, dv)), make_keys, *given, dk, dv)


attention_kernel, self_attention_kernel, attention_block_kernel = kernels_of(attend, attend_backward, takes)
