"""Plan: the nodes of a traced step as few loops, in an order, with a place in one block of memory for each value.

1. What nothing reads is dropped.
2. Nodes over one shape are put into one `Group`, whose loop passes over the elements once. A node may join an earlier
   group if nothing between the two reads or writes the same memory otherwise. In a group, an operand that one node
   writes and another reads must be the same element at each place of the loop.
3. A temporary value that only its group uses is a variable of the loop, and has no memory. The others share one block,
   the arena, by their lifetimes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .loops import UFUNCS, Loop, Pointer, Unsupported, dtypes_of
from .nodes import Buffer, Constant, Node, Operand, Refused
from .numbers import Number
from .rows import rows_of

__all__ = ["Group", "Plan"]

_MOST_NODES, _MOST_OPERANDS = 128, 64  # of a group
_LARGE = 1 << 20  # elements from which one loop over arrays that have nothing to do with each other is slower than two
_TABLE = 1 << 15  # elements from which an update of few rows is worth a choice at each run
_ALIGNED = 64
_BYTE = np.dtype("V1")
_FUSED = ("ufunc", "gather", "guard")
_LOOPS = ("reduce", "gather", "scatter", "add_at", "guard")
_NONE = frozenset[Any]()
_OWN_NAMES = {np.absolute: "absolute", np.conjugate: "positive"}


class Group:
    """Nodes that are done together.

    Attributes
    ----------
    nodes : list of Node
    shape : tuple of int
        Of their loop; () for a call.
    rows : (Plan, list of Operand) or None
        What may be done in the place of the loop where some numbers are finite with the sign plus: see `rows`.
    loop : Loop or None
        What is compiled; None for a call.
    operands : list of Operand
        What the pointers of the loop point to; of calls, what they read and write.
    """

    def __init__(self, node: Node, shape: tuple[int, ...], is_loop: bool):
        self.nodes = [node]
        self.shape, self.is_loop, self.is_open = shape, is_loop, is_loop
        self.loop: Loop | None = None
        self.rows: tuple[Plan, list[Operand]] | None = None
        self.why = ""  # there is no loop
        self.operands: list[Any] = []
        self._used: Set[Any] = set()  # by their places: operands, those that are loaded, and those that are written
        self._loaded: Set[Any] = set()
        self._written: Set[Any] = set()
        self.note(node)

    def note(self, node: Node) -> None:
        reads, writes = {x.place for x in reads_of(node)}, {x.place for x in node.outs}
        self._loaded |= reads - self._written
        self._written |= writes
        self._used |= reads | writes

    def forget(self) -> None:
        """Take no more nodes."""
        self.is_open = False
        self._used = self._loaded = self._written = _NONE

    def takes(self, node: Node) -> bool:
        """Whether one more node is not too much."""
        if not self.is_open or len(self.nodes) >= _MOST_NODES:
            return False
        if reads_twice(node) and not self._loaded.isdisjoint(self._written):
            return False
        return len(self._used) + len(node.ins) + len(node.outs) <= _MOST_OPERANDS

    @property
    def kind(self) -> str:
        return "loop" if self.is_loop else self.nodes[0].kind

    def __repr__(self) -> str:
        return f"<{self.kind} {list(self.shape)}: {', '.join(map(name_of, self.nodes))}>"


def reads_twice(node: Node) -> bool:
    """Whether a loop computes the operands of a node once more, after it has written."""
    return node.kind == "reduce" and name_of(node) in ("maximum", "minimum", "argmax", "argmin")


def name_of(node: Node) -> str:
    function = node.function
    return _OWN_NAMES.get(function) or str(getattr(function, "__name__", function))


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of the loop of a node."""
    if node.kind == "reduce" or node.kind == "guard":
        return node.ins[0].shape if node.ins[0].__class__ is Operand else ()
    return node.words["place"].shape if node.kind in ("scatter", "add_at") else node.outs[0].shape


def is_compiled(node: Node) -> bool:
    """Whether a node is part of a loop, not a call of NumPy's own, as those of complex numbers are."""
    if node.kind == "ufunc":
        return _has_form(node.function, node.dtypes)
    return node.kind in _LOOPS and not any(d.kind == "c" for d in node.dtypes)


