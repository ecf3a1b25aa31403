"""The optimizers Adagrad and RMSprop: a step is divided by the root of a sum, or an average, of squared gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..engine.leaves import Leaf
from .base import Optimizer, decayed

__all__ = ["Adagrad", "RMSprop"]


class Adagrad(Optimizer):
    """Adagrad: ``s += g^2``, ``p -= lr / (1 + t lr_decay) g / (sqrt(s) + eps)``.

    Here t counts the earlier steps in which the parameter had a gradient, and `weight_decay` ``p`` is added to g first.

    Parameters
    ----------
    params : iterable of Parameter, or of dict
        Parameters, or groups of them: see `Optimizer`.
    lr : float or callable
        The learning rate, or a schedule: see `schedules`.
    lr_decay, weight_decay : float
    initial_accumulator_value : float
        The value of s before the first step.
    eps : float
        Added to the denominator.
    maximize : bool
        Whether steps go up the gradient instead of down.
    digest_every : int
        See `Optimizer`.

    Notes
    -----
    Source: Duchi, Hazan & Singer 2011, the diagonal form; defaults are torch's.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import optim
    >>> w = ag.Parameter([1.0])
    >>> opt = optim.Adagrad([w], lr=0.5)
    >>> with ag.Tape() as tape:
    ...     loss = (w * w).sum()
    >>> tape.backward(loss); opt.step(); w.numpy()
    array([0.5])
    """

    _saved = ("sums", "counts")
    _numbers = ("lr_decay", "weight_decay", "initial_accumulator_value", "eps")
    _switches = ("maximize",)

    def __init__(
        self,
        params: Iterable[Leaf] | Iterable[dict[str, Any]],
        lr: float | Callable[[int], float] = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        digest_every: int = 100,
    ):
        super().__init__(params, lr, digest_every)
        self.maximize = maximize
        self.lr_decay, self.weight_decay, self.eps = lr_decay, weight_decay, eps
        self.initial_accumulator_value = initial_accumulator_value
        self.sums: list[Any] = [None] * len(self.parameters)
        self.counts = [0] * len(self.parameters)
        self.check()

    def update(self, i: int, p: Leaf, g: Any) -> None:
        if self.weight_decay:
            g = g + self.weight_decay * p.array
        if self.sums[i] is None:
            self.sums[i] = np.full_like(g, self.initial_accumulator_value)
        self.sums[i] += g * g  # in place, so that a captured step finds it where it was
        p.array -= self.lr / (1 + self.counts[i] * self.lr_decay) * (g / (np.sqrt(self.sums[i]) + self.eps))
        self.counts[i] += 1


class RMSprop(Optimizer):
    """RMSprop: ``v = alpha v + (1 - alpha) g^2``, ``p -= lr g / (sqrt(v) + eps)``.

    With `centered`, the average ``a`` of the gradients is kept too, and the root is that of ``v - a^2``. With
    `momentum`, ``b = momentum b + g / (root + eps)`` and ``p -= lr b``. `weight_decay` ``p`` is added to g first.

    Parameters
    ----------
    params : iterable of Parameter, or of dict
        Parameters, or groups of them: see `Optimizer`.
    lr : float or callable
        The learning rate, or a schedule: see `schedules`.
    alpha : float
        The decay rate of the averages.
    eps : float
        Added to the denominator.
    weight_decay, momentum : float
    centered : bool
    maximize : bool
        Whether steps go up the gradient instead of down.
    digest_every : int
        See `Optimizer`.

    Notes
    -----
    Source: Tieleman & Hinton 2012, lecture 6.5; centered: Graves 2013, equations 38 to 41, with eps outside of the
    root, as in torch. Defaults are torch's.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import optim
    >>> w = ag.Parameter([1.0])
    >>> opt = optim.RMSprop([w], lr=0.05)
    >>> with ag.Tape() as tape:
    ...     loss = (w * w).sum()
    >>> tape.backward(loss); opt.step(); w.numpy().round(6)
    array([0.5])
    """

    _saved = ("squares", "averages", "velocity")
    _numbers = ("alpha", "eps", "weight_decay", "momentum", "centered")
    _switches = ("maximize",)
    _flags = ("centered",)

    def __init__(
        self,
        params: Iterable[Leaf] | Iterable[dict[str, Any]],
        lr: float | Callable[[int], float] = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        digest_every: int = 100,
    ):
        super().__init__(params, lr, digest_every)
        self.maximize = maximize
        self.alpha, self.eps, self.weight_decay = alpha, eps, weight_decay
        self.momentum, self.centered = momentum, centered
        self.squares: list[Any] = [None] * len(self.parameters)
        self.averages: list[Any] = [None] * len(self.parameters)
        self.velocity: list[Any] = [None] * len(self.parameters)
        self.check()

    def update(self, i: int, p: Leaf, g: Any) -> None:
        if self.weight_decay:
            g = g + self.weight_decay * p.array
        square = decayed(self.squares, i, self.alpha, (1 - self.alpha) * (g * g))
        if self.centered:
            mean = decayed(self.averages, i, self.alpha, (1 - self.alpha) * g)
            square = square - mean * mean
        step = g / (np.sqrt(square) + self.eps)
        if self.momentum:
            step = decayed(self.velocity, i, self.momentum, step)
        p.array -= self.lr * step
