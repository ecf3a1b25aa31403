"""The recorder: a listener that makes a record of each operation of its thread.

It hears the events of operations (`engine.events`), of sweeps and of optimizers, and looks at the nodes that were
appended to the tape since the event before. So an operation costs nothing while nobody records. The program's line and
the modules around an operation are read from the stack.

An operand is told by its place on its tape, or, outside of tapes, by the identity of its Tensor or array. No array is
kept alive.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, ref

import numpy as np

from ..engine import events
from ..engine.leaves import Leaf, Parameter
from ..engine.multi_output import OUTPUT, Cotangents
from ..engine.pytree import flatten
from ..engine.recording import (
    EFFECT,
    IMPORT,
    LEAF,
    MARK,
    Recording,
    arrays_of,
    op_of,
    options_of,
    parents_of,
    result_of,
    signature_of,
)
from ..engine.state import state
from ..engine.tensor import TENSORS, WATCH
from ..errors import caller
from ..layouts.expressions import variables_of_operands
from ..layouts.layout import Grid, Layout, Shard
from ..nn.module import Module
from .record import CallOf, Contribution, OperationRecord, RankRecords, Summary
from .summary import summary

__all__ = ["Recorder", "TapeFacts"]

_Place = tuple[str, int, tuple[str, ...]]  # file, line, scope
_FLAT = frozenset((np.ndarray, int, float))
_ALIASES = frozenset((OUTPUT, WATCH))  # their nodes stand for the values of their parents


class TapeFacts:
    """The recorded facts of one tape.

    Attributes
    ----------
    number : int
        Which tape of the rank it is, from 1.
    records : list of OperationRecord
        All records of the rank.
    ids : dict
        By place: the id of the record of the operation that made the value.
    bytes_before : list of int
        By place: the bytes that the tape keeps for the places before it.
    """

    __slots__ = ("_bases", "bytes_before", "ids", "leaves", "number", "records", "seen")

    def __init__(self, number: int, records: list[OperationRecord]):
        self.number, self.records = number, records
        self.seen = 0
        self.ids: dict[int, int] = {}
        self.leaves: dict[int, tuple[Any, int]] = {}  # by id: the leaf, and the id of its record
        self.bytes_before = [0]
        self._bases: set[int] = set()

    def count(self, node: Any) -> None:
        """Add the bytes of a node's arrays, each piece of memory once; those of leaves belong to the program."""
        total = 0
        is_leaf = node is not None and op_of(node) is LEAF
        for x in () if node is None else (result_of(node), *arrays_of(node)):
            for leaf in (x,) if x.__class__ is np.ndarray else flatten(x)[0]:
                array: Any = getattr(leaf, "array", leaf)
                while isinstance(getattr(array, "base", None), np.ndarray):
                    array = array.base  # which has the memory
                if isinstance(array, np.ndarray) and id(array) not in self._bases:
                    self._bases.add(id(array))
                    total += 0 if is_leaf else array.nbytes
        self.bytes_before.append(self.bytes_before[-1] + total)


class _Open:
    """An operation that runs: its record, or None for a node that has none."""

    __slots__ = ("direction", "facts", "name", "record")

    def __init__(self, direction: str, name: str, record: OperationRecord | None, facts: Any = None):
        self.direction, self.name, self.record, self.facts = direction, name, record, facts


