"""Indexing, ``x[key]``, and its adjoint `put`, which adds values into zeros at the indexed positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from ..arrays.capture import recorded
from ..arrays.device import arange_beside, is_array, move, require_one_device
from ..arrays.plain import require_plain
from ..arrays.shape_only import Shaped
from ..engine.primitive import Primitive, op
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import LayoutError, PositionError, short
from ..kernels import functions, sums_of_rows
from ..layouts.layout import C, D, I, Mix, P, R, Shard
from ..layouts.messages import describe
from ..layouts.rank_values import LocalCount, plain, rank_axes

Shape = tuple[int, ...]
_BASIC = frozenset((slice, int, type(None), type(Ellipsis)))
"""Types of a key that takes each element once, as a view, or as a number if it has an integer for each dimension."""


def normal_key(key: Any, array: Any = None) -> tuple[Any, ...]:
    """The key as a tuple of slices, integers, None, Ellipsis and index arrays, on the device of `array`.

    Lists are moved there.

    Raises
    ------
    DeviceError
        An index array is on another device than `array`. (CuPy would copy it at each use.)
    """
    key = key if isinstance(key, tuple) else (key,)
    if _BASIC.issuperset(map(type, key)):
        return key
    result = []
    for k in key:
        k = k.array if isinstance(k, Tensor) else k
        if isinstance(k, list):
            try:
                require_plain(k, "getitem, an index")
                k = np.asarray(k)
            except ValueError as error:  # such as lists of different lengths
                raise PositionError(f"{short(k)} was given as an index; {error}") from error
            k = k if k.size else k.astype(np.intp)  # an empty list selects nothing
            k = k if type(array) is Shaped else move(k, array)
        if _is_index_array(k):
            if k.__class__ is not np.ndarray:
                require_plain(k, "getitem, an index")
            if k.__class__ is not array.__class__ and array is not None:
                require_one_device("getitem", x=array, index=k)
            # The tape keeps a copy: a later write to the user's index array must not change the gradient.
            k = k.copy() if state.recorder is None else recorded(np.copy, k, name="index")
        result.append(k)
    return tuple(result)


def _is_index_array(k: Any) -> bool:
    """Whether part of a key is an index array or a mask, on any device. A 0-d integer is a plain index."""
    return is_array(k) and (k.ndim > 0 or k.dtype == bool)


def _dims_taken(k: Any) -> int:
    """The number of the operand's dimensions that part of a key takes: as many as a mask has, one for other indices."""
    if k is None or k is Ellipsis:
        return 0
    return k.ndim if _is_index_array(k) and k.dtype == bool else 1


def _dims(shapes: Sequence[Shape], options: Any) -> Any:
    """Dimension rule: a slice of the whole extent keeps its dimension; any other index mixes it.

    A mixed dimension may not be sharded.
    """
    shape, key = shapes[0], options[0]
    advanced = sum(map(_is_index_array, key))
    if advanced:
        chosen = [i for i, k in enumerate(key) if not isinstance(k, slice)]
        is_moved = chosen != list(range(chosen[0], chosen[-1] + 1))  # by NumPy, to the front
        if advanced > 1 or is_moved or any(k is Ellipsis or k is None for k in key):
            return [tuple([Mix] * len(shape))]
    used = sum(map(_dims_taken, key))
    at = next((i for i, k in enumerate(key) if k is Ellipsis), len(key))
    key = key[:at] + (slice(None),) * (len(shape) - used) + key[at + 1 :]
    entries: list[Any] = []
    out = 0
    for k in key:
        if k is None:
            out += 1
        elif isinstance(k, slice):
            n = shape[len(entries)]
            whole = k.indices(n) == (0, n, 1) and k.start in (None, 0) and k.stop is None
            entries.append(out if whole else Mix)
            out += 1
        elif _is_index_array(k):
            entries.extend([Mix] * _dims_taken(k))
            out += k.ndim if k.dtype != bool else 1
        else:
            entries.append(Mix)
    return [tuple(entries)]


def sum_rows(xs: Any, places: Any, count: int) -> Any:
    """An array of `count` rows: row i is the sum of the rows of `xs` whose place is i. The order of sums is fixed.

    Sums of 16 bits are made in float32 and rounded once.
    """
    if xs.__class__ is np.ndarray:
        return sums_of_rows(xs, places, count)
    found = functions("segments", type(xs))
    if found is not None:
        return found.sum_rows(xs, places, count)
    out = np.zeros_like(xs, shape=(count, *xs.shape[1:]))  # a device without a runtime
    np.add.at(out, places, xs)
    return out


