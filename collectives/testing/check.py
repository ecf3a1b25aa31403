"""`check_collective`: test the adjoint of a collective that you declare yourself.

    shift = cc.Collective("ring shift", takes=(V,))
    @shift.forward
    def _(x, call): ...                                  # plain arrays; call.group is the communicator
    @shift.adjoint
    def _(ct, call): return shift_back(ct, call)         # also a collective, so that it can be recorded

    y = cc.apply(shift, x, "dp")                         # or shift(x, cc.call("dp")), on a Tensor
    cc.testing.check(shift).require()
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import autograd as ag
from autograd.errors import ArgumentError, CommunicationError, RingtapeError, typed_errors
from autograd.layouts.layout import C, I, Label, P, R, Rooted, Shard, V, dual_label
from autograd.records.plain import packed, unpacked

from ..declaration.collective import Collective
from ..mesh import Mesh
from ..ops.custom import apply
from ..world import run, world
from . import proof
from .proof import Failure, Setting, check_cases

__all__ = ["CheckFailed", "Report", "check", "check_collective"]


Values = list[Any]


# -- the check ---------------------------------------------------------------------------------------------------------


class CheckFailed(RingtapeError, AssertionError):
    """Raised by `Report.require` when a check failed or no case ran."""


@dataclass
class Report:
    """The result of `check_collective`: the number of cases, the failures, and the reasons for skipped cases."""

    collective: str
    cases: int = 0
    failures: list[Any] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether at least one case ran and none failed."""
        return self.cases > 0 and not self.failures

    @property
    def failed(self) -> set[str]:
        """The names of the checks that failed; `collectives.testing` and `check_collective` list them."""
        return {failure.check for failure in self.failures}

    def __str__(self) -> str:
        head = f"{self.collective}: {self.cases} cases, {len(self.failures)} failures"
        kinds: dict[Any, list[Any]] = {}
        for failure in self.failures:  # errors whose texts differ in numbers alone are shown as one
            text = re.sub(r"\d+", "", failure.detail) if failure.check == "error" else ""
            kinds.setdefault((failure.check, text), []).append(failure)
        lines = [f"  {first.check}: {first.case}: {first.detail}" + (f"; and {len(rest)} more" if rest else "")
                 for first, *rest in kinds.values()]  # fmt: skip
        return "\n".join([head, *lines, *(f"  skipped: {reason}" for reason in self.skips)])

    def require(self) -> Report:
        """Return the report if all checks passed; raise `CheckFailed` with its text otherwise."""
        if not self.ok:
            raise CheckFailed(str(self))
        return self


