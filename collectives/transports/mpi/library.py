"""Imports mpi4py, and maps NumPy's dtypes to MPI datatypes and operations.

Only this file of the transport imports mpi4py. It is loaded when a world of several processes is made, not before.

Where a host has more ranks than cores, MPICH's waits are told to give up the core, as those of Open MPI do by default.
Otherwise a waiting rank keeps it from the rank that it waits for: small calls of four ranks on two busy cores took
several times as long.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from autograd.errors import MeshError

from ...job.launcher import launched_by, launched_on_host, why_no_library, why_not_of_library


def _imported() -> Any:
    """Import ``mpi4py.MPI``, which initialises MPI unless the program has done so.

    Where the launcher is known it is compared with the library first. A library of another kind would make each rank a
    job of its own, or end the process.

    Raises
    ------
    MeshError
        There is no mpi4py or no MPI library, or the library does not fit the launcher.
    """
    try:
        import mpi4py

        given = mpi4py.rc.initialize, mpi4py.rc.finalize
        is_compared = given[0] and launched_by(os.environ) != ""
        if is_compared:
            mpi4py.rc.initialize, mpi4py.rc.finalize = False, given[1] is not False
        try:
            from mpi4py import MPI
        finally:
            mpi4py.rc.initialize, mpi4py.rc.finalize = given
    except (ImportError, RuntimeError) as error:
        raise MeshError(why_no_library(error)) from None
    if is_compared and not MPI.Is_initialized():
        if problem := why_not_of_library(*MPI.get_vendor(), MPI.Get_library_version()):
            raise MeshError(problem)
        if mpi4py.rc.threads:
            MPI.Init_thread(getattr(MPI, f"THREAD_{mpi4py.rc.thread_level.upper()}"))
        else:
            MPI.Init()
    return MPI


_YIELD = "MPIR_CVAR_ENABLE_HEAVY_YIELD"  # MPICH reads it when it is initialised, which the import of mpi4py does
_is_crowded = _YIELD not in os.environ and launched_on_host(os.environ, 0) > (os.cpu_count() or 1)
if _is_crowded:
    os.environ[_YIELD] = "1"
MPI = _imported()  # after the variable that MPICH reads now

if _is_crowded:
    del os.environ[_YIELD]  # a job that this rank starts decides for itself

__all__ = ["KINDS", "MPI", "Kind"]


class Kind(NamedTuple):
    """The MPI datatype of a dtype, and its MPI operations by the name of the reduction."""

    datatype: Any
    operations: dict[str, Any]


def _kinds() -> dict[np.dtype[Any], Kind]:
    datatypes = {char: MPI._typedict.get(char, MPI.DATATYPE_NULL) for char in "bBhHiIlLqQfdgFDG"}
    kinds = {
        np.dtype(char): Kind(datatype, {"sum": MPI.SUM, "max": MPI.MAX, "prod": MPI.PROD})
        for char, datatype in datatypes.items()
        if datatype != MPI.DATATYPE_NULL
    }
    # as NumPy reduces booleans
    kinds[np.dtype(np.bool_)] = Kind(MPI.C_BOOL, {"sum": MPI.LOR, "max": MPI.LOR, "prod": MPI.LAND})
    # MPI has no float16: its bits are sent as integers, and the protocol converts it to float32 for reductions
    kinds[np.dtype(np.float16)] = Kind(MPI.UINT16_T, {})
    return kinds


KINDS = _kinds()
"""The `Kind` of every dtype that can be communicated."""
