"""Adam whose second moment is frozen once gradients are compressed: the optimizer of 1-bit Adam."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from autograd.engine.leaves import Leaf
from autograd.errors import ArgumentError, OptionError
from autograd.optim import Adam
from autograd.optim.base import decayed
from autograd.optim.hyperparameters import check_numbers

from .compression import Compression
from .quantised import OneBit

__all__ = ["CompressedAdam"]


class CompressedAdam(Adam):
    """Adam for compressed gradients: their squares are averaged only while the sums are exact.

    ``m = b1 m + (1 - b1) g``; ``v = b2 v + (1 - b2) g^2`` in the first `compression.start_step` steps, after which v
    is frozen; ``p -= lr (m / c1) / (sqrt(max(v / c2, floor)) + eps)`` with ``c1 = 1 - b1^t`` for the number t of steps,
    and ``c2 = 1 - b2^s`` for the number s of updates of v. The floor is `variance_floor` times the mean of v / c2 over
    the parameter, and 0 before v is frozen.

    Parameters
    ----------
    params : iterable of Parameter, or of dict
        See `Optimizer`.
    compression : Compression
        The reduction of the `DataParallel` model, with a `start_step`. A `OneBit` needs ``momentum`` equal to b1, and
        then this is 1-bit Adam.
    lr, betas, eps, weight_decay, digest_every
        See `Adam`.
    variance_floor : float
        See above. An element that had no gradient before v was frozen has v = 0, and a sign is never 0: without a
        floor, the rounding of its momentum would be divided by `eps`.

    Raises
    ------
    OptionError
        The momentum of a `OneBit` is not b1, or `start_step` is 0, so that there would be no second moment.

    Notes
    -----
    The squares of compressed gradients are far from those of gradients: the elements that `TopK` delivers, for example,
    are sums over many steps. Adam would divide by them.

    Source: Tang et al. 2021, "1-bit Adam", algorithm 1. The paper has no bias correction and no floor. The momentum is
    compressed by `OneBit`, whose notes have the equations. The exact steps are those of `Adam`. Without compression,
    for example on one rank, all steps are exact.

    Examples
    --------
    >>> from autograd import nn
    >>> from parallel import DataParallel
    >>> from parallel import OneBit
    >>> from parallel import CompressedAdam
    >>> compression = OneBit(momentum=0.9, start_step=100)
    >>> model = DataParallel(nn.Linear(4, 2), "dp", reduction=compression)
    >>> CompressedAdam(model.parameters(), compression, lr=1e-3)
    CompressedAdam(2 parameters, lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0)
    """

    _saved = ("first", "second", "counts", "updates")
    _switches = ("maximize",)

    def __init__(
        self,
        params: Iterable[Leaf] | Iterable[dict[str, Any]],
        compression: Compression,
        lr: float | Callable[[int], float] = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        variance_floor: float = 1e-3,
        digest_every: int = 100,
    ):
        if not isinstance(compression, Compression):
            raise ArgumentError(
                f"CompressedAdam: compression={compression!r} was given; needed: the Compression that the DataParallel "
                "model has"
            )
        super().__init__(params, lr, betas, eps, weight_decay, digest_every=digest_every)
        check_numbers("CompressedAdam", variance_floor=variance_floor)
        if isinstance(compression, OneBit) and compression.momentum != betas[0]:
            raise OptionError(
                f"CompressedAdam: betas[0]={betas[0]} and compression.momentum={compression.momentum} were given; "
                f"needed: the same number\n  fix: OneBit(momentum={betas[0]}, ...)"
            )
        if not compression.start_step:
            raise OptionError(
                f"CompressedAdam: a {type(compression).__name__} with start_step=0 was given; needed: at least 1, and "
                "better a tenth of all steps, since the second moment is that of the exact steps"
            )
        self.compression, self.variance_floor = compression, variance_floor
        self.updates = [0] * len(self.parameters)
        self._denominators: dict[int, Any] = {}

    def update(self, i: int, p: Leaf, g: Any) -> None:
        if not self.compression.state.compressed.get(p.name or "", False):
            super().update(i, p, g)
            self.updates[i] = self.counts[i]
            self._denominators.pop(i, None)
            return
        self.count_step(i, p)
        if self.weight_decay:
            g = g + self.weight_decay * p.array
        b1, _ = self.betas
        m = decayed(self.first, i, b1, (1 - b1) * g)
        if i not in self._denominators:
            # the root of the frozen second moment, where it is not below the floor
            v = self.second[i] / max(1 - self.betas[1] ** self.updates[i], np.finfo(np.float64).tiny)
            self._denominators[i] = np.sqrt(np.maximum(v, self.variance_floor * v.mean())) + self.eps
        p.array -= self.lr / (1 - b1 ** self.counts[i]) * (m / self._denominators[i])

    def forget(self) -> None:
        super().forget()
        self._denominators.clear()
