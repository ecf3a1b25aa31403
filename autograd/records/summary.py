"""The summary of an array in a record."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.capture import current_capture
from ..arrays.device import is_array, to_host
from ..arrays.half import is_half
from ..arrays.shape_only import Shaped
from ..digests import blake2b, bytes_of_values
from .record import Summary

__all__ = ["MOST_VALUES", "summary"]

MOST_VALUES = 64
"""The number of elements up to which a summary has all values."""


def summary(x: Any, values: bool = True) -> Summary | None:
    """Return the summary of an array, a Tensor's array or a number; None for another object.

    Parameters
    ----------
    x : array, Tensor or number
    values : bool
        Whether values, statistics and a digest are wanted, for which the array is read. Else shape and dtype only.

    Examples
    --------
    >>> import numpy
    >>> from autograd.records.summary import summary
    >>> found = summary(numpy.array([1.0, numpy.inf]))
    >>> found.shape, found.dtype, found.values, found.not_finite
    ((2,), 'float64', (1.0, inf), 1)
    """
    array = getattr(x, "array", x)
    if isinstance(array, bool | int | float | complex):
        array = np.asarray(array)
    if type(array) is Shaped:
        return Summary(array.shape, str(array.dtype), is_absent=array.absent)
    if not is_array(array):
        return None
    shape, dtype = tuple(map(int, array.shape)), str(array.dtype)
    if not values or array.dtype.hasobject or current_capture() is not None:  # a capture reads no values
        return Summary(shape, dtype)
    host = to_host(array)
    digest = blake2b(bytes_of_values(host), digest_size=8).hexdigest()
    numbers = host.astype(np.float32) if is_half(host.dtype) else host
    finite = np.isfinite(numbers) if numbers.dtype.kind in "fc" else np.ones(shape, bool)
    not_finite = int(host.size - np.count_nonzero(finite))
    if host.size <= MOST_VALUES:
        return Summary(shape, dtype, tuple(numbers.reshape(-1).tolist()), not_finite=not_finite, digest=digest)
    least = mean = greatest = deviation = None
    if numbers.dtype.kind in "fiub" and not_finite < host.size:
        some = numbers if not not_finite else numbers[finite]
        wide = some.astype(np.float64) if some.dtype.kind != "f" or some.dtype.itemsize < 8 else some
        with np.errstate(all="ignore"):
            least, mean, greatest, deviation = (float(f(wide)) for f in (np.min, np.mean, np.max, np.std))
    return Summary(shape, dtype, None, least, mean, greatest, deviation, not_finite, digest)
