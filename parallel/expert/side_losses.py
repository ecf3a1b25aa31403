"""`side_losses`: collect the losses that layers add to the objective, such as the load balance of experts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autograd.engine.state import state

__all__ = ["add_side_loss", "side_losses"]


@contextmanager
def side_losses() -> Iterator[list[Any]]:
    """Collect, in the order of the calls, the side losses of the layers that run inside the block.

    Each is a sum over tokens, as the loss is, so the program divides both by the global number of tokens. It is Partial
    on the axes over which the tokens are divided (Varying where these are Varying), as the sum of the losses of tokens
    is. Where nothing collects them, layers compute none.

    The collector belongs to the thread. In a nested block the inner one collects. Layers inside `autograd.checkpoint`
    are collected, too.

    Yields
    ------
    list of Tensor
        Empty if no layer has a side loss, so ``sum(losses)`` is then the number 0.

    Examples
    --------
    >>> import autograd as ag, numpy
    >>> from parallel.expert import MixtureOfExperts, side_losses
    >>> layer, x = MixtureOfExperts(4, 8, experts=3), numpy.ones((5, 4), "float32")
    >>> with ag.Tape() as tape, side_losses() as found:
    ...     loss = ((layer(x) ** 2).sum() + sum(found)) / 5
    >>> tape.backward(loss)
    >>> len(found), layer.router.weight.grad.shape
    (1, (4, 3))
    """
    outer = state.collected
    found: list[Any] = []
    state.collected = found
    try:
        yield found
    finally:
        state.collected = outer


def is_collecting() -> bool:
    """Whether a block of `side_losses` is open on this thread."""
    return state.collected is not None


def add_side_loss(loss: Any) -> None:
    """Give a side loss, a sum over tokens, to the innermost open block of `side_losses`, if there is one."""
    if state.collected is not None:
        state.collected.append(loss)
