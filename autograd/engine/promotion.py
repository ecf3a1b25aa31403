"""Type promotion: operands of different dtypes, operands that are no Tensors, and rules on values of 16 bits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import numpy as np

from ..arrays.device import as_array, is_array, is_inexact
from ..arrays.half import is_half, narrow, rounded
from ..arrays.plain import require_plain_array
from ..errors import ArgumentError, DtypeError, LayoutError, RingtapeError, ShapeError, typed
from ..layouts.inference import axes_in, layout_of
from ..layouts.layout import Shard, V
from ..layouts.messages import describe
from ..layouts.rank_values import RANK_NUMBERS, has_local_count, plain, rank_axes
from ..layouts.sizes import SIZES
from .locks import is_view
from .recording import copying, unshared
from .state import state
from .tensor import TENSORS, Given

__all__ = ["composite", "dtype_to_round_to", "given", "has_16_bits", "mixed", "promoted", "rounded_to", "wide"]


def mixed(*dtypes: Any) -> bool:
    """Whether a floating or complex operand's dtype is not the result's (equal dtypes can be two objects)."""
    if all(dtype == dtypes[0] for dtype in dtypes):
        return False
    try:
        result = np.result_type(*dtypes)
    except TypeError:  # as of bfloat16 and float16, which `promoted` refuses
        return True
    return any(dtype.kind in "fcV" and dtype != result for dtype in dtypes)


_UNFIT: dict[type[Exception], type[RingtapeError]] = {TypeError: DtypeError, ValueError: ShapeError}


def promoted(op: Any, xs: tuple[Any, ...]) -> Any:
    """The operands as Tensors of the result's dtype; one of them is a Tensor.

    A differentiable operand is cast by a recorded operation, so that rules see one dtype. Operands without a cotangent
    (S) keep their dtype. Python's floats and integers stay numbers; everything else becomes a `Given`.
    """
    letters = op.letters(len(xs))
    if len(letters) != len(xs):
        raise ArgumentError(f"{op.name}: {len(xs)} operands were given; needed: {len(letters)}")
    grid = state.grid
    for x in xs:
        if x.__class__ in TENSORS and x.layout is not None:
            grid = x.layout.grid
    dtype = _common_dtype(op, xs, letters) if op.promotes else None
    found = []
    for x, letter in zip(xs, letters, strict=True):
        if x is None:
            if not op.takes_none:
                raise ArgumentError(f"{op.name}: None was given; needed: an array or a number")
            x = math.nan  # None equals nothing
        if x.__class__ in TENSORS:
            if letter != "S" and dtype is not None and x.array.dtype != dtype and is_inexact(x.array.dtype):
                _enter(xs, letters)  # leaves come before casts
                x = op.named("astype")(x, options=(dtype, x.array.dtype))
        elif x.__class__ in SIZES:
            x = x.plain
        elif x.__class__ is not int and x.__class__ is not float:
            if grid is not None and op.number and isinstance(x, RANK_NUMBERS):
                _refuse_local_numbers(op, xs, x, grid)
            x = given(x, grid, None if dtype is None or letter == "S" else dtype)
        found.append(x)
    return found


def _common_dtype(op: Any, xs: tuple[Any, ...], letters: str) -> Any:
    """The dtype of the result of NumPy's function on the differentiable operands; None if there are none."""
    dtype: Any = None
    for x, letter in zip(xs, letters, strict=True):  # usually arrays of one dtype
        if letter != "S":
            a = x.array if x.__class__ in TENSORS else x
            if a.__class__ is not np.ndarray or a.dtype.kind not in "biufc" or (dtype is not None and a.dtype != dtype):
                break
            dtype = a.dtype
    else:
        return dtype
    try:
        kinds = [
            x.array.dtype if x.__class__ in TENSORS else _kind(x, op)
            for x, letter in zip(xs, letters, strict=True) if letter != "S" and x is not None
        ]  # fmt: skip
        if not kinds:
            return None
        dtype = kinds[0] if kinds.count(kinds[0]) == len(kinds) else np.result_type(*kinds)
    except RingtapeError:
        raise
    except (TypeError, ValueError) as error:  # also lists of different lengths
        raise typed(error, f"{op.name}: {error}", _UNFIT) from error
    if dtype.kind not in "biufcV":
        raise DtypeError(f"{op.name} of dtype {dtype}; needed: numbers or booleans")
    return dtype


