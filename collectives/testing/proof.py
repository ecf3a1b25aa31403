"""Proof that a collective keeps the pairing: cases with a dense serial reference, run on ranks and judged.

See the package's text for what is proved.
"""

from __future__ import annotations

import math
import pickle
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
from autograd.arrays.shape_only import Shaped
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import CommunicationError, LayoutError
from autograd.layouts.layout import I, Label, Layout, P, R, Rooted, Shard, V, dual_label, may_relabel

from ..collective import Collective, collectives
from ..mesh import Mesh
from ..ops.sums import all_reduce
from ..world import run, world

__all__ = ["Case", "Failure", "Setting", "Skip", "check_cases", "check_everywhere", "judge", "mutated", "observe",
           "operand", "prepare", "run_cases"]  # fmt: skip

Values = list[Any]
"""One array per rank; None where the value is absent."""


class Skip(NamedTuple):
    """A case that does not exist, and why."""

    name: str
    reason: str


class Failure(NamedTuple):
    """What a case did not keep."""

    case: str
    check: str
    detail: str


@dataclass(frozen=True)
class Case:
    """One collective on one pair of layouts, with its dense serial reference.

    Attributes
    ----------
    name : str
        The collective, the labels and the options: what a failure is called.
    covers : tuple of str
        The names in `collectives.collective.collectives` that the case is about.
    takes, gives : Label
        Of operand and result along the axes. A Rooted's root is the rank in the (flattened) group.
    call : callable
        ``call(x, axis)`` on a Tensor, on every rank; returns a Tensor.
    forward, adjoint : callable
        On lists with one array per rank along the axes, None where absent: from all operands to all results, and from
        all cotangents to all cotangents.
    shapes : tuple of shapes
        Of every rank's operand along the axes.
    dtype : dtype
    order : 1 or 2
        1 leaves out the second-order checks, which take most of the time.
    point : callable, optional
        Makes a rank's operand of random numbers, where they would miss what the case is about (ties, zeros).
    tangent, bend : callable, optional
        Of a nonlinear collective, whose `adjoint` is then called with the operands first: ``tangent(x, dx)``, and
        ``bend(x, dx, ct)``, how the adjoint of one cotangent changes with the operands. Linear ones need neither.
    """

    name: str
    covers: tuple[str, ...]
    takes: Label
    gives: Label
    call: Callable[[Any, tuple[str, ...]], Any]
    forward: Callable[[Values], Values]
    adjoint: Callable[..., Values]
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any = np.float64
    order: int = 2
    point: Callable[[Any], Any] | None = None
    tangent: Callable[[Values, Values], Values] | None = None
    bend: Callable[[Values, Values, Values], Values] | None = None


class Setting:
    """A mesh, the axes that a case runs along, and the operand's labels on the others.

    Parameters
    ----------
    sizes : mapping from axis to int
        The mesh, outermost axis first.
    axes : sequence of str
        In the mesh's order; several are flattened.
    others : mapping from axis to Label
        V, R, P, I or Rooted for each axis that is not among `axes`; V without it.
    """

    def __init__(self, sizes: Mapping[str, int], axes: Sequence[str], others: Mapping[str, Label] | None = None):
        self.sizes = dict(sizes)
        self.names = tuple(self.sizes)
        self.axes = tuple(axes)
        self.others = dict(others or {})
        self.ranks = math.prod(self.sizes.values())
        self.places = [tuple(int(i) for i in p) for p in np.ndindex(*self.sizes.values())]
        self.along = [self.names.index(a) for a in self.axes]
        self.extents = tuple(self.sizes[a] for a in self.axes)
        self.size = math.prod(self.extents)

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.sizes.values()))
        return f"on {'*'.join(self.axes)} of {mesh}" + "".join(f", {a}: {x!r}" for a, x in self.others.items())

    def groups(self, along: Sequence[int]) -> list[list[int]]:
        """The ranks that differ only in their places on some axes, in order of those places; every such group."""
        found: dict[Any, list[int]] = {}
        for rank, place in enumerate(self.places):
            found.setdefault(tuple(i for k, i in enumerate(place) if k not in along), []).append(rank)
        return list(found.values())

    def apply(self, function: Callable[..., Values], *values: Values) -> Values:
        """A dense function on every group along the axes."""
        result: Values = [None] * self.ranks
        for group in self.groups(self.along):
            place = self.places[group[0]]
            if any(isinstance(x, Rooted) and x.root != place[self.names.index(a)] for a, x in self.others.items()):
                continue  # absent along the whole group
            for rank, y in zip(group, function(*([each[r] for r in group] for each in values)), strict=True):
                result[rank] = y
        return result

    def labels(self, label: Label) -> list[Label]:
        """All axes' labels of a value that has `label` along the axes."""
        result = [self.others.get(name, V) for name in self.names]
        places = np.unravel_index(label.root, self.extents) if isinstance(label, Rooted) else ()
        for i, k in enumerate(self.along):
            result[k] = Rooted(int(places[i])) if isinstance(label, Rooted) else label
        return result


