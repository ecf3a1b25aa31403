"""Differentiable functions of SciPy: special functions, statistics, linear algebra, convolution, an ODE solver.

SciPy is an optional dependency, ``pip install 'ringtape[scipy]'``. It is loaded when a submodule is imported.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["integrate", "linalg", "misc", "signal", "special", "stats"]  # imported at first use


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """The names of the module, with those that are loaded at first use, for completion."""
    return sorted({*globals(), *__all__})
