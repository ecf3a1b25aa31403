"""Functions of functions: gradients, pullbacks, tangents, Jacobians, Hessians, their products, and rematerialisation.

=====================================  =========================================================================
reverse mode                           `grad`, `value_and_grad`, `grad_and_aux`, `elementwise_grad` (`egrad`),
                                       `holomorphic_grad`, `grad_named`, `multigrad_dict`, `vjp`, `make_vjp`
forward mode                           `jvp`, `make_jvp`, `deriv`, `make_jvp_reversemode`
whole derivatives                      `jacobian`, `hessian`
products                               `hvp`, `make_hvp`, `hessian_tensor_product` (`hessian_vector_product`),
                                       `tensor_jacobian_product` (`vector_jacobian_product`), `ggnvp`, `make_ggnvp`
memory                                 `checkpoint`
=====================================  =========================================================================

Arguments and outputs are arrays, floats, or nested tuples, lists and dicts of them. Where no mesh is in play and plain
arrays went in, plain arrays come out; inside a mesh, Tensors. A transform inside another one is recorded by the outer
one, so they nest: ``grad(grad(f))``, ``jvp(grad(f), ...)``. Under a mesh all of them are collective where the function
is: every rank calls them alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .forward import deriv, jvp, make_jvp, make_jvp_reversemode
from .reverse import (
    egrad,
    elementwise_grad,
    grad,
    grad_and_aux,
    grad_named,
    holomorphic_grad,
    make_vjp,
    multigrad_dict,
    value_and_grad,
    vjp,
)

if TYPE_CHECKING:  # loaded when first asked for, by `__getattr__`
    from .jacobians import hessian, jacobian
    from .products import (
        ggnvp,
        hessian_tensor_product,
        hessian_vector_product,
        hvp,
        make_ggnvp,
        make_hvp,
        tensor_jacobian_product,
        vector_jacobian_product,
    )
    from .rematerialise import checkpoint

__all__ = [
    "checkpoint", "deriv", "egrad", "elementwise_grad", "ggnvp", "grad", "grad_and_aux", "grad_named", "hessian",
    "hessian_tensor_product", "hessian_vector_product", "holomorphic_grad", "hvp", "jacobian", "jvp", "make_ggnvp",
    "make_hvp", "make_jvp", "make_jvp_reversemode", "make_vjp", "multigrad_dict", "tensor_jacobian_product",
    "value_and_grad", "vector_jacobian_product", "vjp",
]  # fmt: skip

LATER = {
    **dict.fromkeys(("hessian", "jacobian"), "jacobians"),
    **dict.fromkeys(("ggnvp", "hessian_tensor_product", "hessian_vector_product", "hvp", "make_ggnvp", "make_hvp",
                     "tensor_jacobian_product", "vector_jacobian_product"), "products"),
    "checkpoint": "rematerialise",
}  # fmt: skip
"""What is loaded when it is first asked for, and the file that holds it."""


def __getattr__(name: str) -> Any:
    import importlib

    if name not in LATER:
        raise AttributeError(f"module 'autograd.transforms' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"autograd.transforms.{LATER[name]}"), name)
    return found
