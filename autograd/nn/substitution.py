"""Substitution: other values in the place of a module's parameters, on this thread, while a part of a program runs.

The module is not changed. A table of the thread, from a parameter to the value in its place, is read where an attribute
is read, so that ``self.weight`` in a `forward` gives the entered value, and another thread, a copy,
a pickle and ``vars(module)`` have the parameter. `substitutable` gives the class of a module a property for the
attribute, once, before the first substitution; a class that has none costs nothing. An attribute that is read through
such a property costs one Python call (0.1 us). To assign to an attribute whose parameter is substituted is an error.

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
from typing import Any, NoReturn

from ..errors import OptionError
from .module import Module

__all__ = ["ASSIGNED", "VALUES", "interceptable", "intercepted", "substitutable", "substituted"]

# Context variables, because reading one costs 30 ns less than an attribute of a `threading.local`. A thread begins
# without a value.
VALUES: ContextVar[dict[Any, Any] | None] = ContextVar("values as parameters", default=None)
"""By parameter, which is compared by identity: the value in its place. None while nothing is substituted."""
_METHODS: ContextVar[dict[int, Callable[..., Any]] | None] = ContextVar("functions as methods", default=None)


class _Count:
    n = 0


ASSIGNED = _Count()
"""How often a substitutable attribute of any module was assigned to or deleted. While the number is the same, a model
need not look at the attributes of its parameters again, which takes 2 us for six of them."""

_lock = Lock()
_NOTHING = object()


class substituted:
    """Inside the block, on this thread, attributes give other values. Blocks may be nested; the inner one counts.

    Parameters
    ----------
    values : dict
        By parameter: the value in its place. The attributes that hold it are `substitutable`.

    Raises
    ------
    OptionError
        Inside the block another value is assigned to such an attribute, or it is deleted: it would be lost at the end.
    """

    __slots__ = ("_before", "_values")
    _table: ContextVar[Any] = VALUES

    def __init__(self, values: Mapping[Any, Any]):
        self._values = values

    def __enter__(self) -> None:
        outer = self._before = self._table.get()
        self._table.set({**(outer or {}), **self._values})

    def __exit__(self, *error: object) -> None:
        self._table.set(self._before)


class intercepted(substituted):
    """Inside the block, on this thread, modules have other functions in the place of a method.

    Parameters
    ----------
    values : mapping of int to callable
        By ``id(module)``, the function; the method is `interceptable`. It calls the method as
        ``type(module).forward(module, ...)``.
    """

    __slots__ = ()
    _table = _METHODS


class _Attribute(property):
    """A property that reads the attribute of a module through the thread's table."""

    made: tuple[Any, ...]  # the arguments of `_attribute`

    def __reduce__(self) -> tuple[Any, ...]:
        return _attribute, self.made  # a class of a notebook is pickled with its attributes


def substitutable(module: Module, name: str) -> bool:
    """Let an attribute of a module be substituted: its class gets a property, unless it has one.

    A descriptor that the class already has, such as a property of the program, stays, and decides itself. Returns
    whether it is ours, so that `ASSIGNED` counts.
    """
    cls = type(module)
    if isinstance(getattr_static(cls, name, None), _Attribute):
        return True
    with _lock:
        default = getattr_static(cls, name, _NOTHING)
        if hasattr(type(default), "__set__"):
            return isinstance(default, _Attribute)
        setattr(cls, name, _attribute(name, *(() if default is _NOTHING else (default,))))
        return True


def _attribute(name: str, *defaults: Any) -> _Attribute:
    """The property of an attribute. The default is the value that the class has for modules without the attribute."""

    def read(module: Module, get: Any = VALUES.get) -> Any:  # a default is read faster than a global
        try:
            value = module.__dict__[name]
        except KeyError:
            if not defaults:
                text = f"{type(module).__name__!r} object has no attribute {name!r}"
                raise AttributeError(text, name=name, obj=module) from None
            (default,) = defaults
            return default.__get__(module, type(module)) if hasattr(default, "__get__") else default
        values = get()
        if values is None:
            return value
        try:
            return values[value]  # half the time of `get`
        except (KeyError, TypeError):  # a list, say, of a module whose class is that of another one with a parameter
            return value

    def write(module: Module, value: Any) -> None:
        held = module.__dict__.get(name)
        if (inside := _inside(held)) is _NOTHING:
            module.__dict__[name] = value
            ASSIGNED.n += 1  # after the assignment, so that who sees the number sees the value
        elif value is not inside and value is not held:
            _refuse_change(module, name, held, "replaced")

    def remove(module: Module) -> None:
        if name not in module.__dict__:
            raise AttributeError(name, name=name, obj=module)
        if _inside(held := module.__dict__[name]) is not _NOTHING:
            _refuse_change(module, name, held, "deleted")
        del module.__dict__[name]
        ASSIGNED.n += 1

    made = _Attribute(read, write, remove)
    made.made = (name, *defaults)
    return made


def _inside(held: Any) -> Any:
    """The value in the place of an attribute's value, on this thread; `_NOTHING` where it is not substituted."""
    values = VALUES.get()
    try:
        return _NOTHING if values is None else values.get(held, _NOTHING)
    except TypeError:  # it cannot be a key
        return _NOTHING


def _refuse_change(module: Module, name: str, p: Any, done: str) -> NoReturn:
    """Raise OptionError for a change of an attribute while another value is in the place of its parameter."""
    here, path = f"self.{name}", getattr(p, "name", "")
    which = f" ({path})" if path not in ("", name) else ""
    raise OptionError(
        f"{type(module).__name__}: {here}, which holds a parameter{which}, was {done} in a call of the module by a "
        "parallel model. There the parameter has entered the computation, and another value would be lost at the end "
        f"of the call. Needed: an attribute that keeps its parameter\n"
        f"  fix: {name} = {here} * ..., a local variable, if the value is used in this call only\n"
        f"  or:  {here}.data = ..., after backward, if the parameter is to change"
    )


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
