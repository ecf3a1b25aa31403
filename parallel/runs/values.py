"""Plain values of what a program records, which must be those of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS
from autograd.errors import ArgumentError, DtypeError, LayoutError
from autograd.layouts.layout import Label, P, Rooted, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.rank_values import plain, rank_axes
from collectives.world import world

__all__ = ["plain_value", "writes"]


def writes() -> bool:
    """Whether this rank writes files and displays: rank 0 of the world."""
    return int(world().index) == 0


def plain_value(x: Any, name: str, caller: str) -> Any:
    """A number, text, list or dictionary in place of Tensors and arrays.

    Raises
    ------
    LayoutError
        A value is an addend, a part, or another one on each rank.
    ArgumentError, DtypeError
        A value is of another kind.
    """
    if x.__class__ in TENSORS:
        _require_one_value(x, name, caller)
        x = to_host(x.array)
    elif rank_axes(x):
        axis = sorted(rank_axes(x))[0]
        raise LayoutError(
            f"{caller}({name}={x!r})\n  axis {axis!r}: the number depends on the rank, and one rank records it\n"
            f"  fix: int({name}) if that of rank 0 is meant, or the number of all ranks, as x.global_shape"
        )
    x = plain(x)
    if isinstance(x, np.ndarray | np.generic):
        if x.dtype.kind not in "biufU":
            raise DtypeError(f"{caller}: {name} has dtype {x.dtype}; needed: real numbers")
        return x.tolist()
    if isinstance(x, Mapping):
        return {str(key): plain_value(value, f"{name}[{key!r}]", caller) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [plain_value(value, f"{name}[{i}]", caller) for i, value in enumerate(x)]
    if x is None or isinstance(x, bool | int | float | str):
        return x
    raise ArgumentError(
        f"{caller}: {name} is a {type(x).__name__}; needed: numbers, texts, arrays, Tensors, lists and dictionaries"
    )


def _require_one_value(x: Any, name: str, caller: str) -> None:
    layout = x.layout if x.layout is not None or state.grid is None else x.labelled(state.grid)
    for axis, label in () if layout is None else layout.items():
        fault, fix = _fault(label, name, axis)
        if fault:
            raise LayoutError(
                f"{caller}({name}: {describe(x.array, x.array.shape, layout)})\n  axis {axis!r}: it is {label.word}: "
                f"{fault}, and one rank records it\n  fix: {fix}"
            )


def _fault(label: Label, name: str, axis: str) -> tuple[str, str]:
    """The text for a rank's piece of a value that is not the same on all ranks, and the fix; or two empty texts."""
    if label is P:
        return "this rank has an addend of the sum", f"cc.all_reduce({name}, {axis!r}, to=I)"
    if label is V:
        return (
            "each rank has a value of its own",
            f"cc.all_reduce({name}, {axis!r}, to=I) for the sum over the ranks, as of the addends of a loss\n"
            f"  or:  cc.mean({name}, {axis!r}) for the mean over the ranks",
        )
    if type(label) is Shard:
        return "this rank has a part", f"cc.all_gather({name}, {axis!r}), or record its sum or norm over all ranks"
    if type(label) is Rooted:
        return f"rank {label.root} has it", f"cc.broadcast({name}, {axis!r}, {label.root}, to=I)"
    return "", ""
