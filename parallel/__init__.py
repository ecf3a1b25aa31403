"""Parallel layers built on the differentiable collectives, and `verify`, which compares gradients with serial ones.

`RunLog` and `Progress` record a training run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import autograd

from .data.data_parallel import DataParallel
from .data.entry import enter
from .data.local_sgd import DiLoCo, LocalSGD
from .data.memory import Memory, memory_of
from .data.parameter_server import ParameterServer
from .verify import Report, VerifyError, verify

if TYPE_CHECKING:  # `__getattr__` loads these names at first use
    from .report import StepReport
    from .runs import Progress, RunLog, plot_log, read_log

    __version__: str

_LATER = {"Progress": "runs", "RunLog": "runs", "StepReport": "report", "plot_log": "runs", "read_log": "runs"}

__all__ = [
    "DataParallel", "DiLoCo", "LocalSGD", "Memory", "ParameterServer", "Progress", "Report", "RunLog", "StepReport",
    "VerifyError", "enter", "memory_of", "plot_log", "read_log", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the version, and the names of `report` and `runs`, at first use."""
    if name == "__version__":
        return autograd.__version__
    if name not in _LATER:
        raise AttributeError(f"module 'parallel' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
