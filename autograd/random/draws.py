"""How a draw is made: this rank's words, each turned into a number by itself, and labelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays import DRY, Shaped
from ..errors import DtypeError, ShapeError
from ..layout import Layout
from ..state import state
from ..tensor import FREE, Tensor
from .keys import Key
from .places import Part, of_shape, of_tensor
from .words import BLOCK, write_words

__all__ = ["draw", "floating"]

Array = np.ndarray[Any, Any]


def draw(
    key: Key,
    shape: int | Sequence[int] | Tensor,
    part: Part | None,
    dtype: np.dtype[Any],
    transform: Callable[[Array], Array],
    caller: str,
    *,
    choices: bool = False,
) -> Any:
    """This rank's part of the logical tensor: its words, each transformed by itself.

    `choices` are numbers by which programs choose what to do: for a shape they are a plain array, real in a dry run.
    """
    if isinstance(shape, Tensor):
        if part is not None:
            raise ShapeError(f"{caller}: a Tensor was given, which knows its part, and part={part!r} too")
        extents, box, layout = of_tensor(shape, key.axes, caller)
    else:
        extents, box, layout = of_shape(shape, key.axes, part, caller)
        if choices:
            layout = None
    if state.dry and not (choices and layout is None):  # values, which nobody may look at
        values: Any = Shaped([s.stop - s.start for s in box], dtype, DRY)
        return values if layout is None else _labelled(values, layout)
    words = np.empty([s.stop - s.start for s in box], np.uint64)
    write_words(words, key, extents, box)
    # A result of 8 bytes an element takes the place of its words: a block is read before it is written.
    out = words.view(dtype) if dtype.itemsize == 8 else np.empty(words.shape, dtype)
    source, target = words.reshape(-1), out.reshape(-1)
    for i in range(0, source.size, BLOCK):
        target[i : i + BLOCK] = transform(source[i : i + BLOCK])
    return out if layout is None else _labelled(out, layout)


def _labelled(array: Any, layout: Layout) -> Tensor:
    return Tensor(array, layout, None, -1 if state.recording is None else FREE)


def floating(dtype: Any, caller: str) -> np.dtype[Any]:
    """The dtype of real numbers that was asked for, checked."""
    try:
        result = np.dtype(dtype)
    except TypeError:
        result = np.dtype(object)
    if result.kind != "f" or result.itemsize > 8:
        raise DtypeError(f"{caller}: dtype must be float64, float32 or float16, got {dtype!r}")
    return np.dtype(result.type)  # native order, and the one object that stands for this dtype
