"""``numpy.random``, unchanged. For random numbers that do not depend on the number of ranks use `autograd.random`."""

from __future__ import annotations

import sys as _sys
import types as _types
from typing import TYPE_CHECKING, Any

import numpy.random as _random

globals().update({name: getattr(_random, name) for name in _random.__all__})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


class _Module(_types.ModuleType):
    """Finds names of numpy.random outside ``__all__``; a class, see `autograd.numpy`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_random, name)


_sys.modules[__name__].__class__ = _Module
