"""The optimizers Adam and AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from ..engine.leaves import Leaf
from ..errors import ArgumentError
from ..kernels import functions
from .base import Optimizer, decayed
from .fused import Tables
from .hyperparameters import check_numbers

__all__ = ["Adam", "AdamW"]

_on_host = functions("adam", np.ndarray).adam
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Adam(Optimizer):
    """Adam: steps along a bias-corrected moving average of the gradient, divided by that of its square.

    ``m = b1 m + (1 - b1) g``, ``v = b2 v + (1 - b2) g^2``, ``p -= lr (m / c1) / (sqrt(v / c2) + eps)`` with
    ``c1 = 1 - b1^t`` and ``c2 = 1 - b2^t``. Here t counts the steps in which the parameter had a gradient.

    Parameters
    ----------
    params : iterable of Parameter, or of dict
        Parameters, or groups of them: see `Optimizer`.
    lr : float or callable
        The learning rate, or a schedule: see `schedules`.
    betas : (float, float)
        Decay rates b1 and b2 of the averages.
    eps : float
        Added to the denominator.
    weight_decay : float
        ``weight_decay * p`` is added to the gradient.
    amsgrad : bool
        Whether the largest v so far is in its place in the step.
    maximize : bool
        Whether steps go up the gradient instead of down.
    digest_every : int
        See `Optimizer`.

    Notes
    -----
    Source: Kingma & Ba 2015, algorithm 1; `amsgrad`: Reddi, Kale & Kumar 2018, algorithm 2, in torch's form; defaults
    are torch's. Contiguous float32 and float64 arrays are updated by `kernels.adam`, but for `amsgrad`.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import optim
    >>> w = ag.Parameter([1.0])
    >>> opt = optim.Adam([w], lr=0.5)
    >>> with ag.Tape() as tape:
    ...     loss = (w * w).sum()
    >>> tape.backward(loss); opt.step(); w.numpy()
    array([0.5])
    """

    _saved: tuple[str, ...] = ("first", "second", "counts")
    _numbers: tuple[str, ...] = ("betas", "eps", "weight_decay")
    _switches: tuple[str, ...] = ("amsgrad", "maximize")
    decoupled = False

    def __init__(
        self,
        params: Iterable[Leaf] | Iterable[dict[str, Any]],
        lr: float | Callable[[int], float] = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        digest_every: int = 100,
    ):
        super().__init__(params, lr, digest_every)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.amsgrad, self.maximize = amsgrad, maximize
        self.first: list[Any] = [None] * len(self.parameters)
        self.second: list[Any] = [None] * len(self.parameters)
        self.largest: list[Any] = [None] * len(self.parameters)  # the second averages, with `amsgrad`
        self.counts = [0] * len(self.parameters)
        self._tables = Tables()
        self.check()
        if any(group.own.get("amsgrad", amsgrad) for group in self._groups):
            self._save_largest()

    def _save_largest(self) -> None:
        if "largest" not in self._saved:
            self._saved = (*self._saved, "largest")

    def check_numbers(self) -> None:
        caller, betas = type(self).__name__, self.betas
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ArgumentError(f"{caller}: betas={betas!r} was given; needed: two numbers")
        check_numbers(caller, below=1.0, **{"betas[0]": betas[0], "betas[1]": betas[1]})
        check_numbers(caller, lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)

    def _has_kernels(self) -> bool:
        return not self.amsgrad and super()._has_kernels()  # they have no third average

    def update_fused(self, kind: str, members: list[int], gradients: list[Any]) -> None:
        steps: dict[int, list[int]] = {}
        for i in members:
            self.count_step(i, self.parameters[i])
            steps.setdefault(self.counts[i], []).append(i)
        for together in steps.values():  # which have taken equally many steps
            numbers, advance = partial(self._numbers_of_kernel, together[0]), partial(self._advance_counts, together)
            self._tables.update(self, "adam", kind, together, gradients, ("first", "second"), numbers, advance)

    def _numbers_of_kernel(self, i: int) -> dict[str, Any]:
        return {
            "step": self.counts[i], "lr": self.lr, "betas": self.betas, "eps": self.eps,
            "weight_decay": self.weight_decay, "decoupled": self.decoupled,
        }  # fmt: skip

    def _advance_counts(self, members: list[int]) -> None:
        for i in members:
            self.counts[i] += 1

    def forget(self) -> None:
        self._tables = Tables()

    def update(self, i: int, p: Leaf, g: Any) -> None:
        array = p.array
        self.count_step(i, p)
        first, second = self.first[i], self.second[i]
        if not self.amsgrad and g.dtype in _FLOATS and all(
            a.__class__ is np.ndarray and a.dtype == g.dtype and a.flags.c_contiguous for a in (array, g, first, second)
        ):
            _on_host(
                array, g, first, second, step=self.counts[i], lr=self.lr, betas=self.betas,
                eps=self.eps, weight_decay=self.weight_decay, decoupled=self.decoupled,
            )  # fmt: skip
            return
        p.array -= self.lr * self.direction(i, p, g)

    def count_step(self, i: int, p: Leaf) -> None:
        """Count a step of the i-th parameter, and make its averages at the first one, in the dtype of `p`."""
        if self.first[i] is None:  # the gradient of a master weight may have 16 bits
            self.first[i], self.second[i] = np.zeros_like(p.array), np.zeros_like(p.array)
        self.counts[i] += 1

    def direction(self, i: int, p: Leaf, g: Any) -> Any:
        """Update the averages and return the step for a learning rate of 1."""
        b1, b2 = self.betas
        t = self.counts[i]
        if self.weight_decay and not self.decoupled:
            g = g + self.weight_decay * p.array
        m, v = decayed(self.first, i, b1, (1 - b1) * g), decayed(self.second, i, b2, (1 - b2) * (g * g))
        if self.amsgrad:
            self._save_largest()
            largest = self.largest[i]
            out = largest if isinstance(largest, np.ndarray) else None
            v = self.largest[i] = v.copy() if largest is None else np.maximum(largest, v, out=out)
        step = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + self.eps)
        return step + self.weight_decay * p.array if self.weight_decay and self.decoupled else step


class AdamW(Adam):
    """Adam with decoupled weight decay: ``p -= lr * weight_decay * p`` in addition to Adam's step.

    The parameters are `Adam`'s, with torch's default for `weight_decay`. Source: Loshchilov & Hutter 2019, algorithm 2.
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Leaf] | Iterable[dict[str, Any]],
        lr: float | Callable[[int], float] = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        digest_every: int = 100,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, digest_every=digest_every)
