"""The differentiable operations, each declared beside its adjoint. Users call them through `autograd.numpy`.

The first use of a name of the package loads them all (`everything`). The package itself imports nothing, so that
threads that import its files at once never wait for each other in a circle.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .everything import *
    from .nn.activations import *  # type checkers do not read computed entries of __all__


def __getattr__(name: str) -> Any:
    """Load the operations at the first use of one, or a file of the package."""
    if name.startswith("__") and name != "__all__":  # the import system asks for them
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec(f"{__name__}.{name}") is not None:
        return import_module(f".{name}", __name__)
    found = getattr(import_module(".everything", __name__), name, None)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(".everything", __name__).__all__})
