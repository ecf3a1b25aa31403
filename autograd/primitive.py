"""How an operation is declared, and what happens when it is called.

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

From it come reverse mode, forward mode, higher order, layout inference and the registry's tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import events
from .arrays import is_array, is_inexact
from .errors import LayoutError, RingtapeError, ShapeError
from .events import listeners
from .layout import C, D, I, Layout, P, R, RankFloat, RankInt, V, describe, infer, layout_of
from .sites import call_site
from .state import state
from .tape import Node, Recording, Sweep, Tape, may_relabel, relabel
from .tensor import FREE, TENSORS, Tensor, interior

__all__ = ["Primitive", "Signature", "broadcast", "op", "registry", "unbroadcast"]

Rule = Callable[..., Any]
Dims = Callable[[Sequence[tuple[int, ...]], Any], Any]

registry: dict[str, Primitive] = {}
"""Every operation by name: the test plan."""


def broadcast(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    """The `dims` of elementwise operations: NumPy's broadcasting."""
    ndim = max(map(len, shapes))
    return [tuple(range(ndim - len(shape), ndim)) for shape in shapes]


def unbroadcast(ct: Any, shape: tuple[int, ...]) -> Any:
    """Sum a cotangent over the dimensions along which an operand of `shape` was repeated."""
    have = ct.shape
    if have == shape:
        return ct
    if len(have) == 2 and have[1:] == shape and type(ct) is np.ndarray and ct.dtype.kind == "f":  # a bias
        return ones(have[0], ct.dtype).dot(ct)  # BLAS, in half the time of a sum over rows
    axes = _repeated.get((have, shape))
    if axes is None:
        extra = len(have) - len(shape)
        axes = tuple(range(extra)) + tuple(i + extra for i, n in enumerate(shape) if n == 1 and have[i + extra] != 1)
        if len(_repeated) > 4096:
            _repeated.clear()
        _repeated[have, shape] = axes
    ct = _add_reduce(ct, axes) if type(ct) is np.ndarray else ct.sum(axis=axes)
    return ct if ct.shape == shape else ct.reshape(shape)


def ones(n: int, dtype: Any) -> Any:
    """A vector of ones, made once."""
    found = _ones_made.get((n, dtype))
    if found is None:
        if len(_ones_made) > 64:
            _ones_made.clear()
        found = _ones_made[n, dtype] = np.ones(n, dtype)
    return found


_ones_made: dict[Any, Any] = {}
_repeated: dict[Any, tuple[int, ...]] = {}  # (cotangent's shape, operand's shape) -> axes to sum over
_add_reduce: Any = np.add.reduce  # ndarray.sum without its wrapper


def identity(ct: Any, *_: Any) -> Any:
    """The rule of an operand that is handed on as it is; sweeps know it and make no call."""
    return ct


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


class Signature:
    """The labels of one use of an operation.

    Its rules are checked once with labelled Tensors; then raw arrays suffice.

    Attributes
    ----------
    apart : frozenset of int
        Operands that this rank holds though the result, which another operand roots elsewhere, is absent here: the
        result's cotangent is absent too, and theirs from it is zero. A signature that has some is never done with
        being checked, so that its sweeps take the general path, which leaves them out.
    """

    __slots__ = ("apart", "checked", "layouts", "out")

    def __init__(self, layouts: tuple[Layout, ...], out: Layout):
        self.layouts = layouts
        self.out = out
        self.checked = False
        absent = out.rooted and out.absent_beyond(())
        self.apart = frozenset(i for i, x in enumerate(layouts) if absent and not x.absent_beyond(()))


