"""The judge of an audit: what is wrong with the gradients of a job, from values alone.

A job is compared with a *reference*, a run of the same program on one process. A gradient is right if each rank's piece
is the reference's, within a tolerance that is measured: the reference again, with each parameter moved by one last bit.
The pieces of a wrong one may obey a formula, which names its cause. The formulas are tried in this order:

not finite      a NaN or an infinity, on some ranks or in the reference
missing, zero   some ranks have no gradient, or zeros, and the others are right
factor          c times right, or another c on each rank; or the conjugate
missing sum     copies differ, and their sum along an axis is c times right
stale           the gradient of the step before; not cleared: the right one, and the one before
place           right values, cut otherwise than the map says
one part        the gradient of some rows alone; weights: of all rows, with wrong weights (both with ``--part``)
unknown         none of these

Beside gradients: parameter (a start that differs), update, norm, steps (a rank has skipped one), forward, names. Of
several wrong gradients the one nearest the loss is named. Others are named where they obey a formula; those that obey
none are consequences, since backward has reached them later. Where several causes make the same values, all are given.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np

from autograd.errors import ArgumentError, typed_errors

from .files import Box, Cut, Step, boxes, piece_of
from .mesh import Mesh
from .report import CONSEQUENCE, RIGHT, UNKNOWN, Finding, Report, Verdict

__all__ = ["Judge"]

Run = Sequence[Mapping[int, Step]]
"""The steps of a job, as `read_steps` returns them."""

_FACTOR = 16
"""A right entry differs by at most so many times the largest change that a moved last bit makes. Seen: 2.9."""
_ALONE = 64
"""The same, of a last bit of the largest entry, where no run with moved bits is given."""
_DRIFT = 0.02
"""A right update differs by less of its norm: where gradients are zero but for rounding, those of Adam are not."""
_SAME = 1e-3
"""Norms, weights and factors of clipping are equal if they differ by less of themselves."""

_NEAR = 0.5
"""Gradients of the same rows differ from a multiple of the right ones by less of their norm."""

FIXES = {
    "not finite": "find the first operation that gives it; a loss scale may be too large",
    "missing": "where a rank does not use a parameter it gives zeros, so that the sum is complete",
    "all missing": "it is no part of the loss on the ranks, or cut off, as by detach",
    "zero": "it is cut off from the loss",
    "some zero": "a sum, or the way back of a gather or a scatter, is missing",
    "conjugate": "one side has the convention of the other: conjugate it",
    "more": "a sum too many, or a sum where a mean was meant",
    "less": "a mean where a sum was meant, a division too many, or a missing sum of addends that are equal",
    "each": "each rank has scaled its piece by a number of its own",
    "stale": "it is read before it is ready: wait for the communication",
    "not cleared": "zero_grad before backward",
    "place": "cut it as the layer computes, or say in --map how it is cut",
    "one part": "sum over the ranks and microbatches; a broadcast gives one rank's",
    "own rows": "all-reduce it over the ranks",
    "means": "divide the sum over all ranks by the count over all ranks, of tokens or rows",
    "scaled": "sum the gradients first, then scale or clip them",
    "accumulated": "only add what the microbatches give; divide the loss, and once",
    "copies": "broadcast it from one rank before the first step",
    "start": "the same seed and initialization on one process and on all ranks",
    "still": "give it to the optimizer there",
    "update": "the optimizers' settings and states must be equal, and nothing changes the gradient before the step",
    "norm": "count each piece once, and sum over the ranks",
    "steps": "decide whether a step is skipped from a value that all ranks have, as an all-reduced flag",
    "forward": "compare the outputs of modules; other rows, another seed or a fault of forward do this",
}
"""By kind of finding: how to mend it."""


@typed_errors
@dataclass
class Judge:
    """Judges a job.

    Parameters
    ----------
    job, reference : Run
    moved : sequence of Run
        Like the reference, with each parameter moved by one last bit at the start.
    parts : sequence of Run
        Like the reference, with the rows of one rank each, in the order of the ranks.
    mesh_sizes : mapping, optional
        The size of each axis; if it is not given, the mesh of DTensors, or one axis of all ranks.
    cuts : mapping
        By the name of a parameter, which may have ``*``: the cuts that each rank's piece comes from.
    first : int
        The step to begin with: a job that each step gave the reference's parameters can be judged after a wrong one.

    Raises
    ------
    ArgumentError
        A run that needs one process has several, or a cut names no parameter or no dimension.
    """

    job: Run
    reference: Run
    moved: Sequence[Run] = ()
    parts: Sequence[Run] = ()
    mesh_sizes: Mapping[str, int] | None = None
    cuts: Mapping[str, tuple[Cut, ...]] = field(default_factory=dict)
    first: int = 0

    def __post_init__(self) -> None:
        for name, run in (("the reference", self.reference), *(("a run with moved bits", each) for each in self.moved),
                          *(("a part", each) for each in self.parts)):  # fmt: skip
            if len(run[0]) > 1:
                raise ArgumentError(
                    f"{name} has {len(run[0])} ranks; needed: one process\n  fix: collect it with one rank, as by "
                    "torchrun --nproc-per-node 1"
                )
        step = next(iter(self.reference[0].values()))
        starts = [key for key in step.arrays if key.startswith("before:")]
        for run in self.moved:
            theirs = next(iter(run[0].values())).arrays
            if starts and all(key in theirs and np.array_equal(theirs[key], step.arrays[key]) for key in starts):
                text = "a run with moved bits has the reference's parameters, so it measures no tolerance"
                raise ArgumentError(f"{text}\n  fix: collect it with --ulp 1; a program without modules has none")
        self._check_cuts(step)

    def _check_cuts(self, step: Step) -> None:
        """Raise ArgumentError if a cut names no parameter or no dimension of one."""
        for pattern, cuts in self.cuts.items():
            shapes = [step.arrays[key].shape for name in step.names if fnmatchcase(name, pattern)
                      if (key := f"before:{name}") in step.arrays]  # fmt: skip
            if not any(fnmatchcase(name, pattern) for name in step.names):
                near = difflib.get_close_matches(pattern, step.names, 3, 0.3) or step.names[:3]
                raise ArgumentError(f"the map cuts {pattern!r}, which no parameter is called\n  fix: one of {near}")
            for cut, shape in itertools.product(cuts, shapes):
                if not 0 <= cut.dim < len(shape):
                    text = f"the map cuts dimension {cut.dim} of {pattern!r}, whose shape is {list(shape)}"
                    raise ArgumentError(f"{text}\n  fix: a dimension from 0 to {len(shape) - 1}")

    @property
    def mesh(self) -> Mesh:
        return Mesh.of(self.job[0], self.mesh_sizes)

    def report(self) -> Report:
        """Judge the steps one after the other, up to the first one that is wrong."""
        steps = min(len(self.reference), len(self.job))
        if not 0 <= self.first < steps:
            raise ArgumentError(f"the first step is {self.first}; needed: one of the {steps} that both runs have")
        report = Report(steps, steps)
        if len(self.job) != len(self.reference):
            counts = f"the job has {len(self.job)} steps, and the reference {len(self.reference)}"
            report.notes.append(f"{counts}: those that both have are judged")
        if not self.moved:
            report.notes.append(f"the tolerance is assumed, {_ALONE} last bits of the largest entry; --ulp measures it")
        if why := self._not_comparable():
            report.step, report.others, report.is_comparable = 0, [Finding("names", why)], False
            return report
        kept = {rank: sum(rank in step for step in self.job) for rank in self.job[0]}
        last = max(kept.values())
        skipped = {rank: n for rank, n in kept.items() if n < last}
        for t in range(self.first, min(steps, *kept.values())):
            at = AtStep(self, t)
            report.verdicts, report.others = at.verdicts(), at.others()
            report.is_comparable = at.is_comparable
            if report.status:
                report.step = t
                break
        if skipped:
            texts = " and ".join(f"rank {rank} has run {n} steps" for rank, n in skipped.items())
            report.others.append(Finding("steps", f"{texts}, others {last}", FIXES["steps"]))
            report.step = min(report.step, *skipped.values())
        return report

    def _not_comparable(self) -> str:
        """Why the runs cannot be compared; "" if they can."""
        theirs = next(iter(self.reference[0].values()))
        have = {name for step in self.job[0].values() for name in step.names}
        if have != set(theirs.names):
            only, absent = sorted(have - set(theirs.names))[:5], sorted(set(theirs.names) - have)[:5]
            return f"the job's parameters {only} are not in the reference, whose {absent} the job has not"
        ours = next(iter(self.job[0].values()))
        if gone := set(range(ours.meta["size"])) - set(self.job[0]):
            return f"{_of_ranks(gone)} of {ours.meta['size']} has kept no step: it ended before, or has no optimizer"
        if not any(theirs.get("grad", name) is not None for name in theirs.names):
            return "the reference has no gradient at its first step"
        for name, of in theirs.meta["dtypes"].items():
            if _last_bit(mine := ours.meta["dtypes"].get(name, of)) > _last_bit(of):
                return f"{name} is {mine} in the job, {of} in the reference: collect all with --float64, or none"
        for name, (rank, step) in itertools.product(theirs.names, self.job[0].items()):
            whole, piece = theirs.get("before", name), step.get("before", name)
            if whole is not None and piece is not None:
                shape = piece_of(whole, self.boxes(name, rank, whole.shape)).shape
                if shape != piece.shape and math.prod(shape) != piece.size:
                    return (f"{name} is {list(piece.shape)} on rank {rank}; its piece of {list(whole.shape)} would be "
                            f"{list(shape)}: --map says how a parameter is cut")  # fmt: skip
        return ""

    def boxes(self, name: str, rank: int, shape: Sequence[int]) -> list[Box] | None:
        """The boxes of a rank's piece of a parameter; None for the whole."""
        if place := self.job[0][rank].meta["places"].get(name):
            return [tuple(box) for box in place["boxes"]]
        cuts = self.cuts_of(name)
        return boxes(shape, cuts, self.mesh.sizes, self.mesh.at[rank]) if cuts else None

    def cuts_of(self, name: str) -> tuple[Cut, ...]:
        """The cuts of a parameter by the map; () for a whole one."""
        return next((cuts for pattern, cuts in self.cuts.items() if fnmatchcase(name, pattern)), ())


