"""Comparison of values that should be equal on all ranks of an axis, by their digests.

Besides `compare_replicas`, which programs call, there are comparisons that ringtape makes by itself in every check mode
but ``off``:

- ``backward`` compares the objective and the leaves on the tape that are R or I. It does so along the axes of the last
  collective on the tape, if the objective is I there. Along other axes the next call compares an objective that is I.
- ``step`` of an optimizer compares its hyperparameters and, where a parameter is R or I, the parameter, its gradient
  and the optimizer's state for it.
- The first of these along an axis also finds parameters that are Varying or sharded, and leaves that are Varying
  because they have no label, of which all ranks hold the same values (`ReplicaWarning`). Parameters are compared with
  those of their shape and dtype on the other ranks, since the stages of a pipeline have different lists of them.

- The end of a mesh's block compares, along the axes of such objectives and optimizers, the constants that no call has
  compared yet, the hyperparameters and the R or I parameters of the optimizers, and the R or I leaves with a gradient
  that a compared backward has seen, as a program may update them by hand: of both, those that no rank has dropped, as
  garbage is collected at other times on each. It does not do so if the block ends by an exception, or in a world whose
  policy is ``raise``, where ranks go on without those that have failed.

They happen the 1st, 2nd, 4th, 8th, ... time, and `step` also every `digest_every` steps. A step that changes a
hyperparameter in between adds the new numbers to the constants that the next call along the axis compares. Under
``ranks`` the objective is compared every time, and backward, `step` and the end of a mesh's block compare the copies
that are not yet compared (see `checks.sanitizer`). All ranks of the axis make these calls, at the same places.
"""

from __future__ import annotations

import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped, is_absent
from autograd.engine.leaves import Parameter
from autograd.engine.tensor import Tensor
from autograd.errors import ReplicaMismatch, ReplicaWarning, find_site, short_site
from autograd.layouts.layout import C, D, Grid, I, R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of

from .checks import modes
from .checks.modes import is_due
from .checks.sanitizer import Copy, Statement, compare, digest_of
from .transports.protocol import Communicator

__all__ = [
    "compare_end", "compare_objective", "compare_pending", "compare_replicas", "compare_step", "is_due", "note_numbers",
    "settle",
]  # fmt: skip

_SAME = (I, R, C, D)


def settle(
    group: Communicator, call: str, copies: Sequence[Copy], parts: Sequence[Part] = (), leaves: Sequence[Any] = (),
    owners: Sequence[tuple[Any, ...]] | None = None,
) -> list[tuple[int, ...]]:
    """Compare copies along a group. All its ranks call it.

    Parameters
    ----------
    group : Communicator
    call : str
        The comparison, for example ``step 1 of SGD``. The ranks compare it too.
    copies : sequence of Copy
        Copies that should be equal on all ranks.
    parts : sequence of Part
        Values that are probably meant to differ. The ranks may have different ones.
    leaves : sequence of Tensor
        The values of the first copies. An error shows the variables that hold them.
    owners : sequence of tuple, optional
        What the first copies are of, named alike on all ranks, where a rank may have dropped what another one still
        holds: only copies that all ranks have are compared.

    Returns
    -------
    list of tuple of int
        For each of `parts` the ranks that hold it, if they are all that must hold it; otherwise ().

    Raises
    ------
    CollectiveMismatch
        The ranks make different calls.
    ReplicaMismatch
        Copies differ.
    """
    group.agree(lambda: call)
    checks = group.checks
    copies = [*copies, *([] if checks is None else checks.take_copies())]
    digests = [zlib.crc32(f"{call} {len(copies)}".encode()), *(copy.digest for copy in copies)]
    data = [*digests, *(part.kind << 32 | part.copy.digest for part in parts)]
    rows = [np.frombuffer(each, np.int64) for each in group.exchange(np.array(data, np.int64).tobytes())]
    same = len(digests)
    if any(not np.array_equal(row[:same], rows[0][:same]) for row in rows):
        copies[: len(leaves)] = map(_with_variable, copies, leaves)
        if owners is not None:
            copies[: len(owners)] = _held_by_all(group, owners, copies)
        mine = Statement(call, site=short_site(*find_site()), copies=tuple(copies), is_full=True)
        error = compare(group.name, group.ranks, [Statement.decode(each) for each in group.exchange(mine.encode())])
        if error is not None:
            group.is_broken = True
            raise error
        return [()] * len(parts)
    held = [[divmod(number, 1 << 32) for number in row[same:].tolist()] for row in rows]
    return [_holders(part, held) for part in parts]