def _enter(xs: tuple[Any, ...], letters: str) -> None:
    """Record the leaves among the differentiable operands, if anything is recorded."""
    if (recording := state.recording) is not None:
        for x, letter in zip(xs, letters, strict=True):
            if letter != "S" and x.__class__ in TENSORS and x.tape is not recording:
                recording.enter(x)


def _refuse_local_numbers(op: Any, xs: tuple[Any, ...], number: Any, grid: Any) -> None:
    """Raise LayoutError if a number that differs between ranks meets a value that is one value for all of them.

    A local count is refused beside every label but V: what it normalizes belongs to all ranks. A rank number is refused
    where it would scale the parts of a sharded value. In sums, integers are offsets, and the logarithm of a count is a
    count.
    """
    is_count = has_local_count(number)
    if op.number != "scales" and not (is_count and isinstance(number, float)):
        return
    for axis in axes_in(grid, rank_axes(number)):
        for i, x in enumerate(xs):
            if x.__class__ not in TENSORS:
                continue
            have = x.labelled(grid)[axis]
            if have is V or not (is_count or type(have) is Shard):
                continue
            from ..layouts.names import global_extent, name_of  # loaded when it is told

            name = name_of(x, "x", i, op.name)
            why = "the number counts this rank's part only, and the result belongs to all ranks"
            if type(have) is Shard:
                how = "scale its part by a factor" if op.number == "scales" else "shift its part by a number"
                why = f"each rank would {how} of its own"
            shown = repr(have) if type(have) is Shard else have.word
            of = "a local extent" if is_count else "a rank"
            fix = "a number that is the same on all ranks, like x.global_shape[0]"
            if is_count:
                fix = f"{global_extent(axis, plain(number))}   (the global extent)"
            if type(have) is Shard:
                fix += "\n  or:  float(number), if each rank is meant to have its own number"
            raise LayoutError(
                f"{op.name}({name}: {describe(x.array, x.array.shape, x.layout)}, {plain(number)!r})\n  axis {axis!r}: "
                f"the number is Varying ({of}, or computed from one), and {name} is {shown}: {why}\n"
                f"  fix: {fix}"
            )


def given(x: Any, grid: Any, dtype: Any = None) -> Given:
    """A plain array, list or number as an operand. `grid` gives it labels, unless it is None."""
    values = x if x.__class__ is np.ndarray else plain(x)
    if state.recorder is not None:
        array = state.recorder.call(_operand, (values, dtype, bool(copying)))
    else:
        array = values
        if values.__class__ is not np.ndarray or values.dtype is not dtype or dtype.kind not in "biufc":
            array = as_array(values) if dtype is None else as_array(values, dtype)
        array = array if array.shape else array[()]
        if (recording := state.recording) is not None:
            if (copying and recording.copies) or (getattr(array, "base", None) is not None and is_view(array)):
                array = unshared(array)
    if grid is None:
        made = Given(array)
    else:
        made = Given(array, grid.uniform(V) if x.__class__ is np.ndarray and x.shape else layout_of(x, grid))
    made.given = values
    return made


def _operand(values: Any, dtype: Any, copies: bool) -> Any:
    """The array of a `Given`, which a captured step makes anew at each replay."""
    array = as_array(values) if dtype is None else as_array(values, dtype)
    array = unshared(array) if copies else array
    return array if array.shape else array[()]


def _kind(x: Any, op: Any) -> Any:
    """The argument for `numpy.result_type` of what is no Tensor: a dtype, or a number of Python, which is weak."""
    if x.__class__ is np.ndarray and x.dtype.kind in "biufc":
        return x.dtype
    x = plain(x)
    if is_array(x):
        if isinstance(x, np.ndarray) or x.dtype.kind not in "biufc":
            require_plain_array(x, op.name)
        return x.dtype
    kinds: tuple[Any, ...] = (bool, int, float, complex)
    for kind in kinds:
        if isinstance(x, kind):
            return kind(x)
    return np.asarray(x).dtype  # `given` refuses what is not plain in a list


