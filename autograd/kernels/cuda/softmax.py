"""Softmax and log-softmax along any axis. A row is read once, and the result is kept for backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import Kernel
from .program import TYPES, launch, program, type_name
from .rows import held_rows, matrix

PROGRAM = program(
    "softmax", tuple(f"{kernel}<{name}>" for kernel in ("softmax", "softmax_backward") for name in TYPES),
    ("rows.cuh", "softmax.cu"),
)  # fmt: skip


def _back(y: Any, shape: tuple[int, ...], axis: int) -> Any:
    """A matrix of rows along `axis` as an array of a shape."""
    moved = [n for i, n in enumerate(shape) if i != axis % len(shape)]
    return np.moveaxis(y.reshape(*moved, shape[axis]), -1, axis)


def _forward(is_log: bool) -> Callable[..., tuple[Any, Any]]:
    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        (axis,) = options
        x = matrix(np.moveaxis(xs[0], axis, -1))
        y = np.empty_like(x)
        if x.size:
            rows = held_rows(x)
            given = (x, y, np.int64(len(x)), np.int32(x.shape[1]), rows.most, np.int32(is_log))
            launch(PROGRAM, f"softmax<{type_name(x.dtype)}>", rows.grid, rows.block, given, rows.shared_bytes)
        return _back(y, xs[0].shape, axis), y if keep else None

    return forward


def _backward(is_log: bool) -> Callable[..., Sequence[Any]]:
    def backward(
        ct: Any, y: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        (axis,) = options
        cts = matrix(np.moveaxis(ct, axis, -1))
        dx = np.empty_like(y)
        if y.size:
            rows = held_rows(y, 2)
            given = (cts, y, dx, np.int64(len(y)), np.int32(y.shape[1]), rows.most, np.int32(is_log))
            launch(PROGRAM, f"softmax_backward<{type_name(y.dtype)}>", rows.grid, rows.block, given, rows.shared_bytes)
        return (_back(dx, xs[0].shape, axis),)

    return backward


softmax_kernel = Kernel(_forward(False), _backward(False))
log_softmax_kernel = Kernel(_forward(True), _backward(True))
