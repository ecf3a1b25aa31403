"""Memory: the values of all that a step can change, taken before it runs and given back, and compared by their bits.

With it a captured step is proved while it is used: the replay runs, the memory of before is given back, the step itself
runs, and what both have left must be equal.
"""

from __future__ import annotations

import array
import contextlib
import functools
import operator
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import zip_longest
from types import CellType, FunctionType, ModuleType
from typing import Any, NoReturn, Self

import numpy as np

from ..arrays.capture import Capture, set_capture
from ..engine.leaves import Leaf
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..errors import CaptureError
from ..random.keys import get_state, set_state
from .guards import others_may_read
from .reach import Reach, held_in, is_holder, is_of_library
from .recorder import Passing

__all__ = ["Beside", "Left", "Memory", "Watch", "is_large"]

_OWN = ("autograd.optim", "autograd.nn", "autograd.random", "autograd.data", "parallel.")  # whose objects have state
_LARGE_BYTES = 1 << 26
"""An array of the program from this size on, such as a data set, is neither copied nor compared in flight."""
_IMMUTABLE = frozenset((bool, int, float, complex, str, bytes, type(None), np.dtype))
_LEAF = ("array", "_grad", "_requires_grad", "layout", "pending", "used")


class Memory:
    """The values of what a step can reach: arrays, containers, attributes, closures, optimizers, the random state.

    Parameters
    ----------
    reach : Reach
        Of the step. Objects of ringtape that have state, such as optimizers, are followed to all that they hold.
    """

    def __init__(self, reach: Reach):
        self._begin(reach)
        self._walk([*reach.objects, *reach.leaves.values(), *reach.arrays.values()])
        for place in reach.places:  # globals that the step assigns
            if place.holder.__class__ is dict:
                for name, value in zip(place.keys(), place.values(), strict=False):
                    if name in place.holder:
                        self._undo.append(_assignment(place.holder, name, value))

    @classmethod
    def of(cls, reach: Reach, objects: Iterable[Any]) -> Memory:
        """The values of some objects, and of all that they hold."""
        found = object.__new__(cls)
        found._begin(reach, list(objects))
        found._walk(found._objects or ())
        return found

    def anew(self, reach: Reach) -> Memory:
        """The values now, of the same objects if it is of some."""
        return Memory(reach) if self._objects is None else Memory.of(reach, self._objects)

    def has(self, x: Any) -> bool:
        """Whether it gives back an object."""
        return id(x) in self._seen

    def _begin(self, reach: Reach, objects: list[Any] | None = None) -> None:
        self.reach, self._objects = reach, objects
        self._undo: list[Callable[[], Any]] = []
        self._keys = get_state()
        self._seen: dict[int, Any] = {}
        self._found = reach.ids
        self._large = {id(x) for x in reach.arrays.values() if is_large(x)}
        self._draws: list[tuple[str, Callable[[], Any], Any]] = []
        if not others_may_read():  # which may draw, too
            self._generator("Python's random", random.getstate, random.setstate)
            self._generator("numpy.random", np.random.get_state, np.random.set_state)

    def _generator(self, name: str, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        """Keep the state of a generator of random numbers."""
        numbers = get()
        self._draws.append((name, get, numbers))
        self._undo.append(lambda: None if _is_state(get(), numbers) else put(numbers))

    def require_no_draw(self) -> None:
        """Raise CaptureError if a generator of random numbers other than keys is not in the state that it had."""
        for name, get, numbers in self._draws:
            if not _is_state(get(), numbers):
                raise CaptureError(
                    f"capture: the step draws random numbers from {name}; a replay would not draw\n  fix: keys of "
                    "autograd.random, whose draws replays repeat; or draw before the step, and give an array as an "
                    "argument"
                )

    def _walk(self, objects: Iterable[Any]) -> None:
        waiting = deque(objects)
        while waiting:
            x = waiting.popleft()
            if x.__class__ not in _IMMUTABLE and id(x) not in self._seen:
                self._seen[id(x)] = x
                waiting.extend(self._take(x))

    def give_back(self) -> None:
        """Make everything what it was."""
        for undo in self._undo:
            undo()
        set_state(self._keys)

    def _take(self, x: Any) -> Iterable[Any]:
        """Keep the values of an object, and return what it holds."""
        if isinstance(x, np.ndarray):
            if id(x) not in self._large:
                self._undo.append(_contents(x, x.copy()))
        elif isinstance(x, Leaf):
            return self._attributes(x, _LEAF)
        elif isinstance(x, dict):
            kept = dict(x)
            self._undo.append(_refilled(x, x.update, kept))
            return [*kept.values(), *self._dictionary(x)]
        elif isinstance(x, list | deque):
            items = list(x)
            self._undo.append(_refilled(x, x.extend, items))
            return items
        elif isinstance(x, set):
            members = set(x)
            self._undo.append(_refilled(x, x.update, members))
        elif isinstance(x, tuple | frozenset):
            return x
        elif isinstance(x, np.random.Generator):
            bits = x.bit_generator
            self._generator("a numpy.random.Generator", lambda: bits.state, functools.partial(setattr, bits, "state"))
        elif isinstance(x, np.random.RandomState):
            self._generator("a numpy.random.RandomState", x.get_state, x.set_state)
        elif isinstance(x, random.Random) and not isinstance(x, random.SystemRandom):
            self._generator("a random.Random", x.getstate, x.setstate)
        elif isinstance(x, bytearray | array.array):
            self._undo.append(functools.partial(operator.setitem, x, slice(None), x[:]))
        elif isinstance(x, ContextVar):
            value = x.get(None)
            self._undo.append(lambda: None if x.get(None) is value else x.set(value))
        elif isinstance(x, FunctionType):
            for cell in x.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty one
                    self._undo.append(_filled(cell, cell.cell_contents))
        elif not isinstance(x, type | ModuleType) and (id(x) in self._found or type(x).__module__.startswith(_OWN)):
            return self._dictionary(x)
        return ()

    def _dictionary(self, x: Any) -> Iterable[Any]:
        """The attributes of an object."""
        d = getattr(x, "__dict__", None)
        if not isinstance(d, dict):
            return ()
        kept = dict(d)

        def undo() -> None:
            if d.keys() != kept.keys() or any(d[name] is not kept[name] for name in kept):
                d.clear()
                d.update(kept)

        self._undo.append(undo)
        return kept.values()

    def _attributes(self, x: Any, names: Iterable[str]) -> Iterable[Any]:
        kept = {name: getattr(x, name) for name in names}

        def undo() -> None:
            for name, value in kept.items():
                setattr(x, name, value)

        self._undo.append(undo)
        return [kept.get("array"), getattr(kept.get("_grad"), "array", kept.get("_grad"))]


def _is_state(a: Any, b: Any) -> bool:
    """Whether two states of a generator of random numbers are one."""
    if isinstance(a, dict):
        return all(_is_state(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return a.tobytes() == b.tobytes()
    if isinstance(a, tuple) and any(isinstance(x, np.ndarray) for x in a):
        return all(map(_is_state, a, b))
    return bool(a == b)


def _refilled(x: Any, fill: Callable[[Any], Any], items: Any) -> Callable[[], None]:
    """A function that refills a container, unless it holds what it held: another thread may read it."""

    def undo() -> None:
        if not _holds(x, items):
            x.clear()
            fill(items)

    return undo


def _holds(x: Any, items: Any) -> bool:
    if len(x) != len(items):
        return False
    if isinstance(x, dict):
        return all(map(operator.is_, x, items)) and all(map(operator.is_, x.values(), items.values()))
    return bool(x == items) if isinstance(x, set) else all(map(operator.is_, x, items))


def _assignment(d: dict[str, Any], name: str, value: Any) -> Callable[[], None]:
    def undo() -> None:
        if d.get(name) is not value:
            d[name] = value

    return undo


def _filled(cell: CellType, value: Any) -> Callable[[], None]:
    def undo() -> None:
        cell.cell_contents = value

    return undo


def _contents(x: np.ndarray[Any, Any], kept: np.ndarray[Any, Any]) -> Callable[[], None]:
    def undo() -> None:
        if x.tobytes() == kept.tobytes():
            return
        locked: list[Any] = []  # the array, and those whose memory it shows, if a recording keeps them read-only
        each: Any = x
        while isinstance(each, np.ndarray):
            locked[:0] = [] if each.flags.writeable else [each]
            each = each.base
        for each in locked:
            each.setflags(True)
        x[...] = kept
        for each in reversed(locked):
            each.setflags(False)

    return undo


def is_large(x: Any) -> bool:
    """Whether an array is so large that a copy of it might not fit into memory."""
    return isinstance(x, np.ndarray) and x.nbytes >= _LARGE_BYTES


class Watch:
    """The arrays that a step reaches, which only recorded calls may write while it is recorded.

    Parameters
    ----------
    reach : Reach
    """

    def __init__(self, reach: Reach):
        self._reach = reach
        self._large = {path: _sum_of(x) for path, x in reach.arrays.items() if is_large(x)}
        self._known = dict(self._digests())
        self._gradients: dict[int, tuple[Leaf, int]] = {}

    def _digests(self) -> Iterator[tuple[str, int]]:
        for path, leaf in self._reach.leaves.items():
            yield path, _sum_of(leaf.array)
        for path, x in self._reach.arrays.items():
            if path not in self._large:
                yield path, _sum_of(x)

    def end(self) -> None:
        """As `look`, for large arrays too, which no recorded call writes."""
        self.look()
        for path, digest in self._large.items():
            if digest != _sum_of(self._reach.arrays[path]):
                self._refuse(path)

    def look(self) -> None:
        """Raise CaptureError if an array, or a gradient, is not what the last recorded call left."""
        for path, digest in self._digests():
            if digest != self._known[path]:
                self._refuse(path)
        for leaf, digest in self._gradients.values():
            if _sum_of(leaf._grad) != digest:
                self._refuse(f"the gradient of {leaf.name or 'a leaf'}")

    def note(self) -> None:
        """A recorded call has changed arrays."""
        self._known = dict(self._digests())
        self._gradients = {}

    def note_gradient(self, leaf: Leaf) -> None:
        """A recorded call has added to the gradient of a leaf."""
        self._gradients[id(leaf)] = leaf, _sum_of(leaf._grad)

    def _refuse(self, path: str) -> NoReturn:
        raise CaptureError(
            f"capture: the step writes to {path} by NumPy, which is not recorded, so a replay would not repeat it\n"
            "  fix: an optimizer of autograd.optim for parameters; operations of autograd, whose result is returned, "
            "for other arrays; or call the step itself"
        )


def _sum_of(x: Any) -> int:
    x = getattr(x, "array", x)
    is_array = isinstance(x, np.ndarray | np.generic) and x.size
    return zlib.crc32(np.ascontiguousarray(x).view(np.uint8).data) if is_array else 0  # times give no buffer


class Left:
    """The values after a run of a step: results, leaves, gradients, arrays, contents of places, optimizers' state.

    Parameters
    ----------
    reach : Reach
        Of the step.
    results : iterable
    """

    def __init__(self, reach: Reach, results: Iterable[Any]):
        self._reach = reach
        self._values = [_kept(x) for _, x in _left(reach, results)]
        self._held = reach.now()

    def difference(self, results: Iterable[Any]) -> str:
        """The path of the first value that is other now; "" if there is none."""
        pairs = zip_longest(self._values, _left(self._reach, results), fillvalue=("a value", None))
        found = next((path for kept, (path, x) in pairs if not _is_as(kept, x)), "")
        return found or self._reach.other_place(self._held)

    def difference_of_results(self, results: Iterable[Any]) -> str:
        """As `difference`, of results and gradients alone."""
        pairs = zip_longest(self._values, _left(self._reach, results), fillvalue=("a value", None))
        return next((path for kept, (path, x) in pairs
                     if path.startswith("result ") or path.endswith(".grad") if not _is_as(kept, x)), "")  # fmt: skip


def _left(reach: Reach, results: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The values that a step may have changed, each with its path."""
    for i, x in enumerate(results):
        x = x.array if x.__class__ in TENSORS else x
        # one number may be Python's in the step, and a Tensor in its replay, as a norm is
        yield f"result {i}", x.item() if isinstance(x, np.ndarray | np.generic) and not x.ndim else x
    for path, leaf in reach.leaves.items():
        yield path, leaf.array
        yield f"{path}.grad", getattr(leaf._grad, "array", leaf._grad)
    for path, x in reach.arrays.items():
        if x.nbytes < _LARGE_BYTES:
            yield path, x
    for x in reach.stateful:
        is_own = not is_of_library(type(x).__module__)
        names = x.own_names() if is_own else [name for name in vars(x) if not name.startswith("_")]
        for name in names:
            yield from _state_in(f"{type(x).__name__}.{name}", getattr(x, name), reach, {id(x)})


def _state_in(path: str, x: Any, reach: Reach, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The values that an attribute of an optimizer holds, in containers too."""
    if is_holder(x):
        if id(x) not in seen:
            seen.add(id(x))
            for name, value in held_in(x):
                yield from _state_in(f"{path}{name}", value, reach, seen)
    elif x.__class__ not in TENSORS:
        yield path, x
    elif id(x) not in reach.ids:  # such as a master weight
        yield path, x.array


def _kept(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def _is_as(a: Any, b: Any) -> bool:
    """Whether two values have the same bits; of other objects, whether they are of one class."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and (a.tobytes() == b.tobytes() or _is_as_with_nan(a, b))
    if isinstance(a, bool | int | float | complex | str | np.generic):
        return type(a) is type(b) and repr(a) == repr(b)
    return type(a) is type(b)


def _is_as_with_nan(a: Any, b: Any) -> bool:
    """Whether arrays have the same bits where they are not NaN; NumPy's own loops differ in the sign of one."""
    if a.dtype.kind not in "fc":
        return False
    bits = [np.where(np.isnan(x), x.dtype.type(np.nan), x).tobytes() for x in (a, b)]
    return bits[0] == bits[1]


class Beside(Passing):
    """A run of a step beside its replay. As a context it lets running averages stay in their arrays, as rows do.

    On several ranks it sends what replays send, if it `is_quiet`, and what the step asks of ranks along the axes
    `together`, which all run it.
    """

    def __init__(self, together: Sequence[str] = (), is_quiet: bool = True) -> None:
        super().__init__()
        self._calls = _Calls(self)
        self._ranks = None if state.distribution.is_alone else state.distribution
        self.listens = self._ranks is not None  # what communicates asks, and is compared as that of a replay
        self._is_quiet, self._together = is_quiet, together

    def __enter__(self) -> Self:
        super().__enter__()
        set_capture(self._calls)
        if self._ranks is not None:
            self._ranks.quiet(self._is_quiet, self._together)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._ranks is not None:
            self._ranks.quiet(False)
        set_capture(None)
        super().__exit__(*error)


class _Calls(Capture):
    """Calls of the layers above that would be rows."""

    records = True

    def __init__(self, beside: Beside):
        super().__init__()
        self._beside = beside

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], words: Any = None, **how: Any) -> Any:
        """Make a call."""
        return self._beside.call(function, args, words)
