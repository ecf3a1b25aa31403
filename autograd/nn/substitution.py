"""Substitution: other values in the place of a module's parameters, on this thread, while a part of a program runs.

The module is not changed. A table of the thread, from the identity of a parameter to the value in its place, is read
where an attribute is read, so that ``self.weight`` in a `forward` gives the entered value, and another thread, a copy,
a pickle and ``vars(module)`` have the parameter. `substitutable` gives the class of a module a property for the
attribute, once, before the first substitution; a class that has none costs nothing. An attribute that is read through
such a property costs one Python call (0.1 to 0.2 us).

The same holds for methods, with the identity of the module in the table (`interceptable`).

Unlike ``torch.func.functional_call``, which assigns the attributes and assigns them again at the end, this is safe
where threads share a module. Unlike a copy of the module with other leaves, as equinox has it, it also holds where a
function or a bound method that the module stored has `self` in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from inspect import getattr_static
from threading import Lock
from types import MethodType
from typing import Any

from .module import Module

__all__ = ["VALUES", "interceptable", "intercepted", "substitutable", "substituted"]

# Context variables, because reading one costs 30 ns less than an attribute of a `threading.local`. A thread begins
# without a value.
VALUES: ContextVar[dict[int, Any] | None] = ContextVar("values as parameters", default=None)
"""By the identity of an attribute's value: the value in its place. None while nothing is substituted."""
_METHODS: ContextVar[dict[int, Callable[..., Any]] | None] = ContextVar("functions as methods", default=None)

_lock = Lock()
_NOTHING = object()


class substituted:
    """Inside the block, on this thread, attributes give other values. Blocks may be nested; the inner one counts.

    Parameters
    ----------
    values : dict of int to object
        By ``id(parameter)``: the value in its place. The attributes that hold it are `substitutable`. A value that a
        `forward` assigns to such an attribute lasts until the end of the block.
    """

    __slots__ = ("_before", "_values")

    def __init__(self, values: dict[int, Any]):
        self._values = values

    def __enter__(self) -> None:
        outer = self._before = VALUES.get()
        VALUES.set({**self._values} if outer is None else {**outer, **self._values})

    def __exit__(self, *error: object) -> None:
        VALUES.set(self._before)


class intercepted:
    """Inside the block, on this thread, modules have other functions in the place of a method.

    Parameters
    ----------
    methods : mapping of int to callable
        By ``id(module)``, the function; the method is `interceptable`. It calls the method as
        ``type(module).forward(module, ...)``.
    """

    __slots__ = ("_before", "_methods")

    def __init__(self, methods: Mapping[int, Callable[..., Any]]):
        self._methods = methods

    def __enter__(self) -> None:
        self._before = _METHODS.get()
        _METHODS.set({**(self._before or {}), **self._methods})

    def __exit__(self, *error: object) -> None:
        _METHODS.set(self._before)


class _Attribute(property):
    """A property that reads the attribute of a module through the thread's table."""

    made: tuple[Any, ...]  # the arguments of `_attribute`

    def __reduce__(self) -> tuple[Any, ...]:
        return _attribute, self.made  # a class of a notebook is pickled with its attributes


def substitutable(module: Module, name: str) -> None:
    """Let an attribute of a module be substituted: its class gets a property, unless it has one.

    A descriptor that the class already has, such as a property of the program, stays, and decides itself.
    """
    cls = type(module)
    if isinstance(getattr_static(cls, name, None), _Attribute):
        return
    with _lock:
        default = getattr_static(cls, name, _NOTHING)
        if not hasattr(type(default), "__set__"):
            setattr(cls, name, _attribute(name, *(() if default is _NOTHING else (default,))))


def _attribute(name: str, *defaults: Any) -> _Attribute:
    """The property of an attribute. The default is the value that the class has for modules without the attribute."""

    def read(module: Module, get: Any = VALUES.get, id: Any = id) -> Any:  # defaults are read faster than globals
        try:
            value = module.__dict__[name]
        except KeyError:
            if not defaults:
                text = f"{type(module).__name__!r} object has no attribute {name!r}"
                raise AttributeError(text, name=name, obj=module) from None
            (default,) = defaults
            return default.__get__(module, type(module)) if hasattr(default, "__get__") else default
        values = get()
        return value if values is None else values.get(id(value), value)

    def write(module: Module, value: Any) -> None:
        values, held = VALUES.get(), id(module.__dict__.get(name))
        if values is not None and held in values:
            values[held] = value  # a `forward` assigns it: the parameter stays
        else:
            module.__dict__[name] = value

    def remove(module: Module) -> None:
        if name not in module.__dict__:
            raise AttributeError(name, name=name, obj=module)
        del module.__dict__[name]

    made = _Attribute(read, write, remove)
    made.made = (name, *defaults)
    return made


class _Method:
    """A method that is read through the thread's table. It belongs to one class and not to those below it.

    So ``super().forward`` of a class below gives the method itself, also where the module is in the table.
    """

    def __init__(self, cls: type, name: str, function: Any):
        self.cls, self.name, self.function = cls, name, function

    def __get__(self, module: Module | None, cls: type | None = None) -> Any:
        if module is None:
            return self.function
        if self.name in module.__dict__:
            return module.__dict__[self.name]
        methods = _METHODS.get()
        if methods is not None and type(module) is self.cls and id(module) in methods:
            return methods[id(module)]
        return MethodType(self.function, module)

    def __set__(self, module: Module, value: Any) -> None:
        module.__dict__[self.name] = value

    def __delete__(self, module: Module) -> None:
        del module.__dict__[self.name]


def interceptable(module: Module, name: str = "forward") -> None:
    """Let a method of a module be intercepted: its class gets a descriptor in the place of the function."""
    cls = type(module)
    with _lock:
        if not isinstance(vars(cls).get(name), _Method):
            setattr(cls, name, _Method(cls, name, getattr(cls, name)))
