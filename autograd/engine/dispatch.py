"""Dispatch: the call of an operation, and its step of a reverse sweep.

`bind` makes the two functions of an operation, ``call`` and ``pull``, from its declaration. They are closures with
separate versions for one, two, three and any number of operands, because every operation takes this path: with the
general ``pull`` alone a chain of operations on one number takes 1.26 times as long. All versions do the same:

call
    1. Read the operands' arrays, and their places on the tape that records (if one does).
    2. Look up the layouts, if there are any: inferred once per signature (`primitive.Signature`).
    3. Run the function on the arrays.
    4. Return the result as a Tensor, and append a node to the tape if a gradient can flow through it.
pull
    For each operand that needs a cotangent: apply its rule, undo broadcasting, add the result at the operand's place.

If one operand is a Tensor, Python numbers among the others are used unchanged. All other operands (lists, arrays,
numbers that differ between ranks, and Tensors of different dtypes) are first converted by `promotion.promoted`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ..arrays.half import total
from ..arrays.plain import require_plain
from ..errors import ArgumentError, RingtapeError, find_site, refused
from ..layouts.messages import REJECTED
from ..layouts.rank_values import frozen
from ..layouts.sizes import SIZES
from . import events
from .checked_pull import checked_pull
from .events import listeners
from .promotion import mixed, promoted
from .recording import FREE, OUTSIDE
from .state import state
from .tensor import TENSORS, Tensor, place_off_tape

__all__ = ["announce", "bind", "identity", "ones", "raise_unfit", "remembering", "unbroadcast", "without_tensors"]

# A dtype of kind "V" is bfloat16: `as_array` lets no other one in.
_NUMBERS = frozenset((float, int))
_PLAIN = frozenset((float, int, np.ndarray))
_SCALARS = frozenset((np.float64, np.float32, np.float16, np.complex64, np.complex128))
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
_new = object.__new__


def identity(ct: Any, *_: Any) -> Any:
    """The rule of an operand whose cotangent is the result's cotangent; sweeps skip the call."""
    return ct


def bind(op: Any) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The functions ``call(*operands, options=())`` and ``pull(node, ct, sweep)`` of an operation."""
    n = _count(op)
    call = {1: _call_one, 2: _call_two, 3: _call_three}.get(n, _call_many)(op)
    call.__name__ = call.__qualname__ = op.name  # Python's message about a wrong argument names it
    return call, {1: _pull_one, 2: _pull_two, 3: _pull_three}.get(n, _pull_many)(op)


def _count(op: Any) -> int:
    """The number of operands that an operation's functions are made for; 0 for those that take any number."""
    return 0 if op.variadic or (len(op.words) == 3 and "S" in op.words) else len(op.words)


def _too_many(op: Any, given: Any) -> ArgumentError:
    """The error for one positional argument more than an operation takes, such as NumPy's `out`."""
    text = f"{op.name}: {len(op.words)} operands are needed; also given: {type(given).__name__}"
    return ArgumentError(text)


def _raise_unhashable(op: Any, options: Any, error: TypeError) -> NoReturn:
    """Raise the typed error for options that cannot be the key of a signature."""
    if isinstance(error, RingtapeError):
        raise error
    if options.__class__ is not tuple:
        raise _too_many(op, options) from error
    raise refused(error, op.name, options) from error


def raise_unfit(op: Any, error: Exception, xs: Any) -> NoReturn:
    """Raise the error for operands that an operation's function rejects; see `layouts.texts`."""
    from ..layouts.texts import raise_unfit  # loaded when it is told

    raise_unfit(op, error, xs)


