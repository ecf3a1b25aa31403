"""Checks of derivatives, for tests of operations and of functions made of them.

`check_grads` compares reverse and forward mode with finite differences and with complex-step derivatives, to any order.
It estimates the error of these numerical derivatives and takes it into account. `check_adjoint` is the dot-product
test: it compares reverse mode with forward mode, needs no step size, and is exact up to rounding. Both also test the
declarations of the user's operations that the function calls, as `check_declaration` does: that what is declared linear
is linear, and that sharded dimensions become what `dims` states.
"""

from __future__ import annotations

from .adjoint import check_adjoint
from .checks import check_grads
from .declaration import check_declaration
from .differences import complex_step, numeric_gradient, numeric_tangent, settled_slope
from .probing import norm, pairing, random_like
from .report import DeclarationMismatch, GradientMismatch, compare

__all__ = [
    "DeclarationMismatch", "GradientMismatch", "check_adjoint", "check_declaration", "check_grads", "compare",
    "complex_step", "norm", "numeric_gradient", "numeric_tangent", "pairing", "random_like", "settled_slope",
]  # fmt: skip
