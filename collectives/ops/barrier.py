"""`barrier`: wait for all ranks of an axis, without moving a value."""

from __future__ import annotations

from autograd.engine.recording import EFFECT
from autograd.engine.state import state

from ..mesh import current_mesh
from .arguments import AxisName

__all__ = ["barrier"]


def barrier(axis: AxisName) -> None:
    """Return once all ranks of an axis have called it.

    Its adjoint is a barrier, so a backward sweep (and forward mode) keeps the order in time. Under `no_grad` it is not
    recorded. A program whose ranks share values only by collectives needs no barrier to be correct; a barrier orders
    effects outside the program, such as files and clocks.

    Parameters
    ----------
    axis : str or tuple of str
        The mesh axis, or several flattened into one.

    Raises
    ------
    MeshError
        No mesh is current, or it has no such axis.

    Notes
    -----
    ``log2 p`` empty messages per rank (dissemination: Hensgen, Finkel, Manber 1988), or MPI's own barrier.

    Examples
    --------
    >>> import collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=3):
    ...         cc.barrier("dp")
    ...         return cc.world().rank
    >>> cc.run(program, ranks=3)
    [0, 1, 2]
    """
    on = current_mesh().axis(axis)
    recording = state.recording

    def meet(how: str) -> None:
        if on.group.size == 1:
            return
        on.group.agree(lambda: f"barrier(axis={'*'.join(on.names)!r}) {how}")
        on.group.barrier()

    meet("not recorded" if recording is None else "recorded")
    if recording is not None:
        again = lambda: meet("in a sweep")
        recording.communicates = recording.communicates or True
        recording.append((EFFECT, None, (), (), (again, again), None, None))
