"""Function arguments: conversion of Tensors, arrays, lists and numbers to operands; axes; NumPy as the reference.

`stack` is here because nested lists with Tensors become operands by stacking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from inspect import unwrap
from operator import index
from typing import Any

import numpy as np

from ..arrays.device import arange_beside, is_inexact, move, zeros_on
from ..arrays.plain import require_plain
from ..arrays.shape_only import Shaped
from ..engine.events import listeners
from ..engine.leaves import Constant
from ..engine.primitive import op
from ..engine.promotion import composite, given, has_16_bits
from ..engine.state import state
from ..engine.tensor import TENSORS, Given, Tensor, may_need_gradient, place_off_tape, relabel
from ..errors import (
    ArgumentError,
    AxisError,
    LayoutError,
    NotDifferentiable,
    RingtapeError,
    ShapeError,
    is_of_library,
    nested_in_itself,
    refused,
    short,
    typed,
)
from ..layouts.inference import axes_in, layout_of, varying
from ..layouts.layout import C, D, Grid, I, P, R, Shard, V
from ..layouts.messages import describe
from ..layouts.names import name_of
from ..layouts.rank_values import RANK_NUMBERS, RankBool, has_local_count, plain, rank_axes, rank_number
from .indexing import SEQUENCES, getitem

Axes = tuple[int, ...]

_HOST = (np.ndarray, np.generic)
_ON_HOST = np.zeros(())
_NUMBERS = (bool, int, float, complex, *RANK_NUMBERS)
_RANK_NUMBERS = frozenset((RankBool, *RANK_NUMBERS))


def raw(x: Any) -> Any:
    """Return the array of a Tensor, and anything else as it is."""
    return x.array if x.__class__ in TENSORS else x


def labelled(array: Any, of: Any) -> Any:
    """Return an array of integers or booleans computed from `of`, with the labels of `of` if that is a Tensor.

    Equal copies become constants, because such an array has no cotangent.
    """
    if of.__class__ not in TENSORS:
        return array
    layout = of.layout
    if layout is not None:
        layout = layout.grid.layout([C if label in (R, I) else label for label in layout.labels])
    return Tensor(array, layout)


def option(x: Any, name: str, of: Any) -> Any:
    """Return an argument that is not differentiated, like a shift or a count, as plain numbers or arrays.

    Raises
    ------
    NotDifferentiable
        It is a value that a tape records.
    LayoutError
        It may differ between ranks, and `of`, the operand, does not.
    """
    if isinstance(x, list | tuple):
        return type(x)([option(item, name, of) for item in x])
    if isinstance(x, np.ndarray) and x.__class__ is not np.ndarray:
        require_plain(x, name)
    if followed(x):
        raise NotDifferentiable(
            f"{name} with an argument {describe(x.array, x.array.shape, x.layout)}, which a tape records: it has no "
            f"derivative here with respect to this argument\n  fix: {name_of(x)}.item(), if its gradient is not wanted"
        )
    layout = getattr(of, "layout", None)
    if layout is None:
        return raw(x)
    labels = x.layout or {} if x.__class__ in TENSORS else {}
    differs = [axis for axis, label in labels.items() if label not in (R, I, C, D)]
    for axis in (*differs, *axes_in(layout.grid, rank_axes(x))):
        if layout[axis] is not V or labels.get(axis) is P:
            raise LayoutError(
                f"{name}({describe(of.array, of.array.shape, layout)}) with an argument that differs between the ranks "
                f"of axis {axis!r}\n  fix: a number that is the same on all ranks, or cast(x, {axis!r}, to=V) of the "
                "operand"
            )
    return raw(x)


def tensors_in(xs: Iterable[Any]) -> bool:
    """Return whether `xs`, or lists and tuples nested in it, contain a Tensor."""
    for x in xs:
        kind = x.__class__
        try:
            if kind in TENSORS or (kind in SEQUENCES and tensors_in(x)):
                return True
        except RecursionError as error:
            raise nested_in_itself(error) from error
    return False


def followed(x: Any) -> bool:
    """Return whether a tape records this value, so that its gradient would be lost if the value left the tape."""
    return x.__class__ in TENSORS and state.recording is not None and x.requires_grad


def operand(x: Any) -> Any:
    """Return an argument as a Tensor or an array. A nested list that holds Tensors becomes one Tensor.

    Under a mesh a number is a Tensor too, so that it stays a constant when it is reshaped. So is a list of numbers that
    differ between ranks.
    """
    if x.__class__ in TENSORS:
        return x
    if x.__class__ not in _PLAIN and (x.__class__ is not np.ndarray or x.dtype.kind not in "biufc"):
        require_plain(x)
    if hasattr(x, "dtype") and isinstance(getattr(x, "shape", None), tuple):
        return given(x, state.grid) if state.grid is not None and x.shape == () else x
    try:
        if isinstance(x, list | tuple) and tensors_in(x):
            return stack([operand(item) if isinstance(item, list | tuple) else item for item in x])
        is_number = isinstance(x, RANK_NUMBERS) or (state.grid is not None and (np.shape(x) == () or rank_axes(x)))
        return given(x, state.grid) if is_number else np.asarray(x)
    except (TypeError, ValueError, RecursionError) as error:  # lists of different lengths; a device's values stay there
        raise typed(error, f"a {type(x).__name__} was given; needed: an array or numbers. {error}") from error


def computed(x: Any) -> Any:
    """Return `x` as an operand that NumPy's own functions and operators are to compute with.

    It is a Tensor while a step is recorded, so that what they compute is recorded, too.
    """
    x = operand(x)
    return given(x, state.grid) if state.recorder is not None and x.__class__ is np.ndarray else x


def leaves(xs: Iterable[Any]) -> list[Any]:
    """The items of `xs` that are no lists and tuples, and those of lists and tuples nested in it."""
    found = []
    for x in xs:
        found += leaves(x) if isinstance(x, list | tuple) else [x]
    return found


def _labelled_tensors(xs: Iterable[Any]) -> list[Any]:
    return [x for x in leaves(xs) if x.__class__ in TENSORS and x.layout is not None]


def refuse_addends(caller: str, xs: Iterable[Any]) -> None:
    """Raise LayoutError if a Tensor among `xs`, of which a function uses the values, is Partial."""
    for x in _labelled_tensors(xs):
        if P in x.layout.labels:
            raise LayoutError(
                f"{caller} of {describe(x.array, x.array.shape, x.layout)}, which is Partial: each rank would use its "
                "own addend\n  fix: all_reduce(x, axis, to=R) first"
            )


def refuse_parts(caller: str, xs: Iterable[Any]) -> None:
    """Raise LayoutError if a Tensor among `xs`, of which a function combines the values, is sharded."""
    for x in _labelled_tensors(xs):
        for axis, label in x.layout.items():
            if type(label) is Shard:
                shown = name_of(x)
                raise LayoutError(
                    f"{caller} of {shown}: {describe(x.array, x.array.shape, x.layout)}, which is {label!r}: each rank "
                    f"would use its own part\n  fix: all_gather({shown}, {axis!r}, dim={label.dim})   (the whole)"
                    f"\n  or:  {shown}.numpy(), if this rank's part is meant"
                )


def shaped(x: Any) -> Any:
    """Return an argument that has a shape as it is, and any other as an operand."""
    return x if x.__class__ in TENSORS or isinstance(getattr(x, "shape", None), tuple) else operand(x)


def operands(*xs: Any) -> list[Any]:
    """Return arguments as operands. Python numbers take the dtype that NumPy's promotion of weak scalars gives."""
    arrays = [x for x in xs if hasattr(x, "dtype")]
    weak = [x for x in xs if isinstance(x, _NUMBERS) and not hasattr(x, "dtype")]
    if not arrays or not weak:
        return [operand(x) for x in xs]
    dtype = np.result_type(*(x.dtype for x in arrays), *map(plain, weak))
    return [_number(x, dtype, arrays[0]) if any(x is w for w in weak) else operand(x) for x in xs]