@typed_errors
def check_collective(
    collective: Any,
    *,
    use: Callable[[Any, Any], Any] | None = None,
    takes: Sequence[Label] | None = None,
    shapes: Callable[[int], Sequence[tuple[int, ...]]] | None = None,
    forward: Callable[[Values], Values] | None = None,
    adjoint: Callable[[Values], Values] | None = None,
    ranks: Sequence[int] = (1, 2, 3, 4, 5),
    beside: bool = True,
    dtype: Any = np.float64,
    **fields: Any,
) -> Report:
    """Test that the adjoint of a collective is correct, by the checks that `collectives.testing` lists.

    The checks run on threads, in worlds of several sizes. Under mpiexec they run on the ranks of the job instead: every
    rank calls this function and gets the same report, which lists the sizes that were skipped. With 3 ranks the
    collective also runs along either axis of a mesh with two axes, to detect a rank of the world that is used as a rank
    of the axis.

    Without a reference `forward`, the matrix of the collective is found by applying it to one basis vector after the
    other, and two more checks take the place of the reference:

    - ``linear``: the result for random operands equals the matrix times the operands;
    - ``copies``: a value labelled R or I is equal on all ranks. This applies to the result, and to the cotangent of an
      operand that is P or I.

    Parameters
    ----------
    collective : Collective, the result of `wrap`, or a function
        A function ``f(x, axis)`` made of collectives, whose operand has the labels `takes`.
    use : callable, optional
        ``use(x, axis)`` calls the collective on a Tensor. Default: ``apply(collective, x, axis, **fields)``.
    takes : sequence of Label, optional
        The labels of the operand to test. Default: all labels that the collective takes.
    shapes : callable, optional
        Maps the number of ranks to the shape of each rank's operand. Default: ``(3, 2)`` on every rank.
    forward, adjoint : callable, optional
        Serial references on lists with one array per rank along the axis, None where a value is absent. The default
        `adjoint` is the transpose of `forward`.
    ranks : sequence of int
        The sizes of the worlds of threads. Under mpiexec the only size is that of the job; the report lists the others
        as skipped. Faults in the direction of a pattern show on 3 ranks and more only.
    beside : bool
        Whether to test each axis of a mesh with two axes as well.
    dtype : dtype
        Of the operand.
    **fields
        Further fields of the call, such as ``to`` or ``root``; see `call`.

    Raises
    ------
    ArgumentError
        `collective` is none of these, or a function without `takes`.

    Returns
    -------
    Report
        ``report.require()`` raises `CheckFailed` unless all checks passed.

    Examples
    --------
    >>> import collectives as cc
    >>> from collectives.declaration.collective import collectives
    >>> cc.testing.check(collectives["all_reduce"], takes=[cc.P], ranks=[1, 3], to=cc.R).ok
    True
    """
    name = getattr(collective, "name", "")
    if not name or not hasattr(collective, "takes"):
        if not callable(collective) or isinstance(collective, type):
            raise ArgumentError(
                f"check: {collective!r} was given; needed: a Collective, the result of wrap, or a function f(x, axis)\n"
                "  fix: cc.testing.check(collective), or cc.testing.check(lambda x, axis: ..., takes=[V])"
            )
        name = getattr(collective, "__name__", "function")
        if takes is None:
            raise ArgumentError(
                f"check({name}): a function was given without the labels of its operand\n"
                f"  fix: cc.testing.check({name}, takes=[V]), where {name}(x, axis) returns the result for a Tensor x "
                "that is Varying; or R, I, P, Shard(0)"
            )
        use = collective if use is None else use
    report = Report(name)
    labels = list(takes) if takes is not None else _labels(collective)
    how = use if use is not None else getattr(collective, "use", None)
    if how is None:
        def how(x: Any, axis: Any) -> Any:
            return apply(collective, x, axis, **fields)

    everywhere = world().size > 1
    sizes = [world().size] if everywhere else list(ranks)
    if not everywhere and getattr(collective, "needs_processes", False):
        report.skips.append("worlds of more than one rank: it needs processes; run the check under mpiexec")
        sizes = [1]
    report.skips += _not_tested(sizes, ranks, beside, everywhere, getattr(collective, "needs_processes", False))
    for size in sizes:
        for label in labels:
            given = tuple((3, 2) for _ in range(size)) if shapes is None else tuple(shapes(size))
            tested = _Tested(name, how, label(size) if callable(label) else label, given, dtype)
            tested.run(size, everywhere, beside, forward, adjoint, report)
    return report


def _not_tested(
    sizes: Sequence[int], ranks: Sequence[int], beside: bool, everywhere: bool, needs_processes: bool
) -> list[str]:
    """The lines of a report about sizes that are not tested: on the ranks of a job, and where few ranks hide faults."""
    found = []
    others = [str(size) for size in ranks if size not in sizes]
    if everywhere and others:
        listed = " and ".join(filter(None, [", ".join(others[:-1]), others[-1]]))
        how = "run it under mpiexec with as many" if needs_processes else "run it without mpiexec"
        found.append(f"{listed} ranks: the check runs on the {sizes[0]} of this job; {how}")
    if everywhere and beside and 3 in ranks and not needs_processes:
        found.append("meshes with two axes: run it without mpiexec")
    if max(sizes) == 2:
        found.append("3 or more ranks: on 2 a shift by +1 is one by -1, so that a wrong direction is not found")
    return found


def _labels(collective: Collective) -> list[Any]:
    """The labels of the operand to test; Rooted is given as a function of the number of ranks."""
    found: list[Any] = []
    for label in collective.takes:
        if label is Shard:
            found.append(Shard(0))
        elif label is Rooted:
            found.append(lambda size: Rooted(0))
        elif isinstance(label, Label) and label is not C:
            found.append(label)
    return found