def add_at(ct: Any, key: tuple[Any, ...], shape: Shape) -> Any:
    """Zeros to which `ct` is added at the places of a key with index arrays; a place that occurs twice gets both."""
    if ct.__class__ is np.ndarray:
        out = np.zeros_like(ct, shape=shape)
        np.add.at(out, key, ct)
        return out
    if len(key) == 1 and key[0].dtype == bool:  # no place occurs twice
        out = np.zeros_like(ct, shape=shape)
        out[key] = ct
        return out
    # dimensions after those that the key takes are those of rows
    end = len(shape) if any(k is Ellipsis for k in key) else sum(map(_dims_taken, key))
    shape, row = shape[:end], shape[end:]
    numbers = arange_beside(ct, math.prod(shape)).reshape(shape)[key]
    return sum_rows(ct.reshape(numbers.size, *row), numbers.reshape(-1), math.prod(shape)).reshape(*shape, *row)


def _put(ct: Any, key: Any, shape: Shape) -> Any:
    if type(ct) is Shaped:
        return Shaped(shape, ct.dtype, ct.why)
    if not _BASIC.issuperset(map(type, key)) and any(map(_is_index_array, key)):
        return add_at(ct, key, shape)
    # np.zeros_like takes three times as long
    out = np.zeros(shape, ct.dtype, like=ct) if ct.__class__ is np.ndarray else np.zeros_like(ct, shape=shape)
    out[key] = ct
    return out


def _put_dims(shapes: Sequence[Shape], options: Any) -> Any:
    entries = _dims([options[1]], options)[0]
    back: list[Any] = [Mix] * len(shapes[0])
    for i, e in enumerate(entries):
        if isinstance(e, int) and shapes[0][e] == options[1][i]:
            back[e] = i
    return [tuple(back)]


def _whole_index(options: Any, dim: int) -> Any:
    """An index that differs between ranks takes other elements: it takes those of a sharded dimension as they are."""
    return options


def _other_selections(refusal: Any) -> list[str]:
    """The further fixes for an index along a sharded dimension."""
    key = refusal.options[0] if refusal.options else None
    found = "({x} * mask).sum(), if the index is a mask; halo_exchange({x}, {a!r}, 1), for the neighbours of a part"
    if type(key) is tuple and sum(np.ndim(k) > 0 for k in key if k is not None) > 1:  # arrays for rows and columns
        found = "numpy.take_along_axis({x}, columns.reshape(-1, 1), 1), for one element of each row"
    if refusal.labels[refusal.at[0]].dim == 0:
        return [found]
    fused = "if the columns of a fused weight are split here, as in q, k, v = split(x @ w, 3)"
    return [found, f"a weight for each slice, each divided by columns, {fused}"]


put: Primitive = op(
    "put",
    "a",
    _put,
    lambda ct, y, x, key, shape: _getitem_op(ct, options=(key, shape)),
    dims=_put_dims,
    ranked=True,
    beside=_whole_index,
    called="pad",
    fixes={
        "mixes": "halo_exchange({x}, {a!r}, 1), for the neighbours of a part and zeros at the ends, as in a stencil"
    },
)


_LARGE_BYTES = 1 << 15
"""The size from which parts are added in place. Below, strided sums take longer than those of whole arrays."""


