"""Updates of few rows: a loop over a whole table that changes only rows which indices name, as loops over these rows.

The gradient of a table of which a step reads few rows is zeros, to which cotangents are added at these rows. Of
another row `x` the update ``x - rate * g`` leaves all bits, those of -0.0, infinities and NaN too, if the rate is
finite and its sign is plus: then ``rate * 0.0`` is 0.0, and ``x - 0.0`` is x. `rows_of` proves this for the nodes of a
loop. The rate is asked at each run, and another one has the loop over all rows.

First all rows that some index names are read, and then all are written, so that a row with several names is updated
once: each time to the same value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .nodes import Buffer, Constant, Node, Operand, steps_of

__all__ = ["Rows", "rows_of"]

_LEAST = 4  # times as many elements as in the named rows are in a table for which this is worth it
_PLUS, _MINUS = "0.0", "-0.0"  # what is known of a value in a row that no index names, beside the place that it is of


class Rows(NamedTuple):
    """An update of rows: nodes, and the indices and numbers on which it depends.

    Attributes
    ----------
    nodes : list of Node
    indices : list of Operand
        Of one dimension or more, of rows.
    factors : list of Operand
        Numbers that must be finite, with the sign plus.
    """

    nodes: list[Node]
    indices: list[Operand]
    factors: list[Operand]


def rows_of(
    nodes: Sequence[Node], shape: tuple[int, ...], before: Sequence[Node], private: Callable[[Buffer], bool]
) -> Rows | None:
    """The update of the named rows that leaves what the nodes of a loop leave; None if there is none.

    Parameters
    ----------
    nodes : sequence of Node
        Of the loop.
    shape : tuple of int
    before : sequence of Node
        All nodes before the loop, in order.
    private : callable
        Whether only the loop uses a buffer.
    """
    if len(shape) < 2 or any(node.kind != "ufunc" or node.outs[0].shape != shape for node in nodes):
        return None
    gradient, indices = _gradient_of(nodes, shape, before)
    if gradient is None or _LEAST * sum(math.prod(x.shape) for x in indices) > shape[0]:
        return None
    update = _Update(shape, gradient)
    if not all(map(update.is_known, nodes)) or not update.is_left(private):
        return None
    parts = [_Part(index, shape) for index in indices]
    copies = [node for part in parts for node in part.copies(nodes)]
    return Rows([*copies, *(node for part in parts for node in part.writes())], indices, list(update.factors.values()))


def _gradient_of(
    nodes: Sequence[Node], shape: tuple[int, ...], before: Sequence[Node]
) -> tuple[Buffer | None, list[Operand]]:
    """The array among those that nodes read of which few rows may be other than 0.0, and the indices of these rows."""
    written = {id(out.buffer) for node in nodes for out in node.outs}
    for node in nodes:
        for x in node.reads:
            if x.shape == shape and id(x.buffer) not in written:
                indices = _indices_of(x, before)
                if indices and not any(id(index.buffer) in written for index in indices):
                    return x.buffer, indices
    return None, []


def _indices_of(x: Operand, before: Sequence[Node]) -> list[Operand] | None:
    """The indices of the rows of an array that may be other than 0.0; None if these are not known."""
    found: list[Operand] | None = None
    for at, node in enumerate(before):
        if found and any(out.meets(index) for out in node.outs for index in found):
            return None
        for out in node.outs:
            if out.buffer is x.buffer:
                found = _indices_after(node, found, before[:at]) if out.is_at(x) and out.dtype == x.dtype else None
                if found is None:
                    return None
    return found


def _indices_after(node: Node, found: list[Operand] | None, before: Sequence[Node]) -> list[Operand] | None:
    """As `_indices_of`, after a node that writes to an array of which they were `found`."""
    if node.kind in ("add_at", "scatter") and found is not None and list(node.words["arrays"]) == [0]:
        index = node.words["arrays"][0]
        return [*found, index] if index.buffer.kind in ("argument", "constant", "temporary") else None
    if node.kind == "ufunc" and node.function in (np.positive, np.add):
        parts = [[] if _is_zero(x) else _indices_of(x, before) if _is_like(x, node.outs[0]) else None for x in node.ins]
        return None if None in parts else [x for part in parts for x in part or ()]
    return None


def _is_like(x: Any, out: Operand) -> bool:
    return x.__class__ is Operand and x.shape == out.shape and x.dtype == out.dtype


def _is_zero(x: Any) -> bool:
    return x.__class__ is Constant and not np.asarray(x.value).astype(x.dtype).tobytes().strip(b"\0")


class _Update:
    """Known values in a row that no index names, after some nodes."""

    def __init__(self, shape: tuple[int, ...], gradient: Buffer):
        self.shape, self.gradient = shape, gradient
        self.left: dict[Any, tuple[Operand, Any]] = {}  # by place: what is written there, and what is known of it
        self.factors: dict[Any, Operand] = {}

    def is_left(self, private: Callable[[Buffer], bool]) -> bool:
        """Whether all that is there after the loop has the bits of before, and some of it is the program's."""
        are_same = all(known == x.place or private(x.buffer) for x, known in self.left.values())
        return are_same and any(x.buffer.kind == "state" for x, _ in self.left.values())

    def is_known(self, node: Node) -> bool:
        """Note the result of a node; whether something is known of it."""
        (out,) = node.outs
        xs = (*node.ins, out)
        if any(x.__class__ is not Constant and x.dtype != dtype for x, dtype in zip(xs, node.dtypes, strict=True)):
            return False
        known = self._result(node.function, node.ins)
        self.left[out.place] = out, known
        return known is not None

    def _known(self, x: Any) -> Any:
        if x.__class__ is Constant or x.shape == ():
            return None
        if x.place in self.left:
            return self.left[x.place][1]
        return _PLUS if x.buffer is self.gradient else x.place if x.shape == self.shape else None

    def _result(self, function: Any, xs: Sequence[Any]) -> Any:
        known = [self._known(x) for x in xs]
        if function is np.positive:
            return known[0]
        if function is np.negative:
            return {_PLUS: _MINUS, _MINUS: _PLUS}.get(known[0]) if isinstance(known[0], str) else None
        if function is np.multiply:
            zeros = [k for k in known if k in (_PLUS, _MINUS)]
            others = [x for x, k in zip(xs, known, strict=True) if k is None]
            return zeros[0] if len(zeros) == 1 == len(others) and self._is_factor(others[0]) else None
        if function is np.subtract:
            return known[0] if known[1] == _PLUS else None
        if function is np.add:
            return known[0] if known[1] == _MINUS else known[1] if known[0] == _MINUS else None
        return None

    def _is_factor(self, x: Any) -> bool:
        """Whether a number is finite with the sign plus, or can be asked at each run."""
        if x.__class__ is Constant:
            return bool(np.isfinite(x.value) and not np.signbit(x.value))
        if x.shape != () or x.buffer.kind != "number":
            return False
        self.factors[x.place] = x
        return True


