"""Cases of collectives with a serial reference: run them on ranks, and compare the results.

The docstring of `collectives.testing` lists the checks.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
from autograd.arrays.shape_only import Shaped
from autograd.engine.recording import op_of, options_of
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import CommunicationError, LayoutError, TapeError, site_of_traceback, typed_errors
from autograd.layouts.layout import I, Label, Layout, P, R, Rooted, Shard, V, dual_label, may_relabel
from autograd.records.plain import packed, unpacked

from ..declaration.collective import Collective, collectives
from ..mesh import Mesh
from ..ops.sums import all_reduce
from ..world import run, world

__all__ = ["Case", "Failure", "Setting", "Skip", "check_cases", "check_everywhere", "judge", "mutated", "observe",
           "operand", "prepare", "run_cases"]  # fmt: skip

Values = list[Any]
"""One array per rank; None where the value is absent."""


class Skip(NamedTuple):
    """A combination that has no case, with the reason."""

    name: str
    reason: str


class Failure(NamedTuple):
    """A failed check of a case."""

    case: str
    check: str
    detail: str


@dataclass(frozen=True)
class Case:
    """One collective on one pair of layouts, with its serial reference.

    Attributes
    ----------
    name : str
        The collective, the labels and the options, as failures print them.
    covers : tuple of str
        The collectives that the case tests, by their names in `collectives.declaration.collective.collectives`.
    takes, gives : Label
        The labels of the operand and of the result along the axes. The root of a Rooted is a rank of the (flattened)
        group.
    call : callable
        ``call(x, axis)`` applies the collective to a Tensor, on every rank, and returns a Tensor.
    forward, adjoint : callable
        References on lists with one array per rank along the axes, None where a value is absent: from all operands to
        all results, and from all cotangents of the results to all cotangents of the operands.
    shapes : tuple of shapes
        The shape of every rank's operand along the axes.
    dtype : dtype
    order : 1 or 2
        1 leaves out the second-order checks, which take most of the time.
    point : callable, optional
        Maps a rank's random operand to the one to use, where random numbers would miss the purpose of the case (ties,
        zeros).
    tangent, bend : callable, optional
        For a nonlinear collective only. Its `adjoint` is then called as ``adjoint(x, ct)``. ``tangent(x, dx)`` is the
        directional derivative, and ``bend(x, dx, ct)`` the derivative of ``adjoint(x, ct)`` with respect to x along dx.
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


@typed_errors
class Setting:
    """A mesh, the axes that a case runs along, and the operand's labels on the other axes.

    Parameters
    ----------
    sizes : mapping from axis to int
        The size of each axis of the mesh, outermost axis first.
    axes : sequence of str
        The axes of the collective, in the mesh's order; several are flattened into one.
    others : mapping from axis to Label, optional
        V, R, P, I or Rooted for the axes that are not among `axes`. The default for each is V.
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
        """All groups of ranks that differ only in their places on the axes `along`, in order of those places."""
        found: dict[Any, list[int]] = {}
        for rank, place in enumerate(self.places):
            found.setdefault(tuple(i for k, i in enumerate(place) if k not in along), []).append(rank)
        return list(found.values())

    def summed(self, values: Values, along: Sequence[int]) -> Values:
        """Replace every rank's value by the sum over its group along some axes; None if the group has no values."""
        result = list(values)
        for group in self.groups(along) if along else []:
            for rank in group:
                result[rank] = None if values[group[0]] is None else sum(values[r] for r in group)
        return result

    def apply(self, function: Callable[..., Values], *values: Values) -> Values:
        """Apply a serial function to every group along the axes."""
        result: Values = [None] * self.ranks
        for group in self.groups(self.along):
            place = self.places[group[0]]
            if any(isinstance(x, Rooted) and x.root != place[self.names.index(a)] for a, x in self.others.items()):
                continue  # no rank of this group is the root on the other axis
            for rank, y in zip(group, function(*([each[r] for r in group] for each in values)), strict=True):
                result[rank] = y
        return result

    def labels(self, label: Label) -> list[Label]:
        """The labels on all mesh axes of a value that has `label` along the axes of the case."""
        result = [self.others.get(name, V) for name in self.names]
        places = np.unravel_index(label.root, self.extents) if isinstance(label, Rooted) else ()
        for i, k in enumerate(self.along):
            result[k] = Rooted(int(places[i])) if isinstance(label, Rooted) else label
        return result


