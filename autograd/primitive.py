"""How an operation is declared, and what follows from the declaration.

One declaration holds the function, the adjoint of each operand and the words that everything else follows from:

    multiply = op("multiply", "a b", operator.mul, adjoint=(lambda ct, y, a, b: ct * b, lambda ct, y, a, b: ct * a),
                  saves=("1", "0"), dims=broadcast)

word     one letter per operand: the same letter = jointly linear, different letters = linear in each, N = nonlinear,
         S = without a cotangent. A trailing ``*`` repeats the last letter for any number of operands.
adjoint  one rule per operand, ``rule(ct, y, *operands, *options) -> cotangent of that operand``, written in
         differentiable operations: on raw arrays at first order, on Tensors when the sweep itself is recorded.
saves    what each rule reads: digits for operands, "y" for the output. What no rule reads is not kept.
keeping  the function as it runs under a tape, returning (output, kept): what first-order rules would else compute
         again. They find it in the place of y; it is None wherever the rules run on Tensors, or no tape ran.
dims     how dimensions travel, for sharded operands: one tuple per operand with an entry per dimension (an output
         dimension, `Sum` or `Mix`). `broadcast` marks elementwise operations.
ranked   that its options may hold integers that differ between ranks (an index, a shape)
tangent  forward-mode rules for nonlinear operands that are not elementwise; without one, the adjoint is transposed.
instead  the same in several operations, where the function returns NotImplemented or the labels ask for it

From it come reverse mode, forward mode, higher order, layout inference and the registry's tests. Adding an operation
is this one declaration, in one file of `ops`:

>>> import numpy
>>> import autograd as ag
>>> from autograd.primitive import broadcast, op
>>> cube = op("cube (example)", "N", lambda x: x * x * x, lambda ct, y, x: ct * (3 * x * x), saves="0", dims=broadcast)
>>> float(ag.grad(cube)(2.0)), float(ag.grad(ag.grad(cube))(2.0)), float(ag.jvp(cube, (2.0,), (1.0,))[1])
(12.0, 12.0, 12.0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from .broadcasting import broadcast, ones, unbroadcast
from .careful import lift
from .dispatch import functions, identity
from .entries import relabel
from .signatures import Signature, Signed
from .tangents import tangent
from .tape import Node, Recording

__all__ = ["Primitive", "Signature", "broadcast", "identity", "ones", "op", "registry", "unbroadcast"]

Rule = Callable[..., Any]
Dims = Callable[[Sequence[tuple[int, ...]], Any], Any]

registry: dict[str, Primitive] = {}
"""Every operation by name: the test plan."""


class Primitive(Signed):
    """A differentiable operation. Calling it with no Tensor among the operands runs the bare function."""

    communicates = False

    def __init__(
        self,
        name: str,
        word: str,
        function: Callable[..., Any],
        adjoint: Sequence[Rule | None] | Rule = (),
        *,
        saves: str | Sequence[str] = "",
        dims: Dims | None = None,
        tangent: Sequence[Rule | None] = (),
        operands: str = "x y z",
        promotes: bool = True,
        ranked: bool = False,
        keeping: Callable[..., tuple[Any, Any]] | None = None,
        instead: Callable[..., Any] | None = None,
        neutral_zero: bool = False,
    ):
        self.name, self.function, self.keeping, self.instead = name, function, keeping, instead
        self.words, self.variadic = word.rstrip("*").split(), word.endswith("*")
        self.adjoint, self.tangent = (adjoint,) if callable(adjoint) else tuple(adjoint), tuple(tangent)
        self.dims, self.elementwise = dims, dims is broadcast
        self.operands, self.saves, self.keeps_y = operands.split(), "".join(saves), "y" in "".join(saves)
        self.promotes, self.ranked, self.neutral_zero = promotes, ranked, neutral_zero
        self.signatures: dict[Any, Signature] = {}
        self._functions: dict[int, Any] = {}
        registry[name] = self

    # -- how it is called: `call` and `pull` are made when they are first asked for ------------------------------
    def __call__(self, *xs: Any, options: tuple[Any, ...] = ()) -> Any:
        # a class of its own, whose instances run `call` when called, with nothing in between
        self.__class__ = type("Primitive", (type(self),), {"__call__": staticmethod(self.call)})
        return self.call(*xs, options=options)

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The call itself, a plain function of the operands and ``options=()``."""
        if self.variadic:
            return lambda *xs, options=(): self.of(len(xs))[0](*xs, options=options)
        return self.of(len(self.words))[0]

    @cached_property
    def pull(self) -> Callable[..., None]:
        """One step of a reverse sweep, ``pull(node, ct, sweep)``."""
        if self.variadic:
            return lambda node, ct, sweep: self.of(len(node[2]))[1](node, ct, sweep)
        return self.of(len(self.words))[1]

    # -- what the words say, for a call with n operands --------------------------------------------------------
    def of(self, n: int) -> tuple[Callable[..., Any], Callable[..., None]]:
        """The call and the step of a reverse sweep."""
        return self._functions.get(n) or self._functions.setdefault(n, self.made(n))

    def made(self, n: int) -> tuple[Callable[..., Any], Callable[..., None]]:
        """The same, made now; operations with kernels or several outputs have others."""
        return functions(self, n)

    def letters(self, n: int) -> str:
        """One letter per operand."""
        return "".join(self.words) + (self.words[-1] * (n - len(self.words)) if self.variadic else "")

    def operand_name(self, i: int) -> str:
        """What errors call operand i."""
        return self.operands[i] if i < len(self.operands) and not self.variadic else f"operand {i}"

    def keeps(self, i: int) -> bool:
        """Whether some rule reads operand i."""
        return self.variadic or str(i) in self.saves

    def rule(self, i: int, n: int) -> Rule | None:
        """The adjoint of operand i."""
        if not self.variadic:
            return self.adjoint[i] if i < len(self.adjoint) else None
        one: Any = self.adjoint[0]
        return lambda ct, y, *rest: one(ct, y, rest[:n], i, *rest[n:])

    def cotangent(self, i: int, ct: Any, y: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        """The adjoint with respect to operand i, before broadcasting is undone."""
        return self.rule(i, len(xs))(ct, y, *xs, *options)  # type: ignore[misc]

    named = staticmethod(registry.__getitem__)

    # -- the sweeps ----------------------------------------------------------------------------------------------
    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, place: int) -> Any:
        """One step of forward mode: the output's tangent from the operands'."""
        tangents = [carried[p - start] if p >= start else None for p in node[3]]
        if all(t is None for t in tangents):
            return None
        y, xs = lift(self, node, recording, place) if record else node[1:3]
        total = tangent(self, node, tangents, None if self.keeping is not None else y, xs)
        return relabel(total, node[6].out) if record and node[6] is not None else total

op = Primitive
"""Declare an operation; see the module's text for the words."""
