"""mpi4py, and how MPI moves and reduces the elements of NumPy's dtypes.

This is the one file that imports mpi4py. The package loads it when it makes a world of several processes, not before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

__all__ = ["KINDS", "MPI", "Kind"]


class Kind(NamedTuple):
    """How MPI moves the elements of a dtype, and its operations, by the name of the reduction."""

    datatype: Any
    operations: dict[str, Any]


def _kinds() -> dict[np.dtype[Any], Kind]:
    datatypes = {char: MPI._typedict.get(char, MPI.DATATYPE_NULL) for char in "bBhHiIlLqQfdgFDG"}
    kinds = {
        np.dtype(char): Kind(datatype, {"sum": MPI.SUM, "max": MPI.MAX, "prod": MPI.PROD})
        for char, datatype in datatypes.items()
        if datatype != MPI.DATATYPE_NULL
    }
    # as NumPy does with booleans
    kinds[np.dtype(np.bool_)] = Kind(MPI.C_BOOL, {"sum": MPI.LOR, "max": MPI.LOR, "prod": MPI.LAND})
    # MPI has no float16: it is moved as bytes are, and added in float32 (by the protocol)
    kinds[np.dtype(np.float16)] = Kind(MPI.UINT16_T, {})
    return kinds


KINDS = _kinds()
"""Every dtype that can be communicated."""
