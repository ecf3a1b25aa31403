"""Steps of a program as lines of one Python function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import CaptureError
from .memory import Departed, Frame
from .text import indented

__all__ = ["CHANGED", "Lines", "lines_of"]

CHANGED = (
    "capture: a check of values found another result than in the recorded step, when the replay had changed something "
    "already\n  fix: check the values of arguments at the beginning of the step; or call the step itself"
)


class Lines:
    """A step of a program as lines of Python.

    They may read the parts of a frame: its arrays `gradients`, `recorded`, and its arguments ``a0, a1, ...``.

    Parameters
    ----------
    write : callable
        It returns the lines, and is given a function that returns the name of an object in them.
    """

    def __init__(self, write: Callable[[Callable[[Any], str]], list[str]]):
        self.write = write


def lines_of(
    steps: Sequence[Lines | Callable[[Frame], Any]], first_change: int | None, name: Callable[[Any], str]
) -> list[str]:
    """The lines of steps in order. From the step `first_change` on, something is changed.

    They raise `Departed` for any error before, after which the step itself may run, and CaptureError for a decision on
    data after it.
    """
    found = [line for step in steps[:first_change] for line in _lines(step, name)]
    departed = name(Departed)
    if found:
        found = ["try:", *indented(found), f"except {departed}: raise",
                 f"except Exception as error: raise {departed} from error"]  # fmt: skip
    then = [] if first_change is None else [line for step in steps[first_change:] for line in _lines(step, name)]
    if then:
        found += ["try:", *indented(then),
                  f"except {departed} as error: raise {name(CaptureError)}({name(CHANGED)}) from error"]  # fmt: skip
    return found


def _lines(step: Lines | Callable[[Frame], Any], name: Callable[[Any], str]) -> list[str]:
    return step.write(name) if isinstance(step, Lines) else [f"{name(step)}(frame)"]
