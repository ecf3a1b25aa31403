"""Arrays of any device, arrays without values, and read-only views.

This package is the only place that knows CuPy. The engine is written against NumPy's functions, which pass an array of
another library to that library (``__array_ufunc__``, ``__array_function__``), so no operation branches on the device.
Only moving an array to the host and back depends on the device. It is explicit, and is done here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .device import (
    as_array,
    current_device,
    device_of,
    is_array,
    is_inexact,
    move,
    register_device,
    require_one_device,
    runtime_in_use,
    runtime_of,
    to_device,
    to_host,
    use_device,
    zeros_on,
)
from .read_only import Guarded, guarded
from .shape_only import DRY, Shaped, is_absent, shape_only

if TYPE_CHECKING:
    from .cuda import allow_tf32, tf32_allowed

__all__ = [
    "DRY", "Guarded", "Shaped", "allow_tf32", "as_array", "current_device", "device_of", "guarded", "is_absent",
    "is_array", "is_inexact", "move", "register_device", "require_one_device", "runtime_in_use", "runtime_of",
    "shape_only", "tf32_allowed", "to_device", "to_host", "use_device", "zeros_on",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load what concerns GPUs at its first use: programs on the CPU start without it."""
    if name in ("allow_tf32", "tf32_allowed"):
        from . import cuda

        return getattr(cuda, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names of the package, with those that are loaded at first use, for completion."""
    return sorted({*globals(), *__all__})
