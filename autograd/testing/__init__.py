"""Checks of derivatives, for the tests of operations: ours and a user's.

`check_grads` compares reverse and forward mode with finite differences and with the complex step, to any order, and
knows how far each of those can be trusted at the point at hand; `check_adjoint` compares the two modes with each other,
which needs no step size and is exact to rounding: the dot-product test.
"""

from __future__ import annotations

from .adjoint import check_adjoint
from .checks import check_grads
from .differences import complex_step, numeric_gradient, numeric_tangent, settled_slope
from .probing import norm, pairing, random_like
from .report import GradientMismatch, compare

__all__ = [
    "GradientMismatch", "check_adjoint", "check_grads", "compare", "complex_step", "norm", "numeric_gradient",
    "numeric_tangent", "pairing", "random_like", "settled_slope",
]  # fmt: skip
