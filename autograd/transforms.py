"""Functions of functions: grad, value_and_grad, vjp, jvp.

Where no mesh is in play and plain arrays went in, plain arrays come out; inside a mesh, Tensors. A transform inside
another one is recorded by the outer one, so they nest: ``grad(grad(f))``, ``jvp(grad(f), ...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from .arrays import Shaped, is_inexact
from .deferred import Deferred
from .describe import describe
from .errors import DtypeError, LayoutError, ShapeError, TapeError
from .explain import require_one_number
from .layout import D, V, may_relabel
from .leaves import tensor
from .state import state
from .tape import Tape, relabel
from .tensor import TENSORS, Tensor

__all__ = ["grad", "jvp", "value_and_grad", "vjp"]

Function = Callable[..., Any]


def _lift(x: Any, what: str) -> Tensor:
    """An argument as a Tensor that can be differentiated."""
    x = x if x.__class__ in TENSORS else tensor(x)
    if not is_inexact(x.array.dtype):
        raise DtypeError(
            f"{what} of dtype {x.array.dtype} was given, which has no derivative. Needed: a floating or complex dtype. "
            "Fix: pass 2.0 for 2"
        )
    if state.grid is not None:
        x.layout = x.labelled(state.grid)
        if x.layout.drawn:  # what is differentiated is a leaf, and no constant
            x = Tensor(x.array, x.layout.grid.layout([V if label is D else label for label in x.layout.labels]))
    return x


def _zeros(array: Any) -> Any:
    """Zeros of the same kind; not ``array * 0``, which keeps a nan."""
    zeros = array * 0 if type(array) is Shaped else np.zeros_like(array)
    return zeros[()] if isinstance(array, np.generic) else zeros


class _Traced:
    """A function run on a tape: its arguments there, its output(s), and whether arrays went in."""

    def __init__(self, function: Function, args: Sequence[Any], argnums: Sequence[int], kwargs: dict[str, Any]):
        self.raw = state.grid is None and all(args[i].__class__ not in TENSORS for i in argnums)
        self.nested = state.recording is not None
        with Tape() as self.tape:
            full = list(args)
            self.inputs = []
            for i in argnums:
                full[i] = self.tape.watch(_lift(args[i], f"argument {i}"))
                self.inputs.append(full[i])
            self.output = function(*full, **kwargs)
            for y in self.output if isinstance(self.output, tuple | list) else (self.output,):
                if y.__class__ is Deferred:  # returned is used
                    y.wait()

    def out(self, x: Any) -> Any:
        """A result as the caller's world has it: arrays where arrays went in and nothing outside follows it."""
        if x.__class__ in TENSORS and self.raw and (x.tape is None or state.recording is None):
            return x.array
        return x

    def pull(self, outputs: Sequence[Any], cts: Any) -> list[Any]:
        """The cotangents of the inputs; zeros where nothing depends on one."""
        found = self.tape.backward(outputs, cts, wanted=self.inputs, retain=True, record=self.nested)
        assert found is not None
        results = []
        for x, g in zip(self.inputs, found, strict=True):
            layout = None if x.layout is None else x.layout.dual
            if g is None:
                g = _zeros(x.array)
            g = g if g.__class__ in TENSORS else Tensor(g, layout)
            results.append(self.out(relabel(g, layout) if layout is not None else g))
        return results


def _scalar(y: Any) -> Any:
    if y.__class__ not in TENSORS:
        if hasattr(y, "shape") or isinstance(y, int | float | complex):
            return tensor(y)
        raise TapeError(f"the function returned {type(y).__name__}; needed: one number")
    if y.array.size != 1:
        raise ShapeError(f"the function returned shape {y.array.shape}; needed: one number. Fix: sum it, or use vjp")
    require_one_number(y.layout, y.array.shape)
    return y


def value_and_grad(function: Function, argnum: int | Sequence[int] = 0) -> Function:
    """The function that returns ``(function(x), its gradient at x)``; see `grad`."""
    several = not isinstance(argnum, int)
    argnums = tuple(argnum) if not isinstance(argnum, int) else (argnum,)

    @wraps(function)
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        traced = _Traced(function, args, argnums, kwargs)
        y = _scalar(traced.output)
        if y.tape is None and not traced.tape.recording.communicates:
            gradients = [traced.out(Tensor(_zeros(x.array), None if x.layout is None else x.layout.dual))
                         for x in traced.inputs]
        else:
            gradients = traced.pull([y], None)
        return traced.out(y), tuple(gradients) if several else gradients[0]

    return value_and_gradient


