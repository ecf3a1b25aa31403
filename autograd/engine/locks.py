"""Locks: the arrays that a recording has saved are read-only until the last recording that needs them is released.

Several recordings may save an array, of one thread or of several, so the recordings of an array are counted. A
recording that is dropped without a sweep unlocks its arrays in its finalizer, which the garbage collector may run at
any moment of any thread.
"""

from __future__ import annotations

import _thread
import re
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

import numpy as np
from numpy import ndarray

from ..arrays.read_only import guarded as read_only
from ..errors import SavedArrayError, frames_of_thread

__all__ = ["Locks", "guarded", "is_part", "is_view", "refuse_write", "step_check"]


# -- counts of the recordings of an array ------------------------------------------------------------------------------
# Threads that act as ranks may share data, so several tapes may save an array: they are counted by the array's id. A
# Parameter owns its array and keeps its own count, without a lock (see `Locks.hold`).
_locking: Any = threading.RLock()  # several threads may save the same array
_locked: dict[int, int] = {}  # the number of tapes that save an array, by its id; they hold a reference to it
# NumPy warns where `flags.writeable` of a result of `numpy.broadcast_arrays` is read.
warnings.filterwarnings(
    "ignore", "future versions will not create a writeable array", FutureWarning, re.escape(__name__)
)
_dropped: list[Any] = []  # what recordings saved that the garbage collector found while their thread held the lock


def _lock(array: Any) -> bool:
    """Make an array read-only. True if it is counted, so that `_unlock` must be called once for it."""
    kind = array.__class__
    if not (kind is ndarray or issubclass(kind, ndarray)):  # a subclass: an np.memmap, too
        return False
    key = id(array)
    with _locking:
        count = _locked.get(key)
        if count is None:
            try:
                if not array.flags.writeable:
                    return False
            except FutureWarning:  # a program turns warnings into errors
                pass
            array.setflags(False)  # a keyword would double the cost
            count = 0
        _locked[key] = count + 1
    if _dropped:
        _unlock_dropped()
    return True


def _unlock(arrays: Iterable[Any]) -> None:
    """Undo one `_lock` of each; the last one makes an array writeable again."""
    for array in arrays:
        with _locking:
            count = _locked.pop(id(array), 1)
            if count > 1:
                _locked[id(array)] = count - 1
            elif array.base is None or type(array.base) is not np.ndarray or array.base.flags.writeable:
                array.setflags(True)


def _unlock_dropped() -> None:
    """Undo the locks of recordings that the collector found at a bad moment; see `_dropped`."""
    while _dropped:
        try:
            array = _dropped.pop()
        except IndexError:  # another thread was faster
            return
        _unlock((array,))


class Locks:
    """The arrays that a recording keeps read-only until `release`. It is the base class of `Recording`."""

    __slots__ = ("__weakref__", "_held", "_locked")

    def __init__(self) -> None:
        self._held: list[Any] = []  # leaves whose arrays are read-only because of this recording
        self._locked: list[Any] = []  # other arrays, likewise

    def lock(self, array: Any) -> None:
        """Keep an array read-only until they are released."""
        if _lock(array):
            self._locked.append(array)

    def lock_given(self, array: Any) -> None:
        """`lock` for an array of the program; of a view, the array whose memory it shows is locked, too."""
        base = getattr(array, "base", None)
        if base.__class__ is ndarray and base.flags.writeable and _lock(base):  # `is_view`, without a call
            self._locked.append(base)  # first, so that it is unlocked first: a view is writeable only if its base is
        if _lock(array):
            self._locked.append(array)

    def hold(self, leaf: Any) -> None:
        """Keep a leaf's array read-only until they are released."""
        if not leaf.uses and leaf.owns and leaf.array.__class__ is ndarray:
            leaf.array.setflags(False)  # type: ignore[call-arg]  # a keyword would double the cost
            leaf.uses = 1
        elif leaf.uses:
            leaf.uses += 1
        else:
            self.lock_given(leaf.array)
            return
        self._held.append(leaf)

    def hold_all(self, leaves: Sequence[Any]) -> None:
        """`hold` for several leaves that own their arrays."""
        held = self._held
        for leaf in leaves:
            if leaf.uses or leaf.array.__class__ is not ndarray:
                self.hold(leaf)
            else:
                leaf.array.setflags(False)  # type: ignore[call-arg]  # as in `hold`
                leaf.uses = 1
                held.append(leaf)

    def release(self) -> None:
        """Make the saved arrays writeable again, unless another recording needs them."""
        held, self._held = iter(self._held), []
        locked, self._locked = iter(self._locked), []
        interrupt = None
        while True:
            try:
                if is_owned := _locking._is_owned():  # the garbage collector came while this thread counts
                    _dropped.extend(locked)
                _unlock(locked)  # before the leaves, which may be parts of them
                for leaf in held:
                    if leaf.uses == 1:
                        leaf.uses = 0
                        try:
                            leaf.array.setflags(True)
                        except ValueError:  # it is a part of an array that another recording needs
                            pass
                    else:
                        leaf.uses -= 1
                if _dropped and not is_owned:
                    _unlock_dropped()
                break
            except KeyboardInterrupt as error:
                interrupt = error  # it is raised when the rest is done
        if interrupt is not None:
            raise interrupt

    def __del__(self) -> None:
        if self._locked or self._held:
            try:
                self.release()
            except KeyboardInterrupt:
                # Python prints and drops an exception of a finalizer, so the interrupt is repeated outside of it.
                _thread.start_new_thread(_interrupt_after, (Locks.__del__.__code__,))


def _interrupt_after(code: CodeType) -> None:
    """Interrupt the main thread when it has left the function that has this code."""
    main = threading.main_thread().ident
    while any(frame.f_code is code for frame in frames_of_thread(main)):
        time.sleep(0.01)
    _thread.interrupt_main()


def is_view(array: Any) -> bool:
    """Whether an array shows memory that can be written to through another array of NumPy."""
    base = getattr(array, "base", None)
    return base.__class__ is ndarray and base.flags.writeable


def is_part(array: Any, of: Any) -> bool:
    """Whether `array` was made from another array without a copy: it is that array, or a view of its memory."""
    base = getattr(array, "base", None)
    return array is of or (base is not None and (base is of or base is getattr(of, "base", None)))


# -- the arrays of users ----------------------------------------------------------------------------------------------
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
