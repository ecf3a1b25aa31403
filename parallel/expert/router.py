"""The router: the experts of each token, the weights of their results, and the losses that keep their load even."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autograd import ops, random
from autograd.arrays.shape_only import Shaped
from autograd.engine.leaves import Parameter
from autograd.engine.tensor import Tensor
from autograd.errors import OptionError, typed_errors
from autograd.nn import Module
from autograd.ops.arguments import labelled, raw
from autograd.ops.sorting import take_along_axis

__all__ = ["Router", "Routing", "balance_loss", "z_loss"]


class Routing(NamedTuple):
    """The result of a `Router`, with the labels of the tokens.

    Attributes
    ----------
    logits, probabilities : Tensor, [..., experts]
    choice : Tensor of int, [..., top_k]
        The experts of each token, the most probable one first.
    weights : Tensor, [..., top_k]
        The factors of their results.
    """

    logits: Tensor
    probabilities: Tensor
    choice: Tensor
    weights: Tensor


class Router(Module):
    """Choose the `top_k` most probable experts of each token: ``p = softmax(x @ weight)``.

    Parameters
    ----------
    width, experts : int
    top_k : int
    renormalize : bool
        Whether the weights of a token's experts are divided by their sum. With ``top_k=1`` they would be 1, without a
        gradient.
    dtype : dtype
    key : random.Key, optional

    Notes
    -----
    Of equal probabilities the first expert wins. The choice has no derivative; the weights have. Sources: Shazeer et
    al. 2017, *Outrageously large neural networks*; Fedus et al. 2021, *Switch transformers* (``top_k=1``).
    """

    def __init__(
        self, width: int, experts: int, top_k: int, renormalize: bool, *, dtype: Any = np.float32,
        key: random.Key | None = None,
    ):  # fmt: skip
        if not 1 <= top_k <= experts:
            text = f"top_k={top_k} was given for {experts} experts; needed: 1 to {experts}"
            raise OptionError(text)
        key = random.next_key("Router") if key is None else key
        bound = 1.0 / max(width, 1) ** 0.5
        drawn = random.uniform(key.fold("weight"), (width, experts), low=-bound, high=bound, dtype=dtype)
        self.weight = Parameter(drawn)
        self.top_k, self.renormalize = top_k, renormalize

    def forward(self, x: Any, weight: Any = None) -> Routing:
        """Route the tokens x [..., width]; `weight` is the router's own as it entered, if its caller has entered it."""
        logits = x @ (self.weight if weight is None else weight)
        probabilities = ops.softmax(logits)
        values = raw(probabilities)
        choice = labelled(np.argsort(-values, axis=-1, kind="stable")[..., : self.top_k], probabilities)
        weights = take_along_axis(probabilities, choice, -1)
        if self.renormalize:
            weights = weights / ops.sum(weights, -1, keepdims=True)
        return Routing(logits, probabilities, choice, weights)


@typed_errors
def balance_loss(probabilities: Tensor, counts: Any, top_k: int) -> Any:
    """The load-balance loss as a sum over this rank's tokens: ``experts * sum_e f_e * sum_t p[t, e]``.

    f_e is the share of all choices, of the tokens of all ranks, that fell on expert e, so a perfect balance gives 1 per
    token. Divided by the global number of tokens it is ``experts * sum_e f_e P_e`` with the mean probability P_e.

    Parameters
    ----------
    probabilities : Tensor, [..., experts]
    counts : array of int, [experts]
        How often each expert was chosen, by the tokens of all ranks.
    top_k : int

    Returns
    -------
    Tensor
        One number, Partial where the tokens are sharded.

    Notes
    -----
    f is a constant, so the gradient is that of the probabilities: ``experts * f``. From the counts of the rank's own
    tokens the loss would be another one, which balances each rank by itself. Sources: Lepikhin et al. 2020, *GShard*,
    section 2.2; Fedus et al. 2021, section 2.2.
    """
    dtype = raw(probabilities).dtype
    share: Any
    if type(raw(probabilities)) is Shaped:
        share = Shaped((raw(probabilities).shape[-1],), dtype, raw(probabilities).why)
    else:
        share = (np.asarray(counts) * (len(counts) / max(int(np.sum(counts)), 1))).astype(dtype)
    return ops.sum(probabilities * ops.arguments.constant_like(share, probabilities))


def z_loss(logits: Tensor) -> Any:
    """The sum over this rank's tokens of ``logsumexp(logits)**2``, which keeps logits small (Zoph et al. 2022)."""
    return ops.sum(ops.square(ops.logsumexp(logits, -1)))