class _Getitem(Primitive):
    """An operation, `getitem`, whose step of a reverse sweep adds cotangents of slices of a large array in place.

    The rule alone makes zeros of the array's size, to be added to the others: T slices of a sequence then take T passes
    over the whole. The bits are those of these sums.
    """

    def bind(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        """Return the call, and the step of a reverse sweep."""
        call, pull_one = super().bind()

        def pull(node: Any, ct: Any, sweep: Any) -> None:
            _, _, _, (place,), (key, shape), _, signature = node
            if (
                sweep.general
                or sweep.start
                or place < 0
                or ct.__class__ is not np.ndarray
                or (signature is not None and not signature.checked)
                or not _BASIC.issuperset(map(type, key))
            ):
                pull_one(node, ct, sweep)
                return
            known = sweep.cts[place]
            if known is None:
                found = np.zeros(shape, ct.dtype)
                found[key] = ct
            elif known.__class__ is not np.ndarray or known.dtype != ct.dtype:
                pull_one(node, ct, sweep)
                return
            elif known.nbytes < _LARGE_BYTES:
                found = np.zeros(shape, ct.dtype)
                found[key] = ct
                np.add(known, found, found)
            else:
                found = _with_part(known, ct, key, None if sweep.parts is None else sweep.parts.get(place))
            if found.nbytes >= _LARGE_BYTES:
                if sweep.parts is None:
                    sweep.parts = {}
                sweep.parts[place] = ref(found), key  # a leaf adopts an array that nobody else has
            sweep.cts[place] = found

        return call, pull


def _with_part(known: Any, ct: Any, key: Any, parts: Any) -> Any:
    """``known + put(ct)``, in place where `known` has been made of parts.

    The sum with zeros turns -0.0 into 0.0, so the elements outside of the part are added to 0.0. Where `known` has been
    made of parts, only elements of the last one can be -0.0.
    """
    part = known[key] + ct
    if parts is None or parts[0]() is not known:
        known = known + 0.0
    else:
        known[parts[1]] += 0.0
    known[key] = part
    return known


_getitem_op: Primitive = _Getitem(
    "getitem", "a", lambda x, key, shape: x[key], lambda ct, y, x, key, shape: put(ct, options=(key, shape)),
    dims=_dims, ranked=True, beside=_whole_index, fixes={"mixes": _other_selections},
)  # fmt: skip


def getitem(x: Any, key: Any) -> Any:
    """Return ``x[key]``, indexed as in NumPy. Adjoint: zeros with the cotangent added at the indexed positions.

    An index that may differ between ranks makes the result Varying. Such indices are Tensors whose labels say so,
    numbers that remember their mesh axes, and arrays, unless `constant` marks the array as equal on all ranks. A list
    of Python numbers counts as equal on all ranks. Of parts of a sharded `x` the results are no parts of one value if
    the index is labelled as different, or a rank number; a plain array counts as equal there.
    So a slice of a random draw is Drawn, unless its bounds depend on ``mesh.axis(name).rank``.
    """
    return taken(x, key, key if isinstance(key, tuple) else (key,))


def _refuse_partial_index(index: Any) -> None:
    for axis, label in (index.layout or {}).items():
        if label is P:
            raise LayoutError(
                f"x[index] with the index {describe(index.array, index.array.shape, index.layout)}\n  axis {axis!r}: "
                "the index is Partial: each rank would use its own addend\n  fix: all_reduce(index, "
                f"{axis!r}, to=R)"
            )


def taken(x: Any, key: Any, by: Sequence[Any] = ()) -> Any:
    """Return ``x[key]`` for a key computed from the operands `by`, which may differ between ranks."""
    shape = (x.array if isinstance(x, Tensor) else x).shape
    layout = getattr(x, "layout", None)
    if layout is not None:
        if layout.drawn and rank_axes(by):
            # the first rows of a draw are the same on all ranks, also if the ranks take different numbers of them
            by = [slice(k.start, plain(k.stop), k.step) if isinstance(k, slice) else k for k in by]
            key = tuple(by) if isinstance(key, tuple | slice) else key
        axes = rank_axes(by)
        for operand in by:
            if operand.__class__ in TENSORS:
                labels = operand.layout or {}
                _refuse_partial_index(operand)
                axes = axes.union(axis for axis, label in labels.items() if label not in (R, I, C, D))
            elif _is_index_array(operand):
                axes = axes.union(axis for axis, label in layout.items() if type(label) is not Shard)
        if axes:
            shape = tuple(LocalCount(n, axes) for n in shape)
    return _getitem_op(x, options=(normal_key(key, x.array if isinstance(x, Tensor) else x), shape))


# -- the parts of an array ---------------------------------------------------------------------------------------------
def _picked(x: Any, i: Any) -> Any:
    """The part `x`, or the list of parts, that the index i has picked, with the label of ``whole[i]``."""
    if not rank_axes(i):
        return x
    if isinstance(i, slice):
        return [taken(part, ..., (i,)) if part.__class__ in TENSORS else part for part in x]
    return taken(x, ..., (i,)) if x.__class__ in TENSORS else x


class ListOfParts(list[Any]):
    """A list of the parts of a Tensor under a mesh.

    A plain list would forget that the ranks picked different parts, which would keep the label of equal copies.
    """

    def __getitem__(self, i: Any) -> Any:
        return _picked(super().__getitem__(i), i)


class TupleOfParts(tuple[Any, ...]):
    """A tuple of the parts of a Tensor under a mesh; see `ListOfParts`."""

    def __getitem__(self, i: Any) -> Any:
        return _picked(super().__getitem__(i), i)


SEQUENCES = frozenset((list, tuple, ListOfParts, TupleOfParts))
"""The types of lists and tuples in which operations look for Tensors."""


def as_parts(parts: Any) -> Any:
    """A list or tuple of the parts of an array. Under a mesh, a part that a rank number picks differs between ranks."""
    if state.grid is None:
        return parts
    return ListOfParts(parts) if parts.__class__ is list else TupleOfParts(parts)