def _held_by_all(group: Communicator, owners: Sequence[tuple[Any, ...]], copies: Sequence[Copy]) -> list[Copy]:
    """The copies, one of each owner, of the owners that all ranks name. All ranks of the group call it."""
    mine = [zlib.crc32(repr(owner).encode()) for owner in owners]
    on_all = set(mine).intersection(
        *(np.frombuffer(each, np.int64).tolist() for each in group.exchange(np.array(mine, np.int64).tobytes()))
    )
    return [copy for owner, copy in zip(mine, copies, strict=False) if owner in on_all]


def _holders(part: Part, held: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, ...]:
    """The ranks that hold a value, if these are all ranks, or all that have a parameter of its shape and dtype."""
    ranks = tuple(r for r, parts in enumerate(held) if any(digest == part.copy.digest for _, digest in parts))
    others = [r for r, parts in enumerate(held) if any(kind == part.kind for kind, _ in parts)]
    is_by_shape = part.kind and len(ranks) > 1 and len(ranks) == len(others)
    return ranks if is_by_shape or len(ranks) == len(held) else ()


def compare_pending(group: Communicator, call: str) -> None:
    """Under ``ranks``, compare the copies that no call along the group has compared yet. All its ranks call it."""
    if modes.watching:
        group.agree(call)


# -- the objective -----------------------------------------------------------------------------------------------------
def compare_objective(outputs: Any, recording: Any, mesh: Any, verdict: Any = None) -> tuple[str, ...]:
    """Compare an Invariant objective along the axes of the last collective on its tape; see the module.

    Returns the axes along which the ranks have compared their `verdict` about its scale, if they have come to the same.
    """
    if not modes.limit:
        return ()
    ys = outputs if isinstance(outputs, list | tuple) else (outputs,)
    axis = _axis_of_objectives(ys, recording, mesh)
    if axis is None:
        return ()
    checks = axis.group.checks
    due = checks.count_objective()
    if not (due or modes.watching):
        return ()
    site = short_site(*find_site())
    objectives = [_objective(y, site) for y in ys]
    called = f"start of backward (axis={'*'.join(axis.names)!r})"
    if not due:
        checks.copies.extend(objectives)
        axis.group.agree(called)
        return ()
    leaves = [x for x in recording.inputs() if _is_on(mesh, x)]
    same = [x for x in leaves if all(_is_any(x.layout[name], _SAME) for name in axis.names)]
    checks.keep_leaves(leaf for leaf in same if leaf.requires_grad)
    own = _own(leaves, axis) if checks.objectives == 1 else []
    said = [] if verdict is None else [Part(Copy("scale", "", verdict.digest), 0, None)]
    holders = settle(axis.group, called, [*_copies_at_backward(same), *objectives], [*own, *said], same)
    _warn(holders[: len(own)], own, axis)
    return tuple(axis.names) if said and len(holders[-1]) == axis.group.size else ()


def _axis_of_objectives(ys: Sequence[Any], recording: Any, mesh: Any) -> Any:
    """The axis along which objectives are compared now; None without one. On the others the next calls compare them."""
    for y in ys:
        if y.layout is None or y.layout.grid is not mesh.grid or (y.layout.rooted and is_absent(y.array)):
            return None
    if not ys:
        return None
    last = recording.communicates  # a `declaration.prepared.Prepared`, or the call of a nonblocking collective
    call = getattr(last, "call", last)
    if getattr(call, "group", None) is None or (call is not last and last.collective.between_two):
        _note_objectives(ys, mesh)
        return None
    axis = mesh.axis(call.axes)
    if len(mesh.known_axes) > 1:
        _note_objectives(ys, mesh, besides=axis)
    return axis if axis.group.size > 1 and _are_invariant(ys, axis) else None


