"""Steps of a program as one function of Python: lines, and calls of what has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import CaptureError
from .memory import Departed, Frame

__all__ = ["CHANGED", "Lines", "joined"]

CHANGED = (
    "capture: a check of values found another result than in the recorded step, when the replay had changed something "
    "already\n  fix: check the values of arguments at the beginning of the step; or call the step itself"
)


class Lines:
    """A step of a program as lines of Python, of which `joined` makes a part of its function.

    Parameters
    ----------
    lines : sequence of str
        They may read `frame`, its arrays `gradients` and its arguments ``a0, a1, ...``. Of a name in braces the value
        is that of `names`.
    arguments : int
        The number of arguments.

    Examples
    --------
    >>> found = []
    >>> Lines(["{put}({x} + a0[1])"], 1, put=found.append, x=3)(Frame(([4, 5],), None))
    >>> found
    [8]
    """

    def __init__(self, lines: Sequence[str], arguments: int = 0, **names: Any):
        self.lines, self.names, self.arguments = lines, names, arguments
        self._function: Callable[[Frame], None] | None = None

    def __call__(self, frame: Frame) -> None:
        """Run the lines by themselves."""
        if self._function is None:
            self._function = _function([*_body([self], space := {}, self.arguments)], space)
        self._function(frame)


def joined(
    steps: Sequence[Callable[[Frame], Any]], first_change: int | None, arguments: int
) -> Callable[[Frame], None]:
    """The function that runs steps in order. From the step `first_change` on, something is changed.

    The function raises `Departed` for any error before, after which the step itself may run, and CaptureError for a
    decision on data after it.
    """
    space: dict[str, Any] = {"Departed": Departed, "CaptureError": CaptureError, "CHANGED": CHANGED}
    first, then = _body(steps[:first_change], space, arguments), [] if first_change is None else steps[first_change:]
    body = ["try:", *_indented(first), "except Departed: raise",
            "except Exception as error: raise Departed from error"]  # fmt: skip
    if then:
        body += ["try:", *_indented(_body(then, space, 0)),
                 "except Departed as error: raise CaptureError(CHANGED) from error"]  # fmt: skip
    return _function(body, space)


def _body(steps: Sequence[Callable[[Frame], Any]], space: dict[str, Any], arguments: int) -> list[str]:
    """The lines of steps, whose names get values in `space`."""
    given = "".join(f"a{i}, " for i in range(arguments))
    found = ["gradients = frame.gradients", *([f"{given}= frame.arguments"] if given else [])]
    for step in steps:
        lines, names = (step.lines, step.names) if isinstance(step, Lines) else (["{step}(frame)"], {"step": step})
        own = {name: f"c{len(space) + k}" for k, name in enumerate(names)}
        space.update((own[name], value) for name, value in names.items())
        found += [line.format_map(own) for line in lines]
    return found


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _function(body: Sequence[str], space: dict[str, Any]) -> Callable[[Frame], None]:
    """A function of the frame; names are defaults of its parameters, which it reads faster than globals."""
    given = "".join(f", {name}={name}" for name in space) if len(space) < 200 else ""
    source = "\n".join([f"def run(frame{given}):", *_indented(body)])
    exec(compile(source, f"{__file__}: run", "exec"), space)
    found: Callable[[Frame], None] = space["run"]
    return found
