"""Signature: the labels of one use of an operation, inferred once and found again by its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..layouts.inference import infer, layout_of, varying
from ..layouts.layout import Layout
from ..layouts.messages import unfit
from ..layouts.rank_values import rank_axes
from .broadcasting import broadcast
from .checked_pull import lift
from .dispatch import functions
from .forward_mode import tangent
from .recording import Node, Recording
from .state import state
from .tensor import TENSORS, relabel

__all__ = ["Primitive", "Signature", "Signed", "op", "registry"]


class Signature:
    """The labels of one use of an operation: its operands' layouts and its result's, None for "instead".

    Its rules are `checked` once (see `careful`). `apart` are operands that this rank has though the result, rooted
    elsewhere by another one, is absent here: from it they get nothing. Then every sweep takes the careful path.
    """

    __slots__ = ("apart", "checked", "layouts", "out")

    def __init__(self, layouts: tuple[Layout, ...], out: Layout | None):
        self.layouts = layouts
        self.out = out
        self.checked = False
        absent = out is not None and out.absent_beyond(())
        self.apart = frozenset(i for i, x in enumerate(layouts) if absent and not x.absent_beyond(()))


class Signed:
    """The base of operations: what a call asks for where labels are in play and its short way ends."""

    def sign(self: Any, key: Any, xs: Sequence[Any], arrays: Sequence[Any], options: tuple[Any, ...]) -> Signature:
        """The signature of a call, inferred; it is found by its key from then on."""
        layouts = [x.layout for x in xs if x.__class__ in TENSORS]
        grid = next((layout.grid for layout in layouts if layout is not None), state.grid)
        assert grid is not None
        signature = self.inferred([x.labelled(grid) if x.__class__ in TENSORS else layout_of(x, grid) for x in xs],
                                  arrays, options)  # fmt: skip
        if None not in layouts:  # a leaf has its labels from now on, and comes under another key
            if len(self.signatures) > 4096:  # programs with ever new shapes must not grow for ever
                self.signatures.clear()
            self.signatures[key] = signature
        return signature

    def inferred(
        self: Any, layouts: Sequence[Layout], arrays: Sequence[Any], options: tuple[Any, ...]) -> Signature:
        """The signature of operands with these layouts."""
        operands = layouts
        try:
            if self.ranked and rank_axes(options):
                operands = [varying(x, rank_axes(options), self.name) for x in layouts]
            shapes = [tuple(int(n) for n in np.shape(a)) for a in arrays]
            real = [hasattr(a, "dtype") and a.dtype.kind in "fc" for a in arrays]
            out = infer(self, operands, shapes, real, options, arrays)
        except Exception as error:
            try:
                self.function(*arrays, *options)  # operands that do not fit raise that first
            except ValueError as misfit:
                raise unfit(self, misfit, arrays) from misfit
            if self.instead is None or not isinstance(error, LayoutError):
                raise
            out = None
        return Signature(tuple(layouts), out)


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
