"""The status of a job that has failed, under a launcher that disregards signals.

Open MPI's mpiexec under ``--with-ft ulfm`` returns a status that a rank has left with, if it is not 0. Signals and
``MPI_Abort`` do not count: it returns 0 if all ranks were killed. So a rank that ends the job leaves with a status, and
the launcher is ended where no rank can do so.

The supervisor imports this file, which imports only the standard library.
"""

from __future__ import annotations

import os
import signal

__all__ = ["disregards_signals", "end_launcher"]

_LAUNCHERS = ("prterun", "mpiexec", "mpirun")  # each is of one job; `prted` may serve others, too


def disregards_signals() -> bool:
    """Whether the launcher of this rank goes on after the death of a rank: Open MPI's under ``--with-ft ulfm``."""
    given = os.environ.get("OMPI_MCA_mpi_ft_enable", "0")  # noqa: SIM112 - Open MPI's name
    return given.lower() not in ("", "0", "false", "no", "disabled")


def end_launcher(pid: int, number: int = signal.SIGTERM) -> bool:
    """End the launcher of a job that has failed, if it disregards signals. It then ends all ranks, and returns 1.

    Returns
    -------
    bool
        Whether it was sent the signal.
    """
    if not disregards_signals():
        return False
    try:
        with open(f"/proc/{pid}/comm") as file:
            is_launcher = file.read().strip() in _LAUNCHERS
        if is_launcher:
            os.kill(pid, number)
        return is_launcher
    except OSError:  # it has ended, or is not of this user
        return False
