"""`from_local`: make a Tensor from a plain array, with a label for every axis of the mesh.

``x.local`` gives the plain array of a Tensor, without a layout. The way back must name every axis, because an omitted
axis could go unnoticed: a gradient that is summed over only one of two axes still has the right shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from autograd.arrays.device import as_array, dtype_name
from autograd.engine.leaves import Leaf, make_leaf
from autograd.engine.tensor import TENSORS
from autograd.errors import ArgumentError, LayoutError, ShapeError
from autograd.layouts.layout import Label, Shard
from autograd.layouts.messages import describe
from autograd.layouts.partition import labels_of_parts

from ..checks.modes import check_mode
from ..mesh import Axis, Mesh, current_mesh

__all__ = ["from_local"]


def from_local(
    array: Any,
    layout: Mapping[str, Label],
    *,
    requires_grad: bool = False,
    global_shape: Sequence[int] | None = None,
    name: str = "",
) -> Leaf:
    """A leaf made from this rank's part, with a label for every axis of the mesh.

    All ranks of the mesh must call it. If a label is Shard, they agree on the extents of the parts, which may be any,
    also zero: `global_shape` is then known, and every operation takes the parts. Copies that a label declares equal (R
    or I) are compared, unless the check mode is ``off`` (see `check`).

    Parameters
    ----------
    array : array
        This rank's part, from ``x.local`` or computed from it. It has no history, so no gradient flows back.
    layout : mapping from axis to label
        A label for every axis. ``dict(y.layout)`` gives the layout of another Tensor y.
    requires_grad, name
        As in `autograd.tensor`.
    global_shape : sequence of int, optional
        The whole value's shape, if it is known. The parts must then be those of numpy's array_split rule.

    Returns
    -------
    Leaf
        A Tensor with the shape and dtype of `array`.

    Raises
    ------
    LayoutError
        An axis has no label, or `array` is a Tensor, which already has a layout.
    ShapeError
        The parts of a Shard do not form one array: they differ in another dimension, or in their number of dimensions.
        Raised on every rank of its axes.
    ReplicaMismatch
        Copies that a label declares equal differ. Raised on every rank of the axis.

    Notes
    -----
    For a Shard, one exchange of a few bytes along its axes. The comparison of copies is one more along each axis.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> with cc.Mesh(dp=1, tp=1):
    ...     x = ag.tensor([1.0, 4.0], layout={"dp": cc.V, "tp": cc.R})
    ...     root = x.local ** 0.5
    ...     y = cc.from_local(root, {"dp": cc.V, "tp": cc.R})
    >>> y
    Tensor([1., 2.], layout={dp: V, tp: R})
    >>> def program():
    ...     with cc.Mesh(dp=3) as mesh:
    ...         mine = [1.0] * (5 - mesh.axis("dp").rank)
    ...         return cc.from_local(mine, {"dp": cc.Shard(0)}).global_shape
    >>> cc.run(program, ranks=3)
    [(12,), (12,), (12,)]
    """
    mesh = current_mesh()
    if array.__class__ in TENSORS:
        raise LayoutError(
            f"from_local was given a Tensor {describe(array.array, array.array.shape, array.layout)}, which has a "
            "layout; needed: a plain array\n  fix: cast(x, axis, to=...), or from_local(x.local, ...) under no_grad"
        )
    if not isinstance(layout, Mapping):
        raise ArgumentError(
            f"from_local: layout={layout!r} was given; needed: a label for every axis\n"
            f"  fix: cc.from_local(x, {{{', '.join(f'{axis!r}: Shard(0)' for axis in mesh.names)}}})"
        )
    missing = [axis for axis in mesh.names if axis not in layout]
    if missing:
        given = "{" + ", ".join(f"{a}: {x!r}" for a, x in layout.items()) + "}"
        needed = ", ".join(f"{axis!r}: ..." for axis in missing)
        raise LayoutError(
            f"from_local({describe(array, getattr(array, 'shape', ()), None)}, layout={given})\n  axis "
            f"{missing[0]!r}: no label is given for it. A plain array does not show along which axes it differs or is "
            f"an addend; needed: a label on each of {', '.join(map(repr, mesh.names))}\n  fix: "
            f"layout={{..., {needed}}}: V for separate values, P for addends, R for equal copies"
        )
    if global_shape is None:
        array = as_array(array)
        layout = _agreed(layout, array, mesh)
    x = make_leaf("from_local", array, layout, requires_grad, global_shape, name=name)
    if check_mode() != "off":  # without any copies too: ranks with different labels must get an error
        mesh.check_replicas([x])
        for axis in mesh.known_axes():
            if axis.group.checks is not None:
                axis.group.checks.tell_part(axis.group)
    return x


def _agreed(layout: Mapping[str, Label], array: Any, mesh: Mesh) -> Mapping[str, Label]:
    """The labels with the extents of all parts, which the ranks along the sharded axes exchange."""
    shards = [(name, label) for name in mesh.names if isinstance(label := layout[name], Shard)]
    axes = tuple([name for name, _ in shards])
    ndim = len(array.shape)
    dims = tuple([label.dim for _, label in shards])
    if not axes or not all(-ndim <= dim < ndim for dim in dims):  # `tensor` refuses the latter
        return layout
    dims = tuple([dim % ndim for dim in dims])
    on, grid = mesh.axis(axes), mesh.grid
    at = [grid.axis(name) for name in axes]
    shapes: tuple[tuple[int, ...], ...] = (tuple(int(n) for n in array.shape),)
    said: list[Any] = []
    if on.group.size > 1:
        labels = ", ".join(f"{name}: {layout[name]!r}" for name in mesh.names)
        text = f"from_local(axis={'*'.join(axes)!r} dtype={dtype_name(array.dtype)} layout={{{labels}}})"
        on.group.agree(lambda: text)
        mine = json.dumps([text, shapes[0]]).encode()
        said = [json.loads(each) for each in mesh.exchange(on.group, mine)]
        shapes = tuple([tuple(shape) for _, shape in said])
        if len({(text, len(shape)) for text, shape in said}) > 1:
            needed = "the same labels, dtype and number of dimensions on all ranks"
            raise ShapeError(_misfit(array, layout, on, said, needed))
    found = _labels_of_all(dims, shapes, tuple([grid.sizes[k] for k in at]), tuple([grid.place[k] for k in at]))
    if isinstance(found, int):
        raise ShapeError(_misfit(array, layout, on, said, f"one extent of dimension {found} for the ranks of a part"))
    return {**layout, **dict(zip(axes, found, strict=True))}


@lru_cache(maxsize=256)
def _labels_of_all(
    dims: tuple[int, ...], shapes: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], places: tuple[int, ...]
) -> tuple[Shard, ...] | int:
    """The label on each sharded axis, from the shapes of all parts; or a dimension in which parts do not fit together.

    The i-th axis shards the dimension ``dims[i]``. It has ``sizes[i]`` ranks; this rank's number is ``places[i]``.
    """
    table = np.array(shapes, np.int64).reshape(*sizes, len(shapes[0]))
    found: list[Any] = [None] * len(dims)
    for dim in range(len(shapes[0])):
        along = [i for i, d in enumerate(dims) if d == dim]
        # the extents may depend on the rank's place along the axes that shard this dimension only
        first = tuple(slice(None) if i in along else slice(0, 1) for i in range(len(dims)))
        extents = table[..., dim]
        if (extents != extents[first]).any():
            return dim
        if along:
            parts = labels_of_parts(dim, extents[first].reshape(-1).tolist(), [sizes[i] for i in along],
                                    [places[i] for i in along])  # fmt: skip
            for i, part in zip(along, parts, strict=True):
                found[i] = part
    return tuple(found)


def _misfit(array: Any, layout: Mapping[str, Label], on: Axis, said: list[Any], needed: str) -> str:
    labels = "{" + ", ".join(f"{name}: {label!r}" for name, label in layout.items()) + "}"
    lines = [f"  rank {rank} of the axis: {text}, shape {tuple(shape)}" for rank, (text, shape) in enumerate(said)]
    return "\n".join([
        f"from_local({describe(array, array.shape, None)} {labels}, axis {'*'.join(on.names)!r}): the parts do not "
        "form one array", *lines, f"  needed: {needed}",
    ])  # fmt: skip
