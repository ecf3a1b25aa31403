"""The operators and methods of Tensors while `autograd.ops` is not loaded: the first use of one loads it.

`autograd.ops` declares the operations with the engine, and installs them in the class (`ops.tensor_methods`). The
engine imports nothing above it. So that a Tensor has its operators however it was made (by a pickle, or by a module
that declares no operation), `at_first_use` gives the class a placeholder for each, which loads `autograd.ops` by name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["OPERATORS", "at_first_use", "load_operations"]

Class = TypeVar("Class", bound=type)

_REFLECTED = ("add", "sub", "mul", "truediv", "matmul", "pow", "mod", "floordiv", "divmod", "and", "or", "xor",
              "lshift", "rshift")  # fmt: skip
_OTHERS = ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "round", "index")
OPERATORS = tuple(f"__{name}__" for name in (*_REFLECTED, *(f"r{name}" for name in _REFLECTED), *_OTHERS))
"""The operators that `ops.tensor_methods` installs; a test compares them. Python looks an operator up in the class."""


def load_operations() -> None:
    """Load all operations, which replaces the placeholders."""
    import_module(f"{__package__}.ops.everything")


def _operator(name: str) -> Callable[..., Any]:
    def operator(x: Any, *others: Any) -> Any:
        load_operations()
        return getattr(x, name)(*others)

    return operator


def _attribute(x: Any, name: str) -> Any:
    """Look up a method or property that the class does not have yet. Of `__names__` Python itself asks for many."""
    if name[:2] != "__":
        load_operations()
    return object.__getattribute__(x, name)


def at_first_use(cls: Class) -> Class:
    """Give the class of Tensors the placeholders."""
    for name in OPERATORS:
        setattr(cls, name, _operator(name))
    setattr(cls, "__getattr__", _attribute)  # noqa: B010  # mypy knows no such method of a `type`
    return cls
