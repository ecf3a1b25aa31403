"""The module `autograd.numpy.numpy_boxes` of HIPS autograd: the type of traced arrays."""

from __future__ import annotations

from ..extend import Box
from ..tracer import DictBox, SequenceBox

__all__ = ["ArrayBox", "Box", "DictBox", "SequenceBox"]

ArrayBox = Box
