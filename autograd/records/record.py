"""Records: one for each operation that a rank runs, forwards and backwards, with its communication.

`Tape.show`, `Tape.trace`, the page of a program and other tools read them. `recorder.Recorder` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["CallOf", "Contribution", "OperationRecord", "RankRecords", "Summary"]


class Summary(NamedTuple):
    """The shape, the dtype and the values of an array, in full if it is small.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        As NumPy names it.
    values : tuple of float, int, bool or complex, or None
        All values in C order, if there are at most 64 of them; else None. Also None where values are left out.
    least, mean, greatest, deviation : float or None
        Of the finite values of a larger array.
    not_finite : int
        The number of values that are infinite or no number.
    digest : str
        16 hexadecimal digits of a hash of the bytes, by which ranks and runs tell whether values are equal bit by bit.
        Empty where values are left out.
    is_absent : bool
        Whether the rank does not hold the value, as off the root of a Rooted value.
    """

    shape: tuple[int, ...]
    dtype: str
    values: tuple[complex, ...] | None = None
    least: float | None = None
    mean: float | None = None
    greatest: float | None = None
    deviation: float | None = None
    not_finite: int = 0
    digest: str = ""
    is_absent: bool = False


class Contribution(NamedTuple):
    """A cotangent that the adjoint of one operation adds to that of an operand.

    Attributes
    ----------
    to : int
        The id of the record of the operation, leaf or parameter entry that made the operand.
    value : Summary
        The addend alone.
    """

    to: int
    value: Summary


@dataclass(slots=True)
class CallOf:
    """A call of the transport that an operation made.

    Attributes
    ----------
    call : str
        The name of the transport's call: "all_reduce", "send".
    axis : str
        The mesh axis, or several as ``dp*tp``; "world" for all ranks.
    channel : str
        The name of the channel. The n-th call of a channel on one rank belongs to the n-th call on the others.
    number : int
        Which call of its channel it is, from 1; for a message, which message to or from this peer.
    ranks : tuple of int
        The ranks of the group, as world ranks.
    bytes : int
        The bytes that this rank gives; of a receive, the size of its buffer.
    peer : int or None
        Of a message: the other world rank. Of a rooted call: the root.
    is_nonblocking : bool
        Whether it is started here and waited for elsewhere.
    is_control : bool
        Whether it carries no data of the program: a comparison, a header, an exchange of extents.
    algorithm, reason : str
        The algorithm that ran, and why it was chosen: "given", "default", "by the rule of auto".
    begin_ns, end_ns : int
        When the rank entered and left it, by the clock of the records. Of a nonblocking call: its start and its end.
    returned_ns, wait_ns : int
        Of a nonblocking call: when its start returned, and when the rank began to wait for it. If a test found it
        complete before, both `wait_ns` and `end_ns` are the time of that test. Else as `end_ns` and `begin_ns`.
    has_ended : bool
        Whether it is complete; else `end_ns` is the time of its begin.
    """

    call: str
    axis: str
    channel: str
    number: int
    ranks: tuple[int, ...]
    bytes: int
    peer: int | None = None
    is_nonblocking: bool = False
    is_control: bool = False
    algorithm: str = "native"
    reason: str = ""
    begin_ns: int = 0
    end_ns: int = 0
    returned_ns: int = 0
    wait_ns: int = 0
    has_ended: bool = False


@dataclass(slots=True)
class OperationRecord:
    """One operation that a rank ran.

    Attributes
    ----------
    id : int
        Counted from 0 on each rank, in order of execution.
    direction : {"forward", "backward", "effect", "update"}
        "update" is a step of an optimizer for one parameter, or "clip", which changes its gradient.
    name : str
        Of the operation; "parameter w" and "leaf x" for values that enter a tape.
    tape, place : int or None
        Which tape of the rank, from 1, and the place on it; None for an operation that is not on a tape.
    scope : tuple of str
        The modules and blocks around it, outermost first: ``("GPT", "blocks.0", "attention")``.
    file, line : str, int
        The program's line that called it. A backward operation has that of its forward operation.
    operands : tuple of int
        The ids of the records that made the operands; -1 for one that no record made.
    operand_names : tuple of str
        The operands' names where they have some, else "".
    operand_layouts : tuple of str
        As ``repr`` gives them; "" where there is no mesh.
    layout : str
        Of the result; in the backward direction, of the cotangent that arrived.
    value : Summary or None
        Of the result; in the backward direction, of the cotangent that arrived.
    adjoint_of : int or None
        In the backward direction: the id of the forward record.
    cause : int or None
        The id of the record inside which this operation ran, such as an adjoint's own operation.
    contributions : tuple of Contribution
        In the backward direction: the addends that its adjoint gives to its operands.
    calls : list of CallOf
        The communication of the operation itself, not of those inside it.
    begin_ns, end_ns : int
        By the clock of the records.
    tape_bytes : int
        The bytes that the open tape keeps alive after the operation.
    error : str
        The message, if the operation raised; "" otherwise.
    """

    id: int
    direction: str
    name: str
    tape: int | None = None
    place: int | None = None
    scope: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    operands: tuple[int, ...] = ()
    operand_names: tuple[str, ...] = ()
    operand_layouts: tuple[str, ...] = ()
    layout: str = ""
    value: Summary | None = None
    adjoint_of: int | None = None
    cause: int | None = None
    contributions: tuple[Contribution, ...] = ()
    calls: list[CallOf] = field(default_factory=list)
    begin_ns: int = 0
    end_ns: int = 0
    tape_bytes: int = 0
    error: str = ""


@dataclass(slots=True)
class RankRecords:
    """All records of one rank.

    Attributes
    ----------
    rank : int
        The world rank.
    mesh : tuple of (str, int)
        The axes and their sizes, outermost first; empty without a mesh.
    coordinates : tuple of int
        The place of the rank along each axis.
    records : list of OperationRecord
    steps : list of (int, int)
        For each step of training, if the program marks them: the first id, and the id after the last.
    error : str
        The message that ended the program; "" if none did.
    """

    rank: int
    mesh: tuple[tuple[str, int], ...] = ()
    coordinates: tuple[int, ...] = ()
    records: list[OperationRecord] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    error: str = ""
