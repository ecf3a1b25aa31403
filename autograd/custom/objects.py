"""Objects as arguments of transforms: a box that holds a vector of a space of the program's own, and no array.

Only primitives of the program compute with it. Their rules get the object, and give cotangents that are objects, too,
which a sweep adds by ``+``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.recording import OUTSIDE
from ..engine.tensor import Tensor

__all__ = ["Opaque", "boxed"]


class Opaque(Tensor):
    """The box of an object. Its array, a number, only says that it has derivatives."""

    __slots__ = ("_space", "held")
    held: Any

    @property
    def _value(self) -> Any:
        return self.held



def boxed(kind: type, value: Any, space: Any) -> Any:
    """The box of an object: an instance of the program's class of boxes, `kind`, and of `Opaque`."""
    made = _kinds.get(kind)
    if made is None:
        made = _kinds[kind] = type(kind)(kind.__name__, (kind, Opaque), {"__module__": kind.__module__})
    box = object.__new__(made)
    box.array, box.layout, box.tape, box.node = np.zeros(()), None, None, OUTSIDE
    box.held, box._space = value, space
    return box


_kinds: dict[type, Any] = {}
