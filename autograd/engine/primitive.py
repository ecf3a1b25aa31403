"""Primitive: a differentiable operation and its declaration.

    multiply = op("multiply", "a b", operator.mul, (lambda ct, y, a, b: ct * b, lambda ct, y, a, b: ct * a),
                  saves="01", dims=broadcast)

One declaration determines the call and the step of a reverse sweep (`dispatch`), forward mode (`forward_mode`), the
result's layout (`layouts.inference`), the checks of the rules' layouts (`checked_pull`), and the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from ..errors import LayoutError, OptionError, is_own_file, short_site, typed_errors
from ..layouts.inference import broadcast, infer, layout_of, require_no_first_elements, varying, without_false_parts
from ..layouts.layout import C, D, Grid, I, Layout, P, R, Shard, V
from ..layouts.messages import REJECTED
from ..layouts.rank_values import rank_axes
from .checked_pull import lift
from .dispatch import bind, raise_unfit, unbroadcast
from .distribution import ALONE
from .first_use import load_operations
from .forward_mode import tangent
from .promotion import dtype_to_round_to, rounded_to, wide
from .recording import Node, Recording
from .state import state
from .tensor import TENSORS, Tensor, relabel

__all__ = ["Primitive", "Signature", "compare_constants", "op", "registry"]

Rule = Callable[..., Any]
Dims = Callable[[Sequence[tuple[int, ...]], Any], Any]

registry: dict[str, Primitive] = {}
"""Every operation by name. The tests of operations run over it."""


class Declared(NamedTuple):
    """Where an operation is declared, and by which function."""

    module: str
    name: str
    file: str
    line: int
    is_own: bool
    function: Any

    @classmethod
    def by(cls, operation: Any, function: Any) -> Declared:
        """The declaration of the operation whose ``__init__`` runs."""
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            frame.f_locals.get("self") is operation or frame.f_globals["__name__"] == typed_errors.__module__
        ):
            frame = frame.f_back
        file = frame.f_code.co_filename
        module = str(frame.f_globals.get("__name__"))
        name = str(getattr(function, "__qualname__", ""))
        return cls(module, name, file, frame.f_lineno, is_own_file(file), function)

    def repeats(self, other: Declared) -> bool:
        """Whether this is the other declaration, executed again: the same function, or a new version of it.

        Lambdas have one name. Those of one file are told apart by their lines; a cell of a notebook that is executed
        again counts as another file.
        """
        if self.module != other.module:
            return False
        is_named = self.name != "" and not self.name.endswith("<lambda>")
        return self.function is other.function or (
            self.name == other.name and (is_named or self.file != other.file or self.line == other.line)
        )

    def __str__(self) -> str:
        return short_site(self.file, self.line)


class Signature:
    """The layouts of one use of an operation, inferred once per layouts, shapes and dtypes of the operands.

    Attributes
    ----------
    layouts : tuple of Layout
        The operands'.
    shapes : tuple of tuple of int
        The operands'; None for an operation of several results.
    at_once : Layout or None
        The same as `out`; None where a call has to do something first: see `Primitive.prepared`.
    out : Layout or None
        The result's; None where the operation's `instead` takes these layouts.
    checked : bool
        Whether the rules were shown to give cotangents of the dual layouts (see `checked_pull`). Never True where
        `apart` is not empty.
    apart : frozenset of int
        Operands that are present on this rank although the result is rooted on another rank and absent here. They get
        no cotangent from it.
    """

    __slots__ = ("apart", "at_once", "checked", "layouts", "out", "shapes")

    def __init__(self, layouts: tuple[Layout, ...], out: Layout | None, shapes: Any = None):
        self.layouts, self.shapes = layouts, shapes
        self.out = self.at_once = out
        self.checked = False
        absent = out is not None and out.absent_beyond(())
        self.apart = frozenset(i for i, x in enumerate(layouts) if absent and not x.absent_beyond(()))


def operation_named(name: str) -> Primitive:
    """The operation of a name, for pickles."""
    if name not in registry:
        load_operations()
    return registry[name]


class Call(Protocol):
    """The call of an operation, for type checkers: of a Tensor it is a Tensor."""

    @overload
    def __call__(self, x: Tensor, /, *operands: Any, options: tuple[Any, ...] = ()) -> Tensor: ...
    @overload
    def __call__(self, x: Any, y: Tensor, /, *operands: Any, options: tuple[Any, ...] = ()) -> Tensor: ...
    @overload
    def __call__(self, *operands: Any, options: tuple[Any, ...] = (), **words: Any) -> Any: ...


class _OwnSignature:
    """The signature of an operation for `inspect`, made when it is read: of positional operands only."""

    def __get__(self, x: Any, kind: type | None = None) -> Any:
        if x is None:
            raise AttributeError("__signature__")  # that of the class is the one of its constructor
        from inspect import Parameter, Signature  # few programs ask

        if x.variadic:
            return Signature([Parameter("operands", Parameter.VAR_POSITIONAL)])
        return Signature([Parameter(x.operand_name(i), Parameter.POSITIONAL_ONLY) for i in range(len(x.words))])


class Primitive:
    """A differentiable operation. Called with no Tensor among the operands it runs the bare function.

    Parameters
    ----------
    name : str
        Unique; the operation is `registry[name]`.
    word : str
        One letter per operand, separated by spaces. The same letter: jointly linear; different letters: linear in each;
        N: nonlinear; S: no cotangent. A final ``*`` repeats the last letter for any number of operands.
    function : callable
        ``function(*arrays, *options)``, the forward pass on arrays. It may return NotImplemented where `instead` is
        given.
    adjoint : callable or sequence of callables and None
        One per operand, ``rule(ct, y, *operands, *options)``; with ``*`` one for all, ``rule(ct, y, operands, i,
        *options)``. Written in differentiable operations. It runs on arrays, or on Tensors in recorded sweeps. On the
        CPU float16 and bfloat16 come as float32, and what it returns is rounded.
    saves : str or sequence of str
        The values that the rules read: the indices of operands, and "y" for the result.
    dims : callable, optional
        ``dims(shapes, options)``: per operand, which dimension of the result each of its dimensions becomes; see
        `layouts.inference`. `broadcast` makes the operation elementwise.
    tangent : sequence of callables and None, optional
        Forward rules per operand, ``rule(dx, y, *operands, *options)``, where they do not follow from the adjoint.
    operands : str
        The operands' names for error messages.
    promotes : bool
        Whether operands of different dtypes are cast to one.
    ranked : bool
        Whether options may hold numbers that differ between ranks. The ranks then compare all options, where the
        result is R, I or P; otherwise those that are floating or complex numbers.
    beside : callable, optional
        For a `ranked` operation, ``beside(options, dim)``: the options that determine other elements of the result, or
        other extents, than its extent along `dim`. Where they differ between ranks that hold parts of the operand along
        `dim`, the ranks' results are no parts of one value, but Varying.
    keeping : callable, optional
        Runs instead of `function` while a tape records. Returns the result, and the value that the rules get as `y`.
    instead : callable, optional
        Computes the same by other operations, for layouts that this operation does not support, and for listeners.
    neutral_zero : bool
        Whether an integer 0 as the last operand leaves the first unchanged, whatever its layout.
    cancels : bool
        Of an operation of one operand, whose rule reads the result alone: whether it subtracts the result from a
        number. Where they have 16 bits the operand is then kept too, from which the result is computed in float32.
    called : str
        The name by which programs call the operation, if it is another one.
    number : {"", "scales", "shifts"}
        Effect of a number on the other operand. A number that counts the elements of one rank alone is then refused
        beside a value of all ranks.
    degree : number, optional
        Of a nonlinear operation that is homogeneous: ``f(c x) = c**degree f(x)`` for c > 0, jointly in its operands N.
    sensitive : bool or "result"
        Whether a nonlinear operation shows the scale of its argument, so that no factor behind it makes up for a factor
        before it, as exp does; not log, whose gradient has the same scale whatever that of its argument. With "result"
        its argument may have any scale, as that of a normalisation, and its result has none.
    takes_none : bool
        Whether None is an operand, a number that equals no other.
    fixes : mapping from str to str or callable
        For a reason of `layouts.refusals`, what a program may write instead of this operation: a text, or a function
        that returns texts for a `Refusal`. In it ``{x}`` and ``{y}`` are names of operands, and ``{a!r}`` is the axis.
    replace : bool
        Whether the operation may take the name of another one in the registry.

    Attributes
    ----------
    declared : Declared
        The file, line and module of the declaration.
    call : function
        ``call(*operands, options=())``. Calling the Primitive is calling this function.
    pull : function
        ``pull(node, ct, sweep)``, one step of a reverse sweep.

    Raises
    ------
    OptionError
        The name is taken by another operation. A declaration that is executed again, as by running the cell of a
        notebook twice, replaces the earlier one.
    """

    def __init_subclass__(cls) -> None:
        cls.__doc__ = _Documentation(cls.__doc__)  # type: ignore[assignment]  # a descriptor, which gives a string

    __slots__ = ("__call__", "__dict__")  # a slot: calling an instance calls its own function directly

    __signature__ = _OwnSignature()
    communicates = False
    separable = True  # see `recording.Step`
    widens = True  # whether rules for 16 bits run in float32: see `promotion`

    __call__: Call

    @typed_errors
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
        beside: Callable[[Any, int], Any] | None = None,
        keeping: Callable[..., tuple[Any, Any]] | None = None,
        instead: Callable[..., Any] | None = None,
        neutral_zero: bool = False,
        cancels: bool = False,
        called: str = "",
        number: str = "",
        degree: float | None = None,
        sensitive: bool | str = False,
        takes_none: bool = False,
        fixes: Mapping[str, str | Callable[[Any], Sequence[str]]] | None = None,
        replace: bool = False,
    ):
        self.declared = Declared.by(self, function)
        known = registry.get(name)
        if known is not None and not replace and not self.declared.repeats(known.declared):
            raise OptionError(
                f"op: the name {name!r} was given; it is the name of the operation that {known.declared} declares; "
                "needed: a name of its own. Fix: another name, or replace=True"
            )
        self.name, self.function, self.keeping, self.instead = name, function, keeping, instead
        self.words, self.variadic = word.rstrip("*").split(), word.endswith("*")
        self.adjoint: tuple[Any, ...] = (adjoint,) if callable(adjoint) else tuple(adjoint)  # rules, or None
        self.tangent: tuple[Any, ...] = tuple(tangent)
        self.dims, self.elementwise = dims, dims is broadcast
        self.operands, self.saves, self.keeps_y = operands.split(), "".join(saves), "y" in "".join(saves)
        self.cancels, self.called, self.number, self.takes_none = cancels, called, number, takes_none
        self.degree, self.sensitive = degree, sensitive
        self.fixes = fixes or {}
        self.tested: set[str] = set()  # the letters, and "dims", that a first use has tested
        self.promotes, self.ranked, self.beside, self.neutral_zero = promotes, ranked, beside, neutral_zero
        self.signatures: dict[Any, Signature] = {}
        # By operand: a function of an array, the cotangent and the operands, which writes the adjoint to the array. It
        # returns False if it cannot. With it a gradient is computed in its bucket.
        self.write_adjoint: dict[int, Callable[..., bool]] = {}
        self.call, self.pull = self.bind()
        self.__call__ = self.call
        registry[name] = self

    named = staticmethod(registry.__getitem__)

    def __reduce__(self) -> Any:
        """Pickle and copy it as its name. Where it is loaded, the module that declares it must be imported."""
        if registry.get(self.name) is not self:
            return super().__reduce_ex__(2)
        return operation_named, (self.name,)

    def __repr__(self) -> str:
        return f"<operation {self.name}({', '.join(self.operand_name(i) for i in range(len(self.words)))}" + (
            ", ...)>" if self.variadic else ")>"
        )

    def bind(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        """`call` and `pull`. Operations with kernels or several outputs have their own."""
        return bind(self)

    # -- the declaration, for a call with n operands ---------------------------------------------------------------
    def letters(self, n: int) -> str:
        """One letter per operand."""
        return "".join(self.words) + (self.words[-1] * (n - len(self.words)) if self.variadic else "")

    def operand_name(self, i: int) -> str:
        """The name of operand i in error messages."""
        return self.operands[i] if i < len(self.operands) and not self.variadic else f"operand {i}"

    def keeps(self, i: int) -> bool:
        """Whether a rule reads operand i."""
        return self.variadic or str(i) in self.saves

    def rule(self, i: int) -> Rule | None:
        """The adjoint with respect to operand i, where the number of operands is fixed."""
        return self.adjoint[i] if i < len(self.adjoint) else None

    def cotangent(
        self, i: int, ct: Any, y: Any, xs: tuple[Any, ...], options: tuple[Any, ...], shapes: Any = None
    ) -> Any:
        """Apply the adjoint with respect to operand i, and undo broadcasting where the operands' shapes are given."""
        # usually an array of 32 or 64 bits: a replay of a recurrent network asks hundreds of times
        is_usual = ct.__class__ is np.ndarray and ct.dtype.itemsize != 2
        dtype = None if is_usual or not self.widens else dtype_to_round_to(ct)
        if dtype is not None:
            ct, y, xs = self.widened(ct, y, xs, options)
        if self.variadic:
            g = self.adjoint[0](ct, y, xs, i, *options)
        else:
            g = self.adjoint[i](ct, y, *xs, *options)
        g = g if shapes is None else unbroadcast(g, shapes[i])
        return g if dtype is None else rounded_to(dtype, g)

    def widened(self, ct: Any, y: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """The values that a rule reads, in float32: a cotangent or tangent of 16 bits, the result and the operands.

        The result is computed again where the operands are known: rounded to 16 bits, it may be infinite or 0 where
        the derivative is a number.
        """
        ct, xs = wide((ct, tuple(xs)))
        is_known = self.keeps_y and self.keeping is None and not any(x is None for x in xs)
        if is_known and dtype_to_round_to(y) is not None:
            if ct.__class__ in TENSORS:  # the sweep is recorded, or layouts are checked
                y = self(*xs, options=options)
            else:
                with np.errstate(all="ignore"):
                    y = self.function(*xs, *options)
        return ct, wide(y), xs

    # -- layouts -----------------------------------------------------------------------------------------------------
    def sign(self, key: Any, xs: Sequence[Any], arrays: Sequence[Any], options: tuple[Any, ...]) -> Signature:
        """Infer the signature of a call, and keep it under `key`."""
        layouts = [x.layout for x in xs if x.__class__ in TENSORS]
        grid = next((layout.grid for layout in layouts if layout is not None), state.grid)
        assert grid is not None
        signature = self.inferred([x.labelled(grid) if x.__class__ in TENSORS else layout_of(x, grid) for x in xs],
                                  arrays, options, xs)  # fmt: skip
        out = signature.out
        if isinstance(out, Layout) and max(grid.sizes) > 1:
            has_numbers = bool(self.compared_options(options)) and compared(out, grid)
            beside = self.elementwise and any(_beside(out, signature.layouts, arrays))
            if has_numbers or beside or any(_is_constant(x, out) for x in signature.layouts):
                signature.at_once = None
        # Otherwise a leaf has just got its layout, and the next call has another key; or a user's operation is called
        # outside of the mesh of its operands, and is examined at its first use inside.
        if None not in layouts and (self.declared.is_own or state.distribution is not ALONE):
            if len(self.signatures) > 4096:  # bounds the memory of programs whose shapes change all the time
                self.signatures.clear()
            self.signatures[key] = signature
        return signature

    def prepared(self, signature: Signature, xs: Sequence[Any], options: tuple[Any, ...]) -> Layout | None:
        """The layout of a result, where constants must be the same on all ranks, which compare them.

        These are plain numbers, Tensors with the label C, random draws (D), and options of operations whose options may
        differ between ranks, such as an index. The parts of a Shard are one value; only their indices may differ.
        """
        out = signature.out
        distribution = state.distribution
        if out is not None and not distribution.is_alone and not state.in_rules:
            compare_constants(self.name, out, signature.layouts, xs)
            numbers = self.compared_options(options)
            if numbers:
                distribution.note_constant(self.name, out, numbers)
            if self.elementwise:
                arrays = [x.array if x.__class__ in TENSORS else x for x in xs]
                for x, is_beside in zip(xs, _beside(out, signature.layouts, arrays), strict=True):
                    if is_beside:
                        distribution.note_beside(self.name, x, out)
        return out

    def compared_options(self, options: tuple[Any, ...]) -> tuple[Any, ...]:
        """The options that all ranks must give alike where the result is R, I or P."""
        return options if self.ranked or not options else tuple(x for x in options if isinstance(x, _INEXACT))

    def unchanged(self, x: Any) -> Any:
        """`x`, the result of adding the literal 0 to it. Other ranks may have added another number."""
        if x.layout is not None and not state.in_rules and compared(x.layout, x.layout.grid):
            state.distribution.note_constant(self.name, x.layout, 0)
        return x

    def inferred(
        self, layouts: Sequence[Layout], arrays: Sequence[Any], options: tuple[Any, ...], xs: Sequence[Any] = ()
    ) -> Signature:
        """The signature for operands `xs` of these layouts."""
        operands = layouts
        try:
            differs = self.ranked and rank_axes(options)
            if differs:
                require_no_first_elements(self, layouts, arrays, options, xs)
                operands = [varying(x, rank_axes(options), self.name) for x in layouts]
            out = infer(self, operands, *shapes_and_kinds(arrays), options, arrays, xs)
            if differs and self.beside is not None:
                out = without_false_parts(out, self.beside, options)
        except Exception as error:
            try:
                self.function(*arrays, *options)  # shapes that do not fit are reported first
            except REJECTED as misfit:
                is_index = isinstance(misfit, IndexError) and isinstance(error, LayoutError)
                if is_index or getattr(error, "is_about_extents", False):  # an index of the whole value, in a part
                    raise error from None
                raise_unfit(self, misfit, xs or arrays)
            if self.instead is None or not isinstance(error, LayoutError):
                raise
            out = None
        self.announce_use(layouts, arrays, options)
        return Signature(tuple(layouts), out, tuple([tuple(np.shape(a)) for a in arrays]))

    def announce_use(self, layouts: Sequence[Layout], arrays: Sequence[Any], options: tuple[Any, ...]) -> None:
        """Let the ranks examine the first use of a signature of a user's operation."""
        if not self.declared.is_own:
            state.distribution.examine(self, layouts, arrays, options)

    # -- forward mode ------------------------------------------------------------------------------------------------
    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, place: int) -> Any:
        """One step of forward mode: the result's tangent from the operands'."""
        tangents = [carried[p - start] if p >= start else None for p in node[3]]
        if all(t is None for t in tangents):
            return None
        y, xs = lift(self, node, recording, place) if record else node[1:3]
        total = tangent(self, node, tangents, None if self.keeping is not None else y, xs)
        return relabel(total, node[6].out) if record and node[6] is not None else total