class AtStep:
    """A step of a job, beside that of the reference."""

    def __init__(self, judge: Judge, t: int):
        self.judge, self.t, self.mesh, self.ranks = judge, t, judge.mesh, judge.job[t]
        self.reference: Step = next(iter(judge.reference[t].values()))
        self.names = [name for name in self.reference.names if self.reference.get("grad", name) is not None]
        self.microbatches = max(1, *(len(step.meta["losses"]) for step in self.ranks.values()))
        self.is_comparable = True
        self.right: list[str] = []

    # -- values --------------------------------------------------------------------------------------------------------
    def given(self, kind: str, name: str) -> dict[int, Any]:
        """By rank: its piece."""
        return {rank: step.get(kind, name) for rank, step in self.ranks.items()}

    def wanted(self, name: str, whole: Any) -> dict[int, Any]:
        """By rank: its piece of a global array."""
        return {rank: piece_of(whole, self.judge.boxes(name, rank, whole.shape)) for rank in self.ranks}

    def beside(self, runs: Sequence[Run], kind: str, name: str) -> list[Any]:
        """The arrays of other runs of one process at this step."""
        found = [next(iter(run[self.t].values())).get(kind, name) for run in runs if self.t < len(run)]
        return [x for x in found if x is not None]

    def tolerance(self, kind: str, name: str, whole: Any) -> float:
        """The largest error of a right entry."""
        dtype = self.reference.meta["dtypes"].get(name, self.reference.arrays[f"{kind}:{name}"].dtype.name)
        unit = _last_bit(dtype) * _largest(whole)
        moved = self.beside(self.judge.moved, kind, name)
        return _FACTOR * max([unit, *(_largest(x - whole) for x in moved)]) if moved else _ALONE * unit

    def copies_that_differ(self, name: str, given: Mapping[int, Any], tolerance: float) -> str:
        """Two ranks that hold the same part of a parameter, and differ; "" if there are none."""
        shape = self.reference.get("grad", name).shape
        held: dict[str, int] = {}
        for rank, x in given.items():
            other = held.setdefault(repr(self.judge.boxes(name, rank, shape)), rank)
            if _distance(x, given[other], tolerance) > 1:
                return f"ranks {other} and {rank}"
        return ""

    def axes_of_copies(self, name: str, shape: Sequence[int]) -> set[str]:
        """The axes along which all ranks hold the same part of a parameter."""
        held = {rank: repr(self.judge.boxes(name, rank, shape)) for rank in self.ranks}
        return {axis for axis in self.mesh.sizes
                if all(len({held[rank] for rank in group}) == 1 for group in self.mesh.groups([axis]))}  # fmt: skip

    # -- gradients -----------------------------------------------------------------------------------------------------
    def verdicts(self) -> list[Verdict]:
        """One for each parameter that has a gradient in the reference, in the order of the model."""
        found: list[Verdict] = []
        for name in reversed(self.names):
            finding, distances = self.of_gradient(name)
            if finding is RIGHT:
                self.right.append(name)
            elif finding.cause == UNKNOWN and any(each.finding is not RIGHT for each in found):
                finding = CONSEQUENCE
            found.append(Verdict(name, finding, distances))
        if found and all(each.finding.cause in (UNKNOWN, CONSEQUENCE.cause) for each in found):
            found[0] = self.forward(found[0])
        return found[::-1]

    def of_gradient(self, name: str) -> tuple[Finding, dict[int, float]]:
        """The finding of a gradient, and each rank's distance in tolerances."""
        whole = self.reference.get("grad", name)
        wanted, given = self.wanted(name, whole), self.given("grad", name)
        tolerance = self.tolerance("grad", name, whole)
        distances = {rank: _distance(g, wanted[rank], tolerance) for rank, g in given.items()}
        absent = [rank for rank, g in given.items() if g is None]
        if absent:
            is_all = len(absent) == len(given)
            text = "no rank has a gradient" if is_all else f"no gradient on {_of_ranks(absent)}"
            return Finding("missing", text, FIXES["all missing" if is_all else "missing"]), distances
        if all(each <= 1 for each in distances.values()) and np.isfinite(whole).all():
            return RIGHT, distances
        pieces = Pieces(self, name, whole, given, wanted, tolerance)
        return next((each for each in pieces.findings() if each is not None), pieces.unknown()), distances

    def forward(self, nearest: Verdict) -> Verdict:
        """The verdict where no gradient obeys a formula: the losses tell whether forward has differed."""
        each = [sum(step.meta["losses"]) for step in self.ranks.values() if step.meta["losses"]]
        theirs = sum(self.reference.meta["losses"])
        counts = {1, self.microbatches, len(self.ranks), *self.mesh.sizes.values()}
        candidates = [x * factor for x in (*each, sum(each)) for n in counts for factor in (n, 1 / n)]
        is_known = bool(each and self.reference.meta["losses"])
        if not is_known or any(math.isclose(x, theirs, rel_tol=_SAME) for x in candidates) or self.is_near():
            return nearest
        shape = {name: self.reference.get("grad", name).shape for name in self.names}
        # Where no rank has a piece, forward is the reference's own code: then the rows are others.
        self.is_comparable = any(self.judge.boxes(name, rank, shape[name]) for name in shape for rank in self.ranks)
        text = f"the loss differs already: {each[0]:.6g}, of the reference {theirs:.6g}{self.first_output()}"
        return Verdict(nearest.name, Finding("forward", text, FIXES["forward"]), nearest.distances)

    def first_output(self) -> str:
        """The first module whose output differs where both runs have kept outputs, as text."""
        for key in (key for key in self.reference.arrays if key.startswith("output:")):
            kind, name = key.split(":", 1)
            whole = self.reference.get(kind, name)
            moved = self.beside(self.judge.moved, kind, name)
            tolerance = max([_SAME * _largest(whole), *(_FACTOR * _largest(x - whole) for x in moved)])
            for rank, y in self.given(kind, name).items():
                if y is not None and y.shape == whole.shape and _distance(y, whole, tolerance) > 1:
                    return f"; the first output that differs is that of {name or 'the model'}, on rank {rank}"
        return ""

    def is_near(self) -> bool:
        """Whether all gradients together are nearly a multiple of the right ones: then they are of the same rows."""
        ours, theirs = [], []
        for name in self.names:
            wanted, given = self.wanted(name, self.reference.get("grad", name)), self.given("grad", name)
            for rank, g in given.items():
                if g is not None and g.shape == wanted[rank].shape:
                    ours.append(g.ravel())
                    theirs.append(wanted[rank].ravel())
        return bool(ours) and _fit(np.concatenate(ours), [np.concatenate(theirs)])[1] < _NEAR

    # -- beside the gradients ------------------------------------------------------------------------------------------
    def others(self) -> list[Finding]:
        """Of starts, then of norms, then of updates, since one follows from the other."""
        found: dict[Finding, list[str]] = {}
        starts = dict(self.starts()) if self.t == 0 else {}
        for name, finding in starts.items():
            if finding is not None:
                found.setdefault(finding, []).append(name)
        if len(starts) > 1 and all(each is not None and each.fix == FIXES["start"] for each in starts.values()):
            self.is_comparable = False
        elif found:
            self.is_comparable = True  # the cause is known
        if not found and len(self.right) == len(self.names):
            if (norm := self.of_norm()) is not None:
                found[norm] = []
            for name in self.right if not found else ():
                if (finding := self.of_update(name)) is not None:
                    found.setdefault(finding, []).append(name)
        return [Finding(each.cause, f"{_some(names)} {each.text}".strip(), each.fix) for each, names in found.items()]

    def starts(self) -> Iterator[tuple[str, Finding | None]]:
        """The finding of each parameter's value before the first step; None for a right one."""
        for name in self.reference.names:
            whole, given = self.reference.get("before", name), self.given("before", name)
            if whole is None or any(w is None for w in given.values()):
                continue
            wanted, tolerance = self.wanted(name, whole), self.tolerance("before", name, whole)
            pieces = Pieces(self, name, whole, given, wanted, tolerance)
            if pieces.is_right(given, wanted):
                yield name, None
            elif place := pieces.place():
                yield name, Finding("parameter", place.text, place.fix)
            elif differ := self.copies_that_differ(name, given, tolerance):
                yield name, Finding("parameter", f"differs between {differ} before the step", FIXES["copies"])
            else:
                yield name, Finding("parameter", "is not the reference's before the step", FIXES["start"])

    def of_update(self, name: str) -> Finding | None:
        """Of the update that the optimizer has made of a right gradient."""
        whole, given = self.reference.get("update", name), self.given("update", name)
        if whole is None or not whole.any() or any(u is None for u in given.values()):
            return None
        gradient = self.reference.get("grad", name)
        if self.tolerance("grad", name, gradient) > _DRIFT * _largest(gradient):
            return None  # so little is known of the gradient that the update tells nothing
        wanted = self.wanted(name, whole)
        still = [rank for rank, u in given.items() if not u.any() and wanted[rank].any()]
        if still:
            on = "any rank" if len(still) == len(given) else _of_ranks(still)
            return Finding("update", f"is not updated on {on}", FIXES["still"])
        for rank, u in given.items():
            if u.shape == wanted[rank].shape and wanted[rank].any():
                (factor,), rest = _fit(u, [wanted[rank]])
                if rest > _DRIFT or abs(factor - 1) > _DRIFT:
                    times = "another update" if rest > _DRIFT else f"an update {factor:.6g} times right"
                    return Finding("update", f"has {times} on rank {rank}, of a right gradient", FIXES["update"])
        return None

    def of_norm(self) -> Finding | None:
        """Of the norm by which right gradients were clipped, and the formula that it obeys."""
        ratios: dict[int, float] = {}
        for rank, step in self.ranks.items():
            for ours, theirs in ((step.meta["norms"][:1], self.reference.meta["norms"][:1]),
                                 ([self.reference.clip], [step.clip])):  # fmt: skip
                if ours and theirs and isinstance(ours[0], float) and isinstance(theirs[0], float) and theirs[0]:
                    ratios.setdefault(rank, ours[0] / theirs[0])
        if len(ratios) < len(self.ranks) or all(abs(each - 1) < _SAME for each in ratios.values()):
            return None
        shown = " and ".join(dict.fromkeys(f"{each:.6g}" for each in ratios.values()))
        for text, formula in self.norms():
            if all(abs(ratio - formula(rank)) < _SAME * ratio for rank, ratio in ratios.items()):
                return Finding("norm", f"the norm of the gradients is {shown} times right: {text}", FIXES["norm"])
        named = self.mesh.names_of(next(iter(ratios.values())), _SAME, self.microbatches)
        text = f"the norm of the gradients is {shown} times right{named and f': {named}'}"
        return Finding("norm", text, FIXES["norm"])

    def norms(self) -> Iterator[tuple[str, Callable[[int], float]]]:
        """Wrong formulas of a norm, as text and as the ratio to the right one."""
        of = {name: self.reference.get("grad", name) for name in self.names}
        square = {name: float((np.abs(g) ** 2).sum()) for name, g in of.items()}
        total = sum(square.values()) or 1.0
        copies = {name: self.axes_of_copies(name, g.shape) for name, g in of.items()}

        def own(rank: int, measure: Callable[[Any], float]) -> Iterator[float]:
            return (measure(piece_of(g, self.judge.boxes(name, rank, g.shape))) for name, g in of.items())

        for axes in self.mesh.subsets():
            n = self.mesh.count(axes)
            counted = sum(each * (n if copies[name].issuperset(axes) else 1) for name, each in square.items())
            twice = f"replicated parameters are counted {n} times, once for each rank of {self.mesh.shown(axes)}"
            yield twice, partial(_always, math.sqrt(counted / total))
        cut = sum(each for name, each in square.items() if copies[name] != set(self.mesh.sizes))
        yield "replicated parameters are left out", partial(_always, math.sqrt(cut / total))
        text = "each rank has the norm of its own pieces: the reduction over the ranks is missing"
        yield text, lambda rank: math.sqrt(sum(own(rank, lambda g: float((np.abs(g) ** 2).sum()))) / total)
        yield text, lambda rank: max(own(rank, _largest)) / (max(map(_largest, of.values())) or 1.0)
        parts = [[self.beside([run], "grad", name) for name in self.names] for run in self.judge.parts]
        if len(parts) == len(self.ranks) and all(all(run) for run in parts):
            each = [math.sqrt(sum(float((np.abs(g) ** 2).sum()) for (g,) in run) / total) for run in parts]
            of_rank = dict(zip(self.ranks, each, strict=True))
            yield "each rank has the norm of its own rows: it is taken before the sum", lambda rank: of_rank[rank]


