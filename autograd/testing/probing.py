"""Evaluation of a function under test, and of its gradients, on host arrays; random directions and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays.device import is_array, is_inexact, to_host
from ..engine.tensor import TENSORS
from ..errors import DtypeError, ShapeError
from ..transforms import vjp
from .report import GradientMismatch

__all__ = ["Function", "arguments", "gradients", "norm", "pairing", "random_like", "raw", "value"]

Function = Callable[..., Any]


def raw(x: Any) -> Any:
    """Return the array of a Tensor, and anything else unchanged."""
    return x.array if x.__class__ in TENSORS else x


def arguments(args: Sequence[Any], name: str) -> list[np.ndarray]:
    """Return the arguments of the check `name` as host arrays.

    Raises
    ------
    ShapeError
        There are none.
    DtypeError
        An argument is not floating or complex.
    """
    if not args:
        raise ShapeError(f"{name}: no arguments were given; needed: the arrays at which to differentiate")
    xs = [to_host(raw(x)) if is_array(raw(x)) else np.asarray(x) for x in args]
    for i, x in enumerate(xs):
        if not is_inexact(x.dtype):
            raise DtypeError(f"{name}: argument {i} has dtype {x.dtype}; needed: a floating or complex dtype")
    return xs


def value(f: Function, xs: Sequence[Any]) -> np.ndarray:
    """Call `f` and return its result as a host array; raise ShapeError or DtypeError unless it is one such array."""
    y = raw(f(*xs))
    if isinstance(y, tuple | list):
        raise ShapeError(f"the function returned {len(y)} values; needed: one array. Fix: concatenate them")
    y = to_host(y) if is_array(y) else np.asarray(y)
    if not is_inexact(y.dtype):
        raise DtypeError(f"the function returned dtype {y.dtype}; needed: a floating or complex dtype")
    return y


def gradients(f: Function, xs: Sequence[Any], ct: Any) -> list[np.ndarray]:
    """Return the cotangents of all arguments by reverse mode, given the cotangent of the result.

    Raises
    ------
    GradientMismatch
        A cotangent has not the shape and dtype of its argument.
    """
    found = vjp(f, *xs)[1](ct)
    gs = [to_host(raw(g)) for g in ([found] if len(xs) == 1 else found)]
    for i, (x, g) in enumerate(zip(xs, gs, strict=True)):
        if g.shape != x.shape or g.dtype != x.dtype:
            raise GradientMismatch(
                f"reverse mode, argument {i}: the gradient is {g.dtype}{list(g.shape)}; needed: {x.dtype}"
                f"{list(x.shape)}, as the argument"
            )
    return gs


def random_like(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return standard normal values with the shape and dtype of `x`."""
    z = rng.standard_normal(x.shape)
    if x.dtype.kind == "c":
        z = z + 1j * rng.standard_normal(x.shape)
    return np.asarray(z).astype(x.dtype)


def pairing(ct: np.ndarray, x: np.ndarray) -> float:
    """Return the real part of ``sum(ct * x)``, the pairing ``<ct, x>``, which has no conjugate."""
    return float(np.sum(np.asarray(ct) * np.asarray(x)).real)


def norm(x: np.ndarray) -> float:
    """Return the Euclidean norm of all elements."""
    return float(np.sqrt(np.sum(np.abs(x) ** 2)))
