"""Convolution over any number of spatial dimensions.

With the windows of x as the columns of a matrix it is a matrix product, ``y = w columns(x)``. The number
``<ct, conv(x, w)>`` is linear in each of x, w and ct. So there are three operations: the convolution and its
cotangents for x and for w. The adjoints of each are the other two, and derivatives of every order need no others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from ...arrays.half import in_float32
from ...arrays.shape_only import Shaped
from ...engine.primitive import Primitive, op
from ...engine.tensor import TENSORS, Tensor
from ...errors import ShapeError, typed_errors
from ...layouts.layout import Mix, Sum
from ..shape import reshape
from .unfold import Windows, folded, unfolded, windows

Shape = tuple[int, ...]
_IN, _OUT, _EXAMPLE = Sum("input channel"), Sum("output channel"), Sum("example")


def _columns(x: Any, w: Windows, groups: int) -> Any:
    """The windows of x as columns, [n, groups, channels of a group * elements of a kernel, windows]."""
    n, c = x.shape[:2]
    return unfolded(x, w).reshape((n, groups, c // groups * math.prod(w.kernel), math.prod(w.number)))


def _rows(weight: Any, groups: int) -> Any:
    """The weight as one matrix per group, [groups, outputs of a group, channels of a group * elements of a kernel]."""
    out = weight.shape[0]
    return weight.reshape((groups, out // groups, math.prod(weight.shape[1:])))


def _shape_only_result(xs: Sequence[Any], shape: Shape) -> Any:
    """A shape-only result if an operand is shape-only, else None."""
    for x in xs:
        if type(x) is Shaped:
            return Shaped(shape, np.result_type(xs[0].dtype, xs[1].dtype), x.why)
    return None


@in_float32
def _forward(x: Any, weight: Any, geometry: Any, groups: int) -> Any:
    w = Windows(*geometry)
    shape = (x.shape[0], weight.shape[0], *w.number)
    dry = _shape_only_result((x, weight), shape)
    return dry if dry is not None else (_rows(weight, groups) @ _columns(x, w, groups)).reshape(shape)


@in_float32
def _cotangent_of_input(ct: Any, weight: Any, geometry: Any, groups: int) -> Any:
    w = Windows(*geometry)
    n, channels = ct.shape[0], weight.shape[1] * groups
    dry = _shape_only_result((ct, weight), (n, channels, *w.extents))
    if dry is not None:
        return dry
    cts = ct.reshape((n, groups, ct.shape[1] // groups, math.prod(w.number)))
    columns = _rows(weight, groups).swapaxes(-1, -2) @ cts
    return folded(columns.reshape((n, channels, math.prod(w.kernel), *w.number)), w)


@in_float32
def _cotangent_of_weight(ct: Any, x: Any, geometry: Any, groups: int) -> Any:
    w = Windows(*geometry)
    n, out, channels = ct.shape[0], ct.shape[1], x.shape[1]
    shape = (out, channels // groups, *w.kernel)
    dry = _shape_only_result((ct, x), shape)
    if dry is not None:
        return dry
    count = math.prod(w.number)
    columns = _columns(x, w, groups)
    cts = ct.reshape((n, groups, out // groups, count))
    if n == 0:
        return np.zeros_like(ct, shape=shape)
    # with few or short columns one product per group, over all examples, is faster than one per example
    if n * count <= 2 * columns.shape[2] or count < 64:
        left = cts.transpose((1, 2, 0, 3)).reshape((groups, out // groups, n * count))
        right = columns.transpose((1, 0, 3, 2)).reshape((groups, n * count, columns.shape[2]))
        return (left @ right).reshape(shape)
    total = cts[0] @ columns[0].swapaxes(-1, -2)
    for i in range(1, n):
        total += cts[i] @ columns[i].swapaxes(-1, -2)
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
