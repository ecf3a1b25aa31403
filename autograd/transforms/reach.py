"""Reach: the state that a step can read besides its arguments, found from the step itself.

A walk begins at the function. It follows closure cells, the globals and attributes that code names, defaults, `self`,
containers, modules, plain objects and their classes, and the functions among these, whose code names more. It finds
*places*, each with what it holds: plain data (numbers, strings) counts by value, all else by identity. A step is the
one that was recorded only if every place holds what it held before the recorded run.

An attribute counts if code that was found names it: a list of losses that only the program around the step fills is no
state of the step. Where code reads attributes by names that it computes (``getattr(x, name)``, ``vars(x)``), all count.
Of a `Module` all attributes count, but for those that are private to a class of ringtape; the state of an optimizer is
no place, as its step changes it (see `tracing`), but the code of its class is found. Objects of Python's standard
library, such as namespaces, count by what code names of them. The walk ends at other objects of ringtape and of
installed packages, but for functions of the program that they hold, as those that ``value_and_grad(f)`` returns.

A walk that meets an iterator or a queue is refused: each run of a step would take something from it.
"""

from __future__ import annotations

import array
import dis
import functools
import io
import operator
import sys
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import repeat
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import numpy as np

from ..arrays.device import runtime_of
from ..compiler.identities import END, Read, values_of
from ..custom.primitive import Extension
from ..engine.leaves import Leaf
from ..engine.tensor import TENSORS
from ..errors import CaptureError, short
from ..nn.module import Module
from ..optim.base import Optimizer
from ..random.keys import Key

__all__ = ["Change", "Place", "Reach", "held_in", "is_holder", "is_of_library", "same"]

_LIBRARIES = frozenset(("autograd", "collectives", "parallel", "numpy", "scipy", "cupy")) | sys.stdlib_module_names
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice, np.dtype, np.generic, Key)
_READS_ALL = frozenset(("vars", "dir", "eval", "exec", "globals", "asdict", "astuple", "fields"))  # functions
_READS_ONE = frozenset(("getattr", "hasattr", "setattr", "attrgetter"))
_MAKE = frozenset(("__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__"))
_WRAPPERS = (UserDict, UserList, ChainMap, WeakKeyDictionary, WeakValueDictionary)  # of what `data` or `maps` holds
_OF_STEPS = frozenset(("step", "update", "update_all", "update_some"))  # methods that a step of an optimizer calls
_QUEUES = ("queue", "_queue", "multiprocessing.queues")
_MOST = 20_000  # values in all places: to compare them takes some 0.4 ms a call


