"""Backup workers: a step uses the gradients of the first k of n ranks, and does not wait for the others.

The ranks that compute the gradients of a step, and are ready first, are its *members*. They find that out by one-sided
counters (`collectives.transports.arrivals`), and sum their gradients by messages among themselves. A rank that is late
cannot take part in that sum while it computes, not even with zeros. So it finds out when it is ready, discards its
gradients, and copies the parameters and the optimizer's state of the newest step from windows, in which the members of
each step leave them. Each of these leaves a slice only, and none is disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.capture import refuse_recorded
from autograd.arrays.device import move, to_host
from autograd.arrays.half import is_half
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, GradientWarning, MeshError, OptionError, typed_errors, warn
from autograd.nn import Module
from autograd.optim import Optimizer
from autograd.optim.hyperparameters import check_count, check_numbers
from collectives import current_mesh
from collectives.algorithms.members import Members
from collectives.mesh import Axis
from collectives.transports.windows import Window

from ..data.buckets import Bucket, Buckets
from ..data.data_parallel import DataParallel
from .compressed_adam import CompressedAdam
from .own_copies import OwnCopies, assign, numbers_of, weighted_means

__all__ = ["BackupReport", "BackupStep", "BackupWorkers"]

Array = np.ndarray[Any, Any]
_SLICE_BYTES = 1 << 20  # a rank leaves about this much of a large state: longer messages are no faster
_PATIENCE = 10  # a rank warns when it was dropped so many times in a row and never used


class BackupStep(NamedTuple):
    """A step that this rank was a member of.

    Attributes
    ----------
    step : int
    members : tuple of int
        The ranks whose gradients were used.
    rows : float
        The number of their rows.
    """

    step: int
    members: tuple[int, ...]
    rows: float


class BackupReport(NamedTuple):
    """Whose gradients were used in which step of a block of `BackupWorkers`, and whose were dropped.

    Attributes
    ----------
    size : int
        The number of ranks.
    members : tuple of tuple of int
        For each step the ranks whose gradients were used. It can be given as a `script`, to run the same steps again.
    dropped : tuple of tuple of int
        For each step the ranks that have computed gradients which were discarded. The others that are no members were
        still busy with an earlier step, and have not computed any.
    rows : tuple of float
        For each rank the number of its rows that were used.
    dropped_rows : tuple of float
        For each rank the number of its rows whose gradients were discarded.
    """

    size: int
    members: tuple[tuple[int, ...], ...]
    dropped: tuple[tuple[int, ...], ...]
    rows: tuple[float, ...]
    dropped_rows: tuple[float, ...]

    @property
    def never_used(self) -> tuple[int, ...]:
        """The ranks whose gradients were used in no step."""
        used = {rank for members in self.members for rank in members}
        return tuple([rank for rank in range(self.size) if rank not in used])

    @property
    def is_serial(self) -> bool:
        """Whether all gradients were used, so that they are those of the serial run."""
        return all(len(members) == self.size for members in self.members)

    def __str__(self) -> str:
        steps = len(self.members)
        lacking = sum(len(members) < self.size for members in self.members)
        lines = [f"backup workers: {steps} steps of {self.size} ranks"]
        lines.append(
            "all gradients were used: they are those of the serial run" if self.is_serial
            else f"the gradients of {lacking} steps are those of some ranks' rows only, not those of the serial run"
        )  # fmt: skip
        lines.append(f"{'rank':>6}{'used':>8}{'dropped':>9}{'absent':>8}{'rows used':>12}{'rows dropped':>14}")
        for rank in range(self.size):
            used = sum(rank in members for members in self.members)
            dropped = sum(rank in each for each in self.dropped)
            lines.append(
                f"{rank:>6}{used:>8}{dropped:>9}{steps - used - dropped:>8}{self.rows[rank]:>12g}"
                f"{self.dropped_rows[rank]:>14g}"
            )
        for rank in range(self.size):
            of = [step for step, each in enumerate(self.dropped) if rank in each]
            if of:
                more = f", and {len(of) - 20} more" if len(of) > 20 else ""
                lines.append(f"rank {rank} was dropped in steps {', '.join(map(str, of[:20]))}{more}")
        lines += [f"rank {rank} was never used: nothing is learnt from its rows" for rank in self.never_used]
        return "\n".join(lines)


@typed_errors
class BackupWorkers:
    """Train with the gradients of the first `needed` ranks of `axis` in each step, and drop those of the others.

    Inside ``with BackupWorkers(...) as backup:`` the parameters are V along `axis`: each rank has its copy. A rank
    iterates over the steps that it takes part in, computes the gradient of its own loss, made one number by
    ``cc.declare_partial(loss, axis)``, and calls `step`. If it is among the first, that sums the gradients of these
    ranks and takes the optimizer's step. Otherwise it discards its gradients, takes the parameters and the optimizer's
    state after the newest step, and goes on with the next one. So a slow rank leaves out steps, for which nobody waits.
    After a step all ranks that go on from it have the same bits. At the end of the block all ranks wait for each other,
    and the parameters are I again.

    Parameters
    ----------
    module : Module
        The module itself, not wrapped by `DataParallel`. Its parameters are I along `axis`, and equal on its ranks.
    axis : str or sequence of str
        The mesh axes whose ranks are the workers: all ranks of the mesh.
    optimizer : Optimizer
        Of parameters of `module`. Its state is the same on all ranks after a step.
    needed : int
        The number of ranks whose gradients a step uses, from 1 to all. With all of them nothing is dropped.
    steps : int
        The number of steps of the block.
    script : sequence of sequence of int, optional
        The ranks whose gradients are used, for each step, in the place of those that come first: for exact tests, and
        to repeat a run with the `BackupReport.members` of another one.

    Attributes
    ----------
    last : BackupStep or None
        The latest step of which this rank was a member.
    used, dropped : int
        How often the gradients of this rank were used and discarded.

    Raises
    ------
    LayoutError
        At the start of the block: a parameter is not I along `axis`.
    ReplicaMismatch
        The parameters differ between the ranks at the start of the block.
    CollectiveMismatch
        The ranks give different options.
    OptionError
        An option is out of range; a script does not name `needed` ranks of the axis for each step. The module is a
        `DataParallel`, whose backward pass waits for all ranks, with ZeRO for their parameters, too. The optimizer
        needs sums of a compression (`CompressedAdam`). A rank calls `step` out of turn, or leaves the block before the
        last step.
    ArgumentError
        `module` is no Module, such as a `Trainer`, or `optimizer` no optimizer of its parameters.
    MeshError
        The mesh has ranks along other axes, such as those of a pipeline; or the world is dry.
    RankFailed
        Under the policy ``raise``: a rank has died, also one whose gradients were not needed.

    Warns
    -----
    GradientWarning
        A rank's gradients are dropped again and again and were never used, or were used in no step of the block. The
        model learns nothing from its rows, which is a bias if they differ from those of the others.

    See Also
    --------
    ParameterServer : Ranks that do not wait for each other and add stale changes.

    Notes
    -----
    Formula: with the set M of the first k ranks, ``g = sum_{r in M} g_r * of / sum_{r in M} rows_r``, where the loss of
    rank r was divided by `of`; see `step`. That is the mean over the rows that were used. It is not the gradient of the
    whole batch, and not without a bias if slow ranks have other rows than fast ones.

    A step sends, for each rank, the gradients by a reduction among the members (``2n(k-1)/k`` bytes in ``2 lg k``
    messages), and about four short messages to the rank that counts the arrivals at this step; the steps take
    turns with these ranks. Each member copies its part of the parameters and of the optimizer's state to its window,
    ``1/k`` of it or about 1 MiB, whichever is more. A late rank reads all of it once, however many steps it has missed.
    With ``needed`` equal to the number of ranks nothing is counted or copied, and the sums are those of `DataParallel`:
    the same bits, unless the mesh selects an algorithm, such as ``ring``, in which the order of additions depends on
    the place in a bucket. The order of the parameters is another one there.

    Rows belong to steps: the loop gets the number of the step, and a rank that leaves out steps leaves out their rows.
    A rank that takes its rows from an iterator of its own goes on where it was. A collective in the loop, such as a sum
    of the losses over the ranks, waits for all of them. Values that change from step to step,
    such as a learning rate without a schedule, follow from that number, too.

    Buffers, such as running means, are each rank's own inside the block, and averaged at its end.

    Source: Chen, Pan, Monga, Bengio and Jozefowicz, Revisiting distributed synchronous SGD (2016), algorithms 3 and 4.
    There a server adds the first k gradients.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> from autograd import nn, optim
    >>> from parallel import BackupWorkers
    >>> def program():
    ...     with cc.Mesh(dp=3) as mesh:
    ...         model = nn.Linear(1, 1, bias=False)
    ...         model.weight.data = [[0.0]]
    ...         optimizer = optim.SGD(model.parameters(), lr=0.5)
    ...         x = ag.tensor([[1.0 + mesh.axis("dp").rank]], dtype="float32")  # V: the row of this rank
    ...         with BackupWorkers(model, "dp", optimizer, needed=2, steps=2, script=[(0, 1), (1, 2)]) as backup:
    ...             for step in backup:
    ...                 with ag.Tape() as tape:
    ...                     loss = cc.declare_partial(model(x).sum(), "dp")
    ...                 tape.backward(loss)
    ...                 backup.step(rows=1)
    ...         return model.weight.item(), backup.report().members
    >>> cc.run(program, ranks=3)[0]            # -0.5 (1 + 2) / 2 - 0.5 (2 + 3) / 2
    (-2.0, ((0, 1), (1, 2)))
    """

    def __init__(
        self, module: Module, axis: str | Sequence[str], optimizer: Optimizer, *, needed: int, steps: int,
        script: Iterable[Sequence[int]] | None = None,
    ):  # fmt: skip
        caller = type(self).__name__
        if isinstance(module, DataParallel):
            raise OptionError(
                f"{caller}: a DataParallel{f' with zero={module.zero}' * (module.zero > 0)} was given, whose backward "
                "pass waits for all ranks; needed: the module, whose gradients the first ranks sum\n"
                f"  fix: {caller}(model.module, ...), and call model.module in the block; zero=0"
            )
        self._copies = OwnCopies(caller, module, axis, optimizer)
        if isinstance(optimizer, CompressedAdam):
            raise OptionError(
                f"{caller}: CompressedAdam was given, whose compression sums the gradients of all ranks; needed: "
                "another optimizer, such as Adam"
            )
        check_count(caller, least=1, needed=needed, steps=steps)
        self.optimizer, self.needed, self.steps = optimizer, needed, steps
        self.script = None if script is None else _checked_script(caller, script, needed, steps)
        self.used = self.dropped = 0
        self.last: BackupStep | None = None
        self._on: Axis | None = None
        self._runs: Buckets | None = None
        self._report: BackupReport | None = None

    def __repr__(self) -> str:
        done = f"{self.used} steps used, {self.dropped} dropped"
        return f"{type(self).__name__}(axis={self._copies.axis!r}, needed={self.needed}, steps={self.steps}): {done}"

    # -- the block -------------------------------------------------------------------------------------------------
    def __enter__(self) -> BackupWorkers:
        name, mesh = type(self).__name__, current_mesh()
        on, needed = mesh.axis(self._copies.axis), self.needed
        group = on.group
        group.agree(
            lambda: f"start of {name} (axis={'*'.join(on.names)!r} needed={needed} steps={self.steps} "
            f"script={self.script is not None and hash(self.script)})"
        )
        if group.dry:
            raise MeshError(f"{name} in a dry world: which ranks come first is known in a run; needed: ranks that run")
        if on.size != mesh.ranks.size:
            raise MeshError(
                f"{name} along {'*'.join(on.names)!r}, {on.size} of the mesh's {mesh.ranks.size} ranks; needed: all of "
                "them. The parts of a model that is divided along other axes would use different steps"
            )
        if needed > on.size:
            raise OptionError(f"{name}: needed={needed} was given; needed: from 1 to {on.size}, the ranks of the axis")
        for step, members in enumerate(self.script or ()):
            if members[-1] >= on.size:
                raise OptionError(
                    f"{name}: script[{step}]={members} was given; needed: ranks of axis {'*'.join(on.names)!r}, from 0 "
                    f"to {on.size - 1}"
                )
        self._copies.part()
        self._on, self._group = on, group
        self._drops = needed < on.size
        if self._runs is None or self._runs.on is not on:
            self._runs = Buckets(
                self._copies.learned, on, bucket_bytes=25 << 20, first_bucket_bytes=1 << 20,
                own_channel=not self._drops,
            )  # fmt: skip
        self._places = self._runs.settle_places(None)
        if self._drops:
            self._arrivals = group.arrivals(needed, self.steps)
            self._store = _Store(self.optimizer, group, needed)
        self._at, self._is_open = 0, False
        self._mine: list[tuple[int, bool, float]] = []  # of each step that this rank has computed: is it used, the rows
        self.used = self.dropped = 0
        self.last = self._report = None
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        if error is not None:
            self._on = None
            return
        on, name, copies, group = self._axis("the end of the block"), type(self).__name__, self._copies, self._group
        if self._at < self.steps or self._is_open:
            raise OptionError(
                f"{name}: rank {group.index} has left the block at step {self._at} of {self.steps}; needed: all steps, "
                f"as the others wait for {self.needed} ranks at each\n  fix: a smaller steps=, in a block of its own"
            )
        group.agree(lambda: f"the end of the block of {name} (axis={'*'.join(on.names)!r})")
        group.barrier()  # nobody reads a window any more
        self._report = self._gathered()
        if self._drops:
            self._arrivals.free()
            self._store.free()
        buffers = [numbers_of(x) for x in copies.averaged_buffers()]
        copies.set_buffers(weighted_means(f"the end of the block of {name}", buffers, 1.0, on, 25 << 20), on)
        copies.join(on)
        current_mesh().check_replicas(copies.all.values())
        self._on = None
        if group.index == 0 and self._report.never_used:
            ranks = ", ".join(map(str, self._report.never_used))
            warn(
                f"{name}: the gradients of rank {ranks} were used in none of {self.steps} steps, so that nothing was "
                "learnt from these rows. The model is biased if they differ from those of the others\n"
                "  fix: fewer rows for slow ranks, a larger needed=, or rows that change their rank", GradientWarning,
            )  # fmt: skip

    def _axis(self, call: str) -> Axis:
        if self._on is None:
            name = type(self).__name__
            raise OptionError(f"{call} outside of the block of {name}; needed: with {name}(...) as backup:")
        return self._on

    # -- steps -----------------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[int]:
        """The steps that this rank takes part in, in order. Each begins without gradients, and needs one `step`."""
        self._axis("iteration")
        while self._at < self.steps:
            self._refuse_open()
            self.optimizer.zero_grad()
            self._calls, self._is_open = self.optimizer.calls, True
            yield self._at
            self._refuse_open()

    def _refuse_open(self) -> None:
        if self._is_open:
            raise OptionError(
                f"{type(self).__name__}: rank {self._group.index} has not called step() in step {self._at}; needed: "
                "step() once in each iteration, with rows=0 if there are none"
            )

    def step(self, rows: float = 1, of: float = 1, before: Callable[[], object] | None = None) -> bool:
        """End a step: use the gradients of this rank if it is among the first, else discard them and take the result.

        The gradient that the optimizer uses is ``sum(g_r) * of / sum(rows_r)`` over the members.

        Parameters
        ----------
        rows : float
            The number of rows in this rank's loss, 0 or more. The default weighs all members alike.
        of : float
            The number by which the loss was divided, the same on all ranks. With the number of rows of all ranks, the
            loss is that of `DataParallel`, and with all ranks the gradients have the same bits. The default is for a
            loss that is a sum.
        before : callable, optional
            It is called before the optimizer's step, on the ranks whose gradients are used, when the parameters have
            the gradients of all of them: ``lambda: optim.clip_grad_norm_(model.parameters(), 1.0)``. The parameters are
            I there. It must not communicate.

        Returns
        -------
        bool
            Whether this rank's gradients were used.

        Raises
        ------
        OptionError
            A number is out of range; `of` differs between the ranks, or no member has rows; it is not called in an
            iteration, or a second time; or the program has called the optimizer's `step` itself.
        RankFailed
            A rank has died.
        DeadlockError
            Too few ranks are left that could come.
        SavedArrayError
            A tape still needs the value of a parameter.
        """
        refuse_recorded("BackupWorkers.step")
        self._check(rows, of)
        step = self._at
        told = None if self.script is None else self._group.index in self.script[step]
        is_used = self._arrivals.take(step, told) if self._drops else True
        if is_used:
            members = self._arrivals.members(step) if self._drops else tuple(range(self._group.size))
            total = self._update(members, float(rows), float(of), before)
            if self._drops:
                self._store.leave(step, members)
                self._arrivals.finish(step)
            self.last = BackupStep(step, members, total)
            self.used += 1
            self._at = step + 1
        else:
            self.optimizer.zero_grad()
            self.dropped += 1
            self._catch_up(step)
        self._mine.append((step, is_used, float(rows)))
        self._is_open = False
        if self.dropped == _PATIENCE and not self.used:
            warn(
                f"{type(self).__name__}: the gradients of rank {self._group.index} were dropped {_PATIENCE} times in a "
                "row and never used, so that nothing is learnt from its rows\n"
                "  fix: fewer rows for this rank, or a larger needed=", GradientWarning,
            )  # fmt: skip
        return is_used

    def _check(self, rows: float, of: float) -> None:
        """Raise the errors of `step` that this rank can see alone."""
        self._axis("step")
        name = type(self).__name__
        check_numbers(f"{name}.step", rows=rows)
        check_numbers(f"{name}.step", of=of)
        if of == 0:
            raise OptionError(f"{name}.step: of=0 was given; needed: the number by which the loss was divided")
        if not self._is_open:
            raise OptionError(f"{name}.step outside of an iteration; needed: once in each of: for step in backup:")
        if self.optimizer.calls != self._calls:
            raise OptionError(
                f"{name}.step: the optimizer has taken a step by itself; needed: backup.step() in the place of "
                "optimizer.step(), which it calls"
            )

    def report(self) -> BackupReport:
        """Whose gradients were used and dropped in the last block. Each rank has the same, once the block has ended.

        Raises
        ------
        OptionError
            No block has ended.
        """
        if self._report is None:
            raise OptionError(f"report of {type(self).__name__} before the end of its block; needed: after it")
        return self._report

    def _update(
        self, members: tuple[int, ...], rows: float, of: float, before: Callable[[], object] | None
    ) -> float:  # fmt: skip
        """Take the optimizer's step with the gradients of all members, and return the number of their rows."""
        learned = self._copies.learned
        gradients: dict[int, Any] = {}
        total = self._rows(members, rows, of)
        assert self._runs is not None
        for b in range(len(self._places)):
            gradients.update(self._sum(self._runs.bucket(b), self._runs, members, total, of))
        with self._copies.as_one(self._axis("step")):  # the members have the same parameters and gradients
            for i, p in enumerate(learned):
                assert p.layout is not None
                p.grad = Tensor(gradients[i], p.layout.dual) if i in gradients else None
            if before is not None:
                before()
            self.optimizer.step()
        return total

    def _rows(self, members: tuple[int, ...], rows: float, of: float) -> float:
        """The number of rows of all members, which also compare `of`."""
        group = Members(self._group, members, "backup workers")
        total, sum_of, squares = group.all_reduce(np.array([rows, of, of * of])).tolist()
        mean = sum_of / len(members)
        if abs(squares / len(members) - mean * mean) > 1e-9 * mean * mean:
            raise OptionError(
                f"{type(self).__name__}.step: of={of:g} was given on rank {self._group.index}, {mean:g} on average; "
                "needed: the same number on all ranks"
            )
        return float(total)

    def _sum(
        self, bucket: Bucket, runs: Buckets, members: tuple[int, ...], total: float, of: float
    ) -> Iterator[tuple[int, Any]]:
        """Yield the index and the gradient of each parameter of a bucket that some member has used."""
        gradients = [self._copies.learned[i].grad for i in bucket.indices]
        used = [float(g is not None) for g in gradients]
        for j, g in enumerate(gradients):
            runs.write(bucket, j, None if g is None else g.array)
        answer = None
        if self._drops:
            bucket.flags[...] = move(np.array(used, bucket.flat.dtype), bucket.flat)
            group = Members(self._group, members, "backup workers")
            summed = group.all_reduce(np.asarray(to_host(bucket.flat)))
            bucket.flat[...] = move(summed, bucket.flat)
        else:
            wait = runs.start(bucket, used)
            answer = None if wait is None else wait()
        if total == 0 and to_host(bucket.flags).any():
            raise OptionError(
                f"{type(self).__name__}.step: the members of step {self._at} have gradients and rows=0; needed: the "
                "number of rows of each loss"
            )
        if total not in (0, of):
            _scale(bucket.values, of / total)
        yield from runs.results(bucket, used, answer)

    def _catch_up(self, step: int) -> None:
        """Take the parameters and the optimizer's state after the newest step, from `step` on."""
        self._arrivals.wait(step)
        while True:
            step = self._arrivals.newest(step)
            if self._store.take(step, self._arrivals.members(step)):
                break
        self._at = step + 1

    def _gathered(self) -> BackupReport:
        """The report, from what each rank knows. All ranks call it."""
        size = self._group.size
        recorded = list(self._arrivals.recorded()) if self._drops else []
        given = json.dumps([recorded, self._mine]).encode()
        members: list[tuple[int, ...]] = [tuple(range(size))] * self.steps
        dropped: list[list[int]] = [[] for _ in range(self.steps)]
        rows, lost = [0.0] * size, [0.0] * size
        for rank, each in enumerate(self._group.exchange(given, of=type(self).__name__)):
            theirs, computed = json.loads(each)
            for step, of_step in theirs:
                members[step] = tuple(of_step)
            for step, is_used, count in computed:
                if not is_used:
                    dropped[step].append(rank)
                (rows if is_used else lost)[rank] += count
        return BackupReport(size, tuple(members), tuple(map(tuple, dropped)), tuple(rows), tuple(lost))


