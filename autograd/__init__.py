"""Reverse-mode automatic differentiation on a tape whose values have layouts.

This package does not communicate; `collectives` does. Typical use: ``import autograd as ag, autograd.numpy as np``.

To read the code, start with `engine` (tensors, tape, dispatch, declaration of operations) and `ops` (the operations).
`layouts` has the layout labels and their inference. ``docs/architecture.md`` is a map of all packages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._installed import refuse_two_owners

refuse_two_owners()  # before the other imports: files of a package that was overwritten may not fit together

from . import errors, numpy, transforms  # numpy: functions of NumPy look there
from .arrays.device import use_device
from .engine import events
from .engine.leaves import Leaf, Parameter, constant, tensor
from .engine.primitive import op, registry
from .engine.state import no_grad
from .engine.tape import Tape, scope
from .engine.tensor import Tensor
from .errors import *
from .layouts.layout import C, D, I, Layout, P, R, Rooted, Shard, V
from .ops import stop_gradient
from .transforms import (
    deriv,
    egrad,
    elementwise_grad,
    grad,
    grad_and_aux,
    grad_named,
    holomorphic_grad,
    jvp,
    make_jvp,
    make_jvp_reversemode,
    make_vjp,
    multigrad_dict,
    value_and_grad,
    vjp,
)

errors.install_hook()

if TYPE_CHECKING:  # `__getattr__` loads these names at first use, so that `import autograd` stays fast
    from . import nn, optim, random, testing
    from .testing.anomaly import detect_anomaly
    from .transforms import (
        checkpoint,
        cuda_graph,
        ggnvp,
        hessian,
        hessian_tensor_product,
        hessian_vector_product,
        hvp,
        jacobian,
        make_ggnvp,
        make_hvp,
        tensor_jacobian_product,
        vector_jacobian_product,
    )

    __version__: str

__all__ = [
    "C", "D", "I", "Layout", "Leaf", "P", "Parameter", "R", "Rooted", "Shard", "Tape", "Tensor", "V", "checkpoint",
    "cuda_graph",
    "constant", "deriv", "detect_anomaly", "egrad", "elementwise_grad", "errors", "events", "ggnvp", "grad",
    "grad_and_aux", "grad_named", "hessian", "hessian_tensor_product", "hessian_vector_product", "holomorphic_grad",
    "hvp", "jacobian", "jvp", "make_ggnvp", "make_hvp", "make_jvp", "make_jvp_reversemode", "make_vjp",
    "multigrad_dict", "nn", "no_grad", "op", "optim", "random", "registry", "scope", "stop_gradient", "tensor",
    "tensor_jacobian_product", "testing", "use_device", "value_and_grad", "vector_jacobian_product", "vjp",
]  # fmt: skip
__all__ += errors.__all__

_SUBMODULES = (
    "builtins", "core", "differential_operators", "extend", "nn", "optim", "random", "testing", "tracer", "util",
    "wrap_util",
)  # fmt: skip
_BUILTINS = ("dict", "isinstance", "list", "tuple", "type")  # of `autograd.builtins`; `import *` leaves them out


def __getattr__(name: str) -> Any:
    """Load a name at first use: the rarer transforms and modules, and HIPS autograd's replacements of builtins."""
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    if name in transforms.LAZY:
        found = getattr(transforms, name)
    elif name == "detect_anomaly":
        found = import_module(".testing.anomaly", __name__).detect_anomaly
    elif name == "primitive":
        found = import_module(".core", __name__).primitive
    elif name == "__version__":
        found = import_module("importlib.metadata").version("ringtape")
    elif name in _BUILTINS:
        found = getattr(import_module(".builtins", __name__), name)
    else:
        raise errors.missing_attribute(__name__, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The names of the package, with those that are loaded at first use, for completion."""
    return sorted({*globals(), *__all__})