@dataclass
class Plan:
    """The inputs of a case on all ranks, and the results that the reference gives.

    Attributes
    ----------
    x, dx, ct, c : list of array
        Operand, tangent, cotangent, and the weights of the second-order objective.
    y, dy, g, hv : list of array
        Result, its tangent, the operand's cotangent, and the Hessian-vector product.
    shapes : list of shapes
        The shape of every rank's operand.
    second_scale : float
        The size of the numbers that are added up in `hv`, to which its tolerance is relative.
    """

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


@typed_errors
def prepare(case: Case, setting: Setting) -> Plan:
    """Make the inputs of a case and the reference's results: the same on every rank, without communication."""
    takes, gives = setting.labels(case.takes), setting.labels(case.gives)
    shapes: list[Any] = [None] * setting.ranks
    for group in setting.groups(setting.along):
        for rank, shape in zip(group, case.shapes, strict=True):
            shapes[rank] = shape
    seed = zlib.crc32(f"{case.name} {setting}".encode())
    x, dx = (_fill(setting, takes, shapes, case.dtype, seed + i) for i in (0, 1))
    if case.point is not None:
        x = _each(case.point, x)
    y = setting.apply(case.forward, x)
    dy = setting.apply(case.forward, dx) if case.tangent is None else setting.apply(case.tangent, x, dx)
    out = _each(np.shape, y)
    ct = _fill(setting, [dual_label(label) for label in gives], out, case.dtype, seed + 2)
    c = _fill(setting, [V if label is R or label is P else label for label in gives], out, case.dtype, seed + 3)
    # the second-order objective is <c, u^3 + u>, where u is y summed over its Partial axes; hv is its second derivative
    # along dx
    partial = [k for k, label in enumerate(gives) if label is P]
    u, du = setting.summed(y, partial), setting.summed(dy, partial)
    t = setting.summed(_each(lambda c, u, du: 6 * c * u * du, c, u, du), partial)
    if case.tangent is None:
        g, hv = setting.apply(case.adjoint, ct), setting.apply(case.adjoint, t)
    else:
        g, hv = setting.apply(case.adjoint, x, ct), setting.apply(case.adjoint, x, t)
        if case.bend is not None:
            slope = _each(lambda c, u: c * (3 * u * u + 1), c, u)
            hv = _each(lambda a, b: a + b, hv, setting.apply(case.bend, x, dx, slope))
    return Plan(x, dx, ct, c, y, dy, g, hv, shapes, _norm(t) * setting.ranks)


def _each(function: Callable[..., Any], *values: Values) -> Values:
    """Apply a function to the values of each rank; None where the first of them is None."""
    return [None if each[0] is None else function(*each) for each in zip(*values, strict=True)]


def _fill(setting: Setting, labels: Sequence[Label], shapes: Sequence[Any], dtype: Any, seed: int) -> Values:
    """Random values of a layout: equal copies along R and I, None on ranks other than a root, otherwise different."""
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
    """A non-contiguous array of normally distributed numbers."""
    wide = (*shape[:-1], 2 * shape[-1])[::-1] if shape else ()
    base = np.asarray(rng.standard_normal(wide), dtype)
    if dtype.kind == "c":
        base = base + dtype.type(1j) * np.asarray(rng.standard_normal(wide), dtype)
    return base.T[..., ::2] if shape else np.asarray(base)


def _norm(values: Values) -> float:
    wide = (abs(a).astype(np.float64) for a in values if a is not None)  # float16 would overflow
    return math.sqrt(sum(float((a**2).sum()) for a in wide))


# -- on the ranks ------------------------------------------------------------------------------------------------------


@dataclass
class Observed:
    """The results of a case on one rank, and the faults that this rank found itself as (check, text)."""

    found: dict[str, Any] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)


