"""Stop a replayed rank at a step, a line or an operation: in the debugger, or with a report of where it is."""

from __future__ import annotations

import linecache
import os
import pdb
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

from autograd import events
from autograd.engine.events import listening_to_spans
from autograd.errors import ArgumentError, caller, find_callers, find_site, short, short_site

from ..inspect.recorder import recording_operations

__all__ = ["Place", "Reached", "Stopped", "found_file", "place_of", "stopping"]


class Place(NamedTuple):
    """Where to stop: the beginning of a step, the operation with a number, both counted from 0, or a line of a file."""

    kind: str
    number: int
    file: str = ""


class Reached:
    """Whether a rank has come to the place where it was to stop, and how far it has come.

    Attributes
    ----------
    is_reached : bool
    steps, operations : int
        How many of them the rank has begun, if the place is one.
    """

    is_reached = False
    steps = operations = 0


class Stopped(BaseException):
    """Ends a rank at the place where it was to stop. The text says where it is."""


def place_of(text: str) -> Place:
    """The place of ``3``, ``train.py:41`` or ``operation:57``.

    Raises
    ------
    ArgumentError
        The text is none of them.

    Examples
    --------
    >>> place_of("3"), place_of("operation:57").number, place_of("train.py:41").file
    (Place(kind='step', number=3, file=''), 57, 'train.py')
    """
    name, _, number = text.rpartition(":")
    if not number.isdecimal() or (number == text and name):
        raise ArgumentError(
            f"--to {short(text)} was given; needed: a step, counted from 0, a line as train.py:41, or operation:57"
        )
    return Place("step" if not name else "operation" if name == "operation" else "line", int(number), name)


def found_file(place: Place, program: str, folder: str) -> str:
    """The file of a line: as it is given, or beside the program.

    Raises
    ------
    ArgumentError
        There is no such file, or the line has no code.
    """
    for each in (folder, os.path.dirname(program)):
        path = os.path.abspath(os.path.join(each, place.file))
        if os.path.isfile(path):
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            lines = sorted(_lines(code))
            if place.number in lines:
                return path
            near = [line for line in lines if line > place.number][:1]
            raise ArgumentError(
                f"--to {place.file}:{place.number}: this line has no code"
                + "".join(f"\n  fix: --to {place.file}:{line}" for line in near)
            )
    raise ArgumentError(f"--to {place.file}:{place.number}: there is no such file in {folder}")


def _lines(code: CodeType) -> set[int]:
    """The lines of a program that have code, in functions too."""
    found = {line for _, _, line in code.co_lines() if line}
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= _lines(each)
    return found


class _Debugger(pdb.Pdb):
    """Python's debugger, which begins in a frame that runs already, or at a line."""

    def __init__(self, found: Reached):
        super().__init__(nosigint=True)
        self._found = found

    def user_line(self, frame: FrameType) -> None:
        self._found.is_reached = True
        super().user_line(frame)

    def begin(self, frame: FrameType) -> None:
        """Stop at the next line of a frame."""
        self.reset()
        at: FrameType | None = frame
        while at is not None:
            at.f_trace, self.botframe, at = self.trace_dispatch, at, at.f_back
        self.set_next(frame)
        sys.settrace(self.trace_dispatch)

    def wait_for(self, file: str, line: int) -> None:
        """Stop whenever a line is reached."""
        self.reset()
        if problem := self.set_break(file, line):
            raise ArgumentError(f"--to {file}:{line}: {problem}")
        self.botframe = sys._getframe()
        self.set_continue()
        sys.settrace(self.trace_dispatch)


@contextmanager
def stopping(place: Place, file: str, is_debugged: bool) -> Iterator[Reached]:
    """Stop the rank of this thread at a place, as often as it comes there in the debugger.

    Parameters
    ----------
    place : Place
    file : str
        The path of the file of a line.
    is_debugged : bool
        Whether the debugger begins there; else `Stopped` is raised.

    Yields
    ------
    Reached
    """
    found = Reached()
    debugger = _Debugger(found) if is_debugged else None
    if place.kind == "line":
        before = sys.gettrace()
        if debugger is not None:
            debugger.wait_for(file, place.number)
        else:
            sys.settrace(_tracer(file, place.number, found))
        try:
            yield found
        finally:
            sys.settrace(before)
        return

    def reached() -> None:
        if found.is_reached:
            return
        found.is_reached = True
        frame = caller()
        if debugger is None or frame is None:
            raise Stopped(_report(frame))
        debugger.begin(frame)

    with (_at_step if place.kind == "step" else _at_operation)(place.number, reached, found):
        yield found


@contextmanager
def _at_step(number: int, reached: Callable[[], None], found: Reached) -> Iterator[None]:
    """Call a function when a step begins: where the program marks steps, there, else after an optimizer's step."""
    marks = False

    def hear(edge: str, name: str, rows: int) -> None:
        nonlocal marks
        if name == "step":
            if edge == "begin":
                marks = True
                if found.steps == number:
                    reached()
            else:
                found.steps += 1
        elif not marks and name == "optimizer" and edge == "end":
            found.steps += 1
            if found.steps == number:
                reached()
        elif not marks and number == 0 and name == "forward" and edge == "begin":
            reached()

    with listening_to_spans(hear):
        yield


@contextmanager
def _at_operation(number: int, reached: Callable[[], None], found: Reached) -> Iterator[None]:
    """Call a function at the operation with this number, as ``--first-nan`` numbers them."""
    with recording_operations(values=False) as own:

        class Listener:
            whole = True  # operations are not divided because somebody listens

            def __call__(self, phase: str, direction: str, name: str) -> None:
                found.operations = len(own.records)
                if found.operations > number:
                    reached()

        with events.listening(Listener()):
            yield


def _tracer(file: str, line: int, found: Reached) -> Callable[[FrameType, str, Any], Any]:
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        if event == "line" and frame.f_lineno == line:
            found.is_reached = True
            raise Stopped(_report(frame))
        return trace

    return trace


def _report(frame: FrameType | None) -> str:
    """Where a frame is, and its variables."""
    if frame is None:
        return f"{short_site(*find_site())}, called from {find_callers() or 'nowhere'}"
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    names = {name: value for name, value in frame.f_locals.items() if not name.startswith("_")}
    plain = [f"{name} = {short(value)}" for name, value in names.items() if isinstance(value, int | float | str)]
    return "\n  ".join([f"{short_site(file, line)}: {text}", *plain[:12]])
