"""Numbers that differ between ranks: rank numbers, and the local extents of sharded dimensions.

They keep the axes along which they differ through arithmetic, comparisons, `round`, `divmod`, `math.floor` and NumPy's
functions, so that a slice or a mean that depends on the rank is not mistaken for one that does not. As an operand or an
argument of an operation such a number is Varying on its axes. ``int(n)``, ``float(n)`` and ``n.item()`` give a plain
number, which states that the dependence is intended. Plain numbers are constants, and the ranks compare them (see
`collectives.checks.sanitizer`).

============  ============================================================  =======================================
class         values                                                        Python's type
============  ============================================================  =======================================
RankInt       a rank number, and integers computed from it                  a subclass of int
RankBool      a comparison of rank numbers                                  a subclass of int
RankFloat     floats computed from any of them                              a subclass of float
LocalCount    the local extent of a sharded dimension, and integers         not an int, but accepted where Python needs
              computed from it                                              an index: ``range``, slices, shapes
LocalOffset   integers computed from a local extent and a rank              a subclass of LocalCount
============  ============================================================  =======================================

A LocalCount is no int because Python computes ``1.0 / n`` for a subclass of int without asking it: a plain float, the
same on all ranks where the parts are equal. ``0.1 * rank`` is plain, too, but their comparison finds that it differs.

Python converts a number to a plain one in ``math.sqrt`` and the like (use `autograd.numpy.sqrt`), ``numpy.array([n])``,
``range``, ``not`` and ``in``. ``max(rank, 1)`` returns one of its arguments. A list or dict of the program forgets the
number that picks from it; the parts that `autograd.numpy.split` and the like return do not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..errors import LayoutError, nested_in_itself

__all__ = [
    "EVERY_AXIS", "INTEGERS", "RANK_NUMBERS", "LocalCount", "LocalOffset", "RankBool", "RankFloat", "RankInt",
    "first_elements", "frozen", "plain", "rank_axes", "rank_number", "require_same_number",
]  # fmt: skip

EVERY_AXIS = "*"
"""The axis of the numbers that differ on every axis of any mesh: the rank in a world."""


class RankInt(int):
    """An integer that differs between the ranks of some axes, such as a rank. See the table of this module."""

    axes: frozenset[str]

    def __new__(cls, value: Any, axes: Iterable[str]) -> RankInt:
        self = super().__new__(cls, value)
        self.axes = frozenset(axes)
        return self

    def __reduce__(self) -> Any:
        return type(self), (int(self), self.axes)

    def item(self) -> int:
        """The plain integer."""
        return int(self)


class RankBool(RankInt):
    """A truth value that differs between ranks, such as ``rank == 0``."""

    def __repr__(self) -> str:
        return repr(bool(self))

    def item(self) -> bool:
        """The plain truth value."""
        return bool(self)


class RankFloat(float):
    """A float that differs between the ranks of some axes, such as the quotient of two `RankInt`s.

    `is_count` is whether a local extent is among the numbers that it is computed from.
    """

    axes: frozenset[str]
    is_count: bool

    def __new__(cls, value: Any, axes: Iterable[str], is_count: bool = False) -> RankFloat:
        self = super().__new__(cls, value)
        self.axes, self.is_count = frozenset(axes), is_count
        return self

    def __reduce__(self) -> Any:
        return type(self), (float(self), self.axes, self.is_count)

    def item(self) -> float:
        """The plain float."""
        return float(self)


class LocalCount:
    """The local extent of a sharded dimension, or an integer computed from one. See the table of this module.

    `of_one_row` is, of a product that is 0 since this rank's part has no row, the product if the part had one row. From
    it the other extents are inferred as on the ranks that have rows.
    """

    __slots__ = ("axes", "of_one_row", "value")

    axes: frozenset[str]
    of_one_row: int
    value: int

    def __init__(self, value: Any, axes: Iterable[str], of_one_row: int = 1):
        self.value = int(value)
        self.axes = frozenset(axes)
        self.of_one_row = of_one_row

    def __reduce__(self) -> Any:
        return type(self), (self.value, self.axes, self.of_one_row)

    def item(self) -> int:
        """The plain integer."""
        return self.value

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __format__(self, form: str) -> str:
        return format(self.value, form)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype)


class LocalOffset(LocalCount):
    """A number computed from a local extent and a rank, such as the place of this rank's part in the whole."""

    __slots__ = ()


RANK_NUMBERS = (RankInt, RankFloat, LocalCount)


INTEGERS = (int, np.integer, LocalCount)
"""The types of integers, where a function takes one integer or several."""


def plain(x: Any) -> Any:
    """A rank number as a plain number; anything else as it is."""
    return x.item() if isinstance(x, RANK_NUMBERS) else x


def rank_number(value: Any, axes: frozenset[str], is_count: bool = False, is_offset: bool = False) -> Any:
    """A number, or a tuple of numbers, that differs between the ranks of `axes`. Arrays are returned as they are.

    With `is_count` it is computed from a local extent: an integer becomes a `LocalCount`, or with `is_offset`, if it is
    also computed from a rank, a `LocalOffset`.
    """
    if not axes:
        return value
    if isinstance(value, tuple):
        return tuple(rank_number(x, axes, is_count, is_offset) for x in value)
    if isinstance(value, bool | np.bool_):
        return RankBool(value, axes)
    if isinstance(value, int | np.integer):
        if not is_count:
            return RankInt(value, axes)
        return LocalOffset(value, axes) if is_offset else LocalCount(value, axes)
    return RankFloat(value, axes, is_count) if isinstance(value, float | np.floating) else value


