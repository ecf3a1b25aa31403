"""The module `autograd.util` of HIPS autograd: small helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .errors import typed_errors, warn
from .test_util import check_grads

__all__ = ["func", "quick_grad_check", "subval", "subvals"]


@typed_errors
def subvals(x: Iterable[Any], replacements: Iterable[tuple[int, Any]]) -> tuple[Any, ...]:
    """Return `x` as a tuple with items replaced, given pairs of index and new item."""
    items = list(x)
    for i, item in replacements:
        items[i] = item
    return tuple(items)


@typed_errors
def subval(x: Iterable[Any], i: int, item: Any) -> tuple[Any, ...]:
    """Return `x` as a tuple with item `i` replaced."""
    return subvals(x, [(i, item)])


def func(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` itself. (In Python 2 it returned the function of an unbound method.)"""
    return f


@typed_errors
def quick_grad_check(
    fun: Callable[..., Any], arg0: Any, extra_args: Sequence[Any] = (), kwargs: Any = None, verbose: bool = True,
    eps: float = 1e-4, rtol: float = 1e-4, atol: float = 1e-6, rs: Any = None,
) -> None:  # fmt: skip
    """Check the gradient with respect to the first argument. Deprecated: use `autograd.test_util.check_grads`."""
    warn("quick_grad_check is deprecated; use autograd.test_util.check_grads", DeprecationWarning)
    check_grads(lambda x: fun(x, *extra_args, **(kwargs or {})), modes=["rev"], order=1)(arg0)
