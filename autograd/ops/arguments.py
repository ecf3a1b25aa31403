"""Conversion of function arguments (Tensors, arrays, nested lists, numbers) to operands, and constants for rules.

`stack` is here because nested lists with Tensors become operands by stacking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from ..arrays.device import move, zeros_on
from ..arrays.shape_only import Shaped
from ..engine.primitive import op
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import LayoutError, NotDifferentiable, ShapeError, call_site
from ..layouts.layout import C, D, I, P, R, V
from ..layouts.messages import describe
from ..layouts.rank_values import rank_axes
from .indexing import getitem

__all__ = ["constant_like", "followed", "instead_of", "made_like", "operand", "operands", "option", "raw",
           "stack", "strong", "tensors_in", "zero_like"]  # fmt: skip

_HOST = (np.ndarray, np.generic)
_ON_HOST = np.zeros(())
_NUMBERS = (bool, int, float, complex)


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
    LayoutError
        It may differ between ranks, and `of`, the operand, does not.
    """
    if isinstance(x, list | tuple):
        return type(x)([option(item, name, of) for item in x])
    own: Any = x.layout or {} if x.__class__ in TENSORS else dict.fromkeys(rank_axes(x), V)
    layout: Any = getattr(of, "layout", None)
    for axis in [a for a, label in own.items() if label not in (R, I, C, D)] if layout is not None else ():
        if layout[axis] is not V or own[axis] is P:
            raise LayoutError(
                f"{name}({describe(of.array, of.array.shape, layout)}) with an argument that differs between the ranks "
                f"of axis {axis!r}\n  fix: a number that is the same on all ranks, or cast(x, {axis!r}, to=V) of the "
                "operand" + call_site()
            )
    return raw(x)


def tensors_in(xs: Iterable[Any]) -> bool:
    """Return whether `xs`, or lists and tuples nested in it, contain a Tensor."""
    for x in xs:
        kind = x.__class__
        if kind in TENSORS or ((kind is list or kind is tuple) and tensors_in(x)):
            return True
    return False


def followed(x: Any) -> bool:
    """Return whether a tape records this value, so that its gradient would be lost if the value left the tape."""
    return x.__class__ in TENSORS and state.recording is not None and x.requires_grad


def operand(x: Any) -> Any:
    """Return an argument as a Tensor or an array. A nested list that holds Tensors becomes one Tensor."""
    if x.__class__ in TENSORS or hasattr(x, "dtype"):
        return x
    if isinstance(x, list | tuple) and tensors_in(x):
        return stack([operand(item) if isinstance(item, list | tuple) else item for item in x])
    return np.asarray(x)


def operands(*xs: Any) -> list[Any]:
    """Return arguments as operands. Python numbers take the dtype that NumPy's promotion of weak scalars gives."""
    arrays = [x for x in xs if hasattr(x, "dtype")]
    weak = [x for x in xs if isinstance(x, _NUMBERS) and not hasattr(x, "dtype")]
    if not arrays or not weak:
        return [operand(x) for x in xs]
    dtype = np.result_type(*(x.dtype for x in arrays), *weak)
    return [_number(x, dtype, arrays[0]) if any(x is w for w in weak) else operand(x) for x in xs]


def strong(*xs: Any) -> list[Any]:
    """Return arguments as operands. Python numbers become arrays of their own dtype, on the device of the others."""
    like = next((x for x in xs if hasattr(x, "dtype")), _ON_HOST)
    return [_number(x, None, like) if isinstance(x, _NUMBERS) and not hasattr(x, "dtype") else operand(x) for x in xs]


def _stack_dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    return [tuple(i + (i >= options[0]) for i in range(len(shape))) for shape in shapes]


def _index_of_operand(ct: Any, y: Any, xs: Any, i: int, axis: int) -> Any:
    return getitem(ct, (slice(None),) * axis + (i,))


