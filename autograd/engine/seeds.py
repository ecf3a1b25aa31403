"""What a sweep may start from: outputs of the tape at hand, with cotangents of their shape and of the dual layout."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ..arrays.device import as_array, is_inexact
from ..arrays.shape_only import Shaped, is_absent, shape_only
from ..errors import DtypeError, LayoutError, ShapeError, TapeError, call_site
from ..layouts.layout import C, V, may_relabel
from ..layouts.messages import describe, require_one_number
from .recording import OUTSIDE, Recording
from .tensor import Tensor, relabel

__all__ = ["refuse_output", "seeds"]


_ONE: dict[type, Any] = {kind: kind(1) for kind in (np.float64, np.float32)}


def seeds(outputs: Any, cotangents: Any, recording: Any, start: int, end: int) -> list[tuple[int, Tensor]]:
    """The places and cotangents that a sweep from `end` to `start` starts from; refused if an output is none there."""
    if cotangents is None and outputs.__class__ is Tensor and outputs.array.__class__ in _ONE:  # what most begin with
        y, layout = outputs, outputs.layout
        if start <= y.node < end and recording.nodes[y.node] is not None and y.tape is recording and (
            layout is None or layout.one_number
        ):
            return [(y.node, Tensor(_ONE[y.array.__class__], None if layout is None else layout.dual))]
    if not isinstance(outputs, list | tuple):
        outputs = (outputs,)
        cotangents = None if cotangents is None else (cotangents,)
    if cotangents is None:
        cotangents = (None,) * len(outputs)
    elif len(cotangents) != len(outputs):
        raise ShapeError(f"{len(cotangents)} cotangents were given for {len(outputs)} outputs")
    found = []
    for y, ct in zip(outputs, cotangents, strict=True):
        ct = seed(y, ct)
        if y.tape is None and recording.communicates and (y.node != OUTSIDE or y.__class__ is not Tensor):
            continue  # this rank's part does not depend on a leaf, but its communications must run
        if y.tape is not recording or not start <= y.node < end or recording.nodes[y.node] is None:
            refuse_output(recording, y)
        if ct is not None:
            found.append((y.node, ct))
    return found


def seed(y: Tensor, ct: Any) -> Tensor | None:
    """The cotangent to start from, as a Tensor of the dual layout; None where this rank holds no value."""

    if not isinstance(y, Tensor):
        raise TapeError(f"backward needs Tensors; {type(y).__name__} was given")
    array = y.array
    if not is_inexact(array.dtype):
        raise DtypeError(f"backward of a value of dtype {array.dtype}; needed: a floating or complex dtype")
    if ct is None:
        if isinstance(array, np.generic) and (y.layout is None or y.layout.one_number):
            return Tensor(type(array)(1), None if y.layout is None else y.layout.dual)
        if array.shape and array.size != 1:
            raise ShapeError(
                f"backward of a value of shape {array.shape} without a cotangent; needed: one number, or cotangents= "
                f"of that shape. Fix: sum it" + call_site()
            )
        require_one_number(y.layout, array.shape)
        if type(array) is Shaped:
            return None if array.absent else Tensor(array, None if y.layout is None else y.layout.dual)
        one = type(array)(1) if isinstance(array, np.generic) else np.ones_like(array)
        return Tensor(one, None if y.layout is None else y.layout.dual)
    given = ct if isinstance(ct, Tensor) else None
    value = given.array if given is not None else as_array(ct, None)
    if value.shape != array.shape:
        if value.shape == () and isinstance(ct, int | float | complex):
            value = array if type(array) is Shaped else np.full(array.shape, ct, array.dtype)
        else:
            raise ShapeError(f"a cotangent of shape {value.shape} was given for an output of shape {array.shape}")
    value = value if value.dtype == array.dtype else value.astype(array.dtype)
    if type(array) is Shaped and not array.absent:
        value = shape_only(value)
    if y.layout is None:
        return given if given is not None and given.array is value else Tensor(value)
    dual = y.layout.dual
    have = given.layout if given is not None else None
    for k, axis in enumerate(dual.grid.names):
        label = C if isinstance(ct, int | float | complex) else V if have is None else have.labels[k]
        if not may_relabel(label, dual.labels[k]):
            raise LayoutError(
                f"backward(output: {describe(array, array.shape, y.layout)}, cotangent: "
                f"{describe(value, value.shape, have)})\n  axis {axis!r}: the cotangent is {label.word}; the output is "
                f"{y.layout.labels[k].word}, so it must be {dual.labels[k].word}\n  fix: ag.tensor(cotangent, layout="
                f"{{{axis!r}: {dual.labels[k]!r}}}), if that is what the ranks hold" + call_site()
            )
    if is_absent(array) or is_absent(value):
        return None
    if given is not None and given.tape is not None:
        return relabel(given, dual)
    return given if given is not None and given.layout is dual and given.array is value else Tensor(value, dual)


def refuse_output(recording: Recording, y: Tensor) -> NoReturn:
    """Say why `y` is no output of a tape of this recording."""
    if y.tape is None and y.__class__ is Tensor and y.node == OUTSIDE and recording.communicates:
        raise TapeError(
            f"backward of a value of shape {y.array.shape} that was made outside the tape's block, so that nothing "
            "of it was recorded. Fix: compute it inside `with Tape():`" + call_site()
        )
    if y.tape is None:
        raise TapeError(
            f"backward of a value of shape {y.array.shape} that depends on no leaf: nothing was recorded. Needed: "
            "a Parameter, or a tensor with requires_grad=True, used inside the tape's block" + call_site()
        )
    if y.tape is recording and recording.released(y.node):
        raise TapeError(
            "second backward on a tape that the first one released. Needed: an unreleased tape. "
            "Fix: backward(..., retain=True) the first time" + call_site()
        )
    raise TapeError("backward of a value that another tape recorded; needed: an output of this one" + call_site())
