"""The update of stochastic gradient descent with momentum in one compiled pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import compiled

__all__ = ["LEAST", "momentum"]

LEAST = compiled.LEAST


def momentum(p: Any, v: Any, g: Any, lr: float, keep: float) -> bool:
    """``v = keep v + g; p -= lr v`` in place. Returns False and changes nothing where NumPy must be used.

    NumPy takes four passes and a temporary array. For fewer than `LEAST` numbers the calls cost more than the passes.

    Examples
    --------
    >>> import numpy
    >>> from autograd.kernels.momentum import momentum
    >>> p, v = numpy.ones(1 << 14), numpy.ones(1 << 14)
    >>> if momentum(p, v, 2 * p, 0.25, 0.5):  # with Numba
    ...     assert v[0] == 2.5 and p[0] == 0.375
    """
    loop = compiled.fitting("momentum", p, v, g) if type(p) is np.ndarray else None  # a traced step has other numbers
    if loop is None or not p.shape == v.shape == g.shape or not (p.flags.writeable and v.flags.writeable):
        return False
    number = p.dtype.type
    loop(p.reshape(-1), v.reshape(-1), g.reshape(-1), number(lr), number(keep))
    return True
