"""Simple stochastic optimizers over nested containers, with HIPS autograd's names and defaults.

``grad(x, i)`` must return the gradient at step i; ``callback(x, i, g)`` is called before each step. To train modules
use `autograd.optim`.

As in HIPS autograd, a step is along what `grad` returns. The gradient of a complex number is ``df/dx - i df/dy``, and
its conjugate leads downwards: give ``grad=lambda x, i: np.conj(gradient(x, i))``. Of Adam and RMSProp the square is
that of the complex number, not of its two parts; the optimizers of `autograd.optim` take the parts, and the conjugate,
by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import numpy as np
from ..errors import check_callable, typed_errors
from ..wrap_util import wraps
from .flatten import flatten

__all__ = ["adam", "rmsprop", "sgd", "unflatten_optimizer"]

Function = Callable[..., Any]


def unflatten_optimizer(optimize: Function) -> Function:
    """Turn an optimizer of flat arrays into one of nested tuples, lists and dictionaries."""

    @typed_errors
    @wraps(optimize)
    def optimized(grad: Function, x0: Any, callback: Function | None = None, *args: Any, **kwargs: Any) -> Any:
        check_callable(grad, optimize.__name__)
        flat, unflatten = flatten(x0)
        flat_callback = None
        if callback is not None:

            def flat_callback(x: Any, i: int, g: Any) -> None:
                callback(unflatten(x), i, unflatten(g))

        return unflatten(optimize(lambda x, i: flatten(grad(unflatten(x), i))[0], flat, flat_callback, *args, **kwargs))

    return optimized


@unflatten_optimizer
def sgd(
    grad: Function, x: Any, callback: Function | None = None, num_iters: int = 200, step_size: float = 0.1,
    mass: float = 0.9,
) -> Any:  # fmt: skip
    """Minimize by gradient descent with momentum and return the last x.

    The velocity is an exponential average of the gradients: ``mass * velocity - (1 - mass) * g``.
    """
    velocity = np.zeros(len(x))
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        velocity = mass * velocity - (1.0 - mass) * g
        x = x + step_size * velocity
    return x


@unflatten_optimizer
def rmsprop(
    grad: Function, x: Any, callback: Function | None = None, num_iters: int = 100, step_size: float = 0.1,
    gamma: float = 0.9, eps: float = 1e-8,
) -> Any:  # fmt: skip
    """Minimize by RMSProp and return the last x: steps are divided by the root of the averaged squared gradients.

    The average starts at one.
    """
    average = np.ones(len(x))
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        average = gamma * average + (1 - gamma) * g**2
        x = x - step_size * g / (np.sqrt(average) + eps)
    return x


@unflatten_optimizer
def adam(
    grad: Function, x: Any, callback: Function | None = None, num_iters: int = 100, step_size: float = 0.001,
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
) -> Any:  # fmt: skip
    """Minimize by Adam (Kingma, Ba, 2015, algorithm 1) and return the last x."""
    mean = np.zeros(len(x))
    square = np.zeros(len(x))
    for i in range(num_iters):
        g = grad(x, i)
        if callback:
            callback(x, i, g)
        mean = b1 * mean + (1 - b1) * g
        square = b2 * square + (1 - b2) * g**2
        x = x - step_size * (mean / (1 - b1 ** (i + 1))) / (np.sqrt(square / (1 - b2 ** (i + 1))) + eps)
    return x
