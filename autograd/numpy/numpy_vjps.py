"""What users' rules import from HIPS autograd's: the way back from a broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from ..engine.dispatch import unbroadcast as _unbroadcast
from ..engine.tensor import TENSORS

__all__ = ["unbroadcast_f"]


def unbroadcast_f(target: Any, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A pullback whose cotangent is summed over the dimensions along which `target`, an operand, was repeated.

    Examples
    --------
    >>> import numpy
    >>> from autograd.numpy.numpy_vjps import unbroadcast_f
    >>> unbroadcast_f(numpy.ones(3), lambda g: 2 * g)(numpy.ones((2, 3)))
    array([4., 4., 4.])
    """
    shape = tuple(int(n) for n in numpy.shape(target.array if target.__class__ in TENSORS else target))

    def pulled(g: Any) -> Any:
        ct = f(g)
        return _unbroadcast(ct if hasattr(ct, "shape") else numpy.asarray(ct), shape)

    return pulled
