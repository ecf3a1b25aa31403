"""`run`: a training program that goes on without the ranks that die."""

from __future__ import annotations

import gc
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from autograd import random
from autograd.engine.state import state
from autograd.errors import MET, ArgumentError, MeshError, OptionError, RankFailed, typed_errors
from collectives import Mesh, World
from collectives.faults.points import point
from collectives.job.failure import process
from collectives.world import is_rank_thread

from ..checkpoint import Checkpoints, Restored
from ..checkpoint.tree import has_state, objects_of
from ..launch import finished
from .holdings import Copies, Holding, Live, expected_of, objects_in
from .report import ElasticError, ElasticReport, Recovery
from .restoring import Found, exchange_values, load_found, newest_in_memory

__all__ = ["Run", "run"]

T = TypeVar("T")
Sizes = Mapping[str, int] | Callable[[int], Mapping[str, int]]


class Run:
    """The run, as its program sees it: `run` gives it to the program at each start.

    Attributes
    ----------
    mesh : Mesh
        Of the ranks that are left. It is current.
    world : World
    step : int
        The number of steps that are done.
    starts : int
        How often the program was called.
    report : ElasticReport
    """

    def __init__(self, loop: _Loop, mesh: Mesh, starts: int):
        if not isinstance(loop, _Loop):
            raise ArgumentError(f"elastic.Run({loop!r}, ...): `elastic.run` makes it and gives it to the program")
        self._loop, self.mesh, self.starts = loop, mesh, starts
        self.world, self.report = loop.world, loop.report
        self.step = 0
        self._objects: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Run on {self.mesh!r}, {self.step} steps, start {self.starts}>"

    def restore(self, objects: Any) -> Restored | None:
        """Set the state of objects to the newest that there is. All ranks call it once, before the first step.

        Parameters
        ----------
        objects : mapping of str to object, or an object
            As for `checkpoint.save`: modules, optimizers, a `Trainer`, loaders, ``autograd.random``, and plain values.
            The run keeps the mapping. What it has at the end of a step is the state of the step, and plain values in it
            are replaced by the restored ones: lists, dictionaries and arrays in their places.

        Returns
        -------
        Restored or None
            None if the run begins.

        Raises
        ------
        ElasticError
            A part of the state was lost with the ranks that died, and there is no checkpoint.
        RingtapeError
            See `checkpoint.load`.
        """
        if self._objects is not None:
            raise OptionError("Run.restore was called twice; needed: one call, with all objects of the run")
        given = objects if isinstance(objects, Mapping) else {"state": objects}
        if not isinstance(given, MutableMapping) and not all(map(has_state, given.values())):
            raise OptionError("Run.restore: the mapping has plain values, and cannot be changed\n  fix: a dict")
        self._objects = given
        found = self._loop.restore(given)
        self.step = 0 if found is None else found.step
        self._loop.begin(given, self.step)
        return found

    def steps(self, n: int) -> Iterator[int]:
        """Iterate over the steps that are left, from `step` to n - 1. The end of a body commits its step.

        A ``break`` leaves the step that it ends uncommitted.

        Parameters
        ----------
        n : int
            The number of steps of the whole run.
        """
        if self._objects is None:
            raise OptionError(
                "Run.steps was called before Run.restore; needed: the objects whose state survives\n  fix: "
                'run.restore({"model": model, "optimizer": optimizer}), also at the first start'
            )
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise OptionError(f"Run.steps: n={n!r} was given; needed: a whole number of at least 0")
        while self.step < n:
            point("elastic.step")
            met = MET.failures
            yield self.step
            if MET.failures > met:  # it does not count as done, whatever the program has made of it
                raise RankFailed(
                    f"elastic.run: the program has caught a RankFailed in step {self.step}, and has gone on\n"
                    "  fix: except cc.RankFailed: raise"
                )
            self.step += 1
            self._loop.commit(self._objects, self.step, self.step == n)


