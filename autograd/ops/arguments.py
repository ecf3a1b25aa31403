"""Arguments of functions in NumPy's style: Tensors, arrays, lists of either; and the constants that rules need."""

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
from ..errors import NotDifferentiable, ShapeError, call_site
from ..layouts.layout import C
from .indexing import getitem

__all__ = ["constant_like", "followed", "instead_of", "made_like", "operand", "operands", "raw",
           "stack", "strong", "tensors_in", "zero_like"]  # fmt: skip

def raw(x: Any) -> Any:
    """The array of a Tensor; anything else as it is."""
    return x.array if x.__class__ in TENSORS else x


def labelled(array: Any, of: Any) -> Any:
    """An array computed from the values of `of`, with its layout if that is a Tensor."""
    return Tensor(array, of.layout) if of.__class__ in TENSORS else array


def tensors_in(xs: Iterable[Any]) -> bool:
    """Whether a Tensor is among arguments, or in lists and tuples among them."""
    for x in xs:
        kind = x.__class__
        if kind in TENSORS or ((kind is list or kind is tuple) and tensors_in(x)):
            return True
    return False


def followed(x: Any) -> bool:
    """Whether a tape is recording and the value requires a gradient, so that dropping it would lose one."""
    return x.__class__ in TENSORS and state.recording is not None and x.requires_grad


def operand(x: Any) -> Any:
    """An operand as a Tensor or an array: lists that hold Tensors become one Tensor."""
    if x.__class__ in TENSORS or hasattr(x, "dtype"):
        return x
    if isinstance(x, list | tuple) and tensors_in(x):
        return stack([operand(item) if isinstance(item, list | tuple) else item for item in x])
    return np.asarray(x)


def operands(*xs: Any) -> list[Any]:
    """Several operands. Python numbers take the others' dtype, as in NumPy's promotion."""
    arrays = [x for x in xs if hasattr(x, "dtype")]
    weak = [x for x in xs if isinstance(x, _NUMBERS) and not hasattr(x, "dtype")]
    if not arrays or not weak:
        return [operand(x) for x in xs]
    dtype = np.result_type(*(x.dtype for x in arrays), *weak)
    return [_number(x, dtype, arrays[0]) if any(x is w for w in weak) else operand(x) for x in xs]


def strong(*xs: Any) -> list[Any]:
    """Several operands. Python numbers become arrays of their own dtype, on the device of the others."""
    like = next((x for x in xs if hasattr(x, "dtype")), _ON_HOST)
    return [_number(x, None, like) if isinstance(x, _NUMBERS) and not hasattr(x, "dtype") else operand(x) for x in xs]


def _stack_dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    return [tuple(i + (i >= options[0]) for i in range(len(shape))) for shape in shapes]


def _layer(ct: Any, y: Any, xs: Any, i: int, axis: int) -> Any:
    return getitem(ct, (slice(None),) * axis + (i,))


_stack_op = op("stack", "a*", lambda *args: np.stack(args[:-1], axis=args[-1]), (_layer,), dims=_stack_dims)


def stack(arrays: Sequence[Any], axis: int = 0, out: Any = None, *, dtype: Any = None) -> Any:
    """Join along a new dimension. Adjoint: each operand's own layer of the cotangent."""
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


_ON_HOST = np.zeros(())


_NUMBERS = (bool, int, float, complex)


def made_like(make: Callable[..., Any], like: Any) -> Any:
    """An array that a rule makes: on the device of `like`, and under its mesh the same on every rank.

    `make` is called with ``like=``, with which NumPy's functions (zeros, eye, full) make arrays of a device.
    """
    array = raw(like)
    if isinstance(array, _HOST):
        made = make()
    else:
        made = _shape_of(make(), array) if type(array) is Shaped else make(like=array)
    if like.__class__ not in TENSORS:
        return made
    return Tensor(made, None if like.layout is None else like.layout.grid.uniform(C))


def _shape_of(made: Any, like: Shaped) -> Shaped:
    return Shaped(made.shape, made.dtype, like.why)


def constant_like(array: Any, like: Any) -> Any:
    """The same for a NumPy array, which is copied to the device."""
    array = move(np.asarray(array), raw(like)) if isinstance(array, _HOST) else array
    if like.__class__ not in TENSORS:
        return array
    return Tensor(array, None if like.layout is None else like.layout.grid.uniform(C))


_HOST = (np.ndarray, np.generic)


def zero_like(x: Any) -> Any:
    """A zero of the dtype and layout of x (a bare 0 does not mix with Partial)."""
    if x.__class__ not in TENSORS or x.layout is None:
        return 0
    return Tensor(zeros_on(x.array, (), x.dtype), x.layout)


def instead_of(plain: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Declare the differentiable form of one of NumPy's functions.

    Without a Tensor among the arguments NumPy's own function runs. The two have the same leading parameters; those that
    ours lacks (``out=``, ``where=``) are refused.
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
    """The error for a function called on a Tensor with an argument that has no differentiable form."""
    given = ", ".join(f"{k}=" for k in words)
    why = " (it would write to an array that a tape may have saved)" if "out" in words else ""
    return NotDifferentiable(
        f"{name}({given}) of a Tensor: an argument given has no differentiable form{why}. Fix: leave it out, or use "
        f"x.numpy() where no gradient is wanted" + call_site()
    )
