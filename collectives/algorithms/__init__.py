"""Collective algorithms built from messages, models of their cost, and automatic selection.

``cc.all_reduce(x, "dp", algorithm="ring")`` selects an algorithm for one call and its adjoint. ``cc.Mesh(dp=4,
algorithm="ring")`` selects it for all calls on a mesh, and ``algorithm={"dp": "auto"}`` for all calls on one axis. The
names are listed in `table`.
"""

from __future__ import annotations

from .costs import Cost, predict
from .counting import count_messages
from .fit import Fit
from .selected import Selected
from .table import OPERATIONS, algorithms_of, check_name

__all__ = ["OPERATIONS", "Cost", "Fit", "Selected", "algorithms_of", "check_name", "count_messages", "predict"]
