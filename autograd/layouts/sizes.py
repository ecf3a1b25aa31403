"""Numbers that remember how they depend on the number of ranks: sizes of axes, and extents of whole values.

The size of an axis, of a mesh and of the world, and the extents in ``x.global_shape`` are such numbers. They remember
through ``*``, ``/``, ``**``, ``-n`` and ``abs``, so that a loss that is divided by one is known to be divided by the
number of ranks, or by the number of all rows (see `collectives.scale`). Everything else, as ``//``, ``n + 1``,
``range``, ``int()`` and NumPy's numbers, gives plain numbers, and so does a float before a size: ``1.0 / n``, which
Python computes without asking the size; ``1 / n`` does remember. As operands and options of operations they are plain
numbers.

=========  =============================================  ==================================
class      values                                         powers
=========  =============================================  ==================================
Size       ``axis.size``, ``mesh.sizes``, ``world.size``  1 on the axis, or on every axis
Size       ``x.global_shape[0]``                          none, and `counts` is "all"
SizeFloat  a quotient with any of them                    those of the quotient
SizeFloat  the divisor in the mean of a loss              none, and `counts` is "own"
=========  =============================================  ==================================
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .rank_values import RANK_NUMBERS

__all__ = ["SIZES", "Size", "SizeFloat", "global_shape_of", "size_of"]

if TYPE_CHECKING:
    from fractions import Fraction

Powers = tuple[tuple[str, "Fraction | int"], ...]


class _Remembering:
    """A number that remembers. NumPy's functions take it as a plain one, which changes the dtype of no array."""

    powers: Powers
    rest: float
    counts: str

    def __new__(cls, value: Any, powers: Powers = (), rest: float = 1.0, counts: str = "") -> Self:
        self = super().__new__(cls, value)  # type: ignore[call-arg]  # of int or float
        self.powers, self.rest, self.counts = powers, rest, counts
        return self

    def __reduce__(self) -> Any:  # a copy on another mesh, or in a file, is a plain number
        number = _plain(self)
        return type(number), (number,)

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **options: Any) -> Any:
        if any(map(_is_tensor, xs)):
            return NotImplemented  # a Tensor's turn
        return getattr(ufunc, method)(*map(_plain, xs), **options)


class Size(_Remembering, int):
    """An integer that remembers the sizes of axes of which it is a product. See the table of this module.

    Attributes
    ----------
    powers : tuple of (axis, power)
        Of the sizes that it is a product of; a half of a root. The axis ``"*"`` stands for every axis of any mesh.
    rest : float
        The product of the plain numbers in it.
    counts : str
        "all" if an extent of a whole value is among its factors, "own" for the number of rows of this rank.
    """

    @property
    def plain(self) -> int:
        """The plain integer."""
        return int(self)


class SizeFloat(_Remembering, float):
    """A float that remembers; the attributes are those of `Size`."""

    @property
    def plain(self) -> float:
        """The plain float."""
        return float(self)


SIZES: frozenset[Any] = frozenset((Size, SizeFloat))


def size_of(n: int, *axes: str) -> Size:
    """The number of ranks along axes, as a number that remembers them.

    Examples
    --------
    >>> n = size_of(4, "dp")
    >>> (1 / (8 * n)).powers, (n + 1).__class__
    ((('dp', -1),), <class 'int'>)
    """
    return Size(n, tuple((axis, 1) for axis in axes))


