"""Every operation with every label at every operand, on ranks that are threads, compared with one process.

A *trial* is a case of the registry (`tests.proofs.operations`) and one label per operand. Every rank runs the case's
function on its parts, then a reverse sweep, a recorded one, a second one through that, and forward mode. A trial passes
if the operation was refused on all ranks, by a LayoutError where it was called, or if all of the following equal what
one process computes: the value and its label, the gradients and their labels, the second derivatives, the tangent.

The reference is of one of two kinds. Without a Varying operand there is one value, which is assembled from the ranks'
parts by its label and compared with the function of the whole operands. With a Varying operand or result each rank has
a function of its own: its operands are what this rank holds, and only the gradients of Replicated operands are summed.
If the result is Partial nevertheless, Varying operands were taken as the parts of one value, because they stand beside
a Shard, and the reference is the function of that value: a mean divides by the number of elements of the whole.
"""

from __future__ import annotations

import itertools
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from autograd.arrays.shape_only import Shaped
from autograd.engine.primitive import registry
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import LayoutError, RingtapeError
from collectives import D, I, P, R, Rooted, Shard, V
from collectives.checks.modes import check_mode

from ...proofs.operations import CASES, Argument, Case, normal, positive

RANKS = 3
LONGER = {2: 4, 3: 7, 4: 5}  # extents of a case -> extents of which the ranks have 2/1/1, 3/2/2, 2/2/1
Array = Any


# -- trials ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A case and a label per operand.

    Labels are written R, I, P, V, C, D, and S0, S1, ... for Shard(0), Shard(1). V0 is Varying, with the extent on
    dimension 0 that the rank has of a Shard(0).
    """

    case: Case
    labels: tuple[str, ...]
    seed: int = 1

    @property
    def name(self) -> str:
        return f"{self.case.operation} {self.case.label}: {' '.join(self.labels)}"

    @property
    def separate(self) -> bool:
        """Whether an operand is Varying."""
        return any(label[0] == "V" for label in self.labels)

    @cached_property
    def whole(self) -> list[Array]:
        """The operands of one process."""
        return self.case.draw(self.seed)

    @property
    def has_parts(self) -> bool:
        """Whether all Varying operands have the extents of parts."""
        return all(label[0] != "V" or label[1:] for label in self.labels)

    def own(self, rank: int) -> list[Array]:
        """What this rank holds of each operand (of a Partial operand its addend)."""
        own = self.case.draw(self.seed + 1 + rank) if self.separate else []
        pairs = enumerate(zip(self.whole, self.labels, strict=True))
        return [held(x, label, rank, i, own) for i, (x, label) in pairs]


def held(x: Array, label: str, rank: int, i: int, own: Sequence[Array] = ()) -> Array:
    """What a rank holds of the whole value x. `own` are its own values, of Varying operands."""
    if label == "P":
        return addends(x, i)[rank]
    if label[0] == "V":
        x = own[i]
    return part(x, int(label[1:]), rank) if label[1:] else x


def addends(x: Array, seed: int) -> Array:
    """Addends of x, one per rank."""
    found = random(numpy.random.default_rng(seed), (RANKS, *x.shape), x.dtype)
    return found - (found.sum(0) - x) / RANKS


def part(x: Array, dim: int, rank: int) -> Array:
    """The part of x that a rank has as a Shard(dim)."""
    return numpy.take(x, numpy.array_split(numpy.arange(x.shape[dim]), RANKS)[rank], dim)


def random(rng: Any, shape: Sequence[int], dtype: Any) -> Array:
    x = rng.standard_normal(shape)
    return numpy.asarray(x + 1j * rng.standard_normal(shape) if numpy.dtype(dtype).kind == "c" else x)


def longer(case: Case) -> Case:
    """The case with longer operands, if its function takes them."""
    if not all(isinstance(a, Argument) for a in case.args):
        return case
    args: Any = tuple(replace(a, shape=tuple(LONGER.get(n, n) for n in a.shape)) for a in case.args)
    found = replace(case, args=args)
    with numpy.errstate(all="ignore"):
        try:
            serial(Trial(found, ("R",) * len(args)), None)
            same = raw(found.f(*found.draw())).shape == numpy.shape(found.numpy(*found.draw()))
        except Exception:
            return case
    return found if same else case


def trials(cases: Sequence[Case]) -> Iterator[Trial]:
    """All trials of some cases. Of three operands, two have all pairs of labels, and the third that of one of them."""
    for case in cases:
        xs = case.draw()
        own = [[*choices(x), *(f"V{d}" for d in range(numpy.ndim(x)))] if len(xs) > 1 else choices(x) for x in xs]
        if len(xs) < 3:
            yield from (Trial(case, labels) for labels in itertools.product(*own) if sensible(labels))
            continue
        seen = set()
        for i, j in itertools.combinations(range(len(xs)), 2):
            for a, b in itertools.product(own[i], own[j]):
                for rest in (a, b, "R"):
                    labels = tuple(a if k == i else b if k == j else rest for k in range(len(xs)))
                    known = all(label in of for label, of in zip(labels, own, strict=True))
                    if labels not in seen and sensible(labels) and known:
                        seen.add(labels)
                        yield Trial(case, labels)


def choices(x: Array) -> list[str]:
    """The labels of an operand. Integers have no addends here."""
    partial = ["P"] if numpy.asarray(x).dtype.kind in "fc" else []
    return ["R", "I", *partial, "V", "C", "D", *(f"S{d}" for d in range(numpy.ndim(x)))]


def sensible(labels: Sequence[str]) -> bool:
    """Whether a Varying operand with the extent of a part stands beside a Shard."""
    sharded = any(label[0] == "S" for label in labels)
    return sharded or not any(label[0] == "V" and label[1:] for label in labels)


# -- cases: those of the registry, and others of functions that are no operations or have no derivative ---------------


def all_cases() -> list[Case]:
    """The registry's cases, in longer shapes where they fit, and cases of every other function."""
    return [*(longer(c) for c in CASES if "strided" not in c.label), *CONDITIONS, *function_cases()]


