"""Cases of indexing and its adjoint."""

from __future__ import annotations

from typing import Any

import numpy

from autograd import ops
from autograd.engine.primitive import registry

from .base import Array, case, normal, strided

_KEYS: dict[str, Any] = {
    "integer": 1,
    "negative": -1,
    "slice": slice(1, None),
    "steps": slice(None, None, -2),
    "empty slice": slice(2, 2),
    "tuple": (1, slice(None), 2),
    "all integers": (0, 1, 2),
    "ellipsis": (..., 0),
    "newaxis": (None, 1, None),
    "index array": numpy.array([0, 2, 2, -1]),
    "list": [2, 0],
    "2-d index array": numpy.array([[0, 1], [2, 2]]),
    "two index arrays": (numpy.array([0, 2, 0]), numpy.array([1, 1, 1])),
    "index arrays apart": (numpy.array([0, 1]), slice(None), numpy.array([3, 3])),
    "array and slice": (slice(None), numpy.array([1, 1]), slice(0, 2)),
    "mask": numpy.array([True, False, True]),
    "full mask": numpy.arange(24).reshape(3, 2, 4) % 3 == 0,
    "mask of nothing": numpy.zeros((3, 2), bool),
    "whole": (),
}
for _label, _key in _KEYS.items():
    case("getitem", _label, lambda x, k=_key: x[k], lambda x, k=_key: x[k], normal(3, 2, 4))
case("getitem", "strided", lambda x: x[1:, ::2], lambda x: x[1:, ::2], strided(normal(3, 4)))


def put(x: Array, key: Any, shape: tuple[int, ...]) -> Array:
    return registry["put"](x, options=(ops.indexing.normal_key(key), shape))


def numpy_put(x: Array, key: Any, shape: tuple[int, ...]) -> Array:
    out = numpy.zeros(shape, x.dtype)
    numpy.add.at(out, key, x)
    return out


for _label, _key, _part in (("slice", slice(1, 3), (2, 2)), ("twice", numpy.array([0, 0, 2]), (3, 2)),
                            ("mask", numpy.array([True, False, True, False]), (2, 2)),
                            ("nothing", slice(0, 0), (0, 2))):  # fmt: skip
    case("put", _label, lambda x, k=_key: put(x, k, (4, 2)), lambda x, k=_key: numpy_put(x, k, (4, 2)), normal(*_part))
