"""Complex numbers as pairs of real ones: an array of shape ``(*shape, 2)`` for one of shape ``shape``."""

from __future__ import annotations

from typing import Any

__all__ = ["from_pairs", "pairs_of", "real_dtype"]


def real_dtype(dtype: Any) -> Any:
    """The dtype of the two parts of a complex number.

    Examples
    --------
    >>> import numpy
    >>> real_dtype(numpy.dtype("complex64"))
    dtype('float32')
    """
    return dtype.type(0).real.dtype


def pairs_of(x: Any) -> Any:
    """The pairs of a complex array, as a view of it; those of a NumPy scalar are a new array.

    Examples
    --------
    >>> import numpy
    >>> x = numpy.array([1 + 2j, 3 - 4j])
    >>> pairs_of(x)[1] = 5, 6
    >>> x
    array([1.+2.j, 5.+6.j])
    """
    return x[..., None].view(real_dtype(x.dtype))  # a last dimension of one element has any stride


def from_pairs(pairs: Any) -> Any:
    """The complex array of pairs: a view of them, or a copy where the two parts do not lie side by side.

    Examples
    --------
    >>> import numpy
    >>> from_pairs(numpy.array([[1.0, 2.0], [5.0, 6.0]]))
    array([1.+2.j, 5.+6.j])
    """
    if getattr(pairs, "strides", (pairs.dtype.itemsize,))[-1] != pairs.dtype.itemsize:
        pairs = pairs.copy()
    return pairs.view((pairs.dtype.type(0) * 1j).dtype)[..., 0]
