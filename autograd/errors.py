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

__all__ = [
    "AbsentError",
    "AnomalyError",
    "ArgumentError",
    "CollectiveMismatch",
    "CommunicationError",
    "ConflictError",
    "DeadlockError",
    "DependencyError",
    "DtypeError",
    "LayoutError",
    "MeshError",
    "NotDifferentiable",
    "ObjectiveError",
    "RankFailed",
    "ReplicaMismatch",
    "RingtapeError",
    "SavedArrayError",
    "ShapeError",
    "TapeError",
]


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
