"""Communication from or to one root: `broadcast`, `reduce`, `scatter` and `gather`.

==================================  ================  =====================================  ==================
forward                             layouts           adjoint                                cotangent
==================================  ================  =====================================  ==================
broadcast                           root -> R         reduce                                 P -> root
broadcast(to=I)                     root -> I         the root keeps its cotangent           I -> root
reduce                              P -> root         broadcast                              root -> R
scatter                             root -> V         gather                                 V -> root
gather                              V -> root         scatter                                root -> V
==================================  ================  =====================================  ==================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.shape_only import Shaped
from autograd.engine.recording import parents_of
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import LayoutError, ShapeError
from autograd.layouts.layout import C, I, Label, Layout, P, R, Rooted, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of
from autograd.layouts.partition import nested_parts

from ..checks import dropped, modes
from ..declaration.call import Call
from ..declaration.collective import Asked, Collective
from ..declaration.staging import Elsewhere, InShape, buffer_like, flat, from_front, front
from ..mesh import Axis, current_mesh
from ..transports.protocol import Request
from ..transports.request import Control
from . import headers
from .arguments import (
    AxisName,
    Use,
    addends,
    check_rank,
    check_to,
    group_of,
    operand,
    sample,
    sizes_of,
    to_tensor,
    user_function,
)
from .extents import check_inner, check_outer, extents_along, normal_dim
from .parts import counts_of, joined_dims, part_label, part_shape, whole_shape
from .sums import PARTS

__all__ = ["broadcast", "gather", "reduce", "scatter"]


def _coordinates(rank: int, sizes: Sequence[int]) -> list[int]:
    """Where a rank is on each of several axes. `numpy.unravel_index` takes four times as long."""
    found = []
    for size in reversed(sizes):
        rank, place = divmod(rank, size)
        found.append(place)
    return found[::-1]


def _root_label(call: Call, layout: Layout, k: int, shape: Any) -> Label:
    """The label of the result on the k-th axis: Rooted at the root's coordinate."""
    return Rooted(_coordinates(call.root, [layout.grid.sizes[layout.grid.axis(a)] for a in call.axes])[k])


def _elsewhere(shape: Sequence[int], dtype: Any, call: Call) -> Shaped:
    return Shaped(shape, dtype, f"it is rooted on rank {call.root} of axis {'*'.join(call.axes)!r}")


BROADCAST = Collective("broadcast", (Rooted, V), meets=True, rooted=True)
KEEP_ROOT = Collective("keep on the root", (I, C), _root_label, silent=True, rooted=True)
REDUCE = Collective("reduce", (P, V), _root_label, meets=True, adds=True, rooted=True, refuses={Shard: PARTS})
SCATTER = Collective("scatter", (Rooted, V), part_label, shape=part_shape, meets=True, rooted=True)
GATHER = Collective(
    "gather", (V, Shard), _root_label, shape=whole_shape, meets=True, gathers=True, rooted=True, resizes=joined_dims
)  # fmt: skip


def _sample(x: Any, call: Call) -> Any:
    """An array on the device for this rank's result: the operand if there is one, else the sample of the call."""
    return call.like if x is None or type(x) is Shaped else x


@BROADCAST.asks
def _(x: Any, call: Call) -> Asked:
    if call.group.index == call.root:
        return Request("broadcast", flat(x), root=call.root), InShape(call.shape)
    buffer = buffer_like(_sample(x, call), call.shape, call.dtype, call.group.dry)
    return Request("broadcast", out=buffer, root=call.root), InShape(call.shape)


@BROADCAST.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.to is R:
        return REDUCE(ct, call, source=P)
    return KEEP_ROOT(ct, call, source=I)


@KEEP_ROOT.forward
def _(x: Any, call: Call) -> Any:
    return x if call.group.index == call.root else _elsewhere(x.shape, x.dtype, call)


@KEEP_ROOT.adjoint
def _(ct: Any, call: Call) -> Any:
    return BROADCAST(ct, call, to=I, shape=tuple(ct.shape), dtype=ct.dtype)


@REDUCE.asks
def _(x: Any, call: Call) -> Asked:
    request = Request("reduce", flat(x), root=call.root)
    if call.group.index == call.root:
        return request, InShape(x.shape)
    return request, Elsewhere(_elsewhere(x.shape, x.dtype, call))


@REDUCE.adjoint
def _(ct: Any, call: Call) -> Any:
    return BROADCAST(ct, call, to=R, shape=tuple(ct.shape), dtype=ct.dtype)


