"""Cases of prod, var, std, average, cumulative sums and products, and of the functions that ignore NaNs."""

from __future__ import annotations

from typing import Any

import numpy

import autograd.numpy as np

from .base import apart, case, normal, positive, strided

_AXES = (((2, 3), None, False), ((2, 3), 0, False), ((2, 3, 2), (0, 2), True), ((), None, False))
for _shape, _axis, _keep in _AXES:
    case("prod", f"{_shape} axis={_axis}", lambda x, a=_axis, k=_keep: np.prod(x, a, keepdims=k),
         lambda x, a=_axis, k=_keep: numpy.prod(x, a, keepdims=k), positive(*_shape))  # fmt: skip
    case("mean", f"var {_shape} axis={_axis}", lambda x, a=_axis, k=_keep: np.var(x, a, keepdims=k),
         lambda x, a=_axis, k=_keep: numpy.var(x, a, keepdims=k), normal(*_shape))  # fmt: skip
case("prod", "one zero", lambda x: np.prod(x, 1), lambda x: numpy.prod(x, 1),
     lambda rng: numpy.array([[0.5, 0.0, 2.0], [1.5, 0.7, 2.0]]))  # fmt: skip
case("prod", "two zeros", np.prod, numpy.prod, lambda rng: numpy.array([0.5, 0.0, 2.0, 0.0]))
case("prod", "zeros over two axes", lambda x: np.prod(x, (0, 2)), lambda x: numpy.prod(x, (0, 2)),
     lambda rng: numpy.array([[[1.5, 0.0], [0.5, 1.0]]]))  # fmt: skip
case("prod", "of nothing", lambda x: np.prod(x, 0), lambda x: numpy.prod(x, 0), normal(2, 0))
case("prod", "strided", lambda x: np.prod(x, 0), lambda x: numpy.prod(x, 0), strided(positive(2, 2)))
for _name in ("cumsum", "cumprod"):
    _ours, _theirs = getattr(np, _name), getattr(numpy, _name)
    for _shape, _axis in (((2, 3), None), ((2, 3), 0), ((2, 3), -1), ((0, 2), 0)):
        case(_name, f"{_shape} axis={_axis}", lambda x, f=_ours, a=_axis: f(x, a),
             lambda x, f=_theirs, a=_axis: f(x, a), positive(*_shape))  # fmt: skip
    case(_name, "strided", lambda x, f=_ours: f(x, 1), lambda x, f=_theirs: f(x, 1), strided(positive(2, 2)))
case("cumprod", "zeros", lambda x: np.cumprod(x, 1), lambda x: numpy.cumprod(x, 1),
     lambda rng: numpy.array([[0.5, 0.0, 2.0, 1.5], [1.5, 0.7, 0.0, 0.0]]))  # fmt: skip
case("root", "std", lambda x: np.std(x, 1, ddof=1), lambda x: numpy.std(x, 1, ddof=1), normal(2, 3))
case("root", "std of all", np.std, numpy.std, normal(2, 3))
case("divide", "average", lambda x, w: np.average(x, 1, w), lambda x, w: numpy.average(x, 1, w), normal(2, 3),
     positive(3))  # fmt: skip
_NANS = numpy.array([[False, True, False], [False, False, False]])


def _with_nans(f: Any) -> Any:
    return lambda x: f(np.where(_NANS, numpy.nan, x))


for _name in ("nansum", "nanmean", "nanvar", "nanstd", "nanprod", "nanmax", "nanmin", "nancumsum", "nancumprod",
              "nanmedian"):  # fmt: skip
    case("where", f"{_name} of a host array", _with_nans(lambda x, n=_name: getattr(np, n)(x, axis=1)),
         _with_nans(lambda x, n=_name: getattr(numpy, n)(x, axis=1)), apart(2, 3))  # fmt: skip
