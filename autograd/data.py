"""Sampling and data augmentation: the same choices on any number of ranks.

Every choice follows from the key and from the place that an example has in the whole batch, or in the data set; so
more ranks see the same epoch in the same order, and flip and crop the same examples in the same way. Keys are
`random.Key`s; use ``key.at(epoch)`` or ``key.at(step)``, one for each draw.

A batch on a mesh is a Tensor that says which part of the batch it is, ``layout={"dp": Shard(0)}``; a plain array there
is Varying, and one key for all its ranks is refused (see `random`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import ops, random
from .arrays.device import is_array
from .arrays.shape_only import Shaped
from .engine.parameter import tensor
from .engine.state import state
from .engine.tensor import TENSORS, Tensor
from .errors import LayoutError, MeshError, ShapeError, TapeError, call_site
from .layouts.layout import R, Shard
from .layouts.partition import parts
from .random.placement import coordinates

__all__ = ["batches", "random_crop", "random_flip", "share"]


def batches(
    key: random.Key, n: int, batch_size: int, *, shuffle: bool = True, drop_last: bool = False
) -> Iterator[np.ndarray]:
    """The numbers of an epoch's examples, batch after batch, the same on every rank; `share` takes this rank's.

    Parameters
    ----------
    key : random.Key
        One an epoch: ``key.at(epoch)``.
    n : int
        How many examples there are.
    batch_size : int
        Of the whole batch, all ranks together.
    shuffle, drop_last : bool
        Whether the order is random; whether a last batch that is smaller is left out.

    Examples
    --------
    >>> from autograd import data as augment, random
    >>> [len(b) for b in augment.batches(random.Key(0, "train").at(3), 10, 4)]
    [4, 4, 2]
    """
    if batch_size < 1:
        raise ShapeError(f"batches: batch_size={batch_size} was given; needed: at least 1")
    order = random.permutation(key, n) if shuffle else np.arange(n)
    for start in range(0, n - batch_size + 1 if drop_last else n, batch_size):
        yield order[start : start + batch_size]


def share(x: Any, axis: str) -> Any:
    """This rank's rows of something that every rank has whole, by the rule of numpy.array_split.

    Examples
    --------
    >>> import numpy
    >>> import collectives as cc
    >>> from autograd import data as augment
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         return augment.share(numpy.arange(5), "dp").tolist()
    >>> cc.run(program, ranks=2)
    [[0, 1, 2], [3, 4]]
    """
    if state.grid is None:
        raise MeshError(f"share(x, {axis!r}): no mesh is current. Fix: with cc.Mesh({axis}=-1): around it")
    ((_, place),) = coordinates((axis,))
    extents, offsets = parts(len(x), state.grid.sizes[state.grid.axis(axis)])
    return x[offsets[place] : offsets[place] + extents[place]]


def _examples(x: Tensor, dims: Sequence[int], caller: str) -> Tensor:
    """A vector with one element an example, laid out as x's examples are; refused where `dims` of x are sharded."""
    layout = x.layout if state.grid is None else x.labelled(state.grid)
    if layout is not None:
        for axis, label in layout.items():
            if isinstance(label, Shard) and label.dim in dims:
                raise LayoutError(
                    f"{caller}: x is {label!r} on axis {axis!r}; needed: dimensions {list(dims)} whole on every rank"
                    + call_site()
                )
        layout = layout.grid.layout([R if isinstance(s, Shard) and s.dim else s for s in layout.labels])
    return Tensor(Shaped((x.array.shape[0],)), layout)


def _operand(x: Any, caller: str) -> tuple[Tensor, bool]:
    raw = x.__class__ not in TENSORS
    if raw and not is_array(x):
        x = np.asarray(x)
    if len(x.shape) < 2:
        raise ShapeError(f"{caller}: x of shape {tuple(x.shape)}; needed: [examples, ..., places]")
    return (tensor(x) if raw else x), raw and state.grid is None


def random_flip(x: Any, key: random.Key, p: float = 0.5, dim: int = -1) -> Any:
    """Each example reversed along a dimension with probability p.

    Parameters
    ----------
    x : [examples, ..., places, ...]
        Differentiable. Examples may be sharded, the dimension to flip may not.
    key : random.Key
    p : float
    dim : int

    Examples
    --------
    >>> import numpy
    >>> from autograd import data as augment, random
    >>> augment.random_flip(numpy.arange(6).reshape(2, 3), random.Key(0, "flip").at(0), p=1.0)
    array([[2, 1, 0],
           [5, 4, 3]])
    """
    x, raw = _operand(x, "random_flip")
    ndim = len(x.array.shape)
    if not -ndim < dim < ndim or dim % ndim == 0:
        raise ShapeError(f"random_flip: dim={dim} of {ndim} dimensions; needed: one of 1..{ndim - 1}")
    dim %= ndim
    chosen = random.bernoulli(key, _examples(x, (dim,), "random_flip"), p)
    turned = x[(slice(None),) * dim + (slice(None, None, -1),)]
    y = ops.where(ops.reshape(chosen, (-1, *(1 for _ in range(ndim - 1)))), turned, x)
    return y.array if raw else y


def random_crop(x: Any, size: int | Sequence[int], key: random.Key, padding: int = 0) -> Any:
    """A window of each example at a place of its own, over the last dimensions.

    Parameters
    ----------
    x : [examples, ..., *places]
        Data, not differentiated. Examples may be sharded, places may not.
    size : int or sequence of int
        The window, one extent per dimension from the end; an integer for the last two.
    key : random.Key
    padding : int
        Zeros on both sides of each of these dimensions, before the window is taken.

    Examples
    --------
    >>> import numpy
    >>> from autograd import data as augment, random
    >>> augment.random_crop(numpy.ones((5, 3, 8, 8)), 6, random.Key(0, "crop").at(0), padding=2).shape
    (5, 3, 6, 6)
    """
    x, raw = _operand(x, "random_crop")
    if x.requires_grad:
        raise TapeError("random_crop of a value that a tape follows; needed: data. Fix: stop_gradient(x)" + call_site())
    array = x.array
    window = (size, size) if isinstance(size, int | np.integer) else tuple(size)
    first = len(array.shape) - len(window)
    places = [n + 2 * padding for n in array.shape[first:]]
    if first < 1 or padding < 0 or any(not 0 < k <= n for k, n in zip(window, places, strict=False)):
        raise ShapeError(
            f"random_crop: a window of {window} from x of shape {array.shape}, padding={padding}; needed: "
            "[examples, ..., *places] with room for it"
        )
    like = _examples(x, range(first, len(array.shape)), "random_crop")
    starts = []
    for k, (extent, n) in enumerate(zip(window, places, strict=True)):
        found = random.integers(key.fold(str(k)), like, 0, n - extent + 1)
        starts.append(found.array if found.__class__ in TENSORS else found)
    if type(array) is Shaped:
        out: Any = Shaped((*array.shape[:first], *window), array.dtype, array.why)
    else:
        wide = np.pad(array, [(0, 0)] * first + [(padding, padding)] * len(window))
        out = np.empty((*array.shape[:first], *window), array.dtype)
        for i in range(len(array)):
            at: list[Any] = [slice(s[i], s[i] + k) for s, k in zip(starts, window, strict=True)]
            out[i] = wide[i][(..., *at)]
    return out if raw else Tensor(out, x.labelled(state.grid) if state.grid is not None else None)
