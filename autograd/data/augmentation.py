"""Data augmentation. The random choices do not depend on the number of ranks.

Each choice is a function of a `random.Key` and of the position of the example in the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops, random
from ..arrays.device import as_array, move
from ..arrays.shape_only import Shaped
from ..engine.leaves import tensor
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import LayoutError, ShapeError, TapeError, typed_errors
from ..layouts.layout import R, Shard

__all__ = ["random_crop", "random_flip"]


def _examples(x: Tensor, dims: Sequence[int], caller: str) -> Tensor:
    """Return a vector without values that has one element per example and the layout of the examples of x.

    Raise LayoutError if a dimension in `dims` is sharded.
    """
    layout = x.layout if state.grid is None else x.labelled(state.grid)
    if layout is not None:
        for axis, label in layout.items():
            if isinstance(label, Shard) and label.dim in dims:
                raise LayoutError(
                    f"{caller}: x is {label!r} on axis {axis!r}; needed: dimensions {list(dims)} whole on every rank"
                )
        layout = layout.grid.layout([R if isinstance(s, Shard) and s.dim else s for s in layout.labels])
    return Tensor(Shaped((x.array.shape[0],)), layout)


def _operand(x: Any, caller: str) -> tuple[Tensor, bool]:
    """Return x as a Tensor, and whether the result is to be a plain array."""
    raw = x.__class__ not in TENSORS
    if raw:
        x = as_array(x)
    if len(x.shape) < 2:
        raise ShapeError(f"{caller}: x of shape {tuple(x.shape)}; needed: at least two dimensions, the examples first")
    return (tensor(x) if raw else x), raw and state.grid is None


@typed_errors
def random_flip(x: Any, key: random.Key, p: float = 0.5, dim: int = -1) -> Any:
    """Reverse each example along one dimension with probability p. Differentiable.

    Parameters
    ----------
    x : Tensor or array, [examples, ...]
        The examples may be sharded, dimension `dim` must not be.
    key : random.Key
        A key for this batch, ``key.at(step)``.
    p : float
        Probability of reversing an example.
    dim : int
        The dimension to reverse, not that of the examples.

    Returns
    -------
    Tensor or array
        Of the shape and layout of x.

    Raises
    ------
    ShapeError
        `dim` is not a dimension of an example.
    LayoutError
        Dimension `dim` is sharded, or x is Varying on an axis that is not an axis of the key.

    Examples
    --------
    >>> import numpy
    >>> from autograd import data, random
    >>> data.random_flip(numpy.arange(6).reshape(2, 3), random.Key(0, "flip").at(0), p=1.0)
    array([[2, 1, 0],
           [5, 4, 3]])
    """
    x, raw = _operand(x, "random_flip")
    ndim = len(x.array.shape)
    if not -ndim < dim < ndim or dim % ndim == 0:
        raise ShapeError(f"random_flip: dim={dim} of {ndim} dimensions; needed: one of 1..{ndim - 1}")
    dim %= ndim
    chosen = random.bernoulli(key, _examples(x, (dim,), "random_flip"), p)
    reversed_x = x[(slice(None),) * dim + (slice(None, None, -1),)]
    if chosen.__class__ in TENSORS:
        chosen = Tensor(move(chosen.array, x.array), chosen.layout)
    else:
        chosen = move(chosen, x.array)
    y = ops.where(ops.reshape(chosen, (-1, *(1 for _ in range(ndim - 1)))), reversed_x, x)
    return y.array if raw else y


@typed_errors
def random_crop(x: Any, size: int | Sequence[int], key: random.Key, padding: int = 0) -> Any:
    """Take a window of each example, at a random position, over the last dimensions. Not differentiable.

    Parameters
    ----------
    x : Tensor or array, ``[examples, ..., *spatial]``
        The examples may be sharded, the spatial dimensions must not be.
    size : int or sequence of int
        Size of the window in each of the last dimensions. One number means the last two dimensions.
    key : random.Key
        A key for this batch, ``key.at(step)``.
    padding : int
        Zeros added on both sides of each of these dimensions before the window is taken.

    Returns
    -------
    Tensor or array, ``[examples, ..., *size]``
        With the layout of x.

    Raises
    ------
    ShapeError
        The window does not fit.
    TapeError
        x requires a gradient.
    LayoutError
        A spatial dimension is sharded, or x is Varying on an axis that is not an axis of the key.

    Examples
    --------
    >>> import numpy
    >>> from autograd import data, random
    >>> data.random_crop(numpy.ones((5, 3, 8, 8)), 6, random.Key(0, "crop").at(0), padding=2).shape
    (5, 3, 6, 6)
    """
    x, raw = _operand(x, "random_crop")
    if x.requires_grad:
        raise TapeError("random_crop: x requires a gradient; needed: data. Fix: stop_gradient(x)")
    array = x.array
    window = (size, size) if isinstance(size, int | np.integer) else tuple(size)
    first = len(array.shape) - len(window)
    padded_shape = [n + 2 * padding for n in array.shape[first:]]
    if first < 1 or padding < 0 or any(not 0 < k <= n for k, n in zip(window, padded_shape, strict=False)):
        raise ShapeError(
            f"random_crop: a window of {window} from x of shape {array.shape}, padding={padding}; needed: "
            "x of shape [examples, ..., *spatial], and a window no larger than its padded spatial dimensions"
        )
    like = _examples(x, range(first, len(array.shape)), "random_crop")
    starts = []
    for k, (extent, n) in enumerate(zip(window, padded_shape, strict=True)):
        start = random.integers(key.fold(str(k)), like, 0, n - extent + 1)
        starts.append(start.array if start.__class__ in TENSORS else start)
    if type(array) is Shaped:
        out: Any = Shaped((*array.shape[:first], *window), array.dtype, array.why)
    else:
        padded = np.pad(array, [(0, 0)] * first + [(padding, padding)] * len(window))
        out = np.empty_like(padded, shape=(*array.shape[:first], *window))
        for i in range(len(array)):
            at: list[Any] = [slice(s[i], s[i] + k) for s, k in zip(starts, window, strict=True)]
            out[i] = padded[i][(..., *at)]
    return out if raw else Tensor(out, x.labelled(state.grid) if state.grid is not None else None)