_INEXACT = (float, complex, np.inexact)


def compare_constants(name: str, out: Layout, layouts: Sequence[Layout], values: Sequence[Any]) -> None:
    """Compare, between the ranks, the operands that are constant where the result of an operation is one value.

    Parameters
    ----------
    name : str
        The operation.
    out : Layout
        The result's.
    layouts, values : sequences of Layout, and of Tensor, array or number
        The operands'.
    """
    for layout, x in zip(layouts, values, strict=True):
        if _is_constant(layout, out):
            same = _with_whole_shards(layout, out) if out.special or layout.special else out
            state.distribution.note_constant(name, same, x.array if x.__class__ in TENSORS else x)


def _is_constant(x: Layout, out: Layout) -> bool:
    """Whether an operand is constant on an axis of several ranks on which the result is one value; see `prepared`."""
    return any(
        size > 1 and (a is C or a is D) and (b is R or b is I or b is P or type(b) is Shard)
        for a, b, size in zip(x.labels, out.labels, out.grid.sizes, strict=True)
    )


def _beside(out: Layout, layouts: Sequence[Layout], arrays: Sequence[Any]) -> list[bool]:
    """Whether each operand is Varying and has an element for each of a part with which it is combined."""
    shapes = [np.shape(x) for x in arrays]
    ndim = max(map(len, shapes))

    def is_beside(layout: Layout, shape: tuple[int, ...]) -> bool:
        return any(
            size > 1 and a is V and type(b) is Shard and (d := b.dim - ndim + len(shape)) >= 0 and shape[d] > 1
            for a, b, size in zip(layout.labels, out.labels, out.grid.sizes, strict=True)
        )

    return list(map(is_beside, layouts, shapes))


