"""Arrays that a tape has saved: they are read-only until the last tape that needs them gives them back.

An array that several tapes keep (ranks as threads may share data) is counted by its id; a Parameter owns its array and
counts for itself, which is free of the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .arrays import guarded as read_only
from .errors import SavedArrayError

if TYPE_CHECKING:
    from .leaves import Leaf
    from .tensor import Tensor

__all__ = ["Saved", "guarded", "refuse_write", "step_check"]

_locking = threading.Lock()  # ranks that are threads may save one array
_locked: dict[int, int] = {}  # how many tapes keep an array read-only, by its id; they hold it, so the id stays its own


class Saved:
    """What one tape keeps read-only."""

    __slots__ = ("held", "locked")

    def __init__(self) -> None:
        self.locked: list[Any] = []
        self.held: list[Any] = []

    def hold(self, leaf: Any) -> None:
        """Make a leaf's array read-only until it is given back."""
        if not leaf.uses and leaf.owns and leaf.array.__class__ is ndarray:
            leaf.array.setflags(False)  # type: ignore[call-arg]  # a keyword would double its price
            leaf.uses = 1
        elif leaf.uses:
            leaf.uses += 1
        else:
            self.lock(leaf.array)
            return
        self.held.append(leaf)

    def hold_all(self, leaves: Sequence[Any]) -> None:
        """The same for leaves that own their arrays."""
        held = self.held
        for leaf in leaves:
            if leaf.uses or leaf.array.__class__ is not ndarray:
                self.hold(leaf)
            else:
                leaf.array.setflags(False)  # type: ignore[call-arg]
                leaf.uses = 1
                held.append(leaf)

    def lock(self, array: Any) -> None:
        """Make an array read-only until it is given back (until the last of several tapes has done so)."""
        if array.__class__ is ndarray or isinstance(array, ndarray):  # an np.memmap, too
            key = id(array)
            with _locking:
                count = _locked.get(key)
                if count is not None:
                    _locked[key] = count + 1
                elif array.flags.writeable:
                    array.setflags(False)  # type: ignore[call-arg]
                    _locked[key] = 1
                else:
                    return
            self.locked.append(array)

    def release(self) -> None:
        """Give the arrays back."""
        for leaf in self.held:
            if leaf.uses == 1:
                leaf.uses = 0
                leaf.array.setflags(True)
            else:
                leaf.uses -= 1
        self.held = []
        locked, self.locked = self.locked, []
        for array in locked:
            with _locking:
                count = _locked.pop(id(array), 1)
                if count > 1:
                    _locked[id(array)] = count - 1
                elif array.base is None or type(array.base) is not np.ndarray or array.base.flags.writeable:
                    array.setflags(True)

    def __del__(self) -> None:
        if self.locked or self.held:
            self.release()


def guarded(x: Tensor) -> Any:
    """What the user may see of an array: itself, or a view that refuses writes while a tape needs it."""
    array, tape = x.array, x.tape
    if type(array) is not np.ndarray:
        return array
    live = tape is not None and not tape.released(x.node)
    if not live and array.flags.writeable:
        return array
    return read_only(array)


def step_check(leaf: Leaf) -> None:
    """Refuse to update a parameter in place while a tape needs its value."""
    if type(leaf.array) is np.ndarray and not leaf.array.flags.writeable:
        raise SavedArrayError(
            f"the optimizer was to update {leaf.name or 'a parameter'} of shape {leaf.array.shape}, which a tape still "
            "needs for its backward pass. Needed: a released tape. Fix: call step() after tape.backward(...) without "
            "retain=True"
        )


def refuse_write(error: ValueError) -> None:
    """Say of NumPy's refusal to write, raised inside a tape's block, what it comes from; other errors pass."""
    if "read-only" in str(error):
        raise SavedArrayError(
            "an array that a tape needs for its backward pass was written to inside the tape's block. Needed: an "
            "array that nothing has saved. Fix: write to a copy, or after tape.backward(...), which releases it"
        ) from error
