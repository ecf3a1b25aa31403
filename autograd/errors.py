"""The exceptions that ringtape raises, all derived from `RingtapeError`, and call sites for their messages.

A `RingtapeError` says what the user's program did wrong, so its traceback shows the frames of the program only: in a
script, in IPython and notebooks, and in the ranks of a job. ``RINGTAPE_TRACEBACK=full`` shows all frames of all errors.

docs/reference/errors.rst shows each class below its base.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache, wraps
from types import FrameType, FunctionType, TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar, overload

import numpy as np

__all__ = [
    "AbsentError", "AnomalyError", "ArgumentError", "AxisError", "CaptureError", "CheckpointError",
    "CheckpointWarning", "CollectiveMismatch", "CommunicationError", "ConflictError", "DamagedCheckpoint",
    "DeadlockError", "DependencyError", "DeviceError", "DtypeError", "FileError", "FileWarning", "GradientWarning",
    "LayoutError", "LinAlgError", "MeshError", "MissingKeyError", "NotDifferentiable", "NumberError", "ObjectiveError",
    "OptionError", "PositionError", "RankFailed", "ReplicaMismatch", "ReplicaWarning", "RingtapeError",
    "SavedArrayError", "ScaleError", "ScaleWarning", "ShapeError", "TapeError", "TimeLimitError", "WriteError",
]  # fmt: skip


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def printable(text: str) -> str:
    r"""Return a text with its control characters written as escapes; line breaks and tabs stay.

    A terminal obeys control characters: a name in a file could hide what a message says, or rewrite the screen.

    Examples
    --------
    >>> printable("name\x1b[2J")
    'name\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(x if x in "\n\t" or x.isprintable() else x.encode("unicode_escape").decode() for x in text)


class RingtapeError(Exception):
    """Base class of all exceptions that ringtape raises. Control characters in a message are shown as escapes.

    The last line of a message is the line of the program, like ``  at model.py:41``. It is added where ringtape makes
    the error, unless the text ends with such a line: a copy of an error on another rank keeps that of the original.
    """

    _has_line = True  # warnings have none: Python shows their place itself

    def __init__(self, *args: Any):
        shown = [printable(x) if isinstance(x, str) else x for x in args]
        if shown and isinstance(shown[0], str) and self._has_line and is_own_file(sys._getframe(1).f_code.co_filename):
            shown[0] += self._line(shown[0])
        super().__init__(*shown)
        self.args = tuple(shown)  # NumPy's AxisError keeps the arguments that it was made with

    @property
    def reason(self) -> str:
        """The message without the line of the program, as a part of another message."""
        return _LINE.sub("", str(self))

    def extend(self, text: str) -> None:
        """Add to the message, above the line of the program."""
        line = _LINE.search(str(self))
        self.args = (f"{self.reason}{text}{line[0] if line else ''}", *self.args[1:])

    def prefer(self, advice: str) -> None:
        """Put a reason, and a fix that is better, before the fix of the message."""
        if advice:
            before, has_fix, fix = self.reason.partition("\n  fix: ")
            other = f"\n  or:  {fix}" if has_fix else ""
            self.args = (f"{before}{advice}{other}{str(self)[len(self.reason) :]}", *self.args[1:])

    def _line(self, text: str) -> str:
        """The line of the program to add to a message."""
        return "" if _LINE.search(text) else call_site()

    def _render_traceback_(self) -> list[str]:
        """The lines of the traceback that IPython shows. IPython calls this where an exception has it."""
        shorten(self)
        lines: list[str] = sys.modules["IPython"].get_ipython().InteractiveTB.structured_traceback(
            type(self), self, self.__traceback__
        )
        return lines


_LINE = re.compile(r"\n  at [^\n]+\Z")


class LayoutError(RingtapeError):
    """Layouts cannot be combined. The message names the axis, the operands, their layouts and the fix."""

    is_about_extents = False  # whether it explains, too, why the shapes of the operands on a rank do not fit


class TapeError(RingtapeError):
    """Invalid use of a tape: it is released, the value belongs to another one, or nothing is recorded."""


