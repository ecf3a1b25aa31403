"""From a function of one container to the transform of a function of several arguments: argnum, names, texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from ..errors import ArgumentError, call_site
from .traced import Function

__all__ = ["Argnum", "name_of", "named", "nary", "position", "unary_to_nary"]

Argnum = int | Sequence[int]


def nary(name: str, unary: Callable[..., Any], fun: Function, argnum: Argnum = 0, *more: Any, **words: Any) -> Function:
    """The function that applies ``unary(f, x)`` to the argument(s) `argnum`, everything else held fixed.

    With several argnums, x is the tuple of those arguments.
    """
    places = _places(name, argnum)
    what = f"argument {argnum}"  # what errors call it
    several = isinstance(argnum, Sequence)

    def transformed(*args: Any, **kwargs: Any) -> Any:
        for i in places:
            if not -len(args) <= i < len(args):
                raise ArgumentError(
                    f"{name} of {name_of(fun)} with respect to argument {i}: {len(args)} positional arguments were "
                    "given. Needed: what is differentiated, by position. Fix: pass it without its keyword, or "
                    f"{name}(lambda x: {name_of(fun)}(..., key=x))" + call_site()
                )

        def of_one(x: Any) -> Any:
            full = list(args)
            for i, value in zip(places, x if several else (x,), strict=True):
                full[i] = value
            return fun(*full, **kwargs)

        of_one.__name__ = name_of(fun)
        of_one.what = what  # type: ignore[attr-defined]
        return unary(of_one, tuple([args[i] for i in places]) if several else args[places[0]], *more, **words)

    return named(transformed, fun, name, argnum)


def unary_to_nary(unary: Callable[..., Any]) -> Callable[..., Any]:
    """A transform of functions of several arguments from ``unary(f, x)``, a transform of a function of one at a point.

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


def named(transformed: Function, fun: Function, name: str, argnum: Argnum) -> Function:
    """Give a transformed function a name and a text that say what it is; its signature stays that of `fun`."""
    of = name_of(fun)
    transformed.__name__ = transformed.__qualname__ = f"{name}_of_{of}_wrt_argnum_{argnum}"
    transformed.__doc__ = (
        f"    {name} of function {of} with respect to argument number {argnum}.\n\n"
        f"    It takes the arguments of {of}.\n"
    )
    transformed.__wrapped__ = fun  # type: ignore[attr-defined]
    return transformed


def name_of(fun: Any) -> str:
    """What a function is called in names and errors; partial objects and instances have no name."""
    return getattr(fun, "__name__", "[unknown name]")


def position(fun: Function, name: str) -> int:
    """The place of a named parameter among those of a function.

    Raises
    ------
    ArgumentError
        There is none of that name, or it cannot be passed by position.
    """
    parameters = inspect.signature(fun).parameters
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [key for key, p in parameters.items() if p.kind in kinds]
    if name not in known:
        raise ArgumentError(
            f"{name_of(fun)} has no parameter {name!r} that is passed by position; it has "
            f"{', '.join(map(repr, known)) or 'none'}" + call_site()
        )
    return known.index(name)


def _places(name: str, argnum: Any) -> tuple[int, ...]:
    several = isinstance(argnum, tuple | list)
    try:
        return tuple(map(index, argnum)) if several else (index(argnum),)
    except TypeError:
        raise ArgumentError(
            f"{name}: argnum={argnum!r} was given; needed: an int, or a tuple or list of ints" + call_site()
        ) from None
