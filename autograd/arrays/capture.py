"""The capture of a program's launches and copies, which are then replayed without running the program.

While a thread captures, its operations on a device are recorded and not executed, so nothing may be read from the
device or copied from the host. The places that do so ask `refuse`. Numbers that the host computes for each step
(learning rates, bias corrections) are kept on the device, and written there before each replay: `before_replay`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import getitem
from typing import Any

from ..errors import CaptureError

__all__ = ["Capture", "Whole", "checked", "current_capture", "decided", "recorded", "refuse",
           "read_of_capture", "refuse_recorded", "refuse_value", "set_capture"]  # fmt: skip

class Capture:
    """The work of a captured program on the host at each replay."""

    records = False
    """Whether it records calls on the host, as `transforms.recorder` does."""

    def __init__(self) -> None:
        self._check: list[Callable[[], None]] = []
        self._advance: list[Callable[[], None]] = []
        self._write: list[Callable[[], None]] = []

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], *words: Any, **how: Any) -> Any:
        """Call a function of the layers above."""
        return function(*[x.value if x.__class__ is Whole else x for x in args])

    def knows(self, x: Any) -> bool:
        """Whether a call that it has recorded has made an array."""
        return False

    def examine(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Call a function that raises an error for values that are not legal."""
        self.call(function, args)

    def before_replay(
        self, *, check: Callable[[], None] | None = None, advance: Callable[[], None] | None = None,
        write: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Register functions to be called before each replay.

        Parameters
        ----------
        check : callable, optional
            Raises CaptureError if the captured work no longer fits the program. All are called first.
        advance : callable, optional
            Does what the program did on the host while it was captured, such as counting a step. It is not called
            before the first replay, which is the captured step itself.
        write : callable, optional
            Writes numbers to the device. It is called after all functions `advance`.
        """
        for functions, given in ((self._check, check), (self._advance, advance), (self._write, write)):
            if given is not None:
                functions.append(given)

    def check(self) -> None:
        """Call the functions `check`."""
        for each in self._check:
            each()

    def advance(self) -> None:
        """Begin another step: call the functions `check` and `advance`."""
        self.check()
        for each in self._advance:
            each()

    def write(self) -> None:
        """Call the functions `write`."""
        for each in self._write:
            each()


class _Current(threading.local):
    capture: Capture | None = None


_current = _Current()


def current_capture() -> Capture | None:
    """The capture that this thread is in."""
    return _current.capture


def read_of_capture() -> tuple[Any, ...]:
    """A function and arguments that give what `current_capture` does in this thread, as an item of a dictionary."""
    values = vars(_current)
    values.setdefault("capture", None)
    return getitem, values, "capture"


def set_capture(capture: Capture | None) -> None:
    """Begin or end a capture of this thread."""
    _current.capture = capture


def refuse(what: str, fix: str) -> None:
    """Raise CaptureError if this thread captures: `what` cannot be captured."""
    if _current.capture is not None:
        text = f"{what} in a captured step, which runs once and is then replayed\n  fix: {fix}"
        raise CaptureError(text)


def refuse_value(call: str) -> None:
    """Raise CaptureError if this thread records the calls of a step, in which a value was to become plain data."""
    capture = _current.capture
    if capture is not None and capture.records:
        refuse(
            f"{call} made plain data of a value",
            "operations on the Tensor; return it from the step to read or print it after the call",
        )


def refuse_recorded(call: str, fix: str = "the step itself; or a tape, and an optimizer of autograd.optim") -> None:
    """Raise CaptureError if this thread records the calls of a step: what `call` does on the host is none of them."""
    capture = _current.capture
    if capture is not None and capture.records:
        refuse(f"{call} was called", fix)


class Whole:
    """An argument of `recorded` that is the object itself, such as a parameter or an optimizer, not its value."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


def recorded(function: Callable[..., Any], *args: Any, changes: bool | str = False, name: str = "") -> Any:
    """Call a function. While this thread records the calls of a step, the call is one of them, as a whole.

    Parameters
    ----------
    function : callable
        It stays the same object from step to step.
    *args
        Arrays, Tensors, numbers, and `Whole` objects, which the function gets as they are.
    changes : bool or "keys" or "buffers" or "gradients"
        Whether the function changes something besides its result; "keys" if this is the thread's random state, or
        what the step itself may change once more after a replay that has not ended,
        "buffers" if these are buffers of a module, and no gradients, "gradients" if these are those of the leaves among
        its arguments, by calls of NumPy.
    name : str
        For error messages.
    """
    capture: Any = _current.capture
    if capture is None:
        return function(*[x.value if x.__class__ is Whole else x for x in args])
    return capture.call(function, args, name=name, changes=changes)


def decided(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of values whose result decides what the program does.

    A step that is recorded and replayed calls it again: where it finds another result, or an error, the step itself
    runs.
    """
    capture: Any = _current.capture
    if capture is None:
        return function(*args)
    return capture.call(function, args, expected=True)


def checked(function: Callable[..., None], *args: Any) -> None:
    """Call a function that raises an error for values that are not legal, and changes nothing.

    A step that is recorded and replayed calls it again: first of all, if it knows the values then, so that nothing has
    changed where it raises.
    """
    capture: Any = _current.capture
    if capture is None:
        function(*args)
    else:
        capture.examine(function, args)