class _Part:
    """The nodes of a loop for the rows that one index names."""

    def __init__(self, index: Operand, shape: tuple[int, ...]):
        self.index, self.whole = index, shape
        self.shape = (*index.shape, *shape[1:])
        self._of: dict[Any, tuple[Operand, Operand]] = {}  # by place: the array, and its rows
        self._written: list[Any] = []

    def copies(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes on copies of the rows."""
        found: list[Node] = []
        for node in nodes:
            ins = [x if x.__class__ is Constant or x.shape != self.whole else self._rows(x, found) for x in node.ins]
            (out,) = node.outs
            made = self._new(out.dtype)
            self._of[out.place] = out, made
            if out.buffer.kind == "state":
                self._written.append(out.place)
            copy = Node("ufunc", node.function, (made,), tuple(ins), node.dtypes)
            copy.row = node.row
            found.append(copy)
        return found

    def writes(self) -> list[Node]:
        """The nodes that write copies of rows to their places."""
        found = []
        for place in dict.fromkeys(self._written):
            x, rows = self._of[place]
            found.append(Node("scatter", "scatter", (x,), (rows, self._spread()), (x.dtype,), **self._words(x)))
        return found

    def _rows(self, x: Operand, found: list[Node]) -> Operand:
        if x.place not in self._of:
            made = self._new(x.dtype)
            self._of[x.place] = x, made
            found.append(Node("gather", "take", (made,), (x, self._spread()), (x.dtype,), **self._words(x)))
        return self._of[x.place][1]

    def _new(self, dtype: Any) -> Operand:
        base = np.empty(self.shape, dtype)
        return Operand(Buffer("temporary", base), 0, self.shape, steps_of(base), base.dtype)

    def _spread(self) -> Operand:
        index = self.index
        strides = (*index.strides, *(0,) * (len(self.whole) - 1))
        return Operand(index.buffer, index.offset, self.shape, strides, index.dtype)

    def _words(self, x: Operand) -> dict[str, Any]:
        place = Operand(x.buffer, x.offset, self.shape, (*(0,) * len(self.index.shape), *x.strides[1:]), x.dtype)
        return {"pairs": ((x.strides[0], x.shape[0]),), "place": place, "arrays": {0: self.index}}