@typed_errors
def run(
    program: Callable[[Run], T],
    *,
    mesh: Sizes,
    copies: int | None = None,
    directory: str | os.PathLike[str] | Checkpoints | None = None,
    every: int | None = None,
    replace: bool | int = False,
    spares: int = 0,
) -> T | None:
    """Run a training program, and again on the ranks that are left after each death. All ranks call it.

    The program makes its model and its optimizer on ``run.mesh``, which is current, calls ``run.restore(...)`` and does
    its steps in ``for step in run.steps(n)``. If a rank dies, the others leave the program by `RankFailed`, agree on
    who is left, and call it again on a new mesh. `Run.restore` then sets the newest state that they have together.

    Parameters
    ----------
    program : callable
        ``program(run)``, called on each rank of the mesh.
    mesh : mapping of str to int, or callable
        The axes of the mesh and their sizes, of which one may be -1; or a function of the number of ranks that returns
        them. Ranks that have no place on the mesh wait, and may get one after the next death.
    copies : int, optional
        Every so many steps each rank copies its share of the state in memory, and sends it to a partner. It is needed
        where parts of the state are on one rank only, as with ZeRO, tensor and pipeline parallelism without replicas.
    directory : str, path or Checkpoints, optional
        Where checkpoints are saved, every `every` steps and at the end. The run resumes from it when it is started
        again.
    every : int, optional
        With `directory`.
    replace : bool or int
        True to start another rank in the place of each that has died; a number, at most so many in the life of the
        world. It has the same number in the world, runs the whole program of the rank from its beginning, and joins
        when it comes to `elastic.run`. Before that nothing may communicate. It needs a world of threads
        (`World.can_replace`).
    spares : int
        The number of ranks that wait for the death of another one, whose place the last of them then takes. The mesh is
        that of the other ranks, and becomes smaller when no spare is left. It needs no new process, so it works over
        MPI, too: ``mpiexec -n 5`` for four ranks and a spare.

    Returns
    -------
    object
        What the program returned on this rank; None on a rank that had no place at the end.

    Raises
    ------
    ElasticError
        State was lost with the ranks that died, and there is no checkpoint; or too few ranks are left for the mesh; or
        a replacement has come to another `elastic.run` of the program than the one that it was started for.
    OptionError
        An option is not valid; or the world has not the policy ``raise``, or cannot replace ranks.
    CollectiveMismatch
        A replacement has communicated before it came to `elastic.run`.
    RankFailed
        The program has raised an error on another rank. That is no death: it ends the run, as the error does there.

    Notes
    -----
    State comes from, in this order for the same step: the live objects of ranks on which no optimizer has begun the
    next step; `copies`; the newest checkpoint; the beginning. A newer step is preferred. The global batch should not
    depend on the number of ranks: then the steps are those of an undisturbed run, up to rounding, and with
    ``bits="same"`` bit by bit.

    The end of a step sends nothing. A copy sends this rank's share of the state, 1 / ranks of it, in three messages.
    After a death: an agreement, and the boxes of the state that the new layouts need. The program is called again from
    its beginning, with the random state with which it was called first.

    Examples
    --------
    >>> import numpy, autograd as ag, collectives as cc
    >>> from autograd import nn, optim, random
    >>> from collectives.testing import faults
    >>> from parallel import DataParallel, elastic
    >>> rows = numpy.arange(12.0).reshape(6, 2) / 12
    >>> def train(run):
    ...     net = nn.Linear(2, 1, key=random.Key(0), dtype=float)
    ...     model, sgd = DataParallel(net, "dp"), optim.SGD(net.parameters(), lr=0.1)
    ...     run.restore({"net": net, "sgd": sgd})
    ...     for step in run.steps(6):
    ...         with ag.Tape() as tape:
    ...             x = cc.from_local(numpy.array_split(rows, run.mesh.axis("dp").size)[run.mesh.ranks.index],
    ...                               {"dp": cc.Shard(0)})
    ...             loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=cc.I) / 6
    ...         sgd.zero_grad()
    ...         tape.backward(loss)
    ...         sgd.step()
    ...     return len(run.mesh.ranks.ranks), round(loss.item(), 12)
    >>> def program():
    ...     return elastic.run(train, mesh={"dp": -1})
    >>> with cc.World("threads", 1, policy="raise") as world:
    ...     alone = world.run(program)[0]
    >>> with faults.injected("kill:1@3,of=elastic.step"), cc.World("threads", 3, policy="raise") as world:
    ...     found = world.run(program)
    elastic run: 1 recovery
    rank 1 died in step 3; on from step 2 (replicas), 0 steps done again, on dp=2, after ... s
      rank 1: rank 1 of 3 was killed by an injected fault: kill:1@3,of=elastic.step, ...
    >>> found == [(2, alone[1]), None, (2, alone[1])]
    True

    The same with another rank in the place of the one that died:

    >>> def program():
    ...     return elastic.run(train, mesh={"dp": -1}, replace=True)
    >>> with faults.injected("kill:1@3,of=elastic.step"), cc.World("threads", 3, policy="raise") as world:
    ...     found = world.run(program)
    elastic run: 1 recovery
    rank 1 died in step 3 and was replaced; on from step 2 (replicas), 0 steps done again, on dp=3, after ... s
      rank 1: rank 1 of 3 was killed by an injected fault: kill:1@3,of=elastic.step, ...
    >>> found == 3 * [(3, alone[1])]
    True
    """
    _check_options(program, copies, directory, every, replace, spares)
    is_open = is_rank_thread() or process.worlds  # a world of its own goes on after a death
    with nullcontext(World.current()) if is_open else World(policy="raise") as world:
        _check_world(world, replace, spares)
        checkpoints = directory if directory is None or isinstance(directory, Checkpoints) else Checkpoints(directory)
        replace = replace if world.size > 1 else False
        return _Loop(world, program, mesh, copies, checkpoints, every, replace, spares).run()


