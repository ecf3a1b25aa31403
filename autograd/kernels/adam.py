"""Adam's update in place, by one compiled pass, or by NumPy in blocks that stay in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import compiled
from .blocks import blocks

BLOCK_BYTES = 1 << 20


def adam(
    p: Any, g: Any, first: Any, second: Any, *, step: int, lr: float, betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = False,
) -> None:  # fmt: skip
    """Update a parameter and its two averages in place; all are contiguous arrays of one floating dtype.

    ``m = b1 m + (1 - b1) g``, ``v = b2 v + (1 - b2) g^2``, ``p -= lr mh / (sqrt(vh) + eps)`` with
    ``mh = m / (1 - b1^step)`` and ``vh = v / (1 - b2^step)``.

    Parameters
    ----------
    p, g, first, second : arrays
        Parameter, gradient (which is only read), averages of the gradient and of its square.
    step : int
        The number of the step, starting from one.
    weight_decay : float
        ``weight_decay p`` is added to the gradient; with `decoupled`, ``lr weight_decay p`` is subtracted from `p`.

    Raises
    ------
    ValueError
        An array to be updated is read-only.

    Notes
    -----
    Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019, algorithm 2, where `decoupled`.

    Examples
    --------
    >>> import numpy
    >>> from autograd.kernels.adam import adam
    >>> p, m, v = numpy.ones(2), numpy.zeros(2), numpy.zeros(2)
    >>> adam(p, numpy.array([4.0, -1.0]), m, v, step=1, lr=0.1)
    >>> p.round(6)
    array([0.9, 1.1])
    """
    if not (p.flags.writeable and first.flags.writeable and second.flags.writeable):
        # a compiled loop would write to it
        raise ValueError("adam: the parameter or one of its averages is read-only; needed: writeable arrays")
    numbers = numbers_of(step, lr, betas, eps, weight_decay, decoupled)
    # The numbers of a step that is traced are other ones in each step; without the loop, the bits are the same.
    loop = compiled.fitting("adam", p, g, first, second) if type(p) is np.ndarray else None
    if loop is not None and p.shape == g.shape == first.shape == second.shape:
        loop(*(x.reshape(-1) for x in (p, first, second, g)), *map(p.dtype.type, numbers))
        return
    # as arrays without dimensions: with Python numbers each call would take a microsecond more
    mean, square, keep_mean, keep_square, least, rate = (
        np.array(numbers[k], p.dtype, like=p) for k in (0, 2, 1, 3, 4, 5)
    )
    p, g, m, v = (x.reshape(-1) for x in (p, g, first, second))
    size = p.nbytes if compiled.stands_for.has_loops else BLOCK_BYTES  # one loop has no arrays between its steps
    scratch = np.empty(min(len(p), max(size // p.itemsize, 1)), p.dtype, like=p)
    for at in blocks(len(p), p.itemsize, size):
        pb, gb, mb, vb = p[at], g[at], m[at], v[at]
        s = scratch[: len(pb)]
        if weight_decay:
            if decoupled:
                pb *= 1 - lr * weight_decay
            else:
                gb = gb + weight_decay * pb
        np.multiply(gb, mean, s)
        np.multiply(mb, keep_mean, mb)
        np.add(mb, s, mb)
        np.multiply(gb, gb, s)
        np.multiply(s, square, s)
        np.multiply(vb, keep_square, vb)
        np.add(vb, s, vb)
        np.sqrt(vb, s)
        np.add(s, least, s)
        np.divide(mb, s, s)
        np.multiply(s, rate, s)
        np.subtract(pb, s, pb)


def numbers_of(
    step: int, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, decoupled: bool
) -> tuple[float, ...]:
    """The numbers of a step: ``1 - b1``, ``b1``, ``1 - b2``, ``b2``, eps, size, decay, keep.

    ``p`` becomes ``keep p - size m / (sqrt(v) + eps)``, and ``decay p`` is added to the gradient.
    """
    b1, b2 = betas
    root = (1 - b2**step) ** 0.5
    # lr mh / (sqrt(v) / root + eps) = (size root) m / (sqrt(v) + eps root), with size = lr / (1 - b1^step)
    decay, keep = (0.0, 1 - lr * weight_decay) if decoupled else (weight_decay, 1.0)
    return 1 - b1, b1, 1 - b2, b2, eps * root, lr / (1 - b1**step) * root, decay, keep
