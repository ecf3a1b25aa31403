"""Reverse-mode automatic differentiation on a tape whose values have layouts.

This package does not communicate; `collectives` does. Typical use: ``import autograd as ag, autograd.numpy as np``.

To read the code, start with `engine` (tensors, tape, dispatch, declaration of operations) and `ops` (the operations).
`layouts` has the layout labels and their inference. ``docs/architecture.md`` is a map of all packages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._installed import refuse_old_numpy, refuse_two_owners

refuse_old_numpy()
refuse_two_owners()  # before the other imports: files of a package that was overwritten may not fit together

from . import arrays, errors  # arrays: a package that imports its own files
from .errors import *

errors.install_hook()

if TYPE_CHECKING:  # `__getattr__` loads these names at first use
    from . import nn, optim, random, testing
    from .arrays.device import use_device
    from .engine import events
    from .engine.leaves import Leaf, Parameter, constant, tensor
    from .engine.primitive import op, registry
    from .engine.pytree import register_pytree_node
    from .engine.state import no_grad
    from .engine.tape import Tape, scope
    from .engine.tensor import Tensor
    from .layouts.layout import C, D, I, Layout, P, R, Rooted, Shard, V
    from .ops import stop_gradient
    from .testing.anomaly import detect_anomaly
    from .transforms import *

    __version__: str

__all__ = [
    "C", "D", "I", "Layout", "Leaf", "P", "Parameter", "R", "Rooted", "Shard", "Tape", "Tensor", "V", "capture",
    "checkpoint", "constant", "deriv", "detect_anomaly", "egrad", "elementwise_grad", "errors", "events",
    "ggnvp", "grad", "grad_and_aux", "grad_named", "hessian", "hessian_tensor_product", "hessian_vector_product",
    "holomorphic_grad", "hvp", "jacobian", "jvp", "make_ggnvp", "make_hvp", "make_jvp", "make_jvp_reversemode",
    "make_vjp", "multigrad_dict", "nn", "no_grad", "op", "optim", "random", "register_pytree_node", "registry",
    "scope", "stop_gradient", "tensor", "tensor_jacobian_product", "testing", "use_device", "value_and_grad",
    "vector_jacobian_product", "vjp",
]  # fmt: skip
__all__ += errors.__all__

_SUBMODULES = frozenset((
    "arrays", "builtins", "core", "custom", "data", "differential_operators", "digests", "engine", "environment",
    "extend", "kernels", "layouts", "misc", "nn", "notebook", "numpy", "ops", "optim", "parsing", "random", "scipy",
    "test_util", "testing", "tracer", "transforms", "util", "wrap_util",
))  # fmt: skip
_NAMES = {
    "arrays.device": ("use_device",),
    "builtins": ("dict", "isinstance", "list", "tuple", "type"),  # of HIPS autograd; `import *` leaves them out
    "core": ("primitive",),
    "engine": ("events",),
    "engine.leaves": ("Leaf", "Parameter", "constant", "tensor"),
    "engine.primitive": ("op", "registry"),
    "engine.pytree": ("register_pytree_node",),
    "engine.state": ("no_grad",),
    "engine.tape": ("Tape", "scope"),
    "engine.tensor": ("Tensor",),
    "layouts.layout": ("C", "D", "I", "Layout", "P", "R", "Rooted", "Shard", "V"),
    "ops": ("stop_gradient",),
    "testing.anomaly": ("detect_anomaly",),
    "transforms": (
        "capture", "checkpoint", "deriv",
        "egrad", "elementwise_grad", "ggnvp", "grad", "grad_and_aux", "grad_named",
        "hessian", "hessian_tensor_product", "hessian_vector_product", "holomorphic_grad", "hvp", "jacobian", "jvp",
        "make_ggnvp", "make_hvp", "make_jvp", "make_jvp_reversemode", "make_vjp", "multigrad_dict",
        "tensor_jacobian_product", "value_and_grad", "vector_jacobian_product", "vjp",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _NAMES.items() for name in names}
"""The module of each name that is loaded at first use."""


def __getattr__(name: str) -> Any:
    """Load a name, or a module of the package, at first use.

    Operations are loaded before any name that makes or takes Tensors, so that the registry is complete. Threads may ask
    for names at once: `import_module` returns complete modules only, as long as no package imports its own files.
    """
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)  # which the import system makes an attribute
    if name in _HOME:
        if not _HOME[name].startswith("layouts."):
            import_module(".ops.everything", __name__)
        home = import_module(f".{_HOME[name]}", __name__)
        found = getattr(home, name)
    elif name == "__version__":
        found = import_module("importlib.metadata").version("ringtape")
    else:
        raise errors.missing_attribute(__name__, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The names of the package, with those that are loaded at first use, for completion."""
    return sorted({*globals(), *__all__, *_SUBMODULES})
