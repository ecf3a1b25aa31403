"""Ghost cells: each rank's part, surrounded by the edges of its neighbours' parts, and the adjoint.

Dimensions are exchanged one at a time. The exchange along the second dimension includes the ghost cells of the first,
so it fills the corners without messages to diagonal neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import as_array
from autograd.arrays.half import is_half
from autograd.arrays.shape_only import DRY, Shaped
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, LayoutError, MeshError, ShapeError
from autograd.layouts.layout import Shard, V
from autograd.layouts.messages import describe

from ..declaration.call import Call
from ..declaration.collective import Collective
from ..declaration.staging import buffer_like, flat
from ..mesh import Axis, current_mesh
from .arguments import AxisName, operand
from .extents import extents_along, normal_dim
from .parts import part_shape

__all__ = ["halo_exchange"]


class Borders(NamedTuple):
    """The number of ghost cells before and after, and whether the first and the last rank are neighbours."""

    before: int
    after: int
    periodic: bool


# -- the declarations, along one dimension -----------------------------------------------------------------------------


def _with_ghosts(shape: list[int], call: Call) -> list[int]:
    shape[call.dim] += call.options.before + call.options.after
    return shape


HALO_EXCHANGE = Collective("halo_exchange", (V, Shard), V, shape=_with_ghosts)
ADD_GHOSTS = Collective("add ghosts", (V,), V, shape=part_shape)


@HALO_EXCHANGE.forward
def _(x: Any, call: Call) -> Any:
    before, after, _ = call.options
    dry = call.group.dry
    n = x.shape[call.dim]
    low, high = _swap(call, to_left=x[_cells(call, 0, after)], to_right=x[_cells(call, n - before, n)],
                      from_left=before, from_right=after)  # fmt: skip
    shape = (*x.shape[: call.dim], before + n + after, *x.shape[call.dim + 1 :])
    if dry:
        return Shaped(shape, x.dtype, DRY)
    y = np.zeros_like(x, shape=shape)
    y[_cells(call, before, before + n)] = x
    if low is not None:
        y[_cells(call, 0, before)] = low
    if high is not None:
        y[_cells(call, before + n, before + n + after)] = high
    return y


@HALO_EXCHANGE.adjoint
def _(ct: Any, call: Call) -> Any:
    return ADD_GHOSTS(ct, call)


@ADD_GHOSTS.forward
def _(ct: Any, call: Call) -> Any:
    """Add each ghost cell's cotangent to that of the cell's owner; drop those beyond an open border."""
    before, after, _ = call.options
    dry = call.group.dry
    n = call.extents[call.group.index]
    low, high = _swap(call, to_left=ct[_cells(call, 0, before)],
                      to_right=ct[_cells(call, before + n, before + n + after)],
                      from_left=after, from_right=before)  # fmt: skip
    own = ct[_cells(call, before, before + n)]
    if dry:
        return own
    own = own.astype(np.float32 if is_half(ct.dtype) else ct.dtype)  # sums are rounded once
    if high is not None:  # from the right neighbour's ghost cells before its part
        own[_cells(call, n - before, n)] += high
    if low is not None:
        own[_cells(call, 0, after)] += low
    return own.astype(ct.dtype, copy=False)


@ADD_GHOSTS.adjoint
def _(ct: Any, call: Call) -> Any:
    return HALO_EXCHANGE(ct, call)


def _cells(call: Call, start: int, end: int) -> tuple[slice, ...]:
    return (*(slice(None),) * call.dim, slice(start, end))


def _swap(
    call: Call, to_left: np.ndarray, to_right: np.ndarray, from_left: int, from_right: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Send to both neighbours and receive from both. Return None for data beyond an open border, or of width 0.

    If a rank is the neighbour on both sides, the two messages are sent in the same order in both directions.
    """
    group, periodic = call.group, call.options.periodic
    at, size = group.index, group.size
    left = (at - 1) % size if at > 0 or periodic else None
    right = (at + 1) % size if at < size - 1 or periodic else None
    if left == at:
        return to_right, to_left  # a single rank with a periodic border is its own neighbour on both sides
    for target, cells in ((right, to_right), (left, to_left)):
        if target is not None and cells.shape[call.dim]:
            group.send(flat(cells), target)
    found: list[np.ndarray | None] = []
    for source, cells, width in ((left, to_left, from_left), (right, to_right, from_right)):
        if source is None or not width:
            found.append(None)
            continue
        shape = list(cells.shape)
        shape[call.dim] = width
        buffer = buffer_like(cells, shape, cells.dtype, group.dry)
        found.append(group.recv(buffer, source).reshape(shape))
    return found[0], found[1]


