"""Parallel layers built on the differentiable collectives, and `verify`, which compares gradients with serial ones.

`RunLog` and `Progress` record a training run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import autograd

from .data.data_parallel import DataParallel
from .data.entry import enter
from .verify import Report, VerifyError, verify

if TYPE_CHECKING:  # `__getattr__` loads these names at first use
    from .runs import Progress, RunLog, plot_log, read_log

    __version__: str

_RUNS = ("Progress", "RunLog", "plot_log", "read_log")

__all__ = [
    "DataParallel", "Progress", "Report", "RunLog", "VerifyError", "enter", "plot_log", "read_log", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the version, and the names of `runs`, at first use."""
    if name == "__version__":
        return autograd.__version__
    if name not in _RUNS:
        raise AttributeError(f"module 'parallel' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(".runs", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
