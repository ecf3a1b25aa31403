"""``numpy.random``, unchanged. For random numbers that do not depend on the number of ranks use `autograd.random`."""

from __future__ import annotations

from typing import Any

import numpy.random as _random

globals().update({name: getattr(_random, name) for name in _random.__all__})


def __getattr__(name: str) -> Any:
    """Return names of numpy.random outside ``__all__``."""
    return getattr(_random, name)