@dataclass
class Plan:
    """A case's operand x, tangent dx, cotangent ct and weights c on all ranks, and the dense answers y, dy, g, hv."""

    x: Values
    dx: Values
    ct: Values
    c: Values
    y: Values
    dy: Values
    g: Values
    hv: Values
    shapes: list[tuple[int, ...]]
    second_scale: float


def prepare(case: Case, setting: Setting) -> Plan:
    """The data of a case and the dense reference's answers; the same on every rank, without communication."""
    takes, gives = setting.labels(case.takes), setting.labels(case.gives)
    shapes: list[Any] = [None] * setting.ranks
    for group in setting.groups(setting.along):
        for rank, shape in zip(group, case.shapes, strict=True):
            shapes[rank] = shape
    seed = zlib.crc32(f"{case.name} {setting}".encode())
    x, dx = (_fill(setting, takes, shapes, case.dtype, seed + i) for i in (0, 1))
    if case.point is not None:
        x = [None if a is None else case.point(a) for a in x]
    y = setting.apply(case.forward, x)
    dy = setting.apply(case.forward, dx) if case.tangent is None else setting.apply(case.tangent, x, dx)
    out = [None if a is None else a.shape for a in y]
    ct = _fill(setting, [dual_label(label) for label in gives], out, case.dtype, seed + 2)
    c = _fill(setting, [V if label is R or label is P else label for label in gives], out, case.dtype, seed + 3)
    # the objective <c, u^3 + u>, u being y with its open sums taken: its second derivative in the direction dx
    partial = [k for k, label in enumerate(gives) if label is P]
    u, du = _summed(setting, y, partial), _summed(setting, dy, partial)
    t = [None if c[r] is None else 6 * c[r] * u[r] * du[r] for r in range(setting.ranks)]
    t = _summed(setting, t, partial)
    if case.tangent is None:
        g, hv = setting.apply(case.adjoint, ct), setting.apply(case.adjoint, t)
    else:
        g, hv = setting.apply(case.adjoint, x, ct), setting.apply(case.adjoint, x, t)
        if case.bend is not None:
            slope = [None if c[r] is None else c[r] * (3 * u[r] * u[r] + 1) for r in range(setting.ranks)]
            bent = setting.apply(case.bend, x, dx, slope)
            hv = [None if a is None else a + b for a, b in zip(hv, bent, strict=True)]
    return Plan(x, dx, ct, c, y, dy, g, hv, shapes, _norm(t) * setting.ranks)


