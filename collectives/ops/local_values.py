"""`to_local` and `from_local`: out of layouts, where a program computes with values of each rank, and back.

``x.local`` gives the plain array of a Tensor, without a layout and without a history. `to_local` leaves on the tape:
the program declares how the cotangents of the ranks will belong together, which the local computation does not show.
The way back of an array must name every axis, because an omitted axis could go unnoticed: a gradient that is summed
over only one of two axes still has the right shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from autograd.arrays.device import as_array, dtype_name
from autograd.engine.leaves import make_leaf
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import ArgumentError, LayoutError, ShapeError, short
from autograd.layouts.layout import C, D, I, Label, P, R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of
from autograd.layouts.partition import labels_of_parts

from ..checks.modes import check_mode
from ..mesh import Axis, Mesh, current_mesh
from .arguments import to_tensor
from .casts import ADDEND, COPIES, cast

__all__ = ["from_local", "to_local"]


# Label and declared label of the cotangent -> the labels that it passes, one cast after another.
_WAYS: dict[tuple[Label, Label], tuple[Label, ...]] = {
    (R, P): (V,), (I, P): (R, V), (I, I): (), (R, I): (I,), (V, V): (),
}  # fmt: skip
_DECLARE = {
    R: "{axis: P}: each rank has used its copy for itself, so the cotangents are addends; or {axis: I}, if all ranks "
       "compute the same",
    I: "{axis: P}, if the ranks use the value differently: the cotangents are addends, and backward sums them; or "
       "{axis: I}, if all ranks compute the same",
    P: "{axis: R}: each addend has the cotangent of the sum",
    V: "{axis: V}: each rank has the cotangent of its own value",
    Shard: "{axis: Shard(dim)} of the value itself: each rank has the cotangent of its part",
}  # fmt: skip


def to_local(x: Any, cotangent: Mapping[str, Label]) -> Tensor:
    """R, I, P, V or Shard -> V: leave layouts on some axes, with a declared label of the cotangent on each.

    Code of one rank computes with the result as it likes: V promises nothing, so nothing is refused. How the cotangents
    of the ranks belong together does not follow from that code, so it is declared. `from_local` is the way back.

    Formula and adjoint, on each axis of `cotangent`:

    ========  =========  ===============================  ============================  ==========================
    label     declared   the ranks use the value          result                        adjoint
    ========  =========  ===============================  ============================  ==========================
    R         P          each for itself                  V, the copy                   the identity
    I         P          each for itself                  V, the copy                   all-reduce
    I         I          all in the same way              I, the value itself           the identity
    R         I          all in the same way              I, the copy                   kept on the first rank
    P         R          linearly, all in the same way    V, the addend                 the identity, compared
    Shard(d)  Shard(d)   each its part                    V, the part                   the identity
    V         V          each its own                     V                             the identity
    ========  =========  ===============================  ============================  ==========================

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype.
    cotangent : mapping from axis to label
        The axes to leave. The others keep their labels. A constant has no cotangent, so any label is right for it.

    Returns
    -------
    Tensor
        With the array of `x`.

    Raises
    ------
    LayoutError
        The cotangents of a value with this label cannot have the declared one. Or the value declared as I meets data of
        one rank later, so that the ranks do not all compute the same.
    ReplicaMismatch
        In backward: R is declared, and the cotangents of the ranks differ. Raised on every rank of the axis, unless the
        check mode is ``off``.

    Notes
    -----
    No bytes forward. Backward of I declared as P is one all-reduce; of P declared as R, one exchange of 8 bytes.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=3) as mesh:
    ...         w = ag.Parameter([1.0, 2.0])
    ...         with ag.Tape() as tape:
    ...             mine = cc.to_local(w, cotangent={"dp": cc.P})
    ...             y = (mine ** 2).sum() * int(mesh.axis("dp").rank)
    ...             loss = cc.all_reduce(cc.from_local(y, {"dp": cc.P}), "dp", to=cc.I)
    ...         tape.backward(loss)
    ...         return w.grad.tolist()
    >>> cc.run(program, ranks=3)[0]  # 2 w (0 + 1 + 2)
    [6.0, 12.0]
    """
    mesh = current_mesh()
    if not isinstance(cotangent, Mapping) or not cotangent or not all(isinstance(c, Label) for c in cotangent.values()):
        raise ArgumentError(
            f"to_local: cotangent={short(cotangent)} was given; needed: a label for each axis to leave\n"
            f"  fix: cc.to_local(x, cotangent={{{mesh.names[0]!r}: P}}), if each rank uses x for itself"
        )
    x = to_tensor(x, "to_local")
    for axis, declared in cotangent.items():
        on = mesh.axis(axis)
        assert x.layout is not None
        have = x.layout[axis]
        is_same_part = isinstance(have, Shard) and isinstance(declared, Shard) and have.dim == declared.dim
        if have is P and declared is R:
            x = ADDEND.prepared(x, on.call(to=V, source=P, options="to_local")).apply(x)
        elif have is C or have is D or is_same_part:
            x = cast(x, axis, to=V)
        elif (have, declared) in _WAYS:
            for to in _WAYS[have, declared]:
                x = cast(x, axis, to=to)
        else:
            ways = _DECLARE.get(Shard if isinstance(have, Shard) else have, "a broadcast or scatter first: the other "
                                "ranks hold no data")  # fmt: skip
            ways = ways.replace("axis", repr(axis)).replace("Shard(dim)", repr(have))
            raise LayoutError(
                f"to_local({name_of(x) or 'x'}: {describe(x.array, x.array.shape, x.layout)}, "
                f"cotangent={{{axis!r}: {declared!r}}})\n  axis {axis!r}: the cotangents of a value that is "
                f"{have.word} are not {declared.word}\n  fix: cotangent={ways}"
            )
    return x


def from_local(
    array: Any,
    layout: Mapping[str, Label],
    *,
    requires_grad: bool = False,
    global_shape: Sequence[int] | None = None,
    name: str = "",
) -> Tensor:
    """Enter layouts: a leaf made from this rank's part, with a label for every axis; or V -> R, I, P, Shard, taped.

    An array has no history, so a leaf is made of it. A Tensor that is V on the axes of `layout`, as after `to_local`,
    gets their labels, and its gradient flows back: this is the way back into layouts inside a tape.

    All ranks of the mesh must call it. If a label is Shard, they agree on the extents of the parts, which may be any,
    also zero: `global_shape` is then known, and every operation takes the parts. Copies that a label declares equal (R
    or I) are compared, unless the check mode is ``off`` (see `check`).

    Parameters
    ----------
    array : array or Tensor
        This rank's part. An array, from ``x.local`` or computed from it, has no history, so no gradient flows back.
    layout : mapping from axis to label
        A label for every axis of an array; ``dict(y.layout)`` gives the layout of another Tensor y. A Tensor keeps its
        labels on the other axes.
    requires_grad, name
        As in `autograd.tensor`, for an array.
    global_shape : sequence of int, optional
        The whole value's shape, if it is known. The parts must then be those of numpy's array_split rule.

    Returns
    -------
    Tensor
        With the shape and dtype of `array`; a leaf, if that is an array.

    Raises
    ------
    LayoutError
        An axis has no label; or a Tensor has another label than V there, for which `cast` and the collectives are.
    ShapeError
        The parts of a Shard do not form one array: they differ in another dimension, or in their number of dimensions.
        Raised on every rank of its axes.
    ReplicaMismatch
        Copies that a label declares equal differ. Raised on every rank of the axis.

    Notes
    -----
    For a Shard, one exchange of a few bytes along its axes. The comparison of copies is one more along each axis.

    The adjoint of V -> R, P and Shard is the identity. That of V -> I is kept on the first rank: the copies are one
    value, which counts once. So the cotangents of V are addends in all cases, as `to_local` with ``cotangent=P`` needs
    them. Backward sends nothing.

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
    if not isinstance(layout, Mapping):
        raise ArgumentError(
            f"from_local: layout={layout!r} was given; needed: a label for every axis\n"
            f"  fix: cc.from_local(x, {{{', '.join(f'{axis!r}: Shard(0)' for axis in mesh.names)}}})"
        )
    if array.__class__ in TENSORS:
        return _entered(array, layout, requires_grad, global_shape, mesh)
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
        for axis in mesh.known_axes:
            if axis.group.checks is not None:
                axis.group.checks.tell_part(axis.group)
    return x