def strong(*xs: Any) -> list[Any]:
    """Return arguments as operands. Python numbers become arrays of their own dtype, on the device of the others."""
    like = next((x for x in xs if hasattr(x, "dtype")), _ON_HOST)
    return [_number(x, None, like) if isinstance(x, _NUMBERS) and not hasattr(x, "dtype") else operand(x) for x in xs]


def sequence(arrays: Any) -> Any:
    """The arrays to join, as they are or as a list: any iterable is accepted, as HIPS autograd does."""
    return arrays if arrays.__class__ in SEQUENCES or hasattr(arrays, "shape") else list(arrays)


_stack_op = op(
    "stack", "a*", lambda *args: np.stack(args[:-1], axis=args[-1]),
    (lambda ct, y, xs, i, axis: getitem(ct, (slice(None),) * axis + (i,)),),
    dims=lambda shapes, options: [tuple(i + (i >= options[0]) for i in range(len(shape))) for shape in shapes],
)  # fmt: skip


# -- torch's names -----------------------------------------------------------------------------------------------------
class Default(int):
    """An integer that is the default of an argument, which tells it from the same integer that is given."""


FIRST, LAST = Default(0), Default(-1)
_NUMPYS = {"dim": "axis", "keepdim": "keepdims", "dim1": "axis1", "dim2": "axis2"}


