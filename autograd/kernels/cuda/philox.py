"""Random numbers of a part of a logical tensor, drawn on the device: those of `autograd.random`, bit by bit.

A draw is described without the tensor: the two words of the stream's key, and the part as pairs (where it is in the
array, where it is in the logical tensor), of slices of all dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from .program import TYPES, launch, program, type_name

__all__ = ["PROGRAM", "THREADS", "Box", "Runs", "draw", "grid", "items", "runs"]

THREADS = 256
PROGRAM = program(
    "philox",
    (*(f"dropout<{name}>" for name in TYPES), *(f"real_numbers<{name}>" for name in TYPES[:3]), "integers", "booleans"),
)  # fmt: skip

Box = tuple[tuple[int, int], ...]
"""A part of an array: (start, stop) of each dimension."""


class Runs(NamedTuple):
    """Places of elements [outer, inner, run] in an array and in the stream: the numbers of `Places` in `philox.cu`."""

    outer: int
    inner: int
    run: int
    start: int
    outer_step: int
    inner_step: int
    word: int
    outer_words: int
    inner_words: int


def runs(shape: tuple[int, ...], extents: tuple[int, ...], pieces: Sequence[tuple[Box, Box]]) -> Iterator[Runs]:
    """The runs of pieces of an array of a shape, given their places in a logical tensor of some extents.

    Adjacent dimensions are joined where they are adjacent in both. What has more than three left is divided.

    Examples
    --------
    >>> list(runs((2, 3), (4, 3), [(((0, 2), (0, 3)), ((1, 3), (0, 3)))]))
    [Runs(outer=1, inner=1, run=6, start=0, outer_step=0, inner_step=0, word=3, outer_words=0, inner_words=0)]
    """
    for at, where in pieces:
        if any(stop == start for start, stop in at):
            continue
        groups = [[1, 1, 1]]  # number of elements, step in the array, step in the stream; the last dimension first
        start = word = 0
        step = words = 1
        for (begin, stop), (place, _), n, extent in zip(at[::-1], where[::-1], shape[::-1], extents[::-1], strict=True):
            start += begin * step
            word += place * words
            count, own, own_words = groups[-1]
            if step == count * own and words == count * own_words:
                groups[-1][0] *= stop - begin
            elif stop - begin > 1:
                groups.append([stop - begin, step, words])
            step, words = step * n, words * extent
        groups += [[1, 0, 0]] * (3 - len(groups))
        (run, _, _), (inner, inner_step, inner_words), (outer, outer_step, outer_words), *others = groups
        for places in product(*(range(count) for count, _, _ in others)):
            own = sum(i * step for i, (_, step, _) in zip(places, others, strict=True))
            own_words = sum(i * words for i, (_, _, words) in zip(places, others, strict=True))
            steps = outer_step, inner_step, word + own_words, outer_words, inner_words
            yield Runs(outer, inner, run, start + own, *steps)


def items(r: Runs) -> int:
    """The number of threads that some runs need: one for each eight elements, and for the ends of a run."""
    return r.outer * r.inner * ((r.run + 10) // 8)


def grid(r: Runs) -> tuple[int]:
    """The grid for some runs; a thread of a large array has several of its items."""
    return (min(-(-items(r) // THREADS), 1 << 16),)


def draw(
    like: Any, shape: tuple[int, ...], dtype: Any, numbers: tuple[str, tuple[Any, ...]], stream: tuple[int, int],
    extents: tuple[int, ...], pieces: Sequence[tuple[Box, Box]],
) -> Any:  # fmt: skip
    """Draw numbers on the device of `like`.

    Parameters
    ----------
    shape : tuple of int
        Of the result, whose elements are those of the pieces.
    numbers : (kind, values)
        What is made of each word: `random.philox.Numbers`.
    stream : tuple of int
        The key of the words.
    extents : tuple of int
        The shape of the logical tensor.
    """
    out = np.empty_like(like, dtype, shape=shape)
    key = tuple(map(np.uint64, stream))
    kind, values = numbers
    for r in runs(shape, extents, pieces):
        places = tuple(map(np.int64, r))
        if kind in ("integers", "booleans"):
            whole = (np.uint64(value % 2**64) for value in values)
            launch(PROGRAM, kind, grid(r), (THREADS,), (out, *whole, *key, *places))
        else:
            number = np.int32(("uniform", "normal", "truncated_normal").index(kind))
            reals = tuple(map(np.float64, (*values, *[0.0] * (6 - len(values)))))
            name = f"real_numbers<{type_name(out.dtype)}>"
            launch(PROGRAM, name, grid(r), (THREADS,), (out, number, *reals, *key, *places))
    return out
