"""The bias of linear layers with the activation after it in one pass, and the gradients of both in another one.

Forward reads the product and writes the result, which may take its place. Backward reads the cotangent and what forward
kept, and writes the cotangent of the product; the gradient of the bias is summed on the way. The sum of the product and
the bias is rounded to the dtype before the activation, and so is the cotangent before it is summed: each number is the
one that separate operations compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arrays.products import product
from .. import Kernel
from .columns import sum_groups
from .program import TYPES, Launch, has_type, launch_known, program, type_name, wide
from .rows import BLOCK_THREADS, PACK_BYTES, contiguous, matrix

__all__ = ["activated", "activated_backward", "add_bias", "column_sums"]

ACTIVATIONS = ("Plain", "Relu", "GeluTanh", "GeluErf", "Silu")
PROGRAM = program(
    "biases",
    (*(f"{kernel}<{name}, {f}>" for kernel in ("add_bias", "add_bias_backward") for name in TYPES for f in ACTIVATIONS),
     *(f"sums_of_groups<{name}>" for name in TYPES)),
    ("rows.cuh", "columns.cuh", "activations.cuh", "biases.cu"),
)  # fmt: skip
AT_ONCE = 4
"""Rows that a thread reads together; biases.cu has the same number."""
BLOCKS = 1056
"""Blocks that add up groups of rows, at most: eight for each of the 132 multiprocessors of an H200. It does not depend
on the device, so that the sums do not either."""
FEW = 8
"""Rows of a thread, at most, where one group has them all, and its sums need no second kernel."""


def _block(width: int, itemsize: int) -> tuple[int, tuple[int, int]]:
    """The blocks that a row of packs needs, and the threads of a block: packs by rows."""
    packs = -(-width * itemsize // PACK_BYTES)
    threads = min(32, max(8, 1 << (packs - 1).bit_length()))
    return -(-packs // threads), (threads, BLOCK_THREADS // threads)


def activated(x: Any, bias: Any, y: Any, activation: str) -> None:
    """Write ``f(x + bias)`` to `y`, which may be `x`; both are contiguous matrices."""
    n, width = x.shape

    def make() -> Launch:
        columns, block = _block(width, x.itemsize)
        grid = columns, min(-(-n // (block[1] * AT_ONCE)), 65535)
        return Launch(grid, block, (None, None, None, np.int64(n), np.int32(width)))

    if x.size:
        launch_known(PROGRAM, f"add_bias<{type_name(x.dtype)}, {activation}>", x.shape, make, x, bias, y)


def activated_backward(ct: Any, x: Any, bias: Any, g: Any, activation: str) -> Any:
    """Write ``ct f'(x + bias)`` to `g`, unless `x` is None, and return its sums over the rows. All are contiguous."""
    (n, width), name = ct.shape, type_name(ct.dtype)
    sums = np.empty_like(ct, shape=(width,))
    if not ct.size:
        sums.fill(0)
        return sums
    columns, block = _block(width, ct.itemsize)
    many = min(-(-n // (block[1] * AT_ONCE)), max(1, BLOCKS // columns))
    groups = 1 if n <= block[1] * FEW else many  # of rows that are added up, `columns` beside each other
    parts = None if groups == 1 else np.empty_like(ct, wide(ct.dtype), shape=(groups, 1, width))

    def make() -> Launch:
        return Launch((columns, groups), block, (*[None] * 6, np.int64(n), np.int32(width)))

    given = ct, x, bias, g, parts, sums
    launch_known(PROGRAM, f"add_bias_backward<{name}, {activation}>", (ct.shape, groups), make, *given)
    if parts is not None:
        sum_groups(PROGRAM, parts, sums)
    return sums


def add_bias(x: Any, bias: Any) -> Any:
    """``x + bias`` of the last dimension, in the place of `x`, which nothing else uses; None where no kernel fits."""
    is_fit = x.ndim > 1 and bias.ndim == 1 and x.shape[-1] == bias.shape[0] and x.dtype == bias.dtype
    if not is_fit or not has_type(x.dtype) or not x.flags.c_contiguous:
        return None
    rows = matrix(x)
    activated(rows, contiguous(bias), rows, "Plain")
    return x


def column_sums(x: Any) -> Any:
    """The sums over all dimensions but the last; None where no kernel fits, or has a thread for each of few columns.

    They are made in float32 (in float64 of float64), in a fixed order, and rounded once.
    """
    if x.ndim < 2 or not has_type(x.dtype) or (x.shape[-1] * x.itemsize < 64 and x.size > 1 << 16):
        return None
    return activated_backward(matrix(x), None, None, None, "Plain")


# -- linear layers with an activation ----------------------------------------------------------------------------------


def _takes(xs: Sequence[Any]) -> bool:
    x, w, b = xs
    return bool(x.ndim > 1 and w.ndim == 2 and w.shape[1:] == b.shape and x.dtype == w.dtype == b.dtype)


def _kernel(activation: str) -> Kernel:
    """The kernel of ``f(x @ w + b)``. The rectifier keeps its result, the others the product without the bias."""
    keeps_result = activation == "Relu"

    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        x, w, b = xs
        h = product(x, w)
        rows = matrix(h)
        y = rows if keeps_result or not keep else np.empty_like(rows)
        activated(rows, contiguous(b), y, activation)
        return y.reshape(h.shape), (y if keeps_result else rows) if keep else None

    def backward(
        ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        x, w, b = xs
        g = kept if last and not keeps_result else np.empty_like(kept)
        sums = activated_backward(matrix(ct), kept, None if keeps_result else contiguous(b), g, activation)
        dx = product(g, w.T).reshape(x.shape) if wanted[0] else None
        dw = product(x.reshape(len(g), x.shape[-1]).T, g) if wanted[1] else None
        return dx, dw, sums if wanted[2] else None

    return Kernel(forward, backward, _takes)


linear_relu_kernel = _kernel("Relu")
linear_gelu_tanh_kernel = _kernel("GeluTanh")
linear_gelu_kernel = _kernel("GeluErf")
linear_silu_kernel = _kernel("Silu")
