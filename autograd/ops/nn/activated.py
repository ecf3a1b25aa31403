"""Linear layers with an activation, ``f(x @ w + b)``, as one operation: one kernel of a device adds the bias and maps.

Elsewhere they are no faster than the two operations, which `nn.Sequential` therefore runs.
"""

from __future__ import annotations

from typing import Any

from ...engine.primitive import Primitive
from ..contractions import linear, linear_dims
from ..shape import broadcast_to
from .activations import gelu_op, relu, silu
from .fused import Fused

__all__ = ["linear_gelu", "linear_gelu_tanh", "linear_relu", "linear_silu"]


def _activated(name: str, f: Primitive, *options: Any) -> Fused:
    """Declare ``f(linear(x, w, b))``. Its rules are those of the two operations, and compute the sum again."""
    rule = f.adjoint[0]

    def run(x: Any, w: Any, b: Any) -> Any:
        return f(linear(x, w, b), options=options)

    def inner(ct: Any, x: Any, w: Any, b: Any) -> Any:
        """The cotangent, or tangent, `ct` times the derivatives of f."""
        z = linear(x, w, b)
        return rule(ct, f(z, options=options), z, *options)

    def adjoint(i: int) -> Any:
        of_linear = linear.adjoint[i]
        return lambda ct, y, x, w, b: of_linear(inner(ct, x, w, b), None, x, w, b)

    return Fused(
        name, "N N N", run, tuple(map(adjoint, range(3))), saves="012", dims=linear_dims, operands="x w b", instead=run,
        sensitive="result" if f.sensitive else False,
        kernel="biases",
        tangent=(
            lambda dx, y, x, w, b: inner(dx @ w, x, w, b), lambda dw, y, x, w, b: inner(x @ dw, x, w, b),
            lambda db, y, x, w, b: inner(broadcast_to(db, (*x.shape[:-1], *db.shape)), x, w, b),
        ),
    )  # fmt: skip


linear_relu = _activated("linear_relu", relu)
linear_gelu = _activated("linear_gelu", gelu_op, "none")
linear_gelu_tanh = _activated("linear_gelu_tanh", gelu_op, "tanh")
linear_silu = _activated("linear_silu", silu)