class SavedArrayError(RingtapeError, ValueError, TypeError):
    """A write to an array that a tape still needs for its backward pass."""


class ShapeError(RingtapeError, ValueError):
    """Shapes do not fit the operation."""


class AxisError(ShapeError, np.exceptions.AxisError):
    """An axis that an array does not have, or one that is given twice."""


class LinAlgError(ShapeError, np.linalg.LinAlgError):
    """A matrix that is singular, not square or not positive definite, or a computation that does not converge."""


class PositionError(RingtapeError, IndexError):
    """An index that is out of range, or a value that cannot be an index."""


class MissingKeyError(PositionError, KeyError):
    """A key that a mapping, such as a `ModuleDict`, does not have."""

    __str__ = Exception.__str__  # that of a KeyError is the `repr` of its text


class DtypeError(RingtapeError, TypeError):
    """A dtype has no derivative or is not supported, or dtypes differ."""


class DeviceError(RingtapeError, TypeError):
    """Arrays on different devices, a device that does not exist, or an operation that a device does not have."""


class ArgumentError(RingtapeError, TypeError):
    """An argument is missing, or has another type or nesting than needed."""


class OptionError(RingtapeError, ValueError):
    """An argument has the right type, and a value that is not allowed."""


class FileError(RingtapeError, ValueError):
    """A file is damaged, or is of another kind than needed. The message names the file and the entry."""


class WriteError(FileError, OSError):
    """A file cannot be written. The message names it and the reason; what was there before is as it was."""

    __str__ = Exception.__str__  # that of an OSError with a number is the system's text alone


class CheckpointError(FileError):
    """A checkpoint cannot be written or read. The message names the step, the file, the entry and the place in it."""


class DamagedCheckpoint(CheckpointError):
    """The files of a checkpoint are not what was saved. Another step may be whole."""


class NumberError(OptionError, OverflowError):
    """A number is outside the range of its dtype."""


class ObjectiveError(ShapeError, DtypeError):
    """The gradient of a function that does not return one real number was requested."""


class AbsentError(RingtapeError):
    """A value was read on a rank that does not hold it, or in a dry run, which has no values."""


class AnomalyError(RingtapeError, FloatingPointError):
    """A value is not finite. The message names the operation that made it and its call site."""


class NotDifferentiable(RingtapeError, NotImplementedError):
    """An operation has no derivative. Raised when it is recorded, not in backward."""


class ConflictError(RingtapeError, ImportError):
    """Another distribution installs a package of the same name."""


class DependencyError(RingtapeError, ImportError):
    """An optional package is needed and cannot be imported. The message says how to install it."""


class CaptureError(RingtapeError, RuntimeError):
    """A step that cannot be captured and replayed: it reads values on the host, or its inputs changed their shapes."""


class MeshError(RingtapeError, ValueError):
    """An axis, a rank or a mesh does not exist."""


class CommunicationError(RingtapeError):
    """Base class of the errors between ranks. A report that names the lines of the ranks has no line of its own."""

    def _line(self, text: str) -> str:
        return "" if re.search(r"\bat (\S+:\d|Cell In)", text) else call_site()


class ScaleError(RingtapeError):
    """A gradient is a power of the number of ranks too large or too small. The message names the factor and the fix."""


class CollectiveMismatch(CommunicationError):
    """The ranks of a group made different calls. The message names the ranks that differ."""


class DeadlockError(CommunicationError):
    """Ranks wait for each other and none can proceed. The message says what each of them waits for."""


class TimeLimitError(DeadlockError):
    """A rank has waited for another one for as long as it may. Uncaught, it ends the job under every policy."""


class _Met(threading.local):
    failures = 0


MET = _Met()
"""How many `RankFailed` this thread has met, also those that the program has caught."""


class RankFailed(CommunicationError):
    """Another rank raised, exited early or was killed. The message names it."""

    def __new__(cls, *args: Any, **named: Any) -> Self:
        MET.failures += 1
        return super().__new__(cls, *args, **named)


class ReplicaMismatch(CommunicationError):
    """Copies of one value that must be equal on all ranks differ."""


