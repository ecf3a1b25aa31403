"""Every operation with labels on a mesh of two axes at every operand, and with Rooted operands, on threads.

This is `label_sweep` with a label per axis: an operand that is Shard(0) along one axis and Replicated along the other,
and so on. A rank's operands, and the reference, are made one axis at a time.

An axis is *separate* if an operand is Varying along it: the ranks along it then have functions of their own. It is
*rooted* if an operand is Rooted along it: then the value is a function of what the root holds. Along all other axes
the ranks hold one value together. Each *view*, a choice of a place along the separate and rooted axes, has a reference
of its own: one process computes the function of the operands that are assembled along the other axes.
"""

from __future__ import annotations

import itertools
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy

import autograd as ag
import collectives as cc
from autograd.arrays.shape_only import Shaped
from autograd.engine.tensor import Tensor
from autograd.errors import AbsentError
from collectives import I, P, R, Shard, V
from collectives.checks.modes import check_mode

from ...proofs.operations import Case
from .label_sweep import Found, Wrong, differentiable, label_text, near, random, run

AXES = {"a": 2, "b": 2}
PLACES = tuple(itertools.product(*map(range, AXES.values())))
ROOT = 1
Array = Any
Place = tuple[int, ...]
_LABELS = {"R": R, "I": I, "V": V, "P": P}
_DUALS = {"R": "P", "P": "R"}


