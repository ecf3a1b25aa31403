"""Recorder: the calls that a step makes at its operations, as rows that can be called again.

While a step is captured, the engine asks ``state.recorder`` at five places: the call of an operation, the rules and
sums of a sweep, the array of a leaf, a call of NumPy without derivative, and `arrays.capture.recorded`, with which the
layers above mark a call that is one row, such as the step of an optimizer. A row is a callable, its arguments and its
result. Values are known by the identity of their objects, which the recorder keeps alive: the result of a row, an
argument of the step, the array of a leaf. Everything else is a constant, and two recordings must agree on it
(`difference`). So a value that Python computes anew in each step, where nothing is recorded, is refused and never
replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from threading import get_ident
from typing import Any, NoReturn, Self

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ..arrays.capture import Capture, Whole, set_capture
from ..engine.dispatch import announce, without_tensors
from ..engine.events import emit, listeners
from ..engine.leaves import Leaf, remove_gradients
from ..engine.multi_output import OUTPUT, Cotangents
from ..engine.recording import EFFECT, IMPORT, LEAF, MARK, arrays_of, op_of, options_of, parents_of
from ..engine.state import state
from ..engine.sweep import Sweep
from ..engine.tape import scope
from ..engine.tensor import TENSORS, WATCH, Tensor
from ..errors import CaptureError, find_site, short, short_site
from ..layouts.layout import V
from ..layouts.rank_values import RANK_NUMBERS, plain, rank_axes
from ..optim.base import Optimizer
from ..optim.groups import Numbers, assign

__all__ = ["Made", "OfForm", "Passing", "Recorder", "Rehearsal", "Row", "Slot", "accumulate", "adopt",
           "axes_of_copies", "decides_otherwise", "differ", "difference", "mapped", "part_at", "parts_of", "read",
           "slots_in"]  # fmt: skip


class Slot:
    """The place of a value: of an argument of the step, or of the result of a row or a part of it."""

    __slots__ = ("at",)

    def __init__(self, at: int):
        self.at = at

    def __eq__(self, other: object) -> bool:
        return other.__class__ is Slot and other.at == self.at

    def __hash__(self) -> int:
        return self.at

    def __repr__(self) -> str:
        return f"%{self.at}"


class Made:
    """A Tensor, a slice or a named tuple among the arguments of a row, or the results: its class, and its arguments."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind: Callable[..., Any], parts: tuple[Any, ...]):
        self.kind, self.parts = kind, parts


class Row:
    """A call: what is called, with what, and its result.

    Attributes
    ----------
    function : callable
    args, words : tuple, dict
        Constants, `Slot` and `Made`, also in tuples, lists and dictionaries.
    slot : int
        Of the result.
    parts : dict
        By the path of a part of the result, such as ``(1, 0)``, its slot.
    value : object
        The result while it was recorded.
    changes : bool or "keys" or "buffers" or "gradients" or "messages"
        Whether the call changes something besides its result: a parameter, a gradient, a count, the random state.
    expected : bool
        Whether the result is a decision on data, which a replay must find again. A check of values, which is called for
        the error that it raises, has the result None; where it comes after a change, it is not expected.
    of : tuple or None
        The operation, and "y" or the operand whose cotangent it is.
    is_cleared : bool
        Whether it adds to a gradient that the step has removed before, as it would again.
    name : str
    site : tuple of (str, int)
        The line of the program.
    """

    __slots__ = ("args", "changes", "expected", "function", "is_cleared", "name", "of", "parts", "site", "slot",
                 "value", "words")  # fmt: skip

    def __init__(
        self, function: Callable[..., Any], args: Any, words: Any, name: str, changes: bool | str, expected: bool,
        site: tuple[str, int] | None = None,
    ):  # fmt: skip
        self.function, self.args, self.words, self.name = function, args, words, name
        self.changes, self.expected, self.site = changes, expected, site or find_site()
        self.of: Any = None
        self.is_cleared = False
        self.slot = -1
        self.parts: dict[tuple[int, ...], int] = {}
        self.value: Any = None

    @property
    def line(self) -> str:
        return short_site(*self.site)

    @property
    def place(self) -> str:
        """Its name and line, for messages."""
        return f"{'a call' if self.name.startswith('_') else self.name} at {self.line}"

    @property
    def can_be_again(self) -> bool:
        """Whether what it changes can be changed again by the step itself, after a replay has departed."""
        again = self.is_cleared or self.changes == "keys"
        return again or self.function is remove_gradients or self.function is assign

    def is_early(self, known: Container[int]) -> bool:
        """Whether a replay can make the call before it changes something: its operands are known, and none learned."""
        is_learned = self.function is read and self.args[0].requires_grad
        return not self.changes and not is_learned and all(at in known for at in slots_in((self.args, self.words)))


