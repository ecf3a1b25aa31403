"""Activations by formula: one text is an operation's function, its adjoint, and its kernels on the host and on a GPU.

A formula computes from `x` the value `y`, and then the derivative `d`, in assignments that Python and CUDA C++ read
alike: sums, products and quotients of numbers, of earlier names, and of `exp`, `sigmoid` and `tanh` of them.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["FORMULAS", "class_name", "cuda_classes", "formula_function"]

FORMULAS = {
    "silu": "h = sigmoid(x); y = x * h; d = h + y * (1 - h)",
}


def formula_function(
    formula: str, head: str, returned: str, functions: Mapping[str, Callable[[Any], Any]]
) -> Callable[..., Any]:
    """The Python function of a head such as "silu(x)": it evaluates a formula, and returns an expression of its names.

    The functions that the formula calls decide whether it is one of arrays or of Tensors.

    Examples
    --------
    >>> from math import exp
    >>> formula_function("silu", "silu(x)", "y", {"sigmoid": lambda x: 1 / (1 + exp(-x))})(0.0)
    0.0
    """
    statements, last = FORMULAS[formula].split("; "), "d = " if re.search(r"\bd\b", returned) else "y = "
    end = next(i for i, statement in enumerate(statements) if statement.startswith(last))
    lines = [f"def {head}:\n", *(f"    {line}\n" for line in (*statements[: end + 1], f"return {returned}"))]
    file, text = f"{__file__}: {head}", "".join(lines)
    linecache.cache[file] = (len(text), None, lines, file)  # for tracebacks, help and debuggers
    namespace: dict[str, Any] = {"__name__": __name__, **functions}
    exec(compile(text, file, "exec"), namespace)
    found: Callable[..., Any] = namespace[head.partition("(")[0]]
    return found


def class_name(name: str) -> str:
    """The class of a formula in CUDA C++, such as "Silu"."""
    return name.title().replace("_", "")


def cuda_classes() -> str:
    """The formulas as classes of CUDA C++, like those in ``activations.cuh``."""
    return "".join(map(_cuda_class, FORMULAS))


def _cuda_class(name: str) -> str:
    text = re.sub(r"\bexp\(", "exponential(", FORMULAS[name])
    text = re.sub(r"(?<![\w.])\d[\d.]*(?:e-?\d+)?", r"(W)\g<0>", text)  # no integers, and no double beside float
    lines = [x if x.startswith(("y = ", "d = ")) else f"W {x}" for x in text.split("; ")]
    body = "".join(f"        {line};\n" for line in lines)
    return (
        f"\ntemplate <typename W> struct {class_name(name)} {{\n"
        f"    __device__ static __forceinline__ void at(W x, W &y, W &d) {{\n{body}    }}\n}};\n"
    )