@lru_cache(1024)  # a step has some ten of them, each at many nodes
def _has_form(function: Any, dtypes: tuple[Any, ...]) -> bool:
    """Whether a ufunc of some dtypes has a form in a loop."""
    if any(d.kind == "c" for d in dtypes):
        return False
    known = UFUNCS.get(_OWN_NAMES.get(function) or str(getattr(function, "__name__", function)))
    is_known = known is not None and all(d.str[1:] in known[1] for d in dtypes[:1])
    return is_known or function in (np.where, np.positive)


def reads_of(node: Node) -> Sequence[Operand]:
    """The operands that a node reads, indices and what they name among them."""
    more = node.words.get("reads")
    return (*node.reads, *more) if more else node.reads


def along(x: Operand, shape: tuple[int, ...]) -> Operand:
    """An operand, repeated along the dimensions of a loop."""
    if x.shape == shape:
        return x
    extra = len(shape) - len(x.shape)
    if extra < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[extra:], strict=True)):
        raise Refused(f"an operand of shape {x.shape} in a loop over {shape}")
    strides = (*(0,) * extra, *(0 if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True)))
    return Operand(x.buffer, x.offset, shape, strides, x.dtype)


def _anywhere(x: Operand) -> Operand:
    """The memory of an operand that a loop reads elsewhere than at its own place; it is at no other operand."""
    return Operand(x.buffer, x.low, (x.high - x.low,), (1,), _BYTE)


class _Access(NamedTuple):
    """A group's use of the bytes from `start` to `end` of a buffer."""

    at: int
    operand: Operand
    start: int
    end: int

    def meets(self, low: int, high: int) -> bool:
        """Whether it is a use of one of the bytes from `low` to `high`; see `Operand.meets`, which takes longer."""
        return low < self.end and self.start < high


