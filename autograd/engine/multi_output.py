"""Operations with several outputs: one node for the operation, and one small node for each output.

    eigh = Several("eigh", "N", numpy.linalg.eigh, rule, saves="y", dims=..., outputs=...)

The declaration is a `Primitive`'s, with these differences:

adjoint  ``rule(cts, ys, *operands, *options)`` gets one cotangent per output, None for one that nothing depends on.
tangent  Returns one tangent per output. Without it the adjoint is transposed.
saves    "y" keeps all outputs.
dims     Returns a list with, per output, what `dims` of an operation with one output returns.
outputs  ``outputs(*operands, *options)`` -> (shape, dtype) per output, for arrays that have no values.

On the tape each output is a node whose parent is the operation's node. Its step of a sweep adds (index, cotangent) to
the parent's `Cotangents`, so that the operation's own step runs once, with the cotangents of all outputs.
Users' primitives (`custom.primitive`) and checkpoints (`transforms.rematerialise`) use the same nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..arrays.device import is_inexact, zeros_on
from ..arrays.shape_only import Shaped
from ..errors import typed_errors
from ..layouts.inference import infer
from ..layouts.layout import Layout
from ..layouts.messages import REJECTED
from .checked_pull import add_cotangents, check_rules_on, labelled, lift_operands
from .dispatch import announce, raise_unfit
from .events import listeners
from .forward_mode import transpose
from .primitive import Dims, Primitive, Rule, Signature, shapes_and_kinds
from .promotion import dtype_to_round_to, mixed, promoted, rounded_to, wide
from .recording import FREE, Node, Recording
from .state import state
from .sweep import Sweep
from .tensor import TENSORS, Tensor, may_need_gradient, place_off_tape, relabel

__all__ = ["OUTPUT", "Cotangents", "Several", "append_output", "append_outputs", "find_outputs"]


class Cotangents:
    """The cotangents of some outputs of one operation, by index. Sweeps merge them by addition."""

    __slots__ = ("found",)

    def __init__(self, found: dict[int, Any]):
        self.found = found

    def __add__(self, other: Cotangents) -> Cotangents:
        return Cotangents({**self.found, **other.found})  # each output's node contributes its cotangent once


class _Output:
    """The node of one output. Its options are (index,), its parent is the operation's node."""

    communicates = False
    name = "output"

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        sweep.add(node[3][0], Cotangents({node[4][0]: ct}))

    def push(self, node: Node, carried: list[Any], start: int, *context: Any) -> Any:
        (parent,), (i,) = node[3], node[4]
        of_all = carried[parent - start] if parent >= start else None
        return None if of_all is None else of_all[i]


OUTPUT = _Output()


def append_output(recording: Recording, parent: int, i: int, array: Any, layout: Layout | None) -> Tensor:
    """Append the node of output i of the operation at place `parent`; returns the output's Tensor."""
    return Tensor(array, layout, recording, recording.append((OUTPUT, None, (), (parent,), (i,), None, None)))


def append_outputs(recording: Recording, parent: int, ys: Sequence[Any], layouts: Sequence[Any]) -> list[Any]:
    """The outputs as Tensors. Each one with a derivative gets a node, directly after the operation's node.

    Outputs that are not arrays are returned unchanged.
    """
    found = []
    for i, (y, layout) in enumerate(zip(ys, layouts, strict=True)):
        if not hasattr(y, "dtype"):
            found.append(y)
        elif is_inexact(y.dtype):
            found.append(append_output(recording, parent, i, y, layout))
        else:
            found.append(Tensor(y, layout, None, FREE))
    return found


def find_outputs(recording: Recording | None, parent: int, ys: Sequence[Any], layouts: Sequence[Any]) -> list[Any]:
    """The outputs for the rules of a recorded sweep, at their places; without a recording they only get layouts."""
    place, found = parent, []
    for y, layout in zip(ys, layouts, strict=True):
        if not hasattr(y, "dtype"):
            found.append(y)
        elif recording is None or not is_inexact(y.dtype):
            found.append(Tensor(y, layout))
        else:
            place += 1
            found.append(Tensor(y, layout, recording, place))
    return found


def _place_of(recording: Recording, x: Any, letter: str) -> int:
    """The place of an operand on a recording; -1 where it needs no cotangent."""
    if x.__class__ in TENSORS and letter != "S" and may_need_gradient(x) and is_inexact(x.array.dtype):
        return x.node if x.tape is recording else recording.enter(x)
    return -1


