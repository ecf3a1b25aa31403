"""GELU and SiLU. Forward computes the value and the derivative in one pass, so that backward is one product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import Kernel
from ..blocks import flat
from .program import NULL, TYPES, launch, program, type_name

THREADS = 256
PROGRAM = program("activations", tuple(f"silu<{name}>" for name in TYPES))


def _silu(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    x = flat(xs[0])
    y = np.empty_like(x)
    d = np.empty_like(x) if keep else None
    packs = -(-x.size * x.itemsize // 16)
    grid = (min(-(-packs // THREADS), 1 << 16),)
    kernel = f"silu<{type_name(x.dtype)}>"
    launch(PROGRAM, kernel, grid, (THREADS,), (x, y, NULL if d is None else d, np.int64(x.size)))
    return y.reshape(xs[0].shape), d


def _backward(ct: Any, d: Any, xs: Any, options: Any, wanted: Sequence[bool], last: bool) -> Sequence[Any]:
    return (np.multiply(ct, d.reshape(ct.shape)),)


silu_kernel = Kernel(_silu, _backward)
