"""`Traced`: a function run once on its own tape, which can then be pulled back and pushed forward any number of times.

All transforms are built on it. Nested containers of arguments and outputs (see `engine.pytree`) become lists of leaves
here. Results are plain arrays if the arguments were and there is no mesh, else Tensors. Inside another tape, sweeps are
recorded there, so that transforms nest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Number
from typing import Any

import numpy as np

from ..arrays.capture import recorded
from ..arrays.plain import BOXED
from ..arrays.shape_only import Shaped
from ..engine.deferred import Deferred
from ..engine.leaves import Constant, Leaf, tensor
from ..engine.pytree import flatten
from ..engine.recording import copying, op_of, unshared
from ..engine.state import state
from ..engine.tape import Tape
from ..engine.tensor import TENSORS, Tensor, may_need_gradient, place_off_tape, relabel
from ..errors import DtypeError, LayoutError, ShapeError, TapeError
from ..layouts.layout import C, I, P, V, is_copy_for_part, may_relabel
from ..layouts.messages import describe
from ..layouts.texts import drawn_leaf, own_part

__all__ = ["Function", "Traced", "tangent_of", "zeros_like"]

Function = Callable[..., Any]


class Traced:
    """One run of a function of one container, recorded on its own tape.

    Attributes
    ----------
    inputs, outputs : list of Tensor
        The leaves of the argument, as the function saw them, and of the result.
    structure, out_structure : Structure
        The structures of the argument and of the result.
    raw : bool
        Whether results are plain arrays: there is no mesh, and the arguments were plain arrays.
    is_reached : bool
        False if a sweep has brought no cotangent to any input, and the inputs are Invariant on all axes of several
        ranks, so that this is so on the other ranks, too.
    hint : str
        What errors of the layout of the result add: which arguments were plain arrays under a mesh.
    """

    __slots__ = ("hint", "inputs", "is_reached", "out_structure", "outputs", "raw", "structure", "tape")

    def __init__(self, function: Function, tree: Any, what: str = "", transform: str = ""):
        leaves, self.structure = flatten(tree)
        self.raw = state.grid is None
        inputs: list[Any] = []
        outputs: list[Any] = []
        plain: list[Leaf] = []
        self.inputs, self.outputs = inputs, outputs
        self.hint, self.is_reached = "", True
        what = what or getattr(function, "what", "argument 0")
        is_outermost = state.recording is None
        with Tape() as self.tape:
            recording, is_source = self.tape.recording, False
            before = recording.takes_unrecorded, recording.given
            levels = state.levels
            recording.takes_unrecorded |= is_outermost
            recording.copies |= is_outermost
            for i, x in enumerate(leaves):
                if x.__class__ in TENSORS:
                    self.raw = False
                    is_source |= x.tape is not recording and may_need_gradient(x)
                else:
                    x = self._leaf(i, x, what, function, transform)
                    if state.grid is not None and x.requires_grad:
                        plain.append(x)
                if x.array.dtype.kind not in "fcV":
                    raise _without_derivative(x, self.structure.paths(what)[i])
                if _is_constant(x):
                    raise _constant_argument(x, self.structure.paths(what)[i])
                y = self.tape.watch(x)
                if x._space is not None:  # the box of an object stays the argument, at the place of what stands for it
                    x.tape, x.node, y = y.tape, y.node, x
                inputs.append(y)
            if is_source and recording.takes_unrecorded:  # a value computed outside may depend on an argument
                recording.takes_unrecorded = False
                recording.given = partial(flatten, (tree, getattr(function, "given", None)))
            state.levels = (*levels, self.tape.start)
            if recording.copies:
                copying.append(recording)
            try:
                found, self.out_structure = flatten(function(self.structure.rebuild(inputs)))
            except LayoutError as error:
                raise self.hinted(error) from error.__cause__
            finally:
                recording.takes_unrecorded, recording.given = before
                state.levels = levels
                if recording.copies:
                    copying.remove(recording)
            for y in found:
                if y.__class__ is Deferred:  # a value that is returned must have arrived
                    y.wait()
                outputs.append(y if y.__class__ in TENSORS else _constant_output(y))
        for y in outputs if plain else ():
            _refuse_local_gradients(y, plain)

    def _note_plain(self, i: int, what: str, transform: str) -> None:
        """Note that argument i of a transform's function is a plain array under a mesh."""
        if not self.hint:
            assert state.grid is not None
            axis = state.grid.names[0]
            of = f" of the function given to ag.{transform}" if transform else ""
            self.hint = (
                f"\n  {self.structure.paths(what)[i]}{of} is a plain array, which is Varying: a separate value on each "
                f"rank\n  fix: ag.tensor(argument, layout={{{axis!r}: I}}) in its place, if it is the same on all ranks"
            )

    def hinted(self, error: LayoutError) -> LayoutError:
        """Return the error of a layout, with `hint` below the first line of its text."""
        if self.hint and self.hint not in str(error):
            first, newline, rest = str(error).partition("\n")
            error.args = (first + self.hint + newline + rest, *error.args[1:])
        return error

    @property
    def connected(self) -> bool:
        """Whether a sweep is needed: an output depends on an input, or the tape has communications to run."""
        for y in self.outputs:
            if y.tape is not None:
                return True
        return self.tape.recording.communicates

    @property
    def has_only_reverse_rules(self) -> bool:
        """Whether the function called a user's primitive that has no forward rule."""
        nodes = self.tape.recording.nodes[self.tape.start : self.tape.end]
        return any(node is not None and not getattr(op_of(node), "has_jvp", True) for node in nodes)

    def value(self, keep: bool = False) -> Any:
        """Return the result of the function; with `keep`, as copies where the tape still needs the arrays."""
        found = [self.out(y) for y in self.outputs]
        if keep and self.raw:
            found = [recorded(_copied, y) if y.__class__ is np.ndarray else y for y in found]
        return self.out_structure.rebuild(found)

    def out(self, x: Any) -> Any:
        """Return a result as the caller expects it: the plain array if `raw` is set and no outer tape records it."""
        if x.__class__ in TENSORS and self.raw and (x.tape is None or state.recording is None):
            return x.array
        if x.__class__ in TENSORS and x.tape is not None and state.recording is None:  # no sweep will follow its tape
            return Tensor(x.array, x.layout, None, place_off_tape(x.array, (x,)))
        return x

    # -- the sweeps ------------------------------------------------------------------------------------------------
    def _leaf(self, i: int, x: Any, what: str, function: Function, transform: str) -> Any:
        """An argument that is no Tensor, as a leaf. On a mesh one of numbers requires a gradient."""
        try:
            maker = BOXED.get(x.__class__)
            if maker is not None:
                x = maker(x, 0, None)
            else:
                x = tensor(recorded(unshared, x) if self.tape.recording.copies else x)
        except DtypeError as error:
            raise DtypeError(f"{self.structure.paths(what)[i]}: {error}") from error
        if state.grid is not None:
            self._note_plain(i, what, transform or getattr(function, "transform", ""))
            if x.array.dtype.kind in "fcV":  # so that ranks with equal values are told
                x.requires_grad = True
                x.name = self.structure.paths(what)[i]
        return x

    def _swept(self, cts: Sequence[Any] | None) -> list[Any] | None:
        """The cotangents of the inputs, None where no sweep is needed."""
        record = state.recording is not None
        found: list[Any] | None = None
        if cts is None and self.connected:
            found = self.tape.backward(self.outputs, wanted=self.inputs, retain=True, record=record)
        elif cts is not None:
            pairs = [(y, ct) for y, ct in zip(self.outputs, cts, strict=True) if y.tape is not None and ct is not None]
            if pairs or self.tape.recording.communicates:
                ys, given = [y for y, _ in pairs], [ct for _, ct in pairs]
                found = self.tape.backward(ys, given, wanted=self.inputs, retain=True, record=record)
        return found

    def pull(self, cts: Sequence[Any] | None) -> list[Any]:
        """Return the cotangents of the inputs, given one of each output; `out` says whether they are plain arrays.

        A cotangent None is zero. ``cts=None`` starts from the number 1, the cotangent of an objective.
        """
        found = self._swept(cts)
        if found is not None and not any(g is not None for g in found):
            self.is_reached = not all(_is_invariant(x.layout) for x in self.inputs)
        found = found or [None] * len(self.inputs)
        gs = [
            (recorded(zeros_like, x.array) if x._space is None else x._space.zeros()) if g is None else g
            for x, g in zip(self.inputs, found, strict=True)
        ]
        if self.raw:
            return _owned([self.out(g) for g in gs], cts or ())
        results: list[Any] = []
        for x, g in zip(self.inputs, _owned(gs, cts or ()), strict=True):
            layout = None if x.layout is None else x.layout.dual
            g = g if g.__class__ in TENSORS else Tensor(g, layout)
            results.append(relabel(g, layout) if layout is not None else g)
        return results

    def gradient(self, cts: Sequence[Any] | None) -> Any:
        """Return the result of `pull` as a container like the argument."""
        return self.structure.rebuild(self.pull(cts))

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the outputs, given one of each input; `out` says whether they are plain arrays."""
        record = state.recording is not None
        given = [tangent_of(x, t, record) for x, t in zip(self.inputs, tangents, strict=True)]
        found = self.tape.forward(self.inputs, given, self.outputs, record=record)
        dys = [recorded(zeros_like, y.array) if dy is None else dy for y, dy in zip(self.outputs, found, strict=True)]
        results = [
            self.out(dy if dy.__class__ in TENSORS else Tensor(dy, y.layout))
            for y, dy in zip(self.outputs, dys if self.raw else _owned(dys, tangents), strict=True)
        ]
        return _owned(results, tangents) if self.raw else results


def _is_invariant(layout: Any) -> bool:
    """Whether a value is I on all axes of several ranks, so that only a cast lets a rank's own computation use it.

    A cast is a communication, which all ranks make, and its adjoint gives a cotangent on every rank.
    """
    if layout is None:
        return True
    return all(n == 1 or label is I for label, n in zip(layout.labels, layout.grid.sizes, strict=True))


def _constant_output(y: Any) -> Tensor:
    """An output that depends on no Tensor, as a Tensor."""
    if not (hasattr(y, "shape") or isinstance(y, Number)):
        raise TapeError(f"the function returned {type(y).__name__}; needed: one number, or arrays")
    return tensor(y)


def _refuse_local_gradients(y: Tensor, plain: list[Leaf]) -> None:
    """Raise LayoutError for a sum that is not taken yet, as a function of plain arrays, which are Varying.

    No communication tells whether the arrays are equal on all ranks. If they are, each rank would get the gradient of
    its own addend only.
    """
    for axis, label in () if y.layout is None or y.tape is None else y.layout.items():
        for x in plain if label is P else ():
            if x.layout is not None and x.layout[axis] is V:
                raise LayoutError(
                    f"{x.name}: {describe(x.array, x.array.shape, x.layout)} is a plain array, so it is Varying; the "
                    f"result is {describe(y.array, y.array.shape, y.layout)}\n  axis {axis!r}: each rank would get the "
                    f"gradient of its own copy, which misses the sum over the ranks\n  fix: ag.tensor(x, layout="
                    f"{{{axis!r}: I}}), if it is the same on all ranks, and cast(x, {axis!r}, to=R) where the function "
                    f"uses it\n  or:  ag.tensor(x, layout={{{axis!r}: V}}), if each rank has a value of its own"
                )


def _is_constant(x: Any) -> bool:
    """Whether an argument is a constant. Under a mesh it takes its labels; a drawn one raises LayoutError."""
    if state.grid is None:
        return isinstance(x, Constant)
    x.layout = x.labelled(state.grid)
    if x.layout.drawn:
        raise LayoutError(drawn_leaf("the argument of a transform", x))
    return C in x.layout.labels


def _constant_argument(x: Tensor, path: str) -> TapeError:
    return TapeError(
        f"{path} is {describe(x.array, x.array.shape, x.layout)}, a constant: it has no gradient, not a gradient of "
        "zero. Needed: an array, a Parameter, or a tensor with the label of a variable\n  fix: ag.tensor(x"
        + ("" if x.layout is None else f", layout={{{x.layout.grid.names[0]!r}: I}}")
        + ") in place of ag.constant(x); if it is not a variable, pass it as an argument that argnum does not name"
    )


def _without_derivative(x: Tensor, path: str) -> DtypeError:
    return DtypeError(
        f"{path} has dtype {x.array.dtype} and cannot be differentiated; needed: a floating or complex dtype. Fix: "
        "pass 2.0 for 2, or x.astype(float); if it is not a variable, pass it as an argument that argnum does not name,"
        " or declare the field of a dataclass as dataclasses.field(metadata={'static': True})"
    )


def zeros_like(array: Any) -> Any:
    """Return zeros like an array. (``array * 0`` would keep nan.)"""
    zeros = array * 0 if type(array) is Shaped else np.zeros_like(array)
    return zeros[()] if isinstance(array, np.generic) else zeros


def tangent_of(x: Tensor, t: Any, record: bool) -> Any:
    """Check the tangent of an input; return it as a Tensor if it is to be recorded, else as an array.

    Raises
    ------
    ShapeError, LayoutError
        The tangent has not the shape, or not the layout, of the input.
    """
    t = t if t.__class__ in TENSORS else tensor(t, dtype=x.array.dtype)
    if t.array.shape != x.array.shape:
        raise ShapeError(
            f"a tangent of shape {t.array.shape} was given for an argument of shape {x.array.shape}; needed: the "
            "argument's own shape"
        )
    if t.array.dtype != x.array.dtype:
        t = t.astype(x.array.dtype)
    if x.layout is not None:
        layout = t.layout
        for k, axis in enumerate(x.layout.grid.names):
            have, need = None if layout is None else layout.labels[k], x.layout.labels[k]
            if have is None or is_copy_for_part(have, need) or not may_relabel(have, need):
                given = (
                    f"a tangent {describe(t.array, t.array.shape, layout)} was given for an argument "
                    f"{describe(x.array, x.array.shape, x.layout)}"
                )
                if have is not None and is_copy_for_part(have, need):
                    raise LayoutError(own_part(given, t.array.shape, axis, have, need))
                raise LayoutError(
                    f"{given}\n  axis {axis!r}: needed: the argument's own layout, {need.word}\n  fix: "
                    f"ag.tensor(tangent, layout={{{axis!r}: {need!r}}}), if that is what the ranks hold"
                )
        t = relabel(t, x.layout)
    return t if record else t.array


def _copied(x: Any) -> Any:
    return x.copy()


def _owned(results: list[Any], given: Sequence[Any]) -> list[Any]:
    """Copy results where needed so that the caller may write to them: no views, no array twice, none of `given`."""
    seen = {id(g.array if g.__class__ in TENSORS else g) for g in given}
    for i, g in enumerate(results):
        if g.__class__ is np.ndarray and (g.base is not None or not g.flags.writeable or id(g) in seen):
            results[i] = g = recorded(_copied, g)
        seen.add(id(g))
    return results
