"""ringtape: reverse-mode automatic differentiation in which communication between processes is differentiable.

It is three packages, each of which is imported under its own name, as this module's attributes are:

    import autograd as ag          # Tensors, tapes, gradients of any order, modules, optimizers
    import collectives as cc       # a mesh of ranks, and communication with adjoints
    import parallel                # data, tensor, pipeline, context and expert parallel training

>>> import ringtape
>>> ringtape.autograd.grad(lambda x: x * x)(3.0)
np.float64(6.0)

HIPS autograd installs a package `autograd`, too, so that the two cannot stand in one environment: `ringtape` says so
where it finds the other one. Programs of HIPS autograd run here unchanged.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autograd import __version__

if TYPE_CHECKING:  # loaded when first asked for: `collectives` looks for MPI
    import autograd
    import collectives
    import parallel

__all__ = ["__version__", "autograd", "collectives", "parallel"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ringtape' has no attribute {name!r}; it has {', '.join(__all__[1:])}")
    return import_module(name)


def __dir__() -> list[str]:
    return __all__