def global_shape_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of a whole value, as numbers that remember that they are global."""
    return tuple([Size(n, counts="all") for n in shape])


def _combined(x: Any, y: Any, sign: int) -> tuple[Powers, float, str]:
    """The powers, rest and `counts` of ``x * y``, or of ``x / y`` where `sign` is -1."""
    powers = dict(getattr(x, "powers", ()))
    for axis, power in getattr(y, "powers", ()):
        powers[axis] = powers.get(axis, 0) + sign * power
    one, two = (n.rest if type(n) in SIZES else float(n) for n in (x, y))
    try:
        rest = one * two if sign > 0 else one / two
    except ArithmeticError:
        rest = math.nan
    counts = getattr(x, "counts", "") or getattr(y, "counts", "")
    return tuple((axis, power) for axis, power in powers.items() if power), rest, counts


def _remembering(function: Callable[[Any, Any], Any], sign: int, is_reflected: bool) -> Any:
    def method(self: Any, other: Any) -> Any:
        kind = type(other)
        if kind is not int and kind is not float and kind not in SIZES:  # a rank number makes the result one, too
            if _is_tensor(other):
                return NotImplemented  # its operator is asked next, with the number that remembers
            plain = self.plain
            return function(other, plain) if is_reflected else function(plain, other)
        x, y = (other, self) if is_reflected else (self, other)
        result = function(_plain(x), _plain(y))
        facts = _combined(x, y, sign)
        return Size(result, *facts) if type(result) is int else SizeFloat(result, *facts)

    return method


def _power(self: Any, exponent: Any, modulus: Any = None) -> Any:
    """``size ** k`` for a plain number k."""
    result = pow(self.plain, _plain(exponent), modulus) if modulus is not None else self.plain ** _plain(exponent)
    if type(exponent) not in (int, float) or modulus is not None or type(result) not in (int, float):
        return result
    from fractions import Fraction  # loaded lazily: it imports decimal, which is slow to load

    degree = Fraction(exponent).limit_denominator(64) if math.isfinite(exponent) else 0
    powers = tuple((axis, degree * power) for axis, power in self.powers if degree)
    facts = powers, self.rest**exponent, self.counts if abs(degree) == 1 else ""
    return Size(result, *facts) if type(result) is int else SizeFloat(result, *facts)


def _signed(function: Callable[[Any], Any]) -> Any:
    def method(self: Any) -> Any:
        return type(self)(function(self.plain), self.powers, function(self.rest), self.counts)

    return method


def _is_tensor(x: Any) -> bool:
    """Whether an operand is another library's that has operators for a size, as a Tensor."""
    return hasattr(type(x), "__array_ufunc__") and not isinstance(x, _NUMPY)


def _plain(x: Any) -> Any:
    return x.plain if type(x) in SIZES else x


def _forgetting(function: Callable[[Any, Any], Any], is_reflected: bool, number: Any) -> Any:
    """The function of the plain number; `number` is its type. A rank number makes the result one, too."""
    if is_reflected:
        return lambda self, other: function(other, number(self))
    return lambda self, other: function(number(self), other)


_NUMPY = (np.ndarray, np.generic, Size, SizeFloat, *RANK_NUMBERS)
_FORGETTING = {
    name: getattr(operator, name)
    for name in ("add", "sub", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor")
} | {"divmod": divmod}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_OF_INTEGERS = ("lshift", "rshift", "and_", "or_", "xor")
for _kind, _number in ((Size, int), (SizeFloat, float)):
    for _name, _function, _sign in (("mul", operator.mul, 1), ("truediv", operator.truediv, -1)):
        setattr(_kind, f"__{_name}__", _remembering(_function, _sign, is_reflected=False))
        setattr(_kind, f"__r{_name}__", _remembering(_function, _sign, is_reflected=True))
    for _name, _function in _FORGETTING.items():
        if _kind is Size or _name not in _OF_INTEGERS:
            setattr(_kind, f"__{_name.rstrip('_')}__", _forgetting(_function, False, _number))
            setattr(_kind, f"__r{_name.rstrip('_')}__", _forgetting(_function, True, _number))
    for _name in _COMPARISONS:
        setattr(_kind, f"__{_name}__", _forgetting(getattr(operator, _name), False, _number))
    for _name, _method in {"neg": _signed(operator.neg), "pos": _signed(operator.pos), "abs": _signed(abs),
                           "pow": _power}.items():  # fmt: skip
        setattr(_kind, f"__{_name}__", _method)