@dataclass
class _Tested:
    """A collective under test, with one label of the operand and its shape on every rank."""

    name: str
    use: Callable[[Any, Any], Any]
    takes: Label
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any

    def run(self, size: int, everywhere: bool, beside: bool, forward: Any, adjoint: Any, report: Report) -> None:
        title = f"{self.name} {self.takes!r}"
        setting = proof.Setting({"a": size}, ["a"])
        labels: list[Label] = []  # of the result, the same on every rank, so that processes need not send them

        def probe() -> list[Any]:
            label, columns = self.probe(setting, forward is None)
            labels.append(label)
            return columns

        try:
            seen = _on_all_ranks(probe, size, everywhere)
        except Exception as error:
            report.cases += 1
            report.failures.append(_raised(title, setting, error))
            return
        gives = labels[0]
        dense = forward if forward is not None else _Matrix(self, seen)
        back = adjoint if adjoint is not None else _Transpose(self, gives, dense)
        case = proof.Case(f"{title}->{gives!r}", (self.name,), self.takes, gives, self.use, dense, back, self.shapes,
                            self.dtype)  # fmt: skip
        for where in _settings(size, beside and not everywhere, setting):
            report.cases += 1
            this = case if where is setting else replace(case, order=1)
            try:
                plan = proof.prepare(this, where)
                found = _on_all_ranks(lambda: proof.run_cases([(this, where)], [plan])[0],  # noqa: B023 - called here
                                      where.ranks, everywhere)  # fmt: skip
            except Exception as error:
                report.failures.append(_raised(case.name, where, error))
                if isinstance(error, CommunicationError) and everywhere:
                    raise  # the ranks may be out of step
                continue
            report.failures += _judge(case, where, plan, found, forward is None)

    def probe(self, setting: Any, columns: bool) -> tuple[Label, list[Any]]:
        """The result's label, and if `columns`, this rank's result for zeros and for each basis vector."""
        rank = world().rank
        with Mesh(**setting.sizes) as mesh, ag.no_grad():
            def result(values: Values) -> Any:
                array = values[rank]
                whole = None
                if isinstance(self.takes, Shard):
                    whole = [*self.shapes[rank]]
                    whole[self.takes.dim] = sum(s[self.takes.dim] for s in self.shapes)
                if array is None:
                    array = np.zeros(self.shapes[rank], self.dtype)  # dropped: the leaf is rooted on another rank
                return self.use(ag.tensor(array, layout={"a": self.takes}, global_shape=whole), ("a",))

            zeros = [np.zeros(shape, self.dtype) for shape in self.shapes]
            y = result(zeros)
            assert y.layout is not None
            label = y.layout[mesh.names[0]]
            if isinstance(label, Shard):
                label = Shard(label.dim)
            found = [_plain(y)] + [_plain(result(e)) for e in self.basis()] if columns else []
        return label, found

    def basis(self) -> Iterator[Values]:
        """The basis vectors: one element is 1, on one rank, or in all copies (R, I), or on the root (Rooted)."""
        copies = self.takes is R or self.takes is I
        at = [0] if copies else [self.takes.root] if isinstance(self.takes, Rooted) else range(len(self.shapes))
        for rank in at:
            for k in range(int(np.prod(self.shapes[rank], dtype=np.int64))):
                values = [np.zeros(shape, self.dtype) for shape in self.shapes]
                for r in range(len(self.shapes)) if copies else [rank]:
                    values[r].reshape(-1)[k] = 1
                yield values

    def coefficients(self, values: Values) -> np.ndarray:
        """The coefficients of an operand in this basis."""
        if self.takes is R or self.takes is I:
            return values[0].reshape(-1)
        return np.concatenate([v.reshape(-1) for v in values if v is not None])


def _plain(y: Any) -> Any:
    return None if y.absent else np.array(y.array)


@dataclass
class _Matrix:
    """A forward reference made of the collective's own matrix, which has a column for each basis vector."""

    tested: _Tested
    columns: list[list[Any]]  # by rank; the first entry is the result for zeros

    def __call__(self, values: Values) -> Values:
        weights = self.tested.coefficients(values)
        result: Values = []
        for found in self.columns:
            if found[0] is None:
                result.append(None)
                continue
            zero, *rest = found
            result.append(sum((w * column for w, column in zip(weights, rest, strict=True)), zero * 0))
        return result


@dataclass
class _Transpose:
    """The adjoint reference: ``<ct, F e>`` for every basis vector e, counted once where the result is I."""

    tested: _Tested
    gives: Label
    dense: Callable[[Values], Values]

    def __call__(self, cts: Values) -> Values:
        tested = self.tested
        found = []
        for e in tested.basis():
            given: Values = e
            if isinstance(tested.takes, Rooted):
                given = [v if r == tested.takes.root else None for r, v in enumerate(e)]
            pairs = [(ct, y) for ct, y in zip(cts, self.dense(given), strict=True) if ct is not None and y is not None]
            pairs = pairs[:1] if self.gives is I else pairs
            found.append(sum((ct * y).sum() for ct, y in pairs))
        flat, at = np.array(found, tested.dtype), 0
        result: Values = []
        for rank, shape in enumerate(tested.shapes):
            n = int(np.prod(shape, dtype=np.int64))
            if tested.takes is R:  # the cotangent is Partial and only its sum matters: rank 0 gets all of it
                result.append(flat.reshape(shape) if rank == 0 else np.zeros(shape, tested.dtype))
            elif tested.takes is I:
                result.append(flat.reshape(shape))
            elif isinstance(tested.takes, Rooted) and rank != tested.takes.root:
                result.append(None)
            else:
                result.append(flat[at : at + n].reshape(shape))
                at += n
        return result


