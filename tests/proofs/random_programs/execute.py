"""Run a program in ringtape, and compare every rank's gradients with those of the serial evaluation."""

from __future__ import annotations

import functools
import linecache
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd.arrays.shape_only import Shaped
from autograd.engine.leaves import tensor
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.layouts.layout import I, Label, P, R, Rooted, Shard, V, dual_label
from autograd.layouts.partition import level
from collectives.mesh import Mesh, current_mesh
from collectives.ops import messages
from collectives.world import run, world

from .form import LeafForm, Program
from .rules import Kind, kinds
from .serial import Answer, addends, dense, part

__all__ = ["Seen", "draw", "execute", "faults", "faults_everywhere", "hand_over", "judge", "run_program"]


def draw(
    name: str, shape: tuple[int, ...], layout: dict[str, Label], *, role: str = "parameter", seed: int = 0,
    unequal: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """Make a leaf of a program: this rank's part of random values determined by the seed and the name.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Of the whole value; along a V axis, of each rank's own value.
    layout : dict of axis -> label
        One label for every axis of the current mesh. Along P axes the ranks get different addends.
    role : "parameter", "watched" or "data"
        See `LeafForm`.
    seed : int
    unequal : tuple of str
        Axes along which the ranks get different values, whatever the label says.

    Examples
    --------
    >>> import collectives as cc
    >>> def program():
    ...     with cc.Mesh(tp=2):
    ...         return draw("w", (3, 2), {"tp": cc.Shard(0)}).shape
    >>> cc.run(program, ranks=2)
    [(2, 2), (1, 2)]
    """
    mesh = current_mesh()
    labels = tuple(layout[a] for a in mesh.names)
    held = tuple(V if a in unequal else x for a, x in zip(mesh.names, labels, strict=True))
    values = addends(LeafForm(name, shape, held, role), mesh.sizes, seed)
    own = part(values, [V if isinstance(x, Rooted) else x for x in held], mesh.sizes, mesh.grid.place)
    whole = shape if any(isinstance(x, Shard) for x in labels) else None
    if role == "parameter":
        return ag.Parameter(own, layout, global_shape=whole, name=name)
    return tensor(own.copy(), layout, global_shape=whole, requires_grad=role == "watched", name=name)


def hand_over(x: Any, axis: str | Sequence[str], source: int, target: int) -> Any:
    """V -> V: rank `source` sends its value and rank `target` receives it. All other ranks return zeros.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(pp=3):
    ...         return hand_over(ag.tensor([cc.world().rank + 1.0]), "pp", 0, 2).numpy().tolist()
    >>> cc.run(program, ranks=3)
    [[0.0], [0.0], [1.0]]
    """
    on = current_mesh().axis(axis)
    here = on.rank
    if here == source:
        messages.send(x, axis, target)
    if here == target:
        return messages.recv(axis, source)
    zeros = x.array * 0 if type(x.array) is Shaped else np.zeros_like(x.array)
    return Tensor(zeros, x.layout.replace(on.names, V))


class Seen(NamedTuple):
    """The results of a program on one rank.

    Attributes
    ----------
    place : tuple of int
        The rank's place on the mesh.
    objective : float or None
        None where it is absent.
    gradients : dict of name -> array or None
        Of every leaf that is not data.
    values, leaves : dict of name -> Tensor
        The results of all statements, and all leaves.
    """

    place: tuple[int, ...]
    objective: float | None
    gradients: dict[str, np.ndarray | None]
    values: dict[str, Any]
    leaves: dict[str, Any]


@functools.lru_cache(maxsize=512)
def _compiled(lines: tuple[str, ...]) -> Any:
    text = "".join(f"{line}\n" for line in lines)
    name = f"<program {abs(hash(lines)) % 10**8}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # tracebacks then show the line
    if len(linecache.cache) > 4096:
        for old in [n for n in linecache.cache if n.startswith("<program ") and n != name]:
            del linecache.cache[old]
    return compile(text, name, "exec")


def execute(program: Program, mesh: Mesh, statements: Sequence[Any] | None = None) -> Seen:
    """Run a program forward and backward on this rank. All ranks of the mesh call it, inside ``with mesh:``.

    If `statements` is given, this rank runs them instead of the program's.
    """
    names: dict[str, Any] = {"ag": ag, "np": anp, "cc": cc, "I": I, "P": P, "R": R, "V": V, "Rooted": Rooted,
                             "Shard": Shard, "draw": draw, "hand_over": hand_over}  # fmt: skip
    exec(_compiled(tuple(program.leaf_lines())), names)
    known = {x.name: names[x.name] for x in program.leaves}
    statements = program.statements if statements is None else statements
    with ag.Tape() as tape:
        exec(_compiled(tuple(map(str, statements))), names)
    loss = names[statements[-1].name]
    values = {s.name: names[s.name] for s in statements}
    objective = None if type(loss.array) is Shaped else float(loss.array)
    tape.backward(loss)
    gradients = {}
    for x in program.leaves:
        if x.role != "data":
            g = known[x.name].grad
            gradients[x.name] = None if g is None or type(g.array) is Shaped else np.array(g.array)
    return Seen(mesh.grid.place, objective, gradients, values, known)


def run_program(program: Program) -> list[Seen]:
    """Run a program on threads, one per rank."""
    return run(lambda: _on_mesh(program), program.ranks)


def _on_mesh(program: Program) -> Seen:
    with Mesh(**dict(zip(program.axes, program.sizes, strict=True))) as mesh:
        seen = execute(program, mesh)
    assert state.recording is None
    return seen


# -- the comparison ----------------------------------------------------------------------------------------------

TOLERANCE = 1e-9


def faults(program: Program) -> list[str]:
    """Run a program on threads and compare it with the serial evaluation. Returns one line for every difference.

    Examples
    --------
    >>> from tests.proofs.random_programs import faults, generate
    >>> faults(generate(seed=5))
    []
    """
    return judge(program, dense(program), run_program(program))


def faults_everywhere(program: Program) -> list[str]:
    """As `faults` on the current world's processes: every rank calls this function and gets all faults."""
    seen = _on_mesh(program)
    mine = pickle.dumps((_label_faults(program, seen), seen._replace(values={}, leaves={})))
    received = [pickle.loads(data) for data in world().exchange(mine)]
    answer, ranks = dense(program), [each for _, each in received]
    wrong = [f"rank {rank}: {fault}" for rank, (found, _) in enumerate(received) for fault in found]
    return wrong + gradient_faults(program, answer, ranks) + objective_faults(program, answer, ranks)


def judge(program: Program, answer: Answer, ranks: Sequence[Seen]) -> list[str]:
    """All differences in labels, shapes, objective and gradients on all ranks."""
    wrong = [f"rank {rank}: {fault}" for rank, seen in enumerate(ranks) for fault in _label_faults(program, seen)]
    return wrong + gradient_faults(program, answer, ranks) + objective_faults(program, answer, ranks)


def _label_faults(program: Program, seen: Seen) -> list[str]:
    """Values of one rank whose labels or shapes differ from those of the rules."""
    known = kinds(program)
    found = {name: _unlike(known[name], x, program.sizes, seen.place) for name, x in seen.values.items()}
    return [f"{name} {fault}" for name, fault in found.items() if fault]


def objective_faults(program: Program, answer: Answer, ranks: Sequence[Seen]) -> list[str]:
    """Ranks whose objective differs from the serial one."""
    labels = kinds(program)[program.objective].labels
    partial = [k for k, label in enumerate(labels) if label is P]
    total = _summed([seen.objective for seen in ranks], [seen.place for seen in ranks], partial)
    allowed = TOLERANCE * max(1.0, abs(answer.objective), *(abs(s.objective or 0) for s in ranks))
    return [f"the objective on rank {rank} is {y}; needed: {answer.objective}" for rank, y in enumerate(total)
            if y is not None and not abs(y - answer.objective) <= allowed]  # fmt: skip


def gradient_faults(program: Program, answer: Answer, ranks: Sequence[Seen], roles: Any = None) -> list[str]:
    """Gradients that differ from the serial ones. Each rank's part is compared; Partial gradients are summed first."""
    places = [seen.place for seen in ranks]
    everything = float(np.sqrt(sum((g**2).sum() for g in answer.gradients.values())))
    # a gradient that is zero by cancellation (of a summed softmax) has rounding errors relative to the objective
    rounding = 1e-5 * max(1.0, abs(answer.objective))
    wrong = []
    for x in program.leaves:
        if x.role == "data" or (roles and x.role not in roles):
            continue
        want_all = answer.gradients[x.name]
        scale = max(float(np.linalg.norm(want_all)), 1e-3 * everything, rounding)
        open_axes = [k for k, label in enumerate(x.labels) if dual_label(label) is P]
        given = [seen.gradients[x.name] for seen in ranks]
        total = _summed(given, places, open_axes)
        for rank, place in enumerate(places):
            want = part(want_all, x.labels, program.sizes, place)
            got = total[rank]
            if want is None:
                if given[rank] is not None:
                    wrong.append(f"the gradient of {x.name} on rank {rank} has a value where {x.name} has none")
                continue
            got = np.zeros_like(want) if got is None else got
            if got.shape != want.shape:
                wrong.append(f"the gradient of {x.name} on rank {rank} has shape {got.shape}; needed: {want.shape}")
            elif want.size and not np.linalg.norm(got - want) <= TOLERANCE * scale:
                wrong.append(f"the gradient of {x.name} on rank {rank} is {got.tolist()}; needed: {want.tolist()}")
    return wrong


def groups_along(places: Sequence[Sequence[int]], along: Sequence[int]) -> list[list[int]]:
    """All groups of ranks whose places on the mesh differ only on the axes `along`, in order of rank."""
    found: dict[Any, list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(tuple(i for k, i in enumerate(place) if k not in along), []).append(rank)
    return list(found.values())


def _summed(values: Sequence[Any], places: Sequence[Sequence[int]], along: Sequence[int]) -> list[Any]:
    """Replace every rank's value by the sum over its group along some axes; None is left out of the sum."""
    result = list(values)
    for group in groups_along(places, along) if along else []:
        addends = [values[r] for r in group if values[r] is not None]
        for rank in group:
            result[rank] = sum(addends[1:], addends[0]) if addends else None
    return result


def _unlike(kind: Kind, value: Tensor, sizes: Sequence[int], place: Sequence[int]) -> str:
    """How the labels and shape of a value differ from those of the rules; "" if they do not."""
    assert value.layout is not None
    need, outer = list(kind.labels), list(kind.shape)
    for k, label in enumerate(need):  # an earlier axis splits first
        if isinstance(label, Shard):
            extents = level(outer[label.dim], sizes[k], label.unit)
            need[k] = Shard(label.dim, outer[label.dim], sum(extents[: place[k]]))
            outer[label.dim] = extents[place[k]]
    have = list(value.layout.labels)
    if have != need:
        cuts = [[(x.extent, x.offset) for x in labels if isinstance(x, Shard)] for labels in (have, need)]
        return f"is {value.layout!r}, with (extent, offset) {cuts[0]}; needed: {need}, {cuts[1]}"
    like = np.empty((1,) * len(sizes) + kind.shape)
    own = part(like, [V if isinstance(x, Rooted) else x for x in kind.labels], sizes, place)
    if tuple(value.array.shape) != own.shape:
        return f"has shape {value.array.shape}; needed: {own.shape}"
    absent = any(isinstance(x, Rooted) and x.root != at for x, at in zip(kind.labels, place, strict=True))
    if absent != (type(value.array) is Shaped):
        return "has data, but is rooted on another rank" if absent else "has no data"
    return ""