# -- rules on float16 and bfloat16 -----------------------------------------------------------------------------------
# A rule is a formula of several operations, such as ``ct * y / x``. Between them a value of float16 overflows above
# 65504, and vanishes below 6e-8, where the result of the formula is an ordinary number. So a rule gets float32 values,
# and its result is rounded. In a recorded sweep the conversions are recorded too, so that derivatives of all orders are
# computed so. On a GPU rules run in the dtype that is given: each conversion would be a kernel of its own.

_SINGLE = np.dtype(np.float32)


def dtype_to_round_to(x: Any) -> Any:
    """The dtype of a value of float16 or bfloat16 on the CPU, or of one in a tuple; None for others."""
    if x.__class__ in TENSORS:
        x = x.array
    elif x.__class__ is tuple:
        return next((found for part in x if (found := dtype_to_round_to(part)) is not None), None)
    return narrow(x)


def wide(x: Any) -> Any:
    """A value, or the values of a tuple, in float32 where it is float16 or bfloat16 on the CPU."""
    if x.__class__ is tuple:
        return tuple(map(wide, x))
    return x if dtype_to_round_to(x) is None else x.astype(_SINGLE)


def rounded_to(dtype: Any, x: Any) -> Any:
    """A float32 value, or those of a list or tuple, in a dtype of 16 bits. Others stay as they are; for None all do."""
    if dtype is None:
        return x
    if isinstance(x, list | tuple):
        return getattr(x, "_make", type(x))([rounded_to(dtype, part) for part in x])
    if getattr(x, "dtype", None) != _SINGLE:
        return x
    return x.astype(dtype) if x.__class__ in TENSORS else rounded(x, dtype)


def composite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of Tensors and arrays, composed of several operations, that computes 16 bits in float32.

    The results are rounded, unless an argument has another floating dtype, to which NumPy promotes. On a GPU it does
    the same, since a square overflows there as well. It changes nothing where an argument is a dtype, or the parameter
    `dtype` is given, by whatever name of one.

    Examples
    --------
    >>> import numpy, autograd as ag
    >>> mean_square = composite(lambda x: (x * x).sum() / x.size)
    >>> float(mean_square(ag.tensor(numpy.array([300.0, 0.0, 0.0], "float16"))))
    30000.0
    """

    parameters = signature(function).parameters
    by_place = "dtype" in parameters and parameters["dtype"].kind is Parameter.POSITIONAL_OR_KEYWORD
    place = list(parameters).index("dtype") if by_place else sys.maxsize

    @wraps(function)
    def compute(*args: Any, **words: Any) -> Any:
        for x in args:
            if x.__class__ in TENSORS:  # usually of 32 or 64 bits, to which the others are promoted
                if x.array.dtype.itemsize != 2:
                    return function(*args, **words)
                break
        has_dtype = words.get("dtype") is not None or (len(args) > place and args[place] is not None)
        if has_dtype or not has_16_bits((*args, *words.values())):
            return function(*args, **words)
        y = function(*map(_wide, args), **{name: _wide(x) for name, x in words.items()})
        kinds = {x.dtype for x in _flat((*args, *words.values())) if is_inexact(getattr(x, "dtype", _BOOL))}
        return rounded_to(kinds.pop(), y) if len(kinds) == 1 else y

    return compute


_BOOL = np.dtype(bool)


def has_16_bits(arguments: Sequence[Any]) -> bool:
    """Whether a Tensor or an array among the arguments is float16 or bfloat16, and none of them is a dtype."""
    found = None
    for x in _flat(arguments):
        if isinstance(x, type | np.dtype):
            return False
        dtype = getattr(x, "dtype", None)
        if isinstance(dtype, np.dtype) and is_half(dtype):
            if found is not None and dtype != found:
                return False  # float16 and bfloat16 are refused
            found = dtype
    return found is not None


def _flat(arguments: Sequence[Any]) -> Iterator[Any]:
    """The arguments, and the members of those that are lists or tuples."""
    for x in arguments:
        yield from x if isinstance(x, list | tuple) else (x,)


def _wide(x: Any) -> Any:
    """A Tensor or an array of 16 bits in float32, also on a GPU, or those of a list or tuple."""
    if x.__class__ in (list, tuple):
        return type(x)(map(_wide, x))
    dtype = getattr(x, "dtype", None)
    return x.astype(_SINGLE) if isinstance(dtype, np.dtype) and is_half(dtype) else x
