"""ringtape's core: reverse-mode automatic differentiation on a tape that knows layouts.

Nothing here talks to another rank. ``import autograd as ag, autograd.numpy as np``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._installed import refuse_two_owners

refuse_two_owners()  # before anything of a half-overwritten package is imported, hence the imports below

from . import errors, events, nn, optim, random  # noqa: E402
from .errors import *  # noqa: E402
from .layout import C, I, Layout, P, R, Rooted, Shard, V  # noqa: E402
from .ops import stop_gradient  # noqa: E402
from .primitive import op, registry  # noqa: E402
from .tape import Tape, no_grad, scope  # noqa: E402
from .tensor import Leaf, Parameter, Tensor, constant, tensor  # noqa: E402
from .transforms import grad, jvp, value_and_grad, vjp  # noqa: E402

__all__ = [
    "C", "I", "Layout", "Leaf", "P", "Parameter", "R", "Rooted", "Shard", "Tape", "Tensor", "V", "constant", "errors",
    "events", "grad", "jvp", "nn", "no_grad", "op", "optim", "random", "registry", "scope", "stop_gradient", "tensor",
    "testing", "value_and_grad", "vjp",
]  # fmt: skip
__all__ += errors.__all__
__all__ += ["detect_anomaly"]

if TYPE_CHECKING:
    from . import testing
    from .anomaly import detect_anomaly


def __getattr__(name: str) -> Any:
    """What few programs use is loaded when it is asked for."""
    import importlib

    if name == "testing":
        return importlib.import_module(".testing", __name__)
    if name == "detect_anomaly":
        return importlib.import_module(".anomaly", __name__).detect_anomaly
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