# -- public functions ------------------------------------------------------------------------------------------


def halo_exchange(
    x: Any,
    axis: AxisName | Sequence[AxisName] | None = None,
    width: Any = None,
    dim: int | Sequence[int] | None = None,
    periodic: bool | Sequence[bool] = False,
    *,
    axes: AxisName | Sequence[AxisName] | None = None,
    widths: Any = None,
    dims: int | Sequence[int] | None = None,
) -> Tensor:
    """V -> V: this rank's part with ghost cells around it, which are copies of the neighbours' cells.

    Formula: ``y_r = concatenate(last cells of x_{r-1}, x_r, first cells of x_{r+1})`` along each dimension, with zeros
    beyond an open border. With several dimensions the corners are filled too. Adjoint: the cotangent of each ghost cell
    is added to that of the cell on its owner. Cotangents of ghost cells beyond an open border are dropped (V -> V).

    Parameters
    ----------
    x : Tensor or array, V or Shard(dim) on each axis
        This rank's part without ghost cells. Parts may be uneven along an axis; their other extents are the same on all
        ranks of that axis.
    axis : str, or a sequence with one axis per dimension
        The mesh axis along which each dimension is split. Several axes flattened into one are a tuple in place of the
        name. If `dim` is a number, `axis` may be such a tuple.
    width : int, (before, after), or a sequence with one of them per dimension
        The number of ghost cells. One number is the width on both sides, of all dimensions if `dim` is a sequence.
    dim : int or sequence of int
        The dimensions, in the order of `axis`; 0 by default.
    periodic : bool, or a sequence with one per dimension
        Whether the first and the last rank are neighbours.
    axes, widths, dims
        Other names of `axis`, `width` and `dim`, for several dimensions.

    Returns
    -------
    Tensor
        V on the axes, longer than `x` by ``before + after`` along each of the dimensions.

    Raises
    ------
    ShapeError
        A width is negative or larger than the neighbour's part, or `axis`, `width`, `dim` and `periodic` do not match.
    ArgumentError
        An argument is missing, or given under both of its names.
    MeshError
        An axis is given twice.
    LayoutError
        `x` is R, I or P on one of the axes, or it is sharded there along another dimension.

    Notes
    -----
    Two messages per dimension and rank. Their size is the width times the other extents of the part, including the
    ghost cells of earlier dimensions. If `x` is V and not Shard, the ranks exchange their extents first. Float16
    cotangents are added in float32 and rounded once per dimension. It is used in domain decomposition (Smith, Bjorstad,
    Gropp 1996).

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=3):
    ...         x = ag.tensor([10.0 * cc.world().rank, 10.0 * cc.world().rank + 1])
    ...         return cc.halo_exchange(x, "dp", 1, periodic=True).numpy().tolist()
    >>> for part in cc.run(program, ranks=3):
    ...     print(part)
    [21.0, 0.0, 1.0, 10.0]
    [1.0, 10.0, 11.0, 20.0]
    [11.0, 20.0, 21.0, 0.0]
    """
    names: list[Any]
    axes = _either("axis", axis, "axes", axes)
    widths = _either("width", width, "widths", widths)
    dims = 0 if dim is None and dims is None else _either("dim", dim, "dims", dims)
    if not isinstance(dims, int | np.integer | tuple | list):
        raise ArgumentError(f"halo_exchange: dims={dims!r} was given; needed: an integer or several")
    if isinstance(dims, int | np.integer):
        names, wanted, cuts, wraps = [axes], [widths], [dims], [periodic]
    else:
        cuts = list(dims)
        names = list(axes) if isinstance(axes, tuple | list) else [axes]
        wanted = list(widths) if isinstance(widths, tuple | list) else [widths] * len(cuts)
        wraps = list(periodic) if isinstance(periodic, tuple | list) else [periodic] * len(cuts)
    if not len(names) == len(wanted) == len(cuts) == len(wraps):
        raise ShapeError(
            f"halo_exchange: {len(names)} axes, {len(wanted)} widths and {len(wraps)} periodic for {len(cuts)} dims "
            f"{tuple(cuts)}; needed: one of each per dimension"
        )
    shape = (x.array if isinstance(x, Tensor) else as_array(x)).shape
    at = [normal_dim(d, shape, "halo_exchange") for d in cuts]
    if len(set(at)) < len(at):
        raise ShapeError(f"halo_exchange: dims={tuple(cuts)} names a dimension twice; needed: each once")
    used: list[str] = []
    for each in names:
        x, on = operand(x, each, "halo_exchange")
        HALO_EXCHANGE.check(x, on)
        used += on.names
    if len(set(used)) < len(used):
        raise MeshError(f"halo_exchange: axes={axes!r} names an axis twice; needed: one axis per dimension, or one "
                        "tuple of axes for one dimension")  # fmt: skip
    for each, cells, at_dim, wrap in zip(names, wanted, at, wraps, strict=True):
        x = _exchange(x, each, _borders(cells, wrap), at_dim)
    return x


