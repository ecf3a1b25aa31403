"""Nodes: a traced step as calls of NumPy, whose operands are arrays in buffers of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Buffer", "Constant", "Node", "Operand", "Place", "Refused", "bits_of", "extent", "steps_of"]


class Refused(Exception):
    """A call that is not traced, or not compiled. What needs it stays a call of Python."""


class Buffer:
    """A piece of memory.

    Attributes
    ----------
    kind : str
        "temporary", which lives within a step; "state", an array of the program that steps read and may write;
        "constant", an array that nothing writes; "number", memory for Python numbers; "argument"; "gradient", memory
        that is new in each step.
    base : ndarray
        The array that has the memory while the step is traced. Offsets of operands count from its first element.
    array : ndarray or None
        Of state and constants: the array that has it when the step is replayed.
    key : object
        Of an argument: its number. Of a gradient: its leaf.
    address : int
        Of the first element of `base`.
    low, size : int
        The bytes of the memory begin `low` before the first element of `base` (for negative strides).
    start : int
        Of a temporary: where it lies in the arena.
    """

    __slots__ = ("_address", "array", "base", "key", "kind", "low", "size", "start")

    def __init__(self, kind: str, base: Any, array: Any = None, key: Any = None):
        self.kind, self.base, self.array, self.key = kind, base, array, key
        low, high = extent(base.shape, base.strides, base.itemsize)
        self.low, self.size, self.start = -low, high - low, -1
        self._address = -1

    @property
    def address(self) -> int:
        if self._address < 0:
            self._address = int(self.base.ctypes.data)
        return self._address

    def __repr__(self) -> str:
        return f"{self.kind} {id(self) % 10000}"


def extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The first byte of the elements of an array, counted from its first element, and the end of the last one."""
    low = high = 0
    for n, step in zip(shape, strides, strict=True):
        if n == 0:
            return 0, 0
        if step > 0:
            high += (n - 1) * step
        else:
            low += (n - 1) * step
    return low, high + itemsize


def steps_of(x: Any) -> tuple[int, ...]:
    """The strides of an array, 0 along dimensions of extent 1."""
    strides: tuple[int, ...] = x.strides
    return tuple([0 if n == 1 else step for n, step in zip(x.shape, strides, strict=True)]) if 1 in x.shape else strides


def bits_of(dtype: Any) -> Any:
    """The size of a number, or "b1": numbers for which this is equal have each other's bits by ``view``."""
    return "b1" if dtype.kind == "b" else dtype.itemsize


class Operand:
    """An array in a buffer. The stride along a dimension of extent 1 is 0.

    Attributes
    ----------
    buffer : Buffer
    offset : int
        Of its first element.
    shape, strides : tuple of int
    dtype : dtype
    low, high : int
        Its first byte, and the end of its last, in the buffer.
    place : tuple
        Equal for operands that have the same elements in loops over one shape, perhaps as numbers of another dtype.
    """

    __slots__ = ("buffer", "dtype", "high", "low", "offset", "place", "shape", "strides")

    def __init__(
        self, buffer: Buffer, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
    ):
        self.buffer, self.offset, self.shape, self.strides, self.dtype = buffer, offset, shape, strides, dtype
        low, high = extent(shape, strides, dtype.itemsize)
        self.low, self.high = offset + low, offset + high
        self.place = id(buffer), offset, strides, bits_of(dtype)

    def _replace(self, **changes: Any) -> Operand:
        """The operand with other attributes, as of a named tuple."""
        names = ("buffer", "offset", "shape", "strides", "dtype")
        return Operand(**({name: getattr(self, name) for name in names} | changes))

    @property
    def size(self) -> int:
        n = 1
        for each in self.shape:
            n *= each
        return n

    def meets(self, other: Operand) -> bool:
        """Whether the two may have a byte in common."""
        if self.buffer is not other.buffer or not self.size or not other.size:
            return False
        return self.low < other.high and other.low < self.high

    def is_at(self, other: Operand) -> bool:
        """Whether the two are the same elements in the same order, perhaps as numbers of another dtype."""
        return self.place == other.place and self.shape == other.shape


class Constant(NamedTuple):
    """A number that is the same in each step, of the dtype in which a call takes it."""

    value: Any
    dtype: np.dtype[Any]


class Place(NamedTuple):
    """The place of an operand among the arguments of a call that is made as a whole."""

    at: int
    is_number: bool


class Node:
    """A call of NumPy.

    Attributes
    ----------
    kind : str
        "ufunc", elementwise, which a copy (`numpy.positive`) and a choice (`numpy.where`) are, too; "reduce"; "product"
        of `numpy.matmul` or `numpy.dot`; "gather", "scatter" and "add_at", with arrays of indices; "loop", a compiled
        loop of `autograd.kernels`; "call", a function of NumPy or SciPy that is called as a whole; "guard", a truth
        value on which Python has decided; "python", a call that is made by Python in each step.
    function : object
        The ufunc, or what the node calls.
    outs, ins : tuple
        The operands that it writes, and those that it reads: of type `Operand`, `Constant` or `Number`.
    dtypes : tuple
        Of a ufunc: the dtypes of the loop, in which operands are taken and results made.
    reads : tuple of Operand
        Those among `ins`.
    words : dict
        What belongs to the kind.
    row : int
        The number of the recorded row.
    """

    __slots__ = ("dtypes", "function", "ins", "kind", "outs", "reads", "row", "words")

    def __init__(
        self, kind: str, function: Any, outs: tuple[Operand, ...], ins: tuple[Any, ...], dtypes: tuple[Any, ...] = (),
        **words: Any,
    ):  # fmt: skip
        self.kind, self.function, self.dtypes, self.words = kind, function, dtypes, words
        self.outs, self.ins = outs, ins
        reads = tuple([x for x in ins if x.__class__ is Operand])
        self.reads = ins if len(reads) == len(ins) else reads
        self.row = -1

    def with_ins(self, ins: Sequence[Any]) -> Node:
        """The same call of other operands."""
        made = Node(self.kind, self.function, self.outs, tuple(ins), self.dtypes, **self.words)
        made.row = self.row
        return made

    @property
    def changes_more(self) -> bool:
        """Whether a call of Python changes something besides its result and the random state."""
        return self.words.get("changes") not in (None, False, "keys")

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", self.function)
        return f"<{self.kind} {name} {[o.shape for o in self.outs]} row {self.row}>"