@dataclass(frozen=True)
class MeshTrial:
    """A case, and for each operand a label per axis: R, I, V, P, S0, S1, or O for Rooted."""

    case: Case
    labels: tuple[tuple[str, ...], ...]
    seed: int = 1
    apart: tuple[str, ...] = ("", "")
    """V for each axis along which the result is Varying, although no operand is: of an index that is a plain array."""

    @property
    def name(self) -> str:
        return f"{self.case.operation} {self.case.label}: {' '.join(map('|'.join, self.labels))}"

    def along(self, k: int) -> list[str]:
        """The labels of the operands along axis k."""
        return [labels[k] for labels in self.labels]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Of each axis: separate, rooted or joint."""
        found = [[*self.along(k), self.apart[k]] for k in range(len(AXES))]
        return tuple("rooted" if "O" in x else "separate" if "V" in x else "joint" for x in found)

    @property
    def joint(self) -> list[int]:
        return [k for k, kind in enumerate(self.kinds) if kind == "joint"]

    def view(self, place: Place) -> Place:
        """The place along the axes that are not joint; 0 along the others."""
        return tuple(0 if kind == "joint" else at for at, kind in zip(place, self.kinds, strict=True))

    @cached_property
    def views(self) -> list[Place]:
        """The places of the views. A rooted axis has one, that of the root."""
        found = {self.view(place) for place in PLACES}
        return sorted(v for v in found if all(at == ROOT for at, k in zip(v, self.kinds, strict=True) if k == "rooted"))

    def before_parts(self, i: int, place: Place, draw: Callable[[int], Array]) -> Array:
        """Operand i at a place, before its parts are taken. `draw` gives the whole operand of a seed."""
        labels = self.labels[i]
        own = [at + 1 if label == "V" else 0 for at, label in zip(place, labels, strict=True)]
        x = draw(self.seed + own[0] + 5 * own[1])
        for k, (label, size) in enumerate(zip(labels, AXES.values(), strict=True)):
            if label == "P":
                rng = numpy.random.default_rng([i, k, *differing(place, labels, k, "VP")])
                addends = random(rng, (size, *x.shape), x.dtype)
                x = (addends - (addends.sum(0) - x) / size)[place[k]]
        return x

    def held(self, i: int, place: Place, draw: Callable[[int], Array]) -> Array:
        return taken(self.before_parts(i, place, draw), self.labels[i], place)

    def operand(self, i: int, place: Place) -> Array:
        return self.held(i, place, lambda seed: self.case.draw(seed)[i])

    def direction(self, i: int) -> Callable[[int], Array]:
        """The tangent of operand i, of a seed."""
        x = self.case.draw(self.seed)[i]
        base = zlib.crc32(self.case.label.encode()) + 100 * i
        return lambda seed: random(numpy.random.default_rng(base + seed), x.shape, x.dtype)

    def whole(self, view: Place, at: Callable[[Place], Array], labels: Sequence[str]) -> Array:
        """What the ranks of a view hold together, by labels."""
        return assembled({p: at(p) for p in PLACES if self.is_in(p, view)}, labels, self.joint, "operand")

    def is_in(self, place: Place, view: Place) -> bool:
        return self.view(place) == view


def with_result(trial: MeshTrial, labels: Sequence[str]) -> MeshTrial:
    """The trial, where the result has these labels."""
    return replace(trial, apart=tuple("V" if label == "V" else "" for label in labels))


def differing(place: Place, labels: Sequence[str], k: int, those: str) -> list[int]:
    """The place along the other axes than k, where addends may differ: those with some labels; else 0."""
    return [at if label in those else 0 for j, (at, label) in enumerate(zip(place, labels, strict=True)) if j != k]


def taken(x: Array, labels: Sequence[str], place: Place) -> Array:
    """The part of x that a rank holds. The first axis is the outer one."""
    for label, at, size in zip(labels, place, AXES.values(), strict=True):
        if label[0] == "S":
            dim = int(label[1:])
            x = numpy.take(x, numpy.array_split(numpy.arange(x.shape[dim]), size)[at], dim)
    return x


def assembled(held: Mapping[Place, Array], labels: Sequence[str], axes: Sequence[int], what: str) -> Array:
    """One value from what ranks hold, by their labels along some axes. Along the other axes there is one place."""
    for k in sorted(axes, reverse=True):
        found: dict[Place, list[Array]] = {}
        for place in sorted(held):
            found.setdefault((*place[:k], 0, *place[k + 1 :]), []).append(held[place])
        held = {place: _joined(xs, labels[k], what) for place, xs in found.items()}
    ((_, x),) = held.items()
    return x


def _joined(xs: list[Array], label: str, what: str) -> Array:
    if label == "P":
        return numpy.sum(xs, 0)
    if label[0] == "S":
        return numpy.concatenate(xs, int(label[1:]))
    for x in xs[1:]:
        near(x, xs[0], f"{what}, which is to be equal on all ranks")
    return xs[0]


# -- the trials of a case ----------------------------------------------------------------------------------------------


def mesh_trials(case: Case) -> Iterator[MeshTrial]:
    """All pairs of labels at every operand. Of three operands and more, pairs of operands; the rest is Replicated."""
    xs = case.draw()
    own = [list(itertools.product(_choices(x), repeat=len(AXES))) for x in xs]
    rest = ("R",) * len(AXES)
    if len(xs) < 3:
        found: Iterator[Any] = itertools.product(*own)
    else:
        pairs = itertools.combinations(range(len(xs)), 2)
        found = (
            tuple(one if k == i else two if k == j else rest for k in range(len(xs)))
            for i, j in pairs
            for one, two in itertools.product(own[i], own[j])
        )
    for labels in dict.fromkeys(found):
        trial = MeshTrial(case, labels)
        if _is_comparable(trial):
            yield trial


def _choices(x: Array) -> list[str]:
    partial = ["P"] if numpy.asarray(x).dtype.kind in "fc" else []
    return ["R", "I", "V", *partial, *(f"S{d}" for d in range(min(2, numpy.ndim(x)))), "O"]


def _is_comparable(trial: MeshTrial) -> bool:
    """Whether the ranks of a view hold whole dimensions: not where one dimension is cut along two kinds of axes."""
    kinds = trial.kinds
    cut = any(labels[0] == labels[1] and labels[0][0] == "S" for labels in trial.labels)
    return not (cut and kinds[0] != kinds[1]) and kinds.count("rooted") < 2


def some_mesh_trials(cases: Sequence[Case], count: int, seed: int = 0) -> list[MeshTrial]:
    """`count` trials of each case. Most have no Varying or Rooted operand, because the others are mostly refused."""
    found = []
    for case in cases:
        rng = numpy.random.default_rng([seed, zlib.crc32(f"{case.operation} {case.label}".encode())])
        own = [_choices(x) for x in case.draw()]
        for _ in range(count):
            omitted = "" if rng.random() < 0.3 else "VO"
            while True:
                labels = tuple(
                    tuple(str(rng.choice([label for label in of if label not in omitted])) for _ in AXES) for of in own
                )
                trial = MeshTrial(case, labels)
                if _is_comparable(trial):
                    found.append(trial)
                    break
    return found


# -- what every rank runs, and one process too -------------------------------------------------------------------------


def made(trial: MeshTrial, i: int, place: Place, draw: Callable[[int], Array]) -> Any:
    """The Tensor of operand i on this rank. Parts are made of the whole, so that their extents are agreed."""
    labels = dict(zip(AXES, trial.labels[i], strict=True))
    x = trial.before_parts(i, place, draw)
    rooted = [axis for axis, label in labels.items() if label == "O"]
    t: Any = ag.tensor(x, {axis: _LABELS.get(label, R) for axis, label in labels.items()})
    for axis in rooted:
        layout = t.layout.replace([axis], cc.Rooted(ROOT))
        here = place[list(AXES).index(axis)] == ROOT
        t = Tensor(t.array if here else Shaped(t.array.shape, t.array.dtype, "it is rooted elsewhere"), layout)
    for axis, label in labels.items():
        if label[0] == "S":
            t = cc.shard(t, axis, dim=int(label[1:]))
    return t


def on_rank(trial: MeshTrial) -> Found:
    """A trial on this rank. Never raises."""
    mesh = cc.current_mesh()
    place = tuple(int(mesh.axis(axis).rank) for axis in AXES)
    n = range(len(trial.labels))
    whole = trial.case.draw(trial.seed)
    try:
        xs = [made(trial, i, place, lambda seed, i=i: trial.case.draw(seed)[i]) for i in n]
        variable = [i for i in n if differentiable(whole[i], "R")]
        ds = [made(trial, i, place, trial.direction(i)) for i in variable]
        with numpy.errstate(all="ignore"):
            return run(trial.case.f, xs, variable, lambda y: cotangent(trial, y, place), ds, second=True)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        stage = "call" if any("y = f(" in (frame.line or "") for frame in where) else "sweep"
        at = f"{where[-1].filename[-30:]}:{where[-1].lineno}"
        return Found(broken=f"{stage}: {type(error).__name__}: {str(error)[:300]} at {at}")


def cotangent(trial: MeshTrial, y: Any, place: Place) -> Any:
    """The cotangent that this rank passes to backward: its part of one drawn for the whole value of its view."""
    shape = list(y.array.shape)
    labels = [label_text(label) for label in y.layout.labels]
    trial = with_result(trial, labels)
    inner = {}  # of an axis along which a dimension is sharded: the extent of its parts, which the next axis cuts
    for k, label in reversed(list(enumerate(y.layout.labels))):
        if isinstance(label, Shard) and trial.kinds[k] == "joint":
            inner[k], shape[label.dim] = shape[label.dim], label.extent
    ct = drawn_cotangent(trial, shape, y.array.dtype, place, labels)
    for k, label in enumerate(y.layout.labels):
        if trial.kinds[k] != "joint":
            continue
        if isinstance(label, Shard):
            ct = numpy.take(ct, range(label.offset, label.offset + inner[k]), label.dim)
        elif labels[k] == "R":
            rng = numpy.random.default_rng([k, *differing(place, labels, k, "VR")])
            size = list(AXES.values())[k]
            addends = random(rng, (size, *ct.shape), ct.dtype)
            ct = (addends - (addends.sum(0) - ct) / size)[place[k]]
    ct = ct if ct.shape else ct[()]
    if y.absent:
        ct = Shaped(y.array.shape, y.array.dtype, "it is rooted elsewhere")
    return Tensor(ct, y.layout.dual)


def drawn_cotangent(trial: MeshTrial, shape: Sequence[int], dtype: Any, place: Place, labels: Sequence[str]) -> Array:
    """The cotangent of the value of a view. That of addends is the same along their axis."""
    own = [0 if kind != "separate" or label == "P" else at + 1
           for at, kind, label in zip(place, trial.kinds, labels, strict=True)]  # fmt: skip
    return random(numpy.random.default_rng([zlib.crc32(trial.case.label.encode()), *own]), shape, dtype)


def serial(trial: MeshTrial, view: Place, labels: Sequence[str]) -> Found:
    """The reference of a view, where the value has these labels."""
    n = range(len(trial.labels))

    def whole(i: int, at: Callable[[Place], Array]) -> Any:
        return ag.tensor(trial.whole(view, at, trial.labels[i]))

    xs = [whole(i, lambda place, i=i: trial.operand(i, place)) for i in n]
    variable = [i for i in n if differentiable(xs[i].array, "R")]
    ds = [whole(i, lambda place, i=i: trial.held(i, place, trial.direction(i))) for i in variable]

    def ct(y: Any) -> Any:
        found = drawn_cotangent(trial, y.array.shape, y.array.dtype, view, labels)
        return Tensor(found if found.shape else found[()])

    with numpy.errstate(all="ignore"):
        return run(trial.case.f, xs, variable, ct, ds, second=True)


# -- the verdict -------------------------------------------------------------------------------------------------------


def verdict(trial: MeshTrial, found: Mapping[Place, Found]) -> str:
    """"refused" or "right"; raises Wrong."""
    is_joint = len(trial.joint) == len(AXES)
    broken = [x.broken for x in found.values() if x.broken]
    refused = [x.refused for x in found.values() if x.refused]
    if broken:
        if refused or not (is_joint or _fits(trial)) or ("rooted" in trial.kinds and _only_absent(broken)):
            return "refused"
        raise Wrong(f"error in the {broken[0]}")
    if refused:
        if len(refused) < len(found) and is_joint and not all(x.misfit or not x.refused for x in found.values()):
            raise Wrong(f"refused on some ranks only: {refused[0]}")
        return "refused"
    texts = {x.label for x in found.values()}
    if len(texts) > 1:
        raise Wrong(f"labels differ: {sorted(texts)}")
    labels = texts.pop().split()
    trial = with_result(trial, labels)
    variable = [i for i in range(len(trial.labels)) if differentiable(trial.case.draw(trial.seed)[i], "R")]
    for x in found.values():
        for have, i in zip(x.duals, variable, strict=False):
            need = " ".join(_DUALS.get(label, label) for label in trial.labels[i])
            if have and have != need:
                raise Wrong(f"the gradient of an operand {trial.labels[i]} is {have}; needed {need}")
    first = next(iter(found.values()))
    constant = False
    for k, kind in enumerate(trial.kinds):
        if kind == "rooted" and labels[k] not in "OCD" and not first.plain:
            raise Wrong(f"the label is {labels[k]}, and an operand is Rooted")
        if kind == "separate" and labels[k] in "RICD":  # the value does not depend on the Varying operand
            constant = True
        elif kind == "separate" and labels[k] != "V" and not any(x[0] == "S" for x in trial.along(k)):
            raise Wrong(f"the label is {labels[k]}, and an operand is Varying")
    if first.plain and any("P" in x for x in trial.labels):
        raise Wrong("a plain array of addends")
    needed = {view: serial(trial, view, labels) for view in trial.views}
    if first.plain:
        return "right"
    for view, e in needed.items():
        of = {p: x for p, x in found.items() if trial.is_in(p, view)}
        near(assembled({p: x.value for p, x in of.items()}, labels, trial.joint, "value"), e.value, "value")
        if constant:
            continue
        if all(x.tangent is not None for x in of.values()):
            near(assembled({p: x.tangent for p, x in of.items()}, labels, trial.joint, "tangent"), e.tangent, "tangent")
        elif e.tangent is not None and numpy.any(e.tangent):
            raise Wrong("there is no derivative")
    if not constant:
        for k, i in enumerate(variable):
            for kind in ("gradients", "recorded", "second"):
                _compare(trial, trial.labels[i], k, kind, found, needed)
    return "right"


def _compare(trial: MeshTrial, labels: Sequence[str], k: int, kind: str, found: Any, needed: Any) -> None:
    """Compare the gradients of one operand in all views."""
    have, need = {}, {}
    duals = [_DUALS.get(label, label) for label in labels]
    for view, e in needed.items():
        of = {p: getattr(x, kind) for p, x in found.items() if trial.is_in(p, view)}
        if any(bool(g) != bool(getattr(e, kind)) for g in of.values()):
            raise Wrong(f"{kind}: missing")
        if not getattr(e, kind):
            return
        have[view] = assembled({p: g[k] for p, g in of.items()}, duals, trial.joint, kind)
        need[view] = getattr(e, kind)[k]
    for axis, (label, of) in enumerate(zip(labels, trial.kinds, strict=True)):
        if of == "separate" and label in "IP" and any(numpy.any(x) for x in (*have.values(), *need.values())):
            raise Wrong(f"an operand that is {label} mixed with one that is Varying")
        if of == "rooted" and label in "IP" and any(numpy.any(x) for x in (*have.values(), *need.values())):
            raise Wrong(f"an operand that is {label} mixed with one that is Rooted")
        if of == "separate" and label == "R":
            have, need = _summed(have, axis), _summed(need, axis)
    for view, x in have.items():
        near(x, need[view], kind)


def _summed(of: Mapping[Place, Array], axis: int) -> dict[Place, Array]:
    found: dict[Place, Array] = {}
    for place, x in of.items():
        at = (*place[:axis], 0, *place[axis + 1 :])
        found[at] = found[at] + x if at in found else x
    return found


def _only_absent(broken: Sequence[str]) -> bool:
    """Whether a function looked at the values of an operand that is on another rank."""
    return all(AbsentError.__name__ in text for text in broken)


def _fits(trial: MeshTrial) -> bool:
    """Whether one process can run the case with what the ranks of each view hold."""
    try:
        for view in trial.views:
            serial(trial, view, ["V"] * len(AXES))
    except Exception:
        return False
    return True


def mesh_sweep(chosen: Sequence[MeshTrial]) -> list[tuple[MeshTrial, str]]:
    """Run trials on ranks; returns the verdict of each, or what is wrong."""

    def program() -> list[Found]:
        with cc.Mesh(**AXES):
            return [on_rank(trial) for trial in chosen]

    mode = check_mode()
    cc.check("off")
    try:
        found = cc.run(program, len(PLACES))
    finally:
        cc.check(mode)
    results = []
    for trial, *each in zip(chosen, *found, strict=True):
        try:
            results.append((trial, verdict(trial, dict(zip(PLACES, each, strict=True)))))
        except Wrong as wrong:
            results.append((trial, f"wrong: {wrong}"))
        except Exception as error:
            results.append((trial, f"wrong: reference failed: {type(error).__name__}: {str(error)[:200]}"))
    return results
