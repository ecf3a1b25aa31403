"""Writes the text of LLVM's intermediate representation for loops. Nothing here loads LLVM.

Each loop becomes one function ``int f(context, char **pointers, dims, strides, auxiliary)``, the form of NumPy's inner
loops; shape and strides are constants in it. It calls a body whose pointers are declared not to overlap, so that LLVM's
loop vectorizer needs no checks. `operations` has the instructions, `nests` the loops, `reductions` NumPy's orders.
"""

from __future__ import annotations

import re

from .loops import Loop, Unsupported, dtypes_of
from .nests import Body, Nest, body_text, has_exit, wrapper
from .operations import Code, declarations
from .reductions import reduction

__all__ = ["declarations", "function_text", "with_fields"]


def function_text(loop: Loop, name: str) -> str:
    """The text of a function that computes a loop.

    Raises
    ------
    Unsupported
        It cannot be compiled with NumPy's bits.

    Examples
    --------
    >>> from autograd.compiler.loops import Pointer
    >>> x = Pointer("f4", (4,))
    >>> text = function_text(Loop((8,), (x, x), (("load", 0), ("square", 0), ("store", 1, 1))), "f")
    >>> "fmul float" in text, "fast" in text
    (True, False)
    """
    if any(n < 0 for n in loop.shape):
        raise Unsupported(f"shape {loop.shape}")
    dtypes_of(loop)  # refuses what is no loop
    if loop.steps and loop.steps[-1][0] == "reduce":
        return reduction(loop, name)
    body, code = Body(loop), Code()
    if 0 not in loop.shape:
        nest, known = Nest(code, body, "d"), {}  # type: Nest, dict[int, str]
        for dim in range(-1, body.ndim):
            if dim >= 0:
                nest.open(dim)
            steps = [at for at, depth in enumerate(body.depths) if depth == dim]
            known |= body.values(code, steps, nest.place(), known)
        nest.close_all()
    return body_text(name, code, len(loop.pointers), has_exit(code)) + wrapper(name, len(loop.pointers))


_FIELD = re.compile(r"%(\w+) = (word|byte) (\w+) %(\w+), (\S+)")


def with_fields(text: str) -> str:
    """A text with LLVM's instructions for ``%x = word T %p, i``, the value of type T in the word i from an address on.

    ``byte`` counts bytes.

    Examples
    --------
    >>> print(with_fields("  %x = word ptr %p, 2"))
      %x_at = getelementptr i64, ptr %p, i64 2
      %x = load ptr, ptr %x_at
    """

    def instructions(found: re.Match[str]) -> str:
        name, unit, kind, address, at = found.groups()
        step = "i64" if unit == "word" else "i8"
        return f"%{name}_at = getelementptr {step}, ptr %{address}, i64 {at}\n  %{name} = load {kind}, ptr %{name}_at"

    return _FIELD.sub(instructions, text)
