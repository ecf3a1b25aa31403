"""GELU and SiLU. Nothing is kept: backward computes the derivative from x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import Kernel
from .program import NULL, TYPES, launch, program, type_name
from .rows import contiguous

THREADS = 256
PACKS = 4
"""Packs of 16 bytes that a thread reads together."""
PROGRAM = program(
    "activations", tuple(f"{kernel}<{name}>" for kernel in ("silu", "gelu_tanh", "gelu_erf") for name in TYPES)
)


def _map(kernel: str, x: Any, ct: Any) -> Any:
    """The values, or, with a cotangent, its product with the derivatives; of the shape of `x`."""
    given = contiguous(x)
    y = np.empty_like(given)
    grid = (min(-(-given.nbytes // (16 * PACKS * THREADS)), 1 << 16),)
    arguments = (given, NULL if ct is None else contiguous(ct), y, np.int64(given.size))
    launch(PROGRAM, f"{kernel}<{type_name(x.dtype)}>", grid, (THREADS,), arguments)
    return y


def _kernel(pick: Callable[..., str]) -> Kernel:
    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        return _map(pick(*options), xs[0], None), None

    def backward(
        ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        return (_map(pick(*options), xs[0], ct),)

    return Kernel(forward, backward)


gelu_kernel = _kernel(lambda form: "gelu_tanh" if form == "tanh" else "gelu_erf")
silu_kernel = _kernel(lambda: "silu")