def renamed(caller: str, words: dict[str, Any], positional: Sequence[str] = ()) -> dict[str, Any]:
    """Keyword arguments with NumPy's names in the place of torch's: ``dim=`` is ``axis=``, ``keepdim=`` ``keepdims=``.

    Raises
    ------
    ArgumentError
        An argument is given by both names; those of NumPy's names that are given by position are `positional`.
    """
    found = {}
    for name, value in words.items():
        ours = _NUMPYS.get(name, name)
        if ours in found or (ours is not name and ours in positional):
            raise both(caller, ours, next(theirs for theirs in _NUMPYS if _NUMPYS[theirs] == ours))
        found[ours] = value
    return found


def both(caller: str, axis: str = "axis", dim: str = "dim") -> ArgumentError:
    """The error for one argument that is given by two names."""
    return ArgumentError(f"{caller}: {axis}= and {dim}= were given, which are one argument; needed: one")


def one_of(caller: str, axis: Any, default: Any, dim: Any) -> Any:
    """The dimension that is given as ``dim=``, or ArgumentError if it is given as ``axis=``, too."""
    if axis is not default:
        raise both(caller)
    return dim


def stack(arrays: Sequence[Any], axis: int = FIRST, out: Any = None, *, dtype: Any = None,
          casting: Any = "same_kind", dim: Any = None) -> Any:  # fmt: skip
    """Return the arrays joined along a new axis. Adjoint: operand i gets element i of the cotangent on that axis."""
    arrays = sequence(arrays)
    if dim is not None:
        axis = one_of("stack", axis, FIRST, dim)
    if not tensors_in((arrays, out)):
        return of_rank_numbers(np.stack, (arrays, axis, out), {"dtype": dtype, "casting": casting})
    if out is not None:
        raise refusal("stack", {"out": out})
    if dtype is not None or casting.__class__ is not str or casting != "same_kind":
        ask(np.stack, (arrays, axis), {"dtype": dtype, "casting": casting})
    xs = strong(*arrays)
    shapes = {raw(x).shape for x in xs}
    if len(shapes) > 1:
        raise ShapeError(f"stack of shapes {[raw(x).shape for x in xs]}; needed: one shape. Fix: broadcast_arrays")
    y = _stack_op(*xs, options=(normal_axis(axis, len(shapes.pop()) + 1),))
    return y if dtype is None else y.astype(dtype)


def _number(x: Any, dtype: Any, like: Any) -> Any:
    value = plain(x)
    made = made_like(partial(np.full, (), value, np.asarray(value).dtype if dtype is None else dtype), like)
    if made.__class__ not in TENSORS:
        return made
    grid = _grid_of(like)
    return Given(made.array, None if grid is None else layout_of(x, grid))


def _eye_beside(like: Any, n: int, dtype: Any = float) -> Any:
    at = arange_beside(like, n)
    return (at[:, None] == at).astype(dtype)


def _full_beside(like: Any, shape: Any, value: Any, dtype: Any = None) -> Any:
    if shape == ():  # CuPy takes it for no shape, and makes an array of that of `like`
        return np.full_like(like, value, dtype, shape=(1,)).reshape(())
    return np.full_like(like, value, dtype, shape=shape)