def _entered(
    x: Tensor, layout: Mapping[str, Label], requires_grad: bool, global_shape: Sequence[int] | None, mesh: Mesh
) -> Tensor:
    """A value of each rank with labels on some axes, recorded."""
    x = to_tensor(x, "from_local")
    assert x.layout is not None
    if requires_grad:
        raise ArgumentError(
            "from_local: requires_grad=True was given with a Tensor, whose gradient flows to what it was made of\n"
            "  fix: cc.from_local(ag.stop_gradient(x).local, layout, requires_grad=True), for a new leaf"
        )
    for axis, label in layout.items():
        have = x.layout[mesh.axis(axis).names[0]]
        if not (have is V or have is C or have is D or have is label):
            shown = f"from_local({name_of(x) or 'x'}: {describe(x.array, x.array.shape, x.layout)}, axis {axis!r})"
            raise LayoutError(
                f"{shown}\n  axis {axis!r}: the value is {have.word} already; needed: Varying, a value of this rank's "
                f"own\n  fix: cast(x, {axis!r}, to=...) or a collective, which change the label of a value; to_local "
                "before the computation on each rank, if this label was not meant"
            )
    only = {axis: layout.get(axis, V) for axis in mesh.names}
    if any(isinstance(label, Shard) for label in only.values()):
        if global_shape is None:
            only = dict(_agreed(only, x.array, mesh))
        agreed = make_leaf("from_local", x.array, only, False, global_shape).layout
        assert agreed is not None
        only = dict(agreed)
    for axis in reversed([axis for axis in mesh.names if axis in layout]):
        have, label = x.layout[axis], only[axis]
        if have is label:
            continue
        x = cast(x, axis, to=V)
        if label is R or label is I:
            on = mesh.axis(axis)
            x = COPIES.prepared(x, on.call(to=R, source=V, options="from_local")).apply(x)
        x = cast(x, axis, to=label)
        assert x.layout is not None
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


@lru_cache(maxsize=256)  # by the shapes of the parts; without it each `from_local` takes 30 us more
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
