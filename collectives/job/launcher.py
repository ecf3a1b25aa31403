"""Reads the rank and the number of ranks from the environment that the launcher (mpiexec, srun, flux) sets.

A launcher that sets a rank but no number of ranks that is known here is not taken for none: MPI is asked. And where a
world over MPI is made, its number of ranks must be the launcher's (see `why_not_of_size`). So no launcher can start
many ranks that silently train alone.

``RINGTAPE_LAUNCHER=none`` makes a process ignore its launcher: it is a world of its own. A program that a launcher
starts many times for independent work, such as a search for hyperparameters, sets it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

__all__ = [
    "IGNORED", "PROCESS_ID", "RANK_VARIABLES", "ask", "launched", "launched_on_host", "launched_rank", "launched_size",
    "unknown_launcher", "why_not_alone", "why_not_of_size",
]  # fmt: skip

# (rank, number of ranks). PMIx has no variable for the number, but Slurm has one.
_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# The rank, from launchers that do not set the number of ranks.
_LONE_VARIABLES = ("PMIX_RANK", "PMI_RANK", "PMI_ID", "PALS_RANKID", "ALPS_APP_PE", "MPI_LOCALRANKID")
# The number of ranks on this host.
_ON_HOST_VARIABLES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")

RANK_VARIABLES = tuple(dict.fromkeys([rank for rank, _ in _VARIABLES] + list(_LONE_VARIABLES)))
"""The variables that contain the rank. They are equal in all processes of a rank, and differ between ranks."""

PROCESS_ID = "RINGTAPE_RANK_PID"
"""The variable in which a rank stores its process id, so that its child processes are not mistaken for ranks."""

IGNORED = "RINGTAPE_LAUNCHER"
"""The variable whose value ``none`` makes a process ignore its launcher."""

_asked: tuple[int, int] | None = None  # (rank, number of ranks) that MPI has answered, under an unknown launcher


def launched(environment: Mapping[str, str]) -> tuple[int, int]:
    """(rank, number of ranks); (0, 1) for a process that no launcher started, and for a child process of a rank."""
    if _is_alone(environment):
        return 0, 1
    for rank, size in _VARIABLES:
        if environment.get(rank, "").isdecimal() and environment.get(size, "").isdecimal():
            return int(environment[rank]), int(environment[size])
    return _asked or (0, 1)


def _is_alone(environment: Mapping[str, str]) -> bool:
    given = environment.get(IGNORED, "")
    if given not in ("", "none"):
        raise ValueError(f"{IGNORED}={given!r}: needed 'none', or nothing")
    return given == "none" or environment.get(PROCESS_ID, str(os.getpid())) != str(os.getpid())


def unknown_launcher(environment: Mapping[str, str]) -> str:
    """The variable that shows a launcher whose number of ranks is not known, as ``NAME=VALUE``; "" if there is none."""
    if _is_alone(environment):
        return ""
    for rank, size in _VARIABLES:
        if environment.get(rank, "").isdecimal() and environment.get(size, "").isdecimal():
            return ""
    name = next((name for name in _LONE_VARIABLES if name in environment), "")
    return f"{name}={environment[name]}" if name else ""


def ask(ask_mpi: Callable[[], tuple[int, int]]) -> None:
    """Take rank and number of ranks from MPI, if the launcher is unknown; raises the errors of importing mpi4py."""
    global _asked
    if _asked is None and unknown_launcher(os.environ):
        _asked = ask_mpi()


def why_not_alone() -> str:
    """Why this process must not be taken for the only rank of its job; "" if it may."""
    sign = unknown_launcher(os.environ)
    if not sign:
        return ""
    if _asked is None:
        return (
            f"a launcher has started this process ({sign}) without a number of ranks that is known here, and mpi4py, "
            "which would tell it, cannot be imported. Fix: install mpi4py and its MPI library; or, if every process is "
            f"to be a world of its own, {IGNORED}=none"
        )
    if _asked[1] == 1 and sign.partition("=")[2] not in ("", "0"):
        return f"a launcher has started several ranks ({sign}), but MPI's world has 1. {_FIX}"
    return ""


def why_not_of_size(size: int) -> str:
    """Why a world over MPI of `size` ranks is not what the launcher has started; "" if it is.

    An MPI library that does not fit the launcher makes every rank a world of its own.
    """
    started = launched_size()
    if started == size or _is_alone(os.environ):
        return ""
    return f"the launcher has started {started} rank{'s' * (started != 1)}, but MPI's world has {size}. {_FIX}"


_FIX = (
    "The MPI library that mpi4py loads does not fit the launcher. Fix: use the mpiexec that belongs to the library, or "
    "the launcher's option for it (srun --mpi=pmix or pmi2); "
    f"`python -m collectives doctor` shows both. {IGNORED}=none makes every process a world of its own"
)


def launched_size() -> int:
    """The number of ranks that the launcher has started: 1 without a launcher. Imports nothing."""
    return launched(os.environ)[1]


def launched_rank() -> int:
    """This process's rank among `launched_size`; 0 without a launcher."""
    return launched(os.environ)[0]


def launched_on_host(environment: Mapping[str, str], size: int) -> int:
    """The number of ranks on this host; `size` if the launcher does not set it."""
    return int(next((environment[name] for name in _ON_HOST_VARIABLES if environment.get(name, "").isdecimal()), size))