class Pieces:
    """The pieces of one wrong gradient, and the formulas that they may obey."""

    def __init__(
        self, at: AtStep, name: str, whole: Any, given: dict[int, Any], wanted: dict[int, Any], tolerance: float
    ):
        self.at, self.mesh, self.name, self.whole = at, at.mesh, name, whole
        self.given, self.wanted, self.tolerance = given, wanted, tolerance
        self.has_shapes = all(given[rank].shape == wanted[rank].shape for rank in given)

    def findings(self) -> Iterator[Finding | None]:
        """The findings of the formulas, in their order; None where one does not hold."""
        yield self.not_finite()
        if self.has_shapes:
            yield self.zero()
            yield self.factor()
            yield self.missing_sum()
            yield self.before()
        yield self.place()
        if self.has_shapes:
            yield self.weights()

    def unknown(self) -> Finding:
        differ = self.at.copies_that_differ(self.name, self.given, self.tolerance)
        text = f"differs{differ and f', on {differ}, which hold the same part'}"
        if self.has_shapes:
            joined = [np.concatenate([x.ravel() for x in of.values()]) for of in (self.given, self.wanted)]
            (factor,), rest = _fit(joined[0], joined[1:])
            text += f"; nearest: {factor:.3g} times right, off by {rest:.1%} of its norm"
        return Finding(UNKNOWN, text, "" if self.at.judge.parts else "--part tells the parts of the ranks' rows apart")

    def is_right(self, given: Mapping[int, Any], wanted: Mapping[int, Any], slack: float = 1) -> bool:
        return all(_distance(given[rank], wanted[rank], self.tolerance * slack) <= 1 for rank in given)

    def precision(self, factor: float) -> float:
        """The relative error of a factor."""
        largest = _largest(self.whole) * max(abs(factor), 1e-300)
        return max(1e-6, 4 * self.tolerance / largest) if largest else 1.0

    def times(self, given: Mapping[int, Any]) -> dict[int, float] | None:
        """By rank: the factor of its piece to the right one, if that is not zero; None if a piece is no multiple."""
        found = {}
        for rank, g in given.items():
            (c,), _ = _fit(g, [self.wanted[rank]])
            if not self.is_right({rank: g}, {rank: c * self.wanted[rank]}, max(1.0, abs(c))):
                return None
            if _largest(self.wanted[rank]) > self.tolerance:
                found[rank] = c
        return found or None

    def alike(self, factors: Mapping[int, float]) -> float | None:
        """The factor that all ranks have, None if they differ."""
        top = max(map(abs, factors.values()))
        spread = max(factors.values()) - min(factors.values())
        return sum(factors.values()) / len(factors) if spread <= 2 * self.precision(top) * top else None

    def is_one_number(self) -> bool:
        """Whether the right gradient has one number that is not zero, of which every gradient is a multiple."""
        return int((np.abs(self.whole) > self.tolerance).sum()) <= 1

    def named(self, c: float) -> str:
        return self.mesh.names_of(c, self.precision(c), self.at.microbatches)

    # -- formulas ------------------------------------------------------------------------------------------------------
    def not_finite(self) -> Finding | None:
        if not np.isfinite(self.whole).all():
            return Finding("not finite", "the reference's gradient has a NaN or an infinity", FIXES["not finite"])
        ranks = [rank for rank, g in self.given.items() if not np.isfinite(g).all()]
        text = f"a NaN or an infinity on {_of_ranks(ranks)}"
        return Finding("not finite", text, FIXES["not finite"]) if ranks else None

    def zero(self) -> Finding | None:
        still = [rank for rank, g in self.given.items() if not g.any() and _largest(self.wanted[rank]) > self.tolerance]
        others = {rank: g for rank, g in self.given.items() if rank not in still}
        if not still or not self.is_right(others, self.wanted):
            return None
        if not others:
            return Finding("zero", "zero", FIXES["zero"])
        return Finding("zero", f"zero on {_of_ranks(still)}, right on the others", FIXES["some zero"])

    def factor(self) -> Finding | None:
        if self.is_right(self.given, {rank: w.conj() for rank, w in self.wanted.items()}):
            return Finding("factor", "the conjugate of the right one", FIXES["conjugate"])
        factors = self.times(self.given)
        if factors is None:
            return None
        c = self.alike(factors)
        if c is None and self.is_one_number():
            return None
        if c is None:
            each = ", ".join(f"{factor:.6g} on rank {rank}" for rank, factor in factors.items())
            other = Finding("factor", f"another factor on each rank: {each}", FIXES["each"])
            return self.missing_sum(is_exact=True) or other  # addends may be multiples of their sum
        named = self.named(c)
        if not named and self.is_one_number():
            return None
        more = "; with pairwise unequal sizes one can tell" if ", or " in named else ""
        digits = -math.floor(math.log10(self.precision(c)))
        return Finding("factor", f"{c:.{min(digits, 6)}g} times right{named and f': {named}{more}'}",
                       FIXES["more" if abs(c) > 1 else "less"])  # fmt: skip

    def missing_sum(self, is_exact: bool = False) -> Finding | None:
        copies = self.at.axes_of_copies(self.name, self.whole.shape)
        for axes in self.mesh.subsets():
            if not copies.issuperset(axes):
                continue
            groups = self.mesh.groups(axes)
            total = {rank: sum(self.given[other] for other in group) for group in groups for rank in group}
            n = self.mesh.count(axes)
            if self.is_right(total, {rank: n * g for rank, g in self.given.items()}, n):
                continue  # they are equal
            factors = self.times(total)
            c = None if factors is None else self.alike(factors)
            if c is None or abs(c) <= self.precision(1):
                continue
            is_whole = abs(c - 1) <= self.precision(1)
            named = "" if is_whole else self.named(c)
            if not is_whole and (is_exact or (not named and self.is_one_number())):
                continue
            times = "" if is_whole else f"{c:.6g} times{named and f' ({named})'} "
            over = self.mesh.shown(axes)
            text = f"the ranks of {over} hold addends (P), used as copies (I): their sum is {times}right"
            more = named and f"; then it is too large by {named}"
            return Finding("missing sum", text, f"all-reduce it over {over}{more}")
        return None

    def before(self) -> Finding | None:
        earlier = (next(iter(step.values())) for step in self.at.judge.reference[: self.at.t][::-1])
        grads = (step.get("grad", self.name) for step in earlier)
        old = next((x for x in grads if x is not None), None)  # another optimizer may have stepped since
        if old is None or old.shape != self.whole.shape:
            return None
        olds = self.at.wanted(self.name, old)
        if self.is_right(self.given, olds, 2):
            return Finding("stale", "the gradient of the step before", FIXES["stale"])
        for n in sorted({1, *self.mesh.sizes.values(), len(self.given)}):  # a sum over ranks may count the old n times
            if self.is_right(self.given, {rank: n * olds[rank] + self.wanted[rank] for rank in olds}, 4 * n):
                return Finding("not cleared", "the gradient of the step before is added to it", FIXES["not cleared"])
        return None

    def place(self) -> Finding | None:
        ndim = self.whole.ndim
        for axes in self.mesh.subsets():
            n = self.mesh.count(axes)
            orders = list(itertools.permutations(range(n))) if n <= 4 else [tuple(range(n)), tuple(range(n))[::-1]]
            for dim, parts, order in itertools.product(range(ndim), (1, 2, 3, 4), orders):
                made = {}
                for rank in self.given:
                    at = {"all": order[self.mesh.index(rank, axes)]}
                    made[rank] = piece_of(self.whole, boxes(self.whole.shape, [Cut("all", dim, parts)], {"all": n}, at))
                if self.is_right(self.given, made):
                    way = f"dimension {dim}" + (f" in {parts} parts, each shared out" if parts > 1 else "")
                    ordered = "" if list(order) == list(range(n)) else f", by ranks in the order {list(order)}"
                    return Finding("place", f"right values at another place: cut along {way}{ordered}", FIXES["place"])
        return None

    def weights(self) -> Finding | None:
        """Of the parts of the ranks' rows."""
        batches = range(self.at.microbatches)
        runs = self.at.judge.parts
        parts = [x for run in runs for m in batches for x in self.at.beside([run], f"part {m}", self.name)]
        if len(parts) != len(runs) * len(batches):
            batches, parts = range(1), self.at.beside(runs, "grad", self.name)
        if len(parts) < 2 or len(parts) != len(runs) * len(batches):
            return None
        right, _ = _fit(self.whole, parts)
        if not self.is_right({0: self.whole}, {0: _sum(right, parts)}, 4):
            return None
        found = {}
        for rank, g in self.given.items():
            mine = [piece_of(x, self.at.judge.boxes(self.name, rank, x.shape)) for x in parts]
            columns = np.stack([each.ravel() / (np.linalg.norm(each) or 1) for each in mine], axis=1)
            if not np.linalg.svd(columns, compute_uv=False)[-1] > 1e-3:  # nearly multiples of one another
                return None
            found[rank], _ = _fit(g, mine)
            if not self.is_right({rank: g}, {rank: _sum(found[rank], mine)}, 4 * max(1.0, *map(abs, found[rank]))):
                return None
        every = [(k, m) for k in range(len(runs)) for m in batches]
        names = [f"rank {k}" + (f" in microbatch {m}" if len(batches) > 1 else "") for k, m in every]
        return self.of_weights(right, found, names, len(batches))

    def of_weights(self, right: list[float], found: dict[int, list[float]], names: list[str], n: int) -> Finding:
        slack = _SAME * max(map(abs, right))
        shown = f"the rows of {_some(names)} have the weights {{}}; right: " + ", ".join(f"{c:.6g}" for c in right)
        texts = {rank: ", ".join(f"{c:.6g}" for c in cs) for rank, cs in found.items()}
        first = next(iter(found.values()))
        owners = {rank: [k for k, c in enumerate(cs) if abs(c) > slack] for rank, cs in found.items()}
        if all(len(each) == 1 for each in owners.values()):
            of = {each[0] for each in owners.values()}
            if len(of) > 1:
                return Finding("missing sum", "each rank has the gradient of its own rows alone", FIXES["own rows"])
        given = next(iter(owners.values()))
        if given and len(given) < len(right) and all(each == given for each in owners.values()):
            text = f"all ranks have the gradient of the rows of {_some([names[k] for k in given])} alone"
            return Finding("one part", text, FIXES["one part"])
        if any(abs(a - b) > slack for cs in found.values() for a, b in zip(cs, first, strict=True)):
            each = "; ".join(f"on rank {rank} {text}" for rank, text in texts.items())
            return Finding("weights", shown.format(each), FIXES["scaled"])
        return self.of_equal_weights(right, first, shown.format(next(iter(texts.values()))), n)

    def of_equal_weights(self, right: list[float], first: list[float], shown: str, n: int) -> Finding:
        """The finding where all ranks have the gradient with the same wrong weights."""
        slack = _SAME * max(map(abs, right))
        inverse = sum(a / c if c else math.inf for a, c in zip(right, first, strict=True))  # of parts that are means
        if max(first) - min(first) < slack or abs(inverse - len(first)) < _SAME * len(first):
            return Finding("weights", f"a mean of the parts' means: {shown}", FIXES["means"])
        if abs(inverse - 1) < _SAME:
            return Finding("weights", f"a sum of the parts' means: {shown}", FIXES["means"])
        if n > 1 and all(max(of) - min(of) < slack for of in (first[m::n] for m in range(n))):
            return Finding("weights", f"the microbatches have other weights: {shown}", FIXES["accumulated"])
        text = f"{shown}. Each rank has scaled its own part, as by clipping before the sum"
        return Finding("weights", text, FIXES["scaled"])


