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

from ...job.launcher import launched_on_host

_YIELD = "MPIR_CVAR_ENABLE_HEAVY_YIELD"  # MPICH reads it when it is initialised, which the import of mpi4py does
_is_crowded = _YIELD not in os.environ and launched_on_host(os.environ, 0) > (os.cpu_count() or 1)
if _is_crowded:
    os.environ[_YIELD] = "1"
from mpi4py import MPI  # noqa: E402 - after the variable that MPICH reads now

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
