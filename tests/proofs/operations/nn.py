"""Cases of embedding, unfolding, convolution and pooling. The references are plain loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy

from autograd import ops
from autograd.engine.primitive import registry
from autograd.ops.nn.unfold import Windows, windows

from .base import Array, apart, case, normal, strided

_INDEX: dict[str, Any] = {
    "one": numpy.array(2),
    "row": numpy.array([0, 2, 2, 1]),
    "of two dimensions": numpy.array([[3, 0, 3], [1, 3, 0]]),
    "none": numpy.zeros((0,), int),
}
for _label, _at in _INDEX.items():
    case("take_rows", _label, lambda x, i=_at: ops.take_rows(x, i), lambda x, i=_at: x[i], normal(4, 3))


def add_rows(ct: Any, index: Array) -> Any:
    return registry["add_rows"](ct, index, options=(4,))


def numpy_add_rows(ct: Array, index: Array) -> Array:
    out = numpy.zeros((4, *ct.shape[index.ndim :]), ct.dtype)
    numpy.add.at(out, index, ct)
    return out


for _label, _at in _INDEX.items():
    case("add_rows", _label, lambda ct, i=_at: add_rows(ct, i), lambda ct, i=_at: numpy_add_rows(ct, i),
         normal(*_at.shape, 3))  # fmt: skip
case("add_rows", "strided", lambda ct: add_rows(ct, numpy.array([1, 1])),
     lambda ct: numpy_add_rows(ct, numpy.array([1, 1])), strided(normal(2, 3)))  # fmt: skip

_OWN: dict[str, Any] = {**_INDEX, "of other parts": numpy.array([2, -1, 2, -1]), "none here": numpy.array([-1, -1])}
for _label, _at in _OWN.items():
    case("take_own_rows", _label, lambda x, i=_at: registry["take_own_rows"](x, i),
         lambda x, i=_at: x[i] * (i >= 0)[..., None], normal(4, 3))  # fmt: skip
    case("add_own_rows", _label, lambda ct, i=_at: registry["add_own_rows"](ct, i, options=(4,)),
         lambda ct, i=_at: numpy_add_rows(ct * (i >= 0)[..., None], i), normal(*_at.shape, 3))  # fmt: skip
case("take_own_rows", "strided", lambda x: registry["take_own_rows"](x, numpy.array([1, -1])),
     lambda x: x[[1, 1]] * numpy.array([[True], [False]]), strided(normal(2, 3)))  # fmt: skip
case("add_own_rows", "strided", lambda ct: registry["add_own_rows"](ct, numpy.array([1, -1]), options=(4,)),
     lambda ct: numpy_add_rows(ct[:1], numpy.array([1])), strided(normal(2, 3)))  # fmt: skip


def numpy_unfold(x: Array, w: Windows, fill: float = 0.0) -> Array:
    """Return all windows, [n, c, elements of a window, *windows], by a loop over windows and their elements."""
    pads = [(0, 0), (0, 0), *w.padding]
    wide = numpy.pad(x, pads, constant_values=fill)
    out = numpy.zeros((*x.shape[:2], int(numpy.prod(w.kernel)), *w.number), x.dtype)
    for at in itertools.product(*map(range, w.number)):
        for k, inside in enumerate(itertools.product(*map(range, w.kernel))):
            place: Any = tuple(i * s + j * d for i, s, j, d in zip(at, w.stride, inside, w.dilation, strict=True))
            target: Any = (slice(None), slice(None), k, *at)
            out[target] = wide[(slice(None), slice(None), *place)]
    return out


def numpy_convolution(x: Array, weight: Array, w: Windows, groups: int = 1) -> Array:
    unfolded = numpy_unfold(x, w)
    n, c, out = x.shape[0], x.shape[1] // groups, weight.shape[0] // groups
    y = numpy.zeros((n, weight.shape[0], *w.number), numpy.result_type(x, weight))
    for g in range(groups):
        part = weight[g * out : (g + 1) * out].reshape(out, c, int(numpy.prod(w.kernel)))
        y[:, g * out : (g + 1) * out] = numpy.einsum("nck...,ock->no...", unfolded[:, g * c : (g + 1) * c], part)
    return y


_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...], int]] = {
    # x, weight, (stride, padding, dilation), groups
    "1d": ((2, 2, 5), (3, 2, 2), (1, 0, 1), 1),
    "1d, everything": ((1, 4, 8), (2, 2, 3), (2, 1, 2), 2),
    "2d": ((2, 2, 4, 3), (2, 2, 2, 2), (1, 0, 1), 1),
    "2d, stride and padding": ((1, 2, 4, 5), (3, 2, 3, 2), ((2, 1), (1, 0), 1), 1),
    "2d, dilation": ((1, 1, 5, 4), (1, 1, 2, 2), (1, 1, (2, 1)), 1),
    "2d, a group a channel": ((2, 2, 3, 3), (4, 1, 2, 2), (1, 1, 1), 2),
    "2d, same": ((1, 1, 3, 4), (2, 1, 2, 3), (1, "same", 1), 1),
    "2d, one place": ((2, 3, 2, 2), (2, 3, 1, 1), (1, 0, 1), 1),
    "2d, one place, stride": ((1, 2, 3, 4), (2, 2, 1, 1), (2, 0, 1), 1),
    "3d": ((1, 1, 2, 3, 2), (2, 1, 2, 2, 1), (1, 0, 1), 1),
    "no examples": ((0, 2, 3), (2, 2, 2), (1, 0, 1), 1),
    "2d, more examples than places": ((4, 2, 4, 3), (4, 1, 2, 2), ((2, 1), (1, 0), 1), 2),
}
for _label, (_x, _weight, _words, _groups) in _SHAPES.items():
    _w = windows("case", _x[2:], _weight[2:], *_words)
    _y = (_x[0], _weight[0], *_w.number)
    case("unfold", _label, lambda x, w=_w: registry["unfold"](x, options=(tuple(w),)),
         lambda x, w=_w: numpy_unfold(x, w), normal(*_x))  # fmt: skip
    case("convolution", _label, lambda x, m, w=_w, g=_groups: registry["convolution"](x, m, options=(tuple(w), g)),
         lambda x, m, w=_w, g=_groups: numpy_convolution(x, m, w, g), normal(*_x), normal(*_weight))  # fmt: skip


def _transpose(linear: Any, x_shape: tuple[int, ...]) -> Any:
    """Return the adjoint of a linear function of x, computed column by column."""

    def adjoint(ct: Array) -> Array:
        out = numpy.zeros(x_shape, ct.dtype)
        for at in numpy.ndindex(*x_shape):
            one = numpy.zeros(x_shape)
            one[at] = 1
            out[at] = (linear(one) * ct).sum()
        return out

    return adjoint


for _label in ("1d", "1d, everything", "2d, stride and padding", "2d, one place", "no examples",
               "2d, more examples than places"):  # fmt: skip
    _x, _weight, _words, _groups = _SHAPES[_label]
    _w = windows("case", _x[2:], _weight[2:], *_words)
    _y = (_x[0], _weight[0], *_w.number)
    _unfolded = (*_x[:2], int(numpy.prod(_w.kernel)), *_w.number)
    case("fold", _label, lambda ct, w=_w: registry["fold"](ct, options=(tuple(w),)),
         lambda ct, w=_w, shape=_x: _transpose(lambda x: numpy_unfold(x, w), shape)(ct),
         normal(*_unfolded))  # fmt: skip
    case("convolution_input", _label,
         lambda ct, m, w=_w, g=_groups: registry["convolution_input"](ct, m, options=(tuple(w), g)),
         lambda ct, m, w=_w, g=_groups, s=_x: _transpose(lambda x: numpy_convolution(x, m, w, g), s)(ct),
         normal(*_y), normal(*_weight))  # fmt: skip
    case("convolution_weight", _label,
         lambda ct, x, w=_w, g=_groups: registry["convolution_weight"](ct, x, options=(tuple(w), g)),
         lambda ct, x, w=_w, g=_groups, s=_weight: _transpose(lambda m: numpy_convolution(x, m, w, g), s)(ct),
         normal(*_y), normal(*_x))  # fmt: skip
case("convolution", "strided", lambda x, m: ops.convolution(x, m, padding=1),
     lambda x, m: numpy_convolution(x, m, windows("case", (3, 4), (2, 2), 1, 1)), strided(normal(2, 2, 3, 4)),
     strided(normal(3, 2, 2, 2)))  # fmt: skip
case("convolution", "bias", ops.convolution,
     lambda x, m, b: numpy_convolution(x, m, windows("case", (4,), (2,))) + b[:, None], normal(2, 2, 4),
     normal(3, 2, 2), normal(3))  # fmt: skip



def numpy_at_maxima(dx: Array, x: Array, w: Windows) -> Array:
    """The elements of dx at the first maximum of each window of x."""
    first = numpy_unfold(x, w, -numpy.inf).argmax(axis=2)
    return numpy.take_along_axis(numpy_unfold(dx, w), first[:, :, None], 2)[:, :, 0]


for _label, _shape, _words in (("1d", (2, 2, 5), (2,)), ("1d, overlap", (1, 2, 5), (3, 1, 1)),
                               ("2d", (2, 1, 4, 4), (2,)), ("2d, padding", (1, 2, 4, 5), (3, 2, 1)),
                               ("2d, more examples than places", (4, 1, 4, 3), (2, 1, 1)),
                               ("no examples", (0, 2, 4), (2,))):  # fmt: skip
    _kernel, _stride, _padding = (*_words, _words[0], 0)[:3] if len(_words) == 1 else _words
    _w = windows("case", _shape[2:], _kernel, _stride, _padding)
    case("max_pool", _label, lambda x, words=(_kernel, _stride, _padding): ops.max_pool(x, *words),
         lambda x, w=_w: numpy_unfold(x, w, -numpy.inf).max(axis=2), apart(*_shape))  # fmt: skip
    _values = numpy.random.default_rng(0).integers(0, 3, _shape).astype(float)  # with ties
    case("max_pool_tangent", _label,
         lambda dx, x=_values, w=_w: registry["max_pool_tangent"](dx, x, options=(tuple(w),)),
         lambda dx, x=_values, w=_w: numpy_at_maxima(dx, x, w), normal(*_shape))  # fmt: skip
    case("max_pool_cotangent", _label,
         lambda ct, x=_values, w=_w: registry["max_pool_cotangent"](ct, x, options=(tuple(w),)),
         lambda ct, x=_values, w=_w: _transpose(lambda dx: numpy_at_maxima(dx, x, w), x.shape)(ct),
         normal(*_shape[:2], *_w.number))  # fmt: skip
    case("unfold", f"avg_pool {_label}", lambda x, words=(_kernel, _stride, _padding): ops.avg_pool(x, *words),
         lambda x, w=_w: numpy_unfold(x, w).mean(axis=2), normal(*_shape))  # fmt: skip
    case("unfold", f"avg_pool {_label}, padding not counted",
         lambda x, words=(_kernel, _stride, _padding): ops.avg_pool(x, words[0], words[1], words[2], False),
         lambda x, w=_w: numpy.nanmean(numpy_unfold(x, w, numpy.nan), axis=2), normal(*_shape))  # fmt: skip
for _name, _of in (("max_pool_tangent", (1, 2, 4, 4)), ("max_pool_cotangent", (1, 2, 2, 2))):
    _w, _values = windows("case", (4, 4), 2, 2), numpy.random.default_rng(1).integers(0, 3, (1, 2, 4, 4)).astype(float)
    case(_name, "strided", lambda a, n=_name, x=_values, w=_w: registry[n](a, x, options=(tuple(w),)),
         lambda a, n=_name, x=_values, w=_w: numpy_at_maxima(a, x, w) if n.endswith("tangent") and a.shape == x.shape
         else _transpose(lambda dx: numpy_at_maxima(dx, x, w), x.shape)(a), strided(normal(*_of)))  # fmt: skip
case("max_pool", "strided", lambda x: ops.max_pool(x, 2), lambda x: numpy_unfold(
    x, windows("case", (4, 4), 2, 2), -numpy.inf).max(axis=2), strided(apart(1, 2, 4, 4)))  # fmt: skip