class GradientWarning(RingtapeError, UserWarning):
    """A gradient is probably not the one that is meant, or is missing.

    A received value has no influence on the objective; no parameter of an optimizer has a gradient; a sum over the
    ranks adds means of different numbers of rows, so that the rows have different weights; or the gradients of a rank
    are always dropped.
    """

    _has_line = False


class ScaleWarning(GradientWarning):
    """A gradient is probably a power of the number of ranks too large or too small, as by a sum of means.

    ``collectives.check(scale="error")`` makes it a `ScaleError`. It is an error at once where labels prove it.
    """


class ReplicaWarning(RingtapeError, UserWarning):
    """A value that is declared as different on the ranks (Varying, Shard) is equal on all of them, or the reverse.

    It is a parameter, or the operand of a sum over the ranks. The reverse is a replica that has become different, and
    that `parallel.elastic.Replicas` has repaired.
    """

    _has_line = False


class FileWarning(RingtapeError, UserWarning):
    """The values of a file are not compared with its digests, because the library of these is not installed."""

    _has_line = False


class CheckpointWarning(RingtapeError, UserWarning):
    """A checkpoint is damaged, and an older one is taken; or a run with the same bits goes on where they are others."""

    _has_line = False


_TYPED: tuple[tuple[type[Exception], type[RingtapeError]], ...] = (
    (np.exceptions.AxisError, AxisError), (np.linalg.LinAlgError, LinAlgError), (OverflowError, NumberError),
    (IndexError, PositionError), (KeyError, MissingKeyError), (NotImplementedError, NotDifferentiable),
    (TypeError, ArgumentError), (ValueError, OptionError),
)  # fmt: skip


def typed(error: Exception, text: str, kinds: dict[type[Exception], type[RingtapeError]] | None = None) -> Exception:
    """Return the `RingtapeError` for an error that NumPy or Python raised; it is also of that error's builtin type.

    Parameters
    ----------
    error : Exception
    text : str
        The message of the result.
    kinds : dict, optional
        The class to use for an error of exactly this builtin class, instead of the usual one.

    Returns
    -------
    Exception
        `error` itself where it is a `RingtapeError`, or lack of memory.

    Examples
    --------
    >>> isinstance(typed(ValueError("no"), "roll: no"), ValueError)
    True
    """
    if isinstance(error, RingtapeError | MemoryError):
        return error
    for theirs, ours in _TYPED:
        if isinstance(error, theirs):
            return (kinds or {}).get(theirs, ours)(text)
    return ArgumentError(text)


UNTYPED = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, NotImplementedError, RecursionError)
"""The builtin errors that a wrong argument may cause inside a function."""


def refused(
    error: Exception, name: str, args: Iterable[Any], words: Mapping[str, Any] | None = None, needed: str = ""
) -> Exception:
    """Return the typed error for a builtin one that the arguments of a function of ringtape have caused inside it."""
    given = [*map(short, args), *(f"{key}={short(x)}" for key, x in (words or {}).items())]
    return typed(error, f"{name}({', '.join(given)}): {_reason(error)}{needed}")


def nested_in_itself(error: RecursionError) -> ArgumentError:
    """Return the typed error for a recursion into lists without an end."""
    return ArgumentError(f"a list that contains itself, or is nested too deep, was given: {error}")


def _needed(function: Any, name: str) -> str:
    """The parameters of a function and their types, for the error about a call of it."""
    found = inspect.signature(function)
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    shown = str(found.replace(parameters=parameters, return_annotation=found.empty)).replace("'", "")
    return f"; needed: {name}{shown}" if len(shown) <= 200 and ":" in shown else ""


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError) and len(error.args) == 1:  # its text is the key alone
        return f"there is no key {short(error.args[0])}"
    return str(error) or f"{type(error).__name__} was raised"


def short(x: Any) -> str:
    """An argument as error messages show it: the dtype and shape of an array, and the beginning of other values."""
    array = getattr(x, "array", x)
    if isinstance(getattr(array, "shape", None), tuple) and array.shape and hasattr(array, "dtype"):
        return f"{array.dtype}{list(array.shape)}"
    try:
        text = repr(x)
    except Exception:  # lists that are nested too deep, and objects of the program whose `repr` fails
        text = object.__repr__(x)
    return text if len(text) <= 60 else f"{text[:57]}..."