class _View:
    """Presents one output of a `Several` to layout inference as an operation with one output."""

    def __init__(self, op: Several, index: int):
        self.name, self.letters, self.operand_name = op.name, op.letters, op.operand_name
        dims = op.dims
        self.dims = None if dims is None else lambda shapes, options: dims(shapes, options)[index]


class Several(Primitive):
    """A differentiable operation with several outputs. On arrays it returns the result of its function.

    Parameters
    ----------
    outputs : callable
        ``outputs(*operands, *options)`` gives (shape, dtype) per output without looking at values.

    Examples
    --------
    >>> import numpy, autograd as ag
    >>> from autograd.engine.multi_output import Several
    >>> both = Several("sum and difference (example)", "a a", lambda x, y: (x + y, x - y),
    ...                (lambda cts, ys, x, y: sum(c for c in cts if c is not None),
    ...                 lambda cts, ys, x, y: (0 if cts[0] is None else cts[0]) - (0 if cts[1] is None else cts[1])),
    ...                outputs=lambda x, y: [(x.shape, x.dtype)] * 2)
    >>> def f(x, y):
    ...     plus, minus = both(x, y)
    ...     return (plus * minus).sum()
    >>> [g.tolist() for g in ag.grad(f, (0, 1))(numpy.array([3.0]), numpy.array([2.0]))]
    [[6.0], [-4.0]]
    """

    __call__: Callable[..., Any]  # several Tensors

    @typed_errors
    def __init__(
        self, name: str, word: str, function: Callable[..., Any], adjoint: Sequence[Rule | None] | Rule, *,
        outputs: Callable[..., Any], dims: Dims | None = None, **words: Any,
    ):  # fmt: skip
        rules: Sequence[Rule | None] = (adjoint,) if callable(adjoint) else adjoint
        super().__init__(name, word, function, rules, dims=dims, **words)
        self.outputs = outputs

    # -- the call ------------------------------------------------------------------------------------------------
    def bind(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        """The call, and the step of a reverse sweep."""
        return self._call, self._pull

    def _call(self, *xs: Any, options: tuple[Any, ...] = (), announced: bool = False) -> Any:
        """Run the operation. Returns a tuple of Tensors, a named one if the function returns a named one."""
        if listeners and not announced:
            return announce(self, xs, options)
        dtypes = [x.array.dtype for x in xs if x.__class__ in TENSORS]
        if not dtypes:
            return self.function(*xs, *options)
        if len(dtypes) < len(xs) or (self.promotes and mixed(*dtypes)):
            return self._call(*promoted(self, xs), options=options, announced=announced)
        arrays = tuple(x.array for x in xs)
        try:
            ys, kind = self.run(arrays, options)
        except REJECTED as error:
            raise_unfit(self, error, xs)
        signature = None
        layouts: Any = [None] * len(ys)
        if state.grid is not None or any(x.__class__ in TENSORS and x.layout is not None for x in xs):
            key = tuple([x.layout for x in xs]), tuple(dtypes), tuple([a.shape for a in arrays]), options
            signature = self.signatures.get(key) or self.sign(key, xs, arrays, options)
            layouts = signature.out
        recording = state.recording
        letters = self.letters(len(xs))
        places = () if recording is None else tuple(map(partial(_place_of, recording), xs, letters))
        if recording is None or max(places, default=-1) < 0:
            return kind([
                Tensor(y, layout, None, place_off_tape(y, xs, letters))
                for y, layout in zip(ys, layouts, strict=True)
            ])  # fmt: skip
        kept = tuple(a if keep else None for a, keep in zip(arrays, map(self.keeps, range(len(xs))), strict=True))
        for a, place in zip(kept, places, strict=True):
            if place < 0 and a is not None:
                recording.lock(a)
        shapes = tuple((tuple(y.shape), y.dtype) for y in ys)
        main = recording.append((self, ys if self.keeps_y else None, kept, places, options, shapes, signature))
        return kind(append_outputs(recording, main, ys, layouts))

    def run(self, arrays: Sequence[Any], options: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """The outputs' arrays, and the function that makes the result from them."""
        shape_only = next((a for a in arrays if type(a) is Shaped), None)
        if shape_only is not None:
            return tuple(Shaped(s, d, shape_only.why) for s, d in self.outputs(*arrays, *options)), tuple
        ys = self.function(*arrays, *options)
        return tuple(ys), getattr(type(ys), "_make", tuple)

    # -- layouts -------------------------------------------------------------------------------------------------
    def views(self, arrays: Sequence[Any], options: tuple[Any, ...]) -> list[Any]:
        """One object per output, each like an operation with one output, for inference."""
        return [_View(self, i) for i in range(len(self.outputs(*arrays, *options)))]

    def inferred(
        self, layouts: Sequence[Layout], arrays: Sequence[Any], options: tuple[Any, ...], xs: Sequence[Any] = ()
    ) -> Signature:
        """A signature whose `out` is a tuple of layouts, one per output."""
        shapes, real = shapes_and_kinds(arrays)
        outs = tuple(infer(view, layouts, shapes, real, options, arrays, xs) for view in self.views(arrays, options))
        self.announce_use(layouts, arrays, options)
        signature = Signature(tuple(layouts), outs[0])
        signature.out = outs  # type: ignore[assignment]  # a layout per output
        return signature

    # -- the sweeps ----------------------------------------------------------------------------------------------
    def _given(self, node: Node, ct: Cotangents) -> tuple[Any, ...]:
        return tuple(ct.found.get(i) for i in range(len(node[5])))

    def _pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        ys, xs, signature = node[1], node[2], node[6]
        cts = self._given(node, ct)
        if signature is not None and not signature.checked:
            self.check(node, cts)
        if sweep.record:
            ys, xs = self.lift(node, sweep.recording, sweep.place)
            if signature is not None:
                cts = self._each(relabel, cts, [out.dual for out in signature.out])
        add_cotangents(self, node, cts, ys, xs, sweep)

    @staticmethod
    def _each(function: Callable[[Any, Layout], Any], values: Sequence[Any], layouts: Sequence[Layout]) -> Any:
        """Apply the function to each output's value and layout; None where there is no value."""
        return tuple([None if x is None else function(x, layout) for x, layout in zip(values, layouts, strict=True)])

    def lift(self, node: Node, tape: Recording | None, place: int = -1) -> tuple[Any, tuple[Any, ...]]:
        """The node's arrays as Tensors; the outputs follow it on the list, one place each where they are inexact."""
        ys, signature = node[1], node[6]
        if ys is None:
            return None, lift_operands(node, tape)
        layouts: Any = (None,) * len(ys) if signature is None else signature.out
        return tuple(find_outputs(tape, place, ys, layouts)), lift_operands(node, tape)

    def check(self, node: Node, cts: Sequence[Any]) -> None:
        """Check, once per signature, that each rule gives a cotangent of its operand's dual layout."""
        signature = node[6]
        duals = [out.dual for out in signature.out]
        check_rules_on(self, node, self._each(labelled, cts, duals), *self.lift(node, None))
        signature.checked &= all(c is not None for c in cts)  # with a None, a rule may have run only in part

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, place: int) -> Any:
        """One step of forward mode: a tuple of the outputs' tangents."""
        _, ys, xs, places, options, _, signature = node
        tangents = [carried[p - start] if p >= start else None for p in places]
        if all(t is None for t in tangents):
            return None
        if record:
            ys, xs = self.lift(node, recording, place)
        total: list[Any] = [None] * len(node[5])
        for i, t in enumerate(tangents):
            if t is None:
                continue
            dtype = dtype_to_round_to(t)
            dt, known, operands = (t, ys, xs) if dtype is None else wide((t, ys, xs))
            if i < len(self.tangent) and self.tangent[i] is not None:
                dys = self.tangent[i](dt, known, *operands, *options)
            else:
                dys = self._transposed(i, dt, known, operands, node)
            dys = dys if dtype is None else rounded_to(dtype, dys)
            total = [b if a is None else a if b is None else a + b for a, b in zip(total, dys, strict=True)]
        if record and signature is not None:
            return self._each(relabel, total, signature.out)
        return total

    def _transposed(self, i: int, t: Any, ys: Any, xs: tuple[Any, ...], node: Node) -> list[Any]:
        """The tangents of all outputs as the transpose of operand i's adjoint."""
        options, shapes, signature = node[4], node[5], node[6]
        lifted = t.__class__ in TENSORS
        layouts = [None] * len(shapes) if signature is None or not lifted else [x.dual for x in signature.out]
        zeros = [
            Tensor(zeros_on(t.array if lifted else t, shape, dtype), layout) if is_inexact(dtype) else None
            for (shape, dtype), layout in zip(shapes, layouts, strict=True)
        ]
        return transpose(lambda cts: [self.adjoint[i](tuple(cts), ys, *xs, *options)], zeros, [t], lifted)