def _always(value: float, rank: int) -> float:
    return value


def _of_ranks(ranks: Iterable[int]) -> str:
    return f"rank {' and '.join(map(str, sorted(ranks)))}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 5 else [*names[:4], f"and {len(names) - 4} more"])


# -- arrays ------------------------------------------------------------------------------------------------------------


def _last_bit(dtype: str) -> float:
    """Of 1, in a type; of float64 for whole numbers."""
    if dtype == "bfloat16":  # NumPy has none
        return 2**-8
    return float(np.finfo(dtype if np.dtype(dtype).kind in "fc" else float).eps)


def _largest(x: Any) -> float:
    return float(np.abs(x).max(initial=0))


def _sum(factors: Sequence[float], arrays: Sequence[Any]) -> Any:
    return sum(c * x for c, x in zip(factors, arrays, strict=True))


def _distance(x: Any, wanted: Any, tolerance: float) -> float:
    """The largest error, in tolerances; infinite where there is no array of that shape."""
    if x is None or x.shape != wanted.shape:
        return math.inf
    error = _largest(x - wanted)
    if math.isnan(error):
        return 0.0 if np.array_equal(x, wanted, equal_nan=True) else math.inf
    return error / tolerance if tolerance else (math.inf if error else 0.0)


def _fit(x: Any, basis: Sequence[Any]) -> tuple[list[float], float]:
    """The coefficients of the sum of arrays that is nearest to one, and what is left, relative to its norm."""
    if any(np.iscomplexobj(each) for each in (x, *basis)):  # a complex number as a pair of real ones
        x, *basis = (np.stack([each.real, each.imag]) for each in (x, *basis))
    columns, flat = np.stack([each.ravel() for each in basis], axis=1), x.ravel()
    if not np.isfinite(flat).all() or not np.isfinite(columns).all():
        return [math.nan] * len(basis), math.inf
    found = np.linalg.lstsq(columns, flat, rcond=None)[0]
    norm = float(np.linalg.norm(flat))
    return [float(c) for c in found], float(np.linalg.norm(columns @ found - flat)) / norm if norm else 0.0
