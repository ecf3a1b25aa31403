"""Cases of sum, mean, max and min."""

from __future__ import annotations

import numpy

import autograd.numpy as np

from .base import apart, case, normal, real_only, strided

for _name, _numpy, _domain in (("sum", numpy.sum, normal), ("mean", numpy.mean, normal), ("max", numpy.max, apart),
                               ("min", numpy.min, apart)):  # fmt: skip
    _ours = getattr(np, _name)
    for _shape, _axis, _keep in (((2, 3), None, False), ((2, 3), 0, False), ((2, 3), -1, True), ((2, 3), (0, 1), True),
                                 ((2, 3, 2), (0, 2), False), ((2, 3, 2), (2, 0), False), ((), None, False),
                                 ((3,), None, True), ((1, 1), 0, False), ((2, 3), (), False)):
        case(_name, f"{_shape} axis={_axis} keepdims={_keep}",
             lambda x, f=_ours, a=_axis, k=_keep: f(x, axis=a, keepdims=k),
             lambda x, f=_numpy, a=_axis, k=_keep: f(x, axis=a, keepdims=k), _domain(*_shape))  # fmt: skip
    case(_name, "strided", lambda x, f=_ours: f(x, 1), lambda x, f=_numpy: f(x, 1), strided(_domain(2, 3)))
    case(_name, "method", lambda x, n=_name: getattr(x, n)(axis=1), lambda x, f=_numpy: f(x, 1), _domain(2, 3))
case("sum", "of nothing", np.sum, numpy.sum, normal(0))
case("sum", "over an empty axis", lambda x: np.sum(x, 1), lambda x: numpy.sum(x, 1), normal(2, 0))
case("sum", "over a full axis of an empty array", lambda x: np.sum(x, 0), lambda x: numpy.sum(x, 0), normal(2, 0))
case("max", "over a full axis of an empty array", lambda x: np.max(x, 0), lambda x: numpy.max(x, 0), normal(2, 0))
real_only("max", "min", reason="complex numbers have no order")
