"""Adam's update of many parameters in one launch.

For each element of float32 it reads 16 bytes (parameter, gradient, two averages) and writes 12. With gradients and
rounded copies of 16 bits it reads 14 and writes 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arrays.device import dtype_name
from ..adam import numbers_of
from .batch import Batch
from .program import program, type_name

__all__ = ["KINDS", "adam"]

KINDS = ("float, float, Half", "float, float, BFloat16", "float, Half, Half", "float, BFloat16, BFloat16",
         "double, double, double")  # fmt: skip
"""The types of parameters, gradients and rounded copies."""
PROGRAM = program("adam", tuple(f"adam<{kind}>" for kind in KINDS))


def kind_of(p: Any, g: Any, copy: Any = None) -> str | None:
    """The types of a parameter, its gradient and its rounded copy; None if the kernels do not support them."""
    p, g = p.dtype, g.dtype
    if p == np.float64:
        return "double, double, double" if g == p and copy is None else None
    if p != np.float32 or dtype_name(g) not in ("float32", "float16", "bfloat16"):
        return None
    low = copy.dtype if copy is not None else g if g != p else np.dtype(np.float16)
    kind = f"float, {type_name(g)}, {type_name(low)}"
    return kind if kind in KINDS else None


def adam(
    batch: Batch, gradients: Sequence[Any], *, step: int, lr: float, betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = False, scale: float = 1.0, numbers: Any = None,
    lost: Any = None,
) -> None:  # fmt: skip
    """Update parameters and their averages in place; see `kernels.adam.adam`.

    Parameters
    ----------
    batch : Batch
        Of parameters, averages of the gradient, averages of its square, and rounded copies or None.
    gradients : sequence of arrays
        One for each parameter, all of one dtype.
    scale : float
        Each gradient is multiplied by it first.
    numbers : array, optional
        The numbers of `values` on the device, which take the place of the others.
    lost : array of float64, optional
        One number, which is set to 1 if a rounded copy is infinite or NaN.
    """
    p, copies = batch.columns[0], batch.columns[3]
    assert p
    kind = kind_of(p[0], gradients[0], None if copies is None else copies[0])
    given = values(p[0].dtype, step, lr, betas, eps, weight_decay, decoupled, scale)
    batch.update(PROGRAM, f"adam<{kind}>", gradients, given, numbers, lost)


def values(
    dtype: Any, step: int, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, decoupled: bool,
    scale: float = 1.0,
) -> np.ndarray:  # fmt: skip
    """The numbers of one step, as the kernel takes them."""
    return np.array([*numbers_of(step, lr, betas, eps, weight_decay, decoupled), scale], dtype)