@overload
def typed_errors(function: type[Result]) -> type[Result]: ...
@overload
def typed_errors(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]: ...
def typed_errors(function: Any) -> Any:
    """Make a function raise a `RingtapeError` where its arguments cause a builtin error inside it.

    An error that has passed a line of the program, as of a function that is an argument, is raised unchanged. Of a
    class, the public methods that it defines and ``__init__`` get typed errors, except those that only pass their
    arguments on.

    Examples
    --------
    >>> @typed_errors
    ... def half(x):
    ...     return float.__truediv__(x, 2)
    >>> typed_errors(half) is half
    True
    >>> from autograd.optim import global_norm
    >>> try:
    ...     global_norm(5)
    ... except RingtapeError as error:
    ...     print(type(error).__name__, "global_norm(5)" in str(error), isinstance(error, TypeError))
    ArgumentError True True
    """
    if isinstance(function, type):
        _type_methods(function)
        return function
    name = function.__qualname__.rpartition("<locals>.")[2]
    return _with_typed_errors(function, name.removesuffix(".__init__"), int("." in name))  # of a method without `self`


_OPERATORS = ("__init__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__iadd__", "__enter__")


def _type_methods(cls: type) -> None:
    for name, value in list(vars(cls).items()):
        if name.startswith("_") and name not in _OPERATORS:
            continue
        shown = cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}"
        if isinstance(value, FunctionType):
            passes_on = _arguments(value) == 1 and value.__code__.co_flags & inspect.CO_VARARGS
            if not passes_on:
                setattr(cls, name, _with_typed_errors(value, shown, 1))
        elif isinstance(value, classmethod | staticmethod) and isinstance(value.__func__, FunctionType):
            is_class = isinstance(value, classmethod)
            setattr(cls, name, type(value)(_with_typed_errors(value.__func__, shown, int(is_class))))
        elif isinstance(value, property) and value.fset is not None:
            setattr(cls, name, value.setter(_with_typed_errors(value.fset, shown, 1)))


def _arguments(function: FunctionType) -> int:
    """The number of a function's named arguments."""
    return function.__code__.co_argcount + function.__code__.co_kwonlyargcount


def _with_typed_errors(function: Any, name: str, first: int) -> Any:
    """The function with typed errors; messages call it `name` and leave out its arguments before `first`."""
    if getattr(function, "has_typed_errors", False):
        return function

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except UNTYPED as error:
            if isinstance(error, RingtapeError | NotImplementedError) or not is_of_library(error):
                raise
            raise refused(error, name, args[first:], options, _needed(function, name)) from error

    @wraps(function)
    def alone(self: Any) -> Any:  # in a third of the time of `call`; optimizers' steps are such methods
        try:
            return function(self)
        except UNTYPED as error:
            if isinstance(error, RingtapeError | NotImplementedError) or not is_of_library(error):
                raise
            raise refused(error, name, (self,)[first:], {}, _needed(function, name)) from error

    @wraps(function)
    def iterate(*args: Any, **options: Any) -> Any:
        try:
            return (yield from function(*args, **options))
        except UNTYPED as error:
            if isinstance(error, RingtapeError | NotImplementedError) or not is_of_library(error):
                raise
            raise refused(error, name, args[first:], options, _needed(function, name)) from error

    flags = function.__code__.co_flags
    has_self_only = _arguments(function) == 1 and not flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    made: Any = iterate if flags & inspect.CO_GENERATOR else alone if has_self_only and first == 1 else call
    made.has_typed_errors = True
    return made


def check_callable(function: Any, caller: str) -> None:
    """Raise ArgumentError if an argument that is needed to be a function is none.

    Examples
    --------
    >>> try:
    ...     check_callable(3, "grad")
    ... except ArgumentError as error:
    ...     print(str(error).splitlines()[0])
    grad: 3 was given; needed: a function
    """
    if not callable(function):
        raise ArgumentError(f"{caller}: {short(function)} was given; needed: a function")