def _check_options(program: Any, copies: Any, directory: Any, every: Any, replace: Any, spares: Any) -> None:
    if not callable(program):
        raise OptionError(f"elastic.run: program={program!r} was given; needed: a function of the run")
    for name, n in (("copies", copies), ("every", every)):
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise OptionError(f"elastic.run: {name}={n!r} was given; needed: a whole number of at least 1, or None")
    if (directory is None) != (every is None):
        given, other = ("every", "directory") if directory is None else ("directory", "every")
        raise OptionError(f"elastic.run: {given}= was given without {other}=; needed: both, or none")
    if not isinstance(replace, int) or replace < 0:
        raise OptionError(f"elastic.run: replace={replace!r} was given; needed: True, False or a number of ranks")
    if not isinstance(spares, int) or isinstance(spares, bool) or spares < 0:
        raise OptionError(f"elastic.run: spares={spares!r} was given; needed: a number of ranks, or 0")


def _check_world(world: World, replace: bool | int, spares: int) -> None:
    if spares >= world.size and spares:
        raise OptionError(
            f"elastic.run: spares={spares} was given in a world of {world.size} ranks; needed: fewer, as a rank "
            f"has to train\n  fix: {spares + 1} ranks or more, or spares={world.size - 1}"
        )
    if not world.raises and world.size > 1:
        raise OptionError(
            f"elastic.run in {world!r}, in which the death of a rank ends the job; needed: the policy 'raise'\n"
            "  fix: cc.World(policy='raise'), made before anything else that communicates; on threads "
            "cc.World('threads', ranks=4, policy='raise').run(...)"
        )
    if replace and world.size > 1 and not world.can_replace:
        raise OptionError(
            f"elastic.run(replace={replace!r}) in {world!r}, which cannot start ranks again; needed: a world of "
            f"threads\n  fix: spares=1 in a job of {world.size + 1} ranks, of which one waits to take the place of "
            "another\n  or:  elastic.run without replace=, which goes on with the ranks that are left"
        )


