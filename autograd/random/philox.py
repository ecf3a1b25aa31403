"""The generator: a key's stream of 64-bit words, from any place of it, as the boxes of a logical tensor need them.

Philox makes four words from each value of a counter, so to go anywhere is to set it. NumPy's is used for the words
alone; everything that is made of them is this package's own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from ..arrays.shape_only import DRY, Shaped
from ..engine.recording import FREE
from ..engine.state import state
from ..engine.tensor import Tensor
from ..errors import DtypeError, ShapeError
from ..layouts.layout import Layout
from .keys import Key
from .placement import Part, coordinates, of_shape, of_tensor

__all__ = ["BLOCK", "draw", "floating", "write_words"]


Array = np.ndarray[Any, Any]
BLOCK = 16384  # words worked on at a time: the temporaries of a transform stay in the second level of cache
JUMP = 512  # words that take as long to make as one jump of the counter


class _Thread(threading.local):
    """Per thread, for ranks may be threads of one process."""

    philox: np.random.Philox | None = None  # kept because making one costs 16 times as much as moving one


_thread = _Thread()


def write_words(out: Array, key: Key, shape: tuple[int, ...], part: Part) -> None:
    """Write the words of one box of the logical tensor into `out`, a new array of the box's shape."""
    if out.size == 0:
        return
    philox = _thread.philox
    if philox is None:
        philox = _thread.philox = np.random.Philox(0)
    text = f"{key.seed}\0{key.step}\0{key.name}"  # two integers without zero bytes, then anything: no two keys alike
    person = b"ringtape"
    if key.axes:
        text, person = f"{coordinates(key.axes)!a}\0{text}", b"ringtape along"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=person).digest()
    counter = np.zeros(4, np.uint64)
    state: Any = {
        "bit_generator": "Philox",
        "state": {"counter": counter, "key": np.frombuffer(digest, "<u8").astype(np.uint64)},
        "buffer": np.zeros(4, np.uint64),
        "buffer_pos": 4,  # empty: the next word is the first of a counter's four
        "has_uint32": 0,
        "uinteger": 0,
    }

    def run(target: Array, start: int) -> None:
        """Write words start, start + 1, ... of the stream."""
        counter[0], skip = divmod(start, 4)
        philox.state = state
        if skip:
            philox.random_raw(skip)
        for i in range(0, target.size, BLOCK):
            block = target[i : i + BLOCK]
            block[:] = philox.random_raw(block.size)

    def box(target: Array, start: int, shape: tuple[int, ...], part: Part) -> None:
        """Write the box `part` of a tensor of that shape, whose first element has word `start`."""
        inner = math.prod(shape[1:])
        first, last = part[0].start, part[0].stop
        if target.size == (last - first) * inner:
            run(target.reshape(-1), start + first * inner)
        elif inner <= JUMP:  # rows too short to jump between: make them whole, some at a time, and cut
            rows = BLOCK // inner
            for row in range(first, last, rows):
                whole = np.empty((min(rows, last - row), *shape[1:]), np.uint64)
                run(whole.reshape(-1), start + row * inner)
                target[row - first : row - first + len(whole)] = whole[(slice(None), *part[1:])]
        else:
            for row in range(first, last):
                box(target[row - first], start + row * inner, shape[1:], part[1:])

    if shape:
        box(out, 0, shape, part)
    else:
        run(out.reshape(-1), 0)




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
