"""Reads the rank and the number of ranks from the environment that the launcher (mpiexec, Slurm) sets."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["PROCESS_ID", "launched", "launched_on_host", "launched_rank", "launched_size"]

# (rank, number of ranks). PMIx has no variable for the size, but Slurm has one.
_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)
# The number of ranks on this host.
_ON_HOST_VARIABLES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")

PROCESS_ID = "RINGTAPE_RANK_PID"
"""The variable in which a rank stores its process id, so that its child processes are not mistaken for ranks."""


def launched(environment: Mapping[str, str]) -> tuple[int, int]:
    """(rank, number of ranks); (0, 1) for a process that no launcher started, and for a child process of a rank."""
    if environment.get(PROCESS_ID, str(os.getpid())) != str(os.getpid()):
        return 0, 1
    for rank, size in _VARIABLES:
        if environment.get(rank, "").isdecimal() and environment.get(size, "").isdecimal():
            return int(environment[rank]), int(environment[size])
    return 0, 1


def launched_size() -> int:
    """The number of ranks that mpiexec started: 1 outside mpiexec. Imports nothing."""
    return launched(os.environ)[1]


def launched_rank() -> int:
    """This process's rank among `launched_size`; 0 outside mpiexec."""
    return launched(os.environ)[0]


def launched_on_host(environment: Mapping[str, str], size: int) -> int:
    """The number of ranks on this host; `size` if the launcher does not set it."""
    return int(next((environment[name] for name in _ON_HOST_VARIABLES if environment.get(name, "").isdecimal()), size))