def _with_whole_shards(x: Layout, out: Layout) -> Layout:
    """The layout of a result, with R in the place of Shard: a constant is one for the parts of one value, too.

    On an axis on which the operand is itself a Shard, its parts differ and are not compared.
    """
    labels = [R if type(b) is Shard else b for b in out.labels]
    return out.grid.layout([V if type(a) is Shard else b for a, b in zip(x.labels, labels, strict=True)])


def compared(out: Layout, grid: Grid) -> bool:
    """Whether a result is R, I or P along an axis of several ranks, so that constants in it must be the same."""
    return any(
        size > 1 and (x is R or x is I or x is P) for x, size in zip(out.labels, grid.sizes, strict=True)
    )


def shapes_and_kinds(arrays: Sequence[Any]) -> tuple[list[tuple[int, ...]], list[bool]]:
    """The operands' shapes, and whether each is of a floating or complex dtype, as `infer` takes them."""
    shapes = [tuple(int(n) for n in np.shape(a)) for a in arrays]
    return shapes, [hasattr(a, "dtype") and a.dtype.kind in "fcV" for a in arrays]


class _Documentation:
    """The docstring of a class, and of its instances, the operations: their own if they have one, or made from them."""

    def __init__(self, of_class: str | None):
        self.of_class = of_class

    def __get__(self, op: Any, cls: Any) -> str | None:
        if op is None:
            return self.of_class
        from ..formula import docstring  # loaded when the first text is asked for

        return docstring(op)


Primitive.__doc__ = _Documentation(Primitive.__doc__)  # type: ignore[assignment]  # as for subclasses

op = Primitive
"""Declare an operation: see `Primitive`."""
