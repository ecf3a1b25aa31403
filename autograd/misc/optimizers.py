"""Plain stochastic optimizers of functions of nested containers, under HIPS autograd's names and defaults.

``grad(x, i)`` is asked for the gradient at step i; ``callback(x, i, g)`` is called before each step. To train modules
there is `autograd.optim`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import numpy as np
from ..wrap_util import wraps
from .flatten import flatten

__all__ = ["adam", "rmsprop", "sgd", "unflatten_optimizer"]

Function = Callable[..., Any]


def unflatten_optimizer(optimize: Function) -> Function:
    """An optimizer of flat arrays as one of nested tuples, lists and dictionaries."""

    @wraps(optimize)
    def optimized(grad: Function, x0: Any, callback: Function | None = None, *args: Any, **kwargs: Any) -> Any:
        flat, unflatten = flatten(x0)
        told = None
        if callback is not None:

            def told(x: Any, i: int, g: Any) -> None:
                callback(unflatten(x), i, unflatten(g))

        return unflatten(optimize(lambda x, i: flatten(grad(unflatten(x), i))[0], flat, told, *args, **kwargs))

    return optimized


@unflatten_optimizer
def sgd(
    grad: Function, x: Any, callback: Function | None = None, num_iters: int = 200, step_size: float = 0.1,
    mass: float = 0.9,
) -> Any:  # fmt: skip
    """Gradient descent with momentum, whose velocity is an average of the gradients: weights ``1 - mass``, ``mass``."""
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
    """Steps divided by the root of an average of the squared gradients, which begins at one."""
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
    """Adam (Kingma, Ba, 2015, algorithm 1)."""
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