def _is_on(mesh: Any, x: Any) -> bool:
    """Whether this rank holds data of a value that lives on a mesh."""
    return x.layout is not None and x.layout.grid is mesh.grid and not is_absent(x.array)


def _copies_at_backward(leaves: Sequence[Any]) -> Iterator[Copy]:
    """The leaves as copies to compare. Those of one name, or without names of one shape, are numbered from 2."""
    nth: Counter[str] = Counter()
    for leaf in leaves:
        name = leaf.name or f"leaf of shape {leaf.array.shape}"
        nth[name] += 1
        place = name if nth[name] == 1 else f"{name} ({nth[name]})"
        yield Copy(f"{place} at backward", _shown(leaf, leaf.name or "x"), _digest_of(leaf.array), "parameter")


def _are_invariant(ys: Sequence[Any], axis: Any) -> bool:
    for y in ys:  # no generator: at each backward
        if not y.layout.one_number:  # else it is Invariant on every axis
            for name in axis.names:
                if y.layout[name] is not I:
                    return False
    return True


def _note_objectives(ys: Sequence[Any], mesh: Any, besides: Any = None) -> None:
    """Record objectives that are Invariant along an axis on which the tape has not communicated last.

    The ranks of such an axis need not all call backward here, so that the next call along it compares them.
    """
    objectives = None
    for axis in mesh.known_axes:
        checks = axis.group.checks
        if axis is besides or checks is None or not checks.takes_copies:
            continue
        if _are_invariant(ys, axis):
            if objectives is None:
                site = short_site(*find_site())
                objectives = [_objective(y, site) for y in ys]
            checks.copies.extend(objectives)


def _with_variable(copy: Copy, x: Any) -> Copy:
    """A copy of a leaf without a name, with the variable of the program that holds the leaf."""
    name = "" if x.name else name_of(x, "")
    return copy._replace(text=_shown(x, name)) if name else copy


def _objective(y: Any, site: str) -> Copy:
    value = f" = {to_host(y.array).item()!r}" if y.array.size == 1 and type(y.array) is not Shaped else ""
    text = f"objective({describe(y.array, y.array.shape, y.layout)}){value}"
    return Copy(f"objective at {site}", text, _digest_of(y.array), "objective")


# -- the optimizer -----------------------------------------------------------------------------------------------------
def compare_step(optimizer: Any, mesh: Any) -> None:
    """Compare an optimizer before a step; see the module.

    Parameters
    ----------
    optimizer : Optimizer
    mesh : Mesh
    """
    n, grid = optimizer.calls, mesh.grid
    due = is_due(n, optimizer.digest_every)
    if not modes.limit or not (due or modes.watching):
        return
    indexed = [(i, p) for i, p in enumerate(optimizer.parameters) if _is_on(mesh, p)]
    if n == 1:
        names = frozenset(name for k, name in enumerate(grid.names) if grid.sizes[k] > 1 and _is_one_model(k, indexed))
        mesh.optimizers[optimizer] = mesh.optimizers_so_far, names
        mesh.optimizers_so_far += 1
        mesh.numbered |= names
    made: dict[int, list[Copy]] = {}  # the copies of a parameter, for all axes
    for k, name in enumerate(grid.names):
        has_numbers = _is_one_model(k, indexed)
        if grid.sizes[k] > 1 and (n == 1 or has_numbers):  # ranks may update values of their own at other times
            _compare_step_along(mesh.axis(name), k, optimizer, indexed, has_numbers, made if due else None)


