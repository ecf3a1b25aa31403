"""Loads SciPy, the one place that imports it, and wraps its functions for use in operations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np

from ..arrays.device import is_inexact
from ..arrays.half import in_float32
from ..arrays.shape_only import Shaped
from ..engine.tensor import TENSORS
from ..errors import DependencyError, NotDifferentiable, typed_errors
from ..extend import primitive
from ..kernels import stands_for
from ..ops.arguments import followed
from ..ops.elementwise import astype

__all__ = ["as_ufunc", "followed", "in_dtype", "others", "scipy", "traced", "without_derivative"]


def scipy(name: str) -> Any:
    """Import and return the module ``scipy.<name>``.

    Raises
    ------
    DependencyError
        SciPy is not installed.
    """
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError as error:
        raise DependencyError(
            f"autograd.scipy needs SciPy, and scipy.{name} cannot be imported ({error}). "
            "Fix: pip install 'ringtape[scipy]'"
        ) from error


def others(module: Any) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module that stands for one of SciPy: its other functions, without derivatives.

    They raise `NotDifferentiable` where a tape records an argument, unless `autograd.extend.defvjp` gives them a rule.
    """

    @cache  # of SciPy's names: a function is wrapped once, and then is the same object
    def missing(name: str) -> Any:
        found = getattr(module, name)
        return primitive(found) if callable(found) and not isinstance(found, type) else found

    return missing


def _broadcast(*xs: Any) -> Any:
    return np.broadcast_shapes(*map(np.shape, xs))


def as_ufunc(function: Callable[..., Any], shape: Callable[..., Any] = _broadcast) -> Callable[..., Any]:
    """Wrap a function of SciPy so that it treats dtypes and shape-only arrays as a ufunc does.

    The result has the dtype of the operands, also where SciPy computes in float64. For shape-only arrays it is
    shape-only too, of shape ``shape(*operands)``.
    """

    @in_float32
    @wraps(function)
    def call(*xs: Any) -> Any:
        kinds = [x.dtype for x in xs if hasattr(x, "dtype") and is_inexact(x.dtype)]
        for x in xs:
            if type(x) is Shaped:
                return Shaped(shape(*xs), np.result_type(*kinds), x.why)
        y = function(*xs) if stands_for.whole is None else stands_for.whole(function, *xs)
        dtype = np.result_type(*kinds) if kinds else y.dtype
        return y if y.dtype == dtype or y.dtype.kind != dtype.kind else y.astype(dtype)

    return call


def in_dtype(i: int, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an adjoint rule so that its cotangent has the dtype of operand i; other operands may have a wider one."""
    return lambda ct, y, *xs: astype(rule(ct, y, *xs), xs[i].dtype)


def traced(*xs: Any) -> bool:
    """Return whether one of the arguments is a Tensor."""
    return any(x.__class__ in TENSORS for x in xs)


def without_derivative(operation: Any, *argnums: int) -> Callable[..., Any]:
    """Wrap an operation without derivative in the arguments `argnums`, to raise if one of them needs a gradient."""
    name = operation.name

    def call(*xs: Any) -> Any:
        for i in argnums:
            if i < len(xs) and followed(xs[i]):
                raise NotDifferentiable(
                    f"{name} has no derivative with respect to argument {i}, which the tape records. "
                    f"Fix: stop_gradient on it, if its gradient is not wanted"
                )
        return operation(*xs)

    call.__name__ = call.__qualname__ = name
    call = typed_errors(call)
    plural = "s" if len(argnums) > 1 else ""
    call.__doc__ = f"SciPy's {name}, without derivative in argument{plural} {', '.join(map(str, argnums))}."
    return call
