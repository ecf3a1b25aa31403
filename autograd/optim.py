"""Optimizers: SGD with momentum, Adam.

`step` refuses a gradient whose layout is not its parameter's (Partial is "never reduced"), and compares the copies of
replicated parameters at the first step and every so often, so that replicas that drifted apart are an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy import add, multiply, subtract

from .arrays import is_absent, is_inexact
from .describe import describe
from .errors import DtypeError, LayoutError, RingtapeError, ShapeError
from .layout import C, may_relabel
from .leaves import Leaf
from .saved import step_check
from .sites import call_site
from .state import state

__all__ = ["SGD", "Adam", "Optimizer"]


class Optimizer:
    """What optimizers share: the parameters, the checks, `zero_grad`.

    Parameters
    ----------
    parameters : iterable of Parameter
    digest_every : int
        Under a mesh, replicas are compared at the first step and every so many; 0 for never.
    """

    def __init__(self, parameters: Iterable[Leaf], digest_every: int = 100):
        self.parameters = list(parameters)
        if not self.parameters:
            raise ShapeError("an optimizer of no parameters; needed: at least one, like model.parameters()")
        for p in self.parameters:
            if not isinstance(p, Leaf):
                raise RingtapeError(f"an optimizer was given {type(p).__name__}; needed: Parameters")
            if not is_inexact(p.array.dtype):
                raise DtypeError(
                    f"an optimizer was given a parameter of dtype {p.array.dtype}; needed: a floating dtype"
                )
        self.digest_every = digest_every
        self.steps = 0
        self._accepted: list[Any] = []  # the parameters' layouts, where the dual ones were found to fit

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for p in self.parameters:
            p._grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient.

        Raises
        ------
        LayoutError
            A gradient whose layout is not its parameter's.
        SavedArrayError
            A tape still needs a parameter.
        ReplicaMismatch
            Copies of a replicated parameter differ between ranks.
        """
        mesh = state.mesh
        if mesh is not None and self.digest_every and self.steps % self.digest_every == 0:
            mesh.check_replicas(self.parameters)
        self.steps += 1
        parameters = self.parameters
        gradients = [p._grad for p in parameters]
        if (
            any([p.uses for p in parameters])  # noqa: C419 - a list is half the price of a generator
            or [p.layout for p in parameters] != self._accepted
            or not _BARE.issuperset(map(type, gradients))
        ):
            gradients = [self._accept(i, p) for i, p in enumerate(parameters)]
            plain = all(p.owns and type(p.array) is np.ndarray for p in parameters)
            complete = plain and all(g is not None for g in gradients)
            self._accepted = [p.layout for p in parameters] if complete else []
        self.update_all(gradients)

    def _accept(self, i: int, p: Leaf) -> Any:
        """The gradient of the i-th parameter as an array, None where there is nothing to do; refused if unfit."""
        g = p.grad
        if g is None or is_absent(p.array):
            return None
        refuse_foreign_gradient(p, i)
        step_check(p)
        return g.array

    def update_all(self, gradients: list[Any]) -> None:
        """Change the parameters that have a gradient; one entry per parameter."""
        for i, (p, g) in enumerate(zip(self.parameters, gradients, strict=True)):
            if g is not None:
                self.update(i, p, g)

    def update(self, i: int, p: Leaf, g: Any) -> None:
        """Change the i-th parameter in place, given its gradient."""
        raise NotImplementedError


_BARE = frozenset((np.ndarray,))  # what `Leaf.accumulate` leaves: of the dual layout


def refuse_foreign_gradient(p: Leaf, i: int) -> None:
    """Raise LayoutError unless the gradient of a parameter has the parameter's own layout."""
    g = p.grad
    assert g is not None
    if g.array.shape != p.array.shape:
        raise ShapeError(f"{p.name or f'parameter {i}'} has shape {p.array.shape}, its gradient {g.array.shape}")
    if p.layout is None or g.layout is None:
        return
    for axis, size, have, need in zip(
        p.layout.grid.names, p.layout.grid.sizes, g.layout.labels, p.layout.labels, strict=True
    ):
        if (
            have is not need
            and have != need
            and need is not C
            and not (have.letter in "VS" and may_relabel(have, need))
        ):
            name = p.name or f"parameter {i}"
            never = f": the sum over {size} ranks was never taken" if have.letter == "P" else ""
            raise LayoutError(
                f"step({name}: {describe(p.array, p.array.shape, p.layout)}, its gradient: "
                f"{describe(g.array, g.array.shape, g.layout)})\n  axis {axis!r}: the parameter is {need.word}, "
                f"its gradient "
                f"{have.word}{never}\n  fix: make the parameter Invariant (leave the label out) and enter it by "
                f"cast({name}, "
                f"{axis!r}, to=R), whose adjoint is the all-reduce" + call_site()
            )


