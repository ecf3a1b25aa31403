"""Where a sweep may start: the seeds, which are the cotangents of the outputs, and what is refused.

Without a cotangent, an output must be one global number: Invariant, Partial or Rooted on every axis of the mesh. A
cotangent that is given must have the dual layout of its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from ..arrays.device import as_array, require_one_device
from ..arrays.shape_only import Shaped, shape_only
from ..errors import DtypeError, LayoutError, ObjectiveError, ShapeError, TapeError
from ..layouts.inference import axes_in
from ..layouts.layout import C, I, Layout, P, R, Shard, V, is_copy_for_part, may_relabel
from ..layouts.messages import describe
from ..layouts.rank_values import LocalCount, plain, rank_axes
from .recording import OUTSIDE, UNRECORDED, Recording
from .state import state
from .tensor import FROM_A_GRADIENT, Tensor, relabel

__all__ = ["is_followed_leaf", "place_in", "place_of", "refuse_complex_objective", "require_one_number", "seeds"]


# -- places ------------------------------------------------------------------------------------------------------------
def is_followed_leaf(x: Any) -> bool:
    return x.__class__ is not Tensor and isinstance(x, Tensor) and x.tape is None and x._requires_grad


def place_in(x: Tensor, recording: Recording) -> int:
    """The place of a value of a recording, or of a leaf that has entered it; else `OUTSIDE`."""
    if x.tape is recording:
        return int(x.node)
    return recording.leaves.get(id(x), OUTSIDE) if is_followed_leaf(x) else OUTSIDE


def place_of(x: Any, recording: Recording) -> int:
    """The place of a value whose cotangent is wanted; negative where it has none in this recording."""
    if x.tape is recording:
        return int(x.node)
    if x.tape is not None:
        return recording.leaves.get((id(x.tape), x.node), OUTSIDE)
    if x.__class__ is not Tensor and not x._requires_grad:
        raise TapeError(
            f"the cotangent of {x.name or 'a leaf'} was wanted, {describe(x.array, x.array.shape, x.layout)}, which is "
            "a constant: it has no gradient, not a gradient of zero. Needed: a value of this tape, or a leaf with "
            "requires_grad=True. Fix: ag.Parameter(w), or ag.tensor(w, requires_grad=True)"
        )
    return recording.leaves.get(id(x), OUTSIDE)


# -- seeds -------------------------------------------------------------------------------------------------------------
_OFF_TAPE = OUTSIDE, UNRECORDED
_ONE: dict[type, Any] = {kind: kind(1) for kind in (np.float64, np.float32)}
_NUMBERS = int | float | complex | np.generic | LocalCount


def seeds(outputs: Any, cotangents: Any, recording: Recording, start: int, end: int) -> list[tuple[int, Tensor]]:
    """The places and cotangents that a sweep starts from; TapeError if an output is not in the interval."""
    if cotangents is None and outputs.__class__ is Tensor and outputs.array.__class__ in _ONE:  # the usual case
        y, layout = outputs, outputs.layout
        if start <= y.node < end and recording.nodes[y.node] is not None and y.tape is recording and (
            layout is None or layout.one_number
        ):
            seed = Tensor.__new__(Tensor)  # faster than a call of the constructor
            seed.array, seed.layout = _ONE[y.array.__class__], None if layout is None else layout.dual
            seed.tape, seed.node = None, OUTSIDE
            return [(y.node, seed)]
    if not isinstance(outputs, list | tuple):
        outputs = (outputs,)
        cotangents = None if cotangents is None else (cotangents,)
    if cotangents is None:
        cotangents = (None,) * len(outputs)
    elif len(cotangents) != len(outputs):
        raise ShapeError(f"{len(cotangents)} cotangents were given for {len(outputs)} outputs")
    found: list[tuple[int, Tensor]] = []
    for y, given in zip(outputs, cotangents, strict=True):
        ct = given if _fits(y, given) else _seed(y, given)
        is_here = y.tape is recording and start <= y.node < end and recording.nodes[y.node] is not None
        place = y.node if is_here else _place_of_a_leaf(y, recording)
        if place is not None and ct is not None:
            found.append((place, ct))
    return found


def _place_of_a_leaf(y: Tensor, recording: Recording) -> int | None:
    """The place of a leaf as an output; None if this rank's part depends on none, but its communications must run."""
    if is_followed_leaf(y):
        place = place_in(y, recording)
        if place < 0 or recording.released(place):
            _refuse_output(recording, y)
        return place
    if y.tape is None and recording.communicates and (y.node not in _OFF_TAPE or y.__class__ is not Tensor):
        if y.__class__ is Tensor and y.layout is not None and all(label is I for label in y.layout.labels):
            _refuse_output(recording, y)  # the same on all ranks, so it depends on no leaf on any of them
        return None
    return _refuse_output(recording, y)


