"""`from_local`: make a Tensor from a plain array, with a label for every axis of the mesh.

``x.local`` gives the plain array of a Tensor, without a layout. The way back must name every axis, because an omitted
axis could go unnoticed: a gradient that is summed over only one of two axes still has the right shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autograd.engine.parameter import Leaf, tensor
from autograd.engine.tensor import TENSORS
from autograd.errors import ArgumentError, LayoutError, call_site
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
    """A leaf made from this rank's part, with a label for every axis of the mesh.

    All ranks of the mesh must call it. Copies that a label declares equal (R or I) are compared, unless the check mode
    is ``off`` (see `check`).

    Parameters
    ----------
    array : array
        This rank's part, from ``x.local`` or computed from it. It has no history, so no gradient flows back.
    layout : mapping from axis to label
        A label for every axis. ``dict(y.layout)`` gives the layout of another Tensor y.
    requires_grad, global_shape, name
        As in `autograd.tensor`.

    Returns
    -------
    Leaf
        A Tensor with the shape and dtype of `array`.

    Raises
    ------
    LayoutError
        An axis has no label, or `array` is a Tensor, which already has a layout.
    ReplicaMismatch
        Copies that a label declares equal differ. Raised on every rank of the axis.

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
    if not isinstance(layout, Mapping):
        raise ArgumentError(f"from_local: layout={layout!r} was given; needed: a label for every axis" + call_site())
    missing = [axis for axis in mesh.names if axis not in layout]
    if missing:
        given = "{" + ", ".join(f"{a}: {x!r}" for a, x in layout.items()) + "}"
        needed = ", ".join(f"{axis!r}: ..." for axis in missing)
        raise LayoutError(
            f"from_local({describe(array, getattr(array, 'shape', ()), None)}, layout={given})\n  axis "
            f"{missing[0]!r}: no label is given for it. A plain array does not show along which axes it differs or is "
            f"an addend; needed: a label on each of {', '.join(map(repr, mesh.names))}\n  fix: "
            f"layout={{..., {needed}}}: V for separate values, P for addends, R for equal copies"
            + call_site()
        )
    x = tensor(array, layout, requires_grad=requires_grad, global_shape=global_shape, name=name)
    if check_mode() != "off":  # without any copies too: ranks with different labels must get an error
        mesh.check_replicas([x])
    return x