def missing_attribute(module: str, name: str, owner: Any = None) -> AttributeError:
    """Return the error for a name that a module, or another owner such as a Tensor, does not have.

    It says what the users of another library write in the place of a name of that library (`elsewhere.toml`), and
    where it is shown Python adds a name that is spelt alike.

    Examples
    --------
    >>> print(missing_attribute("autograd.random", "PRNGKey"))
    module 'autograd.random' has no attribute 'PRNGKey'. Use random.Key(seed)
    """
    instead = instead_of(module, name)
    shown = f"module {module!r}" if owner is None else f"{type(owner).__name__!r} object"
    answer = f". {'' if instead[0].isupper() else 'Use '}{instead}" if instead else ""
    near = sys.modules.get(module) if owner is None else owner
    return AttributeError(f"{shown} has no attribute {name!r}{answer}", name=name, obj=near)


def answering(module: str) -> Callable[[str], NoReturn]:
    """Return the ``__getattr__`` of a module, which says what to use for a name of another library.

    A module has it as ``globals()["__getattr__"]``: type checkers would otherwise take every name for one of its own.
    """

    def missing(name: str) -> NoReturn:
        raise missing_attribute(module, name)

    return missing


@lru_cache(1024)  # programs ask with `hasattr`, some of them in each step; an answer takes 100 us
def instead_of(module: str, name: str) -> str:
    """Return what users of another library write in place of a name of that library; "" if it is not known.

    The module is one of ringtape, or "Tensor"; or it is the library's own name, such as "jax.lax".
    """
    if name.startswith("__"):
        return ""
    asked, table = elsewhere()
    return next((answer for library in asked.get(module, [module]) for names, answer in table.get(library, {}).items()
                 if any(fnmatchcase(name, each) for each in names.split())), "")  # fmt: skip


@cache  # one entry; without it each name that is missing takes 3 ms more
def elsewhere() -> tuple[dict[str, list[str]], dict[str, dict[str, str]]]:
    """Return the libraries whose names are looked for in each module, and the answers by library and names."""
    import tomllib  # at the first name that is missing

    with open(os.path.join(os.path.dirname(__file__), "elsewhere.toml"), "rb") as file:
        table = tomllib.load(file)
    asked, shared = table.pop("asked"), table.pop("shared")
    for rows in table.values():
        rows.update({names: shared[answer[1:]] for names, answer in rows.items() if answer[0] == "="})
    return asked, table


_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN_FOLDERS = tuple(os.path.join(_ROOT, package) + os.sep for package in ("autograd", "collectives", "parallel"))

_OWN_MODULES = ("autograd.", "collectives.", "parallel.")
_LEFT_OUT = (*_OWN_FOLDERS, contextlib.__file__, "<frozen ", threading.__file__)
_CALLED = ("numpy", "scipy", "numba", "matplotlib", "PIL", "mpi4py", "tqdm")


def is_own_file(file: str) -> bool:
    """Whether a source file is ringtape's own."""
    return file.startswith(_OWN_FOLDERS)


def _is_own(frame: FrameType) -> bool:
    """Whether a frame runs ringtape's code: of a file, or the ``__init__`` that Python generates for a dataclass."""
    file = frame.f_code.co_filename
    if file == "<string>":
        return str(frame.f_globals.get("__name__", "")).startswith(_OWN_MODULES)
    return is_own_file(file)


def shorten(error: BaseException) -> None:
    """Leave ringtape's own frames out of the traceback of a `RingtapeError`, and errors that it caught inside.

    Errors of other types are left as they are, and all of them with ``RINGTAPE_TRACEBACK=full``.
    """
    # read here, since `environment` raises these errors; a wrong value is no other error beside this one
    if isinstance(error, RingtapeError) and os.environ.get("RINGTAPE_TRACEBACK") != "full":
        _shorten_chain(error)