# CuPy's full and eye do not take the arguments that NumPy passes on for ``like=``.
_MADE_BESIDE: dict[Any, Callable[..., Any]] = {
    np.full: _full_beside,
    np.eye: _eye_beside,
    np.zeros: lambda like, *args, **words: np.zeros(*args, **words, like=like),
    np.tri: lambda like, *args, **words: np.tri(*args, **words, like=like),
}


def made_like(make: partial[Any], like: Any) -> Any:
    """Return a new array on the device of `like`; if `like` is a Tensor, a Tensor that is constant on all ranks.

    `make` is a partial of `numpy.full`, `eye`, `zeros` or `tri`.
    """
    array = raw(like)
    is_on_host = isinstance(array, (*_HOST, Shaped))
    made = make() if is_on_host else _MADE_BESIDE[make.func](array, *make.args, **make.keywords)
    return _constant(Shaped(made.shape, made.dtype, array.why) if type(array) is Shaped else made, like)


def _constant(array: Any, like: Any) -> Any:
    if like.__class__ not in TENSORS:
        return array
    grid = _grid_of(like)
    return Tensor(array, None if grid is None else grid.uniform(C))


def _grid_of(like: Any) -> Grid | None:
    return state.grid if like.layout is None else like.layout.grid


def constant_like(array: Any, like: Any) -> Any:
    """Return a host array on the device of `like`; if `like` is a Tensor, as a Tensor that is constant on all ranks."""
    return _constant(move(np.asarray(array), raw(like)) if isinstance(array, _HOST) else array, like)


def zero_like(x: Any) -> Any:
    """Return a zero of the dtype of `x`, for use beside it. It is Partial where `x` is, with which 0 does not mix."""
    if x.__class__ not in TENSORS or x.layout is None:
        return 0
    grid = x.layout.grid
    return Tensor(zeros_on(x.array, (), x.dtype), grid.layout([P if label is P else C for label in x.layout.labels]))


# -- axes ------------------------------------------------------------------------------------------------------------
def normal_axis(axis: Any, ndim: int, name: str = "axis") -> int:
    """Return an axis of an array of `ndim` dimensions as a number from 0 on.

    Raises
    ------
    AxisError
        The array has no such axis (an AxisError is a ValueError and an IndexError).
    ArgumentError
        `axis` is no integer.
    """
    if axis.__class__ is not int:
        try:
            axis = index(axis)
        except TypeError as error:
            raise ArgumentError(f"{name}={axis!r} was given; needed: an integer") from error
    if not -ndim <= axis < ndim:
        raise AxisError(f"{name} {axis} was given for an array of {ndim} dimensions")
    return axis % ndim


def axes_in_order(axes: Any, ndim: int, name: str = "axis") -> Axes:
    """Return axes, given as one integer or several, as non-negative integers in the given order. Each occurs once.

    Raises
    ------
    AxisError, ArgumentError
        As for `normal_axis`, and an axis that is given twice.
    """
    if axes.__class__ is int or not isinstance(axes, _SEVERAL) or getattr(axes, "ndim", 1) == 0:
        return (normal_axis(axes, ndim, name),)
    found = tuple([normal_axis(axis, ndim, name) for axis in axes])
    if len(set(found)) < len(found):
        raise AxisError(f"{name}={axes!r} has a dimension twice; needed: each dimension once")
    return found


_SEVERAL = (tuple, list, range, np.ndarray)


def normal_axes(axes: Any, ndim: int) -> Axes:
    """Return the axes of a reduction in ascending order: None means all, else an integer or a tuple of integers.

    Raises
    ------
    AxisError, ArgumentError
        As for `axes_in_order`; also a list of axes, which NumPy does not take here.
    """
    if axes.__class__ is int and -ndim <= axes < ndim:
        return (axes % ndim,)
    if axes is None:
        return tuple(range(ndim))
    if axes.__class__ is tuple:
        found = {axis % ndim for axis in axes if axis.__class__ is int and -ndim <= axis < ndim}
        if len(found) == len(axes):
            return tuple(sorted(found))
    if isinstance(axes, list | bool) or (isinstance(axes, np.ndarray) and axes.ndim):
        raise ArgumentError(f"axis={axes!r} was given; needed: None, an integer or a tuple of integers")
    return tuple(sorted(axes_in_order(axes, ndim)))


