"""Numbers that a kernel takes by value, and numbers on the device that are set without a copy from the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from .program import launch, program

__all__ = ["by_value", "store"]

_BYTES = 256
PROGRAM = program("values", ("store",))


def by_value(numbers: np.ndarray) -> np.void:
    """An array as one argument of a kernel, which takes a struct with its elements."""
    found: np.void = numbers.view(np.dtype((np.void, numbers.nbytes)))[0]
    return found


def store(out: Any, numbers: np.ndarray) -> None:
    """Set a contiguous device array of up to 256 bytes to the values of a host array of its dtype and size.

    The values are arguments of a kernel, so that nothing waits and the host array may change afterwards.
    """
    assert out.nbytes == numbers.nbytes <= _BYTES and out.dtype == numbers.dtype
    given = np.zeros(_BYTES, np.uint8)
    given[: numbers.nbytes] = np.frombuffer(np.ascontiguousarray(numbers).tobytes(), np.uint8)
    launch(PROGRAM, "store", (1,), (32,), (out, by_value(given), np.int32(numbers.nbytes)))
