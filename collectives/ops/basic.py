"""The collectives, each beside its adjoint; `axis` is a mesh axis or a tuple of them. Those of the last five rows stand
in files of their own: `scan`, `halo`, `onesided`, `extremes`.

==================================  ================  =====================================  ==================
forward                             layouts           adjoint                                cotangent
==================================  ================  =====================================  ==================
all_reduce(to=R)                    P -> R            all_reduce(to=R)                       P -> R
all_reduce(to=I)                    P -> I            cast(to=R), free                       I -> R
cast(to=R)                          I -> R            all_reduce(to=I)                       P -> I
cast(to=I)                          R -> I            cast(to=P)                             I -> P
cast(to=P)                          I -> P, R -> P    free; the same                         R -> I, R -> P
all_gather(to=R)                    V -> R            reduce_scatter                         P -> V
all_gather(to=I)                    V -> I            shard                                  I -> V
reduce_scatter                      P -> V            all_gather(to=R)                       V -> R
shard                               R -> V            pad with zeros                         V -> P
shard                               I -> V            all_gather(to=I)                       V -> I
all_to_all                          V -> V            all_to_all, dimensions exchanged       V -> V
permute, send/recv                  V -> V            the inverse permutation                V -> V
broadcast                           root -> R         reduce                                 P -> root
broadcast(to=I)                     root -> I         the root keeps its own                 I -> root
reduce                              P -> root         broadcast                              root -> R
scatter                             root -> V         gather                                 V -> root
gather                              V -> root         scatter                                root -> V
declare_partial                     V -> P            free                                   R -> V
scan, exscan                        V -> V            the sums in the other direction        V -> V
halo_exchange                       V -> V            ghosts are added to their owners'      V -> V
get                                 V -> V            one-sided accumulate                   V -> V
all_max, all_min                    V -> R, I         to the winners, in equal shares        P -> V, I -> V
all_prod                            V -> R, I         times the product of the others        P -> V, I -> V
==================================  ================  =====================================  ==================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import is_array
from autograd.arrays.shape_only import Shaped
from autograd.engine.parameter import tensor
from autograd.engine.recording import FREE
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import AbsentError, LayoutError, MeshError, ShapeError, call_site
from autograd.layouts.layout import C, D, I, Label, P, R, Rooted, Shard, V
from autograd.layouts.messages import describe

from ..call import Call
from ..collective import Repeated
from ..mesh import Axis, Mesh, check_name, current_mesh
from ..transports.protocol import Communicator
from . import headers
from . import pairs as pair
from .extents import check_inner, check_outer, checked_counts, coming, extents_along, nested_parts, normal_dim

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "broadcast", "cast", "declare_partial", "gather", "mean", "permute",
    "recv", "reduce", "reduce_scatter", "scatter", "send", "shard",
]  # fmt: skip

AxisName = str | Sequence[str]


def _operand(x: Any, name: str) -> Tensor:
    """The operand as a Tensor under the current mesh; a plain array is V."""
    mesh = current_mesh()
    if x is None:
        raise ShapeError(f"{name} was given None; needed: an array or Tensor on every rank" + call_site())
    x = x if x.__class__ in TENSORS else tensor(x)
    if x.layout is None:
        x.layout = x.labelled(mesh.grid)
    elif x.layout.grid is not mesh.grid:
        raise LayoutError(
            f"{name}: x has layout {x.layout!r} of another mesh; the current one is {mesh!r}" + call_site()
        )
    return x


def _begin(x: Any, axis: AxisName, name: str, root: int | None = None) -> tuple[Tensor, Axis, Mesh]:
    mesh = state.mesh
    found = mesh._axes.get(axis) if mesh is not None and axis.__class__ is str else None
    if found is None:
        mesh = current_mesh()
        found = mesh.axis(axis)
    if root is None and x.__class__ in TENSORS and x.layout is not None and x.layout.grid is mesh.grid:
        return x, found, mesh
    if root is not None:
        _check_rank(root, found, name, "root")
    return _operand(x, name), found, mesh


def _check_rank(rank: Any, axis: Axis, name: str, what: str) -> None:
    if not isinstance(rank, int | np.integer) or isinstance(rank, bool) or not 0 <= rank < axis.size:
        raise MeshError(
            f"{name}: {what}={rank!r} was given; axis {'*'.join(axis.names)!r} has ranks 0 to {axis.size - 1}"
            + call_site()
        )


def _check_to(to: Label, allowed: tuple[Label, ...], name: str) -> None:
    if to not in allowed:
        raise LayoutError(f"{name}: to={to!r} was given; needed: to={' or to='.join(map(repr, allowed))}" + call_site())


def _group(on: Axis, algorithm: str | None, name: str) -> Communicator:
    """The ranks along the axis, with the algorithm asked for, which adjoints inherit."""
    return on.group if algorithm is None else on.using(check_name(algorithm, name))


def all_reduce(x: Any, axis: AxisName, to: Label = R, *, algorithm: str | None = None) -> Tensor:
    """P (or V) -> R or I: the sum over the ranks of an axis.

    Formula: ``y = sum_r x_r``. Adjoint: with ``to=R`` the cotangents of the separately used copies are summed,
    ``ct_x = sum_r ct_r`` (P -> R); with ``to=I`` the one cotangent is handed on, free (I -> R).

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype, the same on all ranks. A plain array is V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    to : R or I
        R where the ranks go on separately with the result, I where they repeat one computation.
    algorithm : str, optional
        A name of `collectives.algorithms.table`, in the place of the mesh's; the adjoint's too.

    Raises
    ------
    LayoutError
        `x` is R or I: equal copies, whose sum is the number of ranks times the value.

    Notes
    -----
    About ``2 n (p-1)/p`` bytes and ``2 (p-1)`` messages a rank with a ring. In the literature: Megatron-LM's g
    (``to=I``; Shoeybi et al. 2019, section 3), psum in JAX.

    Examples
    --------
    >>> import collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=3):
    ...         x = cc.world().rank + 1.0
    ...         return cc.all_reduce(ag.tensor([x]), "dp").numpy().tolist()
    >>> import autograd as ag
    >>> cc.run(program, ranks=3)
    [[6.0], [6.0], [6.0]]
    """
    mesh = state.mesh
    on: Any = mesh._axes.get(axis) if mesh is not None and axis.__class__ is str else None
    if on is not None and x.__class__ in TENSORS and (to is R or to is I):
        known = on.calls.get((to, x.layout, algorithm))  # the axis knows no layout of another mesh
        if known is not None:
            return known.again(x)
    _check_to(to, (R, I), "all_reduce")
    x, on, _ = _begin(x, axis, "all_reduce")
    call = Call(on.names, _group(on, algorithm, "all_reduce"), to=to)
    y: Tensor = pair.all_reduce(x, call)
    layout = x.layout
    assert layout is not None
    out = pair.all_reduce.label(x, layout, call)
    on.calls[to, layout, algorithm] = Repeated(pair.all_reduce, call, layout, out)
    return y


def mean(x: Any, axis: AxisName, to: Label = R) -> Tensor:
    """P (or V) -> R or I: the sum over the ranks divided by their number.

    Formula: ``y = sum_r x_r / p``; the division is recorded, so the adjoint is that of `all_reduce`, divided by p.
    It is
    the mean of what the ranks hold: of *local means* it is the global mean only where all ranks count the same.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         return float(cc.mean(ag.tensor(float(cc.world().rank)), "dp"))
    >>> cc.run(program, ranks=2)
    [0.5, 0.5]
    """
    return all_reduce(x, axis, to) / current_mesh().axis(axis).size


def cast(x: Any, axis: AxisName, to: Label = R) -> Tensor:
    """State another layout for the same value; forward it moves nothing.

    ======  =========  ==========================================  =======================================
    from    to         forward                                     adjoint
    ======  =========  ==========================================  =======================================
    I       R          the identity                                all-reduce (P -> I): Megatron-LM's f
    R       I          the identity                                kept on the first rank (I -> P)
    I, R    P          kept on the first rank, zeros elsewhere     the identity (R -> I); the same (R -> P)
    V       P          the identity: `declare_partial`             the identity
    R       V          the identity                                the identity (V is P: the addends)
    Shard   V          the identity                                the identity
    V       Shard(d)   the identity, parts equal on all ranks      the identity
    ======  =========  ==========================================  =======================================

    Raises
    ------
    LayoutError
        P to anything (the sum must be taken), V to R or I (nothing says that the values are equal).

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> with cc.Mesh(dp=1):
    ...     w = ag.Parameter([1.0])
    ...     print(w.layout, cc.cast(w, "dp", to=cc.R).layout)
    {dp: I} {dp: R}
    """
    x, on, mesh = _begin(x, axis, "cast")
    if not isinstance(to, Label):
        raise LayoutError(f"cast: to={to!r} was given; needed: R, I, P, V or Shard(dim)" + call_site())
    assert x.layout is not None
    labels = {x.layout[a] for a in on.names}
    if len(labels) > 1:  # one axis at a time
        for name in on.names:
            x = cast(x, name, to)
        return x
    (have,) = labels
    if have is D:  # cast says what is meant, so a draw is a constant here
        have = C
        x = Tensor(x.array, x.layout.replace(on.names, C), None, -1 if state.recording is None else FREE)
    call = Call(on.names, on.group, to=to, source=have)
    if have is to or (isinstance(have, Shard) and isinstance(to, Shard) and have == to):
        return x
    if have is C and (to is R or to is I or to is V):
        return Tensor(x.array, x.layout.replace(on.names, to), None, -1 if state.recording is None else FREE)
    if have is I and to is R:
        return pair.enter(x, call)
    if have is R and to is I:
        return pair.leave(x, call)
    if to is P and (have is I or have is R or have is C):
        return pair.keep_first(x, call)
    if have is I and to is V:
        return cast(cast(x, axis, R), axis, V)
    if (to is V and (have is R or isinstance(have, Shard))) or (to is P and have is V):
        return pair.relabel(x, call)
    if isinstance(to, Shard) and have is V:
        return pair.relabel(x, call.but(to=_equal_shard(x, on, to)))
    raise LayoutError(
        f"cast({x.name or 'x'}: {describe(x.array, x.array.shape, x.layout)}, axis {'*'.join(on.names)!r}, to={to!r})\n"
        f"  axis {'*'.join(on.names)!r}: x is {have.word}, and "
        f"{_CAST_WHY.get(have.letter, 'no free cast leads there')}\n"
        f"  fix: {_CAST_FIX.get((have.letter, to.letter), 'name the collective that is meant')}" + call_site()
    )


_CAST_WHY = {
    "P": "its sum is not taken: nothing short of a reduction makes it anything else",
    "V": "nothing says that the ranks' values are equal",
    "S": "its parts differ",
    "O": "the other ranks hold no data",
}
_CAST_FIX = {
    ("P", "R"): "all_reduce(x, axis, to=R)",
    ("P", "I"): "all_reduce(x, axis, to=I)",
    ("P", "V"): "reduce_scatter(x, axis, dim=...)",
    ("P", "S"): "reduce_scatter(x, axis, dim=...)",
    ("V", "R"): "all_reduce(x, axis, to=R) for the sum, all_gather(x, axis) for the parts, broadcast(x, axis) for one",
    ("V", "I"): "all_reduce(x, axis, to=I) for the sum, all_gather(x, axis, to=I) for the parts",
    ("S", "R"): "all_gather(x, axis, dim=..., to=R)",
    ("S", "I"): "all_gather(x, axis, dim=..., to=I)",
    ("R", "S"): "shard(x, axis, dim=...)",
    ("I", "S"): "shard(x, axis, dim=...)",
    ("O", "R"): "broadcast(x, axis, root=..., to=R)",
    ("O", "I"): "broadcast(x, axis, root=..., to=I)",
    ("O", "V"): "scatter(x, axis, root=...) or broadcast(x, axis, root=...)",
}


def _equal_shard(x: Tensor, on: Axis, to: Shard) -> Shard:
    if len(on.names) > 1:
        raise LayoutError(
            f"cast to Shard over {on.names}; needed: one axis at a time, the inner one first" + call_site()
        )
    dim = normal_dim(to.dim, x.array.shape, "cast")
    if to.extent is not None:
        return to
    assert x.layout is not None
    grid, k = x.layout.grid, x.layout.grid.axis(on.names[0])
    for i, label in enumerate(x.layout.labels):
        if isinstance(label, Shard) and label.dim == dim and i < k:
            raise LayoutError(
                f"cast({describe(x.array, x.array.shape, x.layout)}, axis {on.names[0]!r}, to={to!r})\n  axis "
                f"{grid.names[i]!r}: the outer axis says how dimension {dim} is cut already\n  fix: cast the "
                f"inner axis, "
                f"{on.names[0]!r}, first" + call_site()
            )
    inner = [x for x in x.layout.labels[k + 1 :] if isinstance(x, Shard) and x.dim == dim]
    n = int(inner[0].extent or 0) if inner else int(x.array.shape[dim])
    return Shard(dim, n * on.size, n * int(on.rank))


def declare_partial(x: Any, axis: AxisName) -> Tensor:
    """V -> P: state that the ranks' values are addends of one value. Free; adjoint R -> V, free.

    Raises
    ------
    LayoutError
        `x` is anything but V: R or I would be counted once per rank.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> with cc.Mesh(tp=1):
    ...     print(cc.declare_partial(ag.tensor([1.0]), "tp").layout)
    {tp: P}
    """
    x, on, _ = _begin(x, axis, "declare_partial")
    assert x.layout is not None
    for a in on.names:
        if x.layout[a] is not V and not isinstance(x.layout[a], Shard):
            raise LayoutError(
                f"declare_partial({describe(x.array, x.array.shape, x.layout)}, axis {a!r})\n  axis {a!r}: x is "
                f"{x.layout[a].word}; needed: Varying\n  fix: cast(x, {a!r}, to=P)   (one copy, kept on the first rank)"
                + call_site()
            )
    return pair.relabel(x, Call(on.names, on.group, to=P))


def all_gather(x: Any, axis: AxisName, dim: int = 0, to: Label = R, *, algorithm: str | None = None) -> Tensor:
    """V -> R or I: every rank's part, concatenated along `dim` in order of rank. Uneven parts are legal.

    Formula: ``y = concatenate(x_0, ..., x_{p-1})``. Adjoint: with ``to=R`` a reduce-scatter (P -> V), with ``to=I``
    this rank's own slice, free (I -> V).

    Parameters
    ----------
    x : Tensor or array, V or Shard(dim)
        The same dtype and shape on all ranks, but for the extent of `dim`.
    to : R or I
    algorithm : str, optional
        As in `all_reduce`.

    Raises
    ------
    LayoutError
        `x` is R, I (it is whole already) or P (addends, not parts), or is sharded along another dimension, or an inner
        axis still cuts `dim`.

    Notes
    -----
    ``n (p-1)/p`` bytes of the result a rank. FSDP's and ZeRO-3's parameter gather (Rajbhandari et al. 2020).

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         return cc.all_gather(ag.tensor([float(cc.world().rank)]), "dp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[0.0, 1.0], [0.0, 1.0]]
    """
    _check_to(to, (R, I), "all_gather")
    x, on, mesh = _begin(x, axis, "all_gather")
    dim = normal_dim(dim, x.array.shape, "all_gather")
    assert x.layout is not None
    pair.all_gather.check(x, on)
    check_outer(x, x.layout, on, dim, "all_gather")
    extents = extents_along(x, x.layout, on, mesh, dim, "all_gather")
    group = _group(on, algorithm, "all_gather")
    return pair.all_gather(x, Call(on.names, group, to=to, dim=dim, extents=extents))


def reduce_scatter(x: Any, axis: AxisName, dim: int = 0, *, algorithm: str | None = None) -> Tensor:
    """P (or V) -> Shard(dim): this rank's part of the sum, by numpy's array_split rule.

    Formula: ``y_r = part_r(sum_s x_s)``. Adjoint: all_gather (V -> R). `algorithm` as in `all_reduce`.

    Notes
    -----
    ``n (p-1)/p`` bytes a rank. The exit of sequence parallelism (Korthikanti et al. 2022).

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(tp=2):
    ...         return cc.reduce_scatter(ag.tensor([1.0, 2.0, 3.0]), "tp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[2.0, 4.0], [6.0]]
    """
    x, on, mesh = _begin(x, axis, "reduce_scatter")
    dim = normal_dim(dim, x.array.shape, "reduce_scatter")
    assert x.layout is not None
    pair.reduce_scatter.check(x, on)
    check_inner(x, x.layout, on, dim, "reduce_scatter")
    group = _group(on, algorithm, "reduce_scatter")
    return pair.reduce_scatter(x, Call(on.names, group, to=V, dim=dim, extents=_cut(x, on, mesh, dim)))


def shard(x: Any, axis: AxisName, dim: int = 0) -> Tensor:
    """R or I -> Shard(dim): keep this rank's part, by numpy's array_split rule. Forward it moves nothing.

    Adjoint: of R, the cotangent padded with zeros (V -> P); of I, all_gather(to=I) (V -> I), Megatron-LM's scatter.

    Raises
    ------
    LayoutError
        `x` is P: a slice of an addend is not a slice of the sum (use `reduce_scatter`); or V.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(tp=2):
    ...         x = ag.tensor([1.0, 2.0, 3.0], layout={"tp": cc.R})
    ...         return cc.shard(x, "tp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[1.0, 2.0], [3.0]]
    """
    x, on, mesh = _begin(x, axis, "shard")
    dim = normal_dim(dim, x.array.shape, "shard")
    assert x.layout is not None
    pair.shard.check(x, on)
    check_inner(x, x.layout, on, dim, "shard")
    labels = {x.layout[a] for a in on.names}
    if len(labels) > 1:
        raise LayoutError(
            f"shard({describe(x.array, x.array.shape, x.layout)}, axis {'*'.join(on.names)!r}): the labels on "
            f"these axes "
            "differ\n  fix: cast the Invariant ones to R first" + call_site()
        )
    call = Call(on.names, on.group, to=V, source=labels.pop(), dim=dim, extents=_cut(x, on, mesh, dim))
    return pair.shard(x, call)


def _cut(x: Tensor, on: Axis, mesh: Mesh, dim: int) -> tuple[int, ...]:
    return nested_parts(int(x.array.shape[dim]), [mesh.sizes[mesh.grid.axis(a)] for a in on.names])


def all_to_all(
    x: Any, axis: AxisName, split_dim: int = 0, concat_dim: int = 1, *, counts: Sequence[int] | None = None
) -> Tensor:
    """V -> V, or Shard(concat_dim) -> Shard(split_dim): cut along one dimension, join along another or the same.

    Rank r sends its s-th part along `split_dim` to rank s, and joins what it receives along `concat_dim` in order of
    rank. Adjoint: the same with the two dimensions exchanged; along one dimension, with what was sent and what was
    received exchanged.

    Parameters
    ----------
    x : Tensor or array
    axis : str or tuple of str
    split_dim, concat_dim : int
        Where they are the same, parts are exchanged as MPI's Alltoallv does, and the result is V: of a Shard too, whose
        order it changes.
    counts : sequence of int, optional
        With one dimension only: how much of it goes to each rank, this rank's own choice; nearly equal parts without.

    Raises
    ------
    ShapeError
        `counts` are not one number a rank, or do not sum to the extent, or were given with two dimensions.

    Notes
    -----
    ``n (p-1)/p`` bytes a rank. DeepSpeed-Ulysses (Jacobs et al. 2023), expert dispatch (Lepikhin et al. 2020). Along
    one dimension the ranks first tell each other how much is coming.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(sp=2):
    ...         x = ag.tensor([[cc.world().rank * 10.0], [cc.world().rank * 10.0 + 1]])
    ...         return cc.all_to_all(x, "sp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[[0.0, 10.0]], [[1.0, 11.0]]]
    >>> def dispatch():
    ...     with cc.Mesh(ep=2) as mesh:
    ...         x = ag.tensor([1.0, 2.0, 3.0]) * float(1 + 9 * int(mesh.axis("ep").rank))
    ...         return cc.all_to_all(x, "ep", 0, 0, counts=[1, 2]).numpy().tolist()
    >>> cc.run(dispatch, ranks=2)
    [[1.0, 10.0], [2.0, 3.0, 20.0, 30.0]]
    """
    x, on, mesh = _begin(x, axis, "all_to_all")
    split_dim = normal_dim(split_dim, x.array.shape, "all_to_all")
    concat_dim = normal_dim(concat_dim, x.array.shape, "all_to_all")
    assert x.layout is not None
    pair.all_to_all.check(x, on)
    check_inner(x, x.layout, on, split_dim, "all_to_all")
    check_outer(x, x.layout, on, concat_dim, "all_to_all")
    if split_dim == concat_dim:
        cuts = _cut(x, on, mesh, split_dim) if counts is None else checked_counts(x, on, split_dim, counts)
        joins = coming(x, x.layout, on, split_dim, cuts)
    elif counts is not None:
        raise ShapeError(
            f"all_to_all: counts={list(counts)} was given with split_dim={split_dim} and concat_dim={concat_dim}: what "
            "a rank receives must fit together along both. Needed: counts along one dimension, split_dim == concat_dim"
            + call_site()
        )
    else:
        cuts = _cut(x, on, mesh, split_dim)
        joins = extents_along(x, x.layout, on, mesh, concat_dim, "all_to_all")
    call = Call(on.names, on.group, to=V, dim=split_dim, extents=cuts, dim2=concat_dim, extents2=joins)
    return pair.all_to_all(x, call)


def permute(x: Any, axis: AxisName, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """V -> V: for every (src, dst), rank dst gets rank src's value; who gets none gets zeros.

    Adjoint: the same with every pair reversed.

    Parameters
    ----------
    pairs : sequence of (src, dst)
        The same on all ranks; each rank at most once as src and once as dst.

    Raises
    ------
    MeshError
        A rank out of range, or named twice.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(pp=3):
    ...         x = ag.tensor([float(cc.world().rank)])
    ...         return cc.permute(x, "pp", [(0, 1), (1, 2), (2, 0)]).numpy().tolist()
    >>> cc.run(program, ranks=3)
    [[2.0], [0.0], [1.0]]
    """
    x, on, _ = _begin(x, axis, "permute")
    given = tuple((s, t) for s, t in pairs)
    for both in given:
        for rank in both:
            _check_rank(rank, on, "permute", "a rank of pairs")
    for side, what in ((0, "source"), (1, "destination")):
        ranks = [both[side] for both in given]
        if len(set(ranks)) != len(ranks):
            raise MeshError(f"permute: a rank is a {what} twice in {list(given)}; needed: at most once" + call_site())
    given = tuple((int(s), int(t)) for s, t in given)
    return pair.permute(x, Call(on.names, on.group, pairs=given))


def send(x: Any, axis: AxisName, dst: int) -> None:
    """V -> (there): send this rank's value to rank `dst`, which calls `recv`. Returns nothing, and does not block.

    Adjoint: receives the cotangent from `dst` in the backward sweep, whether or not the value reached the loss there.
    Shape, dtype and the labels on the other axes travel with it.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(pp=2) as mesh:
    ...         if mesh.axis("pp").rank == 0:
    ...             cc.send(ag.tensor([1.0, 2.0]), "pp", 1)
    ...         else:
    ...             return cc.recv("pp", 0).numpy().tolist()
    >>> cc.run(program, ranks=2)
    [None, [1.0, 2.0]]
    """
    x, on, _ = _begin(x, axis, "send")
    _check_rank(dst, on, "send", "dst")
    if dst == on.group.rank:
        raise MeshError(f"send: dst={dst} is this rank itself; needed: another rank" + call_site())
    assert x.layout is not None
    pair.send.check(x, on)
    recorded = state.recording is not None
    others = x.layout.replace(on.names, V)
    on.group.send(headers.write(x.array, others, recorded, "send/recv"), int(dst))
    pair.send(x, Call(on.names, on.group, root=int(dst), shape=x.array.shape, dtype=x.array.dtype))


def _sample(like: Any) -> Any:
    """An empty array of the device on which `like` lives; None for the host."""
    array = like.array if like.__class__ in TENSORS else like
    if array is None or isinstance(array, np.ndarray | np.generic | Shaped) or not is_array(array):
        return None
    return np.empty_like(array, shape=(0,))


def recv(axis: AxisName, src: int, *, like: Any = None) -> Tensor:
    """(there) -> V: receive the value that rank `src` sends; blocks until it is here.

    The value arrives on the device of `like`, if one is given; shape, dtype and labels come with it, but in a dry run,
    where nothing comes: there they are those of `like`. Adjoint: sends the cotangent to `src`, zeros where the value
    did not reach the loss. See `send` for an example.

    Raises
    ------
    CollectiveMismatch
        One of the two ranks records and the other does not.
    AbsentError
        In a dry run, without `like`.
    """
    mesh = current_mesh()
    on = mesh.axis(axis)
    _check_rank(src, on, "recv", "src")
    if src == on.group.rank:
        raise MeshError(f"recv: src={src} is this rank itself; needed: another rank" + call_site())
    data = on.group.recv(np.empty(headers.HEADER_BYTES, np.uint8), int(src))
    if on.group.dry:
        shape, dtype, labels = _told(like, "recv", f"rank {src}")
    else:
        shape, dtype, labels = headers.read(data, state.recording is not None, "send/recv", f"rank {src}")
    layout = mesh.grid.layout([labels.get(a, V) for a in mesh.names]).replace(on.names, V)
    call = Call(on.names, on.group, root=int(src), shape=shape, dtype=dtype, like=_sample(like))
    return pair.received(call, layout)


def _told(like: Any, name: str, sender: str) -> tuple[tuple[int, ...], np.dtype, dict[str, Label]]:
    """Shape, dtype and labels by `like`, where no header can tell them."""
    if like is None:
        raise AbsentError(
            f"{name}: {sender} would send the shape first, and in a dry run it sends nothing. Needed: the shape and "
            f"dtype here too. Fix: {name}(..., like=ag.tensor(array of that shape, layout=...))" + call_site()
        )
    labels = dict(like.layout) if like.__class__ in TENSORS and like.layout is not None else {}
    return tuple(like.shape), np.dtype(like.dtype), labels


def _from_root(x: Any, axis: AxisName, root: int, name: str, like: Any) -> tuple[Tensor, Axis, Mesh, Any, Any]:
    """The operand of broadcast or scatter: off the root it may be None, and the root's header tells the rest."""
    mesh = current_mesh()
    on = mesh.axis(axis)
    _check_rank(root, on, name, "root")
    at_root = on.group.rank == root
    if at_root and x is None:
        raise ShapeError(f"{name}: None was given on the root, rank {root}; needed: the value" + call_site())
    recorded = state.recording is not None
    if x is not None:
        x = _operand(x, name)
    if like is not None:
        shape, dtype, labels = _told(like, name, f"rank {root}")
    elif on.size == 1:
        shape, dtype, labels = x.array.shape, x.array.dtype, dict(x.layout)
    else:
        if on.group.checking:
            said = "recorded" if recorded else "not recorded"
            on.group.announce(f"{name}(axis={'*'.join(on.names)!r} root={root}) {said}", is_rooted=True)
        data = headers.write(x.array, x.layout, recorded, name) if at_root else np.empty(headers.HEADER_BYTES, np.uint8)
        data = on.group.broadcast(data, root)
        if on.group.dry and not at_root:
            shape, dtype, labels = _told(x, name, f"rank {root}")
        else:
            shape, dtype, labels = headers.read(data, recorded, name, f"rank {root}")
    sizes = [mesh.sizes[mesh.grid.axis(a)] for a in on.names]
    rooted = dict(zip(on.names, map(Rooted, pair.coordinates(root, sizes)), strict=True))
    if x is None:
        layout = mesh.grid.layout([rooted.get(a) or labels.get(a, V) for a in mesh.names])
        x = Tensor(Shaped(shape, dtype, f"it is rooted on rank {root} of axis {'*'.join(on.names)!r}"), layout)
    for a in on.names:
        have = x.layout[a]
        if isinstance(have, Rooted) and have != rooted[a]:
            raise LayoutError(
                f"{name}({describe(x.array, x.array.shape, x.layout)}, axis {a!r}, root={root})\n  axis {a!r}: x is "
                f"{have!r}, and the root asked for is {rooted[a]!r}\n  fix: root={have.root}" + call_site()
            )
    return x, on, mesh, shape, dtype


def broadcast(
    x: Any, axis: AxisName, root: int = 0, to: Label = R, *, like: Any = None, algorithm: str | None = None
) -> Tensor:
    """Rooted -> R or I: the root's value on every rank. Elsewhere `x` may be None.

    Adjoint: with ``to=R`` the sum of the cotangents, on the root (P -> Rooted): broadcast <-> reduce. With ``to=I`` the
    root keeps its cotangent and the others drop theirs, free (I -> Rooted).

    Parameters
    ----------
    x : Tensor, array, or None off the root
    root : int
        The rank along the axis.
    like : Tensor or array, optional
        On all ranks: shape, dtype and labels, so that the root need not send them first.
    algorithm : str, optional
        As in `all_reduce`; for the value, not for the header before it.

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
    _check_to(to, (R, I), "broadcast")
    x, on, _, shape, dtype = _from_root(x, axis, root, "broadcast", like)
    group = _group(on, algorithm, "broadcast")
    call = Call(on.names, group, to=to, root=int(root), shape=shape, dtype=dtype, like=_sample(like))
    return pair.broadcast(x, call)


def scatter(x: Any, axis: AxisName, root: int = 0, dim: int = 0, *, like: Any = None) -> Tensor:
    """Rooted -> Shard(dim): every rank's part of the root's value, by numpy's array_split rule.

    Elsewhere `x` may be None. Adjoint: gather (V -> Rooted). `like` as in `broadcast`.

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
    x, on, mesh, shape, dtype = _from_root(x, axis, root, "scatter", like)
    dim = normal_dim(dim, shape, "scatter")
    if x.layout is not None:
        check_inner(x, x.layout, on, dim, "scatter")
    extents = nested_parts(int(shape[dim]), [mesh.sizes[mesh.grid.axis(a)] for a in on.names])
    call = Call(on.names, on.group, root=int(root), dim=dim, extents=extents, shape=shape, dtype=dtype,
                like=_sample(like))  # fmt: skip
    return pair.scatter(x, call)


def reduce(x: Any, axis: AxisName, root: int = 0, *, algorithm: str | None = None) -> Tensor:
    """P (or V) -> Rooted: the sum over the ranks, on the root only; elsewhere the result is absent.

    Adjoint: broadcast (Rooted -> R): reduce <-> broadcast. `algorithm` as in `all_reduce`.

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
    x, on, _ = _begin(x, axis, "reduce", root)
    group = _group(on, algorithm, "reduce")
    return pair.reduce(x, Call(on.names, group, to=Rooted(int(root)), root=int(root)))


def gather(x: Any, axis: AxisName, root: int = 0, dim: int = 0) -> Tensor:
    """V -> Rooted: every rank's part, concatenated along `dim` on the root; elsewhere the result is absent.

    Uneven parts are legal. Adjoint: scatter (Rooted -> V).

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
    x, on, mesh = _begin(x, axis, "gather", root)
    dim = normal_dim(dim, x.array.shape, "gather")
    assert x.layout is not None
    pair.gather.check(x, on)
    check_outer(x, x.layout, on, dim, "gather")
    extents = extents_along(x, x.layout, on, mesh, dim, "gather")
    return pair.gather(x, Call(on.names, on.group, to=Rooted(int(root)), root=int(root), dim=dim, extents=extents))
