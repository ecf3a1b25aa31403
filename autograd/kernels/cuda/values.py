"""Numbers that a kernel takes by value, and numbers on the device that are set without a copy from the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from .program import launch, program

__all__ = ["by_value", "on_device", "store"]

_FEW, _MANY = 256, 3584  # bytes of a launch; CUDA allows 4,096 bytes of arguments
PROGRAM = program("values", (f"store<{_FEW}>", f"store<{_MANY}>"))


def by_value(numbers: np.ndarray) -> np.void:
    """An array as one argument of a kernel, which takes a struct with its elements."""
    found: np.void = numbers.view(np.dtype((np.void, numbers.nbytes)))[0]
    return found


def store(out: Any, numbers: np.ndarray) -> None:
    """Set a contiguous device array to the values of a host array of its dtype and size.

    The values are arguments of kernels, 3,584 bytes in a launch, so that nothing waits and the host array may change
    afterwards. It is meant for few numbers.
    """
    assert out.nbytes == numbers.nbytes and out.dtype == numbers.dtype and out.flags.c_contiguous
    given, flat = np.frombuffer(numbers.tobytes(), np.uint8), out.reshape(-1)
    most = _FEW if len(given) <= _FEW else _MANY
    for start in range(0, len(given), most):
        values = np.zeros(most, np.uint8)
        count = min(most, len(given) - start)
        values[:count] = given[start : start + count]
        into = flat[start // out.itemsize :]
        launch(PROGRAM, f"store<{most}>", (1,), (128,), (into, by_value(values), np.int32(count)))


def on_device(numbers: np.ndarray, like: Any) -> Any:
    """A new array with the values of a host array on the device of `like`; see `store`."""
    out = np.empty_like(like, numbers.dtype, shape=numbers.shape)
    store(out, numbers)
    return out