def parts_of(x: Any) -> Iterable[Any] | None:
    """The parts of a container among the arguments of a row; None for a value."""
    kind = x.__class__
    if kind is tuple or kind is list:
        return iter(x)
    return x.values() if kind is dict else x.parts if kind is Made else None


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """A container of what a function makes of the parts of one."""
    if x.__class__ is dict:
        return {key: function(value) for key, value in x.items()}
    return Made(x.kind, tuple(map(function, x.parts))) if x.__class__ is Made else x.__class__(map(function, x))


def part_at(x: Any, path: tuple[int, ...]) -> Any:
    """A part of a result, by its path."""
    for k in path:
        x = x[k]
    return x


def slots_in(x: Any) -> list[int]:
    """The slots in the arguments of a row, or in results."""
    found, waiting = list[int](), [x]
    for each in waiting:  # which becomes longer
        if each.__class__ is Slot:
            found.append(each.at)
        else:
            waiting += parts_of(each) or ()
    return found


def read(leaf: Leaf) -> Any:
    """The present array of a leaf."""
    return leaf.array


def view(x: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
    """A view of a contiguous argument."""
    return np.ndarray(shape, dtype, x, offset, strides)


def cast(x: Any, dtype: Any, order: Any) -> Any:
    """A copy of an argument in a dtype."""
    return x.astype(dtype, order)


def _owner(x: Any) -> Any:
    while isinstance(x, np.ndarray) and x.base is not None:
        x = x.base
    return x


def accumulate(leaf: Leaf, ct: Any) -> Any:
    """Add a cotangent to the gradient of a leaf, and return the array of the gradient."""
    if leaf._grad is not None and leaf.used is not None:
        leaf._note_addition()
    leaf.accumulate(ct)
    return getattr(leaf._grad, "array", leaf._grad)


def adopt(leaf: Leaf, ct: Any) -> Any:
    """`accumulate` of a cotangent that nothing else uses: the first one is the gradient itself."""
    if leaf._grad is None and ct.__class__ is np.ndarray and ct.dtype is leaf.array.dtype and ct.flags.c_contiguous:
        leaf._grad, leaf.used = ct, None
        return ct
    return accumulate(leaf, ct)


_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range, type, np.dtype)
_IMMUTABLE = frozenset((bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range, np.bool_))


class Silent:
    """An entry of the engine's listeners, with which operations ask the recorder. It takes operations as they are."""

    whole = True

    def __call__(self, phase: str, direction: str, name: str) -> None:
        pass


