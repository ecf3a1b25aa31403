"""collectives.staging."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from autograd.arrays.device import move, to_host
from autograd.arrays.shape_only import Shaped


def host_flat(x: Any) -> Any:
    """The operand as the transports want it: on the host, contiguous, one-dimensional."""
    if x.__class__ is ndarray:
        if x.flags.c_contiguous:
            return x if x.ndim == 1 else x.reshape(-1)
    elif type(x) is Shaped and not x.absent:
        return x.reshape(-1)
    return np.ascontiguousarray(to_host(x)).reshape(-1)


def back(flat: np.ndarray, shape: tuple[int, ...], like: Any) -> Any:
    """A transport's result in its shape, on the operand's device; a scalar stays a scalar."""
    if like.__class__ is ndarray:
        return flat if len(shape) == 1 else flat.reshape(shape)
    y = move(flat.reshape(shape), like)
    return y[()] if shape == () and isinstance(like, np.generic) else y
