"""Layer norm and RMS norm over the last dimension. Two numbers per row are kept for backward, which reads x again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import Kernel
from .columns import sum_groups
from .program import TYPES, launch_known, program, type_name, wide
from .rows import BLOCK_THREADS, PACK_BYTES, Rows, contiguous, held_rows, made_of, matrix, plan, shared_bytes

PROGRAM = program(
    "norms",
    tuple(
        f"{kernel}<{name}>"
        for kernel in ("norm", "norm_backward", "norm_backward_sums", "norm_sums", "sums_of_groups") for name in TYPES
    ),
    ("rows.cuh", "columns.cuh", "norms.cu"),
)  # fmt: skip
GROUPS = 264
"""Groups of rows whose sums are added up, at most: two blocks for each of the 132 multiprocessors of an H200. It does
not depend on the device, so that the sums do not either."""
MOST_THREADS = 512
"""Threads of a row in `norm_backward_sums`."""


def _norm(x: Any, weight: Any, bias: Any, eps: float, is_centred: bool) -> tuple[Any, Any]:
    """The normalized rows, and (means, scales); the means are None where the rows are not centred."""
    y = np.empty_like(x)
    kept = np.empty_like(x, wide(x.dtype), shape=(2 if is_centred else 1, len(x)))
    means, scales = (kept[0] if is_centred else None), kept[-1]
    if x.size:
        launch_known(
            PROGRAM, f"norm<{type_name(x.dtype)}>", (x.shape, eps, shared_bytes(x)),
            lambda: made_of(rows := held_rows(x), 6, x, rows.most, np.float64(eps)),
            x, contiguous(weight), contiguous(bias), y, means, scales,
        )  # fmt: skip
    return y, (means, scales)


def _backward(cts: Any, x: Any, weight: Any, kept: Any, wants_dx: bool, wants_sums: bool) -> tuple[Any, Any]:
    """The cotangent of x, and those of weight and bias in a list; None where not wanted."""
    means, scales = kept
    name, n, width = type_name(x.dtype), len(x), x.shape[1]
    limit = shared_bytes(x)
    dx = np.empty_like(x) if wants_dx else None
    if not wants_sums:
        if x.size:
            launch_known(
                PROGRAM, f"norm_backward<{name}>", (x.shape, limit),
                lambda: made_of(rows := held_rows(x, 2), 6, x, rows.most),
                cts, x, contiguous(weight), means, scales, dx,
            )  # fmt: skip
        return dx, None
    kinds = 1 if means is None else 2
    sums = [np.empty_like(x, shape=(width,)) for _ in range(kinds)]
    if not x.size:
        for each in sums:
            each.fill(0)
        return dx, sums
    packs, per_thread = -(-width * x.itemsize // PACK_BYTES), 2 if x.itemsize == 2 else 4
    _, (threads, side_by_side) = plan(n, packs, per_thread, MOST_THREADS)
    block = max(threads, 8), min(side_by_side, BLOCK_THREADS // 8)  # each row of a block takes a turn at the end
    stages = 4 if x.itemsize == 2 else 3
    copies = stages * 2 * per_thread * block[0] * block[1] * PACK_BYTES
    if dx is not None and packs <= per_thread * MOST_THREADS and copies <= limit:
        groups = min(-(-n // block[1]), GROUPS)
        parts = np.empty_like(x, wide(x.dtype), shape=(groups, kinds, width))
        launch_known(
            PROGRAM, f"norm_backward_sums<{name}>", (x.shape, groups),
            lambda: made_of(Rows((groups,), block, np.int32(0), copies), 7, x),
            cts, x, contiguous(weight), means, scales, dx, parts,
        )  # fmt: skip
    else:
        if dx is not None:
            dx, _ = _backward(cts, x, weight, kept, True, False)
        groups = min(-(-n // 8), -(-GROUPS // 4))
        parts = np.empty_like(x, wide(x.dtype), shape=(groups, kinds, width))
        launch_known(
            PROGRAM, f"norm_sums<{name}>", (x.shape, groups),
            lambda: made_of(Rows((-(-packs // 32), groups), (32, 8), np.int32(0), 0), 5, x),
            cts, x, means, scales, parts,
        )  # fmt: skip
    sum_groups(PROGRAM, parts, *sums)
    return dx, sums


def _kernel(is_centred: bool) -> Kernel:
    """The kernel of layer norm, with or without weight and bias, or of RMS norm, which has a weight."""

    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        weight, bias = (*xs[1:], None, None)[:2]
        y, kept = _norm(matrix(xs[0]), weight, bias, options[0], is_centred)
        return y.reshape(xs[0].shape), kept if keep else None

    def backward(
        ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        weight = xs[1] if len(xs) > 1 else None
        dx, sums = _backward(matrix(ct), matrix(xs[0]), weight, kept, wanted[0], any(wanted[1:]))
        found = [None if dx is None else dx.reshape(xs[0].shape)]
        return found + [sums[i] if is_wanted else None for i, is_wanted in enumerate(wanted[1:])]

    return Kernel(forward, backward)


layer_norm_kernel = normalize_kernel = _kernel(True)
rms_norm_kernel = _kernel(False)