def announce(op: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """Call an operation and emit its events. While a step is captured, its recorder makes the call.

    For an operation with `instead`, the events are those of `instead`, unless all listeners take operations as they
    are.
    """
    if state.recorder is not None:
        return state.recorder.operation(op, xs, options)
    if not any(x.__class__ in TENSORS for x in xs):
        return without_tensors(op, xs, options)
    if op.instead is not None and not events.all_whole():
        return op.instead(*xs, *options)
    xs = _promoted_before(op, xs, options)
    with events.emitting("forward", op.name, op, xs, options):
        y = op.call(*xs, options=options, announced=True)
    events.emit("end", "forward", op.name, op, xs, y, options)
    return y


def _promoted_before(op: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands of an operation, those that are cast already cast: the events of the casts come before its own."""
    if not op.promotes or (len(op.words) != len(xs) and not op.variadic):
        return xs
    letters, recording = op.letters(len(xs)), state.recording
    try:
        if not _mixed(xs, letters):
            return xs
        if recording is not None and _count(op) != 2 and not hasattr(op, "outputs"):  # leaves enter before the casts
            for x, letter in zip(xs, letters, strict=True):
                if letter != "S" and x.__class__ in TENSORS and x.tape is not recording:
                    recording.enter(x)
        return tuple(promoted(op, xs))
    except RingtapeError as error:
        events.refuse(op.name, op, xs, options, error=error)
        raise


def without_tensors(op: Any, xs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """The result for operands none of which is a Tensor: plain values. NumPy's own functions keep masks and units."""
    if op.function.__class__ is not np.ufunc:
        for x in xs:
            if x.__class__ not in _PLAIN:
                require_plain(x, op.name)
    try:
        return (op.instead or op.function)(*xs, *options)
    except REJECTED as error:
        raise_unfit(op, error, xs)


# -- one operand -----------------------------------------------------------------------------------------------------
def _call_one(op: Any) -> Callable[..., Any]:
    function, keeping, instead, signatures = op.function, op.keeping, op.instead, op.signatures
    differentiable, keep, keeps_y, ranked = op.words[0] != "S", op.keeps(0), op.keeps_y, op.ranked
    cancels = op.cancels

    def call(x: Any, options: tuple[Any, ...] = (), announced: bool = False) -> Any:
        if listeners and not announced:
            return announce(op, (x,), options)
        if x.__class__ not in TENSORS:
            if options.__class__ is not tuple:
                raise _too_many(op, options)
            return without_tensors(op, (x,), options)
        a = x.array
        recording: Any = state.recording
        place = OUTSIDE
        if recording is not None and differentiable:
            place = x.node if x.tape is recording else recording.enter(x)
        signature = layout = None
        if x.layout is not None or (recording is None and state.grid is not None):
            key = (x.layout, a.shape, a.dtype, frozen(options, (x,)) if ranked else options)
            try:
                signature = signatures.get(key) or op.sign(key, (x,), (a,), options)
            except TypeError as error:
                _raise_unhashable(op, options, error)
            layout = signature.at_once
            if layout is None:
                layout = op.prepared(signature, (x,), options)
                if layout is None:
                    return instead(x)
        kept = None
        try:
            if keeping is not None and recording is not None:
                y, kept = keeping(a, *options)
            else:
                y = function(a, *options) if options else function(a)
                if y is NotImplemented and instead is not None:
                    return instead(x)
        except REJECTED as error:
            if options.__class__ is not tuple:
                raise _too_many(op, options) from error
            raise_unfit(op, error, (x,))
        z = _new(Tensor)
        z.array = y
        z.layout = layout
        if place < 0 or not ((dtype := y.dtype) is a.dtype or dtype.kind in "fcV"):
            z.tape = None
            z.node = FREE if recording is not None and differentiable else place_off_tape(y, (x,), op.words)
            return z
        z.tape = recording
        nodes = recording.nodes
        z.node = len(nodes)
        if cancels and dtype is not _F32 and dtype is not _F64 and dtype.itemsize == 2:
            nodes.append((op, y, (a,), (place,), options, None, signature))
            return z
        nodes.append((op, y if keeps_y else kept, (a if keep else None,), (place,), options, None, signature))
        return z

    return call


def _pull_one(op: Any) -> Callable[..., None]:
    rule = op.rule(0)
    same = rule is identity

    def pull(node: Any, ct: Any, sweep: Any) -> None:
        _, y, (a,), (place,), options, _, signature = node
        if sweep.general or (signature is not None and not signature.checked):
            checked_pull(op, node, ct, sweep)
            return
        if place >= 0:
            g = ct if same else rule(ct, y, a, *options) if options else rule(ct, y, a)
            cts = sweep.cts
            if sweep.start:
                sweep.add(place, g)
            elif cts[place] is None:
                cts[place] = g
            else:
                cts[place] = cts[place] + g

    return pull


# -- two operands ----------------------------------------------------------------------------------------------------
def _call_two(op: Any) -> Callable[..., Any]:
    function, keeping, instead, signatures = op.function, op.keeping, op.instead, op.signatures
    differentiable0, differentiable1 = (word != "S" for word in op.words)
    keep0, keep1, keeps_y = op.keeps(0), op.keeps(1), op.keeps_y
    lock0, lock1 = keep0 and not differentiable0, keep1 and not differentiable1
    elementwise, ranked, neutral_zero = op.elementwise, op.ranked, op.neutral_zero
    promotes, both = op.promotes, differentiable0 and differentiable1

    def call(x0: Any, x1: Any, options: tuple[Any, ...] = (), announced: bool = False) -> Any:
        if listeners and not announced:
            return announce(op, (x0, x1), options)
        place0 = place1 = OUTSIDE
        key = shapes = dtype = None
        recording: Any = state.recording
        if x0.__class__ in TENSORS:
            if x1.__class__ in TENSORS:
                a0, a1 = x0.array, x1.array
                dtype = a0.dtype if differentiable0 else a1.dtype
                if both and a1.dtype is not dtype:
                    dtype = dtype, a1.dtype
                    if promotes and mixed(*dtype):
                        return op.call(*promoted(op, (x0, x1)), options, announced)
                if recording is not None:
                    if differentiable0:
                        place0 = x0.node if x0.tape is recording else recording.enter(x0)
                    if differentiable1:
                        place1 = x1.node if x1.tape is recording else recording.enter(x1)
                if x0.layout is not None or x1.layout is not None or (recording is None and state.grid is not None):
                    key = (x0.layout, x1.layout, a0.shape, a1.shape, dtype,
                           frozen(options, (x0, x1)) if ranked else options)  # fmt: skip
                if elementwise:
                    shape0, shape1 = a0.shape, a1.shape
                    if shape0 != shape1:
                        shapes = shape0, shape1
            elif x1.__class__ in _NUMBERS:
                if neutral_zero and x1 == 0 and x1.__class__ is int:
                    return op.unchanged(x0)  # an exact literal 0 changes nothing, whatever x0's layout
                a0, a1 = x0.array, x1
                if recording is not None and differentiable0:
                    place0 = x0.node if x0.tape is recording else recording.enter(x0)
                if x0.layout is not None or (recording is None and state.grid is not None):
                    key = (x0.layout, 0, a0.shape, 0, a0.dtype,
                           frozen(options, (x0, x1)) if ranked else options)  # fmt: skip
            elif x1.__class__ in SIZES:
                return remembering(op.call(x0, x1.plain, options, announced), x1)
            else:
                return op.call(*promoted(op, (x0, x1)), options, announced)
        elif x1.__class__ in TENSORS:
            if x0.__class__ not in _NUMBERS:
                if x0.__class__ in SIZES:
                    return remembering(op.call(x0.plain, x1, options, announced), x0)
                return op.call(*promoted(op, (x0, x1)), options, announced)
            a0, a1 = x0, x1.array
            if recording is not None and differentiable1:
                place1 = x1.node if x1.tape is recording else recording.enter(x1)
            if x1.layout is not None or (recording is None and state.grid is not None):
                key = (0, x1.layout, 0, a1.shape, a1.dtype,
                       frozen(options, (x0, x1)) if ranked else options)  # fmt: skip
        else:
            return without_tensors(op, (x0, x1), options)
        signature = layout = None
        if key is not None:
            try:
                signature = signatures.get(key) or op.sign(key, (x0, x1), (a0, a1), options)
            except TypeError as error:
                _raise_unhashable(op, options, error)
            layout = signature.at_once
            if layout is None:
                layout = op.prepared(signature, (x0, x1), options)
                if layout is None:
                    return instead(x0, x1)
        kept = None
        try:
            if keeping is not None and recording is not None:
                y, kept = keeping(a0, a1, *options)
            else:
                y = function(a0, a1, *options) if options else function(a0, a1)
                if y is NotImplemented and instead is not None:
                    return instead(x0, x1)
        except REJECTED as error:
            raise_unfit(op, error, (x0, x1))
        z = _new(Tensor)
        z.array = y
        z.layout = layout
        if place0 < 0 and place1 < 0 or not (
            dtype is None and y.__class__ in _SCALARS or y.dtype is dtype or y.dtype.kind in "fcV"
        ):
            z.tape = None
            z.node = FREE if recording is not None and both else place_off_tape(y, (x0, x1), op.words)
            return z
        if lock0:
            recording.lock(a0)
        if lock1:
            recording.lock(a1)
        z.tape = recording
        nodes = recording.nodes
        z.node = len(nodes)
        nodes.append((op, y if keeps_y else kept, (a0 if keep0 else None, a1 if keep1 else None), (place0, place1),
                      options, shapes, signature))  # fmt: skip
        return z

    return call


def remembering(y: Any, number: Any) -> Any:
    """The result of an operation with a number that remembers the number of ranks, which its tape keeps."""
    recording = state.recording
    if recording is not None and y.tape is recording:
        recording.note(y.node, number, find_site() if state.distribution.notes_lines else None)
    return y


def _pull_two(op: Any) -> Callable[..., None]:
    rule0, rule1 = op.rule(0), op.rule(1)
    same0, same1 = rule0 is identity, rule1 is identity

    def pull(node: Any, ct: Any, sweep: Any) -> None:
        _, y, (a0, a1), (place0, place1), options, shapes, signature = node
        if sweep.general or (signature is not None and not signature.checked):
            checked_pull(op, node, ct, sweep)
            return
        cts, start = sweep.cts, sweep.start
        if place0 >= 0:
            g = ct if same0 else rule0(ct, y, a0, a1, *options) if options else rule0(ct, y, a0, a1)
            if shapes is not None:
                g = unbroadcast(g, shapes[0])
            if start:
                sweep.add(place0, g)
            elif cts[place0] is None:
                cts[place0] = g
            else:
                cts[place0] = cts[place0] + g
        if place1 >= 0:
            g = ct if same1 else rule1(ct, y, a0, a1, *options) if options else rule1(ct, y, a0, a1)
            if shapes is not None:
                g = unbroadcast(g, shapes[1])
            if start:
                sweep.add(place1, g)
            elif cts[place1] is None:
                cts[place1] = g
            else:
                cts[place1] = cts[place1] + g

    return pull


# -- three operands --------------------------------------------------------------------------------------------------
def _call_three(op: Any) -> Callable[..., Any]:
    """For three differentiable Tensors of one dtype, as in linear layers. Other calls are passed to `_call_many`."""
    function, keeping, instead, signatures = op.function, op.keeping, op.instead, op.signatures
    keep0, keep1, keep2, keeps_y = op.keeps(0), op.keeps(1), op.keeps(2), op.keeps_y
    elementwise, ranked, call_many = op.elementwise, op.ranked, _call_many(op)

    def call(x0: Any, x1: Any, x2: Any, options: tuple[Any, ...] = (), announced: bool = False) -> Any:
        if listeners or not (x0.__class__ in TENSORS and x1.__class__ in TENSORS and x2.__class__ in TENSORS):
            return call_many(x0, x1, x2, options=options, announced=announced)
        a0, a1, a2 = x0.array, x1.array, x2.array
        dtype = a0.dtype
        if a1.dtype is not dtype or a2.dtype is not dtype:
            return call_many(x0, x1, x2, options=options, announced=announced)
        place0 = place1 = place2 = OUTSIDE
        recording: Any = state.recording
        if recording is not None:
            place0 = x0.node if x0.tape is recording else recording.enter(x0)
            place1 = x1.node if x1.tape is recording else recording.enter(x1)
            place2 = x2.node if x2.tape is recording else recording.enter(x2)
        signature = layout = None
        if x0.layout is not None or x1.layout is not None or x2.layout is not None or (
            recording is None and state.grid is not None
        ):
            key = (x0.layout, x1.layout, x2.layout, a0.shape, a1.shape, a2.shape, dtype,
                   frozen(options, (x0, x1, x2)) if ranked else options)  # fmt: skip
            try:
                signature = signatures.get(key) or op.sign(key, (x0, x1, x2), (a0, a1, a2), options)
            except TypeError as error:
                _raise_unhashable(op, options, error)
            layout = signature.at_once
            if layout is None:
                layout = op.prepared(signature, (x0, x1, x2), options)
                if layout is None:
                    return instead(x0, x1, x2)
        kept = None
        try:
            if keeping is not None and recording is not None:
                y, kept = keeping(a0, a1, a2, *options)
            else:
                y = function(a0, a1, a2, *options) if options else function(a0, a1, a2)
                if y is NotImplemented and instead is not None:
                    return instead(x0, x1, x2)
        except REJECTED as error:
            raise_unfit(op, error, (x0, x1, x2))
        z = _new(Tensor)
        z.array = y
        z.layout = layout
        if place0 < 0 and place1 < 0 and place2 < 0 or not (y.dtype is dtype or y.dtype.kind in "fcV"):
            z.tape = None
            z.node = FREE if recording is not None else place_off_tape(y, (x0, x1, x2), op.words)
            return z
        shapes = None
        if elementwise and not a0.shape == a1.shape == a2.shape:
            shapes = a0.shape, a1.shape, a2.shape
        z.tape = recording
        nodes = recording.nodes
        z.node = len(nodes)
        nodes.append((op, y if keeps_y else kept, (a0 if keep0 else None, a1 if keep1 else None, a2 if keep2 else None),
                      (place0, place1, place2), options, shapes, signature))  # fmt: skip
        return z

    return call


def _pull_three(op: Any) -> Callable[..., None]:
    rule0, rule1, rule2 = op.rule(0), op.rule(1), op.rule(2)  # a loop over them takes 0.17 us longer

    def pull(node: Any, ct: Any, sweep: Any) -> None:
        _, y, (a0, a1, a2), (place0, place1, place2), options, shapes, signature = node
        if sweep.general or (signature is not None and not signature.checked):
            checked_pull(op, node, ct, sweep)
            return
        cts, start = sweep.cts, sweep.start
        if place0 >= 0:
            g = rule0(ct, y, a0, a1, a2, *options) if options else rule0(ct, y, a0, a1, a2)
            if shapes is not None:
                g = unbroadcast(g, shapes[0])
            if start:
                sweep.add(place0, g)
            elif cts[place0] is None:
                cts[place0] = g
            else:
                cts[place0] = cts[place0] + g
        if place1 >= 0:
            g = rule1(ct, y, a0, a1, a2, *options) if options else rule1(ct, y, a0, a1, a2)
            if shapes is not None:
                g = unbroadcast(g, shapes[1])
            if start:
                sweep.add(place1, g)
            elif cts[place1] is None:
                cts[place1] = g
            else:
                cts[place1] = cts[place1] + g
        if place2 >= 0:
            g = rule2(ct, y, a0, a1, a2, *options) if options else rule2(ct, y, a0, a1, a2)
            if shapes is not None:
                g = unbroadcast(g, shapes[2])
            if start:
                sweep.add(place2, g)
            elif cts[place2] is None:
                cts[place2] = g
            else:
                cts[place2] = cts[place2] + g

    return pull


# -- any number of operands ------------------------------------------------------------------------------------------
def _call_many(op: Any) -> Callable[..., Any]:
    function, keeping, instead, signatures = op.function, op.keeping, op.instead, op.signatures
    keeps_y, keeps_all = op.keeps_y, op.variadic or all(map(op.keeps, range(len(op.words))))
    elementwise, promotes, ranked = op.elementwise, op.promotes, op.ranked
    fixed = None if op.variadic else op.letters(len(op.words))

    def call(*xs: Any, options: tuple[Any, ...] = (), announced: bool = False) -> Any:
        if listeners and not announced:
            return announce(op, xs, options)
        recording: Any = state.recording
        letters = fixed or op.letters(len(xs))
        arrays, places = [], []
        tensors = others = differ = labelled = followed = False
        dtype = None
        for x, letter in zip(xs, letters, strict=True):
            place = OUTSIDE
            if x.__class__ in TENSORS:
                tensors = True
                a = x.array
                if letter != "S":
                    if dtype is None:
                        dtype = a.dtype
                    elif a.dtype is not dtype:
                        differ = True
                    if recording is not None:
                        place = x.node if x.tape is recording else recording.enter(x)
                        if place >= 0:
                            followed = True
                if x.layout is not None:
                    labelled = True
                arrays.append(a)
            else:
                if x.__class__ not in _NUMBERS:
                    others = True
                arrays.append(x)
            places.append(place)
        if not tensors:
            return without_tensors(op, xs, options)
        if others or (differ and promotes and _mixed(xs, letters)):
            return op.call(*promoted(op, xs), options=options, announced=announced)
        signature = layout = None
        if labelled or (recording is None and state.grid is not None):
            key = (
                tuple([x.layout if x.__class__ in TENSORS else 0 for x in xs]),
                tuple([(a.shape, a.dtype) if x.__class__ in TENSORS else 0 for x, a in zip(xs, arrays, strict=True)]),
                frozen(options, xs) if ranked else options,
            )
            try:
                signature = signatures.get(key) or op.sign(key, xs, arrays, options)
            except TypeError as error:
                _raise_unhashable(op, options, error)
            layout = signature.at_once
            if layout is None:
                layout = op.prepared(signature, xs, options)
                if layout is None:
                    return instead(*xs)
        kept = None
        try:
            if keeping is not None and recording is not None:
                y, kept = keeping(*arrays, *options)
            else:
                y = function(*arrays, *options)
                if y is NotImplemented and instead is not None:
                    return instead(*xs)
        except REJECTED as error:
            raise_unfit(op, error, xs)
        z = _new(Tensor)
        z.array = y
        z.layout = layout
        if not followed or not (y.dtype is dtype or y.dtype.kind in "fcV"):
            z.tape = None
            z.node = FREE if recording is not None and "S" not in letters else place_off_tape(y, xs, letters)
            return z
        shapes = None
        if elementwise:
            shapes = tuple([a.shape if x.__class__ in TENSORS else () for x, a in zip(xs, arrays, strict=True)])
            if all(shape == shapes[0] for shape in shapes):
                shapes = None
        if not keeps_all:
            arrays = [a if op.keeps(i) else None for i, a in enumerate(arrays)]
        if "S" in letters:
            for a, letter in zip(arrays, letters, strict=True):
                if letter == "S" and a is not None:
                    recording.lock(a)
        z.tape = recording
        nodes = recording.nodes
        z.node = len(nodes)
        nodes.append((op, y if keeps_y else kept, tuple(arrays), tuple(places), options, shapes, signature))
        return z

    return call


def _mixed(xs: Any, letters: str) -> bool:
    """`promotion.mixed` of the differentiable Tensors among the operands."""
    pairs = zip(xs, letters, strict=True)
    return mixed(*[x.array.dtype for x, letter in pairs if letter != "S" and x.__class__ in TENSORS])


def _pull_many(op: Any) -> Callable[..., None]:
    rules = [] if op.variadic else [op.rule(i) for i in range(len(op.words))]
    cotangent = op.cotangent

    def pull(node: Any, ct: Any, sweep: Any) -> None:
        _, y, xs, places, options, shapes, signature = node
        if sweep.general or (signature is not None and not signature.checked):
            checked_pull(op, node, ct, sweep)
            return
        cts, start = sweep.cts, sweep.start
        for i, place in enumerate(places):
            if place < 0:
                continue
            g = rules[i](ct, y, *xs, *options) if rules else cotangent(i, ct, y, xs, options)
            if shapes is not None:
                g = unbroadcast(g, shapes[i])
            if start:
                sweep.add(place, g)
            elif cts[place] is None:
                cts[place] = g
            else:
                cts[place] = cts[place] + g

    return pull


# -- broadcasting, undone --------------------------------------------------------------------------------------------
def unbroadcast(ct: Any, shape: tuple[int, ...]) -> Any:
    """Sum a cotangent over the dimensions along which an operand of `shape` was repeated."""
    have = ct.shape
    if have == shape:
        return ct
    if len(have) == 2 and have[1:] == shape and ct.__class__ is np.ndarray and ct.dtype in _BLAS:  # a bias
        rows = ones(have[0], ct.dtype)  # BLAS takes half the time of a sum over rows
        return rows.dot(ct) if type(ct) is np.ndarray else np.dot(rows, ct)  # a traced array
    axes = _repeated.get((have, shape))
    if axes is None:
        extra = len(have) - len(shape)
        axes = tuple(range(extra)) + tuple(i + extra for i, n in enumerate(shape) if n == 1 and have[i + extra] != 1)
        if len(_repeated) > 4096:
            _repeated.clear()
        _repeated[have, shape] = axes
    if ct.__class__ is np.ndarray:
        ct = total(ct, axes)
        return ct if ct.shape == shape else ct.reshape(shape)
    extra = len(have) - len(shape)
    if axes[extra:]:  # not by a reshape, which cannot tell a part of extent 1 from a dimension of extent 1
        ct = ct.sum(axis=axes[extra:], keepdims=True)
    return ct.sum(axis=axes[:extra]) if extra else ct


def ones(n: int, dtype: Any) -> Any:
    """A vector of ones, made once per length and dtype."""
    found = _ones_made.get((n, dtype))
    if found is None:
        if len(_ones_made) > 64:
            _ones_made.clear()
        found = _ones_made[n, dtype] = np.ones(n, dtype)
    return found


_ones_made: dict[Any, Any] = {}
_repeated: dict[Any, tuple[int, ...]] = {}  # (cotangent's shape, operand's shape) -> axes to sum over
_BLAS = frozenset((_F32, _F64))
