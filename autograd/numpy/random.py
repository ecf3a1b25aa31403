"""``numpy.random``, unchanged. For random numbers that do not depend on the number of ranks use `autograd.random`."""

from __future__ import annotations

import sys as _sys
import types as _types
from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


class _Module(_types.ModuleType):
    """Loads numpy.random, which takes milliseconds, when a name is looked up; a class, see `autograd.numpy`."""

    @property
    def __all__(self) -> list[str]:
        return list(_import("numpy.random").__all__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for them
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(_import("numpy.random"), name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})


_sys.modules[__name__].__class__ = _Module
