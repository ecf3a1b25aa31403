"""`Fused`, the class of operations with optional fused kernels.

A fused operation is declared like any other: its function is a composition of plain functions, and its rules are
written in differentiable operations. If `kernels.find` returns a kernel for the operands' arrays, the kernel runs the
forward pass and first-order reverse sweeps. One call of it computes the cotangents of all operands, which share most of
their work. In all other cases (devices without the kernel, shape-only arrays, forward mode, recorded sweeps, the check
of layouts) the declaration runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...arrays.half import in_float32
from ...engine.checked_pull import check_rules
from ...engine.primitive import Primitive
from ...engine.recording import Node
from ...engine.sweep import Sweep
from ...kernels import find

__all__ = ["Fused"]


class Fused(Primitive):
    """An operation that may have a kernel: one of its own name in the file `kernel`, or of another, "file.name".

    `function` is a composition of plain functions that computes the same.
    """

    separable = False  # one call of the kernel computes all cotangents

    def __init__(
        self, name: str, word: str, function: Callable[..., Any], adjoint: Sequence[Any], *, kernel: str, **words: Any
    ):
        self.kernel_name = kernel if "." in kernel else f"{kernel}.{name}"
        self.composition = in_float32(function)
        super().__init__(name, word, self._value, adjoint, keeping=self._keeping, **words)

    def bind(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        """Return the call, and the step of a reverse sweep, which uses the kernel if the forward pass did."""
        call, self._step = super().bind()
        return call, self._sweep

    def _value(self, *args: Any) -> Any:
        n = len(self.words)
        kernel = find(self.kernel_name, args[:n])
        return self.composition(*args) if kernel is None else kernel.forward(args[:n], args[n:], False)[0]

    def _keeping(self, *args: Any) -> tuple[Any, Any]:
        n = len(self.words)
        kernel = find(self.kernel_name, args[:n])
        if kernel is None:
            return self.composition(*args), None
        y, kept = kernel.forward(args[:n], args[n:], True)
        return y, (kernel.backward, kept)

    def _sweep(self, node: Node, ct: Any, sweep: Sweep) -> None:
        _, kept, xs, places, options, shapes, signature = node
        if (
            kept is None
            or sweep.record
            or shapes is not None
            or ct.__class__ is not xs[0].__class__
            or (signature is not None and signature.apart)
        ):
            self._step(node, ct, sweep)
            return
        if signature is not None and not signature.checked:
            check_rules(self, node, ct)
        backward, kept = kept
        wanted = [place >= 0 for place in places]
        last = sweep.left is sweep.recording.nodes  # the sweep releases the tape, so the kernel may reuse its arrays
        for place, g in zip(places, backward(ct, kept, xs, options, wanted, last), strict=True):
            if place >= 0:
                sweep.add(place, g)
