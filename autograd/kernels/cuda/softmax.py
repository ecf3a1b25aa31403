"""Softmax and log-softmax along any axis. A row is read once, and the result is kept for backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import Kernel
from .program import TYPES, launch_known, program, type_name
from .rows import held_rows, made_of, matrix, shared_bytes

PROGRAM = program(
    "softmax", tuple(f"{kernel}<{name}>" for kernel in ("softmax", "softmax_backward") for name in TYPES),
    ("rows.cuh", "softmax.cu"),
)  # fmt: skip


def _back(y: Any, shape: tuple[int, ...], axis: int) -> Any:
    """A matrix of rows along `axis` as an array of a shape."""
    moved = [n for i, n in enumerate(shape) if i != axis % len(shape)]
    return np.moveaxis(y.reshape(*moved, shape[axis]), -1, axis)


def _kernel(is_log: bool) -> Kernel:
    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        (axis,) = options
        x = matrix(np.moveaxis(xs[0], axis, -1))
        y = np.empty_like(x)
        if x.size:
            launch_known(
                PROGRAM, f"softmax<{type_name(x.dtype)}>", (x.shape, is_log, shared_bytes(x)),
                lambda: made_of(rows := held_rows(x), 2, x, rows.most, np.int32(is_log)), x, y,
            )  # fmt: skip
        return _back(y, xs[0].shape, axis), y if keep else None

    def backward(
        ct: Any, y: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        (axis,) = options
        cts = matrix(np.moveaxis(ct, axis, -1))
        dx = np.empty_like(y)
        if y.size:
            launch_known(
                PROGRAM, f"softmax_backward<{type_name(y.dtype)}>", (y.shape, is_log, shared_bytes(y)),
                lambda: made_of(rows := held_rows(y, 2), 3, y, rows.most, np.int32(is_log)), cts, y, dx,
            )  # fmt: skip
        return (_back(dx, xs[0].shape, axis),)

    return Kernel(forward, backward)


softmax_kernel, log_softmax_kernel = _kernel(False), _kernel(True)
