"""Activations. Nothing is kept: backward computes the derivative from x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import Kernel
from .elements import by_elements
from .program import TYPES, launch_known, program, type_name
from .rows import contiguous

PROGRAM = program(
    "activations",
    tuple(f"activate<{name}, {f}>" for f in ("GeluTanh", "GeluErf", "Silu") for name in TYPES),
    ("elements.cuh", "activations.cuh", "activations.cu"),
)  # fmt: skip


def _map(f: str, x: Any, ct: Any) -> Any:
    """The values, or, with a cotangent, its product with the derivatives; of the shape of `x`."""
    given = contiguous(x)
    y, size, itemsize = np.empty_like(given), x.size, x.itemsize
    launch_known(
        PROGRAM, f"activate<{type_name(x.dtype)}, {f}>", size, lambda: by_elements(size, itemsize, 3),
        given, contiguous(ct), y,
    )  # fmt: skip
    return y


def _kernel(pick: Callable[..., str]) -> Kernel:
    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        return _map(pick(*options), xs[0], None), None

    def backward(
        ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        return (_map(pick(*options), xs[0], ct),)

    return Kernel(forward, backward)


gelu_kernel = _kernel(lambda form: "GeluTanh" if form == "tanh" else "GeluErf")
silu_kernel = _kernel(lambda: "Silu")
