"""Collective algorithms built from messages, models of their cost, and automatic selection.

``cc.all_reduce(x, "dp", algorithm="ring")`` selects an algorithm for one call and its adjoint. ``cc.Mesh(dp=4,
algorithm="ring")`` selects it for all calls on a mesh, and ``algorithm={"dp": "auto"}`` for all calls on one axis. The
names are listed in `table`. A program that selects none loads none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `__getattr__` loads these names at first use
    from .costs import Cost, predict
    from .counting import count_messages
    from .fit import Fit
    from .selected import Selected
    from .table import OPERATIONS, algorithms_of, check_name

_HOME = {
    "Cost": "costs", "predict": "costs", "count_messages": "counting", "Fit": "fit", "Selected": "selected",
    "OPERATIONS": "table", "algorithms_of": "table", "check_name": "table",
}  # fmt: skip

__all__ = ["OPERATIONS", "Cost", "Fit", "Selected", "algorithms_of", "check_name", "count_messages", "predict"]


def __getattr__(name: str) -> Any:
    """Load a name at first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