def axes_of_number(axis: Any) -> Axes:
    """Return the axes of a reduction of a number, which are none: NumPy takes the axes 0 and -1 of a number there."""
    return normal_axes(axis, 0) if axis is None or axis.__class__ is tuple else (normal_axis(axis, 1),)[:0]


# -- NumPy as the reference ------------------------------------------------------------------------------------------
def instead_of(
    theirs: Callable[..., Any], *, checked: float = 0, in_float32: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator for the differentiable form of the NumPy function `theirs`.

    NumPy's function runs where no derivative and no layout is wanted: without a Tensor among the arguments, and with
    Tensors that no tape follows, outside a mesh. Otherwise the decorated function runs. NumPy decides which arguments
    are legal: the first call with these shapes, dtypes and options also runs NumPy's function, and the call is refused
    if NumPy refuses it. The decorated function itself checks its first `checked` arguments: a call without others, and
    without keyword arguments, is not asked about (`math.inf`: no call is). Arguments that only NumPy's function has,
    such as ``out=`` and ``where=``, raise NotDifferentiable. With `in_float32` it computes 16 bits as `composite` does.
    """
    asked: dict[Any, Any] = {}  # signature -> whether NumPy's results are all discrete, and have no layout

    def made(ours: Callable[..., Any]) -> Any:
        ours = composite(ours) if in_float32 else ours
        code = unwrap(ours).__code__
        names = code.co_varnames[: code.co_argcount]

        @wraps(ours)
        def call(*args: Any, **words: Any) -> Any:
            try:
                x: Any = None
                recorded = False
                if words and not _NUMPYS.keys().isdisjoint(words):
                    words = renamed(ours.__name__, words, names[: len(args)])
                for x in args:
                    if x.__class__ in TENSORS:
                        recorded = (x.tape is not None or x._requires_grad) and state.recording is not None
                        break
                else:
                    if not tensors_in((*args, *words.values())):
                        return without_tensors(call, args, words)
                if words and "out" in words:
                    if words["out"] is not None:
                        raise refusal(theirs.__name__, words)
                    del words["out"]
                heard = listeners and state.recorder is None
                if not recorded and state.grid is None and not heard:
                    every = (*args, *words.values())
                    if is_free(every) and not (in_float32 and has_16_bits(every)):
                        return first(on_values, ours, args, words)
                discrete: Any = False
                differs = False
                asks = len(args) > checked or (words and checked < math.inf)
                if asks:
                    key = (_signature(args), *words, _signature(words.values())) if words else _signature(args)
                    discrete = asked.get(key)
                if not asks or discrete is None:
                    if len(args) > 1 or words:
                        differs = not _RANK_NUMBERS.isdisjoint(map(type, (*args, *words.values())))
                        if differs:
                            args, words = _varying_by_rank(theirs.__name__, args, words)
                    if asks:
                        discrete = is_discrete(first(ask, ours, args, words)) and not _labelled_tensors(args)
                        if not differs:
                            if len(asked) > 4096:  # bounds the memory of programs whose shapes change all the time
                                asked.clear()
                            asked[key] = discrete
                if discrete and state.grid is None and not heard:
                    return first(on_values, ours, args, words)  # such as sum(x, dtype=int): there is no derivative
                try:
                    return ours(*args, **words)
                except RingtapeError:
                    raise
                except _UNEXPECTED as error:
                    raise refusal(theirs.__name__, words, str(error)) from error
            except RecursionError as error:  # as of a list that contains itself
                if is_of_library(error):
                    raise refused(error, theirs.__name__, args, words) from error
                raise

        return call

    def without_tensors(call: Callable[..., Any], args: Any, words: Any) -> Any:
        """Call NumPy's function; HIPS autograd joins the arrays of any iterable."""
        try:
            return of_rank_numbers(theirs, args, words)
        except TypeError:
            if args and isinstance(args[0], Iterator):
                return call(list(args[0]), *args[1:], **words)
            raise

    def first(run: Callable[..., Any], ours: Callable[..., Any], args: Any, words: Any) -> Any:
        """Call `run`. Where NumPy refuses, raise our function's own error of that builtin class, which says more."""
        try:
            return run(theirs, args, words)
        except RingtapeError as error:
            better: RingtapeError = error
            try:
                ours(*args, **words)
            except RingtapeError as own:
                kinds = [kind for kind in (ValueError, TypeError, IndexError) if isinstance(error, kind)]
                if isinstance(own, (LayoutError, *kinds)):
                    better = own
            except _UNEXPECTED:
                pass
            raise better from error.__cause__

    return made


def named(function: Any, theirs: Callable[..., Any], summary: str) -> Any:
    """Give a function the name of NumPy's, by which `help` shows and `pickle` finds it, and its docstring."""
    function.__name__ = function.__qualname__ = theirs.__name__
    function.__doc__ = summary
    return function


def _varying_by_rank(name: str, args: Any, words: Any) -> tuple[Any, Any]:
    """Arguments in which numbers that differ between ranks are plain, and Tensors are Varying on the axes of these."""
    axes = rank_axes((*args, *words.values()))

    def changed(x: Any) -> Any:
        if isinstance(x, list | tuple) and tensors_in(x):
            return list(map(changed, x))
        if x.__class__ not in TENSORS or _grid_of(x) is None:
            return plain(x)
        layout = x.labelled(_grid_of(x))
        return relabel(x, varying(layout, axes, name))

    return tuple(map(changed, args)), {key: changed(x) for key, x in words.items()}


def of_rank_numbers(theirs: Callable[..., Any], args: Any, words: Any) -> Any:
    """Call a NumPy function without a Tensor. What is computed from numbers that differ between ranks does so, too.

    A number remembers it, also where NumPy returns an array without dimensions. Under a mesh, an array of such numbers
    is a Tensor that is V on their axes (`made_of`). One that is computed from an array is a plain array, which is V on
    all axes.
    """
    if "out" in words or "where" in words:  # of a Tensor in these NumPy would call our function, which calls this one
        taken = [key for key, value in words.items() if tensors_in((value,))]
        if taken:
            raise refusal(theirs.__name__, taken)
    try:
        y = theirs(*args, **words) if state.recorder is None else state.recorder.call(theirs, tuple(args), words)
    except _UNEXPECTED as error:
        if isinstance(error, RingtapeError) or type(error).__module__.partition(".")[0] not in ("builtins", "numpy"):
            raise  # of the program: of a function among the arguments
        raise typed(error, f"{theirs.__name__}: {error}") from error
    given = (*args, *words.values())
    axes = rank_axes(given)
    if not axes:
        return y
    if isinstance(y, np.ndarray) and y.shape:
        has_array = any(isinstance(x, np.ndarray) for x in leaves(given))
        return made_of(y, *given) if state.grid is not None and axes_in(state.grid, axes) and not has_array else y
    return rank_number(y[()] if isinstance(y, np.ndarray) else y, axes, has_local_count(given))


def made_of(array: Any, *by: Any) -> Any:
    """An array made of the arguments `by`. Under a mesh it is a constant, and V on the axes of rank numbers in `by`."""
    if state.grid is None:
        return array
    axes = axes_in(state.grid, rank_axes(by))
    return Constant(array, state.grid.layout([V if name in axes else C for name in state.grid.names]))


_UNEXPECTED = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError,
               RecursionError)  # fmt: skip


