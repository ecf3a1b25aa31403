"""Arrays that a tape has saved are read-only until the last tape that needs them is released.

`Recording.lock` locks them. This file makes the read-only views and the errors that users get.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.read_only import guarded as read_only
from ..errors import SavedArrayError

__all__ = ["guarded", "refuse_write", "step_check"]

def guarded(x: Any) -> Any:
    """The array of a Tensor for users: a read-only view while a tape needs it, else the array itself."""
    array, tape = x.array, x.tape
    if type(array) is not np.ndarray:
        return array
    live = tape is not None and not tape.released(x.node)
    if not live and array.flags.writeable:
        return array
    return read_only(array)


def step_check(leaf: Any) -> None:
    """Refuse to update a parameter in place while a tape needs its value."""
    if type(leaf.array) is np.ndarray and not leaf.array.flags.writeable:
        raise SavedArrayError(
            f"the optimizer was to update {leaf.name or 'a parameter'} of shape {leaf.array.shape}, which a tape still "
            "needs for its backward pass. Needed: a released tape. Fix: call step() after tape.backward(...) without "
            "retain=True"
        )


def refuse_write(error: ValueError) -> None:
    """Raise SavedArrayError for NumPy's error about a read-only array; do nothing for other errors."""
    if "read-only" in str(error):
        raise SavedArrayError(
            "an array that a tape needs for its backward pass was written to inside the tape's block. Needed: an "
            "array that nothing has saved. Fix: write to a copy, or after tape.backward(...), which releases it"
        ) from error