def _on_all_ranks(function: Callable[[], Any], size: int, everywhere: bool) -> list[Any]:
    """Run a function on every rank, threads or the processes of mpiexec, and return all results in order of rank."""
    if not everywhere:
        return run(function, size)
    kinds = (proof.Observed,)
    return [unpacked(data, kinds) for data in world().exchange(packed(function(), kinds))]


def _settings(size: int, beside: bool, setting: Any) -> Iterator[Any]:
    """The given setting; for 3 ranks also the inner and the outer axis of two, with V, R and P on the other axis."""
    yield setting
    if beside and size == 3:
        for axis, other in (("a", "b"), ("b", "a")):
            for label in (V, R, P):
                yield Setting({"a": 2 if axis == "b" else size, "b": size if axis == "b" else 2}, [axis],
                              {other: label})  # fmt: skip


def _raised(title: str, setting: Any, error: Exception) -> Any:
    return Failure(f"{title} {setting}", "error", proof.raised(error))


def _judge(case: Any, setting: Any, plan: Any, seen: list[Any], linear: bool) -> list[Any]:
    """As `proof.judge`, but Partial cotangents are compared by their sum over the ranks, and copies must be equal."""
    takes, gives = setting.labels(case.takes), setting.labels(case.gives)
    cotangents = [dual_label(label) for label in takes]
    open_axes = [k for k, label in enumerate(cotangents) if label is P]
    found = proof.judge(case, setting, plan, seen)
    name = f"{case.name} {setting}"
    if open_axes:
        found = [f for f in found if f.check not in _OF_COTANGENTS.values()]
        for kind, fault in _unequal_sums(case, setting, plan, seen, open_axes):
            found.append(proof.Failure(name, kind, f"the sum over the ranks: {fault}"))
    if linear:
        found = [proof.Failure(f.case, "linear", f.detail) if f.check == "forward" else f for f in found]
    for key, subject, label in (("y", "the result", case.gives), ("g", "the cotangent", dual_label(case.takes))):
        values = [of_rank.found.get(key) for of_rank in seen]
        for first, other in _unequal_copies(setting, gives if key == "y" else cotangents, values):
            detail = f"{subject} is {label.word} and differs between ranks {first} and {other}"
            found.append(proof.Failure(name, "copies", detail))
    return found


_OF_COTANGENTS = {"g": "adjoint", "second": "second", "mixed": "mixed"}
"""The check that compares each result that is a cotangent."""


def _unequal_sums(case: Any, setting: Any, plan: Any, seen: list[Any], along: list[int]) -> Iterator[tuple[str, str]]:
    """Compare the sums of the ranks' cotangents along some axes with the reference's: check and fault."""
    tolerance = 1e-5 if np.finfo(case.dtype).eps > 1e-10 else 1e-12
    for key, kind in _OF_COTANGENTS.items():
        if not all(key in of_rank.found for of_rank in seen):
            continue
        want, scale = (plan.g, proof._norm(plan.ct)) if key == "g" else (plan.hv, plan.second_scale)
        want = setting.summed(want, along)
        got = setting.summed([of_rank.found[key] for of_rank in seen], along)
        fault = proof._compare(got, want, tolerance * max(scale, proof._norm(want)) * setting.ranks)
        if fault:
            yield kind, fault


def _unequal_copies(setting: Any, labels: Sequence[Label], values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """In each group of ranks that must hold equal copies: the first rank, and the first one that differs from it."""
    along = [k for k, label in enumerate(labels) if label is R or label is I]
    for group in setting.groups(along) if along else []:
        first = values[group[0]]
        for r in group[1:]:
            if first is not None and values[r] is not None and not np.allclose(first, values[r], 1e-9, 1e-12):
                yield group[0], r
                break


@typed_errors
def check(work: Any, ranks: Any = (1, 2, 3, 4, 5), **options: Any) -> Any:
    """Test a collective of your own, or run cases on threads.

    Parameters
    ----------
    work : Collective, the result of `wrap`, a function, or a sequence of (Case, Setting)
        The mesh of every setting has `ranks` ranks.
    ranks : int or sequence of int
        The sizes of the worlds; one int for cases.
    **options
        For a collective: the parameters of `check_collective`.

    Returns
    -------
    Report or list of Failure
        The report of `check_collective` for a collective; the failures for cases.
    """
    cases = list(work) if isinstance(work, Iterable) and not isinstance(work, str) else None
    if not cases or not all(isinstance(one, tuple) for one in cases):
        return check_collective(work, ranks=(ranks,) if isinstance(ranks, int) else ranks, **options)
    return check_cases(cases, ranks)
