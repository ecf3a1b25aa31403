"""Whole values of Shards, for checkpoints: gathered from the ranks' parts, and cut into parts again.

Every ``state_dict`` reads values by `whole_of`, and every ``load_state_dict`` takes them by `part_of`. So these two
decide for all objects how a state leaves a rank: gathered; or, in the block of `in_pieces`, as the `Piece` that the
rank holds, from which nobody has to gather. A `Stored` value is the other way round: a whole in files, of which
`part_of` reads this rank's part only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays.device import to_host
from .arrays.lossless import refuse_loss
from .arrays.plain import require_plain, require_plain_array
from .engine.state import state
from .engine.tensor import TENSORS
from .errors import MeshError, ShapeError, typed
from .layouts.layout import Layout, Shard
from .layouts.messages import describe
from .layouts.partition import require_agreed

__all__ = [
    "OwnedState", "Piece", "Stored", "are_pieces", "in_pieces", "part_of", "place_in_whole", "sharded_axes", "whole_of",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Piece:
    """The part of a value that this rank holds: its array, which is not copied, and the layout of the value."""

    array: Any
    layout: Layout | None


class Stored:
    """A whole value that is not in memory. Subclasses read parts of it.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    shape: tuple[int, ...]
    dtype: Any

    def __getitem__(self, box: Any) -> Any:
        """Read a part, given by a slice for each dimension, into a new array."""
        raise NotImplementedError

    def reshaped(self, shape: tuple[int, ...]) -> Stored | None:
        """The same value with dimensions split or merged; None if `shape` is another."""
        raise NotImplementedError


class _Mode(threading.local):
    pieces = False


_mode = _Mode()


class in_pieces:
    """A block in which `whole_of`, and so every ``state_dict``, gives a `Piece` for each array and sends nothing."""

    def __enter__(self) -> None:
        self.before, _mode.pieces = _mode.pieces, True

    def __exit__(self, *_: object) -> None:
        _mode.pieces = self.before


def are_pieces() -> bool:
    """Whether this thread is in the block of `in_pieces`."""
    return _mode.pieces


def sharded_axes(layout: Layout | None) -> list[str]:
    """The axes with several ranks along which a value is divided, in the mesh's order."""
    if layout is None or not layout.special:
        return []
    grid = layout.grid
    return [
        name for name, size, label in zip(grid.names, grid.sizes, layout.labels, strict=True)
        if size > 1 and type(label) is Shard
    ]  # fmt: skip


def whole_of(array: Any, layout: Layout | None, caller: str, name: str) -> Any:
    """A copy of the whole value of which this rank holds `array`, on the host.

    All ranks along the axes of a Shard call it, and each gets the whole. `array` may be None if this rank has no part;
    the result is None if none has one.

    Raises
    ------
    MeshError
        The value is divided, and its mesh is not current.
    DtypeError
        It is no plain array, as a buffer may be: see `require_plain_array`.
    """
    if isinstance(array, np.ndarray | np.generic):
        require_plain_array(array, f"{caller}: {name}", stored=True)
    if _mode.pieces:
        return None if array is None else Piece(array, layout)
    host = None if array is None else np.array(to_host(array))
    axes = sharded_axes(layout)
    if not axes:
        return host
    assert layout is not None
    if state.grid is not layout.grid:
        raise MeshError(
            f"{caller}({name}): it is {layout!r}, and this rank holds a part of it; the other parts are gathered along "
            f"the mesh, which is not current\n  fix: call {caller} inside `with mesh:`, on all ranks"
        )
    for axis in reversed(axes):  # an axis that is named earlier is the outer one
        label = layout[axis]
        assert isinstance(label, Shard)
        call = f"{caller}({name}), which gathers the parts of a Shard, so that all ranks call it (axis={axis!r})"
        host = state.distribution.gathered(host, label.dim, axis, call)
    return host


def place_in_whole(shape: Sequence[int], layout: Layout) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """The shape of the value of which a rank holds a part of this shape, and the place of the part.

    The ranks have agreed on the extents. Labels other than Shard are left out of account.
    """
    whole, box = list(shape), [slice(0, n) for n in shape]
    known: set[int] = set()
    for label in layout.labels:
        if type(label) is Shard:
            assert label.extent is not None and label.offset is not None
            if label.dim not in known:  # the outermost axis knows the extent of the whole
                known.add(label.dim)
                whole[label.dim] = label.extent
            start = box[label.dim].start + label.offset
            box[label.dim] = slice(start, start + shape[label.dim])
    return tuple(whole), tuple(box)


class OwnedState(dict[str, Any]):
    """A state whose arrays are of nobody else, as those read from a file are: who takes them needs no copies."""

    @staticmethod
    def with_dtype(state: Any, value: Any, part: Any, dtype: Any) -> Any:
        """A part of a value of a state, with a dtype. It is copied unless it is the whole value, of an `OwnedState`.

        A part of a `Stored` value is nobody else's.
        """
        is_own = isinstance(value, Stored) or isinstance(state, OwnedState) and part.size == np.size(value)
        return part.astype(dtype, copy=not is_own)


def part_of(value: Any, array: Any, layout: Layout | None, caller: str, name: str, dtype: Any = None) -> Any:
    """This rank's part of a whole value; `array` and `layout` are those of the destination, and `dtype`, if another.

    It keeps its dtype. A Tensor with the same labels as the destination is this rank's part already.

    Raises
    ------
    ShapeError
        The shape is not that of the whole value.
    DtypeError
        In the destination's dtype the values would lose more than rounding: see `refuse_loss`.
    LayoutError
        The destination is a Shard whose extents the ranks have not agreed on.
    """
    shape = tuple(map(int, array.shape))
    if value.__class__ in TENSORS:
        same = value.layout is not None and layout is not None and value.layout.labels == layout.labels
        layout, value = None if same else layout, value.array
    if not isinstance(value, Stored):
        require_plain(value, f"{caller}: {name}")
    try:
        value = value if isinstance(value, Stored) else np.asarray(to_host(value))
    except (TypeError, ValueError) as error:
        raise typed(error, (
            f"{caller}: {name} is a {type(value).__name__}, of which NumPy makes no array: {error}\n"
            "  fix: x.float() of a tensor of torch in bfloat16"
        )) from error  # fmt: skip
    dtype = array.dtype if dtype is None else dtype
    whole, box = shape, tuple(map(slice, shape))
    if sharded_axes(layout):
        assert layout is not None
        require_agreed(layout, shape, f"{caller} of {name}, which takes this rank's part of the whole value,")
        whole, box = place_in_whole(shape, layout)
    if isinstance(value, Stored) and value.shape != whole:  # a fused projection is divided in blocks
        value = value.reshaped(whole) or value
    if value.shape != whole:
        text = f"{caller}: {name} has shape {value.shape}; needed: {whole}"
        if whole != shape:
            text += (
                f", the shape of the whole value, of which each rank takes its part: {name} is "
                f"{describe(array, shape, layout)}"
            )
        if value.shape == shape:
            text += (
                "\n  An array of this rank's shape may be the part of another rank\n  fix: the whole value, as "
                "state_dict and nn.save on all ranks give it; or ag.tensor(part, layout, global_shape=...), "
                "a Tensor with the label of the parameter, for this rank's own part"
            )
        raise ShapeError(text)
    if isinstance(value, Stored):
        part = value[box]
        refuse_loss(part, dtype, caller, name)
        return part
    refuse_loss(value, dtype, caller, name)
    return value[box]