def is_free(xs: Iterable[Any]) -> bool:
    """Return whether all Tensors among `xs` are host arrays without layout and without a gradient."""
    has_no_gradient = state.recording is None and state.no_grad
    for x in xs:
        kind = x.__class__
        if kind in TENSORS:
            if x.layout is not None or type(x.array) is Shaped or _is_on_device(x.array):
                return False
            if not has_no_gradient and may_need_gradient(x):
                return False
        elif kind in SEQUENCES and not is_free(x):
            return False
    return True


def values(x: Any) -> Any:
    """Return `x` with every Tensor replaced by its array, in nested lists and tuples too. Other arrays are plain."""
    if x.__class__ in TENSORS:
        return x.array
    if x.__class__ in SEQUENCES:
        return x.__class__([values(item) for item in x])
    if x.__class__ not in _PLAIN and (x.__class__ is not np.ndarray or x.dtype.kind not in "biufc"):
        require_plain(x)
    return x


def on_values(theirs: Callable[..., Any], args: Any, words: Any) -> Any:
    """Run NumPy's function on the values of the arguments, and return its arrays as Tensors without derivative.

    Raises
    ------
    RingtapeError
        NumPy refuses the arguments. The error is also of the builtin class that NumPy raises.
    """
    found = run_plain(theirs, args, words)
    given = {id(x.array): x for x in args if x.__class__ in TENSORS}
    return _as_tensors(found, given)