class Recorder:
    """Makes the records of its thread's operations. It listens in the block of `listening`.

    Parameters
    ----------
    rank : int
    values : bool
        Whether the records have values, statistics and digests, for which every result is read. Else they have shapes
        and dtypes.
    lines : bool
        Whether the program's lines and the modules are looked up.
    clock : callable
        Returns the time in nanoseconds.

    Attributes
    ----------
    found : RankRecords
        The records so far.
    ended : OperationRecord or None
        The record of the operation that ended last.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd.records.recorder import Recorder
    >>> w, recorder = ag.Parameter([1.0, 2.0], name="w"), Recorder()
    >>> with recorder.listening(), ag.Tape() as tape:
    ...     y = (w * w).sum()
    >>> [(r.name, r.place, r.operands) for r in recorder.found.records]
    [('parameter w', 0, ()), ('multiply', 1, (0, 0)), ('sum', 2, (1,))]
    """

    whole = True  # the tape is the one that the program has without a recorder

    def __init__(
        self, rank: int = 0, *, values: bool = True, lines: bool = True,
        clock: Callable[[], int] = time.perf_counter_ns,
    ):  # fmt: skip
        self.found = RankRecords(rank)
        self.ended: OperationRecord | None = None
        self.clock = clock
        self._values, self._lines = values, lines
        self._open: list[_Open] = []
        self._tapes: WeakKeyDictionary[Recording, TapeFacts] = WeakKeyDictionary()
        self._count_of_tapes = 0
        self._made: dict[int, tuple[Any, int]] = {}  # by the id of a Tensor or array: a reference to the array, record
        self._duals: dict[int, str] = {}  # by record: the layout of the cotangent
        self._grid: Grid | None = None  # of the last layout
        self._texts: dict[Layout, tuple[str, str]] = {}  # of a layout and its dual
        self._gradients: dict[int, int] = {}  # by the id of a leaf: the record that gave it its gradient
        self._awaiting: tuple[OperationRecord, Any] | None = None  # its node follows: a record and its operation
        self._unclaimed: tuple[OperationRecord, Any] | None = None  # its events follow: a record and its operation
        self._unsettled: tuple[OperationRecord, int, ref[Recording]] | None = None  # whose node may be released
        self._recent: Callable[[], Recording | None] = lambda: None  # the recording of the last event
        self._loose: list[tuple[CallOf, _Place]] = []  # control of the operation that follows, with its place
        self._messages: dict[tuple[str, str, int], OperationRecord] = {}  # by call, channel and the other rank: alone
        self._transfers: dict[Any, OperationRecord] = {}  # by key: those of the forward direction
        self._scopes: list[tuple[str, int]] = []  # names of blocks, and how many modules are around them
        self._variables: dict[tuple[Any, int], list[str]] = {}  # by code and instruction: those of the operands
        self._paths: dict[tuple[int, int], tuple[Any, Any, str]] = {}
        self._step = 0  # the first record of this step
        self._marks_steps = False  # whether the program marks them itself

    @contextmanager
    def listening(self) -> Iterator[RankRecords]:
        """Record the operations of this thread inside the block."""
        with ExitStack() as stack:
            stack.enter_context(events.listening(self))
            stack.enter_context(events.listening_to_spans(self._hear_span))
            if state.recording is not None:  # what is on the tape already has no records
                facts = self._facts(state.recording)
                facts.seen = len(state.recording.nodes)
                facts.bytes_before += [0] * facts.seen
            try:
                yield self.found
            except BaseException as error:
                self.found.error = str(error) or type(error).__name__
                raise
            finally:
                self._settle(state.recording)
                for call, place in self._loose:
                    record = self._alone(call)
                    record.file, record.line, record.scope = place
                self._loose.clear()

    # -- events ----------------------------------------------------------------------------------------------------
    def __call__(self, phase: str, direction: str, name: str) -> None:
        """Hear an event without facts: the begin or the end of a named part."""
        if direction != "forward":
            return
        if phase == "begin":
            self._scopes.append((name, len(_modules(sys._getframe(1)))))
        elif self._scopes:
            self._scopes.pop()

    def see(self, phase: str, direction: str, name: str, facts: tuple[Any, ...]) -> None:
        """Hear the begin or the end of an operation, with its facts."""
        if phase == "begin":
            self._BEGIN[direction](self, name, *facts)
            return
        now = self.clock()
        entry = self._close(direction, name)
        if entry is None or entry.record is None:
            return
        entry.record.end_ns = now
        self.ended = entry.record
        if direction == "forward":
            self._end(entry, *facts[:3])
        elif direction == "backward":
            self._end_backward(entry.record, *facts)
        elif direction == "effect":
            self._awaiting = (entry.record, EFFECT) if name == "do" else None
        else:
            entry.record.value = summary(facts[1], self._values)

    def failed(self, direction: str, name: str, error: BaseException) -> None:
        """Hear that an operation has raised."""
        entry = self._close(direction, name)
        if entry is not None and entry.record is not None:
            entry.record.end_ns = self.clock()
            entry.record.error = str(error) or type(error).__name__

    def added(self, place: int, ct: Any, sweep: Any) -> None:
        """Hear that the adjoint that runs adds a cotangent to the one at a place."""
        entry = self._open[-1] if self._open else None
        if entry is None or entry.record is None or entry.direction != "backward" or place < 0:
            return
        to = self._facts(sweep.recording).ids.get(place, -1)
        self._contribute(entry.record, to, ct)

    def transferred(self, call: tuple[str, str, int], is_cotangent: bool, key: Any, x: Any, layout: Any) -> None:
        """Hear the value of a message between the stages of a pipeline, whose adjoint has the same key."""
        record = self._messages.pop(call, None)
        if record is None:
            return
        record.value = summary(x, self._values)
        if not is_cotangent:
            self._transfers[key] = record
            self._set_layout(record, layout or getattr(x, "layout", None))
            if x.__class__ in TENSORS and x.tape is not None:
                record.operands, record.operand_layouts = (self._facts(x.tape).ids.get(x.node, -1),), (record.layout,)
        elif (forward := self._transfers.pop(key, None)) is not None:
            record.direction, record.adjoint_of, record.name = "backward", forward.id, forward.name
            record.scope, record.file, record.line = forward.scope, forward.file, forward.line
            record.layout = self._duals.get(forward.id, "")

    def add_call(self, call: CallOf) -> OperationRecord | None:
        """Take a call of the transport, which has just begun.

        It belongs to the operation that runs, or, if it is control, to the one that follows. Any other call gets a
        record of its own, which is returned.
        """
        record = self._current()
        if record is not None:
            record.calls.append(call)
        elif call.is_control:
            self._loose.append((call, self._where() if self._lines else ("", 0, ())))
        else:
            return self._alone(call)
        return None

    def _hear_span(self, edge: str, name: str, rows: int) -> None:
        self._settle(self._recent())  # the sweep may empty its list, the block of a tape has left it
        self._settle(state.recording)
        end = len(self.found.records)
        if name == "step":
            if edge == "begin":
                self._step, self._marks_steps = end, True
            else:
                self.found.steps.append((self._step, end))
        elif name == "optimizer" and edge == "end" and not self._marks_steps:
            self.found.steps.append((self._step, end))
            self._step = end

    # -- records ---------------------------------------------------------------------------------------------------
    def _new(self, direction: str, name: str, forward: OperationRecord | None = None) -> OperationRecord:
        """A new record, with the line of its forward operation, of its cause, or of the program now."""
        cause = self._current()
        record = OperationRecord(len(self.found.records), direction, name)
        if cause is not None:
            record.cause = cause.id
        if (of := forward or cause) is not None:
            record.scope, record.file, record.line = of.scope, of.file, of.line
        elif self._lines:
            record.file, record.line, record.scope = self._where()
        record.begin_ns = record.end_ns = self.clock()
        record.tape_bytes = self._held()
        self.found.records.append(record)
        return record

    def _push(self, direction: str, name: str, record: OperationRecord | None, facts: Any = None) -> None:
        if record is not None and self._loose and record.cause is None:
            record.begin_ns = min(record.begin_ns, self._loose[0][0].begin_ns)
            record.calls += [call for call, _ in self._loose]
            self._loose.clear()
        self._open.append(_Open(direction, name, record, facts))

    def _close(self, direction: str, name: str) -> _Open | None:
        """Remove the innermost open operation of this name, with those inside it, which an error ended."""
        for k in range(len(self._open) - 1, -1, -1):
            entry = self._open[k]
            if (entry.direction, entry.name) == (direction, name):
                del self._open[k:]
                return entry
        return None

    def _current(self) -> OperationRecord | None:
        """The record of the innermost operation that runs."""
        for entry in reversed(self._open):
            if entry.record is not None:
                return entry.record
        return None

    def _alone(self, call: CallOf) -> OperationRecord:
        """Make a record for a call that no operation has made."""
        record = self._new("forward", call.call)
        record.begin_ns, record.end_ns = call.begin_ns, call.end_ns
        record.calls.append(call)
        if call.peer is not None:
            self._messages[call.call, call.channel, call.peer] = record
        return record

    # -- forward ---------------------------------------------------------------------------------------------------
    def _begin(self, name: str, op: Any, xs: Sequence[Any], options: Any) -> None:
        for x in xs:
            if x.__class__ in TENSORS and x.tape is not None:
                _ = x.node  # a value that another rank is still sending is waited for, and this has its own record
        self._settle(state.recording)
        if self._unclaimed is not None and self._unclaimed[1] is op:
            record, self._unclaimed = self._unclaimed[0], None
            record.name, record.begin_ns = name, self.clock()
            self._push("forward", name, record, options)
            return
        leaves = _leaves(tuple(xs))
        operands = tuple([self._id_of(x, (op, i, len(leaves))) for i, x in enumerate(leaves)])
        record = self._new("forward", name)
        record.operands = operands
        record.operand_names = tuple([str(getattr(x, "name", "")) if x.__class__ in TENSORS else "" for x in leaves])
        record.operand_layouts = tuple([self._layout_of(x) for x in leaves])
        self._push("forward", name, record, options)

    def _end(self, entry: _Open, op: Any, xs: Any, y: Any) -> None:
        record, recording = entry.record, state.recording
        assert record is not None
        results = _leaves(y)
        open_tape = 0 if recording is None else self._facts(recording).number
        for inner in self.found.records[record.id + 1 :]:
            if inner.cause == record.id and inner.place is not None and inner.tape == open_tape:
                inner.cause = record.cause  # it is on the tape in the place of this one, as those of `instead`
        if getattr(op, "enters", False):
            self._end_entry(record, xs, results)
            return
        for out in results:
            self._register(record, out)
        self._settle(recording)
        first = None
        for out in results:
            record.value = summary(out, self._values)
            if record.value is not None:
                first = out
                self._set_layout(record, out.layout if out.__class__ in TENSORS else getattr(entry.facts, "out", None))
                break
        if recording is not None and record.place is None and first.__class__ not in TENSORS:
            self._awaiting = record, op
        record.tape_bytes = self._held()

    def _end_entry(self, record: OperationRecord, operands: Sequence[Any], results: Sequence[Any]) -> None:
        """The end of an entry of parameters: each parameter enters at its own place, and the entry follows them."""
        recording = state.recording
        for of, x, y in zip(record.operands, operands, results, strict=True):
            if of < 0:
                continue
            entered = self.found.records[of]
            entered.operand_layouts = (self._layout_of(x),)
            parts = [axis for axis, label in (x.layout or {}).items() if type(label) is Shard]
            if y.layout is not None and any(type(y.layout[axis]) is not Shard for axis in parts):
                entered.value = None  # it was that of this rank's part
            self._set_layout(entered, y.layout)
            self._register(entered, y)
        if recording is not None and results and results[-1].tape is recording:
            facts = self._facts(recording)
            record.tape, record.place = facts.number, results[-1].node + 1
            facts.ids[record.place] = record.id
        self._settle(recording)
        record.tape_bytes = self._held()

    def _register(self, record: OperationRecord, out: Any) -> None:
        """Note that a record is that of the operation that made a value."""
        if out.__class__ in TENSORS and out.tape is not None and out.node >= 0:
            facts, place = self._facts(out.tape), out.node
            facts.ids[place] = record.id
            node = out.tape.node(place)
            if node is not None and op_of(node) is OUTPUT:
                (place,) = parents_of(node)
                facts.ids[place] = record.id
            if record.place is None:
                record.tape, record.place = facts.number, place
            return
        self._remember(out, record.id)

    def _remember(self, x: Any, of: int) -> None:
        array = getattr(x, "array", x)
        try:
            known: Any = ref(array)
        except TypeError:  # a NumPy scalar, or an array without values, which is small
            known = array
        self._made[id(array)] = self._made[id(x)] = known, of

    def _id_of(self, x: Any, of_call: tuple[Any, int, int]) -> int:
        """The id of the record of the operation that made an operand; a value that none made gets one as a leaf."""
        if x.__class__ in TENSORS and x.tape is not None and x.node >= 0:
            of = self._facts(x.tape).ids.get(x.node, -1)
            if of >= 0 and self.found.records[of].value is None:  # that of an operation without events
                self.found.records[of].value = summary(x, self._values)
                self._set_layout(self.found.records[of], x.layout)
            return of
        recording = state.recording
        if isinstance(x, Leaf) and recording is not None:
            entered = self._facts(recording).leaves.get(id(x))
            return self._enter(x, of_call) if entered is None else entered[1]
        known = self._known(x)
        is_value = x.__class__ in TENSORS or isinstance(x, np.ndarray)
        return self._enter(x, of_call) if known < 0 and is_value and self._current() is None else known

    def _known(self, x: Any) -> int:
        """The id of the record of the operation that made a value outside of tapes; -1 if it is not known."""
        array = getattr(x, "array", x)
        for key in (id(x), id(array)):
            if key in self._made:
                reference, of = self._made[key]
                if (reference() if isinstance(reference, ref) else reference) is array:
                    return of
        return -1

    def _enter(self, x: Any, of_call: tuple[Any, int, int] | None = None) -> int:
        """Make the record of a leaf, which has its place when its node is seen.

        `of_call` is the operation of which it is an operand, the index of the operand, and their number.
        """
        recording = state.recording
        kind = "parameter" if isinstance(x, Parameter) else "leaf"
        name = getattr(x, "name", "") or self._variable(of_call)
        record = self._new("forward", f"{kind} {name}".strip())
        record.value = summary(x, self._values)
        if x.__class__ in TENSORS:
            if x.layout is None and isinstance(x, Leaf) and state.grid is not None and kind == "parameter":
                x.enter_mesh()
            self._set_layout(record, x.layout)
        if recording is not None and isinstance(x, Leaf):
            facts = self._facts(recording)
            record.tape = facts.number
            facts.leaves[id(x)] = x, record.id
        else:
            self._remember(x, record.id)
        return record.id

    def _variable(self, of_call: tuple[Any, int, int] | None) -> str:
        """The variable that the program's line has for an operand; "" if it is not known."""
        frame = caller() if self._lines and of_call is not None else None
        if frame is None or of_call is None:
            return ""
        op, i, count = of_call
        key = frame.f_code, frame.f_lasti
        if key not in self._variables:
            name = str(getattr(op, "name", getattr(op, "__name__", "")))
            self._variables[key] = variables_of_operands(frame, name, count)
        return self._variables[key][i] if i < len(self._variables[key]) else ""

    # -- the nodes of the tape ---------------------------------------------------------------------------------------
    def _facts(self, recording: Recording) -> TapeFacts:
        found = getattr(recording, "records", None)
        if found is not None and found.records is self.found.records:
            return found
        found = self._tapes.get(recording)
        if found is None:
            self._count_of_tapes += 1
            found = self._tapes[recording] = recording.records = TapeFacts(self._count_of_tapes, self.found.records)
        return found

    def _settle(self, recording: Recording | None) -> None:
        """Look at the nodes that were appended since the last event, and whether the last step released its node."""
        if self._unsettled is not None:
            record, place, reference = self._unsettled
            self._unsettled, of = None, reference()
            if of is not None:
                before = self._facts(of).bytes_before
                record.tape_bytes = before[min(place, len(before) - 1) if of.released(place) else -1]
        self._unclaimed = None
        if recording is not None:
            self._recent = ref(recording)
            facts = self._facts(recording)
            for place in range(facts.seen, len(recording.nodes)):
                self._see_node(facts, recording, place)
            facts.seen = max(facts.seen, len(recording.nodes))
        self._awaiting = None

    def _see_node(self, facts: TapeFacts, recording: Recording, place: int) -> None:
        node: Any = recording.nodes[place]
        facts.count(node)
        if node is None or place in facts.ids:
            return
        op, parents = op_of(node), parents_of(node)
        if self._awaiting is not None and self._awaiting[1] is op:
            record, self._awaiting = self._awaiting[0], None
            if max(record.operands, default=-1) < 0:
                record.operands = self._ids(facts, parents)
        elif op is LEAF:
            (leaf,) = arrays_of(node)
            known = facts.leaves.get(id(leaf))
            record = self.found.records[self._enter(leaf) if known is None else known[1]]
        elif op is IMPORT:
            other, at = options_of(node)
            facts.ids[place] = self._facts(other).ids.get(at, -1)
            return
        elif op in _ALIASES and parents[0] in facts.ids:
            facts.ids[place] = facts.ids[parents[0]]
            return
        elif op is MARK or op is EFFECT:
            return
        else:  # its events follow, or it has none
            record = self._new("forward", "argument" if op is WATCH else op.name)
            record.operands = self._ids(facts, parents)
            self._unclaimed = record, op
        record.tape, record.place = facts.number, place
        facts.ids[place] = record.id
        layout = getattr(signature_of(node), "out", None)
        if op.name in ("start", "wait"):  # of a nonblocking call
            layout = options_of(node)[2]
        if not record.layout:
            self._set_layout(record, layout)

    @staticmethod
    def _ids(facts: TapeFacts, parents: Sequence[int]) -> tuple[int, ...]:
        return tuple([facts.ids.get(parent, -1) for parent in parents if parent >= 0])

    def _held(self) -> int:
        """The bytes that the open tape keeps."""
        recording = state.recording
        return 0 if recording is None else self._facts(recording).bytes_before[-1]

    # -- backward ------------------------------------------------------------------------------------------------------
    def _begin_backward(self, name: str, node: Any, ct: Any, sweep: Any) -> None:
        recording = sweep.recording
        self._settle(recording)
        if state.recording is not recording:
            self._settle(state.recording)
        facts = self._facts(recording)
        is_bucket = not isinstance(node, tuple)
        place = node if is_bucket else sweep.place
        op = None if is_bucket else op_of(node)
        if op is MARK or op is IMPORT or op is EFFECT or op in _ALIASES:
            self._push("backward", name, None, facts.ids.get(place))
            return
        of = facts.ids.get(place, -1)
        forward = self.found.records[of] if of >= 0 else None
        record = self._new("backward", name, forward)
        if forward is not None:
            record.adjoint_of = of
            record.name = name if is_bucket else forward.name
            record.layout = self._duals.get(of, "")
        record.tape = facts.number
        if not is_bucket:
            record.place = place
        if ct.__class__ in TENSORS and ct.layout is not None:
            record.layout = repr(ct.layout)
        record.value = self._summary(ct)
        self._push("backward", name, record)
        if ct is not None and not isinstance(ct, Cotangents):
            self._remember(ct, record.id)
        if op is LEAF:
            self._gradients[id(arrays_of(node)[0])] = record.id

    def _end_backward(self, record: OperationRecord, node: Any, ct: Any, sweep: Any) -> None:
        if not isinstance(node, tuple):
            return
        if getattr(op_of(node), "enters", False) and op_of(node) is not LEAF:
            self._end_entry_backward(record, arrays_of(node), sweep)
        if sweep.left is sweep.recording.nodes:  # the sweep empties the list itself
            before = self._facts(sweep.recording).bytes_before
            record.tape_bytes = before[min(sweep.place, len(before) - 1)]
        else:
            self._unsettled = record, sweep.place, ref(sweep.recording)

    def _end_entry_backward(self, record: OperationRecord, leaves: Sequence[Any], sweep: Any) -> None:
        """The gradients that the adjoint of an entry has given its parameters."""
        known = self._facts(sweep.recording).leaves
        for leaf in leaves:
            if isinstance(leaf, Leaf) and id(leaf) in known:
                kept = sweep.later.get(id(leaf), (None, None))[1]
                self._contribute(record, known[id(leaf)][1], leaf._grad if kept is None else kept)
                self._gradients[id(leaf)] = record.id

    def _contribute(self, record: OperationRecord, to: int, ct: Any) -> None:
        value = self._summary(ct)
        if value is not None:
            record.contributions = (*record.contributions, Contribution(to, value))

    def _summary(self, ct: Any) -> Summary | None:
        """The summary of a cotangent, which may be one of several outputs, or of a started adjoint."""
        if isinstance(ct, Cotangents):
            ct = next((each for each in ct.found.values() if each is not None), None)
        return summary(getattr(ct, "ct", ct), self._values)

    # -- effects and updates -------------------------------------------------------------------------------------------
    def _begin_effect(self, name: str, function: Any) -> None:
        if isinstance(function, partial) and function.func is events.emit:  # the end of a named part
            self._push("effect", name, None)
            return
        around = self._open[-1].facts if self._open else None
        self._settle(state.recording)
        what = getattr(function, "__name__", "")
        record = self._new("effect", name if what.startswith("<") else f"{name} {what}".strip())
        if isinstance(around, int) and name == "undo":
            record.adjoint_of = around
        self._push("effect", name, record)

    def _begin_update(self, name: str, optimizer: Any, p: Any) -> None:
        record = self._new("update", name)
        record.operands = (self._gradients.get(id(p), -1),)
        record.operand_names = (p.name,)
        self._set_layout(record, p.layout)
        if optimizer is None:  # it is clipped
            self._gradients[id(p)] = record.id
        self._push("update", name, record)

    _BEGIN: ClassVar[dict[str, Callable[..., None]]] = {
        "forward": _begin, "backward": _begin_backward, "effect": _begin_effect, "update": _begin_update,
    }  # fmt: skip

    # -- layouts -------------------------------------------------------------------------------------------------------
    def _set_layout(self, record: OperationRecord, layout: Any) -> None:
        if layout is None:
            return
        if layout.grid is not self._grid:
            self._grid = layout.grid
            self.found.mesh = tuple(zip(layout.grid.names, map(int, layout.grid.sizes), strict=True))
            self.found.coordinates = tuple(map(int, layout.grid.place))
        record.layout, self._duals[record.id] = self._texts_of(layout)

    def _texts_of(self, layout: Layout) -> tuple[str, str]:
        """The texts of a layout and its dual. Equal layouts are one object, so each is written once."""
        known = self._texts.get(layout)
        if known is None:
            known = self._texts[layout] = repr(layout), repr(layout.dual)
        return known

    def _layout_of(self, x: Any) -> str:
        if x.__class__ in TENSORS:
            return "" if x.layout is None else self._texts_of(x.layout)[0]
        of = self._known(x)
        return "" if of < 0 else self.found.records[of].layout

    # -- places in the program -----------------------------------------------------------------------------------------
    def _where(self) -> _Place:
        """The program's line, and the modules and named parts around it."""
        frame = caller()
        file, line = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        modules = _modules(sys._getframe(2))
        names = [self._path(modules[k - 1] if k else None, module) for k, module in enumerate(modules)]
        for name, depth in reversed(self._scopes):
            names.insert(min(depth, len(names)), name)
        return file, line, tuple(names)

    def _path(self, outer: Module | None, module: Module) -> str:
        """The name of a module in the one around it."""
        known = self._paths.get((id(outer), id(module)))
        if known is None:
            paths = () if outer is None else outer.named_modules()
            path = next((path for path, each in paths if each is module and path), type(module).__name__)
            known = self._paths[id(outer), id(module)] = outer, module, path
        return known[2]


def _leaves(tree: Any) -> Sequence[Any]:
    """The leaves of operands or of a result, which are seldom nested."""
    if tree.__class__ in _FLAT or tree.__class__ in TENSORS:
        return (tree,)
    if tree.__class__ in (tuple, list) and all(x.__class__ in _FLAT or x.__class__ in TENSORS for x in tree):
        flat: Sequence[Any] = tree
        return flat
    return flatten(tree)[0]


def _modules(frame: FrameType | None) -> list[Module]:
    """The modules whose `forward` is on the stack, outermost first."""
    found: list[Module] = []
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            module = frame.f_locals.get(code.co_varnames[0])
            if isinstance(module, Module) and (not found or found[-1] is not module):  # else that of a base class
                found.append(module)
        frame = frame.f_back
    return found[::-1]
