"""Program: a plan in memory, as calls of NumPy or as tables of machine code, with what Python does between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..errors import CaptureError
from . import machine
from .calls import call_of, calls_of
from .linear_algebra import matrix_row, product_row
from .loops import Loop, Pointer, Unsupported
from .machine import Row, Table, compile_loops, is_available, loop_row, ufunc_row
from .memory import Departed, Frame, Memory
from .nodes import Buffer, Constant, Node, Operand, Place, Refused
from .numbers import Number, texts_of
from .plan import Group, Plan, along, name_of
from .text import indented

__all__ = ["Departed", "Frame", "Lines", "Program", "changes_state"]

_MOST_NUMBERS = 4096
_FEW = 16  # numbers that are written one by one, each in 0.07 us; a slice takes 1 us
_ERRORS = {"divide": machine.DIVISION, "over": machine.OVERFLOW, "invalid": machine.INVALID}

_CHANGED = (
    "capture: a check of values found another result than in the recorded step, when the replay had changed something "
    "already\n  fix: check the values of arguments at the beginning of the step; or call the step itself"
)


# -- steps -------------------------------------------------------------------------------------------------------------
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


def _lines_of(
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
                  f"except {departed} as error: raise {name(CaptureError)}({name(_CHANGED)}) from error"]  # fmt: skip
    return found


def _lines(step: Lines | Callable[[Frame], Any], name: Callable[[Any], str]) -> list[str]:
    return step.write(name) if isinstance(step, Lines) else [f"{name(step)}(frame)"]


# -- programs ----------------------------------------------------------------------------------------------------------
class Program:
    """A traced step that can run again.

    Parameters
    ----------
    nodes : sequence of Node
    kept : sequence of Operand
        What is read after the last node.
    arguments : sequence of ndarray
        The values of the run that was traced, whose forms those of other runs have.
    gradients : sequence of Buffer
    quiet : collection of str
        The floating-point errors that are not told.
    """

    def __init__(
        self, nodes: Sequence[Node], kept: Sequence[Operand], arguments: Sequence[Any], gradients: Sequence[Buffer],
        quiet: Collection[str] = (),
    ):  # fmt: skip
        self.quiet = quiet
        self.arguments = len(arguments)
        self.memory = Memory()
        self.memory.with_gradients(gradients)
        self.nodes = _with_numbers(nodes)
        self.steps: list[Lines | Callable[[Frame], Any]] = []
        self.tables = 0
        self.may_name_rows = True  # if not, updates of rows are those of whole tables: both are proved
        self.late: list[Node] = []  # those that may fail when something has changed
        self.redo: dict[int, Callable[[Frame], Any]] = {}  # by row, a call of it by Python, which raises its error
        self._build(kept)

    def run_lines(self, name: Callable[[Any], str]) -> list[str]:
        """The lines of a function that runs the program, with the parts of a frame; see `Lines`.

        They read `frame` itself if `needs_frame`. They raise `Departed` if a decision on data is another one, or a call
        has failed, and nothing has changed; and CaptureError if a decision is another one, and something has changed.
        """
        return _lines_of(self.steps, self._first_change, name)

    @property
    def needs_frame(self) -> bool:
        """Whether a step is a call of Python that is given the frame."""
        return not all(isinstance(step, Lines) for step in self.steps)

    def _build(self, kept: Sequence[Operand]) -> None:
        self.is_compiled = is_available()
        self.plan = Plan(self.nodes, kept, fuses=self.is_compiled)
        groups = self.plan.groups
        self.addresses: dict[Loop, int] = {}
        if self.is_compiled:
            self._compile()
        self.memory.reserve(self.plan.size)
        self.why: list[str] = []
        first_write = next((i for i, group in enumerate(groups) if any(map(changes_state, group.nodes))), len(groups))
        self._first_change: int | None = None  # the first step that changes something
        self.late = [node for group in groups[first_write:] for node in group.nodes if _can_fail(node)]
        if self.is_compiled:
            self._as_tables(first_write)
        else:
            self._as_calls(first_write)

    def _as_tables(self, first_write: int) -> None:
        """Make the steps: tables of calls, and calls of Python between them."""
        table, inside, is_before = Table(), list[Group](), True

        def end() -> None:
            nonlocal table, inside
            if table.rows:
                self.steps.append(self._walk(table, inside, is_before))
                table, inside = Table(), []

        for i, group in enumerate(self.plan.groups):
            if i == first_write:
                end()
                is_before, self._first_change = False, len(self.steps)
            if not is_before and any(node.kind == "guard" for node in group.nodes):
                raise Refused("a decision on data after something has changed")
            if group.rows is not None:
                end()
                self.steps.append(self._choice(group, is_before))
                continue
            try:
                self._add(table, group)
                inside.append(group)
            except (Unsupported, Refused) as error:
                if group.kind != "python":
                    self.why.append(f"{group}: {error}")
                end()
                for node in group.nodes:
                    call = call_of(node, self.memory)
                    is_late = node.kind == "call" and not is_before
                    self.steps.append(self._told(call, group) if is_late else call)
        end()

    def _choice(self, group: Group, is_before: bool) -> Lines:
        """The update of the rows that a step names, or, if the numbers do not allow it, that of all rows."""
        assert group.rows is not None
        plan, factors = group.rows
        walks = []
        for groups in (plan.groups, [group]):
            table = Table()
            for each in groups:
                self._add(table, each)
            walks.append(self._walk(table, groups, is_before))
        few, all_rows = walks
        numbers = [self.memory.view(x) for x in factors]

        def has_rows() -> bool:
            return self.may_name_rows and all(x < math.inf and math.copysign(1.0, x) > 0 for x in numbers)

        return Lines(lambda name: [f"if {name(has_rows)}():", *indented(few.write(name)), "else:",
                                   *indented(all_rows.write(name))])  # fmt: skip

    def _told(self, call: Callable[[Frame], Any], group: Group) -> Callable[[Frame], Any]:
        """A call of a function that may fail when something has changed: then with the error of the step."""

        def step(frame: Frame) -> None:
            try:
                call(frame)
            except (ValueError, ArithmeticError, IndexError) as error:  # a singular matrix; `FloatingPointError`
                if isinstance(error, FloatingPointError):
                    raise
                self._fail(group, frame)

        return step

    def _as_calls(self, first_write: int) -> None:
        """Make the steps without machine code: one function for the calls between two of Python."""
        nodes: list[Node] = []

        def end() -> None:
            if nodes:
                self.steps.append(calls_of(nodes, self.memory))
                nodes.clear()

        for i, group in enumerate(self.plan.groups):
            if i == first_write:
                end()
                self._first_change = len(self.steps)
            calls = [call_of(node, self.memory) for node in group.nodes]
            if group.kind == "python":
                end()
                self.steps += calls
            elif i >= first_write and any(map(_can_fail, group.nodes)):
                end()
                self.steps += [self._told(call, group) for call in calls]
            else:
                nodes += group.nodes
        end()

    def _compile(self) -> None:
        """Compile the loops. A group whose loop cannot be compiled is calls of NumPy."""
        groups = list(self.plan.groups)
        groups += [each for group in self.plan.groups if group.rows for each in group.rows[0].groups]
        loops = list(dict.fromkeys(group.loop for group in groups if group.is_loop and group.loop is not None))
        try:
            self.addresses = dict(zip(loops, compile_loops(loops), strict=True))
        except Unsupported:
            whys: dict[Loop, str] = {}
            for loop in loops:
                try:
                    self.addresses[loop] = compile_loops([loop])[0]
                except Unsupported as error:
                    whys[loop] = str(error)
            groups = [group for group in self.plan.groups if group.is_loop and group.loop in whys]
            self.plan.without_loops({group: whys[group.loop] for group in groups if group.loop is not None})
        for group in self.plan.groups:
            if group.rows and any(each.loop not in self.addresses for each in (group, *group.rows[0].groups)):
                group.rows = None

    def _fail(self, group: Group, frame: Frame) -> None:
        """Raise the error of a group that has found values which it cannot take, when something has changed."""
        for node in group.nodes:
            if _can_fail(node) and node.row in self.redo:
                self.redo[node.row](frame)
        raise CaptureError(_CHANGED)

    def _add(self, table: Table, group: Group) -> None:
        """Add the call of a group to a table."""
        node = group.nodes[0]
        if group.is_loop and group.loop is not None:
            address = self.addresses[group.loop]
            table.add(Row(address, checks=True), [self._pointer(x) for x in group.operands])
        elif isinstance(node.function, np.ufunc) and group.kind == "ufunc" and len(group.nodes) == 1:
            self._add_ufunc(table, node)
        elif group.kind == "product":
            a, b, c = [
                machine.Operand(x.dtype.str[1:], x.shape, s)
                for x, s in zip((*node.ins, *node.outs), node.words["strides"], strict=True)
            ]
            row = product_row(a, b, c, node.function.__name__, node.words["is_same"])
            table.add(row, [self._pointer(x) for x in (*node.ins, *node.outs)])
        elif group.kind == "loop":
            self._add_loop(table, node)
        elif group.kind == "call" and node.words["given"] == (tuple(Place(k, False) for k in range(len(node.ins))), {}):
            xs = (*node.ins, *node.outs)
            row = matrix_row(node.function, [machine.Operand(x.dtype.str[1:], x.shape, x.strides) for x in xs])
            table.add(row, [self._pointer(x) for x in xs])
        else:
            raise Unsupported(group.why or f"a call of Python ({group.kind})")

    def _add_ufunc(self, table: Table, node: Node) -> None:
        (out,) = node.outs
        shape, pointers, addresses = out.shape, [], []
        for x, dtype in zip((*node.ins, out), node.dtypes, strict=True):
            if x.__class__ is Constant:
                value = np.array(x.value).astype(dtype)
                self.memory.kept.append(value)
                pointers.append(Pointer(dtype.str[1:], (0,) * len(shape)))
                addresses.append(value.ctypes.data)
                continue
            if x.dtype != dtype:
                raise Unsupported("an operand that is cast")
            x = along(x, shape)
            pointers.append(Pointer(dtype.str[1:], x.strides))
            addresses.append(self._pointer(x))
        table.add(ufunc_row(node.function, shape, pointers), addresses)

    def _add_loop(self, table: Table, node: Node) -> None:
        places, counts = [], [0, len(node.ins)]
        for is_written in node.words["order"]:
            places.append((*node.ins, *node.outs)[counts[is_written]])
            counts[is_written] += 1
        pointers: list[Any] = []
        for x in places:
            if x.__class__ is Constant:
                value = np.array(x.value)
                self.memory.kept.append(value)
                pointers.append(value.ctypes.data)
            else:
                pointers.append(self._pointer(x))
        shapes = [() if x.__class__ is Constant else x.shape for x in places]
        table.add(loop_row(node.function, shapes, node.words["refuses"]), pointers)

    def _pointer(self, x: Operand) -> Any:
        buffer = x.buffer
        if buffer.kind == "argument":
            return (buffer.key, x.offset)
        if buffer.kind == "gradient":
            return (self.arguments, self.memory.offset(buffer) + x.offset)
        return self.memory.address(x)

    def _walk(self, table: Table, groups: Sequence[Group], is_before: bool) -> Lines:
        """The walk of a table as a step."""
        walk = table.finish(self.arguments + 1)
        self.tables += 1
        known = sum(bit for kind, bit in _ERRORS.items() if kind not in self.quiet)
        has_gradients = self.memory.kind is not None

        def look(found: int, frame: Frame) -> None:
            if found < 0:
                if is_before:
                    raise Departed
                self._fail(groups[-found - 1], frame)
            if found & known:
                try:
                    _tell(found & known)
                except FloatingPointError as error:
                    if is_before:  # the step itself raises it, at its line
                        raise Departed from error
                    raise

        none = np.zeros(1)

        def lines(name: Callable[[Any], str]) -> list[str]:
            arguments = "".join(f"a{i}, " for i in range(self.arguments))
            frame = "frame" if self.needs_frame else f"{name(Frame)}(({arguments}), gradients)"
            return [f"found = {name(walk)}({arguments}{'gradients' if has_gradients else name(none)})",
                    f"if found: {name(look)}(found, {frame})"]  # fmt: skip

        return Lines(lines)

    def __str__(self) -> str:
        """Counts of nodes, loops, calls and tables, and bytes."""
        groups = self.plan.groups
        loops = sum(group.is_loop for group in groups)
        calls = sum(group.kind == "python" for group in groups)
        kind = "compiled" if self.is_compiled else "calls of NumPy, as llvmlite is not there (extra: fast)"
        size = self.memory.arena.nbytes
        return (
            f"{kind}: {len(self.nodes)} nodes, {loops} loops ({len(self.addresses)} distinct), "
            f"{len(groups) - loops - calls} calls of functions of NumPy and of kernels, {calls} of Python, "
            f"{self.tables} tables; {size:,} bytes of memory for values"
        )

    def lines(self) -> list[str]:
        """Each loop and call: what it does, over which shape, and what it reads and writes."""
        found = []
        for i, group in enumerate(self.plan.groups):
            names = ", ".join(map(name_of, group.nodes)) if group.kind != "python" else "Python"
            over = f" over {list(group.shape)}" if group.is_loop else ""
            over += ", or the rows that are named" if group.rows is not None else ""
            uses = ", ".join(dict.fromkeys(f"{x.buffer.kind} {x.dtype}{list(x.shape)}" for x in group.operands))
            found.append(f"{i:4} {group.kind}{over}: {names}   ({uses})")
        return found

    def frame_lines(self, name: Callable[[Any], str], arguments: Sequence[str]) -> list[str]:
        """The lines that make the parts of a frame of arguments."""
        kind = self.memory.kind
        return [
            *(f"a{i} = {x}" for i, x in enumerate(arguments)),
            f"gradients = {None if kind is None else f'{name(np.empty)}((), {name(kind)})'}",
        ]


def _can_fail(node: Node) -> bool:
    """Whether a node may find other values than it can take: a decision, an index out of range."""
    if node.kind == "loop":
        return bool(node.words["refuses"])
    return node.kind in ("guard", "gather", "scatter", "add_at", "call")


def changes_state(node: Node) -> bool:
    """Whether a node changes something that is there after the step, besides gradients and the random state."""
    for out in node.outs:
        if out.buffer.kind == "state":
            return True
    return node.changes_more


def _tell(faults: int) -> None:
    """Report floating-point errors as NumPy is told to (`numpy.errstate`): calls with the same error make it do so."""
    if faults & machine.DIVISION:
        np.divide(1.0, 0.0)
    if faults & machine.OVERFLOW:
        np.multiply(1e300, 1e300)
    if faults & machine.INVALID:
        np.subtract(np.inf, np.inf)


def _with_numbers(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with operands in the place of numbers, which a call evaluates before the first of each row."""
    found: list[Node] = []
    rows: dict[int, _Numbers] = {}

    def begin(row: int) -> None:
        rows[row] = numbers = _Numbers()
        numbers.step.row = row
        found.append(numbers.step)

    writes = Counter(id(out.buffer) for node in nodes for out in node.outs)
    same: dict[int, Operand] = {}  # by the id of a temporary that is a number: the number
    for node in nodes:
        if same and any(id(x.buffer) in same for x in node.reads):
            node = node.with_ins([_instead(x, same) if x.__class__ is Operand else x for x in node.ins])
        if node.reads is not node.ins and any(x.__class__ is Number for x in node.ins):
            if node.row not in rows:
                begin(node.row)
            node = rows[node.row].with_operands(node)
            if _is_number_again(node) and writes[id(node.outs[0].buffer)] == 1:
                same[id(node.outs[0].buffer)] = node.ins[0]
        found.append(node)
        if node.words.get("is_begin"):  # the numbers of the step, before it changes something
            begin(node.row)
    for numbers in rows.values():
        numbers.end()
    return [node for node in found if node.function.__class__ is not _Numbers or node.outs]