_stack_op = op("stack", "a*", lambda *args: np.stack(args[:-1], axis=args[-1]), (_index_of_operand,), dims=_stack_dims)


def stack(arrays: Sequence[Any], axis: int = 0, out: Any = None, *, dtype: Any = None) -> Any:
    """Return the arrays joined along a new axis. Adjoint: operand i gets element i of the cotangent on that axis."""
    if out is not None or not tensors_in(arrays):
        return np.stack(arrays, axis, out, dtype=dtype)
    xs = strong(*arrays)
    shapes = {raw(x).shape for x in xs}
    if len(shapes) > 1:
        raise ShapeError(f"stack of shapes {[raw(x).shape for x in xs]}; needed: one shape. Fix: broadcast_arrays")
    ndim = len(shapes.pop()) + 1
    if not -ndim <= axis < ndim:
        raise ShapeError(f"stack: axis {axis} was given for a result of {ndim} dimensions")
    y = _stack_op(*xs, options=(axis % ndim,))
    return y if dtype is None else y.astype(dtype)


def _number(x: Any, dtype: Any, like: Any) -> Any:
    return made_like(partial(np.full, (), x, np.asarray(x).dtype if dtype is None else dtype), like)


def made_like(make: Callable[..., Any], like: Any) -> Any:
    """Return a new array on the device of `like`; if `like` is a Tensor, a Tensor that is constant on all ranks.

    `make` is a function that creates the array, such as a partial of `numpy.eye`. For an array on a device it is called
    with NumPy's argument ``like=``, which creates the array there.
    """
    array = raw(like)
    made = make() if isinstance(array, (*_HOST, Shaped)) else make(like=array)
    return _constant(Shaped(made.shape, made.dtype, array.why) if type(array) is Shaped else made, like)


def _constant(array: Any, like: Any) -> Any:
    if like.__class__ not in TENSORS:
        return array
    return Tensor(array, None if like.layout is None else like.layout.grid.uniform(C))


def constant_like(array: Any, like: Any) -> Any:
    """Return a host array on the device of `like`; if `like` is a Tensor, as a Tensor that is constant on all ranks."""
    return _constant(move(np.asarray(array), raw(like)) if isinstance(array, _HOST) else array, like)


def zero_like(x: Any) -> Any:
    """Return a zero of the dtype of `x`, for use beside it. It is Partial where `x` is, with which 0 does not mix."""
    if x.__class__ not in TENSORS or x.layout is None:
        return 0
    grid = x.layout.grid
    return Tensor(zeros_on(x.array, (), x.dtype), grid.layout([P if label is P else C for label in x.layout.labels]))


def instead_of(plain: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator for the differentiable form of the NumPy function `plain`.

    Without a Tensor among the arguments NumPy's function runs, with all arguments that it takes. With one the decorated
    function runs; arguments that it lacks, such as ``out=`` and ``where=``, raise NotDifferentiable.
    """
    def made(ours: Callable[..., Any]) -> Any:
        @wraps(ours)
        def call(*args: Any, **words: Any) -> Any:
            for x in args:
                if x.__class__ in TENSORS:
                    break
            else:
                if not tensors_in(args) and not (words and tensors_in(words.values())):
                    return plain(*args, **words)
            if words and words.get("out", ()) is None:
                del words["out"]
            try:
                return ours(*args, **words)
            except TypeError as error:
                if "keyword argument" in str(error):
                    raise refusal(plain.__name__, words) from error
                raise

        return call

    return made


def refusal(name: str, words: Any) -> NotDifferentiable:
    """Return the error for a function called on a Tensor with keyword arguments that it does not support."""
    given = ", ".join(f"{k}=" for k in words)
    why = " (it would write to an array that a tape may have saved)" if "out" in words else ""
    return NotDifferentiable(
        f"{name}({given}) of a Tensor: an argument has no differentiable form{why}. Fix: leave it out, or use "
        f"x.numpy() where no gradient is wanted" + call_site()
    )
