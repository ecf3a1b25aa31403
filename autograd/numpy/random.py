"""``numpy.random`` under the name that programs look for. `autograd.random` is the one that knows ranks."""

from __future__ import annotations

from typing import Any

import numpy.random as _random

globals().update({name: getattr(_random, name) for name in _random.__all__})


def __getattr__(name: str) -> Any:
    """Names that NumPy has and does not list."""
    return getattr(_random, name)
