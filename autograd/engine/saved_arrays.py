"""Arrays that a tape has saved are read-only until the last tape that needs them is released.

An array may be saved by several tapes (threads that act as ranks may share data), so the number of tapes is counted by
the array's id. A Parameter owns its array and keeps its own count, without the lock (see `Recording.hold`).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy import ndarray

from ..arrays.read_only import guarded as read_only
from ..errors import SavedArrayError

__all__ = ["guarded", "lock", "refuse_write", "step_check", "unlock"]

_locking = threading.Lock()  # several threads may save the same array
_locked: dict[int, int] = {}  # the number of tapes that save an array, by its id; they hold a reference to it


def lock(array: Any) -> bool:
    """Make an array read-only. True if it is counted, so that `unlock` must be called once for it."""
    if not (array.__class__ is ndarray or isinstance(array, ndarray)):  # isinstance: an np.memmap, too
        return False
    key = id(array)
    with _locking:
        count = _locked.get(key)
        if count is not None:
            _locked[key] = count + 1
            return True
        if not array.flags.writeable:
            return False
        array.setflags(False)  # type: ignore[call-arg]  # a keyword would double the cost
        _locked[key] = 1
    return True


def unlock(array: Any) -> None:
    """Undo one `lock`; the last one makes the array writeable again."""
    with _locking:
        count = _locked.pop(id(array), 1)
        if count > 1:
            _locked[id(array)] = count - 1
        elif array.base is None or type(array.base) is not np.ndarray or array.base.flags.writeable:
            array.setflags(True)


def guarded(x: Any) -> Any:
    """The array of a Tensor as a user may see it: a read-only view while a tape needs it, else the array itself."""
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
    """Raise SavedArrayError in the place of NumPy's error about a read-only array; do nothing for other errors."""
    if "read-only" in str(error):
        raise SavedArrayError(
            "an array that a tape needs for its backward pass was written to inside the tape's block. Needed: an "
            "array that nothing has saved. Fix: write to a copy, or after tape.backward(...), which releases it"
        ) from error