def _integers(*shape: int) -> Callable[[Any], Array]:
    return lambda rng: rng.integers(0, 4, shape)


def _case(operation: str, label: str, f: Any, *args: Any) -> Case:
    return Case(operation, label, f, f, args)


CONDITIONS = [
    _case("where", "of a condition", lambda c, x, y: np.where(c > 0, x, y), normal(4, 7), normal(4, 7), normal(7)),
    _case("where", "select", lambda x, y: np.select([x > 0.5, x > -0.5], [x * y, y], 0.0), normal(4, 7), normal(4, 7)),
    _case("where", "piecewise", lambda x: np.piecewise(x, [x > 0], [lambda z: z * z, 1.0]), normal(4, 7)),
    _case("where", "smooth_l1_loss", lambda x, y: nn.smooth_l1_loss(x, y, reduction="sum"), normal(4, 7), normal(4, 7)),
    _case("where", "a mask of numbers", lambda x, y: x * (y > 0), normal(4, 7), normal(7)),
    _case("clip", "between operands", lambda x, a, b: np.clip(x, a, b + 1), normal(4, 7), normal(7), positive(4, 1)),
    _case("getitem", "by integers", lambda x, i: x[i], normal(4, 7), _integers(5)),
    _case("getitem", "take", lambda x, i: np.take(x, i, 1), normal(4, 7), _integers(5)),
    _case("getitem", "by a mask", lambda x, m: x[m > 1], normal(4, 7), _integers(4)),
    _case("getitem", "by a mask of two dimensions", lambda x, m: x[m > 1], normal(4, 7), _integers(4, 7)),
    _case("take_along_axis", "by integers", lambda x, i: np.take_along_axis(x, i, 1), normal(4, 7), _integers(4, 5)),
    _case("take_rows", "by integers", lambda x, i: nn.embedding(i, x), normal(4, 7), _integers(5)),
    _case("cross_entropy", "of integers", lambda x, i: nn.cross_entropy(x, i, reduction="sum"), normal(7, 4),
          _integers(7)),
    _case("sqrt", "standard deviation along", lambda x: np.std(x, 1), normal(4, 7)),
    _case("where", "nanstd along", lambda x: np.nanstd(x, 1), normal(4, 7)),
    _case("sum", "nansum along", lambda x: np.nansum(x, 1), normal(4, 7)),
]  # fmt: skip

_ARGUMENTS: list[tuple[Any, ...]] = [
    (positive(4, 7),), (positive(5, 5),), (positive(7),), (normal(4, 7), normal(7)), (normal(5, 5), normal(5, 5)),
    (_integers(4, 7), _integers(7)), (positive(4, 7), _integers(7)), (normal(7), _integers(7)),
]  # fmt: skip


