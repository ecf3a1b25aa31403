"""Random numbers of the layers of a pipeline: the same for any number of stages, and in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autograd import random
from autograd.errors import typed_errors
from autograd.random.keys import begin_state

__all__ = ["layer_state", "seed_of_layers"]


@contextmanager
@typed_errors
def layer_state(seed: int, step: int, microbatch: int, index: int, axis: str | None = None) -> Iterator[None]:
    """Inside the block random keys depend on these four numbers alone; after it the state is as it was before.

    A layer that draws random numbers, such as dropout, then draws the same ones wherever it runs: on a stage of a
    `Pipeline`, or in a program of one process, which runs each layer in such a block.

    Parameters
    ----------
    seed : int
    step : int
        The number of the training step.
    microbatch : int
        The number of the microbatch in the step.
    index : int
        The number of the layer in the model. The loss has the number that follows that of the last layer.
    axis : str, optional
        The mesh axis of the pipeline, along which the ranks run different layers, and so draw different numbers.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> def mask(index):
    ...     with layer_state(seed=0, step=10, microbatch=3, index=index):
    ...         return nn.dropout(numpy.ones(100), 0.5)
    >>> (mask(1) == mask(1)).all(), (mask(1) == mask(2)).all()
    (np.True_, np.False_)
    """
    before = random.get_state()
    begin_state(seed_of_layers(seed, step, microbatch) | index, before.places, () if axis is None else (axis,))
    try:
        yield
    finally:
        random.set_state(before)


def seed_of_layers(seed: int, step: int, microbatch: int) -> int:
    """The seed of the first layer's random state; that of another one is this number ``|`` its index."""
    # One integer made of the four: a seed may be of any size. The 1 keeps seeds of models apart from those of layers.
    return seed << 200 | ((1 << 64 | step) << 32 | microbatch) << 32
