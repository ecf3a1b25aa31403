"""Memory: where the buffers of a program lie, and what belongs to one of its runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .nodes import Buffer, Operand, Refused, extent, steps_of
from .trace import owner_of

__all__ = ["Departed", "Frame", "Memory", "part_of"]

_ALIGNED = 64


class Departed(Exception):
    """A decision on data has another result than in the recorded step. Nothing has changed."""


class Frame:
    """The arrays of one run: of arguments, new gradients, and values that calls of Python have made.

    Attributes
    ----------
    arguments : tuple of ndarray
    gradients : ndarray
        New memory, one array of structured dtype; None where there are none.
    values : dict
    recorded : list or None
        The results of the recorded rows, where calls of Python are not made.
    """

    __slots__ = ("arguments", "gradients", "recorded", "values")

    def __init__(self, arguments: tuple[Any, ...], gradients: Any):
        self.arguments, self.gradients = arguments, gradients
        self.values: dict[Any, Any] = {}
        self.recorded: list[Any] | None = None


class Memory:
    """Where buffers lie: the arena, the arrays of the program, numbers; arguments and gradients in each run anew."""

    def __init__(self) -> None:
        self.arena: Any = None
        self.kept: list[Any] = []
        self._whole: dict[int, tuple[Any, int]] = {}  # by buffer: its bytes, and the place of its first element
        self._addresses: dict[int, int] = {}  # of that element
        self._fields: dict[int, str] = {}
        self._orders: dict[str, tuple[int, ...]] = {}  # of the dimensions of a gradient, where they are not in C order
        self.kind: Any = None  # of all gradients together

    def reserve(self, size: int) -> None:
        raw = np.empty(size + _ALIGNED, np.uint8)
        start = -raw.ctypes.data % _ALIGNED
        self.arena = raw[start : start + size]

    def with_gradients(self, buffers: Sequence[Buffer]) -> None:
        """Put gradients into one array."""
        end, fields = 0, []
        for k, buffer in enumerate(buffers):
            base = buffer.base
            order = sorted(range(base.ndim), key=lambda d: -base.strides[d])  # of dimensions in memory
            if not base.transpose(order).flags.c_contiguous:
                raise Refused("a gradient that is not contiguous")
            fields.append((f"g{k}", base.dtype, base.transpose(order).shape, end))
            self._fields[id(buffer)] = f"g{k}"
            if order != sorted(order):
                self._orders[f"g{k}"] = tuple(order.index(d) for d in range(base.ndim))
            end += -(-max(buffer.size, 1) // _ALIGNED) * _ALIGNED
        if fields:
            names, dtypes, shapes, offsets = map(list, zip(*fields, strict=True))
            formats = list(zip(dtypes, shapes, strict=True))
            self.kind = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": end})

    def gradient(self, buffer: Buffer) -> tuple[str, tuple[int, ...] | None]:
        """The field of a gradient in the array of all, and the order of its dimensions there, unless it is C's."""
        name = self._fields[id(buffer)]
        return name, self._orders.get(name)

    def offset(self, buffer: Buffer) -> int:
        """The place of a gradient in the array of all."""
        return int(self.kind.fields[self._fields[id(buffer)]][1])

    def whole(self, buffer: Buffer) -> tuple[Any, int]:
        """The bytes of a buffer that stays where it is, and the place of its first element."""
        found = self._whole.get(id(buffer))
        if found is None:
            if buffer.kind == "temporary":
                if buffer.start < 0:
                    raise Refused("a value that has no place in memory")
                found = self.arena[buffer.start : buffer.start + buffer.size], buffer.low
            elif buffer.kind in ("state", "constant", "number"):
                x = buffer.array
                start = x.ctypes.data - buffer.low
                memory = (ctypes.c_uint8 * max(buffer.size, 1)).from_address(start)
                found = np.frombuffer(memoryview(memory), np.uint8), buffer.low
                self.kept.append(x)
            else:
                raise Refused(f"a {buffer.kind} that moves")
            self._whole[id(buffer)] = found
        return found

    def has(self, x: Any) -> bool:
        """Whether an array lies in the arena, whose values other groups may replace."""
        return self.arena is not None and owner_of(x) is owner_of(self.arena)

    def address(self, x: Operand) -> int:
        at = self._addresses.get(id(x.buffer))
        if at is None:
            whole, start = self.whole(x.buffer)
            at = self._addresses[id(x.buffer)] = int(whole.ctypes.data) + start
        return at + x.offset

    def view(self, x: Operand) -> Any:
        """An operand as an array, where its buffer stays."""
        whole, start = self.whole(x.buffer)
        if not x.size:
            return np.empty(x.shape, x.dtype)
        return np.ndarray(x.shape, x.dtype, whole.data, start + x.offset, x.strides)

    def text(self, x: Operand, name: Callable[[Any], str]) -> str:
        """An expression for an operand as an array, in the lines of a run (`steps`); `name` names objects in it."""
        buffer = x.buffer
        if buffer.kind == "argument" and part_of(x) is None:
            return f"a{buffer.key}"
        if buffer.kind == "gradient" and part_of(x) is None:
            field, order = self.gradient(buffer)
            return f"gradients[{field!r}]" + ("" if order is None else f".transpose({order})")
        if buffer.kind in ("argument", "gradient"):
            return f"{name(self.reader(x))}(frame)"
        return name(self.view(x))

    def reader(self, x: Operand) -> Callable[[Frame], Any]:
        """A function of the frame that returns an operand as an array."""
        buffer = x.buffer
        if buffer.kind == "argument":
            of, key = part_of(x), buffer.key
            if of is None:
                return lambda frame: frame.arguments[key]
            if not buffer.base.flags.c_contiguous:
                return lambda frame: _at(frame.arguments[key], *of)
            return lambda frame: np.ndarray(of[0], of[1], frame.arguments[key], of[2], of[3])
        if buffer.kind == "gradient":
            name, order = self.gradient(buffer)
            of = part_of(x)
            if of is None and order is None:
                return lambda frame: frame.gradients[name]
            if of is None:
                return lambda frame: frame.gradients[name].transpose(order)
            return lambda frame: _at(frame.gradients[name], *of)
        found = self.view(x)
        return lambda frame: found


def part_of(x: Operand) -> Any:
    """Shape, dtype, offset and strides of a part of a buffer; None for the whole."""
    base = x.buffer.base
    if (x.offset, x.shape, x.strides, x.dtype) == (0, base.shape, steps_of(base), base.dtype):
        return None
    return x.shape, x.dtype, x.offset, x.strides


def _at(x: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
    """A part of an array, by its place in bytes from the first element."""
    low, high = extent(shape, strides, dtype.itemsize)
    if high == low:
        return np.empty(shape, dtype)
    memory = (ctypes.c_uint8 * (high - low)).from_address(x.ctypes.data + offset + low)
    memory.owner = x  # type: ignore[attr-defined]
    return np.ndarray(shape, dtype, memoryview(memory), -low, strides)
