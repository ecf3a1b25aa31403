"""The sum of squares of many arrays in one pass, which can also write them times a number.

The sum is made in double precision and in a fixed order, so that it is the same at each call. An element of float32 is
read once (4 bytes); with an output 4 bytes are written, too. An element of 16 bits is read once (2 bytes), and written
as float32 (4 bytes) or in place (2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .batch import THREADS, pieces_of
from .program import NULL, launch, program, type_name

__all__ = ["is_supported", "squares"]

_KINDS = ("float, float", "double, double", "Half, float", "BFloat16, float", "Half, Half", "BFloat16, BFloat16")
PROGRAM = program("squares", (*(f"squares<{kind}>" for kind in _KINDS), "total"))


def is_supported(x: Any) -> bool:
    """Whether an array has a dtype that the kernels support and is contiguous."""
    return x.dtype.name in ("float32", "float64", "float16", "bfloat16") and x.flags.c_contiguous


def squares(
    xs: Sequence[Any], outs: Sequence[Any] | None = None, scale: Any = 1.0, *, with_sum: bool = True, result: Any = None
) -> Any:
    """The sum of the squares of ``scale x`` over all elements, and whether one is infinite or NaN.

    Parameters
    ----------
    xs : sequence of arrays
        Of one dtype, contiguous, on one device.
    outs : sequence of arrays, optional
        Of the same shapes: ``scale x`` is written to them. They are of the same dtype and may be the same arrays, or
        float32 for arrays of 16 bits.
    scale : float or array
        A number, or one float64 on the device.
    with_sum : bool
        False if only the outputs are needed.
    result : array, optional
        The array of the result.

    Returns
    -------
    array or None
        Two numbers of float64 on the device: the sum, and 1 for infinite or NaN, else 0.
    """
    like = xs[0]
    wide = outs[0].dtype if outs is not None else like.dtype if like.dtype.itemsize > 2 else np.dtype(np.float32)
    kernel = f"squares<{type_name(like.dtype)}, {type_name(wide)}>"
    batch = pieces_of(xs)
    by_value, on_device = (np.float64(scale), NULL) if isinstance(scale, float | int) else (np.float64(1), scale)
    sums = np.empty_like(like, np.float64, shape=(len(batch.work), 2)) if with_sum else None
    for first, work, addresses in batch.launches(xs, [None] * len(xs) if outs is None else outs):
        at = batch.ends[first]
        launch(
            PROGRAM, kernel, (len(work),), (THREADS,),
            (batch.rows, work, np.int32(first), addresses, by_value, on_device,
             NULL if sums is None else sums[at : at + len(work)]),
        )  # fmt: skip
    if sums is None:
        return None
    result = np.empty_like(like, np.float64, shape=(2,)) if result is None else result
    launch(PROGRAM, "total", (1,), (2 * THREADS,), (sums, np.int64(len(batch.work)), result))
    return result
