"""The update of stochastic gradient descent with momentum: one compiled pass, or two of BLAS's ``y = a x + b y``.

NumPy's functions take four, and a scratch array: of 100,000 numbers, which a cache holds, 1.6 times as long, of a
million twice. Of fewer than `LEAST` numbers the calls cost more than the passes.
"""

from __future__ import annotations

from typing import Any

from numpy import ndarray

from . import compiled
from .blas import find_axpby

__all__ = ["LEAST", "Momentum"]

LEAST = compiled.LEAST


class Momentum:
    """``v = momentum v + g; p -= lr v`` in place, of one parameter and its velocity.

    Examples
    --------
    >>> import numpy
    >>> from autograd.kernels.momentum import Momentum
    >>> p, v = numpy.ones(1 << 14), numpy.ones(1 << 14)
    >>> if Momentum(p, v).step(2 * p, 0.25, 0.5):  # NumPy's BLAS may be one that cannot
    ...     assert v[0] == 2.5 and p[0] == 0.375
    """

    def __init__(self, p: Any, v: Any):
        self.p, self.v = p, v
        bare = p.__class__ is v.__class__ is ndarray and p.dtype == v.dtype and p.shape == v.shape
        able = bare and p.size >= LEAST and p.flags.c_contiguous and v.flags.c_contiguous
        self.axpby = find_axpby(p.dtype) if able else None
        self.loop = compiled.fitting("momentum", p, v) if able and p.flags.writeable and v.flags.writeable else None
        self.flat = (p.reshape(-1), v.reshape(-1)) if self.loop is not None else ()
        self.number = p.dtype.type
        self.places = (0, 0) if self.axpby is None else (p.ctypes.data, v.ctypes.data)

    def step(self, g: Any, lr: float, momentum: float) -> bool:
        """One update with the gradient g, which is only read; False, and nothing done, where NumPy has to do it."""
        axpby, p = self.axpby, self.p
        if g.shape != p.shape:
            return False
        if self.loop is not None and p.flags.writeable and compiled.are_bare(p.dtype, g):
            self.loop(*self.flat, g.reshape(-1), self.number(lr), self.number(momentum))
            return True
        if axpby is None or g.dtype is not p.dtype or not g.flags.c_contiguous or not p.flags.writeable:
            return False
        at, velocity = self.places
        axpby(g.size, 1.0, g.ctypes.data, 1, momentum, velocity, 1)
        axpby(g.size, -lr, velocity, 1, 1.0, at, 1)
        return True