def _compare_step_along(
    axis: Any, k: int, optimizer: Any, indexed: Sequence[tuple[int, Any]], has_numbers: bool, made: Any
) -> None:
    """Compare an optimizer's step along the k-th axis; if `made` is None, only the copies that are pending."""
    same = [(i, p) for i, p in indexed if _is_any(p.layout.labels[k], _SAME)]
    n, kind, (name,) = optimizer.calls, type(optimizer).__name__, axis.names
    named = f"{kind} (axis={name!r}, replicated parameters: {len(same)})" if has_numbers else "an optimizer"
    call = f"step {n} of {named}"
    if made is None:
        compare_pending(axis.group, call)
        return
    copies = [_number(kind, word, value) for word, value in optimizer.numbers().items()] if has_numbers else []
    for i, p in same:
        if i not in made:
            made[i] = _copies_of(optimizer, i, p)
        copies += made[i] if p.layout.labels[k] is not R else made[i][:1]  # the gradient of R is P
    is_first = n == 1 and not axis.group.checks.objectives  # else backward compared it
    own = _own([p for _, p in indexed], axis) if is_first else []
    _warn(settle(axis.group, call, copies, own), own, axis)


def _is_one_model(k: int, indexed: Sequence[tuple[int, Any]]) -> bool:
    """Whether the ranks of the k-th axis train copies or parts of one model."""
    labels = [p.layout.labels[k] for _, p in indexed]
    return any(_is_any(label, _SAME) or type(label) is Shard for label in labels)


def note_numbers(optimizer: Any, mesh: Any) -> None:
    """Record the hyperparameters that a step has changed, for the next call along the axes where they are the same."""
    _, names = mesh.optimizers.get(optimizer, (0, frozenset()))
    fact = None
    for axis in mesh.known_axes if names else ():
        if axis.size > 1 and names.issuperset(axis.names) and axis.group.checking:
            if fact is None:
                kind = type(optimizer).__name__
                shown = ", ".join(f"{k}={_number_text(v)}" for k, v in optimizer.numbers().items() if k != "steps")
                text = f"{kind}({shown})"
                fact = Copy(f"step {optimizer.calls} of {kind}", text, zlib.crc32(text.encode()), "change")
            axis.group.checks.copies.append(fact)


def compare_end(mesh: Any) -> None:
    """Compare what is left at the end of a mesh's block; see the module. All ranks of the mesh call it."""
    axes = sorted((axis for axis in mesh.known_axes if axis.size > 1), key=lambda axis: axis.names)
    if any(axis.group.is_broken for axis in axes):
        return
    for axis in axes:
        call = f"the end of the block of {mesh!r} (axis={'*'.join(axis.names)!r})"
        is_numbered = len(axis.names) == 1 and axis.names[0] in mesh.numbered
        checks = axis.group.checks
        if is_numbered or checks.objectives:
            if checks.count_end():
                left = [*(_left(mesh, axis.names[0]) if is_numbered else ()), *_last_leaves(mesh, axis)]
                settle(axis.group, call, [copy for _, copy in left], owners=[owner for owner, _ in left])
                continue
        if modes.watching:
            compare_pending(axis.group, call)


def _left(mesh: Any, name: str) -> Iterator[tuple[tuple[Any, ...], Copy]]:
    """The hyperparameters and copies of parameters of all optimizers whose numbers are the same along an axis."""
    k = mesh.grid.axis(name)
    for optimizer, (number, names) in list(mesh.optimizers.items()):
        if name in names:
            kind = type(optimizer).__name__
            for word, value in optimizer.numbers().items():
                yield (number, word), _number(kind, word, value)
            for i, p in enumerate(optimizer.parameters):
                if p.layout is not None and p.layout.grid is mesh.grid and not is_absent(p.array):
                    if _is_any(p.layout.labels[k], _SAME):
                        shown = p.name or f"parameter {i}"
                        copy = Copy(f"{shown} of {kind}", _shown(p, shown), _digest_of(p.array), "parameter")
                        yield (number, i), copy


def _last_leaves(mesh: Any, axis: Any) -> Iterator[tuple[tuple[Any, ...], Copy]]:
    """The copies of the leaves that the compared backwards along an axis have seen, except those of optimizers."""
    held = {id(p) for optimizer, (_, names) in mesh.optimizers.items() if names.issuperset(axis.names)
            for p in optimizer.parameters}  # fmt: skip
    for number, x in axis.group.checks.leaves():
        if id(x) not in held and x.layout is not None and x.layout.grid is mesh.grid:
            if not is_absent(x.array) and all(_is_any(x.layout[name], _SAME) for name in axis.names):
                name = x.name or f"leaf of shape {x.array.shape}"
                shown = _shown(x, x.name or "x")
                copy = Copy(f"{name} after backward", shown, _digest_of(x.array), "parameter")
                yield ("leaf", number), copy


