"""Convolution over any number of spatial dimensions.

With the windows of x as the columns of a matrix it is a matrix product, ``y = w columns(x)``. The number
``<ct, conv(x, w)>`` is linear in each of x, w and ct. So there are three operations: the convolution and its
cotangents for x and for w. The adjoints of each are the other two, and derivatives of every order need no others.

The columns are made in blocks that fit into the cache, so their memory does not grow with the number of examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, overload

import numpy as np

from ...arrays.half import in_float32
from ...engine.primitive import Primitive, op
from ...engine.tensor import TENSORS, Tensor
from ...errors import ShapeError, typed_errors
from ...layouts.layout import Mix, Sum
from ..shape import reshape
from .unfold import Windows, add_folded, arranged, padded, shape_only, unfolded, unpadded_key, windows

Shape = tuple[int, ...]
_IN, _OUT, _EXAMPLE = Sum("input channel"), Sum("output channel"), Sum("example")


_BLOCK = 1 << 18  # elements of the columns of a block, which then stay in the cache of a core


class _Block(NamedTuple):
    """Windows whose columns are made at a time."""

    examples: slice
    windows: slice  # among all windows of an example, as one dimension
    place: tuple[Any, ...]  # the key of the part of the padded array in which they lie
    geometry: Windows  # of the windows in that part


def _blocks(x: Any, w: Windows) -> Sequence[_Block]:
    """The blocks of all windows of an array, which is padded: one on devices, and where windows need no copy."""
    n, channels = x.shape[:2]
    is_whole = x.__class__ is not np.ndarray or (math.prod(w.kernel) == 1 and max(w.stride) == 1)
    most = n * math.prod(w.number) if is_whole else _BLOCK // max(1, channels * math.prod(w.kernel))
    return _blocks_of(n, w, max(1, most))


@lru_cache(maxsize=256)  # of the shapes of a model; without it each convolution takes 8 to 30 us more
def _blocks_of(n: int, w: Windows, most: int) -> Sequence[_Block]:
    """Blocks of at most so many windows: whole trailing dimensions, a range of one, and single places of the others."""
    counts = (n, *w.number)
    within = [math.prod(counts[i + 1 :]) for i in range(len(counts))]
    at = next(i for i, size in enumerate(within) if size <= most)
    length = max(1, most // max(1, within[at]))
    found = []
    for single in np.ndindex(*counts[:at]):
        for low in range(0, counts[at], length):
            whole = [(0, m) for m in counts[at + 1 :]]
            ranges = [*((i, i + 1) for i in single), (low, min(low + length, counts[at])), *whole]
            examples, spatial = ranges[0], ranges[1:]
            first = sum(lo * size for (lo, _), size in zip(spatial, within[1:], strict=True))
            parts = [
                (lo * s, (hi - 1) * s + d * (k - 1) + 1)
                for (lo, hi), s, d, k in zip(spatial, w.stride, w.dilation, w.kernel, strict=True)
            ]
            found.append(_Block(
                slice(*examples), slice(first, first + math.prod(hi - lo for lo, hi in spatial)),
                (slice(*examples), slice(None), *(slice(*part) for part in parts)),
                w._replace(padding=((0, 0),) * len(parts), extents=tuple(hi - lo for lo, hi in parts)),
            ))  # fmt: skip
    return found


def _columns(x: Any, block: _Block, groups: int) -> Any:
    """The windows of a block as columns, [n, groups, channels of a group * elements of a kernel, windows]."""
    columns = unfolded(x[block.place], block.geometry)
    n, channels, elements, *number = columns.shape
    return columns.reshape((n, groups, channels // groups * elements, math.prod(number)))


def _rows(weight: Any, groups: int) -> Any:
    """The weight as one matrix per group, [groups, outputs of a group, channels of a group * elements of a kernel]."""
    out = weight.shape[0]
    return weight.reshape((groups, out // groups, math.prod(weight.shape[1:])))


def _grouped(y: Any, groups: int) -> Any:
    """An array of outputs as [n, groups, outputs of a group, windows]."""
    return y.reshape((y.shape[0], groups, y.shape[1] // groups, math.prod(y.shape[2:])))


@in_float32
def _forward(x: Any, weight: Any, geometry: Any, groups: int) -> Any:
    w = Windows(*geometry)
    shape, dtype = (x.shape[0], weight.shape[0], *w.number), np.result_type(x.dtype, weight.dtype)
    dry = shape_only(shape, dtype, x, weight)
    if dry is not None:
        return dry
    w, (x,), back = arranged(w, x)
    y = np.empty_like(x, dtype, shape=(len(x), len(weight), *w.number), order="C")
    rows, into, x = _rows(weight, groups), _grouped(y, groups), padded(x, w)
    for block in _blocks(x, w):
        np.matmul(rows, _columns(x, block, groups), out=into[block.examples, ..., block.windows])
    return back(y)


@in_float32
def _cotangent_of_input(ct: Any, weight: Any, geometry: Any, groups: int) -> Any:
    w = Windows(*geometry)
    channels, dtype = weight.shape[1] * groups, np.result_type(ct.dtype, weight.dtype)
    dry = shape_only((ct.shape[0], channels, *w.extents), dtype, ct, weight)
    if dry is not None:
        return dry
    w, (ct,), back = arranged(w, ct)
    x = np.zeros_like(ct, dtype, shape=(len(ct), channels, *w.padded), order="C")
    transposed, cts = _rows(weight, groups).swapaxes(-1, -2), _grouped(ct, groups)
    for block in _blocks(x, w):
        part, columns, geometry = x[block.place], transposed @ cts[block.examples, ..., block.windows], block.geometry
        add_folded(part, columns.reshape((len(part), channels, math.prod(w.kernel), *geometry.number)), geometry)
    return back(x[unpadded_key(w)])


@in_float32
def _cotangent_of_weight(ct: Any, x: Any, geometry: Any, groups: int) -> Any:
    w = Windows(*geometry)
    shape, dtype = (ct.shape[1], x.shape[1] // groups, *w.kernel), np.result_type(ct.dtype, x.dtype)
    dry = shape_only(shape, dtype, ct, x)
    if dry is not None:
        return dry
    w, (ct, x), _ = arranged(w, ct, x)
    cts, x = _grouped(ct, groups), padded(x, w)
    matrices = (groups, shape[0] // groups, math.prod(shape[1:]))
    total = np.zeros_like(ct, dtype, shape=matrices, order="C")
    for block in _blocks(x, w):
        columns, part = _columns(x, block, groups), cts[block.examples, ..., block.windows]
        n, count = len(part), part.shape[3]
        if n == 1:
            total += part[0] @ columns[0].swapaxes(-1, -2)
        else:  # one product per group over all examples, in the place of one per example
            left = part.transpose((1, 2, 0, 3)).reshape((*matrices[:2], n * count))
            total += left @ columns.transpose((1, 0, 3, 2)).reshape((groups, n * count, matrices[2]))
    return total.reshape(shape)


def _dims(first: Any, second: Any) -> Any:
    """The dimension rule, from the entries of the two leading dimensions of each operand.

    Channels may be sharded only where there is one group.
    """

    def dims(shapes: Sequence[Shape], options: Any) -> Any:
        spatial = (Mix,) * (len(shapes[0]) - 2)
        one = options[1] == 1
        return [
            tuple(e if one or e in (0, _EXAMPLE) and at == 0 else Mix for at, e in enumerate(lead)) + spatial
            for lead in (first, second)
        ]

    return dims


convolution_op: Primitive = op(
    "convolution", "a b", _forward,
    (lambda ct, y, x, w, geometry, groups: convolution_input(ct, w, options=(geometry, groups)),
     lambda ct, y, x, w, geometry, groups: convolution_weight(ct, x, options=(geometry, groups))),
    saves="01", dims=_dims((0, _IN), (1, _IN)), operands="x weight",
)  # fmt: skip
convolution_input: Primitive = op(
    "convolution_input", "a b", _cotangent_of_input,
    (lambda g, y, ct, w, geometry, groups: convolution_op(g, w, options=(geometry, groups)),
     lambda g, y, ct, w, geometry, groups: convolution_weight(ct, g, options=(geometry, groups))),
    saves="01", dims=_dims((0, _OUT), (_OUT, 1)), operands="ct weight",
)  # fmt: skip
convolution_weight: Primitive = op(
    "convolution_weight", "a b", _cotangent_of_weight,
    (lambda g, y, ct, x, geometry, groups: convolution_op(x, g, options=(geometry, groups)),
     lambda g, y, ct, x, geometry, groups: convolution_input(ct, g, options=(geometry, groups))),
    saves="01", dims=_dims((_EXAMPLE, 0), (_EXAMPLE, 1)), operands="ct x",
)  # fmt: skip


@overload
def convolution(
    x: Tensor, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor: ...
@overload
def convolution(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any: ...
@typed_errors
def convolution(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Return the convolution (cross-correlation) of x with weight, plus bias.

    Parameters
    ----------
    x : ``[n, channels, *spatial]``
    weight : ``[outputs, channels / groups, *kernel]``
    bias : [outputs], optional
    stride, dilation : int or one per spatial dimension
    padding : int or one per spatial dimension, "valid" or "same"
        The number of zeros on both sides. "valid" is no padding; "same" gives as many windows as x has positions.
    groups : int
        Channels and outputs are divided into this number of groups, each with its own weights.

    Returns
    -------
    ``[n, outputs, *windows]``
        Examples may be sharded (the cotangent of weight is then Partial); channels and outputs too where there is
        one group. Spatial dimensions may not.

    Raises
    ------
    ShapeError
        The shapes do not fit, or no window fits into the padded extents.

    Notes
    -----
    ``y[n, o, i] = sum over c, k of weight[o, c, k] x[n, c, i * stride + k * dilation - padding] (+ bias[o])``.
    Adjoint: the transposed convolution for x, the correlation of ct and x for weight. Source: Chellapilla et al. 2006,
    section 3 (windows as columns of a matrix).

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> ops.convolution(numpy.arange(5.0).reshape(1, 1, 5), numpy.ones((1, 1, 3)))[0, 0]
    array([3., 6., 9.])
    """
    xs, ws = (a.array.shape if a.__class__ in TENSORS else np.shape(a) for a in (x, weight))
    fits = len(xs) == len(ws) >= 3 and groups >= 1 and xs[1] == ws[1] * groups and ws[0] % groups == 0
    if not fits:
        raise ShapeError(
            f"convolution: x of shape {xs}, weight of shape {ws}, groups={groups}; needed: [n, channels, *spatial], "
            "[outputs, channels / groups, *kernel], and outputs a multiple of groups"
        )
    w = windows("convolution", xs[2:], ws[2:], stride, padding, dilation)
    y = convolution_op(x, weight, options=(tuple(w), groups))
    return y if bias is None else y + reshape(bias, (-1, *(1 for _ in w.extents)))


__all__ = ["convolution"]
