"""Microbatches: consecutive parts of a batch's rows, with the labels that the parts have on the mesh."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd.arrays.device import as_array, is_array
from autograd.arrays.plain import require_plain
from autograd.engine.leaves import Leaf
from autograd.engine.pytree import flatten, tree_map
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS
from autograd.errors import ArgumentError, OptionError, TapeError
from autograd.layouts.layout import Layout, Shard, V
from autograd.layouts.partition import extents_of_parts, labels_of_parts, nested_parts, parts

__all__ = ["Division", "Microbatches", "signature_of", "split_batch"]


class Microbatches(list[Any]):
    """A batch that is divided into microbatches already: Tensors, or containers of them, one for each.

    Where the rows are sharded over a mesh axis, a batch can be divided first into microbatches and then over the axis,
    so that the rows of a microbatch do not depend on the number of ranks.
    """


Division = list[tuple[slice, Layout | None]]
"""The rows of each microbatch, and its layout."""


def split_batch(
    batch: Any, microbatches: int, axis: str | None, what: str, known: dict[Any, Division] | None = None
) -> list[Any]:
    """Divide the rows of a batch (dimension 0) into microbatches by the rule of ``numpy.array_split``.

    Parameters
    ----------
    batch : Tensor, array, or container of these
        They have the same number of rows. Where rows are sharded, each rank divides its own part.
    microbatches : int
    axis : str or None
        The pipeline's axis, on which the results are Varying: they are used by one of its ranks.
    what : str
        The argument's name, for errors.
    known : dict, optional
        The divisions of earlier batches by number of rows and layout, to which that of this one is added.

    Returns
    -------
    list
        One Tensor, or container of them, for each microbatch.

    Raises
    ------
    OptionError
        There are fewer rows than microbatches.
    """
    if isinstance(batch, Microbatches):
        if len(batch) != microbatches:
            raise OptionError(
                f"Pipeline: {what} has {len(batch)} microbatches; needed: {microbatches}\n  fix: "
                f"microbatches={len(batch)} for the Pipeline"
            )
        return [tree_map(lambda x: _varying(x, axis), of) for of in batch]
    leaves, structure = flatten(batch)
    divided = [_split(x, microbatches, axis, what, {} if known is None else known) for x in leaves]
    if structure.kind is None:
        return divided[0]
    return [structure.rebuild([of[i] for of in divided]) for i in range(microbatches)]


def _varying(x: Any, axis: str | None) -> Any:
    """A Tensor, or an array, with the label V on the pipeline's axis, and by default on all others."""
    array, layout = (x.array, x.layout) if x.__class__ in TENSORS else (as_array(x), None)
    if layout is None and state.grid is not None:
        layout = state.grid.uniform(V)
    return Leaf(array, layout if layout is None or axis is None else layout.replace((axis,), V))


def _split(x: Any, m: int, axis: str | None, what: str, known: dict[Any, Division]) -> list[Leaf]:
    is_tensor = x.__class__ in TENSORS
    if is_tensor and x.tape is not None:
        raise TapeError(f"Pipeline: {what} was computed on a tape; needed: data, a leaf or an array")
    if not is_tensor:
        require_plain(x, f"Pipeline: {what}", numbers=False)
    array = x.array if is_tensor else x if is_array(x) else np.asarray(x)
    layout = x.layout if is_tensor else None
    if array.dtype.kind not in "biufc" or not array.shape:
        raise ArgumentError(
            f"Pipeline: {what} contains {type(x).__name__} of shape {array.shape} and dtype {array.dtype}; needed: "
            "arrays or Tensors whose first dimension has the rows"
        )
    key = array.shape[0], m, axis, state.grid if layout is None else layout
    division = known.get(key)
    if division is None:
        if layout is None and state.grid is not None:
            layout = state.grid.uniform(V)
        division, is_settled = _divide(array.shape, m, axis, what, layout)
        if is_settled:  # without it, 4 microbatches take 50 us, with it 11
            known[key] = division
    return [Leaf(array[rows], own) for rows, own in division]


def _divide(
    shape: tuple[int, ...], m: int, axis: str | None, what: str, layout: Layout | None
) -> tuple[Division, bool]:
    """The microbatches of an array, and whether they follow from the number of its rows and its layout alone."""
    axes = [] if layout is None else [a for a, label in layout.items() if type(label) is Shard and label.dim == 0]
    extents, offsets = parts(shape[0], m)
    tables, is_settled = None, True
    if layout is not None and axes:
        tables, is_settled = _tables(layout, axes, shape, m)
    rows = shape[0] if tables is None else sum(map(sum, tables))
    if rows < m:
        raise OptionError(
            f"Pipeline: {what} has {rows} row{'s' * (rows != 1)} for {m} microbatches; needed: at least one row for "
            f"each\n  fix: microbatches={max(1, rows)}, or a larger batch"
        )
    layouts = [layout] * m
    if layout is not None and tables is not None:
        layouts = [_relabelled(layout, axes, table) for table in tables]
    if axis is not None:
        layouts = [own if own is None else own.replace((axis,), V) for own in layouts]
    slices = [slice(offset, offset + n) for offset, n in zip(offsets, extents, strict=True)]
    return list(zip(slices, layouts, strict=True)), is_settled


def _relabelled(layout: Layout, axes: list[str], table: list[int]) -> Layout:
    """The layout of a microbatch, of which the ranks along `axes` have the rows in `table`."""
    at = [layout.grid.axis(a) for a in axes]
    sizes, places = [layout.grid.sizes[k] for k in at], [layout.grid.place[k] for k in at]
    for a, label in zip(axes, labels_of_parts(0, table, sizes, places), strict=True):
        layout = layout.replace((a,), label)
    return layout


def _tables(
    layout: Layout, axes: list[str], shape: tuple[int, ...], m: int
) -> tuple[list[list[int]] | None, bool]:
    """The rows that each rank along the axes has of each microbatch; None if the ranks have not agreed on extents.

    And whether they follow from the layout: otherwise the ranks have exchanged them.
    """
    labels: list[Any] = [layout[a] for a in axes]
    sizes = [layout.grid.sizes[layout.grid.axis(a)] for a in axes]
    if any(label.extent is None for label in labels):
        return None, True
    rows: list[int]
    is_settled = True
    if all(label.extents is None for label in labels):  # the same answer on all ranks: see `labels_of_parts`
        rows = list(nested_parts(labels[0].extent, sizes, [label.unit for label in labels]))
    elif len(axes) == 1:
        rows = list(extents_of_parts(labels[0], sizes[0]))
    else:
        rows, is_settled = [s[0] for s in state.mesh.shapes(axes, shape)[0]], False
    return [[parts(n, m)[0][i] for n in rows] for i in range(m)], is_settled


def signature_of(batch: Any) -> tuple[Any, ...]:
    """The shape, dtype and layout of each Tensor of a microbatch."""
    return tuple([(x.array.shape, x.array.dtype, x.layout) for x in flatten(batch)[0]])