class _Loop:
    """One call of `run` on this rank: the program is called until all ranks have come to its end."""

    def __init__(
        self, world: World, program: Callable[[Run], Any], sizes: Sizes, copies: int | None,
        checkpoints: Checkpoints | None, every: int | None, replace: bool | int, spares: int,
    ):  # fmt: skip
        self.most = world.size - spares  # ranks on the mesh
        self.placed: tuple[int, ...] = ()  # those that are on it
        self.world, self.program, self.sizes = world, program, sizes
        self.every_copy, self.checkpoints, self.every, self.replace = copies, checkpoints, every, replace
        self.report = ElasticReport()
        self.group: Any = world.communicator  # of the epoch
        self.starts = 0
        self.live: Live | None = None
        self.copies = Copies()
        self.old: list[Holding] = []  # of the objects of earlier starts, until all ranks have restored their states
        self.reached = 0  # the most steps that this rank has done
        self.died: dict[int, str] = {}  # since the last recovery
        self.joined: tuple[int, ...] = ()  # those that got a place when this epoch began
        self._began = 0.0
        self._random = random.get_state()
        self._has_restored = False
        _runs.count += 1
        self.number = _runs.count  # of this run in the program of the rank
        self._joins = self.number == 1 and world.is_replacement  # and does not know the run yet

    # -- the epochs ------------------------------------------------------------------------------------------------
    def run(self) -> Any:
        if self._joins:
            self._began = time.monotonic()
            self._agree(self.group.ranks, self.world.epoch, None, None, True)
        while True:
            members, epoch = self.group.ranks, self.world.epoch
            mesh: Mesh | None = None
            error: Exception | None = None
            lost: Exception = RankFailed("elastic.run: a rank has not come to the end of the program")
            has_ended = has_agreed = False
            self.starts, self._has_restored = self.starts + 1, False
            random.set_state(self._random)
            try:
                mesh = self._mesh()
                result = self._started(mesh)
                has_ended = True
                self._end("done")  # nobody ends the epoch while others train
                if not self.world.is_fault_tolerant or self.group.size == 1:
                    break
            except Exception as failure:
                self._began = time.monotonic()
                if _is_death(failure):
                    lost = failure.with_traceback(None)
                else:
                    error = failure
            if has_ended and error is None:
                is_over, has_agreed = self._agree_on_the_end()
                if is_over:
                    break
            if error is None:
                self._keep(mesh)
            self._agree(members, epoch, error, lost, has_agreed)
        failed = self.world.failed
        if next(rank for rank in self.group.ranks if rank not in failed) == self.group.ranks[self.group.index]:
            finished()
            if self.report.recoveries:
                print(self.report, flush=True)
        return result

    def _mesh(self) -> Mesh | None:
        """The mesh of this epoch; None on a rank that has no place on it. All ranks of the epoch call it."""
        n = self.group.size
        sizes = self._sizes()
        ranks = math.prod(sizes.values())
        before, self.placed = self.placed, self.group.ranks[:ranks]
        self.joined = tuple(sorted(set(self.placed) - set(before))) if before else ()
        if self.group.index >= ranks:
            return None
        over = self.group if ranks == n else self.group.subgroup(range(ranks), f"{self.group.name} of the mesh")
        return Mesh(over, **sizes)

    def _sizes(self) -> dict[str, int]:
        """The sizes of the mesh in this epoch."""
        return _complete(self.sizes, min(self.group.size, self.most))

    def _started(self, mesh: Mesh | None) -> Any:
        """Call the program, and return its result; None on a rank without a place, which serves the others."""
        if mesh is None:
            self.restore({})
            return None
        with mesh:
            result = self.program(Run(self, mesh, self.starts))
            if not self._has_restored:
                self.restore({})
        return result

    def _keep(self, mesh: Mesh | None) -> None:
        """Keep the state of the objects of this start, for the next one."""
        live, self.live = self.live, None
        if live is not None and mesh is not None:
            with suppress(_Left), mesh:
                found = live.holding()
                if found is not None:
                    self.old.append(found)
                raise _Left  # so that the end of the block compares nothing
        if self.checkpoints is not None:
            self.checkpoints.abandon()
        gc.collect()  # the error's traceback is gone, and with it the tapes and buffers of the start

    def _end(self, status: str, text: str = "") -> list[dict[str, Any]]:
        """Tell all ranks of the epoch how this one has ended, and what a rank that joins must know."""
        point("elastic.end")
        told: dict[str, Any] = {"status": status, "text": text, "number": self.number}
        if self.replace:
            told |= {"recoveries": list(map(asdict, self.report.recoveries)), "died": self.died}
        mine = json.dumps(told)
        return [json.loads(each) for each in self.group.exchange(mine.encode(), of="elastic.run")]

    def _agree_on_the_end(self) -> tuple[bool, bool]:
        """Agree whether all ranks leave, when this one has come to the end of the program.

        A death in the last exchange may be seen by some ranks, and not by others. But they agree whether all that are
        left have come to the end.

        Returns
        -------
        is_over : bool
            The same on all ranks that are left.
        has_agreed : bool
            Whether the ranks have agreed on those that are left, and `group` has these.
        """
        epoch = self.world.epoch
        has_agreed = False
        with suppress(RankFailed):  # if a rank dies when they have agreed
            point("elastic.finished")
            self.group = self.world.survivors(finished=True, replace=self.replace)
            has_agreed = True
        return self.world.epoch > epoch and self.world.all_finished, has_agreed

    def _agree(
        self, members: tuple[int, ...], epoch: int, error: Exception | None, lost: Exception | None, has_agreed: bool
    ) -> None:
        """Begin an epoch with the ranks that are left, and raise if one of them has not lost another one.

        `members` were the ranks of an epoch that is over. A rank that joins has agreed by that.
        """
        gone = False
        while True:
            try:
                if not has_agreed:
                    point("elastic.survivors")
                    self.group = self.world.survivors(replace=self.replace if error is None else False)
                has_agreed = False
                # those who have died since are no members any more, or others have their places
                failed, replaced = self.world.failed, self.world.replaced
                died = {rank: failed.get(rank, "it has failed") for rank in members if rank not in self.group.ranks}
                died |= {rank: x.why for rank in members if (x := replaced.get(rank)) is not None and x.epoch > epoch}
                self.died |= died
                gone |= bool(died)
                if error is None:
                    told = self._end("joins" if self._joins else "lost")
                else:
                    told = self._end("error", f"{type(error).__name__}: {error}")
                break
            except RankFailed:  # another death
                continue
        if error is not None:
            raise error
        for rank, each in zip(self.group.ranks, told, strict=True):
            if each["status"] == "error":
                raise RankFailed(
                    f"elastic.run: the program has raised on rank {rank}, which ends the run: {each['text']}"
                )
        if lost is not None and not gone:  # nobody has died
            raise lost
        if any(each["status"] == "joins" for each in told):
            self._learn(told)

    def _learn(self, told: list[dict[str, Any]]) -> None:
        """Learn who has died, and on a rank that joins the recoveries before. All ranks of the epoch call it."""
        numbers = dict(zip(self.group.ranks, (each["number"] for each in told), strict=True))
        if len(set(numbers.values())) > 1:
            raise ElasticError(
                "elastic.run: a replacement has begun the program again, and has come to another elastic.run of it "
                f"than the other ranks (rank: number of the call: {numbers})\n"
                "  fix: replace= in the first elastic.run of a program only, or one elastic.run for all steps"
            )
        known = next((each for each in told if each["status"] == "lost"), None)
        if known is None and self.checkpoints is None:
            raise ElasticError(
                "elastic.run: all ranks have died that had a state, before their replacements had it\n"
                '  fix: elastic.run(..., directory="run", every=100), which saves checkpoints'
            )
        self.died = {int(rank): why for each in told for rank, why in each.get("died", {}).items()}
        if self._joins and known is not None:
            self.report.recoveries = []
            for each in known.get("recoveries", []):  # as another rank has told it
                died = {int(rank): why for rank, why in each["died"].items()}
                numbers = {name: tuple(each[name]) for name in ("replaced", "joined")}
                self.report.recoveries.append(Recovery(**{**each, "died": died, **numbers}))
        self._joins = False

    # -- the state -------------------------------------------------------------------------------------------------
    def restore(self, objects: Mapping[str, Any]) -> Restored | None:
        """Set the newest state. All ranks of the epoch call it, those without a place on the mesh without objects."""
        self._has_restored = True
        point("elastic.restore")
        group: Any = self.group
        mine = objects_in(objects)
        for each in self.old:  # a copy of what is held of objects whose arrays are about to be set
            if any(x is y for x in mine for y in each.objects):
                each.copy_arrays()
        holdings = [*self.old, *self.copies.generations]
        disk = self.checkpoints.latest() if self.checkpoints is not None and group.index == 0 else None
        told = self._told(
            held=[(x.kind, x.step, x.epoch, x.index) for x in holdings], disk=disk, reached=self.reached,
            copied=any(x.is_confirmed for x in holdings),
        )  # fmt: skip
        disk, restored = told[0]["disk"], None
        above = -1 if disk is None else disk
        found, missing = newest_in_memory(group, holdings, [each["held"] for each in told], above)
        source = "beginning"
        if found is not None:
            source, restored = found.kind, self._load(found, objects, holdings)
        elif disk is not None and self.checkpoints is not None:
            source = "checkpoint"
            restored = self.checkpoints.resume(objects) if state.mesh is not None else None
        else:
            self._refuse_lost(told, missing)
        step = 0 if restored is None else restored.step
        if state.mesh is not None:
            _set_plain(objects, restored)
            self.live = Live(objects, expected_of(objects, state.distribution.group()), self.world.epoch)
            self.live.commit(step)
        point("elastic.restored")
        # When this returns, all ranks have their states. What is held for them is no longer needed, and newer steps
        # will be done again.
        step = max(each["step"] for each in self._told(step=step))
        self.old = []
        self.copies.generations = [each for each in self.copies.generations if each.step <= step]
        self._note(max(each["reached"] for each in told), step, source)
        return restored

    def _load(self, found: Found, objects: Mapping[str, Any], holdings: list[Holding]) -> Restored | None:
        """Set a state that the ranks hold in memory, or serve those that have objects."""
        if state.mesh is not None:
            return load_found(self.group, found, objects, holdings)
        exchange_values(self.group, found, [], holdings)
        return None

    def _told(self, **mine: Any) -> list[dict[str, Any]]:
        """The same of all ranks of the epoch."""
        return [json.loads(each) for each in self.group.exchange(json.dumps(mine).encode(), of="elastic.restore")]

    def _note(self, reached: int, step: int, source: str) -> None:
        """Add to the report what has followed from deaths, if there were any."""
        self.reached = step
        if self.died:
            mesh, seconds = self._sizes(), time.monotonic() - self._began
            replaced = tuple(rank for rank in sorted(self.died) if rank in self.group.ranks)
            joined = tuple(rank for rank in self.joined if rank not in replaced)
            self.report.recoveries.append(Recovery(self.died, reached, step, source, mesh, seconds, replaced, joined))
            self.died = {}

    def _refuse_lost(self, told: list[dict[str, Any]], missing: str) -> None:
        """Raise ElasticError unless the run may begin again: nothing was done, or nothing was to be kept yet."""
        reached, was_copied = max(each["reached"] for each in told), any(each["copied"] for each in told)
        if not reached or not self.died or self.checkpoints is not None or (self.every_copy and not was_copied):
            return
        who = ", ".join(map(str, sorted(self.died)))
        what = missing if missing else "the other ranks had begun the next step of the optimizer"
        raise ElasticError(
            f"elastic.run: rank {who} died after step {reached}, and no complete state is left: {what}\n"
            "  fix: elastic.run(..., copies=10), which keeps each part on two ranks\n"
            '  or:  elastic.run(..., directory="run", every=100), which saves checkpoints'
        )

    def begin(self, objects: Mapping[str, Any], step: int) -> None:
        """The state is that of a step. After a death each part is copied again, as its partner may have died."""
        assert self.live is not None
        self.live.commit(step)
        if self.every_copy and self.report.recoveries and state.distribution.group().size > 1:
            self.copies.make(objects, step, self.world.epoch)

    def commit(self, objects: Mapping[str, Any], step: int, is_last: bool) -> None:
        """A step is done on this rank."""
        point("elastic.commit")
        assert self.live is not None
        self.live.refuse_forgotten()
        self.live.commit(step)
        self.reached = max(self.reached, step)
        if self.every_copy and step % self.every_copy == 0 and state.distribution.group().size > 1:
            self.copies.make(objects, step, self.world.epoch)
        if self.checkpoints is not None and self.every is not None and (step % self.every == 0 or is_last):
            point("elastic.save")
            self.checkpoints.save(objects, step, overwrite=True)
            if is_last:
                self.checkpoints.wait()