@SCATTER.asks
def _(x: Any, call: Call) -> Asked:
    row = math.prod(call.shape[: call.dim] + call.shape[call.dim + 1 :])
    rows = front(x, call.dim)[0] if call.group.index == call.root else None
    request = Request("scatter", rows, counts=counts_of(call, row), root=call.root, dtype=call.dtype)
    finish = from_front(part_shape(call.shape, call), call.dim)

    def on_its_device(y: Any, x: Any, call: Call) -> Any:
        like = _sample(x, call)
        return finish(y, y if like is None else like, call)

    return request, on_its_device


@SCATTER.adjoint
def _(ct: Any, call: Call) -> Any:
    return GATHER(ct, call, source=V, shape=())


@GATHER.asks
def _(x: Any, call: Call) -> Asked:
    rows, row = front(x, call.dim)
    request = Request("gather", rows, counts=counts_of(call, row), root=call.root)
    shape = whole_shape(x.shape, call)
    if call.group.index == call.root:
        return request, from_front(shape, call.dim)
    return request, Elsewhere(_elsewhere(shape, x.dtype, call))


@GATHER.adjoint
def _(ct: Any, call: Call) -> Any:
    return SCATTER(ct, call, to=V, shape=tuple(ct.shape), dtype=ct.dtype)


# -- public functions ------------------------------------------------------------------------------------------


def _compared(x: Tensor, on: Axis, name: str) -> tuple[float, float]:
    """The numbers of the root's value, the 1st, 2nd, 4th, 8th, ... time; (0, 0) otherwise."""
    if name != "broadcast" or x.tape is None or type(x.array) is Shaped:
        return 0.0, 0.0
    n = on.kept["broadcast"] = on.kept.get("broadcast", 0) + 1
    return headers.projection(x.array) if modes.is_due(n) else (0.0, 0.0)


def _note_if_dropped(x: Tensor, on: Axis, name: str, root: int, theirs: tuple[float, float]) -> None:
    """Note on a rank that it has computed another value than the root: it is dropped, and no gradient flows to it.

    Backward warns of it, if nothing else uses the value.
    """
    value, scale = theirs
    if x.tape is None or not scale or type(x.array) is Shaped:
        return
    node = x.tape.node(x.node)
    mine = headers.projection(x.array)[0]
    if node is None or not parents_of(node) or abs(mine - value) <= scale * np.finfo(x.array.dtype).eps ** 0.5:
        return
    shown, axis = name_of(x), repr(on.names[0] if len(on.names) == 1 else on.names)
    text = (
        f"{name}({shown}: {describe(x.array, x.array.shape, x.layout)}, axis {axis}, root={root}): rank "
        f"{on.group.index} has computed another value than the root, rank {root}. Its value is dropped, and what it "
        "was computed from gets no gradient\n"
        f"  fix: if {shown} should be the same on all ranks, it is wrong before this call, as after a ring with a "
        "round too few or too many\n"
        f"  or:  None in place of {shown} on the other ranks, if the root's value alone is meant; "
        f"all_reduce({shown}, {axis}, to=I) for the sum"
    )
    dropped.note(on, x.tape, x.node, text)


def _from_root(x: Any, axis: AxisName, root: int, name: str, like: Any) -> tuple[Tensor, Axis, Any, Any]:
    """The operand of broadcast or scatter, the axis, and the shape and dtype of the root's value.

    On other ranks than the root `x` may be None. They then take shape, dtype and labels from the root's header.
    """
    mesh = current_mesh()
    on = mesh.axis(axis)
    check_rank(root, on, name, "root")
    at_root = on.group.index == root
    if at_root and x is None:
        raise ShapeError(f"{name}: None was given on the root, rank {root}; needed: the value")
    if x is not None:
        x = to_tensor(x, name)
    if like is not None:
        shape, dtype, labels = headers.outline_of(like, name, f"rank {root}")
        if at_root and tuple(shape) != tuple(x.array.shape):
            raise ShapeError(
                f"{name}: like of shape {tuple(shape)} was given, and the root's value has the shape "
                f"{tuple(x.array.shape)}; needed: the same\n  fix: like= a value of the root's shape, or none"
            )
    elif on.group.size == 1:
        shape, dtype, labels = x.array.shape, x.array.dtype, dict(x.layout)
    else:
        shape, dtype, labels = _outline_from_root(x, on, root, name)
    rooted = dict(zip(on.names, map(Rooted, _coordinates(root, sizes_of(on))), strict=True))
    if x is None:
        layout = mesh.grid.layout([rooted.get(a) or labels.get(a, V) for a in mesh.names])
        x = Tensor(Shaped(shape, dtype, f"it is rooted on rank {root} of axis {'*'.join(on.names)!r}"), layout)
    for a in on.names:
        have = x.layout[a]
        if isinstance(have, Rooted) and have != rooted[a]:
            raise LayoutError(
                f"{name}({describe(x.array, x.array.shape, x.layout)}, axis {a!r}, root={root})\n  axis {a!r}: x is "
                f"{have!r}, and the given root is {rooted[a]!r}\n  fix: root={have.root}"
            )
    return x, on, tuple(shape), dtype