def _copies_of(optimizer: Any, i: int, p: Any) -> list[Copy]:
    """The copies of a parameter: its value, its gradient and the optimizer's state for it."""
    name = p.name or f"parameter {i}"
    shown = _shown(p, name)
    found = [Copy(f"{name} at step()", shown, _digest_of(p.array), "parameter")]
    g = p.grad
    if g is None or g.layout is p.layout.dual:  # the optimizer refuses another layout
        text = f"no gradient of {name}" if g is None else f"gradient of {shown}"
        found.append(Copy(f"the gradient of {name}", text, 0 if g is None else _digest_of(g.array), "gradient"))
    held = [values[i] for values in optimizer.state_lists()]
    if held:
        digests = [0 if v is None else _digest_of(np.asarray(v) if isinstance(v, int) else v) for v in held]
        state_digest = zlib.crc32(np.array(digests, np.uint32).tobytes())
        text = f"state of {type(optimizer).__name__} for {name}"
        found.append(Copy(text, text, state_digest, "state"))
    return found


def _number(kind: str, name: str, value: Any) -> Copy:
    text = _number_text(value)
    return Copy(f"{name} of {kind}", f"{kind}({name}={text})", zlib.crc32(text.encode()), "hyperparameter")


def _number_text(value: Any) -> str:
    return repr([float(v) for v in value] if isinstance(value, tuple | list) else float(value))


# -- values that were probably meant Invariant -------------------------------------------------------------------------
class Part(NamedTuple):
    """A value of which each rank has its own, or a part."""

    copy: Copy
    kind: int  # a hash of a parameter's shape and dtype, of 31 bits; 0 for a leaf that is no parameter
    value: Any


def _own(leaves: Sequence[Any], axis: Any) -> list[Part]:
    """The parameters, and the leaves without a label, of which each rank has a value or a part of its own."""
    found = []
    for i, x in enumerate(leaves):
        if any(x.layout[a] is V or type(x.layout[a]) is Shard for a in axis.names) and (
            isinstance(x, Parameter) or _is_unlabelled(x, axis)
        ):
            name = x.name or f"parameter {i}"
            hashed = zlib.crc32(f"{x.array.dtype.str}{x.array.shape}".encode()) & 0x7FFFFFFF
            kind = max(hashed, 1) if isinstance(x, Parameter) else 0
            found.append(Part(Copy(name, _shown(x, name), _digest_of(x.array)), kind, x))
    return found


def _warn(holders: Sequence[tuple[int, ...]], own: Sequence[Part], axis: Any) -> None:
    """Warn, on the first rank that holds them, of parameters of which several ranks hold the same values.

    Stages of a pipeline may have different parameters: then the ranks that have one of that shape are compared. Zeros
    or ones, such as a bias and a scale at their start, are the same legally if the label was given.
    """
    if axis.group.dry:
        return
    equal: dict[tuple[int, ...], list[Copy]] = {}
    for ranks, part in zip(holders, own, strict=True):
        if ranks and ranks[0] == axis.group.index and not _are_copies(ranks, part.value.layout, axis):
            if _is_unlabelled(part.value, axis) or not _is_neutral(to_host(part.value.array)):
                equal.setdefault(ranks, []).append(part.copy)
    along = "*".join(axis.names)
    for ranks, found in equal.items():
        names, shown = ", ".join(copy.place for copy in found), "".join(f"  {copy.text}\n" for copy in found)
        who = f"all {axis.size} ranks of axis {along!r}"
        if len(ranks) < axis.size:
            who = f"ranks {', '.join(map(str, ranks))} of axis {along!r}, which alone have a parameter of that shape,"
        file, line = find_site()
        warnings.warn_explicit(
            f"{names}: {who} hold the same values\n{shown}  By its label each rank "
            "holds a value or a part of its own, and its gradient is not summed over the ranks. Meant Invariant?\n"
            f"  fix: w = ag.Parameter(...) without a label of axis {along!r}, on all its ranks, and cast(w, {along!r}, "
            "to=R) where it is used; in a pipeline on all stages at the start of the tape's block, before send and "
            "recv\n"
            "  or:  give the ranks different values, for example drawn from key.along(...), or cut from the whole value"
            f"\n  or:  layout={{{along!r}: V}}, if an ag.tensor without a label is meant to have a value of each rank"
            "\n  or:  leave it so, if the program sums the gradients of the copies itself, before each step",
            ReplicaWarning, file, line,
        )  # fmt: skip