def _scale(values: Any, factor: float) -> None:
    """Multiply an array by a number, in place; one of 16 bits in float32, as the number has more digits."""
    values[...] = (values.astype(np.float32) * np.float32(factor)) if is_half(values.dtype) else values * factor


class _Store:
    """The parameters and the optimizer's state after the last two steps, in windows of their members.

    The state is one sequence of bytes, of which the first members of a step leave a slice each. A step takes the place
    of the one before the last. That has no readers who need it: its successor was finished before this one began.

    Parameters
    ----------
    optimizer : Optimizer
    group : Communicator
    needed : int
        The number of members of a step.
    """

    def __init__(self, optimizer: Optimizer, group: Any, needed: int):
        self._optimizer, self._me = optimizer, group.index
        lists = len(optimizer.state_lists())
        arrays = [p.array for p in optimizer.parameters]
        # The state of a parameter has its shape, and its dtype or float32. The rest are shapes and counts as text.
        most = sum(a.size * (a.dtype.itemsize + lists * max(4, a.dtype.itemsize)) for a in arrays)
        most += 256 * (1 + len(optimizer.param_groups) + (1 + lists) * len(arrays))
        self._servers = max(1, min(needed, most // _SLICE_BYTES))
        self._room = _HEAD.itemsize * 2 + -(-most // self._servers)
        self._window: Window = group.window(np.zeros(2 * self._room, np.uint8))

    def leave(self, step: int, members: Sequence[int]) -> None:
        """Leave this rank's slice of the state after a step, if it has one."""
        if self._me not in members[: self._servers]:
            return
        parts, k = self._parts(), members.index(self._me)
        total = sum(part.nbytes for part in parts)
        start, end = self._slice(total, k)
        if end - start > self._room - 2 * _HEAD.itemsize:
            raise OptionError(
                f"BackupWorkers: the state of {type(self._optimizer).__name__} has {total} bytes, more than the room "
                "that was made for it; needed: an optimizer whose state has the shapes of the parameters"
            )
        given = np.empty(2 * _HEAD.itemsize + end - start, np.uint8)
        given[: 2 * _HEAD.itemsize].view(_HEAD)[:] = step, total
        filled, begin = 2 * _HEAD.itemsize, 0
        for part in parts:
            a, b = max(start, begin), min(end, begin + part.nbytes)
            if a < b:
                flat = np.ascontiguousarray(to_host(part)).reshape(-1)
                given[filled : filled + b - a] = flat.view(np.uint8)[a - begin : b - begin]
                filled += b - a
            begin += part.nbytes
        with self._window.locked(self._me):
            self._window.put(given, self._me, step % 2 * self._room)

    def take(self, step: int, members: Sequence[int]) -> bool:
        """Replace this rank's state by that after a step. False if a newer step has taken its place meanwhile."""
        whole, at = np.empty(0, np.uint8), step % 2 * self._room
        for k, owner in enumerate(members[: self._servers]):
            with self._window.locked(owner):
                here, total = self._window.get(owner, at, 2 * _HEAD.itemsize).view(_HEAD).tolist()
                if here != step:
                    return False
                start, end = self._slice(total, k)
                found = self._window.get(owner, at + 2 * _HEAD.itemsize, end - start)
            if k == 0:
                whole = np.empty(total, np.uint8)
            whole[start:end] = found
        self._load(whole)
        return True

    def free(self) -> None:
        """Release the memory. All ranks call it."""
        self._window.free()

    def _slice(self, total: int, k: int) -> tuple[int, int]:
        return total * k // self._servers, total * (k + 1) // self._servers

    def _parts(self) -> list[Array]:
        """The state as arrays: the length of a text, the text, the parameters, and the arrays of the optimizer."""
        optimizer = self._optimizer
        arrays = [p.array for p in optimizer.parameters]
        lists: list[list[Any]] = []
        for values in optimizer.state_lists():
            lists.append([])
            for value in values:
                if value is None or isinstance(value, int):
                    lists[-1].append(value)
                else:
                    lists[-1].append([value.dtype.name, *map(int, value.shape)])
                    arrays.append(value)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        text = np.frombuffer(json.dumps([optimizer.steps, float(optimizer.lr), rates, lists]).encode(), np.uint8)
        return [np.array([text.size], _HEAD), text, *arrays]

    def _load(self, whole: Array) -> None:
        size = int(whole[: _HEAD.itemsize].view(_HEAD)[0])
        at = _HEAD.itemsize + size
        steps, lr, rates, lists = json.loads(whole[_HEAD.itemsize : at].tobytes())

        def next_array(dtype: Any, shape: Sequence[int]) -> Array:
            nonlocal at
            dtype = np.dtype(dtype)
            begin, at = at, at + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            return np.frombuffer(whole[begin:at].tobytes(), dtype).reshape(shape)

        optimizer = self._optimizer
        for p in optimizer.parameters:
            assign(p, next_array(p.array.dtype, p.array.shape))
        state = optimizer.state_dict() | {"steps": steps, "lr": lr}
        names = [name for name in state if name not in ("steps", "lr", "names", "groups")]
        for name, values in zip(names, lists, strict=True):
            state[name] = [next_array(v[0], v[1:]) if isinstance(v, list) else v for v in values]
        for own, rate in zip(state.get("groups", ()), rates, strict=False):
            if "lr" in own:
                own["lr"] = rate
        optimizer.load_state_dict(state)


_HEAD = np.dtype(np.int64)


def _checked_script(
    caller: str, script: Iterable[Sequence[int]], needed: int, steps: int
) -> tuple[tuple[int, ...], ...]:
    """The script as a tuple of sorted tuples of ranks."""
    if not isinstance(script, Iterable) or isinstance(script, str | bytes):
        raise ArgumentError(f"{caller}: script={script!r} was given; needed: the ranks of each step")
    found = []
    for step, ranks in enumerate(script):
        if not isinstance(ranks, Iterable) or isinstance(ranks, str | bytes):
            raise ArgumentError(f"{caller}: script[{step}]={ranks!r} was given; needed: a sequence of ranks")
        members = tuple(ranks)
        check_count(caller, **{f"script[{step}]": rank for rank in members})
        if len(set(members)) != len(members) or len(members) != needed:
            raise OptionError(
                f"{caller}: script[{step}]={members} was given; needed: {needed} different ranks (needed={needed})"
            )
        found.append(tuple(sorted(map(int, members))))
    if len(found) != steps:
        raise OptionError(f"{caller}: a script of {len(found)} steps was given; needed: {steps} (steps={steps})")
    return tuple(found)
