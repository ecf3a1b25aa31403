"""Arrays in memory shared by the ranks of one host, which reduce them in place along a mesh axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from autograd.errors import DtypeError

from .mesh import Axis, current_mesh
from .transports.protocol import Array
from .transports.request import is_communicated, not_communicated
from .transports.shared_memory.communicator import SharedMemory

__all__ = ["all_reduce_in_place", "along", "empty"]


@contextmanager
def along(axis: str | Sequence[str]) -> Iterator[SharedMemory]:
    """Inside the block, collectives along an axis of the current mesh use shared memory.

    All ranks of the axis must enter the block.

    Parameters
    ----------
    axis : str or tuple of str

    Yields
    ------
    SharedMemory
        The communicator of the axis inside the block.

    Raises
    ------
    MeshError
        The ranks along the axis are on several hosts.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> from collectives import shared_arrays
    >>> def program():
    ...     with cc.Mesh(dp=2), shared_arrays.along("dp"):
    ...         return cc.all_reduce(ag.tensor([1.0]), "dp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[2.0], [2.0]]
    """
    mesh = current_mesh()
    on = mesh.axis(axis)
    before = on.group, mesh.prepared
    memory = _memory(on)
    on.group, mesh.prepared = memory, {}
    try:
        yield memory
    finally:
        on.group, mesh.prepared = before


def empty(shape: int | Sequence[int], dtype: Any, axis: str | Sequence[str]) -> Array:
    """An uninitialised array in shared memory, which the ranks of a mesh axis can reduce without a copy.

    Parameters
    ----------
    shape : int or tuple of int
        The shape on this rank; it may differ between ranks.
    dtype : dtype
        A native numeric or boolean dtype.
    axis : str or tuple of str
        The axis of the current mesh along which the array will be reduced. All its ranks call `empty`, in the same
        order.

    Returns
    -------
    array
        An ordinary NumPy array. Its memory is reused once all ranks have dropped it and its views.

    Raises
    ------
    MeshError
        The ranks along the axis are on several hosts.
    DtypeError
        The dtype cannot be communicated.

    Examples
    --------
    >>> import collectives as cc, numpy as np
    >>> from collectives import shared_arrays
    >>> with cc.Mesh(dp=1):
    ...     bucket = shared_arrays.empty(4, np.float32, "dp")
    ...     bucket[:] = 1
    ...     shared_arrays.all_reduce_in_place(bucket, "dp")
    array([1., 1., 1., 1.], dtype=float32)
    """
    if not is_communicated(np.dtype(dtype)):
        raise DtypeError(f"shared_arrays.empty: {not_communicated(np.dtype(dtype))}")
    return _memory(current_mesh().axis(axis)).empty(shape, dtype)


def all_reduce_in_place(x: Array, axis: str | Sequence[str]) -> Array:
    """Replace `x` by its sum over the ranks of an axis. It is not recorded; it is meant for gradient buckets.

    Parameters
    ----------
    x : array
        C-contiguous and writeable, with the same shape and dtype on all ranks. An array made by `empty`, or a view of
        one, is summed in place; any other array is copied to shared memory and back. It keeps its dtype, so sums of
        small integers wrap.
    axis : str or tuple of str
        The axis of the current mesh.

    Returns
    -------
    array
        `x` itself.

    Raises
    ------
    MeshError
        The ranks along the axis are on several hosts.

    Examples
    --------
    See `empty`.
    """
    return _memory(current_mesh().axis(axis)).all_reduce_in_place(x)


def _memory(axis: Axis) -> SharedMemory:
    """The shared memory of an axis, which keeps it."""
    memory = axis.using("shared")
    assert isinstance(memory, SharedMemory)
    return memory
