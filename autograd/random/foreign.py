"""Generators of random numbers that are not `autograd.random`'s: NumPy's and Python's, found where a function has them.

Recomputation rewinds them. A generator is found in the arguments of a function, its closure, defaults and global names,
the object that it is a method of, and in what these hold.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..engine.tensor import Tensor
from ..errors import is_own_file

__all__ = ["Source", "changed", "rewound", "sources"]

_DEEPEST = 12  # two levels for each module inside another
_MOST = 5_000  # objects, so that the search takes milliseconds where a function refers to a whole program
_BARE = frozenset((
    int, float, complex, bool, str, bytes, type(None), np.ndarray, np.dtype, type, ModuleType, range, slice, CodeType,
))  # fmt: skip


_WITHOUT = frozenset(("autograd", "builtins", "collectives", "numpy", "parallel"))
"""Packages whose methods draw from no global generator of Python's, nor from one of their own."""


class Source(NamedTuple):
    """A generator: how its state is read, and set."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]


_OF_PYTHON = Source(random.getstate, random.setstate)
_OF_NUMPY = Source(np.random.get_state, np.random.set_state)


def _source(x: Any) -> Source | None:
    kind = type(x)  # and not its __class__, which an object that stands for another one may make
    if issubclass(kind, np.random.Generator):
        x = x.bit_generator
        kind = type(x)
    if issubclass(kind, np.random.BitGenerator):
        return Source(partial(getattr, x, "state"), partial(setattr, x, "state"))
    if issubclass(kind, np.random.RandomState):
        return Source(x.get_state, x.set_state)
    return Source(x.getstate, x.setstate) if issubclass(kind, random.Random) else None


def sources(*roots: Any) -> list[Source]:
    """Return the generators that objects hold, and on the main thread the global ones that they may use.

    Threads share the global generators, and another thread may draw at any time, so there they cannot be replayed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> len(sources(lambda x: x + rng.normal()))
    2
    """
    is_main = threading.current_thread() is threading.main_thread()
    found = {0: _OF_NUMPY} if is_main else {}
    seen: set[int] = set()
    level = list(roots)
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for x in level:
            if x is random and is_main:
                found[id(x)] = _OF_PYTHON
            if type(x) in _BARE or issubclass(type(x), Tensor) or id(x) in seen or len(seen) > _MOST:
                continue
            seen.add(id(x))
            source = _source(x)
            if source is None:
                below += _held(x)
            else:
                found[id(getattr(x, "bit_generator", x))] = source
        level = below
    return list(found.values())


def _held(x: Any) -> Sequence[Any]:
    """The objects that an object refers to."""
    kind = type(x)
    if issubclass(kind, list | tuple | set | frozenset):
        return [*x]
    if issubclass(kind, dict):
        return [*x.values()]
    if issubclass(kind, FunctionType):
        inside: list[Any] = [*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
        for cell in x.__closure__ or ():
            try:
                inside.append(cell.cell_contents)
            except ValueError:  # a name that has no value yet
                continue
        if not is_own_file(x.__code__.co_filename):
            inside += _globals(x.__code__, x.__globals__)
        return inside
    if issubclass(kind, MethodType):
        return [x.__self__, x.__func__]
    if issubclass(kind, BuiltinMethodType):
        return [x.__self__]
    if issubclass(kind, partial):
        return [x.func, *x.args, *x.keywords.values()]
    if issubclass(kind, type | ModuleType):
        return []
    methods = [f for each in kind.__mro__ if each.__module__.partition(".")[0] not in _WITHOUT
               for f in vars(each).values() if type(f) is FunctionType]  # fmt: skip
    try:
        return [*object.__getattribute__(x, "__dict__").values(), *methods]
    except (AttributeError, TypeError):
        return methods


def _globals(code: CodeType, names: Mapping[str, Any]) -> Iterator[Any]:
    """The values of the global names that a function and those inside it use."""
    yield from (names[name] for name in code.co_names if name in names)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _globals(each, names)


def changed(before: Sequence[tuple[Source, Any]]) -> list[tuple[Source, Any]]:
    """Return those of the sources, with their states, which now have another state."""
    return [(source, old) for source, old in before if not _is_same(old, source.get())]


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_same(value, b[key]) for key, value in a.items())
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


@contextmanager
def rewound(states: Sequence[tuple[Source, Any]]) -> Iterator[None]:
    """A block in which sources go on from earlier states. At its end they get those that they had before it."""
    now = [source.get() for source, _ in states]
    try:
        for source, old in states:
            source.set(old)
        yield
    finally:
        for (source, _), present in zip(states, now, strict=True):
            source.set(present)
