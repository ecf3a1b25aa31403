"""Function transforms: gradients, pullbacks, tangents, Jacobians, Hessians, products with them, and checkpoints.

=====================================  =========================================================================
reverse mode                           `grad`, `value_and_grad`, `grad_and_aux`, `elementwise_grad` (`egrad`),
                                       `holomorphic_grad`, `grad_named`, `multigrad_dict`, `vjp`, `make_vjp`
forward mode                           `jvp`, `make_jvp`, `deriv`, `make_jvp_reversemode`
whole derivatives                      `jacobian`, `hessian`
products                               `hvp`, `make_hvp`, `hessian_tensor_product` (`hessian_vector_product`),
                                       `tensor_jacobian_product` (`vector_jacobian_product`), `ggnvp`, `make_ggnvp`
memory                                 `checkpoint`
a step without its Python              `capture`
=====================================  =========================================================================

Arguments and outputs are arrays, floats, or nested tuples, lists and dicts of them. Without a mesh, plain arrays give
plain arrays; under a mesh the results are Tensors. A transform inside another one is recorded by the outer one, so
transforms nest: ``grad(grad(f))``, ``jvp(grad(f), ...)``. If the function communicates, its transforms do too, and
every rank must call them alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded when first asked for, by `__getattr__`
    from .captured_step import capture
    from .forward import *
    from .jacobians import *
    from .products import *
    from .rematerialise import *
    from .reverse import *

__all__ = [
    "capture", "checkpoint", "deriv",
    "egrad", "elementwise_grad", "ggnvp", "grad", "grad_and_aux", "grad_named",
    "hessian", "hessian_tensor_product", "hessian_vector_product", "holomorphic_grad", "hvp", "jacobian", "jvp",
    "make_ggnvp", "make_hvp", "make_jvp", "make_jvp_reversemode", "make_vjp", "multigrad_dict",
    "tensor_jacobian_product", "value_and_grad", "vector_jacobian_product", "vjp",
]  # fmt: skip

LAZY = {
    **dict.fromkeys(("deriv", "jvp", "make_jvp", "make_jvp_reversemode"), "forward"),
    **dict.fromkeys(("egrad", "elementwise_grad", "grad", "grad_and_aux", "grad_named", "holomorphic_grad", "make_vjp",
                     "multigrad_dict", "value_and_grad", "vjp"), "reverse"),
    **dict.fromkeys(("hessian", "jacobian"), "jacobians"),
    **dict.fromkeys(("ggnvp", "hessian_tensor_product", "hessian_vector_product", "hvp", "make_ggnvp", "make_hvp",
                     "tensor_jacobian_product", "vector_jacobian_product"), "products"),
    "checkpoint": "rematerialise",
    "capture": "captured_step",
}  # fmt: skip
"""Names loaded at first use, and the module that defines each."""


def __getattr__(name: str) -> Any:
    import importlib

    if name not in LAZY:
        raise AttributeError(f"module 'autograd.transforms' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"autograd.transforms.{LAZY[name]}"), name)
    return found


def __dir__() -> list[str]:
    """The names of the module, with those that are loaded at first use, for completion."""
    return sorted({*globals(), *LAZY})