def _seed(y: Tensor, ct: Any) -> Tensor | None:
    """The cotangent of an output, as a Tensor of the dual layout; None where this rank holds no value."""
    if not isinstance(y, Tensor):
        raise TapeError(
            f"backward needs Tensors; {type(y).__name__} was given\n  fix: give backward the result of operations on "
            "Tensors; if only some ranks have a loss, as the last stage of a pipeline, every rank gives the one global "
            "number: cc.broadcast(loss, axis, root, to=I), or cc.all_reduce(loss, axis, to=I) with 0.0 on the others"
        )
    if y.array.dtype.kind not in "fcV":
        raise DtypeError(f"backward of a value of dtype {y.array.dtype}; needed: a floating or complex dtype")
    if ct is None:
        return _one(y)
    given = ct if isinstance(ct, Tensor) else None
    value = _like_output(y, ct)
    if y.layout is None:
        return given if given is not None and given.array is value else Tensor(value)
    dual = y.layout.dual
    have = None if given is None else given.layout
    if have is not dual:
        _require_dual(y, value, ct, have)
    if (type(y.array) is Shaped and y.array.absent) or (type(value) is Shaped and value.absent):
        return None
    if max(dual.grid.sizes) > 1 and (given is None or given.tape is None):  # copies of one cotangent must be equal
        same = dual.grid.layout([label if label is R or label is I else V for label in dual.labels])
        shown = plain(ct) if isinstance(ct, _NUMBERS) else value
        state.distribution.note_constant("the cotangent in backward", same, shown)
    if given is not None and given.tape is not None:
        return relabel(given, dual)
    return given if given is not None and have is dual and given.array is value else Tensor(value, dual)


def _fits(y: Any, ct: Any) -> bool:
    """Whether a cotangent needs no further check: of the usual kind, with the shape, dtype and layout of its output."""
    if not isinstance(ct, Tensor) or not isinstance(y, Tensor) or y.layout is None:
        return False
    a, b, dual = y.array, ct.array, y.layout.dual
    return bool(
        ct.layout is dual and not dual.has_copies and a.__class__ is b.__class__ is np.ndarray
        and a.shape == b.shape and a.dtype is b.dtype and a.dtype.kind in "fcV"
    )  # fmt: skip


def refuse_complex_objective(caller: str, dtype: Any, otherwise: str = "") -> NoReturn:
    """Raise ObjectiveError for a complex number: a sweep from 1 takes the gradient of its real part."""
    raise ObjectiveError(
        f"{caller} of a loss of dtype {dtype}; needed: a real number, because complex numbers have no order, and an "
        "optimizer would reduce the real part alone\n"
        "  fix: np.abs(error) ** 2 in place of error ** 2 in the loss, or np.real(loss)"
        + (f"\n  or:  {otherwise}, if the derivative of a holomorphic function is meant" if otherwise else "")
    )