class Plan:
    """The groups of nodes, in order, and the places of temporary values.

    Parameters
    ----------
    nodes : sequence of Node
    kept : sequence of Operand
        What is read after the last node.
    fuses : bool
        Whether there are loops. Otherwise each node is a call.

    Attributes
    ----------
    groups : list of Group
    size : int
        Bytes of the arena.
    """

    def __init__(self, nodes: Sequence[Node], kept: Sequence[Operand], fuses: bool = True):
        self.kept, self.fuses = list(kept), fuses
        self.nodes = self._used(nodes)
        self.groups: list[Group] = []
        self._accesses: defaultdict[int, list[_Access]] = defaultdict(list)  # by buffer
        self._writes: defaultdict[int, list[_Access]] = defaultdict(list)  # those that write: of a number, one of many
        self._alike: dict[Any, list[int]] = {}  # groups by shape, and by what is used together
        self._together = self._used_together() if fuses else {}
        self._in_place: dict[int, tuple[int, int, Buffer]] = {}  # by buffer: whose memory it takes, the group, itself
        self._barrier = 0  # no node joins a group before it: Python has changed something
        self._loops: set[Loop] = set()  # those that have a form
        for node in self.nodes:
            self._place(node)
        for i, group in enumerate(self.groups):
            if group.is_loop and math.prod(group.shape) >= _TABLE:
                self._find_rows(i, group)
        self._last = self._last_uses()
        private: dict[int, set[int]] = {}  # by group: the buffers that it alone uses
        for key, accesses in self._accesses.items():
            if all(each.at == self._last[key] for each in accesses):
                private.setdefault(self._last[key], set()).add(key)
        for i, group in enumerate(self.groups):
            if group.is_loop:
                try:
                    self._write(i, group, private.get(i, set()), self._last)
                except (Unsupported, Refused) as error:
                    self._as_calls(i, str(error))
        self.size = self._arena(self._last)
        self._forget()

    def _forget(self) -> None:
        """Drop what only planning needs, which is some objects for each node: Python would look for cycles in them."""
        self._accesses.clear()
        self._writes.clear()
        self._alike, self._together, self._loops = {}, {}, set()
        for group in self.groups:
            group.forget()

    def without_loops(self, whys: dict[Group, str]) -> None:
        """Make groups calls, by why they are no loops: all their values get places, and others may get other ones."""
        for i, group in enumerate(self.groups):
            if group in whys:
                self._as_calls(i, whys[group])
        self.size = self._arena(self._last)

    def _as_calls(self, at: int, why: str) -> None:
        """Make a group calls, each of which reads what it needs after those before have written."""
        self.groups[at].is_loop, self.groups[at].why = False, why
        self._in_place = {key: found for key, found in self._in_place.items() if found[1] != at}

    # -- what is used ------------------------------------------------------------------------------------------------
    def _used(self, nodes: Sequence[Node]) -> list[Node]:
        needed = {id(x.buffer) for x in self.kept}
        found: list[Node] = []
        for node in reversed(nodes):
            is_needed = node.kind in ("guard", "python")
            for out in node.outs:
                is_needed = is_needed or out.buffer.kind != "temporary" or id(out.buffer) in needed
            if is_needed:
                needed.update([id(x.buffer) for x in reads_of(node)])
                found.append(node)
        return found[::-1]

    # -- groups ------------------------------------------------------------------------------------------------------
    def _place(self, node: Node) -> None:
        """Put a node into a group, or begin one."""
        is_loop = self.fuses and is_compiled(node)
        shape = shape_of(node) if is_loop else ()
        reads, writes = reads_of(node), node.outs
        if is_loop and node.kind in ("ufunc", "guard"):
            reads = [x if x.shape == shape else along(x, shape) for x in reads]
        if node.kind == "gather":
            reads = [_anywhere(reads[0]), *reads[1:]]
        least = max(self._least(reads, writes), self._barrier) if is_loop else len(self.groups)
        if node.changes_more:
            self._barrier = len(self.groups) + 1
        at, alike = -1, (shape, self._together.get(id(node)))
        if is_loop and node.kind in (*_FUSED, "reduce") and shape:
            for k in reversed(self._alike.get(alike, ())):
                if k < least:
                    break
                if self.groups[k].takes(node):
                    at = k
                    break
        if at < 0:
            at = len(self.groups)
            self.groups.append(Group(node, shape, is_loop))
            if is_loop:
                self._alike.setdefault(alike, []).append(at)
        else:
            self.groups[at].nodes.append(node)
            self.groups[at].note(node)
        if node.kind not in _FUSED:
            self.groups[at].is_open = False
        for x in reads:
            self._note(at, x)
        for x in writes:
            self._note(at, x, True)

    def _note(self, at: int, x: Operand, is_written: bool = False) -> None:
        access = _Access(at, x, x.low, x.high)
        self._accesses[id(x.buffer)].append(access)
        if is_written:
            self._writes[id(x.buffer)].append(access)

    def _used_together(self) -> dict[int, int]:
        """By the id of a node over many elements: the part of them to which it belongs, if nothing connects the parts.

        Updates of several tables are such parts. A loop over two large ones would read more arrays than the cache
        keeps, and where sums of few rows are the gradients, it would have to pass over all.
        """
        before: dict[int, int] = {}  # by the id of a buffer: one that is used with it

        def first(key: int) -> int:
            while before.setdefault(key, key) != key:
                key = before[key]
            return key

        found: dict[int, tuple[int, int]] = {}  # a buffer of each node, and its number of elements
        for node in self.nodes:
            is_loop = node.kind == "ufunc" or node.kind in _LOOPS
            if is_loop and (size := math.prod(shape_of(node))) >= _TABLE and is_compiled(node):
                keys = [first(id(x.buffer)) for x in (*node.reads, *node.outs) if any(x.strides)]
                before |= dict.fromkeys(keys, keys[0])
                found[id(node)] = keys[0], size
        of_rows = {first(id(out.buffer)) for node in self.nodes if node.kind == "add_at" for out in node.outs}
        return {at: first(key) for at, (key, size) in found.items() if size >= _LARGE or first(key) in of_rows}

    def _find_rows(self, at: int, group: Group) -> None:
        """Plan the update of the rows that a step names, in the place of that of a whole table."""
        kept = {id(x.buffer) for x in self.kept}

        def private(buffer: Buffer) -> bool:
            is_temporary = buffer.kind == "temporary" and id(buffer) not in kept
            return is_temporary and all(each.at == at for each in self._accesses[id(buffer)])

        before = [node for each in self.groups[:at] for node in each.nodes]
        found = rows_of(group.nodes, group.shape, before, private)
        if found is None:
            return
        for x in found.indices:
            self._note(at, x)
        plan = Plan(found.nodes, [])
        memory = np.empty(plan.size, np.uint8)
        for buffer in {id(out.buffer): out.buffer for node in found.nodes for out in node.outs}.values():
            if buffer.kind == "temporary" and buffer.start >= 0:
                buffer.kind = "number"
                buffer.array = np.ndarray(buffer.base.shape, buffer.base.dtype, memory.data, buffer.start)
        group.rows = plan, found.factors

    def _least(self, reads: Iterable[Operand], writes: Iterable[Operand]) -> int:
        """The first group that a node with these operands may join."""
        least = 0
        for others, operands in ((self._writes, reads), (self._accesses, writes)):
            for x in operands:
                low, high = x.low, x.high
                for known in reversed(others.get(id(x.buffer), ())):  # then most that are earlier are skipped
                    if known.at >= least and known.meets(low, high):
                        least = known.at if x.is_at(known.operand) else known.at + 1
        return least

    def _last_uses(self) -> dict[int, int]:
        """By the id of a buffer: the last group that uses it."""
        last: dict[int, int] = {}
        for key, accesses in self._accesses.items():
            last[key] = max(each.at for each in accesses)
        for x in self.kept:
            last[id(x.buffer)] = len(self.groups)
        return last

    # -- loops -------------------------------------------------------------------------------------------------------
    def _write(self, at: int, group: Group, private: set[int], last: dict[int, int]) -> None:
        """Write the loop of a group."""
        writer = _Writer(group.shape)
        for node in group.nodes:
            writer.add(node)
        replaced = [] if any(map(reads_twice, group.nodes)) else self._replaced(at, writer, private, last)
        loop, operands = writer.loop(private, replaced)
        if loop not in self._loops:
            dtypes_of(loop)
            self._loops.add(loop)
        group.loop, group.operands = loop, operands

    def _replaced(
        self, at: int, writer: _Writer, private: set[int], last: dict[int, int]
    ) -> list[tuple[Operand, Operand]]:
        """Values that a loop may write in the place of others, which nothing reads after it.

        In each iteration a loop reads before it writes, so both are one pointer.
        """
        found: list[tuple[Operand, Operand]] = []
        free = [x for x in writer.loaded() if last[id(x.buffer)] == at and self._is_alone(at, x)]
        for new in writer.stored():
            begin = min(each.at for each in self._accesses[id(new.buffer)])
            if id(new.buffer) in private or begin != at or not self._is_alone(at, new):
                continue
            for old in free:
                is_alike = (old.shape, old.strides, old.dtype) == (new.shape, new.strides, new.dtype)
                if is_alike and old.buffer.size == new.buffer.size:
                    free.remove(old)
                    found.append((new, old))
                    self._in_place[id(new.buffer)] = id(old.buffer), at, new.buffer
                    break
        return found

    def _is_alone(self, at: int, x: Operand) -> bool:
        """Whether an operand is all of a temporary buffer, and the only one with it in a group."""
        if x.buffer.kind != "temporary" or x.size * x.dtype.itemsize != x.buffer.size or x.offset:
            return False
        return all(each.operand.is_at(x) for each in self._accesses[id(x.buffer)] if each.at == at)

    # -- memory ------------------------------------------------------------------------------------------------------
    def _arena(self, last: dict[int, int]) -> int:
        """Give each temporary a place, and return the size of the arena."""
        first: dict[int, int] = {}
        buffers: dict[int, Buffer] = {}
        for i, group in enumerate(self.groups):
            if not group.is_loop:
                group.operands = [x for node in group.nodes for x in (*reads_of(node), *node.outs)]
                group.operands += [x for node in group.nodes for x in node.words.get("arrays", {}).values()]
            for x in group.operands:
                if x.__class__ is Operand and x.buffer.kind == "temporary":
                    first.setdefault(id(x.buffer), i)
                    buffers[id(x.buffer)] = x.buffer
        buffers |= {key: new for key, (_, _, new) in self._in_place.items()}
        owner = {key: self._owner_of(key) for key in buffers}
        last = dict(last)
        for key, of in owner.items():
            last[of] = max(last[of], last[key])
        placed: list[tuple[int, int, int, int]] = []  # start, end, first and last group
        size = 0
        for key in sorted(set(owner.values()), key=lambda key: (-buffers[key].size, first[key])):
            start, n = _place_for(buffers[key].size, first[key], last[key], placed)
            buffers[key].start = start
            placed.append((start, start + n, first[key], last[key]))
            size = max(size, start + n)
        for key, of in owner.items():
            buffers[key].start = buffers[of].start
        return size

    def _owner_of(self, key: int) -> int:
        """The buffer in whose memory one lies."""
        while key in self._in_place:
            key = self._in_place[key][0]
        return key


