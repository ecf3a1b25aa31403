"""The generator: a key's stream of 64-bit words, from any place of it, as the boxes of a logical tensor need them.

Philox makes four words from each value of a counter, so to go anywhere is to set it. NumPy's is used for the words
alone; everything that is made of them is this package's own.
"""

from __future__ import annotations

import math
import threading
from hashlib import blake2b
from typing import Any

import numpy as np

from .keys import Key
from .places import Part, coordinates

__all__ = ["BLOCK", "write_words"]

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
