"""Cases of matrix products and of `linear`."""

from __future__ import annotations

import numpy

import autograd.numpy as np
from autograd import ops

from .base import case, normal, strided

for _a, _b in (
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((2, 1, 2, 3), (4, 3, 2)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((1, 1), (1, 1)),
    ((3, 2, 3), (1, 3, 2)),
):
    case("matmul", f"{_a} {_b}", lambda a, b: a @ b, numpy.matmul, normal(*_a), normal(*_b))
case("matmul", "strided", lambda a, b: a @ b, numpy.matmul, strided(normal(2, 3)), strided(normal(3, 4)))
case("matmul", "with its transpose", lambda a: a @ a.T, lambda a: a @ a.T, normal(2, 3))
case("matmul", "array left", lambda b: numpy.ones((2, 3)) @ b, lambda b: numpy.ones((2, 3)) @ b, normal(3, 2))
case("matmul", "dot", np.dot, numpy.dot, normal(2, 3), normal(3))
for _lead in ((2, 3), (2, 1, 3), (0, 2), (2, 0)):
    case("linear", f"{_lead} rows", lambda x, w, b: ops.linear(x, w, b), lambda x, w, b: x @ w + b, normal(*_lead, 4),
         normal(4, 3), normal(3))  # fmt: skip
case("linear", "strided", ops.linear, lambda x, w, b: x @ w + b, strided(normal(2, 3, 4)), strided(normal(4, 3)),
     normal(3))  # fmt: skip
for _n, _a, _b in ((1, (2, 4), (4, 3, 2)), (1, (2, 3, 4), (4, 3, 2)), (2, (2, 3, 4), (3, 4, 2)), (1, (0, 4), (4, 3, 2)),
                   (1, (2, 0), (0, 3, 1)), (2, (3, 4), (3, 4, 2))):  # fmt: skip
    case("contract", f"{_n} of {_a} {_b}", lambda a, b, n=_n: ops.contract(a, b, options=(n,)),
         lambda a, b, n=_n: numpy.tensordot(a, b, n), normal(*_a), normal(*_b))  # fmt: skip
