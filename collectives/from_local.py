"""`from_local`: a Tensor made of a plain array, with a label stated for every axis of the mesh.

``x.local`` gives the plain array of a Tensor, which has no layout. An axis that is not named on the way back would be
lost without notice: a gradient summed over one axis of two still looks like a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autograd.engine.parameter import Leaf, tensor
from autograd.engine.tensor import TENSORS
from autograd.errors import LayoutError, call_site
from autograd.layouts.layout import Label
from autograd.layouts.messages import describe

from .checks.modes import check_mode
from .mesh import current_mesh

__all__ = ["from_local"]


def from_local(
    array: Any,
    layout: Mapping[str, Label],
    *,
    requires_grad: bool = False,
    global_shape: Sequence[int] | None = None,
    name: str = "",
) -> Leaf:
    """A leaf of this rank's part, with a stated layout on every axis of the mesh.

    Called by all ranks of the mesh. Where a label says that copies are equal (R or I) they are compared, unless
    comparing is off (see `check`).

    Parameters
    ----------
    array : array
        This rank's part, as ``x.local`` gave it or as computed from that. It has no history: nothing flows back.
    layout : mapping from axis to label
        Names every axis; ``dict(y.layout)`` is that of another Tensor.
    requires_grad, global_shape, name
        As in `autograd.tensor`.

    Raises
    ------
    LayoutError
        An axis is not named, or `array` is a Tensor, which has a layout.
    ReplicaMismatch
        On every rank of the axis: copies that were said to be equal differ.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> with cc.Mesh(dp=1, tp=1):
    ...     x = ag.tensor([1.0, 4.0], layout={"dp": cc.V, "tp": cc.R})
    ...     root = x.local ** 0.5
    ...     y = cc.from_local(root, {"dp": cc.V, "tp": cc.R})
    >>> y
    Leaf([1., 2.], layout={dp: V, tp: R})
    """
    mesh = current_mesh()
    if array.__class__ in TENSORS:
        raise LayoutError(
            f"from_local was given a Tensor {describe(array.array, array.array.shape, array.layout)}, which has a "
            "layout; needed: a plain array\n  fix: cast(x, axis, to=...), or from_local(x.local, ...) under no_grad"
            + call_site()
        )
    missing = [axis for axis in mesh.names if axis not in layout]
    if missing:
        given = "{" + ", ".join(f"{a}: {x!r}" for a, x in layout.items()) + "}"
        asked = ", ".join(f"{axis!r}: ..." for axis in missing)
        raise LayoutError(
            f"from_local({describe(array, getattr(array, 'shape', ()), None)}, layout={given})\n  axis "
            f"{missing[0]!r}: nothing is said about it. A plain array does not know on which axes it differs or is "
            f"an addend; needed: a label on each of {', '.join(map(repr, mesh.names))}\n  fix: "
            f"layout={{..., {asked}}}: V where the ranks hold their own, P where addends, R where equal copies"
            + call_site()
        )
    x = tensor(array, layout, requires_grad=requires_grad, global_shape=global_shape, name=name)
    if check_mode() != "off":  # where nothing is equal too: ranks that say different things are told so
        mesh.check_replicas([x])
    return x