def _outline_from_root(x: Any, on: Axis, root: int, name: str) -> Any:
    """Send the header of the root's value: its shape, its dtype and its labels, on all ranks of the axis."""
    at_root, recorded = on.group.index == root, state.recording is not None
    if on.group.checking:
        how = "recorded" if recorded else "not recorded"
        on.group.announce(f"{name}(axis={'*'.join(on.names)!r} root={root}) {how}", is_rooted=True)
    if at_root:
        numbers = _compared(x, on, name) if modes.limit else (0.0, 0.0)
        data = headers.write(x.array, x.layout, recorded, name, numbers=numbers)
    else:
        data = np.empty(headers.HEADER_BYTES, np.uint8)
    request = Control("broadcast", data, root=root) if at_root else Control("broadcast", root=root, out=data)
    current_mesh().ask(on.group)
    data = on.group.repeat(("outline", root), request)
    if on.group.dry and not at_root:
        return headers.outline_of(x, name, f"rank {root}")
    outline = headers.read(data, recorded, name, f"rank {root}")
    if not at_root and x is not None and modes.limit:
        _note_if_dropped(x, on, name, root, headers.projection_in(data))
    return outline


@user_function
def broadcast(
    x: Any, axis: AxisName, root: int = 0, to: Label = R, *, like: Any = None, algorithm: str | None = None
) -> Use:
    """Rooted -> R or I: copy the root's value to every rank of an axis.

    Formula: ``y_r = x_root``. Adjoint: with ``to=R`` the sum of the cotangents on the root, as by `reduce` (P ->
    Rooted); with ``to=I`` the root keeps its cotangent and the other ranks drop theirs, free (I -> Rooted).

    Parameters
    ----------
    x : Tensor, array or None
        The value on the root, of any shape and dtype. On other ranks it may be None.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    root : int
        The root's rank along the axis.
    to : R or I
        R if the ranks use the result separately, I if they all repeat one computation with it.
    like : Tensor or array, optional
        Shape, dtype and labels of the value, given on all ranks. The root then sends no header.
    algorithm : str, optional
        As in `all_reduce`. It applies to the value, not to the header.

    Returns
    -------
    Tensor
        R or I on the axis, with the shape, dtype and other labels of the root's value.

    Raises
    ------
    ShapeError
        `x` is None on the root.
    LayoutError
        `x` is R, I or P on the axis, or Rooted at another rank.
    MeshError
        `root` is out of range.
    CollectiveMismatch
        Some ranks record and others do not.
    AbsentError
        In a dry run, if `x` and `like` are None on another rank than the root.

    Notes
    -----
    A header of 1024 bytes, unless `like` is given, and the n bytes of the value, both by the transport's broadcast or
    by `algorithm`. It corresponds to MPI's Bcast.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=3):
    ...         x = ag.tensor([7.0]) if cc.world().rank == 1 else None
    ...         return cc.broadcast(x, "dp", root=1).numpy().tolist()
    >>> cc.run(program, ranks=3)
    [[7.0], [7.0], [7.0]]
    """
    check_to(to, (R, I), "broadcast")
    x, on, shape, dtype = _from_root(x, axis, root, "broadcast", like)
    group = group_of(on, algorithm, "broadcast")
    call = on.call(group, to=to, root=int(root), shape=shape, dtype=dtype, like=sample(like))
    return Use(BROADCAST, x, call, like is not None or on.group.size == 1)


