"""The optimizer SGD: stochastic gradient descent, with momentum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy import add, multiply, subtract

from ..engine.leaves import Leaf
from ..errors import OptionError
from ..kernels import functions
from .base import _BARE, Optimizer, decayed
from .fused import Tables
from .hyperparameters import check_numbers

__all__ = ["SGD"]

_on_host = functions("momentum", np.ndarray).momentum


class SGD(Optimizer):
    """Stochastic gradient descent: ``g += weight_decay p``, ``v = momentum v + (1 - dampening) g``, ``p -= lr v``.

    With `nesterov`, ``p -= lr (g + momentum v)``. The first velocity is ``g``, without dampening.

    Parameters
    ----------
    params : iterable of Parameter, or of dict
        Parameters, or groups of them: see `Optimizer`.
    lr : float or callable
        The learning rate, or a schedule: see `schedules`.
    momentum, dampening, weight_decay : float
    nesterov : bool
        Nesterov momentum; needs a positive momentum and no dampening.
    maximize : bool
        Whether steps go up the gradient instead of down.
    digest_every : int
        See `Optimizer`.

    Raises
    ------
    OptionError
        `nesterov` without momentum, or with dampening; a hyperparameter that is NaN, infinite or out of range.

    Notes
    -----
    Source: Sutskever et al. 2013, in torch's form, where the learning rate is not part of the velocity.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import optim
    >>> w = ag.Parameter([1.0])
    >>> opt = optim.SGD([w], lr=0.5)
    >>> with ag.Tape() as tape:
    ...     loss = (w * w).sum()
    >>> tape.backward(loss); opt.step(); w.numpy()
    array([0.])
    """

    def __init__(
        self,
        params: Iterable[Leaf] | Iterable[dict[str, Any]],
        lr: float | Callable[[int], float] = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        digest_every: int = 100,
    ):
        super().__init__(params, lr, digest_every)
        self.momentum, self.weight_decay, self.dampening, self.nesterov = momentum, weight_decay, dampening, nesterov
        self.maximize = maximize
        self.check()
        self.velocity: list[Any] = [None] * len(self.parameters)
        self._small: _SmallParameters | None = None
        self._tables = Tables()

    _saved = ("velocity",)
    _numbers = ("momentum", "weight_decay", "dampening", "nesterov")
    _switches = ("maximize",)
    _flags = ("nesterov",)

    def check_numbers(self) -> None:
        check_numbers("SGD", lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        check_numbers("SGD", -math.inf, dampening=self.dampening)
        if self.nesterov and (self.momentum <= 0 or self.dampening):
            raise OptionError(
                f"SGD: nesterov=True with momentum={self.momentum}, dampening={self.dampening}; needed: momentum > 0, "
                "dampening 0"
            )

    def forget(self) -> None:
        self._small = None
        self._tables = Tables()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_small": None}  # its velocities are views of one array, which a copy would take apart

    def update_all(self, gradients: list[Any]) -> None:
        # For small parameters the calls cost more than the arithmetic, so they are updated together as one array. This
        # is implemented for plain momentum, when every parameter has a gradient.
        other = self.weight_decay or not self.momentum or self.dampening or self.nesterov or self.maximize
        other = other or type(self).update is not SGD.update
        if other or not _BARE.issuperset(map(type, gradients)):
            return super().update_all(gradients)
        small = self._small
        if small is None:
            small = self._small = _SmallParameters(self.parameters, gradients, self.velocity)
        small.step(gradients, self.lr, self.momentum)
        if small.others:
            self.update_some(small.others, gradients)
        return None

    def update_fused(self, kind: str, members: list[int], gradients: list[Any]) -> None:
        new = [i for i in members if self.momentum and self.velocity[i] is None]
        for i in new:
            self.velocity[i] = np.zeros_like(self.parameters[i].array)
        state = "velocity" if self.momentum else None
        # the first velocity is the gradient, without dampening
        for together, dampening in (new, 0.0), ([i for i in members if i not in new], self.dampening):
            if together:
                numbers = partial(self._numbers_of_kernel, 1 - dampening)
                self._tables.update(self, "momentum", kind, together, gradients, [state], numbers)

    def _numbers_of_kernel(self, share: float) -> dict[str, Any]:
        return {
            "lr": self.lr, "keep": self.momentum, "share": share, "weight_decay": self.weight_decay,
            "nesterov": self.nesterov,
        }  # fmt: skip

    def update(self, i: int, p: Leaf, g: Any) -> None:
        if self.weight_decay:
            g = g + self.weight_decay * p.array
        if self.momentum:
            v = self.velocity[i]
            if v is None:
                v = self.velocity[i] = g.copy()
            elif not (self.dampening or self.nesterov) and _on_host(p.array, v, g, self.lr, self.momentum):
                return
            else:
                v = decayed(self.velocity, i, self.momentum, (1 - self.dampening) * g if self.dampening else g)
            g = g + self.momentum * v if self.nesterov else v
        p.array -= self.lr * g


class _SmallParameters:
    """The small parameters of one dtype, updated together: velocities and changes are one array each.

    The velocities of the optimizer are views of that array, so that a step in which a parameter has no gradient can
    update the others one by one.
    """

    LIMIT = functions("momentum", np.ndarray).LEAST
    """Elements. From this size on copying the gradient costs more than the calls that are saved."""

    def __init__(self, parameters: list[Leaf], gradients: list[Any], velocity: list[Any]):
        dtype = next((g.dtype for g in gradients if g.dtype.char in "fd"), np.dtype(np.float64))
        fits = [
            (i, p) for i, (p, g) in enumerate(zip(parameters, gradients, strict=True))
            if g.__class__ is np.ndarray and p.array.__class__ is np.ndarray and g.dtype == p.array.dtype == dtype
            and g.size < self.LIMIT and velocity[i] is None
        ]  # fmt: skip
        members = {i for i, _ in fits}
        self.others = [i for i in range(len(parameters)) if i not in members]
        size = sum(p.array.size for _, p in fits)
        self.velocity, self.change = np.zeros(size, dtype), np.empty(size, dtype)
        self.numbers: tuple[float, float] | None = None  # kept as arrays: calls with them are faster
        self.rate, self.keep = np.zeros((), dtype), np.zeros((), dtype)
        self.members: list[tuple[int, Leaf, Any, Any]] = []  # of each: its velocity, and its change
        start = 0
        for i, p in fits:
            part = slice(start, start + p.array.size)
            velocity[i] = self.velocity[part].reshape(p.array.shape)
            self.members.append((i, p, velocity[i], self.change[part].reshape(p.array.shape)))
            start += p.array.size

    def step(self, gradients: list[Any], lr: float, momentum: float) -> None:
        """Apply ``v = momentum v + g; p -= lr v`` to all small parameters."""
        v, change = self.velocity, self.change
        if self.numbers != (lr, momentum):
            self.numbers = lr, momentum
            self.rate[()], self.keep[()] = lr, momentum
        multiply(v, self.keep, v)
        for i, _, part, _ in self.members:
            add(part, gradients[i], part)  # one array of all gradients would cost more to make
        multiply(v, self.rate, change)
        for _, p, _, part in self.members:
            array = p.array
            subtract(array, part, array)
