"""Numbers that differ between ranks: `mesh.axis(a).rank`, the local extent of a sharded dimension.

They keep the axes along which they differ, also through arithmetic, so that a slice or a mean that depends on the rank
is not mistaken for one that does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["RankFloat", "RankInt", "frozen", "rank_axes"]


class RankInt(int):
    """An integer that differs between the ranks of some axes (a rank, the extent of a local part).

    Arithmetic with it gives a RankInt. The result of an operation with it as an operand is V on those axes.
    """

    axes: frozenset[str]

    def __new__(cls, value: int, axes: Iterable[str]) -> RankInt:
        self = super().__new__(cls, value)
        self.axes = frozenset(axes)
        return self

    def __reduce__(self) -> Any:
        return RankInt, (int(self), self.axes)

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **options: Any) -> Any:
        # convert to a plain int, which alone is weak in NumPy's promotion; the result is an array, and therefore V
        return getattr(ufunc, method)(*(int(x) if isinstance(x, RankInt) else x for x in xs), **options)


def _keeping_axes(name: str) -> Any:
    plain = getattr(int, name)

    def method(self: RankInt, *others: Any) -> Any:
        result = plain(self, *others)
        if result is NotImplemented and others and isinstance(others[0], float):
            return getattr(RankFloat(float(self), self.axes), name)(*others)
        if type(result) is int:
            return RankInt(result, self.axes.union(*(o.axes for o in others if isinstance(o, RankInt))))
        if type(result) is float:
            return RankFloat(result, self.axes.union(*(o.axes for o in others if isinstance(o, RankInt | RankFloat))))
        return result

    method.__name__ = name
    return method


_ARITHMETIC = [f"__{s}{n}__" for n in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow") for s in ("", "r")]
for _name in (*_ARITHMETIC, "__neg__", "__abs__", "__lshift__", "__rshift__", "__and__", "__or__", "__xor__"):
    setattr(RankInt, _name, _keeping_axes(_name))


class RankFloat(float):
    """A float that differs between the ranks of some axes, such as the quotient of two `RankInt`s."""

    axes: frozenset[str]

    def __new__(cls, value: float, axes: Iterable[str]) -> RankFloat:
        self = super().__new__(cls, value)
        self.axes = frozenset(axes)
        return self


def _float_keeping_axes(name: str) -> Any:
    plain = getattr(float, name)

    def method(self: RankFloat, *others: Any) -> Any:
        result = plain(self, *others)
        if type(result) is float:
            return RankFloat(result, self.axes.union(*(o.axes for o in others if isinstance(o, RankInt | RankFloat))))
        return result

    method.__name__ = name
    return method


for _name in (*_ARITHMETIC, "__neg__", "__abs__"):
    setattr(RankFloat, _name, _float_keeping_axes(_name))


def rank_axes(options: Any) -> frozenset[str]:
    """The axes on which a number among an operation's options differs between ranks."""
    if isinstance(options, RankInt | RankFloat):
        return options.axes
    if isinstance(options, slice):
        return rank_axes((options.start, options.stop, options.step))
    if isinstance(options, tuple | list):
        return frozenset().union(*map(rank_axes, options)) if options else frozenset()
    return frozenset()


def frozen(options: Any, operands: Any) -> Any:
    """A dictionary key of the options for inference: their axes, and their values if an operand is sharded."""
    if not options:
        return ()
    return rank_axes(options), any(_special(x) for x in operands) and _frozen(options)


def _special(x: Any) -> bool:
    layout = getattr(x, "layout", None)
    return layout is not None and layout.special


def _frozen(x: Any) -> Any:
    """Options as a dictionary key."""
    if isinstance(x, RankInt):
        return ("rank", int(x))  # apart from the same extent on every rank
    if isinstance(x, slice):
        return ("slice", x.start, x.stop, x.step)
    if isinstance(x, tuple | list):
        return tuple(map(_frozen, x))
    if isinstance(x, np.ndarray):
        return (x.shape, x.dtype.str, x.tobytes())
    if hasattr(x, "dtype"):  # an array without values
        return (x.shape, x.dtype.str)
    return x
