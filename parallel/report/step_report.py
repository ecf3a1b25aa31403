"""`StepReport`: where the time of a training step goes, on every rank."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np

from autograd.arrays import runtime_in_use
from autograd.engine import events
from autograd.engine.pytree import flatten
from autograd.errors import MeshError, OptionError, typed_errors
from collectives import current_mesh, world
from collectives.inspect.clocks import Clock
from collectives.inspect.timeline import Timeline, broadcast_object
from collectives.inspect.timeline_report import RankRecord
from collectives.transports.protocol import Communicator

from .drawing import plot_last_step
from .phases import Buckets, StepTimes, medians, steps_of, transfer_times
from .stragglers import Straggler, find_straggler, network_times, waited_for

__all__ = ["RankSteps", "StepReport"]

T = TypeVar("T")


class RankSteps(NamedTuple):
    """The steps of one rank.

    Attributes
    ----------
    rank, steps : int
        The world rank, and the number of its steps.
    median, total : StepTimes
        Over its steps. A median of its own is taken of each figure, so the medians need not add up.
    buckets : Buckets
        The medians of the communication that its sweeps started.
    waited_for_s : float
        How long all others waited for it in their steps, added up.
    """

    rank: int
    steps: int
    median: StepTimes
    total: StepTimes
    buckets: Buckets
    waited_for_s: float


@typed_errors
class StepReport:
    """Measure the phases of training steps on all ranks, inside a ``with`` block.

    The loop over the batches goes through `steps`, or each step is the block of a `step`. Forward, backward and the
    optimizer are known from `Tape`, `Tape.backward` and `Optimizer.step`, communication from a `collectives.timeline`
    of the block, which all ranks enter and leave together. Outside of the block `steps` and `step` do nothing, so that
    a program can keep them.

    Parameters
    ----------
    path : path, optional
        The file to which rank 0 writes the trace of the timeline.
    clock : callable, optional
        Returns the time on this rank in nanoseconds; for tests.

    Attributes
    ----------
    ranks : list of RankSteps
        The figures of every rank, the same on all ranks. Empty until the block has ended.
    straggler : Straggler or None
        The rank that the others wait for, if one stands out, and the likely cause. See `stragglers` for the rule.
    device_peak_bytes : list of int
        The largest number of bytes that arrays on its GPU had in the block, for every rank; 0 where none was there.
    timeline : Timeline
        The recording, which ``report.timeline.plot("steps.png")`` draws.

    Raises
    ------
    MeshError
        In a dry world, where no time passes; or the report was entered before.

    Notes
    -----
    ``print(report)`` shows a table of medians in milliseconds, the unit of all times that it prints. `phases` defines
    the columns. Communication is *exposed* while the program is blocked by it, and *hidden* while a started call is in
    flight and the program does something else. Below the table are both times of the communication that the sweeps have
    started, as for buckets of gradients: measured; as `data.overlap.simulate` predicts them from the times at which the
    buckets were ready, which is the best that these buckets allow; and the limit for buckets of any size, that
    transfers cannot be hidden for longer than backward takes. The last lines name the slowest rank, and its likely
    cause if one number explains enough of the waiting: see `stragglers`.

    A block that raises has no report, since other ranks may have ended. A step that raises counts, if the program
    catches the exception. Ranks may have different numbers of steps. The report records every operation of the block:
    measure tens of steps, not the whole run.

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> from autograd import data, nn, optim
    >>> from parallel import DataParallel
    >>> from parallel.report import StepReport
    >>> X = numpy.ones((20, 3), "float32")
    >>> def program():
    ...     report = StepReport()
    ...     with cc.Mesh(dp=2), report:
    ...         model = DataParallel(nn.Linear(3, 1), "dp")
    ...         optimizer = optim.SGD(model.parameters(), lr=0.1)
    ...         for (x,) in report.steps(data.DataLoader(data.TensorDataset(X), 5, axis="dp")):
    ...             optimizer.zero_grad()
    ...             with ag.Tape() as tape:
    ...                 loss = cc.all_reduce((model(x) ** 2).sum() / 5, "dp", to=cc.I)
    ...             tape.backward(loss)
    ...             optimizer.step()
    ...     return [(r.rank, r.steps, r.total.rows, r.median.backward_s > 0) for r in report.ranks]
    >>> cc.run(program, ranks=2)[0]
    [(0, 4, 12, True), (1, 4, 8, True)]
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, clock: Clock = time.perf_counter_ns):
        self.timeline = Timeline(path, clock)
        self.ranks: list[RankSteps] = []
        self.straggler: Straggler | None = None
        self.device_peak_bytes: list[int] = []
        self._channel: Communicator | None = None
        self._is_open = False

    def __enter__(self) -> StepReport:
        everyone = world()
        if everyone.dry:
            raise MeshError(
                "StepReport: the current world is a dry run, in which no time passes; needed: real ranks\n  fix: "
                "parallel.data.overlap.predict_step predicts a step"
            )
        if self._channel is not None:
            raise MeshError("this StepReport was entered before\n  fix: make a new StepReport() for each with block")
        self._channel = everyone.duplicate("step report")
        runtime = runtime_in_use()
        if runtime is not None:
            runtime.reset_peak()
        self.timeline.__enter__()
        self._is_open = True
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        assert self._channel is not None
        self._is_open = False
        self.timeline.__exit__(kind, error, traceback)
        if kind is not None:
            return
        assert self.timeline.report is not None
        runtime = runtime_in_use()
        peak = 0 if runtime is None else runtime.memory().peak_bytes
        peaks = self._channel.exchange(np.int64(peak).tobytes())
        self.device_peak_bytes = [int(np.frombuffer(data, np.int64)[0]) for data in peaks]
        records = self.timeline.report.records
        kinds = (RankSteps, StepTimes, Buckets, Straggler)
        self.ranks, self.straggler = broadcast_object(self._channel, _figures(records) if records else None, kinds)

    # -- the steps ---------------------------------------------------------------------------------------------
    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """Iterate over batches. The time to get a batch is input, and the body of the loop is a step.

        The rows of a step are those of the first array of its batch on this rank.

        Examples
        --------
        >>> from parallel.report import StepReport
        >>> with StepReport() as report:
        ...     for x in report.steps([1.0, 2.0]):
        ...         pass
        >>> report.ranks[0].steps
        2
        """
        iterator = iter(batches)
        while True:
            if self._is_open:
                events.emit_span("begin", "input")
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                if self._is_open:
                    events.emit_span("end", "input")
            with self.step(_rows(batch) if self._is_open else 0):
                yield batch

    @contextmanager
    def step(self, rows: int = 0) -> Iterator[None]:
        """Measure one step. The time since the step before it is its input.

        Parameters
        ----------
        rows : int
            The rows of the batch on this rank, for `shares` and for the cause of a slow rank.

        Examples
        --------
        >>> from parallel.report import StepReport
        >>> with StepReport() as report:
        ...     for batch in [1.0, 2.0]:
        ...         with report.step(rows=1):
        ...             pass
        >>> report.ranks[0].total.rows
        2
        """
        if not self._is_open:
            yield
            return
        events.emit_span("begin", "step")
        try:
            yield
        finally:
            if self._is_open:
                events.emit_span("end", "step", int(rows))

    # -- the results -------------------------------------------------------------------------------------------
    def shares(
        self, axis: str | Sequence[str], previous: Sequence[float] | None = None, *, smoothing: float = 0.5
    ) -> list[float]:
        """Return shares of the rows in proportion to the measured speed, for ``DataLoader(..., shares=...)``.

        Call it on a mesh, with the axis that divides the batches. The speed of a rank is the number of its rows divided
        by its time in input, forward and backward; of ranks that have the same rows, the slowest counts. A rank that
        had no rows has the mean speed of the others, so that it is measured the next time. The result is the same on
        all ranks, and needs no communication.

        Parameters
        ----------
        axis : str or sequence of str
        previous : sequence of float, optional
            The shares that were used so far. The result is between them and the measured ones, so that one noisy
            measurement does not move many rows.
        smoothing : float
            The weight of `previous`, from 0 to below 1.

        Returns
        -------
        list of float
            One share per rank of the axis. They add up to 1.

        Raises
        ------
        MeshError
            No mesh is current, or the block has not ended.
        OptionError
            No rows were counted, or an argument is out of range.

        Examples
        --------
        >>> import collectives as cc, numpy
        >>> from parallel.report import StepReport
        >>> with cc.Mesh(dp=1):
        ...     with StepReport() as report:
        ...         for batch in report.steps(numpy.ones((3, 4))):
        ...             pass
        ...     report.shares("dp")
        [1.0]
        """
        self._require_ended("shares")
        mesh = current_mesh()
        names = mesh.normal(axis)
        if not 0 <= smoothing < 1:
            raise OptionError(f"shares: smoothing={smoothing!r} was given; needed: from 0 to below 1")
        place = {rank: i for i, rank in enumerate(mesh.ranks.ranks)}
        speeds = np.full(mesh.sizes, np.nan)
        for r in self.ranks:
            if r.rank in place and r.total.rows:
                time_s = r.total.input_s + r.total.compute_s
                speeds.flat[place[r.rank]] = r.total.rows / time_s if time_s > 0 else np.nan
        dims = tuple(k for k, name in enumerate(mesh.names) if name not in names)
        measured = np.where(np.isnan(speeds), np.inf, speeds).min(dims).reshape(-1)
        known = np.isfinite(measured)
        if not known.any():
            raise OptionError(
                "shares: no rows were counted in the steps of this report\n  fix: `for batch in report.steps(batches):`"
                " whose batches are arrays, or `with report.step(rows=n):`"
            )
        measured[~known] = measured[known].mean()
        found = measured / measured.sum()
        if previous is not None:
            before = np.asarray(previous, np.float64)
            if before.shape != found.shape or not (before >= 0).all() or not 0 < before.sum() < np.inf:
                raise OptionError(
                    f"shares: previous={previous!r} was given; needed: {len(found)} numbers of at least 0, one "
                    f"for each rank of axis {axis!r}"
                )
            found = smoothing * before / before.sum() + (1 - smoothing) * found
        return [float(share) for share in found]

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the last step of every rank as a PNG on rank 0; other ranks do nothing. Needs matplotlib."""
        self._require_ended("plot")
        assert self.timeline.report is not None
        records = self.timeline.report.records
        if records:
            plot_last_step(records, path)

    def _require_ended(self, call: str) -> None:
        if not self.ranks:
            raise MeshError(
                f"{call}: the with block of this StepReport has not ended, or it has raised\n  fix: call {call} after "
                "the block"
            )

    def __str__(self) -> str:
        if not self.ranks:
            return "a step report whose block has not ended"
        if not any(r.steps for r in self.ranks):
            return (
                f"step report of {_count(len(self.ranks), 'rank')}: no steps\n"
                "  fix: `for batch in report.steps(batches):`, or `with report.step():` around each step"
            )
        steps = sorted({r.steps for r in self.ranks})
        counted = _count(steps[0], "step") if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"
        lines = [f"step report of {_count(len(self.ranks), 'rank')}, {counted}; medians of a step in ms"]
        lines += _table([r for r in self.ranks if r.steps])
        if len(self.ranks) > 1:
            lines += [*_overlap(self.ranks), *_waiting(self.ranks, self.straggler)]
        if any(self.device_peak_bytes):
            most = max(self.device_peak_bytes)
            rank = f" (rank {self.device_peak_bytes.index(most)})" if len(self.ranks) > 1 else ""
            lines.append(f"peak of the arrays on a GPU: {most:,} bytes{rank}")
        return "\n".join(lines)


def _rows(batch: Any) -> int:
    """The length of the first array of a batch on this rank; 0 if it has none."""
    leaves = flatten(batch)[0]
    arrays = (getattr(x, "array", x) for x in leaves)
    return next((int(a.shape[0]) for a in arrays if getattr(a, "shape", ())), 0)


def _figures(records: Sequence[RankRecord]) -> tuple[list[RankSteps], Straggler | None]:
    """The figures of all ranks, from all records."""
    transfers, waited = transfer_times(records), waited_for(records)
    found = []
    for record in records:
        both = steps_of(record, transfers)
        steps, buckets = [step for step, _ in both] or [StepTimes()], [b for _, b in both] or [Buckets()]
        total = StepTimes(*map(sum, zip(*steps, strict=True)))
        found.append(RankSteps(record.rank, len(both), medians(steps), total, medians(buckets), waited[record.rank]))
    totals = {r.rank: r.total for r in found}
    return found, find_straggler(totals, network_times(records), waited)


# -- the table ---------------------------------------------------------------------------------------------------------

_MOST_SHOWN = 16
_COLUMNS = ("step", "input", "forward", "backward", "waiting", "transfer", "optimizer", "other", "hidden")


def _table(ranks: Sequence[RankSteps]) -> list[str]:
    shown = ranks
    if len(ranks) > _MOST_SHOWN:  # those that the others wait for most
        shown = sorted(sorted(ranks, key=lambda r: -r.waited_for_s)[:_MOST_SHOWN])
    table: list[tuple[str, ...]] = [("rank", *_COLUMNS, "rows")]
    for r in shown:
        times = [f"{getattr(r.median, name + '_s') * 1e3:.3f}" for name in _COLUMNS]
        table.append((str(r.rank), *times, f"{r.median.rows:g}"))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  " + "  ".join(x.rjust(w) for x, w in zip(row, widths, strict=True)) for row in table]
    if len(shown) < len(ranks):
        lines.append(f"  and {len(ranks) - len(shown)} more ranks, for which the others waited less")
    return lines


def _overlap(ranks: Sequence[RankSteps]) -> list[str]:
    transfer, hidden, exposed, best, limit = (
        float(np.mean(x)) for x in zip(*(r.buckets for r in ranks), strict=True)
    )
    if not transfer:
        return ["  backward started no communication"]
    lines = [f"  communication started in backward: {transfer * 1e3:.3f} ms a step"]
    for what, hidden_s, exposed_s in (
        ("measured", hidden, exposed), ("predicted for these buckets", transfer - best, best),
        ("at best, with buckets of any size", transfer - limit, limit),
    ):  # fmt: skip
        lines.append(f"    {what:34}hidden {hidden_s * 1e3:.3f} ms, exposed {exposed_s * 1e3:.3f} ms")
    return lines


def _waiting(ranks: Sequence[RankSteps], straggler: Straggler | None) -> list[str]:
    if straggler is not None:
        return [f"  {line}" for line in str(straggler).splitlines()]
    waited, whole = sum(r.waited_for_s for r in ranks), sum(r.total.step_s for r in ranks)
    most = max(ranks, key=lambda r: r.waited_for_s)
    of_it = f", {most.waited_for_s / waited:.0%} of it for rank {most.rank}" if waited else ""
    return [f"  no rank stands out: the ranks waited {waited / whole:.1%} of the time{of_it}"]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
