"""The module `autograd.differential_operators` of HIPS autograd; its names are defined in `autograd.transforms`."""

from __future__ import annotations

from . import core
from .extend import vspace
from .transforms import *  # noqa: F403
from .transforms.wrapping import unary_to_nary

_make_jvp, _make_vjp = core.make_jvp, core.make_vjp  # of a function of one argument, at a point

__all__ = [  # noqa: F405
    "checkpoint", "deriv", "egrad", "elementwise_grad", "grad", "grad_and_aux", "grad_named", "hessian",
    "hessian_tensor_product", "hessian_vector_product", "holomorphic_grad", "jacobian", "make_ggnvp", "make_hvp",
    "make_jvp", "make_jvp_reversemode", "make_vjp", "multigrad_dict", "tensor_jacobian_product", "value_and_grad",
    "unary_to_nary", "vector_jacobian_product", "vspace",
]  # fmt: skip