class SGD(Optimizer):
    """Stochastic gradient descent: ``v = momentum v + g (+ weight_decay p); p -= lr v``.

    Source: Sutskever et al. 2013, in torch's form (the learning rate outside the velocity).

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
        parameters: Iterable[Leaf],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        digest_every: int = 100,
    ):
        super().__init__(parameters, digest_every)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.velocity: list[Any] = [None] * len(self.parameters)
        self._scratch: list[Any] = [None] * len(self.parameters)
        self._small: _Small | None = None

    def update_all(self, gradients: list[Any]) -> None:
        # the many small parameters of a model cost more in calls than in numbers: they are one array here
        if self.weight_decay or not self.momentum or not _BARE.issuperset(map(type, gradients)):
            return super().update_all(gradients)  # some have no gradient, or there is more to do than this
        small = self._small
        if small is None:
            small = self._small = _Small(self.parameters, gradients, self.velocity)
        small.step(gradients, self.lr, self.momentum)
        for i in small.others:
            self.update(i, self.parameters[i], gradients[i])
        return None

    def update(self, i: int, p: Leaf, g: Any) -> None:
        if self.weight_decay:
            g = g + self.weight_decay * p.array
        if self.momentum:
            v = self.velocity[i]
            if v is None:
                v = self.velocity[i] = g.copy()
            else:
                v *= self.momentum
                v += g
                self.velocity[i] = v  # of one number it is another object
            g = v
        if type(g) is np.ndarray and type(p.array) is np.ndarray:
            scratch = self._scratch[i]
            if scratch is None:
                scratch = self._scratch[i] = np.empty_like(g)
            np.multiply(g, self.lr, scratch)
            p.array -= scratch
        else:
            _decrease(p, self.lr * g)


class _Small:
    """Small parameters of one dtype: their velocities, gradients and changes as one array each.

    The velocities are views, so that a step in which some have no gradient can take the others one by one.
    """

    LIMIT = 16384  # elements; above it the copy of the gradient costs more than the calls

    def __init__(self, parameters: list[Leaf], gradients: list[Any], velocity: list[Any]):
        dtype = gradients[0].dtype
        fits = [
            (i, p) for i, (p, g) in enumerate(zip(parameters, gradients, strict=True))
            if type(g) is np.ndarray and type(p.array) is np.ndarray and g.dtype == p.array.dtype == dtype
            and g.size <= self.LIMIT and velocity[i] is None
        ]  # fmt: skip
        members = {i for i, _ in fits}
        self.others = [i for i in range(len(parameters)) if i not in members]
        size = sum(p.array.size for _, p in fits)
        self.velocity, self.gradient, self.change = np.zeros(size, dtype), np.empty(size, dtype), np.empty(size, dtype)
        self.changes: list[tuple[int, Leaf, Any]] = []
        start = 0
        for i, p in fits:
            part = slice(start, start + p.array.size)
            velocity[i] = self.velocity[part].reshape(p.array.shape)
            self.changes.append((i, p, self.change[part].reshape(p.array.shape)))
            start += p.array.size

    def step(self, gradients: list[Any], lr: float, momentum: float) -> None:
        """``v = momentum v + g; p -= lr v`` of all of them."""
        v, change = self.velocity, self.change
        if self.changes:
            np.concatenate([gradients[i].reshape(-1) for i, _, _ in self.changes], out=self.gradient)
        multiply(v, momentum, v)
        add(v, self.gradient, v)
        multiply(v, lr, change)
        for _, p, part in self.changes:
            array = p.array
            subtract(array, part, array)


def _decrease(p: Leaf, change: Any) -> None:
    if isinstance(p.array, np.generic):
        p.array = p.array - change
    else:
        p.array -= change


class Adam(Optimizer):
    """Adam: moving averages of the gradient and its square, corrected for their start at zero.

    Source: Kingma & Ba 2015, algorithm 1; defaults are torch's.
    """

    def __init__(
        self,
        parameters: Iterable[Leaf],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        digest_every: int = 100,
    ):
        super().__init__(parameters, digest_every)
        self.lr, self.betas, self.eps = lr, betas, eps
        self.first: list[Any] = [None] * len(self.parameters)
        self.second: list[Any] = [None] * len(self.parameters)
        self.counts = [0] * len(self.parameters)

    def update(self, i: int, p: Leaf, g: Any) -> None:
        b1, b2 = self.betas
        if self.first[i] is None:
            self.first[i], self.second[i] = g * 0, (g * g.conj() if g.dtype.kind == "c" else g * g) * 0
        m, v = self.first[i], self.second[i]
        self.counts[i] += 1
        t = self.counts[i]
        m = self.first[i] = b1 * m + (1 - b1) * g
        v = self.second[i] = b2 * v + (1 - b2) * (g * g)
        _decrease(p, (self.lr / (1 - b1**t)) * m / (np.sqrt(v) / (1 - b2**t) ** 0.5 + self.eps))