def _are_copies(ranks: Sequence[int], layout: Any, axis: Any) -> bool:
    """Whether, by their labels, these ranks hold the same value: they differ only on axes on which it is R or I."""
    sizes = [layout.grid.sizes[layout.grid.axis(name)] for name in axis.names]
    places = np.unravel_index(np.array(ranks), sizes)
    return all(len({*at.tolist()}) == 1 or _is_any(layout[name], _SAME)
               for name, at in zip(axis.names, places, strict=True))  # fmt: skip


def _is_unlabelled(x: Any, axis: Any) -> bool:
    return any(name in x.unstated for name in axis.names)


def _is_neutral(host: Any) -> bool:
    return bool((host == 0).all() or (host == 1).all())


def _digest_of(array: Any) -> int:
    return 0 if type(array) is Shaped else digest_of(array)  # a dry run assumes that the copies are equal


def _is_any(label: Any, labels: Sequence[Any]) -> bool:
    return any(label is each for each in labels)


def _shown(x: Any, name: str) -> str:
    return f"{name}: {describe(x.array, x.array.shape, x.layout)}"


def compare_replicas(tensors: Iterable[Tensor], grid: Grid, group_of: Callable[[str], Communicator]) -> None:
    """Compare the copies of every tensor along the axes on which it is I or R; see `Mesh.check_replicas`.

    Parameters
    ----------
    tensors : iterable of Tensor
        Tensors of another mesh, and values that are absent on this rank, are ignored.
    grid : Grid
        The grid of the mesh.
    group_of : callable
        ``group_of(axis)``: the ranks along an axis.

    Raises
    ------
    ReplicaMismatch
        Copies differ, or the ranks compare different numbers of tensors.
    """
    tensors = [t for t in tensors if t.layout is not None and t.layout.grid is grid and not is_absent(t.array)]
    digests = np.array([_digest_of(t.array) for t in tensors], np.int64)
    for k, axis in enumerate(grid.names):
        if grid.sizes[k] == 1:
            continue
        along = [
            i for i, t in enumerate(tensors)
            if t.layout is not None and _is_any(t.layout.labels[k], _SAME)
        ]
        group = group_of(axis)
        group.agree(partial("check_replicas(axis={!r})".format, axis))
        mine = np.concatenate([digests[along], [len(along)]])
        gathered = group.exchange(mine.tobytes())
        table = [np.frombuffer(t, np.int64) for t in gathered]
        if any(len(row) != len(mine) for row in table):
            raise ReplicaMismatch(
                f"axis {axis!r}: the ranks compare different numbers of replicated tensors: "
                f"{[len(r) - 1 for r in table]}. "
                "Needed: the same parameters on every rank"
            )
        for j, i in enumerate(along):
            odd = [r for r in range(group.size) if table[r][j] != table[0][j]]
            if odd:
                x = tensors[i]
                raise ReplicaMismatch(_text(x, i, axis, odd, group))


def _text(x: Any, i: int, axis: str, odd: list[int], group: Any) -> str:
    ranks = ", ".join(map(str, odd))
    return (
        f"{x.name or f'tensor {i}'} of shape {x.array.shape} is {x.layout[axis].word} on axis {axis!r}, so its copies "
        f"must be equal, but those of rank{'s' if len(odd) > 1 else ''} {ranks} (world "
        f"{[group.ranks[r] for r in odd]}) differ from rank 0's. The ranks then train different models, although the "
        "loss may still fall.\n"
        "  fix: make it from the same seed on every rank, or broadcast it from one rank; if the ranks are meant "
        f"to differ, declare it layout={{{axis!r}: V}}"
    )
