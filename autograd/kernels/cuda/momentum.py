"""The update of stochastic gradient descent of many parameters in one launch.

For each element of float32 it reads 12 bytes (parameter, gradient, velocity) and writes 8; without momentum 8 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .adam import KINDS, kind_of
from .batch import Batch
from .program import program

__all__ = ["momentum"]

PROGRAM = program("momentum", tuple(f"momentum<{kind}>" for kind in KINDS))


def momentum(
    batch: Batch, gradients: Sequence[Any], lr: float, keep: float, *, share: float = 1.0, weight_decay: float = 0.0,
    nesterov: bool = False, scale: float = 1.0, numbers: Any = None, lost: Any = None,
) -> None:  # fmt: skip
    """``d = scale g + weight_decay p; v = keep v + share d; p -= lr v`` in place.

    With `nesterov`, ``p -= lr (d + keep v)``; without velocities, ``p -= lr d``.

    Parameters
    ----------
    batch : Batch
        Of parameters, velocities or None, and rounded copies or None.
    gradients, scale, numbers, lost
        See `adam`.
    """
    p, _, copies = batch.columns
    assert p
    kind = kind_of(p[0], gradients[0], None if copies is None else copies[0])
    given = values(p[0].dtype, lr, keep, share, weight_decay, nesterov, scale)
    batch.update(PROGRAM, f"momentum<{kind}>", gradients, given, numbers, lost)


def values(
    dtype: Any, lr: float, keep: float, share: float, weight_decay: float, nesterov: bool, scale: float = 1.0
) -> np.ndarray:
    """The numbers of one step, as the kernel takes them."""
    return np.array([lr, keep, share, weight_decay, nesterov, scale], dtype)
