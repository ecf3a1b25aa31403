"""`unbroadcast_f`, which derivative rules written for HIPS autograd import from here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from ..engine.broadcasting import unbroadcast as _unbroadcast
from ..engine.tensor import TENSORS

__all__ = ["unbroadcast_f"]


def unbroadcast_f(target: Any, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the pullback `f` with its result summed over the dimensions along which `target` was broadcast.

    Parameters
    ----------
    target : array
        The operand whose cotangent `f` returns.
    f : callable
        From the cotangent of the result to a cotangent of the broadcast operand.

    Examples
    --------
    >>> import numpy
    >>> from autograd.numpy.numpy_vjps import unbroadcast_f
    >>> unbroadcast_f(numpy.ones(3), lambda g: 2 * g)(numpy.ones((2, 3)))
    array([4., 4., 4.])
    """
    shape = tuple(int(n) for n in numpy.shape(target.array if target.__class__ in TENSORS else target))

    def pullback(g: Any) -> Any:
        ct = f(g)
        return _unbroadcast(ct if hasattr(ct, "shape") else numpy.asarray(ct), shape)

    return pullback