def observe(case: Case, setting: Setting, plan: Plan, mesh: Mesh) -> Observed:
    """Run a case on this rank. All ranks of the mesh call this function, inside ``with mesh:``."""
    seen = Observed()
    try:
        _observe(case, setting, plan, mesh, seen)
    except CommunicationError as error:  # ranks may now disagree about the next call, so no further case can run
        error.add_note(f"in case {case.name} {setting}")
        raise
    except Exception as error:
        seen.faults.append(("error", raised(error)))
    return seen


def raised(error: Exception) -> str:
    """An error as one line: its kind, its text, and the last line of the user's program that it has passed."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    site = site_of_traceback(error.__traceback__)
    return f"{type(error).__name__}: {text}" + ("" if not site or f"at {site}" in text else f"; at {site}")


def _observe(case: Case, setting: Setting, plan: Plan, mesh: Mesh, seen: Observed) -> None:
    rank, axes = mesh.ranks.rank, setting.axes
    kept = []

    def value(values: Values, layout: Layout, shape: tuple[int, ...]) -> Tensor:
        if values[rank] is None:
            return Tensor(Shaped(shape, case.dtype, "it is rooted elsewhere"), layout)
        array = _noncontiguous_copy(values[rank])
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
    seen.faults += _faults_of_result(case, x, y, _result_labels(case, setting, plan, rank))
    if plan.y[rank] is not None and y.shape != plan.y[rank].shape:
        raise AssertionError(f"the result has shape {y.shape}; needed: {plan.y[rank].shape}")
    ct = value(plan.ct, y.layout.dual, y.shape)
    if y.tape is not None:
        tape.backward([y], [ct], retain=True)
        seen.faults += _adjoint_layouts(tape)
    else:
        tape.backward((), retain=True)
    seen.found["g"] = None if x.grad is None else _plain(x.grad)
    seen.faults += _faults_of_gradient(x, takes, [array for array, _ in kept])

    x = Tensor(x.array, takes)
    dx = value(plan.dx, takes, plan.shapes[rank])
    seen.found["dy"] = _plain(ag.jvp(function, (x,), (dx,))[1])

    if case.order > 1:
        # the weights of a value are Varying where ranks use it separately (R) or after a sum (P)
        labels = [V if label is R or label is P else label for label in y.layout.labels]
        _second_order(seen, function, x, dx, value(plan.c, mesh.grid.layout(labels), y.shape), mesh)
    if any(not np.array_equal(array, original) for array, original in kept):
        seen.faults.append(("ownership", "an input was written to"))


def _faults_of_result(case: Case, x: Tensor, y: Any, want: list[Label]) -> Iterator[tuple[str, str]]:
    """Faults of a result's memory and labels; `want` are the labels that it must have."""
    moves = not any(each.silent or each.free for each in map(collectives.get, case.covers) if each is not None)
    if moves and not x.absent and not y.absent and np.may_share_memory(y.array, x.array):
        yield "ownership", "the result shares memory with the operand"
    agreed = "relabel" in case.covers or y.layout is None or all(  # a cast to Shard agrees on no extents
        a.is_agreed for a in y.layout.labels if isinstance(a, Shard))  # fmt: skip
    if y.layout is None or list(y.layout.labels) != want or not agreed:
        cuts = [(a.extent, a.offset) for a in want if isinstance(a, Shard)]
        yield "layout", f"the result is {y.layout!r}; needed: {want} {cuts or ''}"


def _faults_of_gradient(x: Any, takes: Layout, inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, str]]:
    """Faults of the labels and the memory of the gradient of `x`, if it has one."""
    if x.grad is None:
        return
    if x.grad.layout is not takes.dual:
        yield "layout", f"the gradient is {x.grad.layout!r}; needed: {takes.dual!r}"
    if any(np.may_share_memory(_plain(x.grad), array) for array in inputs):
        yield "ownership", "the gradient shares memory with an input"


