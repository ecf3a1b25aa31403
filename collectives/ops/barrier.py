"""A barrier: it moves no value, and orders the ranks in time."""

from __future__ import annotations

from autograd.engine.recording import EFFECT
from autograd.engine.state import state

from ..mesh import current_mesh
from .arguments import AxisName

__all__ = ["barrier"]


def barrier(axis: AxisName) -> None:
    """Return once all ranks of an axis have come here.

    Its adjoint is a barrier: what it separates in time stays separated in a backward sweep (and in forward mode).
    Under `no_grad` it is not recorded. A program needs none to be correct where ranks share values by collectives
    only; what it orders is what happens outside, such as files and clocks.

    Parameters
    ----------
    axis : str or tuple of str
        The mesh axis, or several flattened into one.

    Notes
    -----
    ``log2 p`` empty messages a rank (dissemination: Hensgen, Finkel, Manber 1988), or what MPI has.

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
        if on.group.checking:
            on.group.agree(f"barrier(axis={'*'.join(on.names)!r}) {how}")
        on.group.barrier()

    meet("not recorded" if recording is None else "recorded")
    if recording is not None:
        again = lambda: meet("in a sweep")
        recording.communicates = True
        recording.append((EFFECT, None, (), (), (again, again), None, None))
