"""Calls of user-defined collectives: `apply`, and `call`, which makes the call for an axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, MeshError

from ..declaration.call import Call
from ..declaration.collective import Collective
from ..mesh import current_mesh
from .arguments import to_tensor

__all__ = ["apply", "call"]


def call(axis: str | Sequence[str], **fields: Any) -> Call:
    """The parameters of a collective other than its operand, for an axis of the current mesh.

    Parameters
    ----------
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    **fields
        Fields of `Call`, such as ``to=``, ``root=``, ``dim=`` and ``extents=``, as the collective's rules read them.

    Returns
    -------
    Call

    Raises
    ------
    MeshError
        `Call` has no such field, or no mesh is current.

    Examples
    --------
    >>> import collectives as cc
    >>> with cc.Mesh(dp=1):
    ...     cc.call("dp", to=cc.R).axes
    ('dp',)
    """
    known = [f.name for f in dataclasses.fields(Call) if f.init and f.name not in ("axes", "group")]
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise MeshError(f"call({axis!r}): {unknown[0]!r} was given; needed: one of {', '.join(known)}")
    on = current_mesh().axis(axis)
    return Call(on.names, on.group, **fields)


def apply(collective: Collective, x: Any, axis: str | Sequence[str], **fields: Any) -> Tensor:
    """Call a collective on a Tensor or a plain array.

    Formula, adjoint, bytes and messages are those of the collective.

    Parameters
    ----------
    collective : Collective
    x : Tensor or array
        A plain array is V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    **fields
        As in `call`.

    Returns
    -------
    Tensor
        With the labels that the collective declares.

    Raises
    ------
    LayoutError
        The collective does not take the labels of `x`.
    MeshError
        As in `call`.

    Examples
    --------
    >>> import collectives as cc
    >>> double = cc.Collective("double (example)", takes=(cc.V,))
    >>> @double.forward
    ... def _(x, call):
    ...     return x * 2.0
    >>> @double.adjoint
    ... def _(ct, call):
    ...     return double(ct, call)
    >>> with cc.Mesh(dp=1):
    ...     print(cc.apply(double, [1.0, 2.0], "dp"))
    Tensor([2., 4.], layout={dp: V})
    """
    if not isinstance(collective, Collective):
        raise ArgumentError(f"apply: {collective!r} was given; needed: a Collective")
    result: Tensor = collective(to_tensor(x, collective.name), call(axis, **fields))
    return result
