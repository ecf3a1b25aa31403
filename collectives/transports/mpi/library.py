"""mpi4py, and how MPI moves and adds the elements of NumPy's dtypes.

This is the one file that imports mpi4py. The package loads it when it makes a world of several processes, not before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from autograd.errors import DtypeError

__all__ = ["KINDS", "MPI", "OPERATIONS", "Kind", "kind_of"]


class Kind(NamedTuple):
    """How MPI moves and adds the elements of a dtype: the datatypes of both, and the sum's operation."""

    move: Any
    add: Any
    operation: Any
    wide: np.dtype[Any] | None = None  # the dtype in which it is added, if not in itself


def _kinds() -> dict[np.dtype[Any], Kind]:
    datatypes = {char: MPI._typedict.get(char, MPI.DATATYPE_NULL) for char in "bBhHiIlLqQfdgFDG"}
    kinds = {
        np.dtype(char): Kind(datatype, datatype, MPI.SUM)
        for char, datatype in datatypes.items()
        if datatype != MPI.DATATYPE_NULL
    }
    kinds[np.dtype(np.bool_)] = Kind(MPI.C_BOOL, MPI.C_BOOL, MPI.LOR)  # as NumPy adds booleans
    # MPI has no sum of float16: it is taken in float32 and rounded once
    kinds[np.dtype(np.float16)] = Kind(MPI.UINT16_T, MPI.FLOAT, MPI.SUM, np.dtype(np.float32))
    return kinds


KINDS = _kinds()
OPERATIONS = {"maximum": MPI.MAX, "product": MPI.PROD}
"""The reductions that are no sums, by the name of the call."""


def kind_of(dtype: np.dtype[Any]) -> Kind:
    """The kind of a dtype; DtypeError for one that MPI has none for."""
    kind = KINDS.get(dtype)
    if kind is None:
        raise DtypeError(f"dtype {dtype} cannot be communicated; needed: a native numeric or boolean dtype")
    return kind