class Passing(Capture):
    """A recorder that records nothing: operations and other calls run as by themselves. As a context it hears them."""

    sweep_class = Sweep
    listens = True
    """Whether operations ask it. They do, too, while another thread hears of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._entry = (get_ident(), Silent())

    def __enter__(self) -> Self:
        state.recorder = self
        if self.listens:
            listeners.append(self._entry)
        return self

    def __exit__(self, *error: Any) -> None:
        if self.listens:
            listeners.remove(self._entry)
        state.recorder = None

    def module(self, module: Any) -> None:
        """A module is called."""

    def should_look_at(self, value: Any) -> bool:
        """Whether to look at labels before the operation does. No replay follows that could not go back."""
        return False

    def read_all(self, operands: Any) -> None:
        """Leaves enter a computation together."""

    def operation(self, op: Any, xs: tuple[Any, ...], options: Any) -> Any:
        """The call of an operation."""
        self.read_all(xs)
        return self.call(announce, (op, xs, options))

    def give(self, leaf: Leaf, ct: Any, adopts: bool = False) -> None:
        """Add a cotangent to the gradient of a leaf."""
        (adopt if adopts else accumulate)(leaf, ct)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], words: Any = None, **how: Any) -> Any:
        """Make a call, and hear nothing of what it does."""
        self.__exit__()
        try:
            return function(*[x.value if x.__class__ is Whole else x for x in args], **(words or {}))
        finally:
            self.__enter__()


class Recorder(Capture):
    """The rows of one run of a step, in order. As a context it records this thread.

    With `is_quiet` other ranks may replay the step meanwhile: besides its rows, which they make too, it sends nothing.

    Attributes
    ----------
    rows : list of Row
    leaves : list of Leaf
        Those whose arrays were read, in order, each once.
    modules : list of Module
        Those that were called, each once.
    has_changed : bool
        Whether a row has changed something that a second run would change again.
    """

    records = True

    @property
    def sweep_class(self) -> type[Sweep]:
        """The class of sweeps while it records."""
        return _CapturedSweep

    def __init__(self, inputs: Sequence[Any], thread: int, is_quiet: bool = False):
        super().__init__()
        self._quiets = state.distribution if is_quiet else None
        self.rows: list[Row] = []
        self.like: Sequence[Row] = ()  # those of a run that this one is compared with
        self.leaves: dict[int, Leaf] = {}
        self.modules: dict[int, Any] = {}
        self._arrays: dict[int, Any] = {}  # of each leaf, when it was last read
        self._known: dict[int, tuple[Slot, Any]] = {}  # by id: the slot of an object, and the object
        self.twins: tuple[dict[int, Any], dict[int, Any]] = {}, {}  # of operations, and the operation of each
        self._entry = (thread, Silent())
        self._errors = np.geterr()
        self.count = 0
        self.outside: list[Any] = []  # contiguous arrays of the program, of which the step may make views
        self.reachable: dict[int, Leaf] = {}  # by the id of its array: a leaf that was there before
        self.watch: Any = None  # a `Watch` of the arrays that only rows may write
        self.has_changed = False
        self._numbers: list[Numbers] = []  # of optimizers
        self.stateful: list[Any] = []  # objects that were followed
        self.changing: dict[int, Any] = {}  # what rows change, such as parameters and optimizers
        self._axes: set[str] = set()  # along which rows communicate
        self._cleared: set[int] = set()  # the ids of leaves whose gradients were removed
        self.constants: list[Any] = []  # kept, so that no other object gets the id of one
        slots = [self._new(x) for x in inputs]
        self._given = len(slots)
        self.inputs = list(zip(slots, inputs, strict=True))
        self.may_cast = False  # whether an array that is equal to an argument may be a copy of it; that is proved
        self.casts: list[int] = []  # the arguments of which there are such
        self.persistent: set[int] = set()  # ids of arrays that were there before
        self._arguments = [
            (slot, x) for slot, x in zip(slots, inputs, strict=True)
            if x.__class__ is np.ndarray and x.flags.c_contiguous and x.size
        ]  # fmt: skip

    # -- the context -------------------------------------------------------------------------------------------------
    def __enter__(self) -> Recorder:
        self._begin()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._note_assigned()
        self._end()

    def follow(self, objects: Sequence[Any]) -> None:
        """Notice the assignments of hyperparameters of the optimizers among some objects, and of what these wrap."""
        found = [*objects, *(getattr(x, "optimizer", None) for x in objects)]
        self._numbers = [Numbers(x) for x in found if isinstance(x, Optimizer)]

    def forget(self) -> None:
        """Keep the forms of results alone, in a recording that waits for a second one."""
        self._known.clear()
        for row in self.rows:
            row.value = row.value if row.expected else _form_of(row.value)

    def axes(self) -> set[str]:
        """The axes along which the rows communicate."""
        return self._axes | axes_of_copies(self.changing.values())

    def _note_assigned(self) -> None:
        """Add a row for each assignment of the program since the last row that changes something."""
        for numbers in self._numbers:
            for place, name, value in numbers.assigned():
                args = numbers.optimizer, place, name, self.refer(value)
                self._add(Row(assign, args, {}, f"{type(numbers.optimizer).__name__}.{name}", True, False), None)
                self.changing[id(numbers.optimizer)] = numbers.optimizer

    def _begin(self) -> None:
        state.recorder = self
        set_capture(self)
        listeners.append(self._entry)
        if self._quiets is not None:
            self._quiets.quiet(True)

    def _end(self) -> None:
        if self._quiets is not None:
            self._quiets.quiet(False)
        listeners.remove(self._entry)
        set_capture(None)
        state.recorder = None

    # -- values ------------------------------------------------------------------------------------------------------
    def _new(self, value: Any) -> Slot:
        slot = Slot(self.count)
        self.count += 1
        if value.__class__ not in _IMMUTABLE:
            self._known[id(value)] = slot, value
        return slot

    def slot_of(self, value: Any) -> Slot | None:
        """The slot of an object; None if it is a constant."""
        found = self._known.get(id(value))
        return None if found is None else found[0]

    def refer(self, value: Any) -> Any:
        """A value as an argument of a row: slots in the place of what is known, in containers too."""
        kind = value.__class__
        if kind in _IMMUTABLE:
            if kind is slice:
                parts = tuple(map(self.refer, (value.start, value.stop, value.step)))
                return Made(slice, parts) if slots_in(parts) else value
            return value
        found = self._known.get(id(value))
        if found is not None:
            return found[0]
        if kind is Whole:
            self.constants.append(value.value)
            return value.value
        if kind is np.ndarray and value.base is not None and self._is_known_view(value):
            return self._known[id(value)][0]
        leaf = self.reachable.get(id(value))
        if leaf is not None and leaf.array is value:  # it may have another array in a replay
            self._array_of(leaf)
            return self._known[id(value)][0]
        if kind is tuple or kind is list or kind is dict:
            return mapped(self.refer, value)
        if kind in TENSORS:
            array = self.refer(value.array if kind is Tensor else self._array_of(value))
            return Made(Tensor, (array, value.layout))
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return Made(kind, tuple(map(self.refer, value)))
        if kind is np.ndarray and self.may_cast and self._is_cast(value):
            return self._known[id(value)][0]
        self.constants.append(value)
        return value

    def knows(self, x: Any) -> bool:
        return id(x) in self._known

    def _is_known_view(self, value: Any) -> bool:
        """Whether an array is a view of an argument, or of an array that was there before; then a row makes it."""
        for slot, array in (*self._arguments, *((x, x) for x in self.outside)):
            offset = value.ctypes.data - array.ctypes.data
            low, high = byte_bounds(value)
            first, end = byte_bounds(array)
            if _owner(value) is _owner(array) and first <= low and high <= end:
                self.constants.append(array)
                row = Row(view, (slot, value.shape, value.dtype, offset, value.strides), {}, "view", False, False)
                self._add(row, value)
                return True
        return False

    def _is_cast(self, value: Any) -> bool:
        """Whether an array has the values of an argument in a dtype or in memory of its own; then a row makes it.

        NumPy has made it, by ``x.astype``, ``numpy.array(x)`` or the like. Or it is equal by chance: the step is proved
        on other values, where it is equal no more.
        """
        if not value.size or not value.ndim or id(value) in self.persistent:
            return False
        for at, (slot, array) in enumerate(self.inputs):
            if array.__class__ is not np.ndarray or array.shape != value.shape:
                continue
            if array.dtype.kind == "c" and value.dtype.kind != "c":
                continue
            with np.errstate(all="ignore"):
                made = array.astype(value.dtype)
            order = "K" if made.strides == value.strides else "C" if value.flags.c_contiguous else ""
            if order and made.tobytes() == value.tobytes():
                self._add(Row(cast, (slot, value.dtype, order), {}, "astype", False, False), value)
                self.casts.append(at)
                return True
        return False

    def _array_of(self, x: Any) -> Any:
        """The array of a Tensor. That of a leaf is read by a row, unless it is known."""
        array = x.array
        if not isinstance(x, Leaf) or id(array) in self._known and id(x) not in self.leaves:
            return array
        if self._arrays.get(id(x)) is not array or id(array) not in self._known:
            self.leaves.setdefault(id(x), x)
            self._arrays[id(x)] = array
            row = Row(read, (x,), {}, "read", False, False)
            self._add(row, array)
        return array

    def _add(self, row: Row, value: Any) -> None:
        row.value = value
        self.has_changed = self.has_changed or bool(row.changes and not row.can_be_again)
        row.slot = self._new(value).at
        self._register_parts(row, value, ())
        self.rows.append(row)

    def _register_parts(self, row: Row, value: Any, path: tuple[int, ...]) -> None:
        if value.__class__ is Cotangents:
            raise CaptureError(f"{row.name} at {row.line} is not captured")
        if isinstance(value, tuple | list):
            for i, part in enumerate(value):
                if part.__class__ in _IMMUTABLE or (id(part) in self._known and not row.changes):
                    continue  # a call that changes something may have written to an array that is known
                row.parts[*path, i] = self._new(part).at
                self._register_parts(row, part, (*path, i))

    # -- rows --------------------------------------------------------------------------------------------------------
    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], words: dict[str, Any] | None = None, *,
        name: str = "", changes: bool | str = False, expected: bool = False, of: Any = None, is_own: bool = False,
    ) -> Any:  # fmt: skip
        """Make a call, and record it as a row. Nothing that it calls is recorded.

        A function of the program (`is_own`) may return its argument in one call, and another array in the next one.
        """
        words = words or {}
        if state.recorder is not self:  # the call of an operation of this recorder inside of a row
            return function(*[x.value if x.__class__ is Whole else x for x in args], **words)
        is_gradient = function is accumulate or function is adopt
        if (now := np.geterr()) != self._errors and not {"raise", "call"}.isdisjoint(now.values()):
            self.refuse("numpy.errstate was set to raise", "numpy.errstate around the calls of the captured step")
        if changes and self.watch is not None and not is_gradient:
            self.watch.look()
        if changes and self._numbers:
            self._note_assigned()
        row = self._row(function, args, words, name, changes, expected)
        row.of = of
        args = tuple([x.value if x.__class__ is Whole else x for x in args])
        self._end()
        try:
            value = self._made(row, args, words)
        finally:
            self._begin()
        if changes:
            for numbers in self._numbers:
                numbers.note()
        if value is NotImplemented:
            return value
        if is_own:
            value = self._apart(value)
        if value.__class__ is np.bool_ and not changes:  # the program may decide on it
            row.expected = True
        if value.__class__ in TENSORS:
            self._refuse(row, "gives a Tensor in one call", "operations of autograd")
        is_same = not changes and id(value) in self._known and any(value is x for x in args)
        if not is_same:
            self._add(row, value)
        if changes and self.watch is not None:
            if is_gradient:
                self.watch.note_gradient(args[0])
            else:
                self.watch.note()
        return value

    def _row(
        self, function: Callable[..., Any], args: tuple[Any, ...], words: dict[str, Any], name: str,
        changes: bool | str, expected: bool,
    ) -> Row:  # fmt: skip
        """The row of a call that is to be made; the objects that it changes, and its axes, are noted."""
        given = tuple(map(self.refer, args)), {k: self.refer(x) for k, x in words.items()}
        like = self.like[len(self.rows)] if len(self.rows) < len(self.like) else None
        site = like.site if like is not None and _same(like.function, function) else None  # to find one takes 2 us
        row = Row(function, *given, name or getattr(function, "__name__", "call"), changes, expected, site)
        if changes:
            whole = {id(x.value): x.value for x in args if x.__class__ is Whole}
            self.changing |= whole
            if function is remove_gradients:
                self._cleared |= whole.keys()
            row.is_cleared = function in (accumulate, adopt) and self._cleared >= whole.keys()
        if changes == "messages":
            self._axes.update(args[0].value.axes)
        return row

    def _made(self, row: Row, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        """The result of the call of a row."""
        return row.function(*args, **words)

    def _apart(self, x: Any) -> Any:
        """A result with copies in the place of arrays that are known."""
        if x.__class__ is tuple or x.__class__ is list:
            return x.__class__(map(self._apart, x))
        return x.copy() if x.__class__ is np.ndarray and id(x) in self._known else x

    def _refuse(self, row: Row, why: str, fix: str) -> NoReturn:
        raise CaptureError(f"capture: {row.name} at {row.line} {why}, and is not captured\n  fix: {fix}")

    def should_look_at(self, value: Any) -> bool:
        """Whether a replay cannot go back after an error about a value, and knows it before it changes something."""
        slot = self.refer(value) if self.has_changed else None
        return slot.__class__ is Slot and slot.at in self._early()

    def _early(self) -> set[int]:
        """The slots of values that a replay knows before it changes something."""
        known = set(range(self._given))
        for row in self.rows:
            if row.is_early(known):
                known.update((row.slot, *row.parts.values()))
        return known

    def examine(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Call a function that raises an error for values that are not legal.

        A replay calls it first of all if it knows the values then, and runs the step, which raises, where it finds an
        error. Else it raises the error itself at the place of the row, up to which it has changed what the step would.
        """
        is_early = not self.has_changed or self._early().issuperset(slots_in([*map(self.refer, args)]))
        self.call(function, args, expected=is_early)

    def require(self, function: Callable[..., Any], args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        """Make a call that decides on data. A replay that finds another result runs the step itself."""
        return self.call(function, args, words, expected=True)

    # -- operations --------------------------------------------------------------------------------------------------
    def operation(self, op: Any, xs: tuple[Any, ...], options: Any) -> Any:
        """The call of an operation, of which each call of its function and of its rules is a row."""
        twins, operations = self.twins
        op = operations.get(id(op), op)  # forward mode applies the operations of a tape to tangents
        if not any(x.__class__ in TENSORS for x in xs):
            return self.call(without_tensors, (op, xs, options), name=op.name)
        for x in xs:
            if x.__class__ is not Tensor and x.__class__ in TENSORS:
                self._array_of(x)
        if options and _has_mask(options):
            raise CaptureError(
                f"capture: {op.name} at {short_site(*find_site())} has a boolean array as an index, so that the shape "
                "of its result depends on values; needed: shapes that stay\n  fix: where(mask, x, 0)"
            )
        twin = twins.get(id(op))
        if twin is None:
            twin = twins[id(op)] = _twin(op)
            operations[id(twin)] = op
        return twin.call(*xs, options=options, announced=True)

    def read_all(self, operands: Sequence[Any]) -> None:
        """Leaves enter a computation together: their arrays are read by rows."""
        for x in operands:
            self._array_of(x)

    def give(self, leaf: Any, ct: Any, adopts: bool = False) -> None:
        """Add a cotangent to the gradient of a leaf. With `adopts` the leaf may own the array: see `Leaf.adopt`."""
        function = adopt if adopts else accumulate
        self.call(function, (Whole(leaf), ct), name=f"gradient of {leaf.name or 'a leaf'}", changes=True)

    # -- other calls of the layers above -----------------------------------------------------------------------------
    def module(self, module: Any) -> None:
        """A module is called, and may call all that it has."""
        if id(module) not in self.modules:
            for each in module.modules():
                self.modules.setdefault(id(each), each)

    def refuse(self, what: str, fix: str) -> NoReturn:
        """Raise CaptureError for something that a replay would not repeat."""
        raise CaptureError(f"capture: {what} in a captured step, which is recorded and then replayed\n  fix: {fix}")


class Rehearsal(Recorder):
    """A recorder of a run that a rank makes alone: it sends nothing.

    Rows that send messages, and those that change more than gradients and keys, are not called. They have copies of
    the results that they had in another run.

    Parameters
    ----------
    inputs, thread
    of : Recorder
        Of the other run.
    """

    def __init__(self, inputs: Sequence[Any], thread: int, of: Recorder):
        super().__init__(inputs, thread, is_quiet=True)
        self._of = of.rows
        self._copies: dict[int, Any] = {}  # by the id of an array of the other run: that of this one
        self._values = {slot.at: x for slot, x in of.inputs}  # of the other run, by slot
        for row in of.rows:
            self._values[row.slot] = row.value
            self._values.update((at, part_at(row.value, path)) for path, at in row.parts.items())

    def _made(self, row: Row, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        if not row.changes or row.changes == "keys" or row.function in (accumulate, adopt, remove_gradients):
            return super()._made(row, args, words)
        known = self._of[len(self.rows)] if len(self.rows) < len(self._of) else row
        if known.function is not row.function or (known.value is None and row.changes == "messages"):
            text = f"capture: {row.name} at {row.line} is not rehearsed"
            raise CaptureError(text)
        self._copies |= {
            id(self._values[x.at]): arg for x, arg in zip(known.args, args, strict=False) if x.__class__ is Slot
        }
        return _copied(known.value, self._copies)


def _call(function: Callable[..., Any], args: tuple[Any, ...], **how: Any) -> Any:
    """Make a call, as a row of the recorder of this thread if there is one."""
    return function(*args) if state.recorder is None else state.recorder.call(function, args, **how)


def _twin(op: Any) -> Any:
    """The operation with functions and rules whose calls are rows.

    It is in cycles, and so holds no recorder, whose arrays would stay until Python looks for cycles.
    """
    if not hasattr(op, "keeping") or not hasattr(op, "cotangent"):
        raise CaptureError(
            f"capture: {op.name} at {short_site(*find_site())} is not captured; needed: operations of autograd"
        )
    twin = object.__new__(type(op))
    twin.__dict__.update(vars(op))
    name = op.name

    def function(*args: Any) -> Any:
        return _call(op.function, args, name=name, of=(op, "y"))

    def keeping(*args: Any) -> Any:
        y, kept = _call(op.keeping, args, name=name, of=(op, "y"))
        if kept.__class__ is tuple and kept and callable(kept[0]):  # a kernel's backward, and what it needs

            def backward(*given: Any, of: Any = kept[0]) -> Any:
                return _call(of, given, name=f"{name}, backward")

            backward.of = kept[0]  # type: ignore[attr-defined]
            return y, (backward, *kept[1:])
        return y, kept

    def cotangent(i: int, ct: Any, y: Any, xs: Any, options: Any, shapes: Any = None) -> Any:
        if _has_tensors((ct, y, xs)):  # a recorded sweep: the rule's own operations are rows
            return op.cotangent(i, ct, y, xs, options, shapes)
        if y.__class__ is tuple and y and callable(y[0]):  # of a rule that runs in the place of the kernel's
            y = (y[0].of, *y[1:])
        return _call(op.cotangent, (i, ct, y, xs, options, shapes), name=f"{name}, backward", of=(op, i))

    def push(node: Any, carried: list[Any], start: int, record: bool, recording: Any, place: int) -> Any:
        if record:  # the rule's own operations are rows
            return type(op).push(twin, node, carried, start, record, recording, place)
        tangents = [carried[p - start] if p >= start else None for p in parents_of(node)]
        if all(t is None for t in tangents):
            return None
        _, y, xs, _, options, shapes, signature = node
        y = y if op.keeping is None else None  # what a kernel keeps is for its adjoint
        return _call(_pushed, (op, y, xs, options, shapes, signature, tangents), name=f"{name}, tangent")

    twin.function = function
    twin.push = push
    if op.keeping is not None:
        twin.keeping = keeping
    twin.cotangent = cotangent
    twin.call, twin.pull = twin.bind()
    twin.__call__ = twin.call  # in a sweep that is recorded, forward mode applies an operation to tangents
    twin.makes_rows = True
    return twin


def axes_of_copies(objects: Iterable[Any]) -> set[str]:
    """The axes along which the ranks have copies or parts of what optimizers among the objects update."""
    found = [x for each in objects for x in (each, getattr(each, "optimizer", None))]
    optimizers = [x for x in found if isinstance(x, Optimizer)]
    layouts = [p.layout for optimizer in optimizers for p in optimizer.parameters if p.layout is not None]
    return {name for layout in layouts for name, label in layout.items() if label is not V}


def _copied(x: Any, copies: dict[int, Any]) -> Any:
    """A copy of a result that has no objects but arrays and numbers, one of each array, in `copies` by their ids.

    Of an operand, which a cast returns, it is that of now.
    """
    if isinstance(x, tuple | list):
        return x.__class__([_copied(part, copies) for part in x])
    if id(x) in copies:
        return copies[id(x)]
    if x.__class__ is np.ndarray:
        copies[id(x)] = x.copy()
        return copies[id(x)]
    if x is None or isinstance(x, bool | int | float | complex | np.generic):
        return x
    text = f"capture: a {type(x).__name__} is not rehearsed"
    raise CaptureError(text)


def _pushed(op: Any, y: Any, xs: Any, options: Any, shapes: Any, signature: Any, tangents: list[Any]) -> Any:
    """The tangent of an operation's result from those of its operands."""
    node = op, y, xs, tuple(range(len(tangents))), options, shapes, signature
    return op.push(node, tangents, 0, False, None, 0)


def _has_tensors(x: Any) -> bool:
    return any(map(_has_tensors, x)) if x.__class__ is tuple or x.__class__ is list else x.__class__ in TENSORS


def _has_mask(x: Any) -> bool:
    if x.__class__ is tuple or x.__class__ is list:
        return any(map(_has_mask, x))
    x = x.array if x.__class__ in TENSORS else x
    return isinstance(x, np.ndarray) and x.dtype.kind == "b" and x.ndim > 0


class _CapturedSweep(Sweep):
    """A sweep whose rules, sums and gradients are rows."""

    __slots__ = ("recorder",)

    def __init__(self, recording: Any, start: int, end: int, wanted: Any, record: bool):
        super().__init__(recording, start, end, wanted, record)
        self.general, self.recorder = True, state.recorder

    def add(self, place: int, ct: Any) -> None:
        """Add a cotangent at a place of the list. A sum of two is a row."""
        i = place - self.start
        known = self.cts[i] if i >= 0 else self.outside.get(place)
        if known is not None and ct.__class__ is not Cotangents and ct.__class__ not in TENSORS:
            total = self.recorder.call(_sum, (known, ct), name="sum of cotangents")
            if i >= 0:
                self.cts[i] = total
            elif place >= 0:
                self.outside[place] = total
            return
        super().add(place, ct)

    def _announced_step(self, node: Any, ct: Any) -> None:
        op = op_of(node)
        if (op is MARK or op is EFFECT) and _is_of_scope(node):
            op.pull(node, ct, self)
            return
        if op is LEAF:
            if self.wanted is None:
                self._give(arrays_of(node)[0], ct)
            return
        if op is IMPORT:
            if self.wanted is None:
                self._leave(node, ct)
            return
        if not (getattr(op, "makes_rows", False) or op is WATCH or op is OUTPUT):
            raise CaptureError(
                f"capture: the step of {op.name!r} in backward is not captured; needed: operations of autograd, one "
                "tape, and a backward of its own values"
            )
        op.pull(node, ct, self)

    def settle(self) -> None:
        """End the sweep. Gradients of leaves from before its interval are rows, too."""
        for place, ct in list(self.outside.items()):
            node = self.recording.nodes[place]
            if node is not None and op_of(node) is LEAF:
                self._give(arrays_of(node)[0], ct)
                del self.outside[place]
        if self.outside:
            raise CaptureError("capture: a backward of one tape inside another is not captured")

    def _give(self, leaf: Any, ct: Any) -> None:
        if ct.__class__ in TENSORS:
            text = "capture: backward(record=True) that gives leaves gradients is not captured\n  fix: wanted="
            raise CaptureError(text)
        self.recorder.give(leaf, ct)

    def _leave(self, node: Any, ct: Any) -> None:
        """Leave a cotangent for the next sweep of another tape. A sum of two is a row."""
        other, place = options_of(node)
        known = other.pending.get(place)
        self.changed.append((other.pending, place, known))
        is_sum = known is not None and ct.__class__ not in TENSORS
        other.pending[place] = self.recorder.call(_sum, (known, ct), name="sum of cotangents") if is_sum else ct


def _is_of_scope(node: Any) -> bool:
    """Whether the node of a mark or an effect is of a named part of a program (`tape.scope`), which only tells."""
    of = options_of(node)[0]
    return getattr(of, "func", None) is emit or getattr(of, "__module__", "") == scope.__module__


def _sum(a: Any, b: Any) -> Any:
    return a + b


# -- two recordings ----------------------------------------------------------------------------------------------------
class OfForm(str):
    """A difference in the shape or dtype of a result, which depends on values."""

    __slots__ = ()


def difference(first: Recorder, second: Recorder, may_be_new: bool = False) -> str:
    """The first difference between two runs of a step besides the values of their arguments; "" if there is none.

    With `may_be_new` an array may be made anew in each run, with the same bits.
    """
    return _difference(first, second, _same_bits if may_be_new else _same)


def _difference(first: Recorder, second: Recorder, same: Callable[[Any, Any], bool]) -> str:
    for i, (a, b) in enumerate(zip(first.rows, second.rows, strict=False)):
        if not _same(a.function, b.function):
            return f"{a.name} at {a.line} was followed by other operations: row {i} is now {b.place}"
        if a.slot != b.slot or a.parts != b.parts:
            return f"{b.place} has another result"
        if found := differ(a.args, b.args, same) or differ(a.words, b.words, same):
            return f"{b.place} has an operand that is neither an argument of the step nor computed from one by " \
                   f"operations: {found}"
        if found := _forms(a.value, b.value):
            return OfForm(f"{b.place} has another result: {found}")
        if a.expected and not _same(a.value, b.value):
            return f"{b.place} decided otherwise: {short(a.value)}, then {short(b.value)}"
    if len(first.rows) != len(second.rows):
        longer = max(first.rows, second.rows, key=len)
        row = longer[min(len(first.rows), len(second.rows))]
        return f"only one of them has {row.name} at {row.line}"
    return ""


def _same(a: Any, b: Any) -> bool:
    """Whether two constants are one: the same object, or equal values of an immutable type."""
    if a is b:
        return True
    if a.__class__ is not b.__class__:
        return False
    if isinstance(a, RANK_NUMBERS):
        return bool(plain(a) == plain(b)) and rank_axes(a) == rank_axes(b)
    if isinstance(a, float | complex | np.generic):
        return repr(a) == repr(b) if not isinstance(a, np.generic) else a.tobytes() == b.tobytes()
    if isinstance(a, _PLAIN) or callable(a) or a.__class__.__hash__ is not object.__hash__ and _is_value(a):
        try:
            return bool(a == b)
        except Exception:  # the comparison of an object of the program; unequal only refuses the capture
            return False
    return False


def _is_value(x: Any) -> bool:
    """Whether an object is a value: a frozen dataclass, or a frozen set of such."""
    parameters = getattr(type(x), "__dataclass_params__", None)
    return isinstance(x, frozenset) or (parameters is not None and parameters.frozen)


def decides_otherwise(first: Recorder, second: Recorder) -> bool:
    """Whether a decision on data that a replay makes anew had another result in the second run."""
    return any(
        a.expected and b.expected and _same(a.function, b.function) and not _same(a.value, b.value)
        and not differ((a.args, a.words), (b.args, b.words), _same_bits)  # else it is of a constant
        for a, b in zip(first.rows, second.rows, strict=False)
    )


def _same_bits(a: Any, b: Any) -> bool:
    """Whether two constants are one, or arrays with the same bits."""
    if a.__class__ is np.ndarray and b.__class__ is np.ndarray and a is not b:
        return (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides) and a.tobytes() == b.tobytes()
    return _same(a, b)


def differ(a: Any, b: Any, same: Callable[[Any, Any], bool] = _same) -> str:
    """The difference between the arguments, or the results, of two rows or runs, as text; "" if there is none."""
    if a is b:
        return ""
    kind = a.__class__
    if kind is b.__class__:
        if kind is Slot:
            return "" if a.at == b.at else "another value"
        if kind is tuple or parts_of(a) is not None:
            first, second = (a, b) if kind is tuple else [
                [*x, *x.values()] if kind is dict else [x.kind, *x.parts] if kind is Made else x for x in (a, b)
            ]  # fmt: skip
            if len(first) != len(second):
                return f"{len(first)} values, then {len(second)}"
            for x, y in zip(first, second, strict=True):
                if x is not y and (found := differ(x, y, same)):
                    return found
            return ""
    if same(a, b):
        return ""
    if a.__class__ is Slot or b.__class__ is Slot:
        return "another value"
    return short(a) if isinstance(a, np.ndarray) else f"{short(a)}, then {short(b)}"


def _form_of(x: Any) -> Any:
    """A result of which arrays have no memory."""
    if x.__class__ is tuple or x.__class__ is list:
        return x.__class__(map(_form_of, x))
    return np.broadcast_to(np.zeros((), x.dtype), x.shape) if x.__class__ is np.ndarray else x


def _forms(a: Any, b: Any) -> str:
    """The difference between the shapes and dtypes of two results, as text; "" if there is none."""
    if a.__class__ is np.ndarray is b.__class__ and a.dtype is b.dtype and a.shape == b.shape:
        return ""
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        if len(a) != len(b):
            return f"{len(a)} values, then {len(b)}"
        return next((found for x, y in zip(a, b, strict=True) if (found := _forms(x, y))), "")
    if hasattr(a, "dtype") and hasattr(b, "dtype") and hasattr(a, "shape"):
        is_same = a.dtype == b.dtype and a.shape == b.shape
        return "" if is_same else f"{a.dtype}{list(a.shape)}, then {b.dtype}{list(b.shape)}"
    return "" if a.__class__ is b.__class__ else f"{type(a).__name__}, then {type(b).__name__}"
