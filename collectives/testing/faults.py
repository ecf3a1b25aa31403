"""Faults of ranks, injected at chosen operations, to test how a program of several ranks fails and recovers.

========================  ==========================================================================================
fault                     effect on its rank
========================  ==========================================================================================
``Kill(2, at=17)``        the rank is killed before its 17th operation: by SIGKILL, or on threads by an exception
``Stop(2, at=17)``        it stops for good without ending: SIGSTOP, or on threads a wait until the job ends
``Delay(2, at=17)``       it sleeps first, for `seconds`
``Drop(2, at=17)``        its message is lost; of a collective, its contribution, and it waits as the others do
``Corrupt(2, at=17)``     some `bits` of the result of the call, or of the message that it sends, are inverted
========================  ==========================================================================================

An *operation* of a rank is a call of a communicator, blocking or started, the first wait for a started one (``wait``),
an access to a window (``window.get``), or a named point (`point`). They are counted from 1 on each rank, all of them or
with ``of=`` those of one name. A collective counts once, however many messages its algorithm sends. What ringtape
sends to compare the ranks (``agree``, ``exchange``) counts by its name only, so that the number of an operation does
not depend on the check mode. `Drop` and `Corrupt` change a call that moves data: if the operation at which they are due
is none, they change the rank's next one.

`injected` injects a plan in a block. The environment variable ``RINGTAPE_FAULTS`` does so in a program that need not be
changed: ``RINGTAPE_FAULTS="kill:2@17" mpiexec -n 4 python train.py``. Ranks that are processes print each fault when it
happens. docs/guides/faults.md shows what each fault makes a job do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autograd.errors import MeshError, RankFailed, warn

from ..faults.injection import Injection, attach, is_active
from ..faults.plan import KINDS, Corrupt, Delay, Drop, Fault, Kill, Plan, Stop, plan
from ..faults.points import point
from ..job.failure import process
from ..transports.job import Death
from ..world import is_rank_thread, world

__all__ = [
    "Corrupt", "Delay", "Drop", "Fault", "Injection", "KINDS", "Kill", "Plan", "Stop", "injected", "plan", "point",
]  # fmt: skip


@contextmanager
def injected(*plan: Any) -> Iterator[Injection]:
    """Inject faults inside a block.

    - In a program of one process, into the ranks of the worlds of threads that the block runs (`cc.run`). Their counts
      go on from one run to the next, and each fault happens once.
    - In the program of a rank, on threads or under mpiexec, into the calls of this rank, on the thread that opens the
      block. All ranks give the same plan; each carries out its own faults.

    At the end of the block a `RuntimeWarning` names the faults that did not happen although their rank's program has
    ended normally, and how many operations it has made.

    Parameters
    ----------
    *plan : Plan, Fault, or str
        As for `Plan`.

    Yields
    ------
    Injection
        `happened` lists the faults that have happened, and `counts` the operations of each rank by name.

    Raises
    ------
    RankFailed
        The rank of a program of one process was killed by a fault outside `cc.run`, where its own error would end the
        process.
    MeshError
        A block inside another one, or a rank that the world does not have.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> from collectives.testing import faults
    >>> def program():
    ...     group = cc.world()
    ...     for _ in range(3):
    ...         total = group.all_reduce(np.ones(4))
    ...     return total.tolist()
    >>> with faults.injected(faults.Corrupt(1, at=3, bits=2)) as injection:
    ...     found = cc.run(program, ranks=2)
    >>> found[0], found[0] == found[1]
    ([2.0, 2.0, 2.0, 2.0], False)
    >>> injection.counts[1]["all_reduce"]
    3
    """
    if is_active():
        raise MeshError("injected: a block of this thread is open; needed: one block with all faults: injected(a, b)")
    injection = Injection(Plan(*plan))
    is_process = process.size > 1
    is_rank = is_process or (is_rank_thread() and threading.current_thread() is not threading.main_thread())
    if is_process:
        injection.plan.check_ranks(process.size)
    rank = world().index if is_rank_thread() else process.rank
    try:
        with attach(injection, rank, world, is_process):
            yield injection
    except Death as death:
        if is_rank:
            raise
        raise RankFailed(f"rank {rank} of 1 {death}") from death
    for text in injection.unreached([rank] if is_rank else None):
        warn(text, RuntimeWarning)
