"""Turning an operator on functions of one argument into one that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .util import subvals

__all__ = ["get_doc", "get_name", "unary_to_nary", "wrap_nary_f", "wraps"]

Function = Callable[..., Any]


def get_name(f: Any) -> str:
    """What a function is called."""
    return getattr(f, "__name__", "[unknown name]")


def get_doc(f: Any) -> str:
    """A function's documentation."""
    return getattr(f, "__doc__", "") or ""


def wraps(fun: Any, namestr: str = "{fun}", docstr: str = "{doc}", **words: Any) -> Function:
    """Name a function after another one."""

    def named(f: Any) -> Any:
        try:
            f.__name__ = namestr.format(fun=get_name(fun), **words)
            f.__doc__ = docstr.format(fun=get_name(fun), doc=get_doc(fun), **words)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError):  # a doc that is no format string
            pass
        return f

    return named


def wrap_nary_f(fun: Any, op: Any, argnum: Any) -> Function:
    """Name what an operator made of a function."""
    return wraps(
        fun, "{op}_of_{fun}_wrt_argnum_{argnum}",
        "    {op} of function {fun} with respect to argument number {argnum}. Takes the\n"
        "    same arguments as {fun} but returns the {op}.\n",
        op=get_name(op), argnum=argnum,
    )  # fmt: skip


def unary_to_nary(operator: Function) -> Function:
    """From ``operator(fun, x)``, for functions of x alone, ``operator(fun, argnum)(*args)``.

    Examples
    --------
    >>> from autograd.wrap_util import unary_to_nary
    >>> @unary_to_nary
    ... def doubled(fun, x):
    ...     return 2 * fun(x)
    >>> doubled(lambda a, b: a - b, 1)(5, 3)
    4
    """

    @wraps(operator)
    def nary(fun: Function, argnum: Any = 0, *more: Any, **options: Any) -> Function:
        if not isinstance(argnum, int | tuple | list):
            raise TypeError(f"argnum={argnum!r} was given; needed: a position, or a tuple or list of them")

        @wrap_nary_f(fun, operator, argnum)
        def of_arguments(*args: Any, **kwargs: Any) -> Any:
            @wraps(fun)
            def unary(x: Any) -> Any:
                pairs = [(argnum, x)] if isinstance(argnum, int) else zip(argnum, x, strict=True)
                return fun(*subvals(args, pairs), **kwargs)

            x = args[argnum] if isinstance(argnum, int) else tuple(args[i] for i in argnum)
            return operator(unary, x, *more, **options)

        return of_arguments

    return nary
