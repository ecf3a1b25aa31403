"""Turns transforms of functions of one argument into transforms with `argnum`, and names the resulting functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from ..errors import ArgumentError, check_callable
from .traced import Function

__all__ = ["Argnum", "like", "name_of", "named", "nary", "position", "unary_to_nary"]

Argnum = int | Sequence[int]


def nary(name: str, unary: Callable[..., Any], fun: Function, argnum: Argnum = 0, *more: Any, **words: Any) -> Function:
    """Return the function that computes ``unary(f, x)``, where x is the argument(s) `argnum` and f a function of x.

    f calls `fun` with all other arguments fixed. With several argnums x is the tuple of those arguments.
    """
    check_callable(fun, name)
    several = isinstance(argnum, tuple | list)
    given: Any = argnum if several else (argnum,)
    try:
        positions = tuple(map(index, given))
    except TypeError:
        raise ArgumentError(
            f"{name}: argnum={argnum!r} was given; needed: an int, or a tuple or list of ints"
        ) from None
    what = f"argument {argnum}"  # the name of x in error messages

    def transformed(*args: Any, **kwargs: Any) -> Any:
        for i in positions:
            if not -len(args) <= i < len(args):
                raise ArgumentError(
                    f"{name} of {name_of(fun)} with respect to argument {i}: {len(args)} positional arguments were "
                    "given; needed: the differentiated argument, by position. Fix: pass it without its keyword, or "
                    f"{name}(lambda x: {name_of(fun)}(..., key=x))"
                )

        def function_of_x(x: Any) -> Any:
            full = list(args)
            for i, value in zip(positions, x if several else (x,), strict=True):
                full[i] = value
            return fun(*full, **kwargs)

        function_of_x.__name__ = name_of(fun)
        function_of_x.what, function_of_x.transform = what, name  # type: ignore[attr-defined]  # `Traced` reads them
        function_of_x.given = args, kwargs  # type: ignore[attr-defined]  # `Traced` reads it
        x = tuple([args[i] for i in positions]) if several else args[positions[0]]
        return unary(function_of_x, x, *more, **words)

    return named(transformed, fun, name, argnum)


def unary_to_nary(unary: Callable[..., Any]) -> Callable[..., Any]:
    """Turn ``unary(f, x)``, which transforms a function of one argument, into a transform with `argnum`.

    Examples
    --------
    >>> import autograd as ag
    >>> double = unary_to_nary(lambda f, x: 2 * f(x))
    >>> double(lambda a, b: a + b, 1)(10.0, 5.0)
    30.0
    """
    name = name_of(unary)

    def transform(fun: Function, argnum: Argnum = 0, *more: Any, **words: Any) -> Function:
        return nary(name, unary, fun, argnum, *more, **words)

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = unary.__doc__
    return transform


def like(f: Function, function: Function) -> Function:
    """Return `function` of the argument of `f`, with the names that errors give to that argument and its transform."""
    function.__dict__.update(f.__dict__)
    return function


def named(transformed: Function, fun: Function, name: str, argnum: Argnum) -> Function:
    """Set the name and docstring of a transformed function; its signature stays that of `fun`."""
    of = name_of(fun)
    transformed.__name__ = transformed.__qualname__ = f"{name}_of_{of}_wrt_argnum_{argnum}"
    transformed.__doc__ = (
        f"    {name} of function {of} with respect to argument number {argnum}.\n\n"
        f"    It takes the arguments of {of}.\n"
    )
    transformed.__wrapped__ = fun  # type: ignore[attr-defined]  # as functools.wraps sets it
    return transformed


def name_of(fun: Any) -> str:
    """Return the name of a function; "[unknown name]" for partial objects and instances, which have none."""
    return getattr(fun, "__name__", "[unknown name]")


def position(fun: Function, name: str) -> int:
    """Return the position of the parameter `name` of a function.

    Raises
    ------
    ArgumentError
        There is no such parameter, or it cannot be passed by position.
    """
    parameters = inspect.signature(fun).parameters
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [key for key, p in parameters.items() if p.kind in kinds]
    if name not in known:
        raise ArgumentError(
            f"{name_of(fun)} has no parameter {name!r} that can be passed by position; it has "
            f"{', '.join(map(repr, known)) or 'none'}"
        )
    return known.index(name)