class Primitive:
    """A differentiable operation. Calling it with no Tensor among the operands runs the bare function."""

    communicates = False

    def __init__(
        self,
        name: str,
        word: str,
        function: Callable[..., Any],
        adjoint: Sequence[Rule | None] = (),
        *,
        saves: str | Sequence[str] = "",
        dims: Dims | None = None,
        tangent: Sequence[Rule | None] = (),
        operands: str = "x y z",
        promotes: bool = True,
        ranked: bool = False,
        keeping: Callable[..., tuple[Any, Any]] | None = None,
    ):
        self.name = name
        self.keeping = keeping
        self.words = word.rstrip("*").split()
        self.variadic = word.endswith("*")
        self.function = function
        self.adjoint = tuple(adjoint)
        self.dims = dims
        self.tangent = tuple(tangent)
        self.operands = operands.split()
        self.promotes = promotes
        self.ranked = ranked
        self.elementwise = dims is broadcast
        self.second_free = self.words[1:] == ["S"]  # no cotangent, so any dtype goes
        self.signatures: dict[Any, Signature] = {}
        reads = "".join(saves)
        self.keeps_y = "y" in reads
        self.keeps_a, self.keeps_b = "0" in reads, "1" in reads
        self.keeps = tuple(str(i) in reads for i in range(max(len(self.words), 3)))
        registry[name] = self

    def __repr__(self) -> str:
        return f"<operation {self.name}: {' '.join(self.words)}{'*' if self.variadic else ''}>"

    # -- what the word says ------------------------------------------------------------------------------------
    def letters(self, n: int) -> str:
        """One letter per operand of a call with n operands."""
        return "".join(self.words) + (self.words[-1] * (n - len(self.words)) if self.variadic else "")

    def operand_name(self, i: int) -> str:
        """What errors call operand i."""
        return self.operands[i] if i < len(self.operands) and not self.variadic else f"operand {i}"

    def cotangent(self, i: int, ct: Any, y: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        """The adjoint with respect to operand i, before broadcasting is undone."""
        if self.variadic:
            return self.adjoint[0](ct, y, xs, i, *options)  # type: ignore[misc]
        return self.adjoint[i](ct, y, *xs, *options)  # type: ignore[misc]

    def unfit(self, error: ValueError, xs: Sequence[Any]) -> Exception:
        """What to raise where the function itself refused its operands: their shapes, names and the call site."""
        if isinstance(error, RingtapeError):
            return error
        shown = []
        for i, x in enumerate(xs):
            array, layout = (x.array, x.layout) if x.__class__ in TENSORS else (x, None)
            shown.append(f"{self.operand_name(i)}: {describe(array, np.shape(array), layout)}")
        return ShapeError(f"{self.name}({', '.join(shown)}): {error}" + call_site())

    # -- the call ----------------------------------------------------------------------------------------------
    def __call__(self, *xs: Any, options: tuple[Any, ...] = ()) -> Any:
        for x in xs:
            if x.__class__ in TENSORS:
                break
        else:
            return self.function(*xs, *options)
        if listeners:
            events.emit("begin", "forward", self.name)
            y = self.apply(xs, options)
            events.emit("end", "forward", self.name, self, xs, y, options)
            return y
        return self.apply(xs, options)

    def apply(self, xs: Sequence[Any], options: tuple[Any, ...]) -> Tensor:
        """Any operands: promotion, layouts, the function, the record. The shortcuts below do the same for less."""
        xs = self._promote(xs) if self.promotes and len(xs) > 1 else xs
        arrays = tuple(x.array if x.__class__ in TENSORS else x for x in xs)
        recording = state.recording
        kept = None
        try:
            if self.keeping is not None and recording is not None:
                y, kept = self.keeping(*arrays, *options)
            else:
                y = self.function(*arrays, *options)
        except ValueError as error:
            raise self.unfit(error, xs) from error
        signature = None
        if state.grid is not None or any(x.__class__ in TENSORS and x.layout is not None for x in xs):
            signature = self.sign(xs, arrays, options)
        layout = None if signature is None else signature.out
        if recording is None or not is_inexact(y.dtype):
            return Tensor(y, layout, None, -1 if recording is None else FREE)
        places = []
        letters = self.letters(len(xs))
        for x, letter in zip(xs, letters, strict=True):
            if x.__class__ in TENSORS:
                tracked = letter != "S" and (x.tape is not None or x.requires_grad) and is_inexact(x.array.dtype)
                places.append((x.node if x.tape is recording else recording.enter(x)) if tracked else -1)
            else:
                places.append(-1)
        if max(places, default=-1) < 0:
            return Tensor(y, layout, None, FREE)
        kept = kept if self.keeping is not None else y if self.keeps_y else None
        return self.record(recording, y, kept, arrays, tuple(places), options, signature, layout)

    def record(
        self,
        recording: Recording,
        y: Any,
        kept_y: Any,
        arrays: tuple[Any, ...],
        places: tuple[int, ...],
        options: tuple[Any, ...],
        signature: Signature | None,
        layout: Layout | None,
    ) -> Tensor:
        """Append the node and return its output."""
        shapes = None
        if self.elementwise and len(arrays) > 1:
            found = tuple(np.shape(a) for a in arrays)
            shapes = None if all(s == y.shape for s in found) else found
        if self.variadic:
            kept: tuple[Any, ...] = arrays
        else:
            kept = tuple(a if keep else None for a, keep in zip(arrays, self.keeps, strict=False))
        for a, place in zip(kept, places, strict=True):
            if place < 0 and a is not None:
                recording.lock(a)
        nodes = recording.nodes
        nodes.append((self, kept_y, kept, places, options, shapes, signature))
        return Tensor(y, layout, recording, len(nodes) - 1)

    def _promote(self, xs: Sequence[Any]) -> Sequence[Any]:
        """Bring differentiable operands to the result's dtype by a recorded cast, so that rules see one dtype."""
        found = {x.array.dtype for x in xs if x.__class__ in TENSORS}
        if len(found) == 1 and all(x.__class__ in TENSORS or x.__class__ in (int, float, bool) for x in xs):
            return xs
        letters = self.letters(len(xs))
        taking = [x for x, letter in zip(xs, letters, strict=True) if letter != "S"]
        if not taking:
            return xs
        dtype = np.result_type(*map(_kind, taking))
        cast = registry["astype"]
        return [
            cast(x, options=(dtype, x.array.dtype))
            if letter != "S" and x.__class__ in TENSORS and is_inexact(x.array.dtype) and x.array.dtype != dtype
            else x
            for x, letter in zip(xs, letters, strict=True)
        ]

    # -- layouts -----------------------------------------------------------------------------------------------
    def sign(self, xs: Sequence[Any], arrays: Sequence[Any], options: tuple[Any, ...]) -> Signature:
        """The signature of a call, inferred once for its labels (and, where parts are sharded, shapes)."""
        grid = state.grid
        for x in xs:
            if x.__class__ in TENSORS and x.layout is not None:
                grid = x.layout.grid
                break
        assert grid is not None
        layouts = tuple([x.labelled(grid) if x.__class__ in TENSORS else layout_of(x, grid) for x in xs])
        kinds = tuple([a.dtype.kind if hasattr(a, "dtype") else "" for a in arrays])
        ranked = rank_axes(options) if self.ranked else frozenset()
        key: Any = (layouts, kinds, ranked)
        for x in layouts:
            if x.special:
                shapes = tuple([a.shape if hasattr(a, "shape") else () for a in arrays])
                key = (layouts, kinds, ranked, shapes, _frozen(options) if self.ranked else options)
                break
        signature = self.signatures.get(key)
        if signature is None:
            shapes = tuple(tuple(int(n) for n in np.shape(a)) for a in arrays)
            real = [kind in ("f", "c") for kind in kinds]
            operands = layouts
            if ranked:  # an option that differs between ranks makes copies into values of their own
                operands = tuple(_vary(x, ranked, self.name) for x in layouts)
            out = infer(self, operands, shapes, real, options, arrays)
            if len(self.signatures) > 4096:  # programs with ever new shapes must not grow for ever
                self.signatures.clear()
            signature = self.signatures[key] = Signature(layouts, out)
        return signature

    # -- the sweeps --------------------------------------------------------------------------------------------
    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """One step of the reverse sweep: the cotangent of every operand that needs one."""
        _, y, xs, places, options, shapes, signature = node
        if signature is not None and not signature.checked:
            self.check(node, ct)
        if sweep.record:
            y, xs = self.lift(node, sweep)
            ct = ct if signature is None else relabel(ct, signature.out.dual)
        for i, place in enumerate(places):
            if place >= 0 and (signature is None or i not in signature.apart):
                g = self.cotangent(i, ct, y, xs, options)
                if shapes is not None:
                    g = unbroadcast(g, shapes[i])
                if sweep.record and signature is not None:
                    g = relabel(g, signature.layouts[i].dual)
                sweep.add(place, g)

    def lift(self, node: Node, sweep: Sweep | None) -> tuple[Any, tuple[Any, ...]]:
        """The node's arrays as Tensors: connected to their tape for a recorded sweep, else labelled only."""
        _, y, xs, places, _, _, signature = node
        tape = None if sweep is None else sweep.recording
        layouts = (None,) * len(xs) if signature is None else signature.layouts
        lifted = tuple(
            Tensor(a, layout, *((tape, p) if tape is not None and p >= 0 else ())) if is_array(a) else a
            for a, p, layout in zip(xs, places, layouts, strict=True)
        )
        if self.keeping is not None:
            y = None
        elif y is not None:
            y = Tensor(y, None if signature is None else signature.out, tape, -1 if sweep is None else sweep.place)
        return y, lifted

    def check(self, node: Node, ct: Any) -> None:
        """Prove, once per signature, that each rule gives a cotangent of its operand's dual layout."""
        _, _, _, places, options, shapes, signature = node
        ct = Tensor(ct.array if ct.__class__ in TENSORS else ct, signature.out.dual)
        y, xs = self.lift(node, None)
        active, state.recording = state.recording, None
        try:
            for i, place in enumerate(places):
                if place < 0:
                    continue
                g = self.cotangent(i, ct, y, xs, options)
                g = g if shapes is None else unbroadcast(g, shapes[i])
                for axis, have, need in zip(
                    g.layout.grid.names, g.layout.labels, signature.layouts[i].dual.labels, strict=True
                ):
                    if not may_relabel(have, need):
                        raise LayoutError(
                            f"{self.name}'s adjoint for {self.operand_name(i)} is not linear in the cotangent: "
                            f"operands {signature.layouts}, axis {axis!r}: it gives {have.word}; needed: {need.word}"
                        )
        finally:
            state.recording = active
        signature.checked = not signature.apart

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, place: int) -> Any:
        """One step of forward mode: the output's tangent from the operands'."""
        _, y, xs, places, options, shapes, signature = node
        tangents = [carried[p - start] if p >= start else None for p in places]
        if all(t is None for t in tangents):
            return None
        out_shape = None if shapes is None else np.broadcast_shapes(*shapes)
        if self.keeping is not None:
            y = None
        if record:
            sweep = Sweep(recording, place, place, None, True)
            y, xs = self.lift(node, sweep)
        letters = self.letters(len(xs))
        total = None
        done = set()
        for i, t in enumerate(tangents):
            if t is None or letters[i] in done:
                continue
            if i < len(self.tangent) and self.tangent[i] is not None:
                dy = self.tangent[i](t, y, *xs, *options)  # type: ignore[misc]
            elif self.elementwise:
                # a diagonal Jacobian is its own transpose, so the adjoint rule serves
                t = (
                    t
                    if out_shape is None or t.shape == out_shape
                    else registry["broadcast_to"](t, options=(out_shape, t.shape))
                )
                dy = self.cotangent(i, t, y, xs, options)
            elif letters[i] != "N":
                joint = [j for j, letter in enumerate(letters) if letter == letters[i]]
                done.add(letters[i])
                operands = list(xs)
                for j in joint:
                    operands[j] = tangents[j] if tangents[j] is not None else xs[j] * 0
                dy = self(*operands, options=options)
            else:
                dy = self._transposed(i, t, y, xs, options)
            total = dy if total is None else total + dy
        if record and signature is not None:
            return relabel(total, signature.out)  # type: ignore[arg-type]
        return total

    def _transposed(self, i: int, t: Any, y: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        """The tangent rule of operand i as the transpose of its adjoint, which is linear in the cotangent."""
        like = y if y is not None else self(*xs, options=options)
        lifted = like.__class__ in TENSORS
        with Tape() as tape:
            zero = like * 0
            ct = tape.watch(zero if lifted else Tensor(zero))
            g = self.cotangent(i, ct, y, xs, options)
        found = tape.backward(
            [g], [t if t.__class__ in TENSORS else Tensor(t)], wanted=[ct], retain=True, record=lifted
        )
        assert found is not None
        return found[0]


class Unary(Primitive):
    """One operand: the same as `Primitive`, for less."""

    def __call__(self, x: Any, options: tuple[Any, ...] = ()) -> Any:  # type: ignore[override]
        if x.__class__ not in TENSORS:
            return self.function(x, *options)
        if listeners:
            return super().__call__(x, options=options)
        layout = x.layout
        a = x.array
        try:
            y = self.function(a, *options) if options else self.function(a)
        except ValueError as error:
            raise self.unfit(error, (x,)) from error
        signature = None
        dtype = a.dtype
        inexact = dtype is _F32 or dtype is _F64 or dtype.kind in "fc"
        if layout is not None:
            # options of operations that are not ranked are plain and hashable; shapes matter where parts are sharded
            key = (layout, a.shape, options) if layout.special or options else layout
            common = inexact and not self.ranked
            signature = self.signatures.get(key) if common else None
            if signature is None:
                signature = self.sign((x,), (a,), options)
                if common:
                    self.signatures[key] = signature
            layout = signature.out
        elif state.grid is not None:
            signature = self.sign((x,), (a,), options)
            layout = signature.out
        recording = state.recording
        if recording is None or not inexact:
            return interior(y, layout, None, -1 if recording is None else FREE)
        place = x.node if x.tape is recording else recording.enter(x)
        if place < 0 or (y.dtype is not dtype and y.dtype.kind not in "fc"):
            return interior(y, layout, None, FREE)
        nodes = recording.nodes
        kept = (a if self.keeps_a else None,)
        nodes.append((self, y if self.keeps_y else None, kept, (place,), options, None, signature))
        return interior(y, layout, recording, len(nodes) - 1)

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        _, y, (a,), (place,), options, _, signature = node
        if sweep.record or (signature is not None and not signature.checked):
            return super().pull(node, ct, sweep)
        rule: Any = self.adjoint[0]
        g = rule(ct, y, a, *options) if options else rule(ct, y, a)
        i = place - sweep.start
        if i >= 0:
            cts = sweep.cts
            known = cts[i]
            cts[i] = g if known is None else known + g
        else:
            sweep.add(place, g)
        return None


class Binary(Primitive):
    """Two operands that are both Tensors of one dtype, or a Tensor and a number: the same as `Primitive`, for less.

    `call` is the operation as a closure: it finds in cells what a method would look up on itself at every call, and it
    is what Tensor's operators are.
    """

    def __init__(self, *args: Any, neutral_zero: bool = False, **words: Any):
        super().__init__(*args, **words)
        self.call = self._closure(neutral_zero)

    def __call__(self, x: Any, y: Any, options: tuple[Any, ...] = ()) -> Any:  # type: ignore[override]
        return super().__call__(x, y, options=options) if options else self.call(x, y)

    def _closure(self, neutral_zero: bool) -> Callable[[Any, Any], Any]:
        op, general, function, signatures = self, super().__call__, self.function, self.signatures
        keeping = self.keeping
        elementwise, second_free = self.elementwise, self.second_free
        keeps_y, keeps_a, keeps_b = self.keeps_y, self.keeps_a, self.keeps_b

        def call(x: Any, y: Any) -> Any:
            kind = y.__class__
            number = kind is float or kind is int
            if x.__class__ not in TENSORS or not (number or kind in TENSORS) or listeners:
                return general(x, y)
            if neutral_zero and kind is int and y == 0:
                return x  # an exact literal 0 changes nothing, whatever x's layout: sum([...]) begins with it
            a = x.array
            lx = x.layout
            if number:
                b, ly = y, kind
            else:
                b = y.array
                ly = y.layout
            dtype = a.dtype
            if not ((dtype is _F32 or dtype is _F64) and (number or b.dtype is dtype)) and (
                dtype.kind not in "fc" or not (number or second_free or dtype == b.dtype)
            ):
                return op.apply((x, y), ())
            recording = state.recording
            kept_y = None
            try:
                if keeping is None or recording is None:
                    out = function(a, b)
                else:
                    out, kept_y = keeping(a, b)
            except ValueError as error:
                raise op.unfit(error, (x, y)) from error
            signature = layout = None
            if lx is not None and ly is not None:
                # shapes matter where parts are sharded
                special = lx.special or (not number and ly.special)
                key = (lx, ly, a.shape, () if number else b.shape) if special else (lx, ly)
                signature = signatures.get(key)
                if signature is None:
                    signature = signatures[key] = op.sign((x, y), (a, b), ())
                layout = signature.out
            elif lx is not None or (ly is not None and not number) or state.grid is not None:
                signature = op.sign((x, y), (a, b), ())
                layout = signature.out
            if recording is None:
                return interior(out, layout, None, -1)
            p = x.node if x.tape is recording else recording.enter(x)
            q = -1 if number or second_free else y.node if y.tape is recording else recording.enter(y)
            if p < 0 and q < 0:
                return interior(out, layout, None, FREE)
            if second_free:
                recording.lock(b)
            shapes = None
            if elementwise:
                sa, sb = a.shape, () if number else b.shape
                if sa != sb:
                    shapes = (sa, sb)
            kept = (a if keeps_a else None, b if keeps_b else None)
            nodes = recording.nodes
            nodes.append((op, out if keeps_y else kept_y, kept, (p, q), (), shapes, signature))
            return interior(out, layout, recording, len(nodes) - 1)

        return call

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        _, y, (a, b), (p, q), options, shapes, signature = node
        if sweep.record or (signature is not None and not signature.checked):
            return super().pull(node, ct, sweep)
        if options:
            return super().pull(node, ct, sweep)
        first, second = self.adjoint
        start, cts = sweep.start, sweep.cts
        if p >= 0:
            g = ct if first is identity else first(ct, y, a, b)  # type: ignore[misc]
            if shapes is not None:
                g = unbroadcast(g, shapes[0])
            if p >= start:
                known = cts[p - start]
                cts[p - start] = g if known is None else known + g
            else:
                sweep.add(p, g)
        if q >= 0:
            g = ct if second is identity else second(ct, y, a, b)  # type: ignore[misc]
            if shapes is not None:
                g = unbroadcast(g, shapes[1])
            if q >= start:
                known = cts[q - start]
                cts[q - start] = g if known is None else known + g
            else:
                sweep.add(q, g)
        return None


def _kind(x: Any) -> Any:
    """What decides promotion: an array's dtype, a Python number's (weak) self."""
    if x.__class__ in TENSORS:
        return x.array.dtype
    kinds: tuple[Any, ...] = (bool, int, float, complex)
    for kind in kinds:
        if isinstance(x, kind) and not is_array(x):
            return kind(x)
    return np.asarray(x).dtype if not is_array(x) else x.dtype


def rank_axes(options: Any) -> frozenset[str]:
    """The axes on which some integer among an operation's options differs between ranks."""
    if isinstance(options, RankInt | RankFloat):
        return options.axes
    if isinstance(options, slice):
        return rank_axes((options.start, options.stop, options.step))
    if isinstance(options, tuple | list):
        return frozenset().union(*map(rank_axes, options)) if options else frozenset()
    return frozenset()


def _vary(layout: Layout, axes: frozenset[str], name: str) -> Layout:
    """Copies that are used with a rank-dependent option are values of their own."""
    labels = list(layout.labels)
    for axis in axes:
        k = layout.grid.axis(axis)
        if labels[k] is I or labels[k] is P:
            raise LayoutError(
                f"{name}(x: {layout!r}) with an argument that differs between the ranks of axis {axis!r}\n  "
                f"axis {axis!r}: "
                f"x is {labels[k].word}, and each rank would take something else of it. Needed: Replicated or Varying\n"
                f"  fix: {'cast(x, ' if labels[k] is I else 'all_reduce(x, '}{axis!r}, to=R)" + call_site()
            )
        if labels[k] is R or labels[k] is C or labels[k] is D:
            labels[k] = V
    return layout.grid.layout(labels)


def _frozen(x: Any) -> Any:
    """Options as a dictionary key."""
    if isinstance(x, slice):
        return ("slice", x.start, x.stop, x.step)
    if isinstance(x, tuple | list):
        return tuple(map(_frozen, x))
    if isinstance(x, np.ndarray):
        return (x.shape, x.dtype.str, x.tobytes())
    return x


def op(
    name: str, word: str, function: Callable[..., Any], adjoint: Sequence[Rule | None] | Rule = (), **words: Any
) -> Primitive:
    """Declare an operation; see the module's text for the words.

    Examples
    --------
    >>> import numpy
    >>> from autograd.primitive import op, broadcast
    >>> cube = op("cube (example)", "N", lambda x: x * x * x, lambda ct, y, x: ct * (3 * x * x), saves="0",
    ...           dims=broadcast)
    >>> import autograd as ag
    >>> float(ag.grad(cube)(2.0))
    12.0
    """
    rules = (adjoint,) if callable(adjoint) else tuple(adjoint)
    count = len(word.rstrip("*").split())
    kind = {1: Unary, 2: Binary}.get(count, Primitive)
    if word.endswith("*") or word.startswith("S"):
        kind = Primitive
    return kind(name, word, function, rules, **words)