# Prefixes. The second argument of `astype` is a dtype, so that the labels of an array in its place do not matter.
_NOT_SWEPT = (
    "_", "array2", "array_", "asmatrix", "astype", "dropout", "empty", "fromiter", "info", "load", "ones_", "save",
    "show", "test", "zeros_",
)


def function_cases() -> list[Case]:
    """A case of every function of `autograd.numpy` and `autograd.nn` that takes one or two arrays."""
    found = []
    faces = [("np", np), ("np.linalg", np.linalg), ("np.fft", np.fft), ("nn", nn)]
    for prefix, face in faces:
        for name in sorted(dir(face)):
            f = getattr(face, name)
            if name.startswith(_NOT_SWEPT) or isinstance(f, type) or not callable(f):
                continue
            for args in _ARGUMENTS:
                case = _case(f"{prefix}.{name}", str(len(args)), f, *args)
                one = _first_array(case)
                if one is not None:
                    found.append(one)
                    break
    return found


def _first_array(case: Case) -> Case | None:
    """The case, of the first result where there are several; None if one process cannot run it."""
    with warnings.catch_warnings(), numpy.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            xs = case.draw()
            y = case.f(*map(ag.tensor, xs))
            if isinstance(y, tuple | list):
                f = case.f
                case = replace(case, f=lambda *xs: f(*xs)[0])
                y = y[0]
            if y.__class__ not in TENSORS and not isinstance(y, numpy.ndarray):
                return None
            serial(Trial(case, ("R",) * len(xs)), None)
        except Exception:
            return None
    return case