def has_local_count(options: Any) -> bool:
    """Whether a number among options is a local extent of a sharded dimension, or computed from one."""
    if isinstance(options, tuple | list):
        return any(map(has_local_count, options))
    return isinstance(options, LocalCount) or (isinstance(options, RankFloat) and options.is_count)


def _keeping_axes(value: Any, *of: Any) -> Any:
    """The result of a function of rank numbers."""
    is_offset = any(isinstance(x, RankInt | LocalOffset) for x in of)
    return rank_number(value, rank_axes(of), has_local_count(of), is_offset)


_OPERANDS = (int, float, complex, LocalCount, np.generic)


def _binary(function: Callable[[Any, Any], Any], is_reflected: bool) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        x, y = plain(self), plain(other)
        result = _keeping_axes(function(y, x) if is_reflected else function(x, y), self, other)
        if function is operator.mul and isinstance(result, LocalCount) and result.value == 0:
            result.of_one_row = _of_one_row(self) * _of_one_row(other)
        return result

    return method


def _of_one_row(n: Any) -> int:
    return n.of_one_row if isinstance(n, LocalCount) and n.value == 0 else int(n)


def _unary(function: Callable[..., Any]) -> Any:
    return lambda self, *digits: _keeping_axes(function(plain(self), *digits), self)


def _array_ufunc(self: Any, ufunc: Any, method: str, *xs: Any, **options: Any) -> Any:
    """A NumPy function of rank numbers gives one. With an array it gives an array, which is V in an operation."""
    if any(hasattr(type(x), "__array_ufunc__") and not isinstance(x, _NUMPY) for x in xs):
        return NotImplemented  # a Tensor's turn
    return _keeping_axes(getattr(ufunc, method)(*map(plain, xs), **options), *xs)


_NUMPY = (np.ndarray, np.generic, *RANK_NUMBERS)
_OPERATORS = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "lshift", "rshift", "and_", "or_", "xor")
} | {"divmod": divmod}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg, "pos": operator.pos, "abs": abs, "invert": operator.invert, "round": round,
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
}  # fmt: skip
# a class that defines __eq__ needs a hash of its own
_OTHERS: dict[str, Any] = {"__hash__": lambda self: hash(plain(self)), "__array_ufunc__": _array_ufunc}
for _kind in RANK_NUMBERS:  # a LocalOffset inherits them
    for _name, _function in _OPERATORS.items():
        setattr(_kind, f"__{_name.rstrip('_')}__", _binary(_function, is_reflected=False))
        setattr(_kind, f"__r{_name.rstrip('_')}__", _binary(_function, is_reflected=True))
    for _name in _COMPARISONS:
        setattr(_kind, f"__{_name}__", _binary(getattr(operator, _name), is_reflected=False))
    for _name, _function in _FUNCTIONS.items():
        setattr(_kind, f"__{_name}__", _unary(_function))
    for _name, _function in _OTHERS.items():
        setattr(_kind, _name, _function)


def rank_axes(options: Any) -> frozenset[str]:
    """The axes on which a number among an operation's options differs between ranks."""
    if isinstance(options, RANK_NUMBERS):
        return options.axes
    if isinstance(options, slice):
        return rank_axes((options.start, options.stop, options.step))
    if isinstance(options, tuple | list):
        try:
            return frozenset().union(*map(rank_axes, options)) if options else frozenset()
        except RecursionError as error:
            raise nested_in_itself(error) from error
    return frozenset()


def require_same_number(value: Any, what: str) -> None:
    """Raise LayoutError if a number that all ranks share, such as a learning rate, differs between ranks."""
    axes = sorted(rank_axes(value))
    if axes:
        where = "the ranks" if EVERY_AXIS in axes else f"the ranks of axis {', '.join(map(repr, axes))}"
        raise LayoutError(
            f"{what}={value!r} differs between {where}; needed: one number for all ranks\n  fix: a number that does "
            "not depend on the rank, such as a global extent (x.global_shape[...])"
        )


def first_elements(options: Any) -> int | None:
    """The place in an index of a slice ``[:n]``, where n is the local extent of a sharded dimension, or None."""
    key = options[0] if options else None
    for place, each in enumerate(key if isinstance(key, tuple) else (key,)):
        if isinstance(each, slice) and each.start is None and type(each.stop) is LocalCount:
            return place
    return None


def frozen(options: Any, operands: Any) -> Any:
    """A dictionary key of the options for inference: their axes, and their values if an operand is sharded."""
    if not options:
        return ()
    axes: Any = rank_axes(options)
    if axes and first_elements(options) is not None:
        axes = axes, "first elements"
    return axes, any(_special(x) for x in operands) and _frozen(options)


def _special(x: Any) -> bool:
    layout = getattr(x, "layout", None)
    return layout is not None and layout.special


def _frozen(x: Any) -> Any:
    """Options as a dictionary key."""
    if isinstance(x, RANK_NUMBERS):
        return (type(x), plain(x), x.axes)  # apart from the same number on every rank
    if isinstance(x, slice):
        return ("slice", _frozen(x.start), _frozen(x.stop), _frozen(x.step))
    if isinstance(x, tuple | list):
        return tuple(map(_frozen, x))
    if isinstance(x, np.ndarray):
        return (x.shape, x.dtype.str, x.tobytes())
    if hasattr(x, "dtype"):  # an array without values
        return (x.shape, x.dtype.str)
    return x