def _as_tensors(found: Any, given: dict[int, Tensor]) -> Any:
    if isinstance(found, _HOST):
        if id(found) in given:
            return given[id(found)]
        return Tensor(found, None, None, place_off_tape(found, tuple(given.values())))
    if isinstance(found, list | tuple):
        parts = [_as_tensors(x, given) for x in found]
        return getattr(found, "_make", type(found))(parts)
    return found


def run_plain(theirs: Callable[..., Any], args: Any, words: Any, is_asked: bool = False) -> Any:
    """Return what NumPy's function returns for the values of the arguments; see `on_values` for what it raises.

    If NumPy is only asked about the arguments, the call is none of a step that is captured.
    """
    try:
        if "overwrite_input" in words:  # the values are still those of a Tensor
            words = {**words, "overwrite_input": bool(values(words["overwrite_input"])) and False}
        given, named = values(args), {k: values(v) for k, v in words.items()}
        if is_asked or state.recorder is None:
            return theirs(*given, **named)
        return state.recorder.call(theirs, tuple(given), named)
    except RingtapeError:
        raise
    except _UNEXPECTED as error:
        raise typed(error, f"{theirs.__name__}: {error}") from error


def ask(theirs: Callable[..., Any], args: Any, words: Any) -> Any:
    """Return NumPy's result, or raise a RingtapeError if NumPy refuses these arguments.

    The result is None, without a call, if an array has no values, is on a device, or is a part of a sharded one.
    """
    for x in leaves((*args, *words.values())):
        if x.__class__ in TENSORS:
            if type(x.array) is Shaped or (x.layout is not None and x.layout.special) or _is_on_device(x.array):
                return None
    with np.errstate(all="ignore"):
        return run_plain(theirs, args, words, is_asked=True)


def is_discrete(found: Any) -> bool:
    """Whether a result holds arrays, and none of them has a derivative."""
    if isinstance(found, _HOST):
        return not is_inexact(found.dtype)
    return isinstance(found, list | tuple) and len(found) > 0 and all(map(is_discrete, found))


def _is_on_device(array: Any) -> bool:
    return hasattr(array, "dtype") and not isinstance(array, _HOST)


_PLAIN = frozenset((int, float, bool, str, type(None)))


def _signature(xs: Iterable[Any]) -> tuple[Any, ...]:
    """A hashable key for arguments: shape, dtype and layout of an array, and anything else as it is, with its type."""
    found: list[Any] = []
    add = found.append
    for x in xs:
        kind = x.__class__
        add(kind)
        if kind in TENSORS:
            a = x.array
            if hasattr(a, "dtype"):
                add(a.shape)
                add(a.dtype)
                add(x.layout)
        elif kind in _PLAIN:
            add(x)
        elif kind in SEQUENCES:
            add(_signature(x))
        elif kind is np.ndarray or isinstance(x, np.ndarray):
            if kind is not np.ndarray:
                require_plain(x)
            found += x.shape, x.dtype, x.tobytes() if x.size <= 16 else None
        else:
            try:
                hash(x)
            except TypeError:  # also of an object that holds an array
                x = short(x)
            add(x)
    return tuple(found)


def refusal(name: str, words: Any, reason: str = "") -> NotDifferentiable:
    """Return the error for a function called on a Tensor with arguments that it does not support."""
    given = ", ".join(f"{k}=" for k in words)
    why = " (it would write to an array that a tape may have saved)" if "out" in words else reason and f" ({reason})"
    return NotDifferentiable(
        f"{name}({given}) of a Tensor: an argument has no differentiable form{why}. Fix: leave it out, or use "
        f"stop_gradient(x).numpy() where no gradient is wanted"
    )
