"""The end of a job that a scheduler asks for: all ranks save the same step, and exit with a code that says so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from autograd.engine.state import state
from autograd.errors import OptionError, typed_errors

__all__ = ["REQUEUE", "Preemption"]

REQUEUE = 75
"""The exit code of a job that was asked to end, and has saved its state: start it again. (EX_TEMPFAIL of sysexits.h)"""

_asked = threading.Event()


@typed_errors
class Preemption:
    """Tells all ranks, at the same step, that the job has been asked to end.

    In its block this process does not end by the signals, but remembers them. `asked` tells all ranks whether any of
    them has got one; so they save the same step. Then `exit` ends the program with the code `REQUEUE`.

    Parameters
    ----------
    signals : sequence of signal.Signals
        By default SIGTERM, which schedulers send before they kill a job, and SIGUSR1, as ``#SBATCH --signal=USR1@60``
        asks Slurm to send.
    every : int
        `asked` sends only in every so many calls, since it takes a message of one byte to each rank. In the others it
        is False.

    Raises
    ------
    OptionError
        `every` is less than 1.

    Notes
    -----
    ``mpiexec`` of MPICH passes SIGTERM and SIGUSR1 on to its ranks, and exits with their code. That of Open MPI passes
    SIGUSR1 on, but at SIGTERM it kills the ranks within a second: there `parallel.launch` sends SIGUSR1 in its place.
    Signals are received in the main thread. So a program whose ranks are threads makes the object outside of `run`.

    Examples
    --------
    >>> from parallel.checkpoint import Preemption
    >>> with Preemption() as preemption:
    ...     for step in range(3):
    ...         if preemption.asked():  # save, and preemption.exit()
    ...             break
    >>> step
    2
    """

    def __init__(
        self, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1), *, every: int = 1
    ):
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise OptionError(f"Preemption: every={every!r} was given; needed: a whole number of at least 1")
        self.signals, self.every = tuple(signals), every
        self._calls = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Preemption:
        if threading.current_thread() is threading.main_thread():
            _asked.clear()
            for each in self.signals:
                self._before[each] = signal.signal(each, lambda number, frame: _asked.set())
        return self

    def __exit__(self, *exception: Any) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        self._before.clear()

    def asked(self) -> bool:
        """Whether any rank has got a signal. All ranks of the mesh call it, once a step."""
        self._calls += 1
        if self._calls % self.every:
            return False
        mine = _asked.is_set()
        group = state.distribution.group()
        return mine if group.size == 1 else b"1" in group.exchange(b"1" if mine else b"0", of="Preemption.asked")

    def exit(self) -> NoReturn:
        """End the program with the code `REQUEUE`. All ranks call it, after the save."""
        raise SystemExit(REQUEUE)
