"""Runs that go on: without the ranks that die, and with replicas that have become different repaired.

===================================  =================================================================================
``elastic.run(program, mesh=...)``   calls a training program, and again on the ranks that are left after a death
``Run.restore(objects)``             sets the newest state that these ranks have together
``Run.steps(n)``                     iterates over the steps that are left, and commits each
``explain(objects)``                 what copies and a restore send, for any number of ranks
``Replicas(objects)``                compares the copies of one value, and repairs them from the majority
===================================  =================================================================================
"""

from __future__ import annotations

from ..checkpoint.replicas import Difference
from .explanation import ElasticCost, explain
from .loop import Run, run
from .replicas import Replicas
from .report import ElasticError, ElasticReport, Recovery

__all__ = [
    "Difference", "ElasticCost", "ElasticError", "ElasticReport", "Recovery", "Replicas", "Run", "explain", "run",
]  # fmt: skip