def _either(name: str, value: Any, other_name: str, other: Any) -> Any:
    """The argument that is given under one of two names."""
    if (value is None) == (other is None):
        given = f"both {name}={value!r} and {other_name}={other!r}"
        given = f"neither {name} nor {other_name}" if value is None else given
        raise ArgumentError(
            f"halo_exchange was given {given}; needed: one of them\n  fix: cc.halo_exchange(x, 'dp', 1, dim=0)"
        )
    return other if value is None else value


def _borders(width: Any, periodic: Any) -> Borders:
    pair = tuple(width) if isinstance(width, tuple | list) else (width, width)
    if not isinstance(periodic, bool | np.bool_ | int):
        raise ArgumentError(f"halo_exchange: periodic={periodic!r} was given; needed: True or False")
    if len(pair) != 2 or any(not isinstance(w, int | np.integer) or isinstance(w, bool) or w < 0 for w in pair):
        raise ShapeError(
            f"halo_exchange: widths={width!r} was given for one dimension; needed: a number >= 0, or a pair "
            "(before, after)"
        )
    return Borders(int(pair[0]), int(pair[1]), bool(periodic))


def _exchange(x: Tensor, axis: AxisName, borders: Borders, dim: int) -> Tensor:
    x, on = operand(x, axis, "halo_exchange")
    layout, mesh = x.layout, current_mesh()
    assert layout is not None
    for name, label in layout.items():
        if isinstance(label, Shard) and label.dim == dim and name not in on.names:
            both = tuple(n for n in mesh.names if n in on.names or n == name)
            raise LayoutError(
                f"halo_exchange({x.name or 'x'}: {describe(x.array, x.array.shape, layout)}, axis "
                f"{'*'.join(on.names)!r}, dim={dim})\n  axis {name!r}: x is {label!r} on this axis too, so the "
                f"neighbours along dimension {dim} lie on both axes\n  fix: axis={both!r} for this dimension"
            )
    extents, _ = extents_along(x, on, dim, HALO_EXCHANGE)
    _check_widths(x, on, borders, dim, extents)
    result: Tensor = HALO_EXCHANGE(x, on.call(dim=dim, extents=extents, options=borders))
    return result


def _check_widths(x: Tensor, on: Axis, borders: Borders, dim: int, extents: tuple[int, ...]) -> None:
    size = on.group.size
    for rank in range(size):
        for step, width, side in ((-1, borders.before, "before"), (1, borders.after, "after")):
            if not (borders.periodic or 0 <= rank + step < size):
                continue
            owner = (rank + step) % size
            if extents[owner] < width:
                raise ShapeError(
                    f"halo_exchange({describe(x.array, x.array.shape, x.layout)}, axis {'*'.join(on.names)!r}, "
                    f"dim={dim}): rank {rank} of the axis needs {width} cells of rank {owner}, the one {side} it, "
                    f"which holds {extents[owner]} along dimension {dim}\n  needed: widths no larger than the "
                    f"neighbour's part; the parts have {list(extents)}\n  fix: fewer ranks along the axis, or smaller "
                    "widths and more exchanges"
                )
