"""The module `autograd.wrap_util` of HIPS autograd: `unary_to_nary` and helpers that name functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import typed_errors
from .transforms.wrapping import name_of as get_name
from .transforms.wrapping import unary_to_nary

__all__ = ["get_doc", "get_name", "unary_to_nary", "wrap_nary_f", "wraps"]

Function = Callable[..., Any]


def get_doc(f: Any) -> str:
    """Return the docstring of a function, "" if it has none."""
    return getattr(f, "__doc__", "") or ""


@typed_errors
def wraps(fun: Any, namestr: str = "{fun}", docstr: str = "{doc}", **words: Any) -> Function:
    """Return a decorator that names a function, and sets its docstring, after another function.

    `namestr` and `docstr` are format strings with the fields ``fun`` and ``doc`` and those of `words`.

    Examples
    --------
    >>> from autograd.wrap_util import wraps
    >>> @wraps(len, "half_of_{fun}")
    ... def half(x):
    ...     return len(x) / 2
    >>> half.__name__
    'half_of_len'
    """

    def named(f: Any) -> Any:
        try:
            f.__name__ = namestr.format(fun=get_name(fun), **words)
            f.__doc__ = docstr.format(fun=get_name(fun), doc=get_doc(fun), **words)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError):  # not a valid format string
            pass
        return f

    return named


def wrap_nary_f(fun: Any, op: Any, argnum: Any) -> Function:
    """Return a decorator that names the result of an operator `op` on `fun`, such as "grad_of_f_wrt_argnum_0"."""
    text = "    {op} of function {fun} with respect to argument number {argnum}.\n"
    return wraps(fun, "{op}_of_{fun}_wrt_argnum_{argnum}", text, op=get_name(op), argnum=argnum)
