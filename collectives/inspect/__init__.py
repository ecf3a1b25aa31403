"""Inspect communication: plans, dry runs, records and timelines.

============  ====================================================================
`plan`        what ``tape.plan()`` returns: `plan.Plan`
`graph`       the operations and communications of a plan
`dry_run`     ``cc.dry``: the traffic of a program on any number of ranks
`record`      the records of operations; `recorder`: ``cc.recording_operations``
`timeline`    ``cc.timeline``: when each rank computed, communicated and waited
`topology`    ``cc.Topology``: the links between hosts, for predicted times
`observing`   observers of the calls of this rank
============  ====================================================================

The modules are loaded at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["dry_run", "graph", "observing", "plan", "record", "recorder", "timeline", "topology"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names of the package, with the modules that are loaded at first use, for completion."""
    return sorted({*globals(), *__all__})