def grad(function: Function, argnum: int | Sequence[int] = 0) -> Function:
    """The function that returns the gradient of a function of one number's value.

    Parameters
    ----------
    function : callable
        Returns one number; under a mesh, one that is I, P or Rooted on every axis.
    argnum : int or sequence of int
        Which argument(s) to differentiate.

    Returns
    -------
    callable
        With the arguments of `function`; returns the gradient, of the argument's shape, dtype and dual layout.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.grad(lambda x: np.sum(np.tanh(x) ** 2))(np.array([0.0, 1.0]))
    array([0.        , 0.63970001])
    >>> float(ag.grad(ag.grad(lambda x: x**3))(2.0))
    12.0
    """
    both = value_and_grad(function, argnum)

    @wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradient


def vjp(function: Function, *args: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The value, and the pullback: cotangent of the value -> cotangent(s) of the argument(s).

    Parameters
    ----------
    function : callable
        Of as many arrays as are given; returns one array, or a tuple of them.

    Returns
    -------
    y, pullback
        ``pullback(ct)`` may be called any number of times; with one argument it returns one cotangent, else a tuple.
        Under a mesh `ct` is a Tensor of the dual layout of `y` (a plain array is V).

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> y, pullback = ag.vjp(np.exp, np.array([0.0, 1.0]))
    >>> pullback(np.array([1.0, 0.0]))
    array([1., 0.])
    """
    traced = _Traced(function, args, range(len(args)), {})
    output = traced.output
    several = isinstance(output, tuple | list)
    outputs = [y if y.__class__ in TENSORS else tensor(y) for y in (output if several else [output])]

    def pullback(ct: Any) -> Any:
        cts = list(ct) if several else [ct]
        pairs = [(y, c) for y, c in zip(outputs, cts, strict=True) if y.tape is not None]
        found = traced.pull([y for y, _ in pairs], [c for _, c in pairs])
        return found[0] if len(args) == 1 else tuple(found)

    values = tuple(traced.out(y) for y in outputs)
    return (values if several else values[0]), pullback


def jvp(function: Function, args: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The value and its tangent: forward mode, by replaying the tape forwards.

    Parameters
    ----------
    args, tangents : sequences of arrays
        As many tangents as arguments, each of its argument's shape and dtype, and of its layout under a mesh.

    Returns
    -------
    y, dy

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.jvp(np.sin, (np.array([0.0]),), (np.array([2.0]),))
    (array([0.]), array([2.]))
    """
    if len(args) != len(tangents):
        raise ShapeError(f"{len(tangents)} tangents were given for {len(args)} arguments")
    traced = _Traced(function, args, range(len(args)), {})
    given = [_tangent(x, t, traced.nested) for x, t in zip(traced.inputs, tangents, strict=True)]
    several = isinstance(traced.output, tuple | list)
    outputs = [y if y.__class__ in TENSORS else tensor(y) for y in (traced.output if several else [traced.output])]
    found = traced.tape.forward(traced.inputs, given, outputs, record=traced.nested)
    results = []
    for y, dy in zip(outputs, found, strict=True):
        dy = _zeros(y.array) if dy is None else dy
        results.append(traced.out(dy if dy.__class__ in TENSORS else Tensor(dy, y.layout)))
    values = [traced.out(y) for y in outputs]
    return (tuple(values), tuple(results)) if several else (values[0], results[0])


def _tangent(x: Tensor, t: Any, nested: bool) -> Any:
    """A tangent of an input, checked; a bare array unless it is to be recorded."""
    t = t if t.__class__ in TENSORS else tensor(t, dtype=x.array.dtype)
    if t.array.shape != x.array.shape:
        raise ShapeError(f"a tangent of shape {t.array.shape} was given for an argument of shape {x.array.shape}")
    if x.layout is not None:
        layout = t.layout
        for k, axis in enumerate(x.layout.grid.names):
            if layout is None or not may_relabel(layout.labels[k], x.layout.labels[k]):
                raise LayoutError(
                    f"a tangent {describe(t.array, t.array.shape, layout)} was given for an argument "
                    f"{describe(x.array, x.array.shape, x.layout)}; needed on axis {axis!r}: the same layout"
                )
        t = relabel(t, x.layout)
    if not nested:
        return t.array
    return t