@user_function
def scatter(x: Any, axis: AxisName, root: int = 0, dim: int = 0, *, like: Any = None) -> Use:
    """Rooted -> Shard(dim): send each rank its part of the root's value, split as by ``numpy.array_split``.

    Formula: ``y_r = part_r(x_root)``. Adjoint: `gather` (V -> Rooted).

    Parameters
    ----------
    x : Tensor, array or None
        The value on the root, of any shape with a dimension `dim`. On other ranks it may be None.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    root : int
        The root's rank along the axis.
    dim : int
        The dimension that is split.
    like : Tensor or array, optional
        As in `broadcast`.

    Returns
    -------
    Tensor
        Shard(dim) on the axis.

    Raises
    ------
    ShapeError
        `x` is None on the root, or has no dimension `dim`.
    LayoutError
        `x` is R, I or P on the axis, or Rooted at another rank, or an inner axis already splits `dim`.
    MeshError
        `root` is out of range.
    CollectiveMismatch
        Some ranks record and others do not.
    AbsentError
        As in `broadcast`.

    Notes
    -----
    A header of 1024 bytes, unless `like` is given. The root sends ``n (p-1)/p`` bytes in ``p-1`` messages for a value
    of n bytes. It corresponds to MPI's Scatterv.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         x = ag.tensor([1.0, 2.0, 3.0]) if cc.world().rank == 0 else None
    ...         return cc.scatter(x, "dp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[1.0, 2.0], [3.0]]
    """
    x, on, shape, dtype = _from_root(x, axis, root, "scatter", like)
    dim = normal_dim(dim, shape, "scatter")
    check_inner(x, on, dim, "scatter")
    extents = nested_parts(int(shape[dim]), sizes_of(on))
    call = on.call(root=int(root), dim=dim, extents=extents, shape=shape, dtype=dtype, like=sample(like))
    return Use(SCATTER, x, call, like is not None or on.group.size == 1)


@user_function
def reduce(x: Any, axis: AxisName, root: int = 0, *, algorithm: str | None = None) -> Use:
    """P (or V) -> Rooted: the sum over the ranks of an axis, on the root only. On other ranks the result is absent.

    Formula: ``y_root = sum_r x_r``. Adjoint: `broadcast` (Rooted -> R).

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype, the same on all ranks. A plain array is V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    root : int
        The root's rank along the axis.
    algorithm : str, optional
        As in `all_reduce`.

    Returns
    -------
    Tensor
        Rooted on the axis, with the shape of `x` and the dtype of `all_reduce`: small integers and booleans are added
        in 64 bits.

    Raises
    ------
    LayoutError
        `x` is R or I: equal copies would be counted once per rank. Or it is a Shard; see `all_reduce`.
    MeshError
        `root` is out of range.

    Notes
    -----
    n bytes per rank by the transport's reduce or by `algorithm`. It corresponds to MPI's Reduce.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         y = cc.reduce(ag.tensor([1.0]), "dp", root=1)
    ...         return y.data
    >>> cc.run(program, ranks=2)
    [None, array([2.])]
    """
    x, on = addends(x, axis, REDUCE)
    check_rank(root, on, "reduce", "root")
    return Use(REDUCE, x, on.call(group_of(on, algorithm, "reduce"), root=int(root)))


@user_function
def gather(x: Any, axis: AxisName, root: int = 0, dim: int = 0) -> Use:
    """V -> Rooted: concatenate the parts of all ranks along `dim` on the root. On other ranks the result is absent.

    Formula: ``y_root = concatenate(x_0, ..., x_{p-1})``. Parts may be uneven. Adjoint: `scatter` (Rooted -> V).

    Parameters
    ----------
    x : Tensor or array, V or Shard(dim)
        The same dtype and shape on all ranks, except for the extent of `dim`.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    root : int
        The root's rank along the axis.
    dim : int
        The dimension along which the parts are concatenated.

    Returns
    -------
    Tensor
        Rooted on the axis. Its extent along `dim` is the sum of the extents of the parts.

    Raises
    ------
    LayoutError
        `x` is R, I or P, or it is sharded along another dimension, or an inner axis still splits `dim`.
    ShapeError
        `x` has no dimension `dim`.
    MeshError
        `root` is out of range.

    Notes
    -----
    The root receives ``n (p-1)/p`` bytes in ``p-1`` messages for a result of n bytes. If `x` is V, the ranks exchange
    their extents first. It corresponds to MPI's Gatherv.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         y = cc.gather(ag.tensor([float(cc.world().rank)]), "dp")
    ...         return y.data
    >>> cc.run(program, ranks=2)
    [array([0., 1.]), None]
    """
    x, on = operand(x, axis, "gather")
    check_rank(root, on, "gather", "root")
    dim = normal_dim(dim, x.array.shape, "gather")
    GATHER.check(x, on)
    check_outer(x, on, dim, "gather")
    extents, is_known = extents_along(x, on, dim, GATHER)
    return Use(GATHER, x, on.call(root=int(root), dim=dim, extents=extents), is_known)
