"""The tree of exceptions. Everything that ringtape raises on purpose is a `RingtapeError`.

    RingtapeError
    +-- LayoutError          operands whose layouts do not go together, or an objective that is not one number
    +-- TapeError            a tape used in a way it cannot be: released, foreign, nothing recorded
    +-- SavedArrayError      a write to an array that a tape still needs (also a ValueError and a TypeError)
    +-- ShapeError           shapes that do not fit (also a ValueError)
    +-- DtypeError           a dtype without derivative where one is needed, or dtypes that differ (also a TypeError)
    +-- ArgumentError        an argument that is missing, or nested in another way than needed (also a TypeError)
    +-- ObjectiveError       grad of what is not one real number (a ShapeError and a DtypeError)
    +-- AbsentError          reading a value that this rank does not hold
    +-- AnomalyError         a NaN or an infinity, under detect_anomaly (also a FloatingPointError)
    +-- NotDifferentiable    an operation that has no derivative, raised where it is recorded
    |                        (also a NotImplementedError)
    +-- ConflictError        another distribution owns the same package
    +-- DependencyError      an optional package is not installed (also an ImportError)
    +-- MeshError            an axis, rank or mesh that does not exist (also a ValueError)
    +-- CommunicationError   what goes wrong between ranks
        +-- CollectiveMismatch   ranks that do not make the same call
        +-- DeadlockError        ranks that wait for each other for ever
        +-- RankFailed           another rank raised, exited early or was killed
        +-- ReplicaMismatch      copies that should be equal and are not
"""

from __future__ import annotations

import os
import sys

__all__ = [
    "AbsentError", "AnomalyError", "ArgumentError", "CollectiveMismatch", "CommunicationError", "ConflictError",
    "DeadlockError", "DependencyError", "DtypeError", "LayoutError", "MeshError", "NotDifferentiable",
    "ObjectiveError", "RankFailed", "ReplicaMismatch", "RingtapeError", "SavedArrayError", "ShapeError", "TapeError",
]  # fmt: skip


class RingtapeError(Exception):
    """The root of every exception that ringtape raises on purpose."""


class LayoutError(RingtapeError):
    """Layouts that do not go together; the text names axis, operands, both layouts and the fix."""


class TapeError(RingtapeError):
    """A tape used in a way it cannot be: released, foreign, or with nothing recorded."""


class SavedArrayError(RingtapeError, ValueError, TypeError):
    """A write to an array that a tape still needs for its backward pass."""


class ShapeError(RingtapeError, ValueError):
    """Shapes that do not fit the operation."""


class DtypeError(RingtapeError, TypeError):
    """A dtype that has no derivative where one is needed, or dtypes that differ."""


class ArgumentError(RingtapeError, TypeError):
    """An argument of a transform that is missing, or whose nesting is not the one that is needed."""


class ObjectiveError(ShapeError, DtypeError):
    """A gradient was asked of a function that does not return one real number."""


class AbsentError(RingtapeError):
    """A value was read on a rank that does not hold it, or in a world of shapes without values."""


class AnomalyError(RingtapeError, FloatingPointError):
    """A value that is not finite; the text names the operation that made it and the line of the program."""


class NotDifferentiable(RingtapeError, NotImplementedError):
    """An operation that has no derivative, raised where it is recorded."""


class ConflictError(RingtapeError, ImportError):
    """Another distribution owns the same package name."""


class DependencyError(RingtapeError, ImportError):
    """A package that is an optional extra is needed and cannot be imported; the text says how to install it."""


class MeshError(RingtapeError, ValueError):
    """An axis, a rank or a mesh that does not exist in this world."""


class CommunicationError(RingtapeError):
    """Something went wrong between ranks."""


class CollectiveMismatch(CommunicationError):
    """The ranks of a group did not make the same call; the text names the ranks that differ."""


class DeadlockError(CommunicationError):
    """Ranks wait for each other for ever; the text says what each of them waits for."""


class RankFailed(CommunicationError):
    """Another rank raised, exited early or was killed; the text names it."""


class ReplicaMismatch(CommunicationError):
    """Copies of one value that should be equal on all ranks are not."""


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_HERE, package) + os.sep for package in ("autograd", "collectives", "parallel"))


def find_site() -> tuple[str, int]:
    """File and line of the innermost frame that is not ringtape's own."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back  # type: ignore[assignment]
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def short_site(file: str, line: int) -> str:
    """The same as errors show it: ``model.py:41``."""
    return f"{os.path.basename(file)}:{line}"


def call_site() -> str:
    """The same as the tail of an error's text: ``   model.py:41``."""
    return f"\n  at {short_site(*find_site())}"


def site_of_thread(thread: int | None) -> str:
    """Where the user's program stands in another thread, ``model.py:41``; "" for a thread that has ended."""
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return "" if frame is None else short_site(frame.f_code.co_filename, frame.f_lineno)