def _second_order(seen: Observed, function: Any, x: Tensor, dx: Tensor, c: Tensor, mesh: Mesh) -> None:
    """The Hessian of ``<c, F(x)^3 + F(x)>`` times dx, in two ways; the second term tests F's curvature where F is 0."""
    def objective(x: Any) -> Any:
        u = function(x)
        partial = [a for a in mesh.names if u.layout[a] is P]
        u = all_reduce(u, partial, to=R) if partial else u
        return _scalar_objective((c * (u * u * u + u)).sum())

    gradient = _gradient(objective)
    seen.found["second"] = _plain(_gradient(lambda x: _scalar_objective((dx * gradient(x)).sum()))(x))
    seen.found["mixed"] = _plain(ag.jvp(gradient, (x,), (dx,))[1])


def _noncontiguous_copy(array: np.ndarray) -> np.ndarray:
    """A copy of this rank's own; ranks that are threads must not share the arrays of the plan."""
    if array.ndim == 0:
        return array.copy()
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1])[::-1], array.dtype)
    view = wide.T[..., ::2]
    view[...] = array
    return view


def _plain(x: Any) -> Any:
    array = x.array if isinstance(x, Tensor) else x
    return None if type(array) is Shaped else np.array(array)


def _gradient(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The pullback of 1. Unlike `ag.grad` it takes complex objectives too; the pairing is bilinear."""
    return lambda x: ag.vjp(f, x)[1](1.0)


def _scalar_objective(s: Any) -> Any:
    """Sum a rank's scalar over all axes on which ranks differ, so that backward accepts it as the objective."""
    open_axes = [a for a, label in s.layout.items() if label is V or label is P or isinstance(label, Shard)]
    return all_reduce(s, open_axes, to=I) if open_axes else s


@typed_errors
def operand(case: Case, setting: Setting, plan: Plan, mesh: Mesh, requires_grad: bool = True) -> Any:
    """This rank's operand of a case as a leaf, absent on ranks other than a root, with the global shape if sharded."""
    labels = dict(zip(setting.names, setting.labels(case.takes), strict=True))
    array = plan.x[mesh.ranks.rank]
    shape = plan.shapes[mesh.ranks.rank]
    array = Shaped(shape, case.dtype, "it is rooted elsewhere") if array is None else _noncontiguous_copy(array)
    whole = None
    if isinstance(case.takes, Shard):
        whole = [*shape]
        whole[case.takes.dim] = sum(s[case.takes.dim] for s in case.shapes)
    return ag.tensor(array, layout=labels, global_shape=whole, requires_grad=requires_grad)


def _result_labels(case: Case, setting: Setting, plan: Plan, rank: int) -> list[Label]:
    """The labels that one rank's result must have; for a Shard, with the extent and offset of the reference's parts."""
    labels = setting.labels(case.gives)
    if isinstance(case.gives, Shard) and plan.y[rank] is not None:
        dim = case.gives.dim
        for i, k in enumerate(setting.along):  # each axis splits a part of the axes before it
            inner = next(g for g in setting.groups(setting.along[i:]) if rank in g)
            before = [r for r in inner if setting.places[r][k] < setting.places[rank][k]]
            whole, offset = (sum(plan.y[r].shape[dim] for r in ranks) for ranks in (inner, before))
            labels[k] = Shard(dim, whole, offset)
    return labels


def _adjoint_layouts(tape: ag.Tape) -> list[tuple[str, str]]:
    """Check each recorded collective: its adjoint must map the dual layout of the result to that of the operand."""
    faults = []
    for node in reversed(tape.recording.nodes):
        if node is None or not isinstance(op_of(node), Collective) or op_of(node).name in ("send", "recv"):
            continue
        made = options_of(node)
        call, layout, out, (shape, dtype, absent) = made.call, made.layout, made.out, made.result
        ct = Tensor(Shaped(shape, dtype, "it is rooted elsewhere") if absent else np.zeros(shape, dtype), out.dual)
        inside, state.in_rules = state.in_rules, True  # as in a sweep
        try:
            with ag.no_grad():
                g = op_of(node)._adjoint(ct, call, *op_of(node).saved(node, True))
        except LayoutError as error:  # raised before anything is sent, so on all ranks
            faults.append(("layout", f"the adjoint of {op_of(node).name} is refused: {error}"))
            continue
        finally:
            state.in_rules = inside
        if not all(may_relabel(a, b) for a, b in zip(g.layout.labels, layout.dual.labels, strict=True)):
            faults.append(("layout", f"the adjoint of {op_of(node).name} gives {g.layout!r}; needed: {layout.dual!r}"))
    return faults


@typed_errors
def run_cases(work: Sequence[tuple[Case, Setting]], plans: Sequence[Plan] | None = None) -> list[Observed]:
    """Run cases on this rank of the current world. All ranks call it with the same list; `judge` takes the results.

    Parameters
    ----------
    work : sequence of (Case, Setting)
    plans : sequence of Plan, optional
        The results of `prepare`, which ranks can share if they are threads.
    """
    if state.recording is not None:
        raise TapeError("run_cases was called in the block of a tape, which would record the cases")
    meshes: dict[Any, Mesh] = {}
    seen = []
    for i, (case, setting) in enumerate(work):
        plan = prepare(case, setting) if plans is None else plans[i]
        key = tuple(setting.sizes.items())
        if key not in meshes:
            meshes[key] = Mesh(**setting.sizes)
        with meshes[key]:
            seen.append(observe(case, setting, plan, meshes[key]))
    return seen


# -- comparing with the reference --------------------------------------------------------------------------------------


_FOUND = ("y", "g", "dy", "second", "mixed")


@typed_errors
def judge(case: Case, setting: Setting, plan: Plan, ranks: Sequence[Observed]) -> list[Failure]:
    """Compare the results of all ranks with the reference, and check the pairing."""
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
    """``<ct, x>``: the sum of local dot products over the ranks, counted once along Invariant axes; no conjugate."""
    total: Any = 0.0
    for place, ct, x in zip(setting.places, cts, xs, strict=True):
        counted = all(at == 0 for label, at in zip(labels, place, strict=True) if label is I)
        if counted and ct is not None and x is not None:
            total = total + (ct.astype(np.result_type(ct, np.float64)) * x).sum()
    return total


def check_cases(work: Sequence[tuple[Case, Setting]], ranks: int) -> list[Failure]:
    """Run cases on threads, one per rank, and return the failures. Every setting's mesh has `ranks` ranks."""
    plans = [prepare(case, setting) for case, setting in work]
    try:
        seen = run(lambda: run_cases(work, plans), ranks)
    except CommunicationError as error:
        where = next((n for n in getattr(error, "__notes__", ()) if n.startswith("in case ")), "in case ?")
        return [Failure(where.removeprefix("in case "), "error", f"{type(error).__name__}: {error}")]
    return [failure for i, (case, setting) in enumerate(work)
            for failure in judge(case, setting, plans[i], [of_rank[i] for of_rank in seen])]


@typed_errors
def check_everywhere(work: Sequence[tuple[Case, Setting]]) -> list[Failure]:
    """As `check_cases` on the current world's processes: every rank calls this function and gets all failures."""
    here = world()
    plans = [prepare(case, setting) for case, setting in work]
    mine = run_cases(work, plans)
    seen = [unpacked(data, (Observed,)) for data in here.exchange(packed(mine, (Observed,)))]
    judged = {i: judge(*work[i], plans[i], [of_rank[i] for of_rank in seen])
              for i in range(here.rank, len(work), here.size)}  # the ranks divide the comparison  # fmt: skip
    found: dict[int, list[Failure]] = {}
    for data in here.exchange(packed({i: failures for i, failures in judged.items() if failures}, (Failure,))):
        found |= unpacked(data, (Failure,))
    return [failure for i in sorted(found) for failure in found[i]]


@contextmanager
@typed_errors
def mutated(name: str, **rules: Any) -> Iterator[None]:
    """Replace rules of a collective inside the ``with`` block, to show that its checks can fail.

    Parameters
    ----------
    name : str
        The name of the collective.
    **rules : callable
        `forward`, `adjoint`, `tangent` or, for a nonlinear collective, `derivative`.

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