def thinned(cases: Sequence[Case], first: int, others: int) -> Iterator[Trial]:
    """Some trials: `first` of the largest case of an operation, and `others` of every second other case."""
    largest: dict[str, tuple[int, Case]] = {}
    for case in cases:
        size = sum(numpy.size(x) for x in case.draw())
        if case.operation not in largest or size > largest[case.operation][0]:
            largest[case.operation] = size, case
    for case in cases:
        number = zlib.crc32(f"{case.operation} {case.label}".encode())
        is_first = largest[case.operation][1] is case
        if not is_first and number % 2:
            continue
        found = list(trials([case]))
        count = first if case.operation in registry and is_first else others
        step = max(1, len(found) // count)
        yield from found[number // 2 % step :: step][:count]


# -- what every rank runs, and one process too -------------------------------------------------------------------------


@dataclass
class Found:
    """The results of one rank, or of one process, as arrays; labels are texts."""

    label: str = ""
    value: Array = None
    extent: Any = None  # of the whole value, where it is sharded
    gradients: list[Array] = field(default_factory=list)
    duals: list[str] = field(default_factory=list)
    recorded: list[Array] = field(default_factory=list)
    second: list[Array] = field(default_factory=list)
    tangent: Array = None
    refused: str = ""  # the error of the call
    plain: bool = False  # whether the value is a plain array, which is Varying
    misfit: bool = False  # whether the shapes did not fit
    broken: str = ""  # another error


def label_text(label: Any) -> str:
    return f"S{label.dim}" if isinstance(label, Shard) else "O" if isinstance(label, Rooted) else repr(label)


def layout_text(layout: Any) -> str:
    """The labels of all axes, in one text."""
    return " ".join(map(label_text, layout.labels))


def raw(x: Any) -> Array:
    """The values of x; zeros where it is rooted on another rank."""
    x = x.array if x.__class__ in TENSORS else x
    return numpy.zeros(x.shape, x.dtype) if isinstance(x, Shaped) else numpy.asarray(x)


def run(
    f: Callable[..., Any],
    xs: Sequence[Any],
    variable: Sequence[int],
    cotangent: Callable[[Any], Any],
    directions: Sequence[Any],
    second: bool,
) -> Found:
    """Run a function, and all sweeps that differentiate it with respect to the operands `variable`."""
    found = Found()
    with ag.Tape() as outer:
        outside = list(xs)
        for i in variable:
            outside[i] = outer.watch(xs[i])
        with ag.Tape() as tape:
            inside = list(outside)
            for i in variable:
                inside[i] = tape.watch(outside[i])
            try:
                y = f(*inside)
            except (RingtapeError, ValueError) as error:  # NumPy's own ValueError, and IndexError, for shapes
                found.refused, found.misfit = str(error), not isinstance(error, LayoutError)
                return found
            found.plain = y.__class__ not in TENSORS
            y = ag.tensor(y) if found.plain else y
        found.value = numpy.array(raw(y))
        if y.layout is not None:
            label = y.layout.labels[0]
            found.label = layout_text(y.layout)
            if isinstance(label, Shard):
                found.extent = label.dim, label.extent, label.offset
        if y.tape is None or y.array.dtype.kind not in "fc":
            return found
        ct = cotangent(y)
        inputs = [inside[i] for i in variable]
        recorded: Any = []
        if second:
            recorded = tape.backward([y], [ct], wanted=inputs, retain=True, record=True)
    arrays = tape.backward([y], [ct], wanted=inputs, retain=True)
    found.gradients = [zeros_if_none(g, x) for g, x in zip(arrays or [], inputs, strict=True)]
    found.recorded = [zeros_if_none(g, x) for g, x in zip(recorded, inputs, strict=False)]
    found.duals = ["" if g is None else layout_text(g.layout) for g in recorded if y.layout is not None]
    tangents = [numpy.asarray(t.array).astype(x.dtype) for t, x in zip(directions, inputs, strict=True)]
    (dy,) = tape.forward(inputs, [t[()] if not t.shape else t for t in tangents], [y])
    found.tangent = zeros_if_none(dy, y)
    if second:
        wanted = [outside[i] for i in variable]
        pairs = [(g, t) for g, t in zip(recorded, directions, strict=True) if g is not None and g.tape is not None]
        hs: Any = [None] * len(wanted)
        if pairs:
            hs = outer.backward([g for g, _ in pairs], [t for _, t in pairs], wanted=wanted, retain=True)
        found.second = [zeros_if_none(h, x) for h, x in zip(hs, wanted, strict=True)]
    return found


def zeros_if_none(g: Any, x: Any) -> Array:
    return numpy.zeros(x.array.shape, x.array.dtype) if g is None else numpy.array(raw(g))


def made(x: Array, label: str) -> Any:
    """The Tensor of what a rank holds."""
    grid = cc.current_mesh().grid
    if label == "C":
        return ag.constant(x)
    if label == "D":
        return Tensor(x if x.shape else x[()], grid.uniform(D))
    return ag.tensor(x, {"a": {"R": R, "I": I, "P": P}.get(label, V)})


def operand(whole: Array, own: Array, label: str) -> Any:
    """The operand of a rank. A Shard is made from the whole value, so that its extents are agreed."""
    if label[0] == "S":
        return cc.shard(ag.tensor(whole, {"a": R}), "a", dim=int(label[1:]))
    return made(own, label)


def seed_of(trial: Trial) -> int:
    return zlib.crc32(trial.case.label.encode())


def direction(trial: Trial, i: int, rank: int | None) -> Array:
    """The tangent of operand i, and the cotangent of its gradient: whole, or what a rank holds."""
    x, label = trial.whole[i], trial.labels[i]
    seed = seed_of(trial) + 7 * i
    whole = random(numpy.random.default_rng(seed), x.shape, x.dtype)
    if rank is None:
        return whole
    own = [random(numpy.random.default_rng(seed + 1 + rank), x.shape, x.dtype)] * (i + 1) if label[0] == "V" else ()
    return held(whole, label, rank, i, own)


def differentiable(x: Array, label: str) -> bool:
    return label not in "CD" and numpy.asarray(x).dtype.kind in "fc"


def on_rank(trial: Trial) -> Found:
    """A trial on this rank. Never raises."""
    rank = int(cc.world().rank)
    whole, own = trial.whole, trial.own(rank)
    try:
        xs = [operand(w, x, label) for w, x, label in zip(whole, own, trial.labels, strict=True)]
        variable = [i for i, label in enumerate(trial.labels) if differentiable(whole[i], label)]
        ds = [operand(direction(trial, i, None), direction(trial, i, rank), trial.labels[i]) for i in variable]

        def cotangent(y: Any) -> Any:
            label = label_text(y.layout.labels[0])
            if trial.separate or label == "V":
                return Tensor(local_cotangent(trial, y.array, None if label == "P" else rank), y.layout.dual)
            dual = {"R": "P", "P": "R"}.get(label, label)
            shape = y.global_shape
            ct = whole_cotangent(trial, shape, y.array.dtype)
            if dual[0] == "S":
                shard = y.layout.labels[0]
                n = int(y.array.shape[shard.dim])
                ct = numpy.take(ct, range(shard.offset, shard.offset + n), shard.dim)
                return Tensor(ct, y.layout.dual)
            ct = held(ct, dual, rank, 99)
            return Tensor(ct if ct.shape else ct[()], y.layout.dual)

        with numpy.errstate(all="ignore"):
            return run(trial.case.f, xs, variable, cotangent, ds, second=True)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        stage = "call" if any("y = f(" in (frame.line or "") for frame in where) else "sweep"
        at = f"{where[-1].filename[-30:]}:{where[-1].lineno}"
        return Found(broken=f"{stage}: {type(error).__name__}: {str(error)[:300]} at {at}")


def whole_cotangent(trial: Trial, shape: Sequence[int], dtype: Any) -> Array:
    return random(numpy.random.default_rng(seed_of(trial)), shape, dtype)


def local_cotangent(trial: Trial, y: Array, rank: int | None) -> Array:
    """The cotangent of a rank's own value; of an addend, where `rank` is None, it is the same on all ranks."""
    ct = random(numpy.random.default_rng(seed_of(trial) + (0 if rank is None else 1 + rank)), y.shape, y.dtype)
    return ct if ct.shape else ct[()]


def serial_of_parts(trial: Trial) -> Found:
    """The reference where the Varying operands are the parts of one value."""
    def whole(i: int, x: Array, of_rank: Callable[[int], Array]) -> Array:
        label = trial.labels[i]
        return assembled([of_rank(rank) for rank in range(RANKS)], label, "") if label[0] == "V" else x

    own = [trial.own(rank) for rank in range(RANKS)]
    xs = [whole(i, x, lambda rank, i=i: own[rank][i]) for i, x in enumerate(trial.whole)]
    variable = [i for i, label in enumerate(trial.labels) if differentiable(xs[i], label)]
    ds = [ag.tensor(whole(i, direction(trial, i, None), lambda rank, i=i: direction(trial, i, rank)))
          for i in variable]  # fmt: skip
    with numpy.errstate(all="ignore"):
        return run(trial.case.f, [ag.tensor(x) for x in xs], variable,
                   lambda y: Tensor(local_cotangent(trial, y.array, None)), ds, second=True)  # fmt: skip


def serial(trial: Trial, rank: int | None, label: str = "") -> Found:
    """The reference: of the whole operands, or of what a rank holds, where the result has this label."""
    xs = trial.whole if rank is None else trial.own(rank)
    variable = [i for i, label in enumerate(trial.labels) if differentiable(xs[i], label)]
    ds = [ag.tensor(direction(trial, i, rank)) for i in variable]

    def cotangent(y: Any) -> Any:
        if rank is None:
            ct = whole_cotangent(trial, y.array.shape, y.array.dtype)
            return Tensor(ct if ct.shape else ct[()])
        return Tensor(local_cotangent(trial, y.array, None if label == "P" else rank))

    with numpy.errstate(all="ignore"):
        return run(trial.case.f, [ag.tensor(x) for x in xs], variable, cotangent, ds, second=True)


# -- the verdict -------------------------------------------------------------------------------------------------------


class Wrong(Exception):
    """What is wrong with a trial."""


def near(found: Array, expected: Array, what: str) -> None:
    found, expected = numpy.asarray(found), numpy.asarray(expected)
    if found.shape != expected.shape:
        raise Wrong(f"{what}: shape {found.shape}; needed {expected.shape}")
    with numpy.errstate(all="ignore"):
        scale = 1 + numpy.max(numpy.abs(expected), initial=0, where=numpy.isfinite(expected))
        if not numpy.allclose(found, expected, rtol=1e-7, atol=1e-7 * scale, equal_nan=True):
            off = numpy.nanmax(numpy.abs(found - expected), initial=0)
            raise Wrong(f"{what}: off by {off:.2g}")


def assembled(parts: Sequence[Array], label: str, what: str) -> Array:
    """The whole value from what the ranks hold."""
    if label == "P":
        return numpy.sum(parts, 0)
    if label[0] in "SV":
        return numpy.concatenate(parts, int(label[1:]))
    for x in parts[1:]:
        near(x, parts[0], f"{what}, which is to be equal on all ranks")
    return parts[0]


def fits(trial: Trial) -> bool:
    """Whether one process can run and differentiate the case with what each rank holds."""
    try:
        for rank in range(RANKS):
            serial(trial, rank)
    except Exception:
        return False
    return True


def verdict(trial: Trial, found: Sequence[Found]) -> str:
    """"refused" or "right"; raises Wrong."""
    if any(x.broken for x in found):
        if any(x.refused for x in found) or (trial.separate and not fits(trial)):
            return "refused"
        raise Wrong(f"error in the {next(x.broken for x in found if x.broken)}")
    refused = [x.refused for x in found if x.refused]
    if refused:
        if len(refused) < len(found) and not trial.separate and not all(x.misfit or not x.refused for x in found):
            raise Wrong(f"refused on some ranks only: {refused[0]}")
        return "refused"
    labels = {x.label for x in found}
    if len(labels) > 1:
        raise Wrong(f"labels differ: {sorted(labels)}")
    (label,) = labels
    duals = {"R": "P", "P": "R"}
    variable = [t for t, x in zip(trial.labels, trial.whole, strict=True) if differentiable(x, t)]
    for x in found:
        for have, of in zip(x.duals, variable, strict=False):
            need = duals.get(of, of)
            need = "V" if need[0] == "V" else need
            if have and have != need:
                raise Wrong(f"the gradient of an operand {of} is {have}; needed {need}")
    is_of_parts = trial.separate and label == "P" and trial.has_parts
    if (trial.separate and not is_of_parts) or label == "V":
        expected = [serial(trial, rank, label) for rank in range(RANKS)]
        if label in ("R", "I", "C", "D"):  # it does not depend on the Varying operand
            assembled([x.value for x in found], label, "value")
        elif label != "V" and not any(t[0] == "S" for t in trial.labels):
            raise Wrong(f"the label is {label}, and an operand is Varying")
        for x, e in zip(found, expected, strict=True):
            near(x.value, e.value, "value")
        if label in ("R", "I", "C", "D"):
            return "right"
        if found[0].plain:
            if "P" in trial.labels:
                raise Wrong("a plain array of addends")
            return "right"
        for x, e in zip(found, expected, strict=True):
            if x.tangent is not None:
                near(x.tangent, e.tangent, "tangent")
        for k, of in enumerate(variable):
            for kind in ("gradients", "recorded", "second"):
                have = [getattr(x, kind)[k] for x in found if getattr(x, kind)]
                need = [getattr(x, kind)[k] for x in expected if getattr(x, kind)]
                if len(have) != len(need):
                    raise Wrong(f"{kind}: missing")
                if of == "R":
                    have, need = [numpy.sum(have, 0)], [numpy.sum(need, 0)]
                elif of in "IP" and numpy.any([*have, *need]):  # a condition has no derivative, so it may mix
                    raise Wrong(f"an operand that is {of} mixed with one that is Varying")
                for a, b in zip(have, need, strict=True):
                    near(a, b, kind)
        return "right"
    e = serial_of_parts(trial) if is_of_parts else serial(trial, None)
    if label[0] == "S":
        at = 0
        for x in found:
            dim, extent, offset = x.extent
            if dim >= x.value.ndim or extent != e.value.shape[dim] or offset != at:
                raise Wrong(f"Shard({dim}) of extent {extent} at {offset}; needed {e.value.shape} at {at}")
            at += x.value.shape[dim]
    near(assembled([x.value for x in found], label, "value"), e.value, "value")
    if found[0].tangent is not None:
        near(assembled([x.tangent for x in found], label, "tangent"), e.tangent, "tangent")
    elif e.tangent is not None and numpy.any(e.tangent):
        raise Wrong("there is no derivative")
    for k, of in enumerate(variable):
        for kind in ("gradients", "recorded", "second"):
            have = [getattr(x, kind)[k] for x in found if getattr(x, kind)]
            need = [getattr(e, kind)[k]] if getattr(e, kind) else []
            if len(have) != RANKS * len(need):
                raise Wrong(f"{kind}: missing")
            if need:
                near(assembled(have, duals.get(of, of), kind), need[0], kind)
    return "right"


def sweep(chosen: Sequence[Trial]) -> list[tuple[Trial, str]]:
    """Run trials on ranks; returns the verdict of each, or what is wrong."""

    def program() -> list[Found]:
        with cc.Mesh(a=RANKS):
            return [on_rank(trial) for trial in chosen]

    mode = check_mode()
    cc.check("off")  # making a Shard would be compared, and each comparison waits for the other threads
    try:
        found = cc.run(program, RANKS)
    finally:
        cc.check(mode)
    results = []
    for trial, *each in zip(chosen, *found, strict=True):
        try:
            results.append((trial, verdict(trial, each)))
        except Wrong as wrong:
            results.append((trial, f"wrong: {wrong}"))
        except Exception as error:
            results.append((trial, f"wrong: reference failed: {type(error).__name__}: {str(error)[:200]}"))
    return results
