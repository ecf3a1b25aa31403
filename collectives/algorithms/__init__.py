"""Collectives made of messages: algorithms that one can read and choose, what they cost, and a choice by itself.

``cc.all_reduce(x, "dp", algorithm="ring")`` chooses for one call and for its adjoint; ``cc.Mesh(dp=4,
algorithm="ring")`` or ``algorithm={"dp": "auto"}`` for all calls on a mesh or an axis. `table` has the names.
"""

from __future__ import annotations

from .costs import Cost, predict
from .counting import count_messages
from .fit import Fit
from .selected import Selected
from .table import OPERATIONS, algorithms_of, check_name

__all__ = ["OPERATIONS", "Cost", "Fit", "Selected", "algorithms_of", "check_name", "count_messages", "predict"]
