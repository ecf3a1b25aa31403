"""Where SciPy enters."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ..arrays.shape_only import Shaped
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..errors import DependencyError, NotDifferentiable, call_site
from ..ops.elementwise import astype

__all__ = ["as_ufunc", "followed", "in_dtype", "scipy", "traced", "without_derivative"]


def scipy(name: str) -> Any:
    """A module of SciPy.

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


def _broadcast(*xs: Any) -> Any:
    return np.broadcast_shapes(*map(np.shape, xs))


def as_ufunc(function: Callable[..., Any], shape: Callable[..., Any] = _broadcast) -> Callable[..., Any]:
    """A function of SciPy, with the manners of a ufunc.

    Its result has its operands' dtype, where SciPy computes in float64 throughout; and of arrays without values it is
    one too, whose shape is ``shape(*operands)``.
    """

    @wraps(function)
    def call(*xs: Any) -> Any:
        kinds = [x.dtype for x in xs if hasattr(x, "dtype") and x.dtype.kind in "fc"]
        for x in xs:
            if type(x) is Shaped:
                return Shaped(shape(*xs), np.result_type(*kinds), x.why)
        y = function(*xs)
        dtype = np.result_type(*kinds) if kinds else y.dtype
        return y if y.dtype == dtype or y.dtype.kind != dtype.kind else y.astype(dtype)

    return call


def in_dtype(i: int, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule whose cotangent has the dtype of operand i, where others, without cotangent, may have a wider one."""
    return lambda ct, y, *xs: astype(rule(ct, y, *xs), xs[i].dtype)


def traced(*xs: Any) -> bool:
    """Whether one of the arguments is a Tensor."""
    return any(x.__class__ in TENSORS for x in xs)


def followed(x: Any) -> bool:
    """Whether a tape is recording and follows this value, so that to drop it would lose a gradient."""
    return x.__class__ in TENSORS and state.recording is not None and x.requires_grad


def without_derivative(operation: Callable[..., Any], *argnums: int) -> Callable[..., Any]:
    """An operation that has no derivative in some of its arguments, and refuses to be asked for one."""
    name = operation.name  # type: ignore[attr-defined]

    def call(*xs: Any) -> Any:
        for i in argnums:
            if i < len(xs) and followed(xs[i]):
                raise NotDifferentiable(
                    f"{name} has no derivative with respect to argument {i}, which the tape follows. "
                    f"Fix: stop_gradient on it, if its gradient is not wanted" + call_site()
                )
        return operation(*xs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"SciPy's {name}; without a derivative in argument{'s' if len(argnums) > 1 else ''} {argnums}."
    return call