def _fill(setting: Setting, labels: Sequence[Label], shapes: Sequence[Any], dtype: Any, seed: int) -> Values:
    """Random values of a layout: equal along R and I, absent off a root, else different on every rank."""
    values: Values = []
    for place, shape in zip(setting.places, shapes, strict=True):
        present = all(label.root == at for label, at in zip(labels, place, strict=True) if isinstance(label, Rooted))
        if shape is None or not present:
            values.append(None)
            continue
        key = [0 if label is R or label is I else at + 1 for label, at in zip(labels, place, strict=True)]
        values.append(_random(np.random.default_rng([seed, *key]), shape, np.dtype(dtype)))
    return values


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Normal numbers that do not lie one after the other in memory."""
    wide = (*shape[:-1], 2 * shape[-1])[::-1] if shape else ()
    base = np.asarray(rng.standard_normal(wide), dtype)
    if dtype.kind == "c":
        base = base + dtype.type(1j) * np.asarray(rng.standard_normal(wide), dtype)
    return base.T[..., ::2] if shape else np.asarray(base)


def _summed(setting: Setting, values: Values, along: Sequence[int]) -> Values:
    """The sum over some axes, on every rank of them."""
    if not along:
        return values
    result: Values = [None] * setting.ranks
    for group in setting.groups(along):
        total = None if values[group[0]] is None else sum(values[r] for r in group)
        for rank in group:
            result[rank] = total
    return result


def _norm(values: Values) -> float:
    wide = (abs(a).astype(np.float64) for a in values if a is not None)  # float16 would overflow
    return math.sqrt(sum(float((a**2).sum()) for a in wide))


# -- on the ranks ------------------------------------------------------------------------------------------------------


@dataclass
class Observed:
    """What one rank saw."""

    found: dict[str, Any] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)


def observe(case: Case, setting: Setting, plan: Plan, mesh: Mesh) -> Observed:
    """Run a case on this rank; all ranks of the mesh call it, inside ``with mesh:``."""
    seen = Observed()
    try:
        _observe(case, setting, plan, mesh, seen)
    except CommunicationError as error:  # the transport may be out of step: no further case can run
        error.add_note(f"in case {case.name} {setting}")
        raise
    except Exception:
        seen.faults.append(("error", traceback.format_exc(limit=-4)))
    return seen


def _observe(case: Case, setting: Setting, plan: Plan, mesh: Mesh, seen: Observed) -> None:
    rank, axes = mesh.ranks.rank, setting.axes
    kept = []

    def value(values: Values, layout: Layout, shape: tuple[int, ...]) -> Tensor:
        if values[rank] is None:
            return Tensor(Shaped(shape, case.dtype, "it is rooted elsewhere"), layout)
        array = _apart(values[rank])
        kept.append((array, values[rank]))
        return Tensor(array, layout)

    def function(x: Any) -> Any:
        return case.call(x, axes)

    x = operand(case, setting, plan, mesh)
    takes = x.layout
    assert takes is not None
    if not x.absent:
        kept.append((x.array, plan.x[rank]))
    with ag.Tape() as tape:
        y = function(x)
    seen.found["y"] = _plain(y)
    want = _result_labels(case, setting, plan, rank)
    if y.layout is None or list(y.layout.labels) != want:
        cuts = [(a.extent, a.offset) for a in want if isinstance(a, Shard)]
        seen.faults.append(("layout", f"the result is {y.layout!r}; needed: {want} {cuts or ''}"))
    if plan.y[rank] is not None and y.shape != plan.y[rank].shape:
        raise AssertionError(f"the result has shape {y.shape}; needed: {plan.y[rank].shape}")
    ct = value(plan.ct, y.layout.dual, y.shape)
    if y.tape is not None:
        tape.backward([y], [ct], retain=True)
        seen.faults += _adjoint_layouts(tape)
    else:
        tape.backward((), retain=True)
    seen.found["g"] = None if x.grad is None else _plain(x.grad)
    if x.grad is not None:
        if x.grad.layout is not takes.dual:
            seen.faults.append(("layout", f"the gradient is {x.grad.layout!r}; needed: {takes.dual!r}"))
        if any(np.may_share_memory(_plain(x.grad), a) for a, _ in kept):
            seen.faults.append(("ownership", "the gradient shares memory with an input"))

    x = Tensor(x.array, takes)
    dx = value(plan.dx, takes, plan.shapes[rank])
    seen.found["dy"] = _plain(ag.jvp(function, (x,), (dx,))[1])

    if case.order > 1:
        _second_order(seen, function, x, dx, value(plan.c, mesh.grid.layout(_own(y.layout)), y.shape), mesh)
    if any(not np.array_equal(array, original) for array, original in kept):
        seen.faults.append(("ownership", "an input was written to"))


def _second_order(seen: Observed, function: Any, x: Tensor, dx: Tensor, c: Tensor, mesh: Mesh) -> None:
    """The Hessian of <c, F(x)^3 + F(x)> times dx, found in two ways; it bends where F is zero, too."""
    def objective(x: Any) -> Any:
        u = function(x)
        partial = [a for a in mesh.names if u.layout[a] is P]
        u = all_reduce(u, partial, to=R) if partial else u
        return _one_number((c * (u * u * u + u)).sum())

    slope = _slope(objective)
    seen.found["second"] = _plain(_slope(lambda x: _one_number((dx * slope(x)).sum()))(x))
    seen.found["mixed"] = _plain(ag.jvp(slope, (x,), (dx,))[1])


def _own(layout: Layout) -> list[Label]:
    """Labels for weights that may differ between the ranks that use a value separately."""
    return [V if label is R or label is P else label for label in layout.labels]


def _apart(array: np.ndarray) -> np.ndarray:
    """This rank's own copy, which does not lie in one piece either."""
    if array.ndim == 0:
        return array.copy()
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1])[::-1], array.dtype)
    view = wide.T[..., ::2]
    view[...] = array
    return view


def _plain(x: Any) -> Any:
    array = x.array if isinstance(x, Tensor) else x
    return None if type(array) is Shaped else np.array(array)