def _place_for(size: int, first: int, last: int, placed: Sequence[tuple[int, int, int, int]]) -> tuple[int, int]:
    """The start of the smallest part of memory that nothing else uses from one group to another, and its size.

    Large values come first, so that no small one lies in the middle of a place for them.
    """
    n = -(-max(size, 1) // _ALIGNED) * _ALIGNED
    start, best, least = 0, -1, 1 << 62
    for low, high in sorted([(low, high) for low, high, begin, end in placed if begin <= last and first <= end]):
        if n <= low - start < least:
            best, least = start, low - start
        start = max(start, high)
    return (start if best < 0 else best), n


class _Writer:
    """Writes the steps of one loop."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self.steps: list[tuple[Any, ...]] = []
        self.operands: list[Operand] = []
        self._of: dict[Any, int] = {}  # by a step: its number
        self._pointers: dict[Any, int] = {}
        self._values: dict[Any, tuple[int, Any]] = {}  # by place: the present value, and its dtype
        self._written: dict[Any, Operand] = {}  # by place, what the loop writes
        self._last: list[tuple[Any, ...]] = []

    def step(self, *step: Any) -> int:
        found = self._of.get(step)
        if found is None:
            self.steps.append(step)
            found = len(self.steps) - 1
            if step[0] not in ("store_at", "add_at"):
                self._of[step] = found
        return found

    def pointer(self, x: Operand) -> int:
        """The pointer of an operand, which all that is at its place share."""
        key = x.place
        found = self._pointers.get(key)
        if found is None:
            found = self._pointers[key] = len(self.operands)
            self.operands.append(x)
        return found

    def value(self, x: Any, dtype: Any) -> int:
        """The number of the value of an operand, in a dtype."""
        if x.__class__ is Constant:
            return self.step("constant", _dtype(dtype), np.asarray(x.value).astype(dtype).tobytes().hex())
        if x.__class__ is Number:
            raise Refused("a number without a place")
        if x.shape != self.shape:
            x = along(x, self.shape)
        known = self._values.get(x.place)
        if known is None:
            k = self.pointer(x)
            known = self._values[x.place] = self.step("load", k), self.operands[k].dtype
        found = known[0] if known[1] is x.dtype else self.as_bits(known[0], known[1], x.dtype)
        return found if x.dtype is dtype or x.dtype == dtype else self.step("cast", _dtype(dtype), found)

    def as_bits(self, value: int, dtype: Any, to: Any) -> int:
        """A value as the number of another dtype that has its bits."""
        return value if dtype == to else self.step("bitcast", _dtype(to), value)

    def write(self, x: Operand, value: int) -> None:
        self._values[x.place] = value, x.dtype
        self._written[x.place] = x

    def add(self, node: Node) -> None:
        kind = node.kind
        if kind == "ufunc":
            (out,), of = node.outs, node.dtypes
            xs = [self.value(x, d) for x, d in zip(node.ins, of, strict=False)]
            name = name_of(node)
            if name == "positive":
                y = xs[0]
            elif name == "where":
                y = self.step("where", *xs)
            else:
                y = self.step(name, *xs)
            self.write(out, y if of[-1] == out.dtype else self.step("cast", _dtype(out.dtype), y))
        elif kind == "gather":
            (out,), k = node.outs, self.pointer(node.words["place"])
            self.write(out, self.as_bits(self.step("load_at", k, self.pairs(node)), self.operands[k].dtype, out.dtype))
        elif kind == "guard":  # an index that is out of range unless the value is the expected one
            (x,) = node.ins
            truth = self.value(x, x.dtype)
            if x.dtype != bool:
                zero = self.step("constant", _dtype(x.dtype), np.zeros((), x.dtype).tobytes().hex())
                truth = self.step("not_equal", truth, zero)
            if node.words["value"]:
                truth = self.step("logical_not", truth)
            index = self.step("cast", "i8", truth)
            self._last.append(("load_at", self.pointer(along(x, self.shape)), ((index, 0, 1),)))
        elif kind == "reduce":
            (x,), (out,), (of, _) = node.ins, node.outs, node.dtypes
            value = self.value(x, of)
            strides = tuple(0 if a in node.words["axes"] else s for a, s in enumerate(out.strides))
            place = Operand(out.buffer, out.offset, self.shape, strides, out.dtype)
            self._last.append(
                ("reduce", name_of(node), self.pointer(place), value, node.words["axes"], x.strides)
            )  # fmt: skip
        else:  # a scatter
            given, *_ = node.ins
            value = self.value(given, node.dtypes[0])
            name = "store_at" if kind == "scatter" else "add_at"
            self._last.append((name, self.pointer(node.words["place"]), self.pairs(node), value))

    def pairs(self, node: Node) -> tuple[Any, ...]:
        indices = node.ins[1:]
        return tuple(
            (self.value(x, x.dtype), step, n) for x, (step, n) in zip(indices, node.words["pairs"], strict=True)
        )

    def loaded(self) -> list[Operand]:
        """The operands that are only loaded, each place of the loop from its own element."""
        others = {step[2] if step[0] == "reduce" else step[1] for step in self._last}
        others |= {step[1] for step in self.steps if step[0] == "load_at"}
        ks = [step[1] for step in self.steps if step[0] == "load" and step[1] not in others]
        return [self.operands[k] for k in ks if self.operands[k].place not in self._written]

    def stored(self) -> list[Operand]:
        """The operands that are only stored."""
        return [x for key, x in self._written.items() if key not in self._pointers]

    def loop(self, private: set[int], replaced: Sequence[tuple[Operand, Operand]]) -> tuple[Loop, list[Operand]]:
        """The loop, and what its pointers point to. What only the loop uses is not stored."""
        for new, old in replaced:
            self._pointers[new.place] = self._pointers[old.place]
        stores = []
        for key, x in self._written.items():
            if x.buffer.kind != "temporary" or id(x.buffer) not in private:
                k = self.pointer(x)
                stores.append(("store", k, self.as_bits(*self._values[key], self.operands[k].dtype)))
        steps = [*self.steps, *stores, *self._last]
        used = sorted({step[1] for step in steps if step[0] in ("load", "store", "load_at", "store_at", "add_at")}
                      | {step[2] for step in steps if step[0] == "reduce"})  # fmt: skip
        number = {k: i for i, k in enumerate(used)}
        operands = [self.operands[k] for k in used]
        layout = next((step[5] for step in self._last if step[0] == "reduce"), None)
        written = {number[step[1]] for step in steps if step[0] == "store"}
        shape, strides, axes, layout = _merged(self.shape, [x.strides for x in operands], written, self._last, layout)
        pointers = tuple(Pointer(_dtype(x.dtype), s) for x, s in zip(operands, strides, strict=True))
        found = []
        for step in steps:
            if step[0] in ("load", "store", "load_at", "store_at", "add_at"):
                step = (step[0], number[step[1]], *step[2:])
            elif step[0] == "reduce":
                step = ("reduce", step[1], number[step[2]], step[3], axes, layout)
            found.append(step)
        return Loop(shape, pointers, tuple(found)), operands


def _dtype(dtype: Any) -> str:
    return str(dtype.str[1:])


def _merged(
    shape: tuple[int, ...], strides: list[tuple[int, ...]], written: set[int], last: Sequence[tuple[Any, ...]],
    layout: Any,
) -> tuple[tuple[int, ...], list[tuple[int, ...]], tuple[int, ...], Any]:
    """The dimensions of a loop with as few as possible: extents, strides of each pointer, axes of a reduction, layout.

    Where the order of elements does not count, the dimension along which what is written has the smallest strides comes
    last, and of those that are equal the one with the smallest strides of all.
    """
    axes = next((step[4] for step in last if step[0] == "reduce"), None)
    if axes is not None:
        return shape, strides, tuple(axes), layout
    dims = [d for d, n in enumerate(shape) if n != 1]
    if len(dims) > 1 and not any(step[0] in ("store_at", "add_at") for step in last):
        dims.sort(key=lambda d: (-sum(abs(strides[k][d]) for k in written), -sum(abs(s[d]) for s in strides)))
    found: list[tuple[int, list[int]]] = []  # extent, and the strides of the pointers
    for d in dims:
        steps = [s[d] for s in strides]
        if found and all(a == b * shape[d] for a, b in zip(found[-1][1], steps, strict=True)):
            found[-1] = found[-1][0] * shape[d], steps
        else:
            found.append((shape[d], steps))
    return tuple(n for n, _ in found), [tuple(s[k] for _, s in found) for k in range(len(strides))], (), None