def _is_number_again(node: Node) -> bool:
    """Whether a node copies a number to a temporary of its dtype."""
    (out, *_), (x, *_) = node.outs, node.ins
    is_copy = node.function is np.positive and out.shape == () and out.buffer.kind == "temporary"
    return is_copy and x.__class__ is Operand and x.dtype == out.dtype


def _instead(x: Operand, same: dict[int, Operand]) -> Operand:
    number = same.get(id(x.buffer))
    return x if number is None else x._replace(buffer=number.buffer, offset=number.offset)


class _Numbers(Lines):
    """The numbers of a row, which lines write to memory in each dtype in which they are used."""

    def __init__(self) -> None:
        super().__init__(self._write)
        self._numbers: list[Number] = []
        self._known: dict[Any, Operand] = {}
        self._memory: dict[Any, Any] = {}
        self._buffers: dict[Any, Buffer] = {}
        self.step = Node("python", self, (), ())

    def with_operands(self, node: Node) -> Node:
        """A node with operands in the place of numbers."""
        ins = list(node.ins)
        for i, x in enumerate(ins):
            if x.__class__ is Number:
                dtype = node.dtypes[i]
                if (x.text, dtype) not in self._known:
                    k = len(self._numbers)
                    if k >= _MOST_NUMBERS:
                        raise Refused("too many numbers that may change from step to step")
                    if dtype not in self._memory:
                        memory = self._memory[dtype] = np.zeros(_MOST_NUMBERS, dtype)
                        self._buffers[dtype] = Buffer("number", memory, memory)
                    self._numbers.append(x)
                    self._known[x.text, dtype] = Operand(self._buffers[dtype], k * dtype.itemsize, (), (), dtype)
                ins[i] = self._known[x.text, dtype]
        return node.with_ins(ins)

    def end(self) -> None:
        self.step.outs = tuple(self._known.values())

    def _write(self, name: Callable[[Any], str]) -> list[str]:
        lines, texts = texts_of(self._numbers, name)
        if len(texts) > _FEW:
            every = [f"{name(whole)}[:{len(texts)}] = values" for whole in self._memory.values()]
            return [*lines, f"values = ({''.join(f'{text}, ' for text in texts)})", *every]
        known = name([None] * len(texts))  # the last values: a number that is the same object is there already
        for k, (text, (_, dtype)) in enumerate(zip(texts, self._known, strict=True)):
            lines += [f"n = {text}",
                      f"if n is not {known}[{k}]: {known}[{k}] = {name(self._memory[dtype])}[{k}] = n"]  # fmt: skip
        return lines