def _slope(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The pullback of 1: the gradient, of a complex objective too, where the pairing is bilinear."""
    return lambda x: ag.vjp(f, x)[1](1.0)


def _one_number(s: Any) -> Any:
    """A local sum as the objective that backward takes: the sum over the ranks wherever they differ."""
    open_axes = [a for a, label in s.layout.items() if label is V or label is P or isinstance(label, Shard)]
    return all_reduce(s, open_axes, to=I) if open_axes else s


def operand(case: Case, setting: Setting, plan: Plan, mesh: Mesh, requires_grad: bool = True) -> Any:
    """This rank's operand of a case, as a leaf: absent off a root, with extents and offsets along sharded axes."""
    labels = dict(zip(setting.names, setting.labels(case.takes), strict=True))
    array = plan.x[mesh.ranks.rank]
    shape = plan.shapes[mesh.ranks.rank]
    array = Shaped(shape, case.dtype, "it is rooted elsewhere") if array is None else _apart(array)
    whole = None
    if isinstance(case.takes, Shard):
        whole = [*shape]
        whole[case.takes.dim] = sum(s[case.takes.dim] for s in case.shapes)
    return ag.tensor(array, layout=labels, global_shape=whole, requires_grad=requires_grad)


def _result_labels(case: Case, setting: Setting, plan: Plan, rank: int) -> list[Label]:
    """The labels that one rank's result must have; a Shard with the extent and offset that the dense parts have."""
    labels = setting.labels(case.gives)
    if isinstance(case.gives, Shard) and plan.y[rank] is not None:
        dim = case.gives.dim
        for i, k in enumerate(setting.along):  # each axis cuts what the axes before it have left
            inner = next(g for g in setting.groups(setting.along[i:]) if rank in g)
            before = [r for r in inner if setting.places[r][k] < setting.places[rank][k]]
            whole, offset = (sum(plan.y[r].shape[dim] for r in ranks) for ranks in (inner, before))
            labels[k] = Shard(dim, whole, offset)
    return labels


def _adjoint_layouts(tape: ag.Tape) -> list[tuple[str, str]]:
    """The label law of each recorded collective: its adjoint of a cotangent of the dual layout gives the operand's."""
    faults = []
    for node in reversed(tape.recording.nodes):
        if node is None or not isinstance(node[0], Collective) or node[0].name in ("send", "recv"):
            continue
        made = node[4]
        call, layout, out, (shape, dtype, absent) = made.call, made.layout, made.out, made.result
        ct = Tensor(Shaped(shape, dtype, "it is rooted elsewhere") if absent else np.zeros(shape, dtype), out.dual)
        try:
            with ag.no_grad():
                g = node[0]._adjoint(ct, call, *node[0].saved(node, True))
        except LayoutError as error:  # raised before anything is sent, so on all ranks
            faults.append(("layout", f"the adjoint of {node[0].name} is refused: {error}"))
            continue
        if not all(may_relabel(a, b) for a, b in zip(g.layout.labels, layout.dual.labels, strict=True)):
            faults.append(("layout", f"the adjoint of {node[0].name} gives {g.layout!r}; needed: {layout.dual!r}"))
    return faults


def run_cases(work: Sequence[tuple[Case, Setting]], plans: Sequence[Plan] | None = None) -> list[Observed]:
    """Run cases on this rank of the current world, all ranks the same list; see `judge`.

    Parameters
    ----------
    work : sequence of (Case, Setting)
    plans : sequence of Plan, optional
        What `prepare` gave, where ranks are threads and can share it.
    """
    meshes: dict[Any, Mesh] = {}
    seen = []
    for i, (case, setting) in enumerate(work):
        plan = prepare(case, setting) if plans is None else plans[i]
        key = tuple(setting.sizes.items())
        if key not in meshes:
            meshes[key] = Mesh(**setting.sizes)
        with meshes[key]:
            seen.append(observe(case, setting, plan, meshes[key]))
    assert state.recording is None
    return seen


# -- the verdict -------------------------------------------------------------------------------------------------------


_FOUND = ("y", "g", "dy", "second", "mixed")


def judge(case: Case, setting: Setting, plan: Plan, ranks: Sequence[Observed]) -> list[Failure]:
    """Compare what all ranks saw with the dense reference and with the pairing."""
    name = f"{case.name} {setting}"
    failures = [Failure(name, kind, f"rank {r}: {text}") for r, seen in enumerate(ranks) for kind, text in seen.faults]
    epsilon = np.finfo(case.dtype).eps
    tolerance = 4 * epsilon if epsilon > 1e-5 else 1e-5 if epsilon > 1e-10 else 1e-12
    got = {key: [seen.found[key] for seen in ranks] for key in _FOUND if all(key in seen.found for seen in ranks)}
    answers = {"y": ("forward", plan.y, _norm(plan.x)), "dy": ("tangent", plan.dy, _norm(plan.dx)),
               "g": ("adjoint", plan.g, _norm(plan.ct)), "second": ("second", plan.hv, plan.second_scale),
               "mixed": ("mixed", plan.hv, plan.second_scale)}  # fmt: skip
    for key in got:
        kind, want, scale = answers[key]
        fault = _compare(got[key], want, tolerance * max(scale, _norm(want)))
        if fault:
            failures.append(Failure(name, kind, fault))
    if "dy" not in got:
        return failures
    if not any(kind in ("forward", "adjoint", "tangent") and " holds " in text for _, kind, text in failures):
        left = _pairing(setting, setting.labels(case.takes), got["g"], plan.dx)
        right = _pairing(setting, setting.labels(case.gives), plan.ct, got["dy"])
        scale = _norm(got["g"]) * _norm(plan.dx) + _norm(plan.ct) * _norm(got["dy"])
        if abs(left - right) > tolerance * scale:
            failures.append(Failure(name, "pairing", f"<F* ct, x'> = {left:.12g}, <ct, F x'> = {right:.12g}"))
    return failures


def _compare(got: Values, want: Values, allowed: float) -> str | None:
    for rank, (a, b) in enumerate(zip(got, want, strict=True)):
        if (a is None) != (b is None):
            return f"rank {rank} holds {'no value' if a is None else 'a value'}, unlike the dense reference"
        if a is None:
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"rank {rank} holds {a.dtype}{a.shape}; needed: {b.dtype}{b.shape}"
        error = _norm([a - b])
        if not error <= allowed:
            return f"rank {rank}: off by {error:.3g}, allowed {allowed:.3g}"
    return None


def _pairing(setting: Setting, labels: Sequence[Label], cts: Values, xs: Values) -> Any:
    """<ct, x>: local dot products summed over the ranks, once along an Invariant axis; without conjugation."""
    total: Any = 0.0
    for place, ct, x in zip(setting.places, cts, xs, strict=True):
        counted = all(at == 0 for label, at in zip(labels, place, strict=True) if label is I)
        if counted and ct is not None and x is not None:
            total = total + (ct.astype(np.result_type(ct, np.float64)) * x).sum()
    return total


def check_cases(work: Sequence[tuple[Case, Setting]], ranks: int) -> list[Failure]:
    """Run cases in a world of threads, one per rank, and return what failed; every mesh has `ranks` ranks."""
    plans = [prepare(case, setting) for case, setting in work]
    try:
        seen = run(lambda: run_cases(work, plans), ranks)
    except CommunicationError as error:
        where = next((n for n in getattr(error, "__notes__", ()) if n.startswith("in case ")), "in case ?")
        return [Failure(where.removeprefix("in case "), "error", f"{type(error).__name__}: {error}")]
    return [failure for i, (case, setting) in enumerate(work)
            for failure in judge(case, setting, plans[i], [of_rank[i] for of_rank in seen])]


def check_everywhere(work: Sequence[tuple[Case, Setting]]) -> list[Failure]:
    """`check_cases` for ranks that are processes: every rank of the current world calls it and gets all failures."""
    mine = run_cases(work)
    seen = [pickle.loads(data) for data in world().exchange(pickle.dumps(mine))]
    return [failure for i, (case, setting) in enumerate(work)
            for failure in judge(case, setting, prepare(case, setting), [of_rank[i] for of_rank in seen])]


@contextmanager
def mutated(name: str, **rules: Any) -> Iterator[None]:
    """Replace a collective's rule inside the block, to show that its checks can fail.

    The rules are `forward`, `adjoint`, `tangent` and, of a nonlinear collective, `derivative`.

    Examples
    --------
    >>> from collectives.testing import mutated
    >>> with mutated("all_reduce", adjoint=lambda ct, call: ct):
    ...     pass  # here the checks of all_reduce must fail
    """
    collective: Any = collectives[name]
    attributes = {"forward": "_forward", "adjoint": "_adjoint", "tangent": "tangent",
                  "derivative": "_derivative"}  # fmt: skip
    before = dict(vars(collective))
    try:
        for rule, function in rules.items():
            setattr(collective, attributes[rule], function)
        yield
    finally:
        vars(collective).clear()
        vars(collective).update(before)