def _shorten_chain(error: BaseException) -> None:
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    frames = [trace for trace in _frames(error) if not _is_own(trace.tb_frame)]
    kept = None
    for trace in reversed(frames):
        kept = TracebackType(kept, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    error.__traceback__ = kept or error.__traceback__  # there are none if ringtape was started as a program itself
    if before is error or before is not None and is_of_library(before):
        error.__cause__ = None  # which hides the context, too
    elif before is not None:
        _shorten_chain(before)


def _frames(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


_OF_DATACLASSES = ("__init__", "__eq__", "__hash__", "__setattr__")  # the methods that it makes from text


def is_of_library(error: BaseException) -> bool:
    """Whether an error was raised and caught by ringtape: it has passed no code but ringtape's, Python's and that of
    the packages that ringtape calls."""
    codes = [trace.tb_frame.f_code for trace in _frames(error)]
    return bool(codes) and all(
        code.co_filename.startswith(_called_folders())
        or (code.co_filename == "<string>" and code.co_name in _OF_DATACLASSES)
        for code in codes
    )


@cache  # one entry; without it each frame of a traceback takes 440 us
def _called_folders() -> tuple[str, ...]:
    """The folders of ringtape, of the packages that it calls and of the standard library, without other packages."""
    import sysconfig  # takes a millisecond

    packages = [os.path.dirname(os.path.dirname(np.__file__)), sysconfig.get_path("purelib")]
    called = [os.path.join(folder, name) + os.sep for folder in packages for name in _CALLED]
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    # the top of the library and its packages, without the folder of installed ones that is inside of it
    own = [os.path.join(folder, entry.name) for folder in standard for entry in os.scandir(folder)
           if entry.name not in ("site-packages", "dist-packages")]  # fmt: skip
    compiled = [f"{name}/" for name in _CALLED]  # files of Cython have relative names
    return *_OWN_FOLDERS, *called, *compiled, *own, "<frozen ", "<__array_function__", "<captured step>"


def show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error: Python's `sys.excepthook`, with the traceback of a `RingtapeError` shortened."""
    shorten(error)
    sys.__excepthook__(kind, error, error.__traceback__)


def install_hook() -> None:
    """Make `show_error` the interpreter's `sys.excepthook`, unless the program or its environment has set one."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show_error


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from `frame` outwards, that is not in ringtape's own code.

    A ``with`` statement enters ringtape's functions through `contextlib`, an import through frozen modules, and a
    thread through `threading`; these are left out, too.
    """
    while frame is not None and (frame.f_code.co_filename.startswith(_LEFT_OUT) or _is_own(frame)):  # without a call
        frame = frame.f_back
    return frame


def caller() -> FrameType | None:
    """Return the innermost frame of this thread that is not in ringtape's own code."""
    return _user_frame(sys._getframe(1))


SITES = "lines of the program"
"""The global of a replay of a captured step that has, by its lines, those of the program."""


def find_site() -> tuple[str, int]:
    """Return file and line of the innermost frame of this thread that is not in ringtape's own code."""
    frame = _user_frame(sys._getframe(1))
    if frame is None:
        return "<unknown>", 0
    file, line = frame.f_code.co_filename, frame.f_lineno
    if file == "<captured step>":
        found: tuple[str, int] = frame.f_globals[SITES].get(line, (file, line))
        return found
    return file, line


def find_callers(most: int = 8) -> str:
    """Return the call sites around `find_site`, innermost first, as ``train.py:12, train.py:40``.

    At most `most` are returned. Frames of the standard library and of installed packages are left out.
    """
    frame = _user_frame(sys._getframe(1))
    found: list[str] = []
    while frame is not None and len(found) < most and (frame := frame.f_back) is not None:
        if _is_of_program(frame):
            found.append(short_site(frame.f_code.co_filename, frame.f_lineno))
    return ", ".join(found)


def _is_of_program(frame: FrameType) -> bool:
    """Whether a frame is in a file of the user's program, not in ringtape or another library."""
    return is_file_of_program(frame.f_code.co_filename)


def is_file_of_program(file: str) -> bool:
    """Whether a source file is the user's, and not that of ringtape, of the standard library or of a package."""
    return not file.startswith(_library_folders())


@cache  # one entry; without it each frame of a search for the caller takes 280 us
def _library_folders() -> tuple[str, ...]:
    """The folders of ringtape, of the standard library and of the installed packages."""
    import sysconfig  # takes a millisecond, and few programs ask for callers

    paths = (sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return *_OWN_FOLDERS, *paths, "<frozen "


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line of this thread that is not in ringtape's own code."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame is not _user_frame(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def short_site(file: str, line: int) -> str:
    """Return a call site as messages show it, like ``model.py:41``; in a notebook ``Cell In[16], line 8``."""
    cell = _cell(file)
    return f"{cell}, line {line}" if cell else f"{os.path.basename(file)}:{line}"


def _cell(file: str) -> str:
    """The name of a cell of IPython by the name of its source file, like ``Cell In[16]``; "" for other files."""
    ipython: Any = sys.modules.get("IPython")
    find = getattr(getattr(ipython and ipython.get_ipython(), "compile", None), "format_code_name", None)
    return " ".join((find and find(file)) or ())


def call_site() -> str:
    """Return the last line of an error message, like ``  at model.py:41``, for the present call site.

    It is "" on a thread that runs no line of a program, and in a program of ringtape itself.
    """
    file, line = find_site()
    return f"\n  at {short_site(file, line)}" if line else ""


def is_raised_inside(error: Exception, function: Callable[..., Any]) -> bool:
    """Whether `function`, called where the error is caught, is ringtape's own, and no code but ringtape's and NumPy's
    ran between it and the error."""
    return is_own_file(function.__code__.co_filename) and is_of_library(error)


def site_of_traceback(trace: TracebackType | None) -> str:
    """Return the last line of the user's program that an exception has passed, like ``model.py:41``; "" for none.

    In an error that has passed libraries alone it is the last line outside of ringtape.
    """
    site = site_outside = ""
    while trace is not None:
        here = short_site(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        if _user_frame(trace.tb_frame) is trace.tb_frame:
            site_outside = here
        if _is_of_program(trace.tb_frame):
            site = here
        trace = trace.tb_next
    return site or site_outside


_frames_lock = threading.RLock()  # a signal's handler may raise an error, too


if hasattr(os, "register_at_fork"):  # no other thread may hold it when this process is forked
    os.register_at_fork(
        before=_frames_lock.acquire, after_in_parent=_frames_lock.release, after_in_child=_frames_lock.release
    )


def uncollected(function: Callable[[], Result]) -> Result:
    """Call a function that looks at the frames of other threads, in which Python before 3.12 may collect garbage.

    It may do so where it makes the object of a frame. A finalizer then lets other threads run. Before 3.11.9 one that
    starts or ends a thread waits for ever for a lock that `sys._current_frames` holds (CPython issue 106883). One whose
    function returns frees the frame for which the object is made, and the process crashes.
    """
    if sys.version_info >= (3, 12):
        return function()
    with _frames_lock:
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            return function()
        finally:
            if is_collecting:
                gc.enable()


def frames_of_threads() -> dict[int, FrameType]:
    """Return the frame that each other thread executes, as `sys._current_frames` does, safely: see `uncollected`.

    That of this thread would hold itself, and with it what all of its callers hold.
    """
    found = uncollected(sys._current_frames)
    found.pop(threading.get_ident(), None)
    return found


def frames_of_thread(thread: int | None) -> list[FrameType]:
    """Return the frames of a thread, innermost first. Empty for None and for a thread that has ended."""

    def found() -> list[FrameType]:
        frames = []
        frame = None if thread is None else sys._current_frames().get(thread)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        return frames

    return uncollected(found)


def site_of_thread(thread: int | None) -> str:
    """Return the line of the user's program that another thread executes, like ``model.py:41``.

    Of a thread that runs libraries alone it is the line outside of ringtape. Returns "" for None and for a thread that
    has ended.
    """
    frames = frames_of_thread(thread)
    while frames and (frames[0].f_code.co_filename.startswith(_LEFT_OUT) or _is_own(frames[0])):
        del frames[0]
    frame = next(filter(_is_of_program, frames), frames[0] if frames else None)
    return "" if frame is None else short_site(frame.f_code.co_filename, frame.f_lineno)
