"""Plain arrays: which arrays mean the numbers in their memory and nothing else, and the refusal of all others.

====================================  ==============================================================================
given                                 why it is refused
====================================  ==============================================================================
`numpy.ma.MaskedArray`                elements that do not count would count
`numpy.matrix`                        ``*`` is a product of matrices, and no slice has one dimension
a subclass with its own arithmetic    what it adds, such as a unit, would be lost without a word
objects, fields, bytes                there are no derivatives, and other processes cannot read them
texts, dates, time spans              there are no derivatives; they may be stored
====================================  ==============================================================================

`numpy.memmap`, `numpy.recarray` of numbers, and subclasses that change no operator, no reduction and none of NumPy's
protocols are plain. So is a class that the program has registered in `BOXED`.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import DtypeError, nested_in_itself
from .read_only import Guarded

__all__ = ["BOXED", "OF_MASKED", "require_plain", "require_plain_array"]

BOXED: dict[type, Any] = {}
"""By class of arrays, the function ``(value, trace, node)`` that boxes one as the argument of a transform. Programs of
HIPS autograd register it (`custom.boxes`)."""

_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor", "lshift",
    "rshift",
)  # fmt: skip
_ARITHMETIC = frozenset((
    "__array_ufunc__", "__array_function__", "__neg__", "__pos__", "__abs__", "__invert__",
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
    *(f"__{kind}{name}__" for kind in ("", "r", "i") for name in _OPERATORS),
    "all", "any", "argmax", "argmin", "cumprod", "cumsum", "dot", "max", "mean", "min", "prod", "std", "sum", "trace",
    "var",
))  # fmt: skip
_PLAIN = frozenset((np.memmap, np.recarray, Guarded))


def require_plain_array(x: Any, what: str = "", *, stored: bool = False, numbers: bool = True) -> None:
    """Raise unless an array means its numbers alone, so that it may be an operand, or with `stored` a part of a file.

    Parameters
    ----------
    x : numpy.ndarray or numpy.generic
        The array. It is read neither here nor converted: a plain subclass stays what it is.
    what : str
        The start of the message, such as "save: entry 'v'".
    stored : bool
        Whether texts, dates and time spans are plain, too, and the fix is one for a file.
    numbers : bool
        Whether the dtype is looked at.

    Raises
    ------
    DtypeError
        It is masked, a `numpy.matrix`, of a subclass with its own arithmetic, or no array of numbers. The message says
        what to give in its place.

    Examples
    --------
    >>> import numpy
    >>> from autograd.errors import DtypeError
    >>> require_plain_array(numpy.ones(2))
    >>> try:
    ...     require_plain_array(numpy.zeros(2, [("mass", "f4"), ("charge", "i2")]), "x")
    ... except DtypeError as error:
    ...     print(error.reason)
    x: an array of dtype [('mass', '<f4'), ('charge', '<i2')] was given; needed: numbers or booleans
      fix: x['mass'], one field
    """
    kind = type(x)
    found = _dtype_fault(x.dtype, stored) if numbers and x.dtype.kind not in "biufc" else None
    if found is None and kind is not np.ndarray:
        found = _class_fault(kind, x, stored)
    if found is not None:
        given, fix = found
        needed = "numbers, texts or dates" if stored else "numbers or booleans"
        raise DtypeError(f"{what}{': ' * bool(what)}{given} was given; needed: {needed}\n  fix: {fix}")


def require_plain(x: Any, what: str = "", *, numbers: bool = True) -> None:
    """`require_plain_array` for what becomes an operand: an array, one that an object gives, or those in nested lists.

    `numpy.asarray` makes a plain array of each of them, without a word. With ``numbers=False`` the dtype may be any.
    """
    try:
        _require_parts(x, what, numbers)
    except RecursionError as error:
        raise nested_in_itself(error) from None


def _require_parts(x: Any, what: str, numbers: bool) -> None:
    kind = type(x)
    if issubclass(kind, list | tuple):
        if not set(map(type, x)) <= _NUMBERS:  # most lists are of numbers, which this tells in 10 ns each
            for item in x:
                _require_parts(item, what, numbers)
        return
    if hasattr(kind, "__array__") and not hasattr(kind, "__array_ufunc__"):  # neither NumPy's nor like a Tensor
        what, x = what or f"given {kind.__name__}", _as_given(x)
    if isinstance(x, np.ndarray | np.generic) and (numbers or type(x) is not np.ndarray):
        require_plain_array(x, what, numbers=numbers)


def _as_given(x: Any) -> Any:
    """The array that an object gives, with its class, which `numpy.asarray` drops; None if it refuses to give one."""
    try:
        return np.asanyarray(x)
    except (TypeError, ValueError, RuntimeError):  # its reader gets the error
        return None


_NUMBERS = frozenset((bool, int, float, complex))
_MASK = "mask, x = numpy.ma.getmaskarray(x), x.filled(0)"
OF_MASKED = f"{_MASK}; then numpy.where(mask, 0, terms) in a loss, and (~mask).sum() of all ranks for the n of a mean"
"""The fix for a masked array x that is an operand."""


def _class_fault(kind: Any, x: Any, stored: bool) -> tuple[str, str] | None:
    """The words for an array of a subclass that is not plain, and the fix; None for others."""
    if "numpy.ma" in sys.modules and issubclass(kind, np.ma.MaskedArray):  # loading it takes 10 ms
        if stored:
            return "a masked array", _MASK
        fix = OF_MASKED
        if x.dtype.kind in "iu":
            fix += "\n  or:  x.filled(-100), if they are labels: cross_entropy ignores the label -100"
        return "a masked array", fix
    if issubclass(kind, np.matrix):
        return "a numpy.matrix", "numpy.asarray(x)" + ", and @ where * is a product of matrices" * (not stored)
    changed = _changed(kind) if issubclass(kind, np.ndarray) and kind not in BOXED else ""
    if not changed:
        return None
    given = f"an array of {kind.__module__}.{kind.__qualname__}, which has a {changed} of its own,"
    return given, "numpy.asarray(x), if the numbers alone are meant"


@lru_cache(maxsize=256)  # of the classes of arrays in use; without it each array of a subclass takes 8 us
def _changed(kind: type) -> str:
    """A method of arithmetic that a subclass of ndarray does not inherit from it; "" if there is none."""
    for base in kind.__mro__:
        if base is np.ndarray:
            break
        if base not in _PLAIN:
            for name in vars(base):
                if name in _ARITHMETIC:
                    return name
    return ""


def _dtype_fault(dtype: np.dtype[Any], stored: bool) -> tuple[str, str] | None:
    """The words for an array of a dtype, and the fix; None for numbers, and with `stored` for what a file may have."""
    kind = dtype.kind
    if kind in "biufc" or (stored and kind in "SUmM") or (kind == "V" and dtype.name == "bfloat16"):
        return None
    if dtype.names:
        fix = "{name: x[name] for name in x.dtype.names}" if stored else f"x[{dtype.names[0]!r}], one field"
    elif dtype.type is np.void:
        fix = f"numpy.frombuffer(x.tobytes(), 'u1').reshape(-1, {dtype.itemsize}), its bytes"
    else:
        fix = (_TO_STORED if stored else _TO_NUMBERS).get(kind, "x.astype('float32')")
    return "an array of objects" if kind == "O" else f"an array of dtype {dtype}", fix


_TEXTS = "x.astype(float), if they are written numbers; numpy.unique(x, return_inverse=True)[1], numbers of classes"
_TO_NUMBERS = {
    "M": "x.astype('int64'), counts of its unit",
    "m": "x.astype('int64'), counts of its unit",
    "U": _TEXTS,
    "S": _TEXTS,
    "T": _TEXTS,
    "O": "x.astype(float), if its elements are numbers; arrays of equal shapes are joined by numpy.stack",
}
"""What makes numbers of an array, by the kind of its dtype."""
_TO_STORED = {
    "T": "numpy.array(x.tolist())",
    "O": "x.tolist(), if its elements are numbers and texts",
}
"""What makes an array or a list that a file holds, by the kind of a dtype."""