def _one(y: Tensor) -> Tensor | None:
    """The cotangent of an objective, which is one number: 1; None where this rank does not hold it."""
    array, layout = y.array, y.layout
    dual = None if layout is None else layout.dual
    if array.dtype.kind == "c":
        refuse_complex_objective("backward", array.dtype, "tape.backward(loss, 1.0)")
    if isinstance(array, np.generic) and (layout is None or layout.one_number):
        return Tensor(type(array)(1), dual)
    if array.shape and array.size != 1:
        raise ShapeError(
            f"backward of a value of shape {array.shape} without a cotangent; needed: one number, or cotangents= "
            f"of that shape. Fix: sum it"
        )
    require_one_number(layout, array.shape, state.unstated)
    if type(array) is Shaped:
        return None if array.absent else Tensor(array, dual)
    return Tensor(type(array)(1) if isinstance(array, np.generic) else np.ones_like(array), dual)


def require_one_number(layout: Layout | None, shape: tuple[int, ...], unstated: Mapping[str, Any]) -> None:
    """Raise LayoutError if an objective is not one global number: its label on every axis must be I, P or Rooted.

    `unstated` is `state.unstated`: leaves that may be the reason why the objective is Varying along an axis.
    """
    if layout is None:
        return
    for axis, size, label in zip(layout.grid.names, layout.grid.sizes, layout.labels, strict=True):
        if label is R:
            raise LayoutError(
                f"backward(loss: {describe(None, shape, layout)})\n  axis {axis!r}: the objective is Replicated: each "
                f"rank would seed its copy, and its cotangent, which is Partial, would count once per rank"
                f"{f', {size} times' if size > 1 else ''}. Needed: Invariant, Partial or Rooted\n"
                f"  fix: cast(loss, {axis!r}, to=I)   (inside the tape's block; free in both directions), or "
                f"all_reduce(..., {axis!r}, to=I) where the sum is taken"
            )
        if label is V or type(label) is Shard:
            question, fix, condition = "", "fix: ", ""
            if axis in unstated:
                name, dtype, own_shape, own = unstated[axis]
                question = (
                    f"  {name or 'a tensor'}: {describe(np.empty(0, dtype), own_shape, own)} was made without a label "
                    f"for axis {axis!r}, so it is Varying there. The same on all ranks of {axis!r}?\n"
                    f"  fix: layout={{..., {axis!r}: R}} where it is made\n"
                )
                fix, condition = "or:  ", f", if the ranks of {axis!r} have different data"
            raise LayoutError(
                f"backward(loss: {describe(None, shape, layout)})\n  axis {axis!r}: the objective is {label.word}: "
                f"{f'{size} different numbers' if size > 1 else 'a number of each rank'}, and no single one to "
                f"differentiate. Needed: Invariant, Partial or Rooted\n"
                f"{question}  {fix}all_reduce(loss, {axis!r}, to=I){condition}   (if each rank holds a part "
                f"of the loss)\n"
                f"  or:  broadcast(loss, {axis!r}, 0, to=I)   (if the loss is the same on all ranks)\n"
                f"  If all ranks compute the same number, label the data: ag.constant(a) for a plain array a, "
                f"layout={{{axis!r}: R}} for a tensor without a label"
            )


def _like_output(y: Tensor, ct: Any) -> Any:
    """The array of a cotangent, with the shape, dtype and device of the array of its output."""
    array = y.array
    value = ct.array if isinstance(ct, Tensor) else as_array(ct, None)
    is_number = isinstance(ct, _NUMBERS)
    if value.__class__ is not array.__class__:
        if not isinstance(array, np.generic | np.ndarray | Shaped):
            if is_number and not array.shape:
                value = np.full_like(array, plain(ct))
            elif not is_number:
                require_one_device("backward", output=y, cotangent=ct)
        elif not isinstance(ct, Tensor):
            require_one_device("backward", output=y, cotangent=value)
    if value.shape != array.shape:
        if value.shape != () or not is_number:
            raise ShapeError(f"a cotangent of shape {value.shape} was given for an output of shape {array.shape}")
        value = array if type(array) is Shaped else np.full_like(array, plain(ct))
    if value.dtype.kind == "c" and array.dtype.kind != "c":
        raise DtypeError(
            f"a cotangent of dtype {value.dtype} was given for an output of dtype {array.dtype}; needed: a real one. "
            "Fix: np.real(cotangent)"
        )
    value = value if value.dtype == array.dtype else value.astype(array.dtype)
    return shape_only(value) if type(array) is Shaped and not array.absent else value


