"""Steps of a program as lines of one Python function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import CaptureError
from .memory import Departed, Frame

__all__ = ["CHANGED", "Lines", "Text", "indented", "lines_of"]

CHANGED = (
    "capture: a check of values found another result than in the recorded step, when the replay had changed something "
    "already\n  fix: check the values of arguments at the beginning of the step; or call the step itself"
)
_MOST_DEFAULTS = 200


class Text:
    """The text of a function, while it is written, with the objects that it names.

    Examples
    --------
    >>> text = Text()
    >>> add = text.function("add", "x", [f"return x + {text.name(3)}"], "an example")
    >>> add(4)
    7
    """

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}
        self._known: dict[int, str] = {}

    def name(self, value: Any) -> str:
        """The name of an object; one for each."""
        if id(value) not in self._known:
            self._known[id(value)] = f"c{len(self._names)}"
            self._names[self._known[id(value)]] = value
        return self._known[id(value)]

    def function(self, name: str, parameters: str, lines: Sequence[str], file: str) -> Callable[..., Any]:
        """The function of lines. Objects are defaults of its parameters, which are read faster than globals."""
        few = [f"{each}={each}" for each in self._names] if len(self._names) < _MOST_DEFAULTS else []
        source = "\n".join([f"def {name}({', '.join(filter(None, [parameters, *few]))}):", *indented(lines)])
        space = dict(self._names)
        exec(compile(source, file, "exec"), space)
        found: Callable[..., Any] = space[name]
        return found


class Lines:
    """A step of a program as lines of Python.

    They may read `frame`, its array `gradients`, and its arguments ``a0, a1, ...``.

    Parameters
    ----------
    write : callable
        It returns the lines, and is given a function that returns the name of an object in them.

    Examples
    --------
    >>> found = []
    >>> Lines(lambda name: [f"{name(found)}.append(a0[1])"])(Frame(([4, 5],), None))
    >>> found
    [5]
    """

    def __init__(self, write: Callable[[Callable[[Any], str]], list[str]]):
        self.write = write
        self._function: Callable[[Frame], None] | None = None

    def __call__(self, frame: Frame) -> None:
        """Run the lines by themselves."""
        if self._function is None:
            text = Text()
            lines = [*beginning(len(frame.arguments)), *self.write(text.name)]
            self._function = text.function("step", "frame", lines, f"{__file__}: step")
        self._function(frame)


def beginning(arguments: int) -> list[str]:
    """Lines that give what is in `frame` its names."""
    given = "".join(f"a{i}, " for i in range(arguments))
    return ["gradients = frame.gradients", *([f"{given}= frame.arguments"] if given else [])]


def lines_of(
    steps: Sequence[Callable[[Frame], Any]], first_change: int | None, name: Callable[[Any], str]
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


def _lines(step: Callable[[Frame], Any], name: Callable[[Any], str]) -> list[str]:
    return step.write(name) if isinstance(step, Lines) else [f"{name(step)}(frame)"]


def indented(lines: Sequence[str]) -> list[str]:
    """Lines of a block."""
    return [f"    {line}" for line in lines]
