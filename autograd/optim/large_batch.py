"""LARS and LAMB, optimizers for large batches: the step of each parameter is scaled by the norm of the parameter.

The norm is that of the whole parameter, also if it is sharded: all ranks along its axes step together. Varying
parameters are refused unless `norm` is given (see `optim.norms`), except on the stages of a pipeline, each of which has
whole parameters of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..arrays.device import device_of
from ..engine.leaves import Leaf
from ..engine.state import state
from ..engine.tensor import Tensor
from ..kernels import stands_for
from ..layouts.layout import I, Layout, Rooted, V
from .adam import Adam
from .base import Optimizer, decayed
from .norms import Norm, axes_of_parts, check_norm, local_norm, norm_of, norm_on_device, traced_norm

__all__ = ["LAMB", "LARS"]


def _norm_of(norm: Norm | None, p: Leaf, array: Any) -> Any:
    """The norm of a whole parameter or of what has its layout: a number, or an array if no number can be read.

    None can of an array on the GPU, which has all of it, and of one in a trace.
    """
    layout = p.layout
    if layout is not None and layout.rooted:  # only the root updates it, and it needs nothing of the other ranks
        layout = layout.replace([axis for axis, label in layout.items() if isinstance(label, Rooted)], I)
    if norm is None and layout is not None and state.distribution.stage_axes:
        return _norm_on_stage(layout, array)
    x = [Tensor(array, layout)]
    if norm is None and (layout is None or V in layout.labels):
        if layout is None and device_of(array) != "cpu":
            return norm_on_device(array)
        if layout is None and stands_for.whole is not None and array.dtype == np.float32:
            return traced_norm(array)
        return local_norm(x)  # which refuses Varying: the ranks may have different parameters
    return norm_of(norm, x)


def _norm_on_stage(layout: Layout, array: Any) -> float:
    """The norm of a parameter of one stage of a pipeline. The ranks of other stages have others, and take no part."""
    distribution = state.distribution
    whole = layout.replace([axis for axis in distribution.stage_axes if layout[axis] is V], I)
    axes = () if V in whole.labels else axes_of_parts("norm", whole)
    if not axes:
        return local_norm([Tensor(array, whole)])
    power = local_norm([Tensor(array)]) ** 2
    return math.sqrt(math.fsum(distribution.numbers_of_all(power, axes, "norm of a parameter in parts")))


def _ratio(above: Any, below: Any, ratio: Callable[[Any], Any]) -> Any:
    """``ratio(below)`` where both norms are above 0, else 1."""
    if isinstance(above, float | int):
        return ratio(below) if above > 0 and below > 0 else 1.0
    is_known = (above > 0) & (below > 0)
    one = np.ones_like(above)
    return np.where(is_known, ratio(np.where(is_known, below, one)), one)


def _times(scale: Any, x: Any) -> Any:
    """A number, or an array without dimensions, times an array in its dtype."""
    return (scale.astype(x.dtype, copy=False) if hasattr(scale, "astype") else scale) * x


class LARS(Optimizer):
    """LARS: SGD with momentum and a learning rate that is scaled for each parameter.

    ``scale = trust ||p|| / (||g|| + weight_decay ||p|| + eps)``, or 1 where ``||p||`` or ``||g||`` is 0;
    ``v = momentum v + lr scale (g + weight_decay p)``; ``p -= v``.

    Parameters
    ----------
    params : iterable of Parameter, or of dict
        Parameters, or groups of them: see `Optimizer`.
    lr : float or callable
        The learning rate, or a schedule: see `schedules`.
    momentum, weight_decay, trust, eps : float
    norm : callable, optional
        The norm of a whole parameter, by default `global_norm`; see `optim.norms`.
    digest_every : int
        See `Optimizer`.

    Raises
    ------
    LayoutError
        At `step`: a parameter is Varying, and `norm` is not given.

    Notes
    -----
    Source: You, Gitman & Ginsburg 2017, algorithm 1.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import optim
    >>> w = ag.Parameter([3.0, 4.0])
    >>> opt = optim.LARS([w], lr=1.0, trust=0.1, weight_decay=0.0)
    >>> with ag.Tape() as tape:
    ...     loss = (w * w).sum()
    >>> tape.backward(loss); opt.step(); w.numpy().round(6)
    array([2.7, 3.6])
    """

    _saved = ("velocity",)
    _numbers = ("momentum", "weight_decay", "trust", "eps")

    def __init__(
        self,
        params: Iterable[Leaf] | Iterable[dict[str, Any]],
        lr: float | Callable[[int], float],
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        trust: float = 1e-3,
        eps: float = 1e-8,
        *,
        norm: Norm | None = None,
        digest_every: int = 100,
    ):
        super().__init__(params, lr, digest_every)
        check_norm("LARS", norm)
        self.momentum, self.weight_decay, self.trust, self.eps, self.norm = momentum, weight_decay, trust, eps, norm
        self.velocity: list[Any] = [None] * len(self.parameters)
        self.check()

    def update(self, i: int, p: Leaf, g: Any) -> None:
        p_norm, g_norm = _norm_of(self.norm, p, p.array), _norm_of(self.norm, p, g)
        scale = self.lr * _ratio(
            p_norm, g_norm, lambda g_norm: self.trust * p_norm / (g_norm + self.weight_decay * p_norm + self.eps)
        )
        change = _times(scale, g + self.weight_decay * p.array if self.weight_decay else g)
        p.array -= decayed(self.velocity, i, self.momentum, change)


class LAMB(Adam):
    """LAMB: AdamW with a step that is scaled to the norm of the parameter, ``p -= lr ||p|| / ||step|| step``.

    ``step`` is Adam's plus ``weight_decay p``. The ratio is 1 where either norm is 0.

    Parameters
    ----------
    params : iterable of Parameter, or of dict
        Parameters, or groups of them: see `Optimizer`.
    lr : float or callable
        The learning rate, or a schedule: see `schedules`.
    betas : (float, float)
    eps, weight_decay : float
    norm : callable, optional
        The norm of a whole parameter, by default `global_norm`; see `optim.norms`.
    digest_every : int
        See `Optimizer`.

    Raises
    ------
    LayoutError
        At `step`: a parameter is Varying, and `norm` is not given.

    Notes
    -----
    Source: You et al. 2020, algorithm 2, with the identity for its function phi.
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Leaf] | Iterable[dict[str, Any]],
        lr: float | Callable[[int], float] = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        norm: Norm | None = None,
        digest_every: int = 100,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, digest_every=digest_every)
        check_norm("LAMB", norm)
        self.norm = norm

    def update(self, i: int, p: Leaf, g: Any) -> None:
        self.count_step(i, p)
        step = self.direction(i, p, g)
        p_norm, step_norm = _norm_of(self.norm, p, p.array), _norm_of(self.norm, p, step)
        p.array -= _times(self.lr * _ratio(p_norm, step_norm, lambda step_norm: p_norm / step_norm), step)