def _require_dual(y: Tensor, value: Any, ct: Any, have: Layout | None) -> None:
    """Raise LayoutError if a cotangent with the layout `have` cannot have the dual layout of its output.

    A number is constant, and Varying along the axes of the rank numbers that it was made of. A plain array is Varying.
    """
    assert y.layout is not None
    dual, is_number = y.layout.dual, isinstance(ct, _NUMBERS)
    differs = axes_in(dual.grid, rank_axes(ct)) if is_number else ()
    for k, axis in enumerate(dual.grid.names):
        need = dual.labels[k]
        label = (V if axis in differs else C) if is_number else V if have is None else have.labels[k]
        if need is P and label is not P:  # ranks with equal copies would count p times
            is_array = have is None and not is_number
            raise LayoutError(
                f"backward({_output_and(y, value, have)})\n  axis {axis!r}: the output is Replicated, so its cotangent "
                f"is Partial, a sum over the {dual.grid.sizes[k]} ranks; the cotangent given is "
                f"{'a plain array, which is Varying' if is_array else label.word}\n  fix: "
                f"cast(output, {axis!r}, to=I), and the cotangent Invariant, if all ranks hold the same cotangent\n  "
                f"or:  ag.tensor(cotangent, layout={{{axis!r}: P}}), if the ranks hold addends"
            )
        if not is_number and is_copy_for_part(label, need):
            from ..layouts.texts import own_part  # loaded when it is told

            raise LayoutError(own_part(
                f"a cotangent {describe(value, value.shape, have)} was given for an output "
                f"{describe(y.array, y.array.shape, y.layout)}", value.shape, axis, label, need,
            ))  # fmt: skip
        if not may_relabel(label, need):
            raise LayoutError(
                f"backward({_output_and(y, value, have)})\n  axis {axis!r}: the cotangent is {label.word}; the output "
                f"is {y.layout.labels[k].word}, so it must be {need.word}\n  fix: ag.tensor(cotangent, layout="
                f"{{{axis!r}: {need!r}}}), if the ranks hold values of that layout"
            )


def _output_and(y: Tensor, value: Any, have: Layout | None) -> str:
    shown = describe(y.array, y.array.shape, y.layout)
    return f"output: {shown}, cotangent: {describe(value, value.shape, have)}"


def _refuse_output(recording: Recording, y: Tensor) -> NoReturn:
    """Raise a TapeError with the reason why `y` is not an output of this tape."""
    if y.tape is None and (
        y.node == UNRECORDED or (y.__class__ is Tensor and y.node == OUTSIDE and recording.communicates)
    ):
        raise TapeError(
            f"backward of a value of shape {y.array.shape} that was computed outside the tape's block, so it "
            "was not recorded. Fix: compute it inside `with Tape():`"
        )
    if y.tape is None and not is_followed_leaf(y):
        raise TapeError(
            f"backward of a value of shape {y.array.shape} that depends on no leaf: nothing was recorded. Needed: "
            "a Parameter, or a tensor with requires_grad=True, used inside the tape's block\n  fix: compute all of it "
            "inside the block, from a Parameter" + FROM_A_GRADIENT
        )
    if y.tape is None or (y.tape is recording and recording.released(y.node)):
        raise TapeError(
            "second backward on a tape that the first one released. Needed: an unreleased tape. "
            "Fix: backward(..., retain=True) the first time"
        )
    raise TapeError("backward of a value that another tape recorded; needed: an output of this one")
