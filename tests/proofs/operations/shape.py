"""Cases of reshape, transpose, broadcast_to, expand_dims, squeeze and concatenate."""

from __future__ import annotations

import numpy

import autograd.numpy as np

from .base import case, normal, strided

for _from, _to in (((2, 3), (6,)), ((2, 3), (3, -1)), ((), (1, 1)), ((1,), ()), ((0, 3), (3, 0)), ((4, 3), (2, 2, 3))):
    case("reshape", f"{_from} {_to}", lambda x, s=_to: np.reshape(x, s), lambda x, s=_to: numpy.reshape(x, s),
         normal(*_from))  # fmt: skip
case("reshape", "strided", lambda x: np.reshape(x, (3, 2)), lambda x: numpy.reshape(x, (3, 2)), strided(normal(2, 3)))
case("reshape", "ravel", np.ravel, numpy.ravel, normal(2, 3))
case("reshape", "ravel of nothing", np.ravel, numpy.ravel, normal(2, 0))
case("expand_dims", "in the middle", lambda x: np.expand_dims(x, 1), lambda x: numpy.expand_dims(x, 1), normal(2, 3))
case("expand_dims", "at the end", lambda x: np.expand_dims(x, -1), lambda x: numpy.expand_dims(x, -1), normal(2, 3))
case("squeeze", "one", lambda x: np.squeeze(x, 1), lambda x: numpy.squeeze(x, 1), normal(2, 1, 3))
case("expand_dims", "0-d", lambda x: np.expand_dims(x, 0), lambda x: numpy.expand_dims(x, 0), normal())
case("squeeze", "two", lambda x: np.squeeze(x, (0, -1)), lambda x: numpy.squeeze(x, (0, -1)), normal(1, 3, 1))
case("squeeze", "to 0-d", np.squeeze, numpy.squeeze, normal(1))
case("squeeze", "all", np.squeeze, numpy.squeeze, normal(1, 3, 1))
case("reshape", "method", lambda x: x.reshape(3, 2).reshape((6,)), lambda x: x.reshape(6), normal(2, 3))
for _axes in (None, (0, 1, 2), (1, 2, 0), (2, 0, 1), (-1, 0, 1)):
    case("transpose", str(_axes), lambda x, a=_axes: np.transpose(x, a), lambda x, a=_axes: numpy.transpose(x, a),
         normal(2, 3, 4))  # fmt: skip
case("transpose", "T", lambda x: x.T, lambda x: x.T, strided(normal(2, 3)))
case("transpose", "0-d", np.transpose, lambda x: x, normal())
case("transpose", "swapaxes", lambda x: np.swapaxes(x, 0, -1), lambda x: numpy.swapaxes(x, 0, -1), normal(2, 3, 4))
case("transpose", "moveaxis", lambda x: np.moveaxis(x, 0, -1), lambda x: numpy.moveaxis(x, 0, -1), normal(2, 3, 4))
for _from, _to in (((3,), (2, 3)), ((2, 1), (2, 3)), ((), (2, 2)), ((1, 1), (4, 2, 3)), ((0,), (2, 0)), ((3,), (0, 3)),
                   ((3,), (3,))):
    case("broadcast_to", f"{_from} {_to}", lambda x, s=_to: np.broadcast_to(x, s),
         lambda x, s=_to: numpy.broadcast_to(x, s), normal(*_from))  # fmt: skip
case("concatenate", "rows", lambda a, b: np.concatenate([a, b]), lambda a, b: numpy.concatenate([a, b]), normal(2, 3),
     normal(1, 3))  # fmt: skip
case("concatenate", "columns, one empty", lambda a, b, c: np.concatenate([a, b, c], -1),
     lambda a, b, c: numpy.concatenate([a, b, c], -1), normal(2, 3), normal(2, 0), normal(2, 1))  # fmt: skip
case("concatenate", "itself", lambda a: np.concatenate([a, a]), lambda a: numpy.concatenate([a, a]), normal(3))
case("concatenate", "with an array", lambda a: np.concatenate([a, numpy.ones(2)]),
     lambda a: numpy.concatenate([a, numpy.ones(2)]), normal(3))  # fmt: skip
case("concatenate", "one", lambda a: np.concatenate([a]), lambda a: a, normal(3))
case("concatenate", "stack", lambda a, b: np.stack([a, b], 1), lambda a, b: numpy.stack([a, b], 1), normal(2, 3),
     normal(2, 3))  # fmt: skip
case("concatenate", "stack of numbers", lambda a, b: np.stack([a, b]), lambda a, b: numpy.stack([a, b]), normal(),
     normal())  # fmt: skip