class _Absent:
    """In the place of a value that is not there."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


class _ClassOf:
    """The class of an object, which the step need not call."""

    def __init__(self, kind: type):
        self.kind = kind


class Place:
    """Something that holds values: a dictionary, a list, the closure of a function, the attributes of an object.

    Attributes
    ----------
    path : str
        Where it is, as a program would write it.
    keys : callable
        What the values are called after the path, in order.
    reads : list of Read
        Those of its values (see `compiler.identities`): one for each, or, where values may be added, a call for all.
    holder : object
        What a change can be made in again: a dictionary, or an object. None if it cannot be.
    """

    __slots__ = ("holder", "keys", "path", "reads")

    def __init__(self, path: str, keys: Callable[[], Iterable[str]], reads: list[Read], holder: Any = None):
        self.path, self.keys, self.reads, self.holder = path, keys, reads, holder

    @property
    def is_open(self) -> bool:
        """Whether values may be added."""
        return bool(self.reads) and self.reads[0][0] is operator.call

    def values(self) -> list[Any]:
        """The values that it holds now."""
        try:
            if self.is_open:
                return [*self.reads[0][1]()]
            return [get(*of) for get, *of in self.reads]
        except (ValueError, KeyError, AttributeError):  # a cell is empty, or something is gone
            return [ABSENT] * len(self.reads)


class Change:
    """A place that holds something else than before."""

    def __init__(self, path: str, before: Any, after: Any, holder: Any = None, key: str = ""):
        self.path, self.before, self.after, self.holder, self.key = path, before, after, holder, key

    def __str__(self) -> str:
        before, after = short(self.before), short(self.after)
        return f"{self.path} was {before} and is {after if after != before else f'another {after}'}"

    @property
    def again(self) -> Callable[[], Any] | None:
        """A function that makes the change; None if a replay cannot."""
        if not isinstance(self.after, _PLAIN) or self.before is ABSENT:
            return None
        if self.holder is None:
            return None
        make = operator.setitem if self.holder.__class__ is dict else setattr
        return functools.partial(make, self.holder, self.key, self.after)


def same(a: Any, b: Any) -> bool:
    """Whether two values are one: the same object, or equal plain data of one type."""
    if a is b:
        return True
    if a.__class__ is not b.__class__ or not isinstance(a, _PLAIN):
        return False
    if isinstance(a, np.generic):
        return a.tobytes() == b.tobytes()
    return repr(a) == repr(b) if isinstance(a, float | complex) else bool(a == b)


def _same_values(a: Any, b: Any) -> bool:
    """Whether two values are one, or arrays of the same bits."""
    if a.__class__ is np.ndarray and b.__class__ is np.ndarray:
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    return same(a, b)


class Reach:
    """The places that objects can reach, and what they held when this was made.

    Parameters
    ----------
    roots : iterable of (str, object)
        Each with its path: the step, and objects among its arguments.
    like : Reach, optional
        Of the same roots, at another time. The search begins with the names that code was then found to read.

    Attributes
    ----------
    places : list of Place
    held : list of list
    arrays : dict
        By path, the arrays, but for those of leaves.
    leaves : dict
        By path, the leaves.
    objects : list
        All that was found, which is kept alive.
    ids : frozenset of int
        Of the objects.
    stateful : list
        Those among the objects that are optimizers, or of a class of their package, such as scalers.

    Raises
    ------
    CaptureError
        There are more than 20,000 values to compare at each call; or there is an iterator or a queue.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]], like: Reach | None = None):
        roots = list(roots)
        self._names: set[str] = {"forward"} if like is None else set(like._names)
        self._asked: set[str] = set() if like is None else set(like._asked)  # names asked for, which may not be there
        self._all: bool = like is not None and like._all
        self._pairs: set[tuple[str, str]] = set() if like is None else set(like._pairs)  # names, and their attributes
        self._makes: set[type] = set() if like is None else set(like._makes)  # classes that code can call
        self._quick: Callable[[], Iterable[Any]] | None = None
        known: Any = None
        while known != (now := (len(self._names), len(self._pairs), len(self._makes), self._all)):
            known = now  # until code names nothing more
            self._seen: dict[int, Any] = {}
            self.places: list[Place] = []
            self.arrays: dict[str, Any] = {}
            self.leaves: dict[str, Leaf] = {}
            self._walk(roots)
        self.objects = list(self._seen.values())
        self.ids = frozenset(self._seen)
        self.stateful = [
            x for x in self.objects
            if isinstance(x, Optimizer)
            or (type(x).__module__.startswith("autograd.optim") and hasattr(x, "__dict__") and not isinstance(x, type))
        ]  # fmt: skip
        self.held = [place.values() for place in self.places]
        if sum(map(len, self.held)) > _MOST:
            place, values = max(zip(self.places, self.held, strict=True), key=lambda pair: len(pair[1]))
            raise CaptureError(
                f"capture: the step can reach {place.path}, which holds {len(values)} values; needed: at most {_MOST} "
                "in all, because each call compares them\n  fix: an array of numbers in the place of a list"
            )

    # -- what has changed --------------------------------------------------------------------------------------------
    def changes(self) -> list[Change]:
        """The values that places hold now and did not hold before, by the keys that they have now."""
        found: list[Change] = []
        for place, before in zip(self.places, self.held, strict=True):
            after = place.values()
            if len(before) != len(after):
                if not found or found[-1].path != place.path:  # of a dictionary, keys and values
                    found.append(Change(place.path, f"{len(before)} values", f"{len(after)} values"))
                continue
            for key, a, b in zip(place.keys(), before, after, strict=False):
                if not same(a, b):
                    found.append(Change(f"{place.path}{key}", a, b, place.holder, _bare(key)))
        return found

    def holds(self) -> bool:
        """Whether every place holds what it held. Equal numbers that are new objects are compared from now on."""
        now = [place.values() for place in self.places]
        for before, after in zip(self.held, now, strict=True):
            if len(before) != len(after) or not all(map(same, before, after)):
                return False
        self.held[:] = now
        return True

    def kept(self) -> tuple[list[Read], list[Any]]:
        """All reads, and the values that they gave: the quick form of `holds`, by identity alone (see `Identities`)."""
        pairs = [*zip(self.places, self.held, strict=True)]
        reads, kept = list[Read](), list[Any]()
        for place, held in pairs:
            if place.is_open:
                reads += place.reads
                kept += [*held, *END]
        fixed = [pair for place, held in pairs if not place.is_open for pair in zip(place.reads, held, strict=True)]
        fixed.sort(key=lambda pair: (pair[0][0].__name__, len(pair[0])))  # those of one kind are read together
        return [*reads, *(read for read, _ in fixed)], [*kept, *(value for _, value in fixed)]

    def now(self) -> list[Any]:
        """All values that places hold now, in one order."""
        try:
            if self._quick is None:
                self._quick = values_of(self.kept()[0])
            return list(self._quick())
        except (ValueError, KeyError, AttributeError):  # a cell is empty, or something is gone
            return [ABSENT]

    def other_place(self, before: list[Any]) -> str:
        """The path of the first value that is not what `now` has returned before; "" if there is none."""
        after = self.now()
        if len(before) == len(after) and all(map(operator.is_, before, after)):
            return ""
        if len(before) == len(after) and all(map(_same_values, before, after)):
            return ""
        changes = self.changes()
        return changes[0].path if changes else self.places[0].path

    # -- the walk ----------------------------------------------------------------------------------------------------
    def _walk(self, roots: Iterable[tuple[str, Any]]) -> None:
        for root in roots:  # what one names has a path by it
            waiting = deque([root])
            while waiting:
                path, x = waiting.popleft()
                if isinstance(x, _ClassOf):
                    x = x.kind
                elif isinstance(x, type):
                    self._makes.add(x)
                if not isinstance(x, _PLAIN) and id(x) not in self._seen:
                    self._seen[id(x)] = x
                    waiting.extend(self._parts(path, x))

    def _parts(self, path: str, x: Any) -> Iterator[tuple[str, Any]]:
        """The values that an object holds, each with its path. Its places are noted."""
        kind = type(x)
        if kind in TENSORS:
            if isinstance(x, Leaf):
                self.leaves[_unused(path, self.leaves)] = x
                self._attributes(path, x, "_requires_grad", holder=x)
                self._attributes(path, x, "layout")
            else:
                self._attributes(path, x, "array")
                self.arrays[_unused(path, self.arrays)] = x.array
        elif isinstance(x, np.ndarray) and x.dtype != object:
            self.arrays[_unused(path, self.arrays)] = x
        elif runtime_of(kind) is not None:
            return  # an array of a device
        elif kind is FunctionType:
            yield from self._function(path, x)
        elif kind is MethodType:
            yield from ((f"{path}.__self__", x.__self__), (path, x.__func__))
        elif kind is BuiltinMethodType or kind is MethodWrapperType:
            yield f"{path}.__self__", x.__self__
        elif isinstance(x, ref):
            yield from self._read(f"{path}()", x)
        elif isinstance(x, ContextVar):
            yield from self._read(f"{path}.get()", functools.partial(x.get, ABSENT))
        elif isinstance(x, functools.partial):
            yield from ((path, x.func), (path, x.args), (path, x.keywords))
        elif isinstance(x, staticmethod | classmethod):
            yield path, x.__func__
        elif isinstance(x, property):
            yield from ((path, f) for f in (x.fget, x.fset) if f is not None)
        elif isinstance(x, functools.cached_property):
            yield path, x.func
        elif isinstance(x, type):
            yield from self._class(path, x)
        elif isinstance(x, Optimizer):
            yield from self._optimizer(path, x)
        elif isinstance(x, Extension):
            yield from _functions_in(path, (x.function, x.vjp(), x.jvp()))
        elif isinstance(x, ModuleType):
            if not is_of_library(x.__name__):
                yield from self._named(path, vars(x), self._names)
        else:
            yield from self._contents(path, x)
            if isinstance(x, Module):
                yield from self._module(path, x)
                return
            is_own = not is_of_library(kind.__module__)
            if not is_own:
                _require_no_iterator(path, x)
                yield from _functions_in(path, getattr(x, "__dict__", {}).values())
            if is_own or kind.__module__.partition(".")[0] in sys.stdlib_module_names:
                yield from self._object(path, x, is_own or kind.__module__ in ("types", "argparse"))

    def _add_open(
        self, path: str, keys: Callable[[], Iterable[str]], read: Callable[[], Iterable[Any]], holder: Any = None
    ) -> None:  # fmt: skip
        """Add a place of any number of values."""
        self.places.append(Place(path, keys, [(operator.call, read)], holder))

    def _add(self, path: str, keys: Iterable[str], reads: Iterable[Read], holder: Any = None) -> None:
        """Add a place with one value for each read."""
        self.places.append(Place(path, lambda: keys, [*reads], holder))

    def _attributes(self, path: str, x: Any, name: str, holder: Any = None) -> None:
        self._add(path, [f".{name}"], [(getattr, x, name)], holder)

    def _read(self, path: str, read: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
        """The one value that a call returns."""
        self._add_open(path, lambda: [""], lambda: (read(),))
        yield path, read()

    def _contents(self, path: str, x: Any) -> Iterator[tuple[str, Any]]:
        """The values that a container holds."""
        if isinstance(x, dict | MappingProxyType):
            self._add_open(path, lambda: [f", the key {k!r}" for k in x], x.keys)
            self._add_open(path, lambda: [f"[{k!r}]" for k in x], x.values, x if isinstance(x, dict) else None)
            yield from ((f"{path}[{key!r}]", value) for key, value in x.items())
        elif isinstance(x, np.ndarray):  # of objects
            self._add_open(path, lambda: [f".flat[{i}]" for i in range(x.size)], lambda: x.ravel().tolist())
            yield from ((f"{path}.flat[{i}]", value) for i, value in enumerate(x.ravel().tolist()))
        elif isinstance(x, bytearray | array.array):
            self._add_open(path, lambda: [f"[{i}]" for i in range(len(x))], x.__iter__)
        elif isinstance(x, list | deque):
            self._add_open(path, lambda: [f"[{i}]" for i in range(len(x))], x.__iter__)
            yield from ((f"{path}[{i}]", value) for i, value in enumerate(x))
        elif isinstance(x, tuple | frozenset):
            yield from ((f"{path}[{i}]", value) for i, value in enumerate(x))
        elif isinstance(x, set):
            self._add(path, repeat(""), [(operator.contains, x, value) for value in x])
            self._add_open(path, lambda: [""], functools.partial(map, len, (x,)))
            yield from ((path, value) for value in x)

    def _optimizer(self, path: str, x: Optimizer) -> Iterator[tuple[str, Any]]:
        """Attributes of an optimizer that code names after the name of the optimizer; methods that may be assigned."""
        kind, own = type(x), vars(x)
        yield kind.__qualname__, _ClassOf(kind)
        is_own = not is_of_library(kind.__module__)
        after = {name for each in kind.__mro__ for name in vars(each) if name in self._names or name in _OF_STEPS}
        after |= self._after(path, asks=not is_own or self._all)
        self._attributes(path, x, "__class__")
        named, absent = sorted(after & own.keys()), sorted(after - own.keys())
        self._add(path, [f".{name}" for name in absent], [(operator.contains, own, name) for name in absent])
        self._add(path, [f".{name}" for name in named], [(operator.getitem, own, name) for name in named], own)
        if not is_own:
            yield from _functions_in(path, own.values())
            return
        for name in x.own_names():
            yield from self._state(f"{path}.{name}", own[name])

    def _after(self, path: str, asks: bool = True) -> set[str]:
        """The attributes that code names directly after the name of an object, or asks for by name."""
        last = path.rpartition(".")[2]
        return (self._asked if asks else set()) | {name for of, name in self._pairs if of == last}

    def _state(self, path: str, x: Any) -> Iterator[tuple[str, Any]]:
        """The values of an attribute of an optimizer. The containers and objects that hold them are no places."""
        if not is_holder(x):
            yield path, x
        elif id(x) not in self._seen:
            self._seen[id(x)] = x
            yield type(x).__qualname__, _ClassOf(type(x))
            for name, value in held_in(x):
                yield from self._state(f"{path}{name}", value)

    def _function(self, path: str, f: FunctionType) -> Iterator[tuple[str, Any]]:
        cells = [cell for cell in f.__closure__ or () if not _is_empty(cell)]
        yield f"{path}.registry", getattr(f, "registry", None)  # of `functools.singledispatch`
        held = [cell.cell_contents for cell in cells]
        if f.__globals__.get("__name__") == "autograd.extend":  # a primitive; or its rules, in a dictionary
            held += [rule for each in held if isinstance(each, dict) for rule in each.values()]
            yield from ((path, each) for each in held if isinstance(each, FunctionType | Extension))
            return
        if is_of_library(f.__module__ or ""):
            yield from _functions_in(path, held)
            return
        names = self._globals_read(f.__code__)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._attributes(path, f, name)
        yield from ((path, x) for x in (f.__defaults__, f.__kwdefaults__) if x is not None)
        if cells:
            free = [name for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
                    if not _is_empty(cell)]  # fmt: skip
            self._add("", free, [(getattr, cell, "cell_contents") for cell in cells])
            yield from ((name, cell.cell_contents) for name, cell in zip(free, cells, strict=True))
        yield from self._named("", f.__globals__, names, shadows=True)
        package = f.__globals__.get("__package__") or ""
        for name in _read_by(f.__code__).modules:
            yield from ((each, sys.modules[each]) for each in (name, f"{package}.{name}") if each in sys.modules)
        yield from self._named(path, vars(f), [name for name in vars(f) if name in self._names or self._all])

    def _globals_read(self, of: CodeType) -> tuple[str, ...]:
        """The globals that a function reads. The attributes that it may read of any object are noted."""
        read = _read_by(of)
        self._all |= read.all
        self._pairs |= read.pairs
        self._asked |= read.asked
        self._names |= read.names | self._asked
        return read.globals

    def _named(
        self, path: str, d: Mapping[str, Any], names: Iterable[str], shadows: bool = False
    ) -> Iterator[tuple[str, Any]]:
        """The values of a namespace by names. With `shadows` names count that are not there."""
        dot = "." if path else ""
        names = dict.fromkeys(names)
        there, absent = [name for name in names if name in d], [name for name in names if name not in d and shadows]
        keys = [[f"{dot}{name}" for name in each] for each in (there, absent)]
        self._add(path, keys[0], [(operator.getitem, d, name) for name in there], d)
        self._add(path, keys[1], [(operator.contains, d, name) for name in absent])
        yield from ((f"{path}{dot}{name}", d[name]) for name in there)

    def _class(self, path: str, kind: type) -> Iterator[tuple[str, Any]]:
        mine = [each for each in kind.__mro__ if not is_of_library(each.__module__)]
        if not mine or mine[0] is not kind:
            return
        self._attributes(path, kind, "__mro__")
        if any(is_of_library(each.__module__) for each in kind.__mro__[:-1]):  # it may get an override
            self._add_open(path, lambda: [f", the attribute {k}" for k in vars(kind)], vars(kind).keys)
        named = [name for each in mine for name, value in vars(each).items() if self._counts(kind, name, value)]
        yield from self._named(path, vars(kind), named, shadows=True)
        yield from ((each.__qualname__, each if kind in self._makes else _ClassOf(each)) for each in mine[1:])
        yield type(kind).__qualname__, _ClassOf(type(kind))  # a metaclass of the program has attributes, too

    def _counts(self, kind: type, name: str, value: Any) -> bool:
        """Whether an attribute of a class counts: code names it, or Python or a library calls it by itself."""
        if name in self._names:
            return True
        if any(name in vars(each) for each in kind.__mro__[:-1] if is_of_library(each.__module__)):
            return True
        if name.startswith("__") and name.endswith("__"):
            return isinstance(value, FunctionType) and (kind in self._makes or name not in _MAKE)
        return self._all

    def _module(self, path: str, module: Module) -> Iterator[tuple[str, Any]]:
        d = vars(module)
        if is_of_library(type(module).__module__):
            after = self._after(path)
            yield from self._named(path, d, [name for name in d if not name.startswith("_") or name in after])
            absent = sorted((after | {"forward"}) - d.keys())
            self._add(path, [f".{name}" for name in absent], [(operator.contains, d, name) for name in absent])
        else:
            yield from self._all_of(path, d)
        self._attributes(path, module, "training", holder=module)
        yield type(module).__qualname__, _ClassOf(type(module))

    def _all_of(self, path: str, d: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """All attributes of an object."""
        self._add_open(path, lambda: [f", the attribute {k}" for k in d], d.keys)
        self._add_open(path, lambda: [f".{k}" for k in d], d.values, d)
        yield from ((f"{path}.{name}", value) for name, value in d.items())

    def _object(self, path: str, x: Any, may_count_all: bool) -> Iterator[tuple[str, Any]]:
        kind = type(x)
        self._attributes(path, x, "__class__")
        of_class = {name for each in kind.__mro__ for name in vars(each)}
        d = getattr(x, "__dict__", None)
        counts_all = self._all and may_count_all
        if d is not None:
            known = self._names | {"data", "maps"} if isinstance(x, _WRAPPERS) else self._names
            if counts_all:
                yield from self._all_of(path, d)
            else:
                # An attribute that `__getattr__` gives is shadowed by one that is set.
                names = {name for name in known if name in d or name in of_class or "__getattr__" in of_class}
                yield from self._named(path, d, sorted(names | self._asked), shadows=True)
        slots = [name for each in kind.__mro__ for name in _slots(each) if counts_all or name in self._names]
        if slots:
            self._add(path, [f".{name}" for name in slots], [(getattr, x, name, ABSENT) for name in slots])
            yield from ((f"{path}.{name}", getattr(x, name, None)) for name in slots)
        yield kind.__qualname__, _ClassOf(kind)


def is_holder(x: Any) -> bool:
    """Whether it is a container, or an object of a class of the program, which may hold the state of an optimizer."""
    if isinstance(x, dict | list | tuple | set | deque | SimpleNamespace):
        return True
    is_object = isinstance(getattr(x, "__dict__", None), dict) and not isinstance(x, type | FunctionType | Module)
    return is_object and not is_of_library(type(x).__module__)


def held_in(x: Any) -> list[tuple[str, Any]]:
    """The values that such a holder has, or the attributes of a dictionary of these, each with the end of its path."""
    if isinstance(x, dict):
        return [(f"[{key!r}]", value) for key, value in x.items()]
    if isinstance(x, list | tuple | set | deque):
        return [(f"[{i}]", value) for i, value in enumerate(x)]
    return [(f".{name}", value) for name, value in vars(x).items()]


def is_of_library(name: str) -> bool:
    """Whether a module is ringtape's, Python's, or installed among other people's."""
    top = name.partition(".")[0]
    if top in _LIBRARIES:
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _unused(path: str, known: Mapping[str, Any]) -> str:
    """A path with a number, if another value has it already."""
    found, i = path, 1
    while found in known:
        i += 1
        found = f"{path} ({i})"
    return found


def _require_no_iterator(path: str, x: Any) -> None:
    """Raise CaptureError for an object that gives something else at each call, and cannot be given back its state."""
    kind = type(x)
    is_queue = kind.__module__ in _QUEUES and hasattr(x, "get")
    if is_queue or hasattr(kind, "__next__") and not isinstance(x, io.IOBase):
        raise CaptureError(
            f"capture: the step can reach {path}, {'a queue' if is_queue else 'an iterator'} of class {kind.__name__}; "
            "a replay would take nothing from it\n  fix: take the next value outside of the step, and give it as an "
            "argument"
        )


def _functions_in(path: str, values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Those of a library's values that may be the program's."""
    for x in values:
        if isinstance(x, FunctionType | MethodType | functools.partial | Module):
            yield path, x
        elif isinstance(x, tuple | list):
            yield from _functions_in(path, x)


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None and False
    except ValueError:
        return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those of the functions, lambdas and comprehensions in it."""
    yield code
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from _codes(x)


class _Read(NamedTuple):
    """The names in the code of a function, and of the functions, lambdas and comprehensions in it."""

    globals: tuple[str, ...]
    names: frozenset[str]  # of attributes and globals
    asked: frozenset[str]  # names of attributes that stand as texts, if it asks for attributes by name
    all: bool  # whether it may read any attribute
    modules: tuple[str, ...]  # that it imports when it runs
    pairs: frozenset[tuple[str, str]]  # attributes that follow a name directly, as ("opt", "lr") of ``opt.lr``


@functools.lru_cache(4096)  # a capture walks ten times over the functions of a step; each reading costs 200 us or more
def _read_by(of: CodeType) -> _Read:
    names, asked, may_all = set[str](), set[str](), False
    read, modules = dict[str, None](), dict[str, None]()
    pairs = set[tuple[str, str]]()
    for code in _codes(of):
        functions, constants, before = set[str](), set[str](), ""
        lines = list(dis.get_instructions(code))
        for i in lines:
            if "GLOBAL" in i.opname or i.opname == "LOAD_NAME":
                functions.add(i.argval)
                read[i.argval] = None
            elif i.opname == "IMPORT_NAME":
                modules[i.argval] = None
            elif i.opname == "LOAD_CONST" and isinstance(i.argval, str) and i.argval.isidentifier():
                constants.add(i.argval)
            if i.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                pairs.add((before, i.argval))
            before = i.argval if isinstance(i.argval, str) else ""
        found = set(code.co_names)
        by_name = bool(functions & _READS_ONE) or "attrgetter" in found
        may_all |= bool(functions & _READS_ALL) or not found.isdisjoint(("__dict__", "asdict", "astuple"))
        may_all |= by_name and not _names_are_texts(lines)
        asked |= constants if by_name else set()
        names |= found
    return _Read(tuple(read), frozenset(names), frozenset(asked), may_all, tuple(modules), frozenset(pairs))


def _names_are_texts(lines: Sequence[dis.Instruction]) -> bool:
    """Whether each call that asks for an attribute by its name has a text as second argument."""
    calls = [k for k, i in enumerate(lines) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and i.argval in _READS_ONE]
    for k in calls:
        end = next((j for j in range(k, len(lines)) if lines[j].opname == "CALL"), k)
        given = [i for i in lines[k + 1 : end] if i.opname not in ("PRECALL", "PUSH_NULL", "CACHE")]
        places = {2: [given[-1:]], 3: [given[-2:-1], given[1:2]]}.get(lines[end].arg or 0, [])
        if not any(i.opname == "LOAD_CONST" and isinstance(i.argval, str) for each in places for i in each):
            return False
    return True


def _slots(kind: type) -> list[str]:
    found = vars(kind).get("__slots__", ())
    return [found] if isinstance(found, str) else list(found)


def _bare(key: str) -> str:
    """The key of a change in a dictionary or an object."""
    return key.strip(".") if not key.startswith("[") else key[2:-2]
