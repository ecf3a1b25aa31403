"""ringtape's core: reverse-mode automatic differentiation on a tape that knows layouts.

Nothing here talks to another rank. ``import autograd as ag, autograd.numpy as np``.

The engine, in the order in which it reads: `tensor`, a value and its place on a tape; `tape`, the list of operations
and the sweeps over it; `dispatch`, what a call does and what one step of a sweep does; `primitive`, how an operation is
declared (adding one is one declaration: see the example there); `layout`, the labels, and `inference`, what operations
make of them. Beside them, one subject each: `leaves`, `entries` (how leaves come on a tape), `saved` (arrays that a
tape keeps read-only), `seeds` (what a sweep starts from), `careful` (recorded sweeps, and the proof of labels),
`tangents`, `promotion`, `broadcasting`, `dims`, `methods` (operators), `deferred`, `hooks` (marks, effects, scopes),
`explain` (the texts of layout errors), `describe`, `grid`, `parts`, `ranknumbers`, `ranklabels`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._installed import refuse_two_owners

refuse_two_owners()  # before anything of a half-overwritten package is imported, hence the imports below

from . import errors, events, nn, optim, random, transforms  # noqa: E402
from .errors import *  # noqa: E402
from .hooks import scope  # noqa: E402
from .layout import C, D, I, Layout, P, R, Rooted, Shard, V  # noqa: E402
from .leaves import Leaf, Parameter, constant, tensor  # noqa: E402
from .ops import stop_gradient  # noqa: E402
from .primitive import op, registry  # noqa: E402
from .state import no_grad  # noqa: E402
from .tape import Tape  # noqa: E402
from .tensor import Tensor  # noqa: E402
from .transforms import (  # noqa: E402
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

if TYPE_CHECKING:
    from . import testing
    from .anomaly import detect_anomaly
    from .transforms import (
        checkpoint,
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

__all__ = [
    "C", "D", "I", "Layout", "Leaf", "P", "Parameter", "R", "Rooted", "Shard", "Tape", "Tensor", "V", "checkpoint",
    "constant", "deriv", "detect_anomaly", "egrad", "elementwise_grad", "errors", "events", "ggnvp", "grad",
    "grad_and_aux", "grad_named", "hessian", "hessian_tensor_product", "hessian_vector_product", "holomorphic_grad",
    "hvp", "jacobian", "jvp", "make_ggnvp", "make_hvp", "make_jvp", "make_jvp_reversemode", "make_vjp",
    "multigrad_dict", "nn", "no_grad", "op", "optim", "random", "registry", "scope", "stop_gradient", "tensor",
    "tensor_jacobian_product", "testing", "value_and_grad", "vector_jacobian_product", "vjp",
]  # fmt: skip
__all__ += errors.__all__


_OF_PYTHON = ("dict", "isinstance", "list", "tuple", "type")  # from `autograd.builtins`; not for import *


def __getattr__(name: str) -> Any:
    """What few programs use is loaded when it is first asked for: rarer transforms, checks, Python's own names."""
    from importlib import import_module

    if name == "testing":
        return import_module(".testing", __name__)
    if name in transforms.LATER:
        found = getattr(transforms, name)
    elif name == "detect_anomaly":
        found = import_module(".anomaly", __name__).detect_anomaly
    elif name in _OF_PYTHON:
        found = getattr(import_module(".builtins", __name__), name)
    else:
        raise AttributeError(f"module 'autograd' has no attribute {name!r}")
    globals()[name] = found
    return found


class _Declaring(ModuleType):
    """The module `autograd.primitive`, which is also what programs call to make a primitive of their own."""

    def __call__(self, function: Any) -> Any:
        from .core import primitive

        return primitive(function)


sys.modules["autograd.primitive"].__class__ = _Declaring