class _Runs(threading.local):
    """The calls of `run` in the program of this thread, which is a rank."""

    count = 0


_runs = _Runs()


def _set_plain(objects: Mapping[str, Any], restored: Restored | None) -> None:
    """Replace plain values by those that were restored."""
    if restored is None or not isinstance(objects, MutableMapping):  # then it has none: see `Run.restore`
        return
    for name, x in restored.values.items():
        if name in objects and not has_state(objects[name]):
            objects[name] = _with_plain(objects[name], x)


def _with_plain(have: Any, restored: Any) -> Any:
    """A plain value that was restored; of a container that has objects, too, it is that with these in their places.

    Lists, mappings and arrays keep their identity, as the program may have them under other names.
    """
    if has_state(have):
        return have
    if not objects_of({"": have}):
        return _in_place(have, restored)
    if isinstance(have, Mapping):
        made = {**have, **{key: _with_plain(have.get(key), x) for key, x in restored.items()}}
        if isinstance(have, MutableMapping):
            have.update(made)
            return have
        return made
    items = [_with_plain(mine, x) if x is not None else mine for mine, x in zip(have, restored, strict=False)]
    if isinstance(have, list):
        have[:] = items
        return have
    return tuple(items)


def _in_place(have: Any, restored: Any) -> Any:
    """A plain value that was restored, as the object that is there now if it can be changed."""
    if isinstance(have, list) and isinstance(restored, list):
        have[:] = restored
        return have
    if isinstance(have, dict) and isinstance(restored, dict):
        found = {key: _in_place(have.get(key), x) for key, x in restored.items()}
        have.clear()
        have.update(found)
        return have
    if isinstance(have, np.ndarray) and isinstance(restored, np.ndarray) and have.flags.writeable and (
        (have.shape, have.dtype) == (restored.shape, restored.dtype)
    ):  # fmt: skip
        have[...] = restored
        return have
    return restored


class _Left(Exception):
    """Leaves the block of a mesh."""


def _is_death(error: BaseException) -> bool:
    """Whether an error comes from the death of another rank."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ElasticError):
        if isinstance(seen, RankFailed):
            return True
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return False


def _complete(sizes: Sizes, ranks: int) -> dict[str, int]:
    """The sizes of the mesh for a number of ranks."""
    given = sizes(ranks) if callable(sizes) else sizes
    if not isinstance(given, Mapping) or not given or any(
        isinstance(n, bool) or not isinstance(n, int) or n == 0 or n < -1 for n in given.values()
    ) or list(given.values()).count(-1) > 1:  # fmt: skip
        raise MeshError(
            f"elastic.run: mesh={given!r} was given for {ranks} ranks; needed: by axis a positive size, of which one "
            "may be -1"
        )
    known = math.prod(n for n in given.values() if n != -1)
    if known > ranks:
        raise ElasticError(
            f"elastic.run: the mesh {dict(given)} needs {known} ranks, and {ranks} are left\n"
            "  fix: mesh={..., 'dp': -1}, or a function of the number of ranks that gives a smaller mesh"
        )
    return {axis: ranks // known if n == -1 else n for axis, n in given.items()}
